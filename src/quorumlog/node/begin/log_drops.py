"""LogDrops: the first segments of this member's log go, one drop at a time.

    the core            compares, pushes and cuts nothing at or below the new begin
    beside the loop     the start comes to disk
    the store           lets go of what lies below: who reads there gets IndexOutOfRange
    beside the loop     the files are deleted, oldest first

Killed at any step, the log begins where it did or at the new start.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from quorumlog.consensus.messages import PushEntryRequest
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.errors import DiskFull, LedgerError, StoreFailure
from quorumlog.node.ports import Host
from quorumlog.store.ledger_store import LogStart
from quorumlog.store.member_directory import MemberDirectory

DELETE_INTERVAL_MS = 1000


class LogDrops:
    def __init__(
        self,
        directory: MemberDirectory,
        raft: RaftNode,
        host: Host,
        carry_out: Callable[[], None],
    ) -> None:
        """`carry_out`: bring the store to where the core is."""
        self._directory = directory
        self._store = directory.store
        self._raft = raft
        self._host = host
        self._carry_out = carry_out
        self._start: LogStart | None = None
        """Of the drop that is under way."""
        self._is_deleting = False
        self._next_look_ms = 0.0
        self.problem = ""
        """Why the newest one found no space; in a sentence."""

    @property
    def is_under_way(self) -> bool:
        return self._start is not None or self._is_deleting

    def begin(self, start: LogStart, durable_committed_index: int) -> bool:
        """False: one is under way, and nothing has changed. Raises DiskFull, and nothing has changed."""
        index = start.point.index
        # With the entry behind it: another leader's, of another length, could lie elsewhere.
        assert self._store.begin.index < index < durable_committed_index, (start, self._store.begin)
        assert not start.replaces, start
        if self.is_under_way:
            return False
        held = self._store.start
        if held is not None and held.owed_index > self._store.durable.index:
            # What was owed since the log was installed is owed above another start as well.
            start = msgspec.structs.replace(start, owed_index=held.owed_index)
        try:
            save = self._directory.save_start(start)
        except DiskFull as error:
            self.problem = str(error)
            raise
        self._carry_out()
        if index > self._raft.begin.index:  # else it was tried before, and there was no space
            self._raft.drop_before(start.point.entry_id)
        self._start = start
        # Not with the flushes: no append waits for what is dropped.
        self._host.read_later(save, self._saved)
        return True

    def tick(self, now_ms: float) -> None:
        """What a full disk has kept from being deleted is tried again."""
        if now_ms < self._next_look_ms or self.is_under_way:
            return
        self._next_look_ms = now_ms + DELETE_INTERVAL_MS
        work = self._store.left_to_delete()
        if work is not None:
            self._is_deleting = True
            self._host.read_later(work, self._deleted)

    def give_up_below(self, start: LogStart, durable_committed_index: int) -> None:
        """What is damaged below this start of another member's log nobody holds any more. The state that
        comes with it is that of the same entries, where the one before it is this log's as well."""
        index = start.point.index
        if not self._raft.begin.index < index < durable_committed_index:
            return
        if self._raft.term_at(index) == start.point.term:
            with suppress(DiskFull):  # it is asked for again
                self.begin(LogStart(start.point, start.record), durable_committed_index)

    def must_wait(self, message: PushEntryRequest) -> bool:
        """While the start comes to disk nothing is cut directly behind it: the next entry lies where
        the start says because of the one that a cut would take away. Async mode alone orders such a
        cut."""
        if self._start is None:
            return False
        cut_index = self._raft.pushes.conflict_of(message)
        return cut_index is not None and cut_index <= self._start.point.index + 1

    def _saved(self, result: StoreFailure | LedgerError | None) -> None:
        start, self._start = self._start, None
        assert start is not None
        if isinstance(result, DiskFull):
            self.problem = str(result)
            return
        if isinstance(result, StoreFailure | LedgerError):
            raise result
        self.problem = ""
        self._carry_out()
        damaged = self._store.damaged
        delete = self._store.drop_before(start)
        if self._store.damaged != damaged:
            left = [(each.first_index, each.stop_index) for each in self._store.damaged]
            self._raft.on_repaired(left)
        self._is_deleting = True
        self._host.read_later(delete, self._deleted)

    def _deleted(self, result: StoreFailure | LedgerError | None) -> None:
        self._is_deleting = False
        if result is not None:
            raise result
