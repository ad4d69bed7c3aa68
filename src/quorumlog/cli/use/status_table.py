"""What `quorumlog status` prints for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from quorumlog.cli.output import err, out
from quorumlog.client import MemberStatusRow, leader_of
from quorumlog.config import MIB

_ALWAYS_TOLD = ("id", "address", "reachable", "problem", "problems")
_COLUMNS = ("address", "role", "term", "ledger_begin_index", "ledger_end_index", "committed_index")
_VOTERS = ("leader", "follower", "candidate")
"""Roles of members that are counted; an observer is none of them."""
HEADINGS = ("id", "address", "role", "term", "begin", "end", "committed", "lag", "reachable", "scrubs")


def told(row: MemberStatusRow, key: str) -> Any:
    """None: only the member itself could tell, and it did not answer."""
    return getattr(row, key) if row.reachable or key in _ALWAYS_TOLD else None


def print_table(rows: list[MemberStatusRow]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        numeric = heading in ("term", "begin", "end", "committed", "lag")
        table.add_column(heading, justify="right" if numeric else "left")
    leader = leader_of(rows)
    for row in rows:
        cells = [told(row, key) for key in _COLUMNS]
        lag = (
            max(leader.ledger_end_index - row.ledger_end_index, 0) if leader and row.reachable else None
        )
        table.add_row(
            *("-" if cell is None else str(cell) for cell in (row.id or None, *cells, lag)),
            "yes" if row.reachable else "[red]no[/red]",
            _scrubs(row) if row.reachable else "-",
        )
    out().print(table)
    console = err()
    for row in rows:
        name = row.id or row.address
        for text in filter(None, (row.problem, row.waits_for, *row.problems, _set_aside(row))):
            is_named = not row.id and row.address in text
            said = text if is_named else f"{name}: {text}"
            console.print(said, markup=False, style="yellow")
    quorum = _quorum_sentence(rows)
    if quorum:
        console.print(quorum, markup=False, style="yellow")


def _quorum_sentence(rows: list[MemberStatusRow]) -> str:
    """How far the group is from one that accepts nothing; "" for one that is whole, or not formed."""
    roles = [row.role for row in rows]
    members = max((len(row.members) for row in rows), default=0)
    if not members or "unformed" in roles:
        return ""
    voters, needed = sum(role in _VOTERS for role in roles), members // 2 + 1
    answer = f"{voters} of {members} voters answer, {needed} are needed"
    if voters < needed and "leader" in roles:
        return f"{answer}; but one leads, and may reach those that do not answer here"
    if voters < needed:
        return f"{answer}: nothing is committed until more of them are back"
    if "leader" not in roles:
        return f"{answer}: no leader is elected yet, and appends wait"
    if voters == needed < members:
        return f"{answer}: no other may be lost"
    return ""


def _scrubs(row: MemberStatusRow) -> str:
    """Passes ended since the start, and how far the one under way has come or when the newest ended."""
    if row.scrub_next_index >= 0:
        return f"{row.scrub_passes} + {row.scrub_next_index}/{row.scrub_stop_index}"
    return f"{row.scrub_passes}, {row.scrub_ended_ms_ago // 1000} s ago" if row.scrub_passes else "0"


def _set_aside(row: MemberStatusRow) -> str:
    if row.set_aside_files <= 0:
        return ""
    files = f"{row.set_aside_files} file{'s' * (row.set_aside_files > 1)}"
    kept = f"{files} ({row.set_aside_bytes / MIB:.1f} MiB)"
    return f"{kept} set aside damaged/ of its data directory, to be looked at or deleted"
