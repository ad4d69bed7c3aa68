"""The chart: records per second over time, with the failures marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from demo.producing import ProducerKill
from harness.faults import Failover
from harness.plot import plt, save
from harness.producer import Ack

INTERVAL_S = 0.1
_COLOURS = ("tab:red", "tab:orange")


Rates = np.ndarray[tuple[int], np.dtype[np.float64]]


def rates_of(acks: Sequence[Ack], began_s: float) -> tuple[Rates, Rates]:
    """Edges of the bars in seconds since `began_s`, and the records per second of each: one fewer."""
    times = np.array([ack.at_s for ack in acks]) - began_s
    rows = np.array([ack.rows for ack in acks])
    duration_s = float(times.max()) if len(times) else INTERVAL_S
    edges = np.arange(0.0, duration_s + 2 * INTERVAL_S, INTERVAL_S)
    counts, _ = np.histogram(times, bins=edges, weights=rows)
    return edges, counts / INTERVAL_S


def draw(
    path: Path,
    acks: Sequence[Ack],
    began_s: float,
    failovers: Sequence[Failover],
    producer_kill: ProducerKill,
) -> None:
    """Write a PNG. `began_s`: `time.perf_counter` at the left edge."""
    edges, rates = rates_of(acks, began_s)
    figure, axes = plt.subplots(figsize=(11, 4.5), layout="constrained")
    axes.stairs(rates, edges, fill=True, color="tab:blue", alpha=0.6)
    for failover, colour in zip(failovers, _COLOURS, strict=False):
        fault_s = failover.fault_at_s - began_s
        axes.axvline(fault_s, color=colour, linewidth=1.5)
        axes.axvspan(fault_s, fault_s + failover.seconds_without_leader, color=colour, alpha=0.2)
        axes.annotate(
            f" {failover.signal_name} of {failover.leader_id}:\n"
            f" {failover.seconds_without_leader:.2f} s to the next\n acknowledged append",
            (fault_s + failover.seconds_without_leader, 0.98),
            xycoords=("data", "axes fraction"),
            color=colour,
            verticalalignment="top",
            fontsize=9,
        )
    killed_s = producer_kill.at_s - began_s
    axes.axvline(killed_s, color="tab:gray", linewidth=1.5)
    axes.annotate(
        f" SIGKILL of the producer:\n {producer_kill.seconds_to_resume:.2f} s to the next one",
        (killed_s, 0.80),
        xycoords=("data", "axes fraction"),
        color="tab:gray",
        verticalalignment="top",
        fontsize=9,
    )
    axes.set_xlim(0, edges[-1])
    # Room above the bars for what is written there.
    axes.set_ylim(0, 1.3 * float(rates.max()))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("seconds")
    axes.set_ylabel("acknowledged records/s")
    axes.set_title(
        "Flights into the log while the producer is killed, the leader, and the next leader stopped"
    )
    axes.grid(alpha=0.3)
    save(figure, path)
