"""Dispatches stored messages into queues and index, and saves these."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from quorumlog.broker.config import QUEUE_UNIT_BYTES
from quorumlog.broker.message import SCHEDULE_TOPIC, TRANSACTION_BITS, RecordParts
from quorumlog.broker.record_batch import Int64Array, QueueKey, RecordBatch
from quorumlog.broker.store.commit_log import CommitLog
from quorumlog.broker.store.index import IndexService
from quorumlog.broker.store.log_files import LogRecords, records_below
from quorumlog.broker.store.queues import UNIT, ConsumeQueues, units_of
from quorumlog.errors import DiskFull, StoreFailure
from quorumlog.state_machine import SnapshotReader, SnapshotWriter

# ---------------------------------------------------------------- Dispatcher
# Records of the commit log go into the queues and the index, a batch at a time.

log = logging.getLogger("quorumlog.broker")


class QueueHole(Exception):
    """A message follows that is not the next one of its queue: units of it were lost."""

    def __init__(self, key: QueueKey, problem: str) -> None:
        super().__init__(f"{key.topic} queue {key.queue_id}: {problem}")


class Dispatcher:
    def __init__(
        self, queues: ConsumeQueues, index: IndexService | None, delays_ms: Sequence[int]
    ) -> None:
        """`delays_ms`: of the levels from 1 on."""
        self._queues = queues
        self._index = index
        self._delays_ms = np.array(delays_ms, np.int64)
        self.next_offsets: dict[QueueKey, int] | None = None
        """By dispatched messages, if a start compares: a crash may have left more units, or a part of
        one."""
        self.queues_restart = False
        """0 may come again: a Java broker numbers a topic anew that was deleted and made again, and its
        log holds the messages of before."""
        self.was_deleted: Callable[[str], bool] = lambda topic: False
        """And this topic was not made again."""
        self.last_time_ms = 0
        """Of the last record that was dispatched."""

    def dispatch(self, found: LogRecords) -> list[QueueKey]:
        """As `dispatch_at`."""
        return self.dispatch_at(found.records, found.records.starts + found.position)

    def dispatch_at(
        self, records: RecordBatch, positions: Int64Array, *, again: bool = True
    ) -> list[QueueKey]:
        """`positions`: of each record in the log. Returns the queues that have grown. Raises QueueHole,
        DiskFull, StoreFailure. `again`: some may have been dispatched before; False: then that is a
        QueueHole, too."""
        if not len(records):
            return []
        if records.lone is not None and self._is_next(records.queues[0][0], records.lone):
            return self._dispatch_next(records, positions)
        shown, shown_at = records, positions
        if not records.in_queue.all():
            rows = np.flatnonzero(records.in_queue)
            shown, shown_at = records.select(rows), positions[rows]
        columns = shown.columns
        codes = self._codes_of(shown)
        grown = []
        for key, rows in shown.queues:
            offsets = columns.queue_offsets[rows]
            alive_from = self._queues.alive_from
            if self.was_deleted(key.topic):
                alive_from[key] = int(shown_at[rows[-1]]) + 1
            elif self.queues_restart and not offsets.all():
                self._restart(key, offsets, shown_at[rows], shown.sizes[rows])
            if key in alive_from:
                rows = rows[shown_at[rows] >= alive_from[key]]
                offsets = columns.queue_offsets[rows]
                if not len(rows):
                    continue
            queue = self._queues.queue_of(key)
            first = int(offsets[0])
            may_begin = queue.min_offset == queue.max_offset and not queue.begin_is_known
            if first > queue.max_offset and may_begin and self._queues.begins_anywhere:
                queue.begin_at(first)
                self._queues.record_ends()
            skipped = max(queue.max_offset - first, 0)
            if skipped and not again:
                raise QueueHole(key, f"offset {first} follows where {queue.max_offset} is next")
            if first > queue.max_offset:
                raise QueueHole(key, f"{queue.max_offset} is missing")
            if not (offsets == np.arange(first, first + len(rows))).all():
                raise QueueHole(key, "its numbers are not in order")
            if self.next_offsets is not None:
                self.next_offsets[key] = int(offsets[-1]) + 1
            if skipped:
                held, rows = rows[:skipped], rows[skipped:]
                held_codes = None if self.next_offsets is None else codes[held]
                if not queue.names(first, shown_at[held], shown.sizes[held], held_codes):
                    place = f"{first} lies at {shown_at[held[0]]}"
                    raise QueueHole(key, f"{place}, and its unit names another message")
            if not len(rows):
                continue
            queue.begin_is_known = True
            queue.append(units_of(shown_at[rows], shown.sizes[rows], codes[rows]))
            grown.append(key)
        if self._index is not None:
            self._index.put(records, positions)
        self.last_time_ms = records.store_time_ms(-1)
        return grown

    def _is_next(self, key: QueueKey, lone: RecordParts) -> bool:
        """A single message goes after those of a queue that stands, and there is nothing else to it."""
        queue = self._queues.get(key)
        return (
            queue is not None
            and queue.begin_is_known
            and 0 < queue.max_offset == lone.queue_offset
            and not lone.sys_flag & TRANSACTION_BITS
            and self.next_offsets is None
            and key.topic != SCHEDULE_TOPIC
            and key not in self._queues.alive_from
            and not self.was_deleted(key.topic)
        )

    def _dispatch_next(self, records: RecordBatch, positions: Int64Array) -> list[QueueKey]:
        ((key, _),) = records.queues
        unit = (positions[0], records.sizes[0], records.tags_codes[0])
        self._queues.queue_of(key).append(np.array([unit], UNIT))
        if self._index is not None:
            self._index.put(records, positions)
        self.last_time_ms = records.store_time_ms(0)
        return [key]

    def _restart(
        self, key: QueueKey, offsets: Int64Array, positions: Int64Array, sizes: Int64Array
    ) -> None:
        """Where 0 comes again. Raises StoreFailure."""
        queue = self._queues.get(key)
        last = int(np.flatnonzero(offsets == 0)[-1])
        row = slice(last, last + 1)
        is_other = bool(
            queue and queue.max_offset > 0 and not queue.names(0, positions[row], sizes[row])
        )
        if queue and is_other:
            queue.restart()
        if is_other or last:
            self._queues.alive_from[key] = int(positions[last])
            log.warning(
                "%s queue %d begins with 0 again at %d of the commit log: its topic was deleted and made"
                " again, and its earlier messages are not shown",
                *key,
                positions[last],
            )

    def _codes_of(self, records: RecordBatch) -> Int64Array:
        """Those of their tags; of delayed messages when they are due, as RocketMQ has it: its
        ScheduleMessageService goes by them and does not look into the log."""
        codes = records.tags_codes
        delayed = [rows for key, rows in records.queues if key.topic == SCHEDULE_TOPIC]
        if delayed:
            rows = np.concatenate(delayed)
            levels = np.minimum(records.delay_levels[rows], len(self._delays_ms))
            rows, levels = rows[levels > 0], levels[levels > 0]
            codes = codes.copy()
            codes[rows] = records.columns.store_times_ms[rows] + self._delays_ms[levels - 1]
        return codes


class ReputMessageService:
    """Follows the commit log up to its confirm offset, and dispatches. `run_once` from one thread."""

    interval_ms = 50
    """Where nothing wakes it."""

    def __init__(self, message_log: CommitLog, dispatcher: Dispatcher, position: int) -> None:
        self.reput_from_offset = position
        self.dispatched: Callable[[list[QueueKey]], None] = lambda grown: None
        self._log = message_log
        self._dispatcher = dispatcher
        self._is_short = False

    @property
    def behind_bytes(self) -> int:
        return max(self._log.confirm_offset - self.reput_from_offset, 0)

    def run_once(self) -> None:
        """Raises StoreFailure."""
        while self.reput_from_offset < self._log.confirm_offset:
            found = self._next()
            try:
                grown = self._dispatcher.dispatch(found)
            except DiskFull as error:
                # Nothing is lost: it lies in the commit log, and is dispatched when there is space.
                if not self._is_short:
                    log.warning("%s: queues wait for space", error)
                self._is_short = True
                return
            self._is_short = False
            self.reput_from_offset = found.next_position
            if grown:
                self.dispatched(grown)

    def _next(self) -> LogRecords:
        position, stop = self.reput_from_offset, self._log.confirm_offset
        found = self._log.take_recent(position)
        if found is None:
            found = self._log.read(position, stop)
        if found is None:
            raise StoreFailure(f"there is no record at {position} of the commit log, below {stop}")
        part = records_below(found, stop)
        assert part is not None, (position, stop)
        return part


# ----------------------------------------------------------------
# What the state machine of messages is saved as:
#
#     head    4 bytes of length, msgpack: end position, last time, queues, number of keys
#     queues  the units of each in the order of the head, 20 bytes each
#     keys    hash 8, position 8, time 8 of each entry of the index, oldest first

MESSAGES = "messages"
PIECE_UNITS = 50_000
KEY = np.dtype([("hash", ">i8"), ("position", ">i8"), ("time_ms", ">i8")])


class QueueRange(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


class DispatchHead(msgspec.Struct, frozen=True, array_like=True):
    end_position: int
    """After the last record that was dispatched."""
    last_time_ms: int
    """Its STORETIMESTAMP."""
    queues: list[QueueRange]
    keys: int = 0


def save_queues(
    writer: SnapshotWriter,
    end_position: int,
    last_time_ms: int,
    queues: ConsumeQueues,
    index: IndexService | None,
) -> Iterator[None]:
    """The state at the first slice: messages dispatched later come after it. Nothing may be dropped
    meanwhile."""
    files = [] if index is None else [(file, file.count) for file in index.files]
    saved = [(queue, queue.min_offset, queue.max_offset, key) for key, queue in queues.items()]
    rows = [QueueRange(*key, begin, end) for _, begin, end, key in saved]
    head = DispatchHead(end_position, last_time_ms, rows, sum(count - 1 for _, count in files))
    data = msgspec.msgpack.encode(head)
    writer.write(len(data).to_bytes(4, "big") + data)
    for queue, begin, end, key in saved:
        for first in range(begin, end, PIECE_UNITS):
            stop = min(first + PIECE_UNITS, end)
            units = queue.units(first, stop)
            assert len(units) == stop - first, (key, first, len(units))
            writer.write(units.tobytes())
            yield
    for file, count in files:
        for first in range(1, count, PIECE_UNITS):
            stop = min(first + PIECE_UNITS, count)
            keys = np.empty(stop - first, KEY)
            keys["hash"], keys["position"], keys["time_ms"] = file.keys(first, stop)
            writer.write(keys.tobytes())
            yield


def read_head(reader: SnapshotReader) -> DispatchHead:
    size_bytes = int.from_bytes(reader.read(4), "big")
    return msgspec.msgpack.decode(reader.read(size_bytes), type=DispatchHead)


def load_queues(
    reader: SnapshotReader, queues: ConsumeQueues, index: IndexService | None
) -> DispatchHead:
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
            hashes, positions, times = (keys[name].astype(np.int64) for name in KEY.names or ())
            index.put_keys(hashes, positions, times)
    return head
