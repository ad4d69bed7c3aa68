"""What a broker's clients give back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quorumlog.broker.errors import MessageDamaged
from quorumlog.broker.message import StoredMessage, message_id_of
from quorumlog.broker.record_batch import RecordBatch


class SendReceipt(NamedTuple):
    """Messages that are stored as the broker promises; those of a batch follow each other."""

    topic: str
    queue_id: int
    queue_offset: int
    """Of the first message. An idempotent producer whose answer came only after a failover gets -1
    here, and in `physical_offset` and `store_time_ms`: the messages are stored, once, and the new
    master no longer has in memory where."""
    physical_offset: int
    message_count: int
    store_time_ms: int
    store_host: bytes
    positions: bytes = b""
    """Physical offset of each, 8 bytes big-endian; empty: they lie one right behind the other."""

    def singles(self, sizes: Sequence[int]) -> Iterator[SendReceipt]:
        """One for each message; `sizes` of their records."""
        position = self.physical_offset
        for number, size in enumerate(sizes):
            if self.positions:
                at = self.positions[8 * number : 8 * number + 8]
                position = int.from_bytes(at, "big")
            yield self._replace(
                queue_offset=self.queue_offset + number,
                physical_offset=position,
                message_count=1,
                positions=b"",
            )
            position += size

    @property
    def message_id(self) -> str:
        """Of the first message; empty where `physical_offset` is not known."""
        if self.physical_offset < 0:
            return ""
        return message_id_of(self.store_host, self.physical_offset)


class PullResult(NamedTuple):
    records: RecordBatch
    """As they came; their columns are numpy arrays."""
    next_offset: int
    min_offset: int
    max_offset: int

    @property
    def messages(self) -> list[StoredMessage]:
        return self.records.messages()


class QueueInfo(NamedTuple):
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


def checked(records: RecordBatch) -> RecordBatch:
    """Shape and CRCs of what came. Raises MessageDamaged."""
    if len(records) and not (records.columns.good.all() and records.bodies_good().all()):
        raise MessageDamaged("a message is damaged on the broker's disk: quorumlog broker verify DIR")
    return records
