"""The matrix: flush mode x size of body x writers x delay of the links, a short window for each cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from rich.table import Table

from benchmarks.links import PROXY_NOTE, DelayedMembers, servers_leader_first
from benchmarks.outcome import Report
from harness.member_processes import MemberProcesses
from quorumlog.bench.figures import without_nan
from quorumlog.bench.workloads import AppendLoad, Measured, measure

FLUSHES = ("sync", "async")
BODIES = (128, 1024, 10 * 1024)
WRITERS = (1, 16, 64, 256)
DELAYS_MS = (0.0, 2.0, 10.0)
SECONDS = 1.5


class Cell(NamedTuple):
    flush: str
    body_bytes: int
    writers: int
    delay_ms: float
    """Each way, between members."""
    measured: Measured

    def row(self) -> dict[str, Any]:
        figures = without_nan(asdict(self.measured))
        return {
            "workload": "matrix",
            **self._asdict(),
            "through_proxy": self.delay_ms > 0,
            **figures,
        } | {"measured": None}


def run_matrix(
    folder: Path,
    seconds: float,
    report: Report,
    *,
    flushes: Sequence[str] = FLUSHES,
    bodies: Sequence[int] = BODIES,
    writers: Sequence[int] = WRITERS,
    delays_ms: Sequence[float] = DELAYS_MS,
) -> Iterator[Cell]:
    """Every cell; those without delay on members that dial each other directly."""
    in_all = len(flushes) * len(bodies) * len(writers) * len(delays_ms)
    number = 0
    for flush, kind in product(flushes, (MemberProcesses, DelayedMembers)):
        chosen = [delay_ms for delay_ms in delays_ms if (delay_ms > 0) == (kind is DelayedMembers)]
        if not chosen:
            continue
        with kind(folder, flush=flush) as members:
            uvloop.run(servers_leader_first(members))
            for delay_ms, body_bytes, count in product(chosen, bodies, writers):
                number += 1
                cell = f"{flush}, {body_bytes} B, {count} writers, {delay_ms:g} ms"
                report(f"matrix, {number} of {in_all}: {cell}")
                if isinstance(members, DelayedMembers):
                    members.set_delay(delay_ms)
                load = AppendLoad("matrix", count, 1, 1, body_bytes)
                measured = uvloop.run(measure(load, members.running_group, seconds))
                yield Cell(flush, body_bytes, count, delay_ms, measured)


def matrix_table_of(cells: Sequence[Cell]) -> Table:
    writers = sorted({cell.writers for cell in cells})
    table = Table(box=None, pad_edge=False)
    for heading in ("flush", "body", "delay"):
        table.add_column(heading, justify="right" if heading != "flush" else "left", no_wrap=True)
    for count in writers:
        table.add_column(f"{count} writers", justify="right", no_wrap=True)
    found = {(cell.flush, cell.body_bytes, cell.delay_ms, cell.writers): cell for cell in cells}
    for flush, body_bytes, delay_ms in dict.fromkeys(key[:3] for key in found):
        row = [found.get((flush, body_bytes, delay_ms, count)) for count in writers]
        table.add_row(flush, f"{body_bytes:,} B", f"{delay_ms:g} ms", *map(_cell_text, row))
    table.caption = (
        "records/s (p50 ms / p99 ms); a connection and one record in flight for each writer. delay: each"
        f" way, between members; where there is one {PROXY_NOTE}."
    )
    return table


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    measured = cell.measured
    return f"{measured.records_per_second:,.0f} ({measured.p50_ms:.1f} / {measured.p99_ms:.1f})"
