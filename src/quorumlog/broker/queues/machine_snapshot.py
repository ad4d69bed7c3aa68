"""What the state machine of messages is saved as:

head      4 bytes of length, msgpack: version, end position, last time, queues, number of keys
queues    the units of each in the order of the head, 20 bytes each
keys      hash 8, position 8, time 8 of each entry of the index, oldest first
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from quorumlog.broker.config import QUEUE_UNIT_BYTES
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.queues.consume_queue import UNIT
from quorumlog.broker.queues.consume_queues import ConsumeQueues
from quorumlog.broker.queues.index_service import IndexService
from quorumlog.state_machine import SnapshotReader, SnapshotWriter

MACHINE_NAME = "messages"
PIECE_UNITS = 50_000
KEY = np.dtype([("hash", ">i8"), ("position", ">i8"), ("time_ms", ">i8")])


class QueueRange(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    end_position: int
    """Behind the last record that was dispatched."""
    last_time_ms: int
    """Its STORETIMESTAMP."""
    queues: list[QueueRange]
    keys: int = 0


def head_of(
    end_position: int, last_time_ms: int, queues: ConsumeQueues, index: IndexService | None
) -> SnapshotHead:
    rows = [
        QueueRange(key.topic, key.queue_id, queue.min_offset, queue.max_offset)
        for key, queue in queues.items()
    ]
    keys = 0 if index is None else sum(file.count - 1 for file in index.files)
    return SnapshotHead(end_position, last_time_ms, rows, keys)


def save_slices(
    writer: SnapshotWriter,
    end_position: int,
    last_time_ms: int,
    queues: ConsumeQueues,
    index: IndexService | None,
) -> Iterator[None]:
    """As it is at the first slice: what is dispatched between two of them lies behind it. Nothing may be
    dropped meanwhile."""
    head = head_of(end_position, last_time_ms, queues, index)
    files = [] if index is None else [(file, file.count) for file in index.files]
    data = msgspec.msgpack.encode(head)
    writer.write(len(data).to_bytes(4, "big") + data)
    for row in head.queues:
        queue = queues.get(QueueKey(row.topic, row.queue_id))
        assert queue is not None, row
        for first in range(row.min_offset, row.max_offset, PIECE_UNITS):
            stop = min(first + PIECE_UNITS, row.max_offset)
            units = queue.units(first, stop)
            assert len(units) == stop - first, (row, first, len(units))
            writer.write(units.tobytes())
            yield
    for file, count in files:
        for first in range(1, count, PIECE_UNITS):
            stop = min(first + PIECE_UNITS, count)
            keys = np.empty(stop - first, KEY)
            keys["hash"], keys["position"], keys["time_ms"] = file.keys(first, stop)
            writer.write(keys.tobytes())
            yield


def read_head(reader: SnapshotReader) -> SnapshotHead:
    size_bytes = int.from_bytes(reader.read(4), "big")
    return msgspec.msgpack.decode(reader.read(size_bytes), type=SnapshotHead)


def load(reader: SnapshotReader, queues: ConsumeQueues, index: IndexService | None) -> SnapshotHead:
    """Into empty ones. Raises DiskFull, StoreFailure."""
    head = read_head(reader)
    for row in head.queues:
        queue = queues.queue_of(QueueKey(row.topic, row.queue_id))
        queue.begin_at(row.min_offset)
        for first in range(row.min_offset, row.max_offset, PIECE_UNITS):
            count = min(PIECE_UNITS, row.max_offset - first)
            queue.append(np.frombuffer(reader.read(count * QUEUE_UNIT_BYTES), UNIT))
    for first in range(0, head.keys, PIECE_UNITS):
        count = min(PIECE_UNITS, head.keys - first)
        keys = np.frombuffer(reader.read(count * KEY.itemsize), KEY)
        if index is not None:
            index.put_keys(
                keys["hash"].astype(np.int64),
                keys["position"].astype(np.int64),
                keys["time_ms"].astype(np.int64),
            )
    return head
