"""PushSender: finds the bytes that a dispatcher ordered and sends them to its follower.

What was appended lately is pushed from memory, the rest is read from the segment files beside the
loop, and at a pace (CatchUpPace).
"""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Envelope, PushOrder, Role
from quorumlog.entry import Replica
from quorumlog.errors import (
    DirectoryDamaged,
    IndexOutOfRange,
    LedgerError,
    ProtocolViolation,
    RangeDamaged,
    StoreFailure,
)
from quorumlog.node.ports import Host
from quorumlog.node.sending.catch_up_pace import CatchUpPace
from quorumlog.node.sending.feeding import Feeding, Feedings
from quorumlog.node.sending.recent_batches import RecentBatches
from quorumlog.store.ledger_store import LedgerStore, LogRange

NEVER = float("inf")


class PushSender:
    def __init__(
        self,
        replica: Replica,
        raft: RaftNode,
        store: LedgerStore,
        recent: RecentBatches,
        host: Host,
        pace: CatchUpPace,
        on_damage: Callable[[DirectoryDamaged], None],
    ) -> None:
        self._replica = replica
        self._raft = raft
        self._store = store
        self._recent = recent
        self._host = host
        self._pace = pace
        self._paced_term = -1
        """The term in which this member led when it last looked at the pace."""
        self._on_damage = on_damage
        self._feedings = Feedings()
        self._now_ms = 0.0
        self._waiting: list[PushOrder] = []
        """For entries in files, until their followers' turn comes; at most one for each follower."""

    def push(self, order: PushOrder) -> None:
        """Every order is reported exactly once, also one that time has overtaken."""
        recent = self._recent.take(order.first_index, order.stop_index, order.limit_bytes)
        if recent is not None:
            self._feedings.on_caught_up(order.to)
            self._send(order, recent.batch, recent.previous_chain, cold=False)
        elif self._pace.is_open(order.to):
            self._read(order)
        else:
            self._waiting.append(order)

    def tick(self, now_ms: float) -> bool:
        """Once a turn, when everything that it brought is appended. True if orders had waited for it."""
        self._now_ms = now_ms
        if self._raft.role is Role.LEADER:
            if self._raft.term != self._paced_term:
                self._paced_term = self._raft.term
                self._pace.begin(now_ms, self._store.end.position)
            self._pace.observe(now_ms, self._store.end.position)
        if not self._waiting:
            return False
        waiting, self._waiting = self._waiting, []
        for order in waiting:
            if self._is_of_this_term(order):
                self.push(order)
            else:
                self._raft.replication.on_push_failed(order.to)
        return True

    def feeding(self, to: Replica) -> Feeding | None:
        """Of a follower that this leader sends entries out of files."""
        if self._raft.role is not Role.LEADER:
            return None
        return self._feedings.of(to, self._store.end.position, self._now_ms)

    def next_wakeup_ms(self) -> float:
        if not self._waiting:
            return NEVER
        return min([self._pace.next_ms(order.to) for order in self._waiting])

    def _is_of_this_term(self, order: PushOrder) -> bool:
        """What it names is still this log: a leader cuts nothing."""
        return self._raft.role is Role.LEADER and self._raft.term == order.term

    def _read(self, order: PushOrder) -> None:
        self._host.read_later(
            lambda: read_sound(self._store, order.first_index, order.stop_index, order.limit_bytes),
            lambda result: self._range_read(order, result),
        )

    def _range_read(
        self, order: PushOrder, result: tuple[LogRange, EntryBatch] | StoreFailure | LedgerError
    ) -> None:
        if isinstance(result, DirectoryDamaged):
            self._on_damage(result)
        elif isinstance(result, StoreFailure):
            raise result
        if isinstance(result, IndexOutOfRange | RangeDamaged | DirectoryDamaged) or (
            not self._is_of_this_term(order)
        ):
            self._raft.replication.on_push_failed(order.to)
        elif isinstance(result, LedgerError):
            raise result
        else:
            log_range, batch = result
            self._pace.spend(order.to, batch.total_bytes)
            stop_position = log_range.position + log_range.size_bytes
            self._feedings.on_sent(order.to, stop_position, self._now_ms)
            self._send(order, batch, log_range.previous.chain, cold=True)

    def _send(self, order: PushOrder, batch: EntryBatch, previous_chain: int, *, cold: bool) -> None:
        message = PushEntryRequest(
            sender=self._replica,
            term=order.term,
            push=PushType.APPEND,
            committed_index=order.committed_index,
            previous=order.previous,
            first_index=order.first_index,
            count=batch.count,
            term_runs=batch.term_runs(),
            previous_chain=previous_chain,
            cold=cold,
            batch=batch,
        )
        if self._host.send(Envelope(order.to, message)):
            self._raft.replication.on_pushed(order.to, message.last_index, batch.total_bytes)
        else:
            self._raft.replication.on_push_failed(order.to)


def read_sound(
    store: LedgerStore, first_index: int, stop_index: int, limit_bytes: int
) -> tuple[LogRange, EntryBatch]:
    """Any thread. Bodies are checked: the receiver does so as well, but could not know whose disk it is.
    Raises as `LedgerStore.read_from`."""
    log_range, batch = store.read_from(first_index, stop_index, limit_bytes, once=True)
    try:
        batch.check_bodies()
    except ProtocolViolation as violation:
        raise DirectoryDamaged(
            f"{violation}, in data segment {log_range.segment_position:020d} of this member; run:"
            " quorumlog verify on its data directory",
            path=f"{log_range.segment_position:020d}",
            position=log_range.position,
            index=log_range.first_index,
            stop_index=log_range.stop_index,
        ) from violation
    return log_range, batch
