"""RangeCheck: what a task proves about its range before Spark may count it as read.

The entries must come in order, without gap or repetition and as many as planned, linked by `chain_crc`
across batches and so across the members that sent them. Each batch in itself was checked, with its
bodies, by whoever read it; here it has to continue the one before. An entry that is missing or differs
ends the task; it never becomes a smaller result.
"""

from __future__ import annotations

from quorumlog.batch import EntryBatch
from quorumlog.header_array import field_of
from quorumlog.spark.partitions import LedgerPartition
from quorumlog.spark.short_errors import RangeMismatch

__all__ = ["RangeCheck", "RangeMismatch"]


class RangeCheck:
    def __init__(self, partition: LedgerPartition) -> None:
        self.partition = partition
        self.next_index = partition.first_index
        self.is_chained = True
        """Off for a log written without digests."""
        self._count = 0
        self._lost = 0
        self._chain = partition.previous_chain
        """chain_crc of the entry before `next_index`; None: not known, the next batch has to do."""

    @property
    def is_complete(self) -> bool:
        return self.next_index == self.partition.stop_index

    def accept(self, batch: EntryBatch, origin: str) -> None:
        """`origin` (a member, a directory) gave it. Raises RangeMismatch and then counts nothing of it,
        so that another member may be asked."""
        if batch.count == 0 or batch.count > self.partition.stop_index - self.next_index:
            raise RangeMismatch(
                f"{origin} gave {batch.count} entries from index {self.next_index} on, asked for"
                f" {self.partition.stop_index - self.next_index}"
            )
        if batch.first_index != self.next_index:
            raise RangeMismatch(f"{origin}: entries from index {self.next_index} on are not contiguous")
        if self.is_chained and self._chain not in (None, batch.chain_before):
            raise RangeMismatch(f"{origin}: chain_crc does not match at index {self.next_index}")
        self._chain = int(field_of(batch.words(), "chain_crc")[-1])
        self._count += batch.count
        self.next_index += batch.count

    def skip_to(self, index: int) -> None:
        """Entries below are lost, and the query goes on without them."""
        assert self.next_index < index <= self.partition.stop_index, (
            f"skip from {self.next_index} to {index} in {self.partition}"
        )
        self._lost += index - self.next_index
        self._chain = None
        self.next_index = index

    def finish(self) -> None:
        """Raises RangeMismatch unless the whole range was read."""
        expected = self.partition.count - self._lost
        if not self.is_complete or self._count != expected:
            raise RangeMismatch(
                f"read {self._count} entries up to offset {self.next_index} of group"
                f" {self.partition.group!r}, planned {expected} entries from index"
                f" {self.partition.first_index} up to offset {self.partition.stop_index}"
            )
        last_chain = self.partition.last_chain
        if self.is_chained and self._count and last_chain not in (None, self._chain):
            raise RangeMismatch(
                f"entries up to {self.next_index - 1} of group {self.partition.group!r} end with"
                f" chain_crc {self._chain}, planned was {last_chain}"
            )
