"""What a follower checks of a push before its core sees it."""

from __future__ import annotations

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import PushEntryRequest
from quorumlog.consensus.ready import AppendOrder
from quorumlog.entry_header import unpack_header
from quorumlog.errors import ProtocolViolation
from quorumlog.header_array import Int64Array
from quorumlog.store.ledger_store import LedgerStore, LogPoint


def checked_entries(message: PushEntryRequest) -> EntryBatch:
    """The entries of an APPEND. Raises ProtocolViolation if they are not what the message says."""
    batch = message.batch
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
    is the end of that segment, as where a damaged range ends.
    """
    batch, first_index = order.batch, order.first_index
    assert isinstance(batch, EntryBatch), f"the entries from {first_index} on are this member's own"
    place = first_index - order.push_first_index
    starts = batch.starts
    first = unpack_header(batch.buffer, int(starts[place]))
    assert first.index == first_index, (first, order)
    chain = order.push_previous_chain
    if place:
        chain = unpack_header(batch.buffer, int(starts[place - 1])).chain_crc
    return LogPoint(first_index - 1, term, chain, first.pos)


def shares_log(message: PushEntryRequest, index: int, store: LedgerStore) -> bool | None:
    """Entry `index` is held here and by the sender, of the same term: are both logs the same up to it?
    None if that has to be read first.

    They are not where a directory was put back from an older copy and has led a term twice.
    """
    point = store.point_in_memory(index)
    if point is None:
        # Who sends a damaged range again compares the chain beyond it.
        return True if store.damaged_at(index) is not None else None
    ours = point.chain
    theirs = message.previous_chain
    if index > message.previous.index:
        theirs = int(message.batch.headers()["chain_crc"][index - message.first_index])
    return ours == theirs


def check_positions(batch: EntryBatch, positions: Int64Array) -> None:
    """Positions are equal on all members. Raises ProtocolViolation where the leader's are others."""
    if not batch.lies_at(positions):
        raise ProtocolViolation(
            f"entries from index {batch.first_index} on lie elsewhere in the leader's log: members of"
            " one group need the same segment_bytes, or its file is damaged: run `quorumlog verify`"
        )
