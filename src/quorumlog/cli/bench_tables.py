"""What `quorumlog bench` prints: tables, and a line for each target."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from quorumlog.bench.closed_loop import Result
from quorumlog.bench.figures import Target
from quorumlog.bench.flush_cost import OURS, FlushCost
from quorumlog.bench.open_loop import OpenMeasured
from quorumlog.config import KIB


def table_of(results: Sequence[Result]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("workload", no_wrap=True)
    for heading in ("records/s", "MB/s", "p50 ms", "p99 ms", "CPU s/M", "anon MB", "raw/s", "of raw"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        measured = result.measured
        table.add_row(
            result.load.name,
            _number(measured.records_per_second, 0),
            _number(measured.mb_per_second, 1),
            _number(measured.p50_ms, 3),
            _number(measured.p99_ms, 3),
            _number(measured.cpu_seconds_per_million, 1),
            _number(measured.anonymous_mb, 0),
            _number(result.raw_records_per_second, 0),
            "-" if math.isnan(result.share_of_raw) else f"{result.share_of_raw:.0%}",
        )
    table.caption = (
        "CPU s/M: processor seconds of all members per million records. anon MB: RssAnon of the largest"
        " member. raw/s: records that three plain writers sync at once."
    )
    return table


def target_lines(results: Sequence[Result]) -> list[str]:
    """One line a target, with rich's mark-up: what was promised, and what was measured."""
    return [
        target_line(result.load.name, target, result.figure(target))
        for result in results
        for target in result.load.targets
    ]


def open_target_lines(results: Sequence[OpenMeasured]) -> list[str]:
    return [
        target_line(
            f"{result.load} at {result.share_of_peak:.0%}", target, getattr(result, target.figure)
        )
        for result in results
        for target in result.targets
    ]


def target_line(name: str, target: Target, value: float) -> str:
    digits = 0 if target.bound >= 100 else 2 if target.bound >= 0.1 else 4
    text = (
        f"{name}: {target.figure} {_number(value, digits)}, target"
        f" {'at least' if target.at_least else 'at most'} {target.bound:,g}"
    )
    return f"[green]met[/]      {text}" if target.is_met(value) else f"[red]not met[/]  {text}"


def open_table_of(results: Sequence[OpenMeasured]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("open loop", no_wrap=True)
    headings = ("of peak", "offered/s", "accepted/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")
    for heading in (*headings, "overloaded", "refused", "unknown", "no answer", "late ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        times = (result.p50_ms, result.p90_ms, result.p99_ms, result.p999_ms, result.max_ms)
        table.add_row(
            result.load,
            f"{result.share_of_peak:.0%}",
            f"{result.offered_per_second:,.0f}",
            f"{result.accepted_per_second:,.0f}",
            *("-" if math.isnan(value) else f"{value:,.2f}" for value in times),
            *(f"{n:,}" for n in (result.overloaded, result.refused, result.unknown, result.unanswered)),
            f"{result.sender_late_p99_ms:,.2f}",
        )
    table.caption = (
        "Poisson arrivals; times from when a request was due to its answer. Counted in requests:"
        " overloaded, refused, unknown, no answer. late ms: p99 of how late requests left; where it is"
        " not small, the load generator is the limit."
    )
    return table


def flush_table_of(costs: Sequence[FlushCost]) -> Table:
    sizes = sorted({cost.write_bytes for cost in costs})
    table = Table(box=None, pad_edge=False)
    table.add_column("p50 / p99 ms of a write and its sync", no_wrap=True)
    for size_bytes in sizes:
        table.add_column(f"{size_bytes // KIB} KiB", justify="right", no_wrap=True)
    found = {(cost.way, cost.write_bytes): cost for cost in costs}
    for way in dict.fromkeys(cost.way for cost in costs):
        cells = (found[way, size_bytes] for size_bytes in sizes)
        table.add_row(
            f"{way} *" if way == OURS else way,
            *(f"{cost.p50_ms:.2f} / {cost.p99_ms:.2f}" for cost in cells),
        )
    table.caption = "* what a member does before it acknowledges"
    return table


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"
