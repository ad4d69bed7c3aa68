"""What a broker's clients give back."""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.broker.errors import MessageDamaged
from quorumlog.broker.messages.message import StoredMessage
from quorumlog.broker.messages.record import message_id_of
from quorumlog.broker.messages.record_batch import RecordBatch


class SendReceipt(NamedTuple):
    """Messages that are stored as the broker promises; those of a batch follow each other."""

    topic: str
    queue_id: int
    queue_offset: int
    """Of the first message."""
    physical_offset: int
    message_count: int
    store_time_ms: int
    store_host: bytes

    @property
    def message_id(self) -> str:
        """Of the first message."""
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
