"""Tables of `quorumlog bench`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.table import Table

from quorumlog.bench.closed_loop import Result
from quorumlog.bench.figures import HasTargets, PromisedFigure
from quorumlog.bench.flush_cost import OURS, FlushCost
from quorumlog.config import KIB


def figure_table(names: Iterable[str], figures: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def number(value: float, digits: int) -> str:
    """`-` for a value not measured."""
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def table_of(results: Sequence[Result]) -> Table:
    headings = ("records/s", "MB/s", "p50 ms", "p99 ms", "CPU s/M", "anon MB", "raw/s", "of raw")
    table = figure_table(("workload",), headings)
    for result in results:
        measured = result.measured
        table.add_row(
            result.load.name,
            number(measured.records_per_second, 0),
            number(measured.mb_per_second, 1),
            number(measured.p50_ms, 3),
            number(measured.p99_ms, 3),
            number(measured.cpu_seconds_per_million, 1),
            number(measured.anonymous_mb, 0),
            number(result.raw_records_per_second, 0),
            "-" if math.isnan(result.share_of_raw) else f"{result.share_of_raw:.0%}",
        )
    table.caption = (
        "CPU s/M: processor seconds of all members per million records. anon MB: RssAnon of the largest"
        " member. raw/s: records that three plain writers sync at once."
    )
    return table


def target_lines(measured: Iterable[HasTargets]) -> list[str]:
    """With rich's mark-up."""
    return [
        _target_line(each.name, target, each.figure(target.figure))
        for each in measured
        for target in each.targets
    ]


def _target_line(name: str, target: PromisedFigure, value: float) -> str:
    digits = 0 if target.bound >= 100 else 2 if target.bound >= 0.1 else 4
    text = (
        f"{name}: {target.figure} {number(value, digits)}, target"
        f" {'at least' if target.at_least else 'at most'} {target.bound:,g}"
    )
    return f"[green]met[/]      {text}" if target.is_met(value) else f"[red]not met[/]  {text}"


def flush_table_of(costs: Sequence[FlushCost]) -> Table:
    sizes = sorted({cost.write_bytes for cost in costs})
    headings = [f"{size_bytes // KIB} KiB" for size_bytes in sizes]
    table = figure_table(("p50 / p99 ms of a write and its sync",), headings)
    found = {(cost.way, cost.write_bytes): cost for cost in costs}
    for way in dict.fromkeys(cost.way for cost in costs):
        cells = (found[way, size_bytes] for size_bytes in sizes)
        table.add_row(
            f"{way} *" if way == OURS else way,
            *(f"{cost.p50_ms:.2f} / {cost.p99_ms:.2f}" for cost in cells),
        )
    table.caption = "* what a member does before it acknowledges"
    return table
