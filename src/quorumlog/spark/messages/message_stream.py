"""The view of messages as Spark calls it: a batch, and micro-batches."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn
from zlib import crc32

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quorumlog.broker.client.blocking import BrokerAdmin, BrokerClient
from quorumlog.broker.client.broker_calls import QueueInfo
from quorumlog.broker.errors import QueueOffsetOutOfRange
from quorumlog.broker.group_commands import is_system_topic
from quorumlog.errors import ConfigError
from quorumlog.spark.batch_reader import times_of
from quorumlog.spark.messages.message_options import (
    EARLIEST,
    LATEST,
    MessageOptions,
    MessageRows,
    check_message_schema,
)
from quorumlog.spark.messages.message_sources import (
    BrokerSource,
    MessagePartition,
    SmallQueues,
    pieces,
    source_of,
)
from quorumlog.spark.short_errors import EXPECTED, hide_traceback, in_short
from quorumlog.spark.streaming import default_limit, limited, polls


def message_reader(options: MessageOptions, schema: StructType) -> DataSourceReader:
    return (PushdownMessageReader if options.pushdown else MessageReader)(options, schema)


class MessageReader(DataSourceReader):
    def __init__(self, options: MessageOptions, schema: StructType) -> None:
        """Raises ConfigError if `schema` is not made of our columns."""
        check_message_schema(schema)
        self.options = options
        self._schema = schema

    @in_short
    def partitions(self) -> list[InputPartition]:
        return [*source_of(self.options).partitions()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_messages(self.options, self._schema, partition)


def read_messages(
    options: MessageOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """In a task. Raises the source's errors."""
    if not isinstance(partition, MessagePartition | SmallQueues):
        # Spark puts an empty partition of its own in place of an empty plan.
        assert partition.value is None, f"a partition of another source: {partition}"
        return
    rows, source = MessageRows(schema), source_of(options)
    try:
        for part in partition.parts if isinstance(partition, SmallQueues) else (partition,):
            for records in source.read(part):
                yield rows.encode(records)
    except EXPECTED:
        hide_traceback()
        raise


class PushdownMessageReader(MessageReader):
    """Uses conditions on `topic` and `store_time` to select what to read. Spark applies them again. A
    class of its own, since Spark refuses every reader that overrides `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for each in filters:
            match each:
                case EqualTo(("topic",), str(topic)):
                    self._keep_topics((topic,))
                case In(("topic",), topics):
                    self._keep_topics(tuple(str(topic) for topic in topics))
                case _:
                    first_ms, last_ms = times_of(each, "store_time") or (None, None)
                    options = self.options
                    begin_ms = options.begin_ms if first_ms is None else max(options.begin_ms, first_ms)
                    end_ms = options.end_ms if last_ms is None else min(options.end_ms, last_ms + 1)
                    self.options = replace(options, begin_ms=begin_ms, end_ms=end_ms)
        return filters

    def _keep_topics(self, topics: tuple[str, ...]) -> None:
        before = self.options.topics
        kept = tuple(t for t in topics if t in before) if before else topics
        self.options = replace(self.options, topics=kept or ("",))


# ----------------------------------------------------------------
# MessageStreamReader: micro-batches of a broker's queues.
#
# Offsets have Kafka's form, the next offset by topic and queue. As with entries (`group_stream`), a
# query begins with an empty micro-batch, and what a micro-batch ends with has another form than an
# initial offset. It also says what the message before each offset is, so that a checkpoint knows
# its store:
#
#     initial     {"orders": {"0": 12}}
#     begun       {"queues": {"orders": {"0": 12}}, "records": {"orders": {"0": CRC-32 of record 11}}}
#
# A queue that is new begins at its earliest message, with a micro-batch that has none of it yet.


_logger = logging.getLogger(__name__)

Queue = tuple[str, int]
"""Topic and queue id."""
SMALL_RECORDS = 5_000
"""A task has so many messages at least, where there are so many."""


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: MessageOptions, schema: StructType) -> None:
        """Raises ConfigError."""
        check_message_schema(schema)
        if not options.servers:
            raise ConfigError(
                "a stream of messages reads from running brokers (option servers); a directory (option"
                " path) does not grow: read it with spark.read"
            )
        if options.ending_offsets != LATEST or options.end_ms < 2**62:
            raise ConfigError("options endingOffsets and endingTimestamp are for spark.read")
        self._options = options
        self._schema = schema
        self._source = BrokerSource(options)
        self._target: dict[Queue, int] | None = None
        self._ends: dict[Queue, int] | None = None
        self._trusted: dict[str, Any] | None = None
        """An offset that this process has made, or checked."""
        self._batched_at = time.monotonic()

    # ---------------------------------------------------------------- offsets

    @in_short
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raises QueueOffsetOutOfRange, ConfigError as a batch query does."""
        with self._source.connect() as broker:
            offsets = {}
            for queue, info in self._queues(broker).items():
                first, stop = self._source.range_of(info)
                if self._options.begin_ms and first < stop:
                    first = min(broker.offset_at(*queue, self._options.begin_ms), stop)
                offsets[queue] = first
        return _nested(offsets)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return default_limit(self._options)

    @in_short
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with self._source.connect() as broker:
            self._target = {queue: info.max_offset for queue, info in self._queues(broker).items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._ends is None else {"queues": _nested(self._ends)}

    @in_short
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Raises QueueOffsetOutOfRange if a queue is deleted, ends below `start` or is of another
        store."""
        with self._source.connect() as broker:
            if not _has_begun(start):
                return self._marked(broker, _flat(start), {})
            self._check(broker, start)
            for _ in polls(only_once=self._target is not None):
                ends = self._next(start, self._queues(broker), limit)
                if ends != _flat(start["queues"]):
                    self._batched_at = time.monotonic()
                    return self._marked(broker, ends, start)
        return start

    def _next(
        self, start: dict[str, Any], queues: dict[Queue, QueueInfo], limit: ReadLimit
    ) -> dict[Queue, int]:
        """Where the micro-batch ends; a queue that is new stands at its earliest."""
        target = self._target
        begun = self._still_there(_flat(start["queues"]), queues)
        known = (
            queues if target is None else {queue: queues[queue] for queue in queues if queue in target}
        )
        fresh = {queue: info.min_offset for queue, info in known.items() if queue not in begun}
        self._ends = {queue: info.max_offset for queue, info in queues.items()}
        counts: dict[Queue, int] = {}
        for queue, offset in begun.items():
            stop = queues[queue].max_offset
            if target is not None:
                stop = min(stop, target.get(queue, offset))
            counts[queue] = max(stop - offset, 0)
        if not isinstance(limit, ReadAllAvailable):
            counts = limited(counts, self._options, self._batched_at, is_last=target is not None)
        return {**{queue: begun[queue] + count for queue, count in counts.items()}, **fresh}

    def _still_there(self, begun: dict[Queue, int], queues: dict[Queue, QueueInfo]) -> dict[Queue, int]:
        """Raises QueueOffsetOutOfRange for the others, unless the query goes on without them."""
        for queue, offset in begun.items():
            info = queues.get(queue)
            if info is None:
                self._gone(queue, offset)
            elif info.max_offset < offset:
                _another_store(queue, offset, f"ends at {info.max_offset}")
        return {queue: offset for queue, offset in begun.items() if queue in queues}

    def _gone(self, queue: Queue, offset: int) -> None:
        """Raises QueueOffsetOutOfRange unless the query goes on without it."""
        gone = f"queue {queue[1]} of topic {queue[0]} is gone, and is read up to {offset}"
        if self._options.fail_on_data_loss:
            raise QueueOffsetOutOfRange(f"{gone}. Set failOnDataLoss=false to continue without it")
        _logger.warning("%s; failOnDataLoss=false, continuing without it", gone)

    def _check(self, broker: BrokerClient, start: dict[str, Any]) -> None:
        """That the messages before `start` are those that were read: once a process."""
        if start == self._trusted:
            return
        offsets, records = _flat(start["queues"]), _flat(start["records"])
        queues = self._queues(broker)
        for queue, offset in offsets.items():
            info, expected = queues.get(queue), records.get(queue)
            if info is None or expected is None or offset <= info.min_offset:
                continue
            if info.max_offset < offset:
                _another_store(queue, offset, f"ends at {info.max_offset}")
            if (found := _record_before(broker, queue, offset)) not in (expected, None):
                _another_store(queue, offset, f"has another message before it ({found}, not {expected})")
        self._trusted = start

    def _marked(
        self, broker: BrokerClient, ends: dict[Queue, int], start: dict[str, Any]
    ) -> dict[str, Any]:
        """`ends` as an offset; of queues that have not moved since `start` the record is known."""
        before = _flat(start["queues"]) if start else {}
        records = _flat(start["records"]) if start else {}
        marked = {}
        for queue, offset in ends.items():
            if before.get(queue) != offset:
                found = _record_before(broker, queue, offset) if offset else None
            else:
                found = records.get(queue)
            if found is not None:
                marked[queue] = found
        self._trusted = {"queues": _nested(ends), "records": _nested(marked)}
        return self._trusted

    def _queues(self, broker: BrokerClient) -> dict[Queue, QueueInfo]:
        """Those of the broker's own topics only if they are named."""
        named = self._options.topics
        return {
            (info.topic, info.queue_id): info
            for info in broker.queues()
            if self._options.wants(info.topic)
            and (info.topic in named or not is_system_topic(info.topic))
        }

    # ---------------------------------------------------------------- micro-batches

    @in_short
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raises QueueOffsetOutOfRange if some messages are deleted and `failOnDataLoss` is true."""
        if not _has_begun(start):
            return []  # where the query begins is all that its first micro-batch says
        found: list[MessagePartition] = []
        with self._source.connect() as broker:
            self._check(broker, end)
            queues, begun = self._queues(broker), _flat(start["queues"])
            for queue, stop in _flat(end["queues"]).items():
                first = begun.get(queue, stop)
                if first == stop:
                    continue
                if queue not in queues:
                    self._gone(queue, first)
                    continue
                low, high = queues[queue].min_offset, queues[queue].max_offset
                if first < min(low, stop):
                    what = f"queue {queue[1]} of topic {queue[0]}"
                    self._source.lost(what, first, min(low, stop), low, high)
                    first = min(low, stop)
                found += pieces(first, stop, self._options.partition_records, *queue)
        return _tasks(found)

    @in_short
    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything below `end`: known one micro-batch late, and at a restart."""
        group = self._options.consumer_group
        if group and _has_begun(end):
            options = self._options
            with BrokerAdmin(
                options.servers,
                timeout_ms=options.timeout_ms,
                tls=options.tls,
                user=options.as_user,
            ) as admin:
                admin.create_group(group)
                admin.commit(group, _flat(end["queues"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The range is given by the offsets here, not by the options."""
        options = replace(
            self._options, starting_offsets=EARLIEST, ending_offsets=LATEST, begin_ms=0, end_ms=2**62
        )
        return read_messages(options, self._schema, partition)


def _tasks(parts: Sequence[MessagePartition]) -> list[InputPartition]:
    """Small ranges share a task, but for one a core."""
    total = sum(part.stop - part.first for part in parts)
    least = min(SMALL_RECORDS, -(-total // (os.cpu_count() or 1)))
    tasks: list[InputPartition] = []
    waiting: list[MessagePartition] = []
    count = 0
    for part in parts:
        waiting.append(part)
        count += part.stop - part.first
        if count >= least:
            tasks.append(SmallQueues(tuple(waiting)))
            waiting, count = [], 0
    if waiting:
        tasks.append(SmallQueues(tuple(waiting)))
    return tasks


def _record_before(broker: BrokerClient, queue: Queue, offset: int) -> int | None:
    """CRC-32 of the record of the message before `offset`; None: it is gone."""
    try:
        records = broker.pull(*queue, offset - 1, most_messages=1).records
    except QueueOffsetOutOfRange:
        return None
    if not len(records):
        return None
    start, size = int(records.starts[0]), int(records.sizes[0])
    return crc32(records.buffer[start : start + size])


def _another_store(queue: Queue, offset: int, what: str) -> NoReturn:
    raise QueueOffsetOutOfRange(
        f"the checkpoint continues at offset {offset} of queue {queue[1]} of topic {queue[0]}, which"
        f" {what}: this is another store, or one that was restored to an earlier point. Begin with a new"
        " checkpoint"
    )


def _has_begun(offset: dict[str, Any]) -> bool:
    return set(offset) == {"queues", "records"} and all(
        isinstance(queues, dict) for topics in offset.values() for queues in topics.values()
    )


def _nested(flat: dict[Queue, int]) -> dict[str, dict[str, int]]:
    """In order of topic and queue, so that the same offset is always the same text."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, queue_id), offset in sorted(flat.items()):
        nested.setdefault(topic, {})[str(queue_id)] = offset
    return nested


def _flat(nested: dict[str, dict[str, int]]) -> dict[Queue, int]:
    return {
        (topic, int(queue_id)): int(offset)
        for topic, queues in nested.items()
        for queue_id, offset in queues.items()
    }
