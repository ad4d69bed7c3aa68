"""Which time mark holds at an index, and which one held at a time; of a log on disk, without reading it.
A reset of the log's clock is a mark, too, and each says the time that counts (`counted_ms`).

The states that are saved in front of segments say between which two borders the mark lies. In the one
segment that is left, marks rise with their indices, so halving finds it: each look goes backwards from
a place to the last mark in front of it, by the kinds of entries alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.log_state.log_state import LogState, Resets, StateTime, counted_ms, decode_time, said_ms
from quorumlog.store.ledger_store import LedgerStore

LOOK_ENTRIES = 4096
"""How many entries are looked at first; then ever more."""
MOST_LOOK_ENTRIES = 1 << 18


class Mark(msgspec.Struct, frozen=True):
    index: int
    """Of the TIME or CLOCK entry, which may be in front of the log's begin."""
    time_ms: int
    """At which the entries behind it count as appended."""


class MarkedLog(Protocol):
    @property
    def begin_index(self) -> int:
        """Of the entry in front of the first that is held."""

    @property
    def clock_resets(self) -> Resets:
        """Of the whole log, as far as it is committed."""

    def states(self) -> Iterator[tuple[int, bytes]]:
        """(index, record of the log's state up to there), the newest first; that of the begin last, if
        there is one. Some may be missing."""

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        """See `LedgerStore.control_batches`."""


class StoredLog(MarkedLog):
    def __init__(self, store: LedgerStore, clock_resets: Resets) -> None:
        self._store = store
        self._clock_resets = clock_resets

    @property
    def clock_resets(self) -> Resets:
        return self._clock_resets

    @property
    def begin_index(self) -> int:
        return self._store.begin.index

    def states(self) -> Iterator[tuple[int, bytes]]:
        for saved in self._store.borders.saved():
            yield saved.point.index, saved.record
        start = self._store.start
        if start is not None:
            yield start.point.index, start.record

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        return self._store.control_batches(first_index, stop_index)


def mark_at_index(log: MarkedLog, index: int) -> Mark | None:
    """The last one at or in front of this entry, which is committed. Raises what `control_batches`
    raises."""
    first_index, mark = log.begin_index + 1, None
    for border, state in _known(log):
        if border <= index:
            first_index, mark = border + 1, _counted(log, mark_of(state))
            break
    return _last_in(log, first_index, index + 1) or mark


def mark_at_time(log: MarkedLog, time_ms: int, stop_index: int) -> Mark | None:
    """The last one that says this time or an earlier one, in front of `stop_index`. Raises what
    `control_batches` raises."""
    first_index, mark = log.begin_index + 1, None
    for border, state in _known(log):
        known = _counted(log, mark_of(state))
        if known is None or known.time_ms <= time_ms:
            if border < stop_index:
                first_index, mark = border + 1, known
                break
        else:
            stop_index = min(stop_index, border + 1)
    while first_index < stop_index:
        middle = (first_index + stop_index) // 2
        found = _last_in(log, first_index, middle + 1)
        if found is not None and found.time_ms > time_ms:
            stop_index = found.index
        else:
            first_index, mark = middle + 1, found or mark
    return mark


def mark_of(state: LogState | StateTime) -> Mark | None:
    """The last one, as it is written."""
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
