"""What the chart shows, in words: the rate before each failure, the gap, and what came after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demo.chart import INTERVAL_S, rates_of
from demo.producing import ProducerKill
from harness.faults import Failover
from harness.producer import Ack

_HIGHER = 1.2
"""Times the usual rate: a bar that is higher is a spike that a reader asks about."""

_PAUSE_S = 0.3


def tell(
    acks: Sequence[Ack],
    began_s: float,
    failovers: Sequence[Failover],
    producer_kill: ProducerKill | None,
    stop_seconds: float,
) -> list[str]:
    """A few sentences for each failure. `began_s`: as for `chart.draw`; a killed leader is restarted at
    once, a stopped one goes on after `stop_seconds`."""
    edges, rates = rates_of(acks, began_s)
    told: list[tuple[float, str]] = []
    since_s = usual = 0.0
    for failover in failovers:
        fault_s = failover.fault_at_s - began_s
        led_s = fault_s + failover.seconds_without_leader
        away_s = stop_seconds if failover.signal_name == "SIGSTOP" else 0.0
        back_s = max(fault_s + away_s + failover.seconds_to_catch_up, led_s + INTERVAL_S)
        earlier = [ack.at_s - began_s for ack in acks if ack.at_s <= failover.fault_at_s]
        paused_s = fault_s - max(earlier, default=fault_s)
        before = rates[(edges[:-1] >= since_s) & (edges[1:] <= fault_s - paused_s)]
        before = before[before > 0]  # while a killed producer is away nothing is usual
        after = rates[(edges[1:] > led_s) & (edges[:-1] < back_s)]
        if len(before):  # else the one before is still being caught up with: what was usual then
            usual = float(np.median(before))
        highest = float(after.max()) if len(after) else 0.0
        gone = "killed" if failover.signal_name == "SIGKILL" else "stopped"
        text = (
            f"At {fault_s:.1f} s the leader {failover.leader_id} is {gone}: for"
            f" {failover.seconds_without_leader:.2f} s nothing is acknowledged, until another leads."
        )
        if highest > _HIGHER * usual:
            text += (
                f" The spike after it ({highest:,.0f} records/s, {usual:,.0f} were usual) is the two"
                f" members that are left: while {failover.leader_id} is away each record is written"
                " twice and not three times, by the same processors and disk."
            )
        else:
            text += (
                f" Then the two that are left take up to {highest:,.0f} records/s ({usual:,.0f} before)."
            )
        if paused_s > _PAUSE_S:
            text = (
                f"From {fault_s - paused_s:.1f} to {fault_s:.1f} s nothing is sent: the demo waits until"
                f" all three members are level again. {text}"
            )
        told.append((fault_s, text))
        since_s = back_s
    if producer_kill is not None:
        told.append((producer_kill.at_s - began_s, _of_producer(producer_kill, began_s)))
    return [text for _, text in sorted(told)]


def _of_producer(killed: ProducerKill, began_s: float) -> str:
    between = killed.resumed_at_row - killed.acknowledged_rows
    return (
        f"At {killed.at_s - began_s:.1f} s the producer is killed, after acknowledgements for"
        f" {killed.acknowledged_rows:,} rows; {between:,} more were in the log or on their way there."
        f" The next one asks the log for its last number and continues at row {killed.resumed_at_row:,},"
        f" {killed.seconds_to_resume:.2f} s later."
    )
