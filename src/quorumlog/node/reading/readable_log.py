"""ReadableLog: what of the log may be handed out, and whether it lies in memory or in a file."""

from __future__ import annotations

from quorumlog.batch import EntryBatch
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Role
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import IndexOutOfRange, LeaderNotReady, RangeDamaged
from quorumlog.node.sending.recent_batches import RecentBatches
from quorumlog.store.ledger_store import ColdRange, LedgerStore


class ReadableLog:
    def __init__(
        self, raft: RaftNode, store: LedgerStore, recent: RecentBatches, member_id: str
    ) -> None:
        self._raft = raft
        self._store = store
        self._recent = recent
        self._member_id = member_id

    def find(
        self, first_index: int, stop_index: int, limit_bytes: int, committed_index: int
    ) -> EntryBatch | ColdRange:
        """Committed entries from `first_index` on: bytes if they are in memory, else what the read
        thread is to read (`LedgerStore.read_from`); two that ask for the same get the same.

        `stop_index` -1 means all that is committed. Raises IndexOutOfRange, RangeDamaged if they are
        damaged here, and LeaderNotReady where the answer is "no more" or "up to here" while a new
        leader that was not confirmed does not know yet what earlier leaders have acknowledged.
        """
        begin = self._store.begin.index + 1
        if (first_index > committed_index or stop_index < 0) and self._opens_its_term(committed_index):
            raise LeaderNotReady(
                f"{self._member_id} has led term {self._raft.term} for an instant only",
                retry_after_ms=5,
            )
        if first_index < begin or first_index > committed_index:
            problem = (
                f"index {first_index} is not between ledger_begin_index {begin} and committed_index"
                f" {committed_index}"
            )
            if first_index < begin:
                problem += (
                    f": entries below {begin} are gone here; read from there on, or from another member"
                    " (its log may begin lower)"
                )
            raise IndexOutOfRange(
                problem,
                ledger_begin_index=begin,
                committed_index=committed_index,
            )
        readable = committed_index + 1
        stop_index = readable if stop_index < 0 else min(stop_index, readable)
        recent = self._recent.take(first_index, stop_index, limit_bytes)
        if recent is not None:
            return recent.batch
        damaged = next((q for q in self._store.damaged if q.holds(first_index)), None)
        if damaged is not None:
            raise RangeDamaged(str(damaged))
        most = limit_bytes // HEADER_BYTES + 1  # no more entries fit, however small they are
        return ColdRange(first_index, min(stop_index, first_index + most), limit_bytes)

    def _opens_its_term(self, committed_index: int) -> bool:
        """Entries that this leader holds may be committed, unknown to it."""
        if self._raft.role is not Role.LEADER:
            return False
        return committed_index < 0 or self._raft.term_at(committed_index) != self._raft.term
