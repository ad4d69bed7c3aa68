"""Message records as Arrow columns, a batch at a time; nothing is done per message but one slice of its
body."""

from __future__ import annotations

from collections.abc import Sequence
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
from quorumlog.broker.record_batch import Found, PropertyColumns, RecordBatch, gather
from quorumlog.errors import ConfigError
from quorumlog.spark.messages.message_options import COLUMNS
from quorumlog.spark.option_values import as_kafkas

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
    schema = StructType()
    for name in columns:
        schema = schema.add(name, COLUMN_TYPES[name], nullable=name == "tags")
    return schema


def check_message_schema(schema: StructType) -> None:
    """Raises ConfigError unless it is made of our columns."""
    for field in schema.fields:
        expected = COLUMN_TYPES.get(field.name.lower())
        if expected is None or field.dataType.simpleString() != expected.simpleString():
            ours = ", ".join(f"{n} {t.simpleString().upper()}" for n, t in COLUMN_TYPES.items())
            raise ConfigError(
                f".schema(...) has {field.name} {field.dataType.simpleString().upper()}; view messages"
                f" has {ours}{as_kafkas(field.name, COLUMN_TYPES) if expected is None else ''}"
            )


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


class MessageRows:
    def __init__(self, schema: StructType) -> None:
        self._names = [field.name for field in schema.fields]
        self._nullable = [field.nullable for field in schema.fields]

    def encode(self, records: RecordBatch) -> pa.RecordBatch:
        arrays = [self._column(name.lower(), records) for name in self._names]
        fields = [
            pa.field(name, array.type, nullable=nullable)
            for name, array, nullable in zip(self._names, arrays, self._nullable, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _column(self, name: str, records: RecordBatch) -> pa.Array:
        columns, count = records.columns, len(records)
        match name:
            case "topic":
                return _strings(columns.data, columns.topic_starts, columns.topic_sizes)
            case "queue":
                return pa.array(columns.queue_ids, pa.int32())
            case "offset":
                return pa.array(columns.queue_offsets)
            case "keys":
                return _keys(records.properties, count)
            case "tags":
                return _tags(records.properties, count)
            case "properties":
                return _map(records.properties, count)
            case "born_time":
                return _times(columns.born_times_ms)
            case "store_time":
                return _times(columns.store_times_ms)
            case "body":
                return _bodies(records)
            case "physical_offset":
                return pa.array(columns.physical_offsets)
            case "flag":
                return pa.array(columns.flags, pa.int32())
            case "sys_flag":
                return pa.array(columns.sys_flag.astype(np.int32))
            case _:
                assert name == "reconsume_times", name
                return pa.array(columns.reconsume_times, pa.int32())
