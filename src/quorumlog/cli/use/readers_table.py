"""The readers that a cluster keeps by name, as `status --readers` and `readers` show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.cli.output import note, out, print_json, spoken_duration

if TYPE_CHECKING:
    from quorumlog.client import ReaderRow

_HOLDS = {False: "-", True: "held", "archive": "archive"}


def print_readers(rows: list[ReaderRow], *, json: bool) -> None:
    if json:
        for row in rows:
            print_json(
                {
                    "name": row.name,
                    "position": row.position,
                    "hold": row.hold,
                    "lag_entries": row.lag_entries,
                    "lag_ms": row.lag_ms,
                    "lost_ranges": row.lost_ranges,
                    "skipped_entries": row.skipped_entries,
                    "skipped_ranges": row.skipped_ranges,
                }
            )
        return
    if not rows:
        note("the cluster keeps no reader")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "position", "behind", "time behind", "hold", "lost", "skipped"):
        justify = "left" if heading in ("name", "hold") else "right"
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        behind = "-" if row.lag_ms < 0 else spoken_duration(row.lag_ms)
        lost = sum(stop - first for first, stop in row.lost_ranges)
        table.add_row(
            row.name,
            str(row.position),
            str(row.lag_entries),
            behind,
            _HOLDS[row.hold],
            str(lost) if lost else "-",
            str(row.skipped_entries) if row.skipped_entries else "-",
        )
    out().print(table)
