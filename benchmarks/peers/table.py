"""The table on the terminal, and the lines below it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from benchmarks.peers.results import BASELINES, Line, Results
from quorumlog.cli.bench_tables import figure_table, number

_WIDTH_WITH_HOW = 160
_CAPTION = (
    "sync/it, async/it: records per second of quorumlog with that flush mode over the system's; above 1"
    " quorumlog is faster. CPU us: user and system time of the three members for each record. A latency"
    " is that of one operation: a record, or a whole batch."
)


def table_of(results: Results, width: int) -> Table:
    """`width`: of the terminal; the widest column is left out where it does not fit."""
    with_how = width >= _WIDTH_WITH_HOW
    headings = ("records/s", "sync/it", "async/it", "p50 ms", "p99 ms", "CPU us")
    table = figure_table(("workload", "system"), headings)
    table.caption = _CAPTION
    table.caption_justify = "left"
    table.add_column("acknowledged when", no_wrap=True)
    if with_how:
        table.add_column("how")
    shown: str | None = None
    for line in results.lines():
        if shown not in (None, line.workload):
            table.add_section()
        first = line.workload if line.workload != shown else ""
        shown = line.workload
        how = [line.system.shapes[line.workload].how] if with_how else []
        style = "bold" if line.system.family == "quorumlog" else ""
        table.add_row(*_cells(line, first), *how, style=style)
    return table


def _cells(line: Line, workload: str) -> Iterator[str]:
    figures = line.figures
    yield workload
    yield line.system.title
    yield number(figures.records_per_second, 0)
    for baseline in BASELINES:
        yield "" if line.system.name == baseline else number(line.ratios[baseline], 2)
    yield number(figures.p50_ms, 2)
    yield number(figures.p99_ms, 2)
    yield number(figures.cpu_us_per_record, 1)
    yield line.system.durability


def notes_of(results: Results) -> Iterator[str]:
    """What is missing and what broke off, with rich's mark-up."""
    for name, reason in results.missing.items():
        yield f"[yellow]missing[/]  {name}: {escape(reason)}"
    for failure in results.failures:
        what = failure.workload or "start"
        yield (
            f"[red]failed[/]   {failure.system}, {what}, repetition {failure.repetition}:"
            f" {escape(failure.reason)}"
        )
