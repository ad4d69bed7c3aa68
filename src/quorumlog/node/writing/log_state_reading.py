"""LogStateReading: a log's state is read from the log, once, beside the loop.

It begins with the newest state that is saved at a border of this very log, else with the one that the
log's start has brought along, and folds only what follows. What is written meanwhile comes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.freed_memory import give_back_freed_memory
from quorumlog.log_state.control_entries import LEVEL, LEVELS, ControlEntry, Unreadable, decode_body
from quorumlog.log_state.log_state import (
    EMPTY,
    AnyState,
    LogState,
    LogStates,
    UnknownState,
    decode_state,
)
from quorumlog.store.ledger_store import LedgerStore, LogPoint

CHUNK_BYTES = 16 * MIB
"""So much is looked at before the read thread does something else, about."""

AtBorders = list[tuple[LogPoint, AnyState]]
"""The states of a log at some of its borders, in order."""


def controls_of(batch: EntryBatch) -> list[ControlEntry]:
    """All but data."""
    positions = batch.control_positions()
    if not positions:
        return []
    first_index, controls = batch.first_index, []
    for at, (magic, term) in zip(positions, batch.kinds_and_terms(positions), strict=True):
        kind = EntryKind(magic)
        body = None if kind is EntryKind.NOOP else decode_body(kind, batch.body(at))
        controls.append(ControlEntry(first_index + at, kind, body, term))
    return controls


def append_past_borders(
    states: LogStates, first_index: int, controls: Sequence[ControlEntry], borders: Sequence[LogPoint]
) -> AtBorders:
    """Entries from `first_index` on, `controls` and these borders among them, are appended."""
    found = []
    for point in borders:
        assert point.index >= first_index - 1, (point, first_index)
        in_front = [entry for entry in controls if entry.index <= point.index]
        if in_front:
            states.append(first_index, in_front)
            controls, first_index = controls[len(in_front) :], in_front[-1].index + 1
        found.append((point, states.appended))
    states.append(first_index, controls)
    return found


class LogStateReading:
    """`read_on` runs in another thread, one call at a time; until it returns only `behind` and
    `borders_behind` are for the loop."""

    def __init__(self, store: LedgerStore) -> None:
        self.stop_index = store.end.index + 1
        """What is written from here on is not read."""
        self.behind: list[ControlEntry] = []
        """Written from `stop_index` on since it began."""
        self.borders_behind: list[LogPoint] = []
        self.level = 0
        """Of the kinds in what was read or in front of it; 0: none is above NOOP."""
        self._store = store
        self._states: LogStates | None = None
        """Of the log up to `_next_index`; None before the first call."""
        self._next_index = 0
        self._borders: list[LogPoint] = []
        """Still to come."""
        self._at_borders: AtBorders = []

    @property
    def _chunk_entries(self) -> int:
        begin, end = self._store.begin, self._store.end
        entry_bytes = (end.position - begin.position) // max(end.index - begin.index, 1)
        return max(CHUNK_BYTES // max(entry_bytes, HEADER_BYTES), 1)

    @property
    def is_done(self) -> bool:
        return self._states is not None and self._next_index >= self.stop_index

    def read_on(self, committed_index: int) -> None:
        """Some entries more. Raises IndexOutOfRange if the log begins elsewhere by now, RangeDamaged,
        DirectoryDamaged, StoreFailure."""
        states = self._states or self._begin(committed_index)
        first_index = self._next_index
        if first_index >= self.stop_index:
            return
        stop_index = min(first_index + self._chunk_entries, self.stop_index)
        batches = self._store.control_batches(first_index, stop_index)
        controls = [entry for batch in batches for entry in controls_of(batch)]
        self.level = max([self.level, *(LEVELS.get(entry.kind, 0) for entry in controls)])
        passed = [point for point in self._borders if point.index < stop_index]
        self._borders = self._borders[len(passed) :]
        self._at_borders += append_past_borders(states, first_index, controls, passed)
        # What cannot be cut any more is held as a state, not as entries.
        proven_index = min(committed_index, stop_index - 1)
        if proven_index > states.committed_index:
            states.commit(proven_index)
        self._next_index = stop_index

    def _begin(self, committed_index: int) -> LogStates:
        state, index = self._begin_of_log(committed_index)
        give_back_freed_memory()  # records of many sessions are large
        self._borders = [p for p in self._store.borders.above(index) if p.index < self.stop_index]
        self._next_index = index + 1
        self._states = LogStates(state, index)
        if state != EMPTY:
            self.level = max(1, state.level) if isinstance(state, LogState) else LEVEL
        return self._states

    def _begin_of_log(self, committed_index: int) -> tuple[AnyState, int]:
        for saved in self._store.borders.saved():
            if saved.point.index > committed_index:
                continue  # damage has hidden that it was committed, or async mode takes it back
            state = decode_state(saved.record)
            if isinstance(state, LogState):
                return state, saved.point.index
        start = self._store.start
        if start is None:
            return EMPTY, -1
        begin_state, index = decode_state(start.record), start.point.index
        if isinstance(begin_state, Unreadable):
            return UnknownState(index, f"what the log's start says of it: {begin_state.reason}"), index
        return begin_state, index

    def finished(self) -> tuple[LogStates, AtBorders]:
        """With what was written meanwhile."""
        assert self._states is not None and self.is_done, (self._next_index, self.stop_index)
        behind = append_past_borders(self._states, self.stop_index, self.behind, self.borders_behind)
        return self._states, self._at_borders + behind

    def truncate_from(self, index: int) -> None:
        """Only of what lies behind."""
        assert index >= self.stop_index, (index, self.stop_index)
        self.behind = [entry for entry in self.behind if entry.index < index]
        self.borders_behind = [point for point in self.borders_behind if point.index < index - 1]
