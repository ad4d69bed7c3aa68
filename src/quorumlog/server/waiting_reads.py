"""WaitingReads: clients that wait for an entry to be committed, or for a range to come from a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.errors import (
    DirectoryDamaged,
    LeaderNotReady,
    LedgerError,
    RangeDamaged,
    StoreFailure,
)
from quorumlog.node import LedgerNode
from quorumlog.store.log_points import ColdRange, LogRange

BEGINS_ANEW_MS = 100
ReadOutcome = EntryBatch | LedgerError | None
ReadLater = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""As `Host.read_later`, but not by way of `LedgerNode.finish`."""


class _Waiter(NamedTuple):
    entry_index: int
    deadline_s: float
    wake: Callable[[], None]


def begins_anew(member_id: str) -> LeaderNotReady:
    return LeaderNotReady(
        f"{member_id} opens its log anew, ask again or another member", retry_after_ms=BEGINS_ANEW_MS
    )


class WaitingReads:
    """Of all clients of one member."""

    def __init__(self, node: LedgerNode, read_later: ReadLater) -> None:
        self._node = node
        self._read_later = read_later
        self.waiters: list[_Waiter] = []
        self._readers: dict[ColdRange, list[Callable[[ReadOutcome], None]]] = {}
        """Ranges that are being read from files, and who waits for each."""
        self._is_closed = False
        self.refusal: LedgerError | None = None
        """Of reads that would wait for entries: none will come here."""

    def read(
        self, first_index: int, stop_index: int, limit_bytes: int, done: Callable[[ReadOutcome], None]
    ) -> None:
        """Committed entries, at once from memory or later from a file; see `ReadableLog.find`.

        Many readers may get the same batch: do not write to it.
        """
        if self._is_closed:
            done(begins_anew(self._node.replica.member_id))
            return
        try:
            found = self._node.readable_range(first_index, stop_index, limit_bytes)
        except LedgerError as error:
            done(error)
            return
        if isinstance(found, EntryBatch):
            done(found)
            return
        readers = self._readers.get(found)
        if readers is not None:
            readers.append(done)
        else:
            self._readers[found] = readers = [done]
            self._read_file(found, readers)

    def _read_file(self, cold: ColdRange, readers: list[Callable[[ReadOutcome], None]]) -> None:
        def read(result: tuple[LogRange, EntryBatch] | StoreFailure | LedgerError) -> None:
            if self._readers.get(cold) is readers:
                del self._readers[cold]
            outcome: ReadOutcome
            if isinstance(result, DirectoryDamaged):
                self._node.finish(self._node.repairer.found, result)
                outcome = RangeDamaged(str(result))
            elif isinstance(result, StoreFailure):
                raise result
            else:
                outcome = result if isinstance(result, LedgerError) else result[1]
            for done in readers:
                done(outcome)

        self._read_later(lambda: self._node.store.read_from(*cold), read)

    def close(self) -> None:
        """The node is closed: all readers are answered, and may ask the next one."""
        self._is_closed = True
        self.wake()
        readers, self._readers = self._readers, {}
        for done in [done for each in readers.values() for done in each]:
            done(begins_anew(self._node.replica.member_id))

    def refuse(self, refusal: LedgerError | None) -> None:
        """From now on waiting reads are refused, and may go to another member; None: no longer."""
        self.refusal = refusal
        if refusal is not None:
            self.wake()

    def wake(self) -> None:
        """Answer waiting reads with the entries that there are."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.wake()

    def lost_committed(self) -> None:
        """Some entries are replaced: a read that began before is not shared any more."""
        self._readers = {}

    def wait_for(self, index: int, wait_ms: int, wake: Callable[[], None]) -> None:
        """Call `wake` once `index` is committed, or when the time is over. Inside a turn, whose end sets
        the timer."""
        self.waiters.append(_Waiter(index, time.monotonic() + wait_ms / 1000, wake))

    def committed(self, committed_index: int) -> None:
        if not self.waiters:
            return
        ready = [w for w in self.waiters if w.entry_index <= committed_index]
        if ready:
            self.waiters = [w for w in self.waiters if w.entry_index > committed_index]
            for waiter in ready:
                waiter.wake()

    def expire(self) -> None:
        now_s = time.monotonic()
        expired = [w for w in self.waiters if w.deadline_s <= now_s]
        self.waiters = [w for w in self.waiters if w.deadline_s > now_s]
        for waiter in expired:
            waiter.wake()

    def wakeup_s(self, other_s: float) -> float:
        """When the first of them gives up, if that is before `other_s`."""
        return min([other_s, *[w.deadline_s for w in self.waiters]])
