"""Where a log of ours begins, and the states that are saved at its borders, as a look finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from quorumlog.entry_header import EntryHeader
from quorumlog.errors import DirectoryDamaged, IndexOutOfRange
from quorumlog.store.disk import Disk, reason_of
from quorumlog.store.files.start_file import good_start_slots
from quorumlog.store.files.state_files import STATES_NAME, load_state, saved_positions, state_name
from quorumlog.store.ledger_store import LogStart

HeaderAt = Callable[[int], EntryHeader]


class StartRow(NamedTuple):
    """The file `start`."""

    before_index: int
    """Of the entry before the first that exists."""
    term: int
    position: int
    """Of the first segment."""
    record_bytes: int
    """Of the state of the log up to there."""
    replaces: bool
    """The next start of the process removes the segments of another log."""
    good_slots: int
    """Of two."""


class StateRow(NamedTuple):
    """The state at one border."""

    file: str
    """Relative to the directory."""
    first_index: int
    """Of the segment behind it; -1 if that is not known."""
    problem: str
    """Why it does not count, "" if it does. A start of the process goes on without it."""


def start_row(disk: Disk, path: str, start: LogStart | None) -> StartRow | None:
    """Raises OSError."""
    if start is None:
        return None
    point, good_slots = start.point, good_start_slots(disk, path)
    return StartRow(
        point.index, point.term, point.position, len(start.record), start.replaces, good_slots
    )


def state_rows(disk: Disk, path: str, header_at: HeaderAt) -> tuple[StateRow, ...]:
    """In order. `header_at`: of an entry of this log; raises IndexOutOfRange, DirectoryDamaged."""
    try:
        positions = saved_positions(disk, path)
    except OSError as error:
        return (StateRow(STATES_NAME, -1, f"cannot be read: {reason_of(error)}"),)
    return tuple(_state_row(disk, path, header_at, position) for position in positions)


def newest_border(disk: Disk, path: str, header_at: HeaderAt) -> int:
    """Of those whose state is saved, and so is known to be committed; -1 if there is none."""
    try:
        positions = saved_positions(disk, path)
    except OSError:
        return -1
    rows = (_state_row(disk, path, header_at, position) for position in reversed(positions))
    return next((row.first_index - 1 for row in rows if not row.problem), -1)


def _state_row(disk: Disk, path: str, header_at: HeaderAt, position: int) -> StateRow:
    name = f"{STATES_NAME}/{state_name(position)}"
    try:
        state = load_state(disk, path, position)
    except OSError as error:
        return StateRow(name, -1, f"cannot be read: {reason_of(error)}")
    if state is None:
        return StateRow(name, -1, "is damaged")
    index = state.point.index + 1
    try:
        header = header_at(index)
    except IndexOutOfRange:
        return StateRow(name, index, "is of entries that this log does not have")
    except DirectoryDamaged:
        return StateRow(name, index, f"entry {index} behind it is damaged")
    is_own = (header.pos, header.chain_before) == (position, state.point.chain)
    return StateRow(name, index, "" if is_own else "is of another log")
