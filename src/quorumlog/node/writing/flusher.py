"""Flusher: what is on disk, who waits for it, and the lazy writes that nobody waits for.

One flush runs at a time: it notes the newest Ready carried out, syncs every file dirtied up to it, and
then reports its number (`on_durable`), which lets the messages go that waited for it. Under
`flush = async` a Ready is reported as soon as it is written, and the flush runs behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from quorumlog.config import MIB, StoreConfig
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Envelope, Ready
from quorumlog.entry import Durability
from quorumlog.errors import DirectoryDamaged, IndexOutOfRange, LedgerError, RangeDamaged, StoreFailure
from quorumlog.node.ports import Host
from quorumlog.store.ledger_store import SyncTask
from quorumlog.store.member_directory import MemberDirectory

NEVER = float("inf")
MOST_UNSYNCED_BYTES = 16 * MIB
MOST_UNSYNCED_ENTRIES = 32_768
"""Under `flush = async` a flush is due behind so much, whatever the clock says: after it comes a step of
space for the next appends (`LedgerStore.space_ahead`), which the loop has to make if it comes late."""


class Flusher:
    def __init__(
        self,
        config: StoreConfig,
        directory: MemberDirectory,
        raft: RaftNode,
        host: Host,
        now_ms: float,
        on_damage: Callable[[DirectoryDamaged], None],
    ) -> None:
        self._config = config
        self._on_damage = on_damage
        self._directory = directory
        self._store = directory.store
        self._raft = raft
        self._host = host
        self._sync_first = directory.durability is Durability.SYNC
        self._carried_number = 0
        """Newest Ready carried out."""
        self._durable_number = 0
        """Newest Ready reported; never above `_carried_number`."""
        self._after_durable: deque[tuple[int, Envelope]] = deque()
        """Messages that wait for the sync of their Ready, in order."""
        self._task: SyncTask | None = None
        self.waits_since_ms: float | None = None
        """When the flush that is on its way was asked for; None: there is none."""
        self._next_flush_ms = now_ms
        self._point_unsynced = False
        """A sync has ended whose durable point is written but not synced itself."""
        self._next_point_sync_ms = now_ms
        self._next_checkpoint_ms = now_ms + config.checkpoint_interval_ms
        self._checkpointed_index = directory.committed_index

    def configure(self, config: StoreConfig) -> None:
        self._config = config

    @property
    def holds_appends(self) -> bool:
        """A flush is on its way that the next acknowledgements wait for: let the next batch gather."""
        return self._sync_first and self._task is not None

    @property
    def is_idle(self) -> bool:
        """Everything carried out has been reported."""
        return self._task is None and self._durable_number == self._carried_number

    def carried_out(self, ready: Ready) -> None:
        """Everything that this Ready writes has been handed to the operating system."""
        assert ready.number == self._carried_number + 1, (ready.number, self._carried_number)
        self._carried_number = ready.number
        for envelope in ready.messages_after_durable:
            self._after_durable.append((ready.number, envelope))

    def flush_or_report(self, now_ms: float) -> bool:
        """Start the flush that is due, or report what needs none; True if something was reported."""
        if not self._sync_first:
            if self._task is None and (now_ms >= self._next_flush_ms or self._is_much_unsynced):
                self._next_flush_ms = now_ms + self._config.flush_interval_ms
                self._start(now_ms)
            return self._report(self._carried_number)
        is_due = self._task is None and self._durable_number < self._carried_number
        if is_due and not self._start(now_ms):
            return self._report(self._carried_number)
        return False

    @property
    def _is_much_unsynced(self) -> bool:
        end, durable = self._store.end, self._store.durable
        return (
            end.position - durable.position >= MOST_UNSYNCED_BYTES
            or end.index - durable.index >= MOST_UNSYNCED_ENTRIES
        )

    def _start(self, now_ms: float) -> bool:
        task = self._store.begin_sync()
        if task is None:
            return False
        self._task, self.waits_since_ms = task, now_ms
        number = self._carried_number
        self._host.flush_later(task.run, lambda result: self._flushed(task, number, result))
        return True

    def _flushed(self, task: SyncTask, number: int, result: StoreFailure | None) -> None:
        if isinstance(result, StoreFailure):
            raise result
        assert self._task is task
        self._task = self.waits_since_ms = None
        self._store.finish_sync(task)
        self._point_unsynced = True
        if self._sync_first:
            self._report(number)
        space = self._store.space_ahead()
        if space is not None:
            self._host.flush_later(space, _raise_failure)
        outgrown = self._store.outgrown_cache()
        if outgrown is not None:
            self._host.read_later(outgrown, _raise_failure)

    def _report(self, number: int) -> bool:
        assert self._durable_number <= number <= self._carried_number, (
            self._durable_number,
            number,
            self._carried_number,
        )
        if number == self._durable_number:
            return False
        self._durable_number = number
        self._raft.on_durable(number)
        waiting = self._after_durable
        while waiting and waiting[0][0] <= number:
            envelope = waiting.popleft()[1]
            if self._raft.pushes.may_leave(envelope):
                self._host.send(envelope)
        return True

    def run_timers(self, now_ms: float, durable_committed_index: int) -> None:
        """Sync the durable point and write the checkpoint when they are due."""
        if self._point_unsynced and now_ms >= self._next_point_sync_ms:
            self._next_point_sync_ms = now_ms + self._config.durable_sync_interval_ms
            self._point_unsynced = False
            self._host.flush_later(self._directory.sync_durable_point, _raise_failure)
        if durable_committed_index > self._checkpointed_index and now_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = now_ms + self._config.checkpoint_interval_ms
            write = self._checkpoint(durable_committed_index)
            self._checkpointed_index = min(durable_committed_index, self._store.durable.index)
            self._host.read_later(write, self._checkpoint_written)

    def next_wakeup_ms(self, durable_committed_index: int) -> float:
        wakeup = NEVER
        if self._point_unsynced:
            wakeup = self._next_point_sync_ms
        if durable_committed_index > self._checkpointed_index:
            wakeup = min(wakeup, self._next_checkpoint_ms)
        behind = self._store.end.index > self._store.durable.index
        if not self._sync_first and behind and self._task is None:
            wakeup = min(wakeup, self._next_flush_ms)
        return wakeup

    def close(self, durable_committed_index: int, *, clean: bool) -> None:
        """Give the directory back; `clean`: everything synced and the checkpoint written first.

        Raises StoreFailure if a sync fails, after the directory is given back.
        """
        try:
            if clean:
                self._finish(durable_committed_index)
        except BaseException:
            self._directory.close(False)
            raise
        self._directory.close(clean)

    def _finish(self, durable_committed_index: int) -> None:
        if self._task is not None:
            # It ran while the loop was being stopped, and nobody was told what came of it.
            if not self._task.done:
                raise StoreFailure("the last flush has failed: what it held may not be on disk")
            self._store.finish_sync(self._task)
        task = self._store.begin_sync()
        if task is not None:
            task.run()
            self._store.finish_sync(task)
        if durable_committed_index > self._checkpointed_index:
            # Without one the next start knows less of what is committed, and nothing else.
            with suppress(DirectoryDamaged):
                self._checkpoint(durable_committed_index)()

    def _checkpoint(self, durable_committed_index: int) -> Callable[[], None]:
        """Work for any thread. Never above what is on disk, which under `flush = async` is behind what a
        quorum holds, and never a damaged entry. Raises DirectoryDamaged if the entry cannot be read."""
        store, index = self._store, min(durable_committed_index, self._store.durable.index)
        damaged = store.damaged_at(index)
        known = store.point_in_memory(index) if damaged is None else damaged.before
        if known is not None:
            point = known
            return lambda: self._directory.write_checkpoint(point)
        term = self._raft.term_at(index)

        def read_and_write() -> None:
            with suppress(IndexOutOfRange, RangeDamaged):  # since then; the next one will do
                point = store.point_on_disk(index)
                if point.term == term:  # under `flush = async` another entry may have come there
                    self._directory.write_checkpoint(point)

        return read_and_write

    def _checkpoint_written(self, result: Any) -> None:
        if isinstance(result, DirectoryDamaged):
            self._on_damage(result)
        else:
            _raise_failure(result)


def _raise_failure(result: Any) -> None:
    if isinstance(result, StoreFailure | LedgerError):
        raise result
