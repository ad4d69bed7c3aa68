"""PushSender: finds the bytes that a dispatcher ordered and sends them to its follower.

What was appended lately is pushed from memory, the rest is read from the segment files beside the
loop: a follower far behind costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Envelope, PushOrder, Role
from quorumlog.entry import Voter
from quorumlog.errors import (
    DirectoryDamaged,
    IndexOutOfRange,
    LedgerError,
    ProtocolViolation,
    RangeDamaged,
    StoreFailure,
)
from quorumlog.node.ports import World
from quorumlog.node.recent_batches import RecentBatches
from quorumlog.store.ledger_store import LedgerStore, LogRange


class PushSender:
    def __init__(
        self,
        voter: Voter,
        raft: RaftNode,
        store: LedgerStore,
        recent: RecentBatches,
        world: World,
        on_damage: Callable[[DirectoryDamaged, int], None],
    ) -> None:
        """`on_damage(damage, stop_index)`: a read from `damage.index` to below `stop_index` met it."""
        self._voter = voter
        self._raft = raft
        self._store = store
        self._recent = recent
        self._world = world
        self._on_damage = on_damage

    def push(self, order: PushOrder) -> None:
        """Every order is reported exactly once, also one that time has overtaken."""
        recent = self._recent.take(order.first_index, order.stop_index, order.limit_bytes)
        if recent is not None:
            self._send(order, recent.batch, recent.previous_chain, cold=False)
            return
        try:
            log_range = self._store.range_of(order.first_index, order.stop_index, order.limit_bytes)
        except (IndexOutOfRange, RangeDamaged, DirectoryDamaged) as error:
            if isinstance(error, DirectoryDamaged):
                self._on_damage(error, order.stop_index)
            self._raft.on_push_failed(order.to.member_id)
            return
        self._world.read_later(
            lambda: read_sound(self._store, log_range),
            lambda result: self._range_read(order, log_range, result),
        )

    def _range_read(
        self, order: PushOrder, log_range: LogRange, result: EntryBatch | StoreFailure | LedgerError
    ) -> None:
        leads = self._raft.role is Role.LEADER and self._raft.term == order.term
        if isinstance(result, DirectoryDamaged):
            self._on_damage(result, log_range.stop_index)
        elif isinstance(result, StoreFailure):
            raise result
        if isinstance(result, IndexOutOfRange | DirectoryDamaged) or not leads:
            self._raft.on_push_failed(order.to.member_id)
        elif isinstance(result, LedgerError):
            raise result
        else:
            self._send(order, result, log_range.previous.chain, cold=True)

    def _send(self, order: PushOrder, batch: EntryBatch, previous_chain: int, *, cold: bool) -> None:
        message = PushEntryRequest(
            sender=self._voter,
            term=order.term,
            push=PushType.APPEND,
            committed_index=order.committed_index,
            previous=order.previous,
            first_index=order.first_index,
            count=batch.count,
            term_runs=batch.term_runs(),
            previous_chain=previous_chain,
            cold=cold,
            entries=batch,
        )
        self._world.send(Envelope(order.to, message))
        self._raft.on_pushed(order.to.member_id, message.last_index, batch.total_bytes)


def read_sound(store: LedgerStore, log_range: LogRange) -> EntryBatch:
    """Entries from a file with their bodies checked; any thread. The receiver of a cold range checks
    every body as well, but it could not know whose disk it is. Raises DirectoryDamaged."""
    batch = store.read(log_range)
    try:
        batch.check_bodies()
    except ProtocolViolation as violation:
        raise DirectoryDamaged(
            f"{violation}, in data segment {log_range.segment_position:020d} of this member; run:"
            " quorumlog verify on its data directory",
            path=f"{log_range.segment_position:020d}",
            position=log_range.position,
            index=log_range.first_index,
        ) from violation
    return batch
