"""Which time mark holds at an index, and which one held at a time; of a log on disk, without reading it.
A reset of the log's clock is a mark, too, and each says the time that counts (`counted_ms`).

The states that are saved before segments say between which two boundaries the mark lies. In the
one segment that is left, marks rise with their indices, so halving finds it: each look goes backwards
from a place to the last mark before it, by the kinds of entries alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.log_state.log_state import LogState, Resets, StateTime, counted_ms, decode_time, said_ms

LOOK_ENTRIES = 4096
"""How many entries are looked at first; then ever more."""
MOST_LOOK_ENTRIES = 1 << 18


class Mark(msgspec.Struct, frozen=True):
    index: int
    """Of the TIME or CLOCK entry, which may be before the log's begin."""
    time_ms: int
    """Append time of the entries after it."""


class MarkedLog(Protocol):
    @property
    def begin_index(self) -> int:
        """Of the entry before the first that is held."""

    @property
    def clock_resets(self) -> Resets:
        """Of the whole log, as far as it is committed."""

    def states(self) -> Iterator[tuple[int, bytes]]:
        """(index, record of the log's state up to there), the newest first; that of the begin last, if
        there is one. Some may be missing."""

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        """See `LedgerStore.control_batches`."""


def mark_at_index(log: MarkedLog, index: int) -> Mark | None:
    """The last one at or before this entry, which is committed. Raises as `control_batches` does."""
    first_index, mark = log.begin_index + 1, None
    for boundary, state in _known(log):
        if boundary <= index:
            first_index, mark = boundary + 1, _counted(log, mark_of(state))
            break
    return _last_in(log, first_index, index + 1) or mark


def mark_at_time(log: MarkedLog, time_ms: int, stop_index: int) -> Mark | None:
    """The last one with this time or an earlier one, before `stop_index`. Raises as `control_batches`
    does."""
    first_index, mark = log.begin_index + 1, None
    for boundary, state in _known(log):
        known = _counted(log, mark_of(state))
        if known is None or known.time_ms <= time_ms:
            if boundary < stop_index:
                first_index, mark = boundary + 1, known
                break
        else:
            stop_index = min(stop_index, boundary + 1)
    while first_index < stop_index:
        middle = (first_index + stop_index) // 2
        found = _last_in(log, first_index, middle + 1)
        if found is not None and found.time_ms > time_ms:
            stop_index = found.index
        else:
            first_index, mark = middle + 1, found or mark
    return mark


def mark_of(state: LogState | StateTime) -> Mark | None:
    """The last time mark, as it is written."""
    return None if state.time_ms is None else Mark(state.time_index, state.time_ms)


def _counted(log: MarkedLog, mark: Mark | None) -> Mark | None:
    if mark is None:
        return None
    return Mark(mark.index, counted_ms(mark.index, mark.time_ms, log.clock_resets))


def _known(log: MarkedLog) -> Iterator[tuple[int, StateTime]]:
    for index, record in log.states():
        state = decode_time(record)
        if isinstance(state, StateTime):
            yield index, state


def _last_in(log: MarkedLog, first_index: int, stop_index: int) -> Mark | None:
    entries = LOOK_ENTRIES
    while first_index < stop_index:
        look_index = max(first_index, stop_index - entries)
        for batch in reversed(list(log.control_batches(look_index, stop_index))):
            mark_ms = said_ms(batch.first_header.magic, batch.body(0))
            if mark_ms is not None:
                return _counted(log, Mark(batch.first_index, mark_ms))
        stop_index, entries = look_index, min(4 * entries, MOST_LOOK_ENTRIES)
    return None
