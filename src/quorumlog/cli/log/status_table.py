"""The tables of `quorumlog status`, and its conclusions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quorumlog.cli.output import err, out, spoken_duration, spoken_size
from quorumlog.client import MemberStatusRow, leader_of
from quorumlog.wire.client_messages import MemberInfo

_ALWAYS_SHOWN = ("id", "address", "reachable", "problem", "problems")
_VOTERS = ("leader", "follower", "candidate")
"""Roles of members that are counted; an observer is none of them."""
_NUMBERS = ("term", "begin", "end", "committed", "lag", "disk")
HEADINGS = (
    *("id", "address", "role", "term", "begin", "end", "committed", "lag", "disk", "reachable"),
    *("release", "scrubs"),
)
DROPPED_FIRST = ("scrubs", "release", "begin", "disk", "term", "committed", "end")
"""Columns that go, in this order, where the terminal is too narrow for all."""
_ROLE_STYLES = {"leader": "green", "candidate": "yellow", "observer": "yellow", "unformed": "yellow"}
SILENT_MS = 2_000
"""A member that has answered since then is not listed as silent."""
WATCH_S = 1.0
"""Between two looks of --watch."""
_WIDE = 10_000


class Health(IntEnum):
    """The exit status of --check."""

    WHOLE = 0
    """Every member votes, and none reports a problem."""
    DEGRADED = 1
    """A member leads, and something is to be looked at."""
    NO_QUORUM = 2
    """Nobody that answers leads: nothing is appended."""


def health_of(rows: list[MemberStatusRow]) -> Health:
    if leader_of(rows) is None:
        return Health.NO_QUORUM
    for row in rows:
        shown = row.problems or row.waits_for or row.unready or _is_hidden(row)
        if row.role not in _VOTERS or shown or row.damaged_entries > 0:
            return Health.DEGRADED
    return Health.WHOLE


def _is_hidden(row: MemberStatusRow) -> bool:
    """A member with users tells its release and problems to users only."""
    return row.reachable and bool(row.users) and row.users != "off" and not row.version


def shown(row: MemberStatusRow, key: str) -> Any:
    """None: only the member itself knows, and it did not answer."""
    if key == "release":
        return row.version or None
    if key == "machines" and row.reachable:
        return [msgspec.structs.asdict(machine) for machine in row.machines]
    if key == "answers":
        answers = ((each.id, each.answered_ms_ago) for each in row.members)
        return [{"id": name, "answered_ms_ago": round(ms)} for name, ms in answers if ms >= 0]
    if key == "feeding":
        return [feeding_of(each) for each in row.members if _is_fed(each)]
    return getattr(row, key) if row.reachable or key in _ALWAYS_SHOWN else None


def print_status(rows: list[MemberStatusRow]) -> None:
    """The table on standard output, sentences on standard error."""
    console = out()
    table = _fitting_table(rows, console)
    console.print(table)
    for sentence in _sentences(rows):
        err().print(sentence)


def watch_status(look: Callable[[], list[MemberStatusRow]]) -> None:
    """Both, in place, until Ctrl-C."""
    console = out()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            rows = look()
            live.update(Group(_fitting_table(rows, console), *_sentences(rows)), refresh=True)
            time.sleep(WATCH_S)


def _fitting_table(rows: list[MemberStatusRow], console: Console) -> Table:
    headings = list(HEADINGS)
    for dropped in (*DROPPED_FIRST, None):
        table = _table_of(rows, headings)
        if dropped is None or _width_of(table, console) <= console.width:
            break
        headings.remove(dropped)
    # What fits in no width is wrapped by the terminal: an address that is cut is of no use.
    console.width = max(console.width, _width_of(table, console))
    return table


def _width_of(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update(max_width=_WIDE)).maximum


def _table_of(rows: list[MemberStatusRow], headings: list[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        justify: Any = "right" if heading in _NUMBERS else "left"
        table.add_column(heading, justify=justify, no_wrap=True)
    leader = leader_of(rows)
    for row in rows:
        cells = _cells(row, leader)
        table.add_row(*(cells[heading] for heading in headings))
    return table


def _cells(row: MemberStatusRow, leader: MemberStatusRow | None) -> dict[str, Text]:
    """By heading; `-` for what nobody has told."""
    lag = max(leader.ledger_end_index - row.ledger_end_index, 0) if leader and row.reachable else None
    values = {
        "id": row.id or None,
        "address": row.address,
        "role": shown(row, "role"),
        "term": shown(row, "term"),
        "begin": shown(row, "ledger_begin_index"),
        "end": shown(row, "ledger_end_index"),
        "committed": shown(row, "committed_index"),
        "lag": lag,
        "disk": spoken_size(row.log_disk_bytes) if row.log_disk_bytes >= 0 else None,
        "reachable": "yes" if row.reachable else "no",
        "scrubs": _scrubs(row) if row.reachable else None,
        "release": row.version or None,
    }
    cells = {name: Text("-" if value is None else str(value)) for name, value in values.items()}
    cells["role"].stylize(_ROLE_STYLES.get(row.role, ""))
    cells["reachable"].stylize("" if row.reachable else "red")
    return cells


def _sentences(rows: list[MemberStatusRow]) -> Iterator[Text]:
    for row in rows:
        name = row.id or row.address
        unready = (f"not ready: {each}" for each in row.unready)
        for text in filter(None, (row.problem, row.waits_for, *row.problems, *unready, _set_aside(row))):
            is_named = not row.id and row.address in text
            yield Text(
                text if is_named else f"{name}: {text}", style="yellow" if row.reachable else "red"
            )
    if any(_is_hidden(row) for row in rows):
        yield Text("problems are shown to users only: name one (--user and --password-file)", "yellow")
    leader = leader_of(rows)
    members = () if leader is None else leader.members
    yield from (
        Text(f"{each.id} is being fed: {spoken_feeding(each)}") for each in members if _is_fed(each)
    )
    for each in members:
        if spoken := spoken_answer(each):
            yield Text(f"{each.id} has last {spoken}", style="yellow")
    producers = max((row.producers for row in rows), default=-1)
    if producers > 0:
        yield Text(f"{producers} producer{'s' * (producers > 1)} (quorumlog producers list)")
    quorum = _quorum_sentence(rows)
    if quorum:
        yield Text(quorum, style="red" if health_of(rows) is Health.NO_QUORUM else "yellow")


def _is_fed(member: MemberInfo) -> bool:
    """It gets the log out of the leader's files."""
    return member.behind_bytes >= 0


def spoken_answer(member: MemberInfo) -> str:
    """Empty for one that answers as it should; only the leader knows it of one that never did."""
    if member.answered_ms_ago < SILENT_MS:
        return ""
    return f"answered the leader {spoken_duration(member.answered_ms_ago)} ago"


def feeding_of(member: MemberInfo) -> dict[str, object]:
    """How far a member is that gets the log out of the leader's files."""
    return {
        "id": member.id,
        "behind_bytes": member.behind_bytes,
        "bytes_per_second": member.bytes_per_second,
        "seconds_left": _seconds_left(member),
    }


def _seconds_left(member: MemberInfo) -> float | None:
    """As fast as it went lately, if nothing is appended meanwhile; None: not known."""
    rate = member.bytes_per_second
    return round(member.behind_bytes / rate, 1) if rate > 0 else None


def spoken_feeding(member: MemberInfo) -> str:
    left = f"{spoken_size(member.behind_bytes)} left"
    if member.bytes_per_second < 0:
        return left
    seconds = _seconds_left(member)
    estimate = f", about {spoken_duration(1000 * seconds)}" if seconds is not None else ""
    return f"{left}, {spoken_size(member.bytes_per_second)}/s{estimate}"


def _quorum_sentence(rows: list[MemberStatusRow]) -> str:
    """How far the group is from one that accepts nothing; "" for one that is whole, or not formed."""
    roles = [row.role for row in rows]
    newest = max((row for row in rows if row.voters > 0), key=lambda row: row.term, default=None)
    if newest is None or "unformed" in roles:
        return ""
    voting, needed = sum(role in _VOTERS for role in roles), newest.quorum_size
    answer = f"{voting} of {newest.voters} voters answer, {needed} are needed"
    if voting < needed and "leader" in roles:
        return f"{answer}; but one leads, and may reach those that do not answer here"
    if "leader" not in roles and newest.leader_id:
        return f"{answer}; {newest.leader_id} leads, as {newest.id} says, and does not answer here"
    if voting < needed:
        return f"{answer}: nothing is committed until more of them are back"
    if "leader" not in roles:
        return f"{answer}: no leader is elected yet, and appends wait"
    if voting == needed < newest.voters:
        return f"{answer}: no other may be lost"
    return ""


def _scrubs(row: MemberStatusRow) -> str:
    """Passes ended since the start, and how far the one under way has come or when the newest ended."""
    if row.scrub_next_index >= 0:
        return f"{row.scrub_passes} + {row.scrub_next_index}/{row.scrub_stop_index}"
    if not row.scrub_passes:
        return "0"
    return f"{row.scrub_passes}, {spoken_duration(row.scrub_ended_ms_ago)} ago"


def _set_aside(row: MemberStatusRow) -> str:
    if row.set_aside_files <= 0:
        return ""
    from quorumlog.store.recovery import SET_ASIDE_NAME

    files = f"{row.set_aside_files} file{'s' * (row.set_aside_files > 1)}"
    kept = f"{files} ({spoken_size(row.set_aside_bytes)})"
    return f"{kept} set aside in {SET_ASIDE_NAME}/ of its data directory, to be looked at or deleted"
