"""Options of the view of messages, and messages as rows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from quorumlog.broker.message import KEYS, TAGS
from quorumlog.broker.record_batch import (
    Found,
    PropertyColumns,
    QueueKey,
    RecordBatch,
    RecordColumns,
    gather,
)
from quorumlog.errors import ConfigError
from quorumlog.spark.options import (
    COUNT,
    MESSAGES,
    VIEW,
    QueryOptions,
    check_columns,
    columns_of,
    fields_of,
    name_of,
    number_of,
    option,
    parsers_of,
    pattern_of,
    rows_of,
    schema_of,
    servers_of,
)

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    others: int
    """Of queues that are not named."""
    by_queue: Mapping[QueueKey, int] = field(default_factory=dict)

    def of(self, key: QueueKey) -> int:
        """An offset, EARLIEST_OFFSET or LATEST_OFFSET."""
        return self.by_queue.get(key, self.others)


EARLIEST, LATEST = QueueOffsets(EARLIEST_OFFSET), QueueOffsets(LATEST_OFFSET)


def parse_queue_offsets(name: str, text: str) -> QueueOffsets:
    """Raises ConfigError naming the option."""
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    wrong = ConfigError(
        f'option {name} must be earliest, latest or JSON {{"topic": {{"0": offset, ...}}, ...}} with -2'
        f" for the earliest and -1 for the latest, not {text!r}"
    )
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(stated, dict) or not stated:
        raise wrong
    found: dict[QueueKey, int] = {}
    for topic, queues in stated.items():
        if not isinstance(queues, dict) or not queues:
            raise wrong
        for queue, offset in queues.items():
            if not (queue.isascii() and queue.isdigit()) or type(offset) is not int or offset < -2:
                raise wrong
            found[QueueKey(topic, int(queue))] = offset
    others = EARLIEST_OFFSET if name.startswith("starting") else LATEST_OFFSET
    return QueueOffsets(others, found)


# ----------------------------------------------------------------
# Options of the view of messages, parsed and checked.


STREAM_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "consumerGroup")
COLUMNS = (
    "topic", "queue", "offset", "keys", "tags", "properties", "born_time", "store_time", "body",
    "physical_offset", "flag", "sys_flag", "reconsume_times",
)  # fmt: skip
DEFAULT_COLUMNS = COLUMNS[:9]


def _path(name: str, text: str) -> str:
    local = text.removeprefix("file://").removeprefix("file:")
    return os.path.abspath(local) if local else ""


def _topics(name: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class MessageOptions(QueryOptions):
    path: str = option("", path=_path)
    """Directory of a stopped store, readable at this path by every Spark worker."""
    servers: str = option("", servers=servers_of)
    """Addresses of brokers, of which the master is asked."""
    starting_offsets: QueueOffsets = option(EARLIEST, startingOffsets=parse_queue_offsets)
    ending_offsets: QueueOffsets = option(LATEST, endingOffsets=parse_queue_offsets)
    """Exclusive."""
    topics: tuple[str, ...] = option((), topic=_topics, subscribe=_topics)
    """Empty: all."""
    begin_ms: int = option(0, startingTimestamp=number_of(0, 2**62))
    end_ms: int = option(2**62, endingTimestamp=number_of(0, 2**62))
    """Stored then or before."""
    columns: tuple[str, ...] = option(DEFAULT_COLUMNS, columns=columns_of(COLUMNS))
    partition_records: int = option(1_000_000, maxRecordsPerPartition=COUNT)
    """Of a broker's queue."""
    topic_pattern: str = option("", subscribePattern=pattern_of)
    """A regular expression: topics whose whole name it matches; empty: `topics` counts."""
    consumer_group: str = option("", consumerGroup=name_of)
    """That a stream commits its progress as; empty: none."""

    def wants(self, topic: str) -> bool:
        if self.topic_pattern:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return not self.topics or topic in self.topics

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> MessageOptions:
        """Raises ConfigError naming the option."""
        fields = fields_of(options, parsers_of(cls), "of view messages", (VIEW,))
        parsed = cls(**fields)
        for end, offsets, time in (
            ("starting", "starting_offsets", "begin_ms"),
            ("ending", "ending_offsets", "end_ms"),
        ):
            if offsets in fields and time in fields:
                raise ConfigError(f"options {end}Offsets and {end}Timestamp exclude each other")
        if parsed.topics and parsed.topic_pattern:
            raise ConfigError("options topic and subscribePattern exclude each other; give one")
        if not parsed.topics and not parsed.topic_pattern:
            # As with Kafka's assign: queues that are named are what is asked for.
            named = [each for each in (parsed.starting_offsets, parsed.ending_offsets) if each.by_queue]
            topics = {topic for each in named for topic, _ in each.by_queue}
            parsed = replace(parsed, topics=tuple(sorted(topics)))
        if bool(parsed.path) == bool(parsed.servers):
            raise ConfigError(
                "view messages needs option path (the directory of a stopped store) or option servers"
                " (HOST:PORT,... of brokers), one of both"
            )
        return parsed


# ----------------------------------------------------------------
# Message records as Arrow columns, a batch at a time; nothing is done per message but one slice of its
# body.


COLUMN_TYPES: dict[str, DataType] = {
    "topic": StringType(),
    "queue": IntegerType(),
    "offset": LongType(),
    "keys": ArrayType(StringType(), containsNull=False),
    "tags": StringType(),
    "properties": MapType(StringType(), StringType(), valueContainsNull=False),
    "born_time": TimestampType(),
    "store_time": TimestampType(),
    "body": BinaryType(),
    "physical_offset": LongType(),
    "flag": IntegerType(),
    "sys_flag": IntegerType(),
    "reconsume_times": IntegerType(),
}
assert tuple(COLUMN_TYPES) == COLUMNS

# To the name of the element: Spark takes nothing that only looks alike.
_KEYS_TYPE = pa.list_(pa.field("element", pa.string(), nullable=False))
_MAP_TYPE = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))


def message_schema(columns: Sequence[str]) -> StructType:
    return schema_of(columns, COLUMN_TYPES, ("tags",))


def check_message_schema(schema: StructType) -> None:
    """Raises ConfigError unless it is made of our columns."""
    check_columns(schema, COLUMN_TYPES, f"view {MESSAGES}")


def _strings(data: Any, starts: Any, sizes: Any, valid: Any = None) -> pa.Array:
    pieces, _ = gather(data, starts, sizes)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [mask, pa.py_buffer(offsets), pa.py_buffer(pieces)]
    return pa.Array.from_buffers(pa.string(), len(sizes), buffers)


def _offsets_by_row(rows: Any, count: int) -> pa.Array:
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return pa.array(offsets)


def _tags(properties: PropertyColumns, count: int) -> pa.Array:
    found: Found = properties.find(TAGS)
    starts, sizes, valid = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, bool)
    starts[found.rows], sizes[found.rows], valid[found.rows] = found.starts, found.sizes, True
    return _strings(properties.data, starts, sizes, valid)


def _keys(properties: PropertyColumns, count: int) -> pa.Array:
    words = properties.split_words(properties.find(KEYS))
    values = _strings(properties.data, words.starts, words.sizes)
    return pa.ListArray.from_arrays(_offsets_by_row(words.rows, count), values, type=_KEYS_TYPE)


def _map(properties: PropertyColumns, count: int) -> pa.Array:
    names = _strings(properties.data, properties.name_starts, properties.name_sizes)
    values = _strings(properties.data, properties.value_starts, properties.value_sizes)
    offsets = _offsets_by_row(properties.property_rows, count)
    return pa.MapArray.from_arrays(offsets, names, values, type=_MAP_TYPE)


def _bodies(records: RecordBatch) -> pa.Array:
    columns, buffer = records.columns, records.buffer
    starts = columns.body_starts.tolist()
    stops = (columns.body_starts + columns.body_sizes).tolist()
    data = b"".join([buffer[a:b] for a, b in zip(starts, stops, strict=True)])
    offsets = np.zeros(len(records) + 1, np.int32)
    np.cumsum(columns.body_sizes, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(records), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _times(milliseconds: Any) -> pa.Array:
    return pa.array(milliseconds * 1000).cast(pa.timestamp("us", tz="UTC"))


_ENCODERS: dict[str, Callable[[RecordBatch, RecordColumns], pa.Array]] = {
    "topic": lambda _, each: _strings(each.data, each.topic_starts, each.topic_sizes),
    "queue": lambda _, each: pa.array(each.queue_ids, pa.int32()),
    "offset": lambda _, each: pa.array(each.queue_offsets),
    "keys": lambda records, _: _keys(records.properties, len(records)),
    "tags": lambda records, _: _tags(records.properties, len(records)),
    "properties": lambda records, _: _map(records.properties, len(records)),
    "born_time": lambda _, each: _times(each.born_times_ms),
    "store_time": lambda _, each: _times(each.store_times_ms),
    "body": lambda records, _: _bodies(records),
    "physical_offset": lambda _, each: pa.array(each.physical_offsets),
    "flag": lambda _, each: pa.array(each.flags, pa.int32()),
    "sys_flag": lambda _, each: pa.array(each.sys_flag.astype(np.int32)),
    "reconsume_times": lambda _, each: pa.array(each.reconsume_times, pa.int32()),
}


class MessageRows:
    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self._encoders = [_ENCODERS[name.lower()] for name in schema.fieldNames()]

    def encode(self, records: RecordBatch) -> pa.RecordBatch:
        columns = records.columns
        return rows_of([encode(records, columns) for encode in self._encoders], self._schema)
