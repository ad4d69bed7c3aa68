"""BorderSaver: the states at the borders of a log's segments are saved, beside the loop.

A state is saved once the entry behind its border is committed and on the own disk: from then on the
border stays where it is, since how long that entry is decides where it lies, and whoever finds the state
knows that what lies before it is committed. It costs two syncs a segment, which nobody waits for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from quorumlog.errors import DiskFull, LedgerError, StoreFailure
from quorumlog.freed_memory import give_back_freed_memory
from quorumlog.log_state.log_state import LogState
from quorumlog.node.ports import Host
from quorumlog.node.writing.log_state_reading import AtBorders
from quorumlog.store.ledger_store import LedgerStore, LogPoint, LogStart

SPACE_RETRY_MS = 1000
"""Where a full disk has no space for a state, it is tried again."""

MANY_PRODUCERS = 1000
"""Their state is large where it is encoded."""


class BorderSaver:
    def __init__(self, store: LedgerStore, host: Host, tick_soon: Callable[[], None]) -> None:
        """`tick_soon`: `tick` has something to do in the turn that is under way."""
        self._tick_soon = tick_soon
        self._store = store
        self._host = host
        self._waiting: list[tuple[LogPoint, LogState]] = []
        """In order; at most one for each segment of the log."""
        self._is_saving = False
        self._retry_ms = math.inf
        """When a full disk is asked again; infinite while nothing was refused."""

    def note(self, found: AtBorders) -> None:
        """These borders were written, or were found in the log, with these states."""
        known = [(point, state) for point, state in found if isinstance(state, LogState)]
        if known:
            self._waiting = sorted(self._waiting + known, key=lambda each: each[0].index)

    def truncate_from(self, index: int) -> None:
        """Where the next entry lies depends on how long it is."""
        self._waiting = [each for each in self._waiting if each[0].index < index - 1]

    def next_wakeup_ms(self) -> float:
        return self._retry_ms if self._waiting else math.inf

    def tick(self, now_ms: float, committed_index: int) -> None:
        if not self._waiting or self._is_saving or now_ms < self._retry_ms < math.inf:
            return
        self._retry_ms = math.inf
        point, state = self._waiting[0]
        if point.index >= committed_index or point.index >= self._store.durable.index:
            return
        store, self._is_saving = self._store, True

        def done(result: bool | StoreFailure | LedgerError) -> None:
            self._is_saving = False
            if isinstance(result, DiskFull):
                self._retry_ms = now_ms + SPACE_RETRY_MS
            elif isinstance(result, StoreFailure | LedgerError):
                raise result
            elif self._waiting and self._waiting[0][0] == point:
                del self._waiting[0]  # saved, or of no use: cut, dropped or damaged
            self._tick_soon()
            if state.producers.count >= MANY_PRODUCERS:
                self._host.read_later(give_back_freed_memory, lambda result: None)

        self._host.flush_later(lambda: store.borders.save(LogStart(point, state.encode())), done)
