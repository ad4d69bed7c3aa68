"""StoreReader: messages by queue offset, key, time and position, up to the confirmed offset. Any
thread."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from quorumlog.broker.errors import NoSuchMessage, QueueOffsetOutOfRange, UnknownTopic
from quorumlog.broker.message import LEAST_RECORD_BYTES, StoredMessage
from quorumlog.broker.record_batch import QueueKey, RecordBatch, ScanStop, scan_records
from quorumlog.broker.store.index import IndexService
from quorumlog.broker.store.log_files import LogRecords, MessageLog, damaged, verified
from quorumlog.broker.store.queues import ConsumeQueue, ConsumeQueues, Units
from quorumlog.errors import BadRequest
from quorumlog.log_state.log_state import Resets, counted_ms

MIB = 1 << 20
_DENSE = 4
"""Messages of a queue are read with what lies between them if that is less than so many times them."""


class Pulled(NamedTuple):
    records: RecordBatch
    """Without gaps."""
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class StoreReader:
    _log: MessageLog
    _queues: ConsumeQueues
    _index: IndexService | None
    _has_queue: Callable[[QueueKey], bool]
    """There is such a queue, though nothing may have been sent to it yet."""
    _stored_offset: Callable[[QueueKey], int]
    """After its last message that was written, seen or not."""
    _begin_of: Callable[[QueueKey], int | None] = lambda key: 0
    """Nothing below is shown; None: nothing of it."""
    _resets: Callable[[], Resets] = tuple
    """Of the clock, by position."""

    def queue(self, key: QueueKey) -> ConsumeQueue | None:
        """None of one that nothing was sent to yet. Raises UnknownTopic."""
        queue = self._queues.get(key)
        if (queue is None and not self._has_queue(key)) or self._begin_of(key) is None:
            raise UnknownTopic(self._unknown(key))
        return queue

    def _unknown(self, key: QueueKey) -> str:
        first = QueueKey(key.topic, 0)
        is_held = any(each.topic == key.topic for each, _ in self._queues.items())
        if (is_held or self._has_queue(first)) and self._begin_of(first) is not None:
            return f"topic {key.topic} has no queue {key.queue_id}; quorumlog broker status shows them"
        return f"the broker has no topic {key.topic}; quorumlog broker status lists its topics"

    def pull(
        self, key: QueueKey, offset: int, most_messages: int = 1024, most_bytes: int = MIB
    ) -> Pulled:
        """Messages from this number on; none at the end of the queue. One at least, however large.
        Raises QueueOffsetOutOfRange, UnknownTopic, MessageDamaged."""
        queue = self.queue(key)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        low = max(low, self._begin_of(key) or 0)
        high = max(low, high)
        # What is acknowledged is shown a moment later: it is not lost for a consumer that asks before.
        if not low <= offset <= max(high, self._stored_offset(key)):
            raise QueueOffsetOutOfRange(
                f"queue {key.queue_id} of topic {key.topic} has messages {low} to {high - 1}, not"
                f" {offset}",
                min_offset=low,
                max_offset=high,
            )
        if queue is None or offset >= high:
            return Pulled(RecordBatch.contiguous(b"", []), offset, low, high)
        units = queue.units(offset, min(offset + most_messages, high))
        if len(units):
            sizes = np.cumsum(units["size"].astype(np.int64))
            count = max(int(np.searchsorted(sizes, most_bytes, side="right")), 1)
            units = units[:count]
        records = self._records_of(units)
        return Pulled(records, offset + len(units), low, high)

    def _records_of(self, units: Units) -> RecordBatch:
        if not len(units):
            return RecordBatch.contiguous(b"", [])
        positions = units["position"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        ends = positions + sizes
        # Pieces of the log that are read in one go: with what lies between, where that is little.
        gaps = positions[1:] - ends[:-1]
        cuts = np.flatnonzero((gaps > _DENSE * sizes[1:]) & (gaps > 4096)) + 1
        firsts = [0, *cuts.tolist()]
        stops = [*cuts.tolist(), len(units)]
        pieces: list[memoryview] = []
        for first, stop in zip(firsts, stops, strict=True):
            base = int(positions[first])
            data = memoryview(self._read(base, int(ends[stop - 1]) - base))
            if (gaps[first : stop - 1] == 0).all():
                pieces.append(data)
            else:
                at = (positions[first:stop] - base).tolist()
                until = (ends[first:stop] - base).tolist()
                pieces += [data[a:b] for a, b in zip(at, until, strict=True)]
        buffer = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        return RecordBatch.contiguous(buffer, sizes)

    def _read(self, position: int, size_bytes: int) -> bytes:
        try:
            data = self._log.read_bytes(position, size_bytes)
        except OSError as error:
            raise damaged("the commit log", position, error) from error
        if len(data) != size_bytes:
            raise damaged("the commit log", position, "is not there any more")
        return data

    # ---------------------------------------------------------------- by key and time

    def query(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = sys.maxsize,
        most: int = 64,
        most_bytes: int = sys.maxsize,
    ) -> RecordBatch:
        """The newest first; one at least, however large. Raises BadRequest."""
        if self._index is None:
            raise BadRequest("this store keeps no index: message_index_enable is off")
        positions = self._index.find(topic, key, 4 * most + 64, begin_ms, end_ms)
        pieces: list[bytes] = []
        for position in dict.fromkeys(positions):
            if not self._log.min_offset <= position < self._log.confirm_offset:
                continue
            found = self._record_at(position)
            (message,) = found.messages()
            words = {message.properties.get("UNIQ_KEY", ""), *message.keys}
            in_time = begin_ms <= message.store_time_ms <= end_ms
            wanted = message.topic == topic and key in words and in_time and len(pieces) < most
            if wanted and self._is_shown(message):
                most_bytes -= len(found.buffer)
                if most_bytes < 0 and pieces:
                    break
                pieces.append(bytes(found.buffer))
        return RecordBatch.contiguous(b"".join(pieces), list(map(len, pieces)))

    def _is_shown(self, message: StoredMessage) -> bool:
        begin = self._begin_of(QueueKey(message.topic, message.queue_id))
        return begin is not None and message.queue_offset >= begin

    def at_position(self, position: int) -> RecordBatch:
        """The message that begins there. Raises NoSuchMessage, also for one that no topic shows (any
        more)."""
        found = self._record_at(position)
        (message,) = found.messages()
        if not self._is_shown(message):
            raise NoSuchMessage(
                f"the message at {position} of the commit log is older than topic {message.topic} keeps,"
                " or there is no such topic (any more)"
            )
        return found

    def _record_at(self, position: int) -> RecordBatch:
        if self._log.min_offset <= position < self._log.confirm_offset:
            head = self._log.read_bytes(position, LEAST_RECORD_BYTES)
            scan = scan_records(head)
            size = scan.wanted_bytes if scan.stop is ScanStop.BYTES else 0
            if len(scan.sizes):
                size = int(scan.sizes[0])
            if size:
                data = self._read(position, size)
                records = RecordBatch.contiguous(data, [size])
                good, _ = verified(LogRecords(position, records, position + size), check_bodies=True)
                if good:
                    return records
        raise NoSuchMessage(f"no message begins at {position} of the commit log")

    def offset_at(self, key: QueueKey, time_ms: int) -> int:
        """Of the first message that counts as stored at this time or later; the end if there is none.
        Raises UnknownTopic."""
        queue = self.queue(key)
        if queue is None:
            return 0
        low, high = max(queue.min_offset, self._begin_of(key) or 0), queue.max_offset
        resets = self._resets()

        def stored_ms(offset: int) -> int:
            units = queue.units(offset, offset + 1)
            record_ms = int(self._records_of(units).columns.store_times_ms[0])
            return counted_ms(int(units["position"][0]), record_ms, resets)

        return low + bisect_left(range(low, high), time_ms, key=stored_ms)
