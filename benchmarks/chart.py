"""Pictures: loads beside what the disk allows and failovers; latency against throughput; the matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.failover import FailoverTimes
from benchmarks.matrix import Cell
from benchmarks.open_loop import OVERLOAD, OpenMeasured
from harness.plot import plt, save
from quorumlog.bench.closed_loop import Result

_COLUMN_STEP = 2.0
"""Wide enough for the words beside a column of points."""


def draw(path: Path, results: Sequence[Result], failovers: Sequence[FailoverTimes], title: str) -> None:
    figure, (loads, times) = plt.subplots(
        1, 2, figsize=(13, 4.5), layout="constrained", width_ratios=(2, 1)
    )
    figure.suptitle(title, fontsize=9)

    places = np.arange(len(results))[::-1]
    rates = [result.measured.records_per_second for result in results]
    raw = [result.raw_records_per_second for result in results]
    loads.barh(places + 0.2, rates, 0.38, color="tab:blue", label="three members")
    loads.barh(
        places - 0.2,
        [0 if math.isnan(value) else value for value in raw],
        0.38,
        color="lightgrey",
        label="three plain writers (raw limit)",
    )
    for place, rate in zip(places, rates, strict=True):
        loads.annotate(f" {rate:,.0f}", (rate, place + 0.2), verticalalignment="center", fontsize=8)
    for place, result in zip(places, results, strict=True):
        for target in result.load.targets:
            if target.figure == "records_per_second":
                loads.plot([target.bound] * 2, [place, place + 0.4], color="tab:green", linewidth=2)
    loads.set_yticks(places, [result.load.name for result in results])
    loads.set_xscale("log")
    loads.set_xlabel("records/s (green: target)")
    loads.legend(fontsize=8, loc="lower right")

    columns = [_COLUMN_STEP * number for number in range(len(failovers))]
    for column, failover in zip(columns, failovers, strict=True):
        spread = np.linspace(-0.15, 0.15, len(failover.seconds))
        times.plot(column + spread, failover.seconds, "o", alpha=0.5, color="tab:blue")
        marks = [(failover.figures["median_s"], "tab:blue", "median")]
        marks += [(t.bound, "tab:green", f"target {t.figure}") for t in failover.targets]
        for value, colour, label in marks:
            times.plot([column - 0.3, column + 0.3], [value] * 2, color=colour, linewidth=2)
            times.annotate(f" {label} {value:.2f}", (column + 0.3, value), color=colour, fontsize=8)
    times.set_xticks(columns, [failover.signal_name for failover in failovers])
    times.set_xlim(-0.6, _COLUMN_STEP * max(len(failovers), 1) - 0.4)
    times.set_ylim(bottom=0)
    times.set_ylabel("seconds to the next acknowledged append")
    save(figure, path)


def draw_latencies(path: Path, results: Sequence[OpenMeasured], title: str) -> None:
    """Latency against throughput, a panel for each load; twice the peak is marked by a cross."""
    names = list(dict.fromkeys(result.load for result in results))
    figure, panels = plt.subplots(
        1, len(names), figsize=(5 * len(names), 4.5), layout="constrained", squeeze=False
    )
    figure.suptitle(title, fontsize=9)
    for name, panel in zip(names, panels[0], strict=True):
        found = [result for result in results if result.load == name]
        for column, colour, label in (
            ("p50_ms", "tab:blue", "p50"),
            ("p99_ms", "tab:orange", "p99"),
            ("p999_ms", "tab:red", "p99.9"),
        ):
            calm = [result for result in found if result.share_of_peak < OVERLOAD]
            panel.plot(
                [result.accepted_per_second for result in calm],
                [getattr(result, column) for result in calm],
                "o-",
                color=colour,
                label=label,
            )
            for result in found:
                if result.share_of_peak >= OVERLOAD:
                    panel.plot(result.accepted_per_second, getattr(result, column), "x", color=colour)
        panel.axvline(found[0].peak_per_second, color="lightgrey", linewidth=2, label="closed-loop peak")
        panel.set_title(name, fontsize=9)
        panel.set_yscale("log")
        panel.set_xlim(left=0)
        panel.set_xlabel("records/s accepted (x: at twice the peak)")
        panel.set_ylabel("ms from due to answered")
        panel.legend(fontsize=8)
    save(figure, path)


def draw_matrix(path: Path, cells: Sequence[Cell], title: str) -> None:
    """Throughput against writers: a panel for each flush mode, a colour for each size of body."""
    flushes = list(dict.fromkeys(cell.flush for cell in cells))
    bodies = list(dict.fromkeys(cell.body_bytes for cell in cells))
    delays = list(dict.fromkeys(cell.delay_ms for cell in cells))
    figure, panels = plt.subplots(
        1, len(flushes), figsize=(6.5 * len(flushes), 4.5), layout="constrained", squeeze=False
    )
    figure.suptitle(title, fontsize=9)
    for flush, panel in zip(flushes, panels[0], strict=True):
        for body_bytes, colour in zip(bodies, ("tab:blue", "tab:orange", "tab:red"), strict=False):
            for delay_ms, style in zip(delays, ("-", "--", ":"), strict=False):
                line = [
                    c
                    for c in cells
                    if (c.flush, c.body_bytes, c.delay_ms) == (flush, body_bytes, delay_ms)
                ]
                panel.plot(
                    [cell.writers for cell in line],
                    [cell.measured.records_per_second for cell in line],
                    style,
                    marker="o",
                    color=colour,
                    label=f"{body_bytes:,} B, {delay_ms:g} ms",
                )
        panel.set_title(f"flush = {flush}", fontsize=9)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("writers, a connection each")
        panel.set_ylabel("records/s")
        panel.legend(fontsize=7)
    save(figure, path)
