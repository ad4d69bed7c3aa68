"""PushSender: finds the bytes that a dispatcher ordered and sends them to its follower.

What was appended lately is pushed from memory, the rest is read from the segment files beside the
loop: a follower far behind costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.batch import EntryBatch, Int64Array
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import AppendOrder, Envelope, PushOrder, Role
from quorumlog.entry import Voter
from quorumlog.entry_header import unpack_header
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
from quorumlog.store.ledger_store import LedgerStore, LogPoint, LogRange


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


def checked_entries(message: PushEntryRequest) -> EntryBatch:
    """The entries of an APPEND, shown to be what the message says.

    Raises ProtocolViolation.
    """
    batch = message.entries
    if not isinstance(batch, EntryBatch) or batch.count == 0 or batch.count != message.count:
        raise ProtocolViolation(f"an APPEND of {message.count} entries without their bytes")
    if message.previous.index != message.first_index - 1:
        raise ProtocolViolation(
            f"an APPEND from {message.first_index} on names {message.previous.index} as previous"
        )
    batch.check_encoding()
    batch.check_sequence(message.first_index, message.previous_chain)
    if batch.term_runs() != message.term_runs:
        raise ProtocolViolation("an APPEND whose entries are of other terms than it says")
    if message.cold:
        batch.check_bodies()
    return batch


def end_before(order: AppendOrder, term: int) -> LogPoint:
    """The entry before the first that a push brings, as the leader has it; `term` is that entry's.

    Where the push begins a segment, the entry before may end anywhere in the segment in front: then this
    is the end of that segment, as where a range in quarantine ends.
    """
    batch, first_index = order.entries, order.first_index
    assert isinstance(batch, EntryBatch), f"the entries from {first_index} on are this member's own"
    place = first_index - order.push_first_index
    starts = batch.starts
    first = unpack_header(batch.buffer, int(starts[place]))
    assert first.index == first_index, (first, order)
    chain = order.push_previous_chain
    if place:
        chain = unpack_header(batch.buffer, int(starts[place - 1])).chain_crc
    return LogPoint(first_index - 1, term, chain, first.pos)


def shares_log(message: PushEntryRequest, index: int, store: LedgerStore) -> bool:
    """Entry `index` is held here and by the sender, of the same term: are both logs the same up to it?

    They are not where a directory was put back from an older copy and has led a term twice, and what is
    pushed must not follow the other entries then. False also if this disk cannot tell.
    """
    try:
        ours = store.chain_at(index)
    except DirectoryDamaged:
        return False
    except RangeDamaged:
        return True  # who sends the damaged range again compares the chain at both of its ends
    theirs = message.previous_chain
    if index > message.previous.index:
        theirs = int(message.entries.headers()["chain_crc"][index - message.first_index])
    return ours == theirs


def check_positions(batch: EntryBatch, positions: Int64Array) -> None:
    """Positions are equal on all members. Raises ProtocolViolation where the leader's are others."""
    if not batch.lies_at(positions):
        raise ProtocolViolation(
            f"entries from index {batch.first_index} on lie elsewhere in the leader's log: members of"
            " one group need the same segment_bytes, or its file is damaged: run `quorumlog verify`"
        )
