"""What both clients share: requests as messages, and answers as results."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker.client.broker_results import PullResult, QueueInfo, SendReceipt, checked
from quorumlog.broker.errors import UnknownTopic
from quorumlog.broker.message import Message, encode_records, host_bytes
from quorumlog.broker.wire import (
    GROUP,
    AnyBrokerMessage,
    PullResponse,
    QueuesResponse,
    SendResponse,
    message_of,
    records_of,
)
from quorumlog.entry_header import Buffer
from quorumlog.errors import BadRequest, ProtocolViolation
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import Frame, encode_frame
from quorumlog.net.hello import BROKER, client_hello

DEFAULT_TIMEOUT_MS = 10_000
TimeRange = tuple[float | int | datetime | None, float | int | datetime | None]


class Encoded(NamedTuple):
    buffer: bytearray
    sizes: list[int]
    queue_id: int
    topic: str
    waits: bool


class UniqKeys:
    """32 hexadecimal digits each: who, and a number, as RocketMQ's clients set them."""

    def __init__(self) -> None:
        self._prefix = os.urandom(12).hex().upper()
        self._numbers = itertools.count(int.from_bytes(os.urandom(2), "big"))

    def take(self, count: int) -> list[str]:
        prefix, numbers = self._prefix, self._numbers
        return [f"{prefix}{next(numbers) & 0xFFFFFFFF:08X}" for _ in range(count)]


def encode_messages(messages: Sequence[Message], queue_id: int, keys: UniqKeys, host: bytes) -> Encoded:
    """Raises BadRequest, BodyTooLarge."""
    born_ms, uniq_keys = int(time.time() * 1000), keys.take(len(messages))
    buffer, sizes = encode_records(messages, queue_id, born_ms, uniq_keys, host)
    waits = any(message.wait for message in messages)
    if waits and not all(message.wait for message in messages):
        raise BadRequest("a batch waits as a whole or not at all: give all its messages the same `wait`")
    return Encoded(buffer, sizes, queue_id, messages[0].topic, waits)


def frame_of(message: AnyBrokerMessage, encoded: Encoded | None = None) -> list[Buffer]:
    batch = None if encoded is None else EntryBatch(encoded.buffer, np.array(encoded.sizes))
    return encode_frame(GROUP, message, batch)


def own_host(name: Any) -> bytes:
    return host_bytes(name[0], name[1]) if isinstance(name, tuple) else bytes(8)


def milliseconds(moment: float | datetime | None, default: int) -> int:
    """Since 1970, of a datetime or a number of milliseconds."""
    if moment is None:
        return default
    if isinstance(moment, datetime):
        return int(moment.astimezone(UTC).timestamp() * 1000)
    return int(moment)


def time_range(time_: TimeRange | None) -> tuple[int, int]:
    begin, end = (None, None) if time_ is None else time_
    return milliseconds(begin, 0), milliseconds(end, sys.maxsize)


def hello() -> list[Buffer]:
    return frame_of(client_hello(BROKER))


def answer_of(frame: Frame) -> AnyBrokerMessage:
    """Raises what the broker refuses with."""
    message = message_of(frame)
    if isinstance(message, ErrorResponse):
        raise error_of(message)
    return message


def receipt_of(frame: Frame, encoded: Encoded) -> SendReceipt:
    message = answer_of(frame)
    if not isinstance(message, SendResponse):
        raise ProtocolViolation(f"{type(message).__name__} is no answer to a send")
    return SendReceipt(
        encoded.topic,
        encoded.queue_id,
        message.queue_offset,
        message.physical_offset,
        message.message_count,
        message.store_time_ms,
        message.store_host,
        message.positions,
    )


def pulled_of(frame: Frame) -> PullResult:
    message = answer_of(frame)
    if not isinstance(message, PullResponse):
        raise ProtocolViolation(f"{type(message).__name__} is no answer to a pull")
    records = checked(records_of(frame))
    return PullResult(records, message.next_offset, message.min_offset, message.max_offset)


def queues_of(frame: Frame) -> list[QueueInfo]:
    message = answer_of(frame)
    if not isinstance(message, QueuesResponse):
        raise ProtocolViolation(f"{type(message).__name__} is no answer to a request for queues")
    return [QueueInfo(row.topic, row.queue_id, row.min_offset, row.max_offset) for row in message.queues]


def queue_among(queues: list[QueueInfo], topic: str, queue_id: int) -> QueueInfo:
    """`queues`: of the topic. Raises UnknownTopic."""
    for queue in queues:
        if queue.queue_id == queue_id:
            return queue
    if queues:
        raise UnknownTopic(f"topic {topic} has no queue {queue_id}: it has {len(queues)}")
    raise UnknownTopic(
        f"the broker has no topic {topic}; quorumlog broker status shows those that it has"
    )


def queue_counts(queues: Iterable[QueueInfo]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for queue in queues:
        counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
    return counts
