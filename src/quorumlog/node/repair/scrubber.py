"""Scrubber: reads the whole log again, slowly, so that damage is found while others can still repair it.

One pass compares every durable entry, its index unit and its body, and the blank records. Then it rests.
After a restart the next pass begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from quorumlog.errors import DirectoryDamaged, LedgerError, StoreFailure
from quorumlog.node.ports import Host
from quorumlog.node.repair.repairer import Repairer
from quorumlog.store.ledger_store import Examination, LedgerStore

NEVER = float("inf")
DAMAGED_STEP_BYTES = 256 << 10
"""What a look counts as that found damage without bounds."""
PAUSE_MS = 24 * 3600 * 1000


class ScrubStatus(NamedTuple):
    """How far the scrub has come since the start of the member."""

    next_index: int = -1
    """Entry that the pass under way looks at next; -1: none is under way."""
    stop_index: int = -1
    """Where that pass ends (exclusive); -1: none is under way."""
    passes: int = 0
    """Ended since the start."""
    ended_ms_ago: int = -1
    """Since the newest of them ended; -1: none has."""


class Scrubber:
    def __init__(
        self,
        bytes_per_second: int,
        start_delay_ms: int,
        store: LedgerStore,
        host: Host,
        repairer: Repairer,
        now_ms: float,
        tick_soon: Callable[[], None],
    ) -> None:
        """`bytes_per_second` 0: off. `tick_soon`: `tick` has something to do in the turn that is under
        way."""
        self._tick_soon = tick_soon
        self._bytes_per_second = bytes_per_second
        self._store = store
        self._host = host
        self._repairer = repairer
        self._next_index = -1
        """Of the pass under way; -1 while it rests."""
        self._stop_index = -1
        self._again_index = -1
        """From here on this pass looks once more: there was no space to write something again."""
        self._passes = 0
        self._ended_ms = now_ms
        self._is_looking = False
        self._skip = 1
        """Entries to go on behind damage without bounds; doubled until it is left behind."""
        self._has_failed = False
        """This pass met such damage."""
        self._stepped_ms = now_ms
        self._next_step_ms = now_ms + start_delay_ms if bytes_per_second else NEVER

    def configure(self, bytes_per_second: int, now_ms: float) -> None:
        """A pass under way goes on at the new pace, or waits while it is 0."""
        was_on, self._bytes_per_second = self._bytes_per_second > 0, bytes_per_second
        if not bytes_per_second:
            self._next_step_ms = NEVER
        elif not was_on:
            self._next_step_ms = now_ms

    def tick(self, now_ms: float) -> None:
        if self._is_looking or now_ms < self._next_step_ms:
            return
        durable_stop = self._store.durable.index + 1
        if self._next_index < 0:
            self._next_index = self._store.begin.index + 1
            self._stop_index = durable_stop
        index = self._next_index
        if index >= min(self._stop_index, durable_stop) and self._again_index >= 0:
            index = self._next_index = max(self._again_index, self._store.begin.index + 1)
            self._again_index = -1
        if index >= min(self._stop_index, durable_stop):
            self._next_index = self._stop_index = -1
            self._passes += 1
            if not self._has_failed:
                self._repairer.passed()
            self._has_failed = False
            self._ended_ms = now_ms
            self._next_step_ms = now_ms + PAUSE_MS
            return
        self._is_looking = True
        self._stepped_ms = now_ms
        self._host.read_later(
            lambda: self._store.examine(index, index + 1), lambda result: self._looked(index, result)
        )

    def _looked(self, index: int, result: Examination | StoreFailure | LedgerError) -> None:
        self._is_looking = False
        self._tick_soon()
        if isinstance(result, DirectoryDamaged):
            self._repairer.unbounded(result)
            self._has_failed = True
            self._next_index = max(index, result.index) + self._skip
            self._skip *= 2
            self._next_step_ms = self._after(DAMAGED_STEP_BYTES)
            return
        self._skip = 1
        if isinstance(result, StoreFailure | LedgerError):
            raise result
        # Looked at again if the log was cut meanwhile; and, once the rest was, if there is no space for
        # what is to be written again: else that part would wait for the next pass.
        if self._repairer.settle(result) is not None:
            if self._store.unsettled is not None and self._again_index < 0:
                self._again_index = index
            self._next_index = max(index + 1, result.stop_index)
        self._next_step_ms = self._after(result.size_bytes)

    def _after(self, size_bytes: int) -> float:
        if not self._bytes_per_second:
            return NEVER  # it was switched off meanwhile
        return self._stepped_ms + size_bytes * 1000 / self._bytes_per_second

    def status(self, now_ms: float) -> ScrubStatus:
        ended_ms_ago = int(now_ms - self._ended_ms) if self._passes else -1
        # A step looks at whole windows, so the last one may come out behind the end of the pass.
        next_index = min(self._next_index, self._stop_index)
        return ScrubStatus(next_index, self._stop_index, self._passes, ended_ms_ago)

    def next_wakeup_ms(self) -> float:
        return NEVER if self._is_looking else self._next_step_ms
