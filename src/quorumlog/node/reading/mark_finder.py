"""MarkFinder: which time mark holds at an entry, and where a time begins; looked up beside the loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quorumlog.entry import EntryKind
from quorumlog.errors import (
    ConnectionFull,
    DirectoryDamaged,
    IndexOutOfRange,
    LedgerError,
    RangeDamaged,
    StoreFailure,
)
from quorumlog.log_state.log_state import LogState, Resets
from quorumlog.node.ports import Host
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_begin import (
    LOOK_ENTRIES,
    Mark,
    StoredLog,
    mark_at_index,
    mark_at_time,
    mark_of,
)

MarkOutcome = Mark | LedgerError | None
"""None: no mark says so early a time, or stands in front of that entry."""
MOST_WAITING = 100
"""They share the thread that reads for everybody."""
RETRY_MS = 20


class MarkFinder:
    def __init__(
        self,
        store: LedgerStore,
        host: Host,
        committed: Callable[[], tuple[LogState | None, int]],
        found_damage: Callable[[DirectoryDamaged], None],
    ) -> None:
        """`committed`: the committed index, and the log's state up to there, None while it is not
        known."""
        self._store = store
        self._host = host
        self._committed = committed
        self._found_damage = found_damage
        self._waiting = 0

    @property
    def newest(self) -> Mark | None:
        """The last committed one; None: there is none, or the log's state is not known."""
        state, _ = self._committed()
        return None if state is None else mark_of(state)

    @property
    def clock_resets(self) -> Resets:
        """Committed ones; none while the log's state is not known."""
        state, _ = self._committed()
        return () if state is None else state.clock_resets

    def at_index(self, index: int, done: Callable[[MarkOutcome], None]) -> None:
        """See `mark_at_index`; of the last committed entry, where that comes sooner."""
        state, committed_index = self._committed()
        index = min(index, committed_index)
        if state is not None and state.time_index <= index:
            done(mark_of(state))
        else:
            self._find(lambda log: mark_at_index(log, index), done)

    def at_data_from(self, index: int, done: Callable[[MarkOutcome], None]) -> None:
        """The same of the first data at or behind `index`: a reader that stands where the log begins, or
        below, in front of the first mark, waits for an entry that has one."""
        state, committed_index = self._committed()
        if state is not None and state.time_index <= index:
            done(mark_of(state))
        else:
            self._find(lambda log: mark_at_index(log, self._data_from(index, committed_index)), done)

    def _data_from(self, index: int, committed_index: int) -> int:
        """Looked for within a few entries; `index` if there is none."""
        first = max(index, self._store.begin.index + 1)
        kinds = self._store.kinds(first, min(first + LOOK_ENTRIES, committed_index + 1))
        found = np.flatnonzero(kinds == EntryKind.NORMAL)
        return first + int(found[0]) if len(found) else first

    def at_time(self, time_ms: int, done: Callable[[MarkOutcome], None]) -> None:
        """See `mark_at_time`; of what is committed."""
        state, committed_index = self._committed()
        if state is not None and (state.time_ms is None or state.time_ms <= time_ms):
            done(mark_of(state))
        else:
            self._find(lambda log: mark_at_time(log, time_ms, committed_index + 1), done)

    def _find(
        self, find: Callable[[StoredLog], Mark | None], done: Callable[[MarkOutcome], None]
    ) -> None:
        if self._waiting >= MOST_WAITING:
            refusal = f"{MOST_WAITING} others look for a time already"
            done(ConnectionFull(refusal, retry_after_ms=RETRY_MS))
            return
        self._waiting += 1
        log = StoredLog(self._store, self.clock_resets)

        def look() -> Mark | None:
            begin = self._store.begin
            while True:
                try:
                    return find(log)
                except IndexOutOfRange:
                    if self._store.begin == begin:
                        raise
                    begin = self._store.begin  # its first entries went meanwhile

        def found(result: Mark | StoreFailure | LedgerError | None) -> None:
            self._waiting -= 1
            if isinstance(result, DirectoryDamaged):
                self._found_damage(result)
                done(RangeDamaged(str(result)))
            elif isinstance(result, StoreFailure):
                raise result
            else:
                done(result)

        self._host.read_later(look, found)
