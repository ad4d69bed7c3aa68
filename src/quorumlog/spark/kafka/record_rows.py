"""Record batches of Kafka's producers as Arrow columns. Python takes one step per record, through its
length; everything else is done for the records of many batches at once."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from quorumlog.append_times import AppendTimes
from quorumlog.batch import EntryBatch
from quorumlog.config import MIB
from quorumlog.entry_header import Buffer
from quorumlog.errors import LedgerError
from quorumlog.header_array import Int64Array, field_of
from quorumlog.kafka.places import PREFIX_BYTES, BatchPlaces
from quorumlog.spark.options import rows_of, schema_of

COLUMN_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestamptype": IntegerType(),
    "headers": ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
}
"""The columns of Spark's own Kafka source."""
COLUMNS = tuple(COLUMN_TYPES)
DEFAULT_COLUMNS = COLUMNS[:-1]
_NULLABLE = ("key", "value", "headers")
_SPELLED = {"timestamptype": "timestampType"}

MOST_UNPACKED_BYTES = 64 * MIB
"""Most bytes of the unpacked records of one batch."""
LEAST_RECORD_BYTES = 7
"""One byte each: length, attributes, time, offset, key (null), value (null), number of headers."""
FEW_ROWS = 64
"""The headers of so few records are read one by one, as numpy is slower there."""
MOST_TIME_MS = (1 << 62) // 1000
"""Of the first time of a batch and of each difference to it: their sum in microseconds is an int64."""
_HEADER = struct.Struct(">21xh4xq22xi")
"""Attributes, first timestamp and record count of a batch; the records follow."""
_COMPRESSION, _APPEND_TIME = 0x07, 0x08
_PLAIN, _SNAPPY = 0, 2
_STREAMED = {1: "gzip", 3: "lz4", 4: "zstd"}
_FRAMED_SNAPPY = b"\x82SNAPPY\0"
"""Snappy as written by Java clients: this magic, two versions, then blocks, each after its length."""
_FRAMED_FROM = 16
_PADDING = bytes(16)
"""Padding after the records, so that a varint that is cut off can be read, and then refused."""


class UnreadableRecords(LedgerError):
    """A batch's content is not valid records; neither producer nor broker has checked it."""


def kafka_schema(columns: tuple[str, ...]) -> StructType:
    spelled = [_SPELLED.get(name, name) for name in columns]
    return schema_of(spelled, COLUMN_TYPES, _NULLABLE)


class _Batch(NamedTuple):
    data: Buffer
    """The unpacked records."""
    records: int
    first_time_ms: int
    time_type: int
    base: int
    """Offset of the first record."""
    number: int
    """Index of the topic and partition."""


class KafkaRows:
    """The encoder of one task: see `Encoder`."""

    needs_bodies, has_times = True, False

    def __init__(self, schema: StructType, places: BatchPlaces, batch_bytes: int) -> None:
        """Rows are returned in pieces of about `batch_bytes`, of at least one record batch each."""
        self._schema = schema
        self._places = places
        self._batch_bytes = batch_bytes
        topics = list(dict.fromkeys(topic for topic, _ in places.names))
        self._topics = pa.array(topics, pa.string())
        numbers = {topic: number for number, topic in enumerate(topics)}
        self._topic_of = np.array([numbers[topic] for topic, _ in places.names], np.int32)
        self._partition_of = np.array([partition for _, partition in places.names], np.int32)

    def rows(self, batch: EntryBatch, times: AppendTimes | None = None) -> Iterator[pa.RecordBatch]:
        """Raises UnreadableRecords."""
        places, positions = self._places, field_of(batch.words(), "pos").astype(np.int64)
        at = np.searchsorted(places.positions, positions)
        known = np.append(places.positions, -1)[at] == positions
        found: list[_Batch] = []
        size_bytes = 0
        for entry, place in zip(np.flatnonzero(known).tolist(), at[known].tolist(), strict=True):
            base, number = int(places.bases[place]), int(places.partitions[place])
            data = batch.body(entry)[PREFIX_BYTES:]
            attributes, first_ms, count = _HEADER.unpack_from(data)
            try:
                records = _unpacked(data[_HEADER.size :], attributes & _COMPRESSION)
            except (ValueError, OSError, struct.error, pa.ArrowException) as error:
                raise self._unreadable(base, number, str(error)) from None
            if count * LEAST_RECORD_BYTES > len(records):
                raise self._unreadable(base, number, f"it is too short for {count} records")
            time_type = int(bool(attributes & _APPEND_TIME))
            found.append(_Batch(records, count, first_ms, time_type, base, number))
            size_bytes += len(records)
            if size_bytes >= self._batch_bytes:
                yield self._encoded(found)
                found, size_bytes = [], 0
        if found:
            yield self._encoded(found)

    def _encoded(self, batches: list[_Batch]) -> pa.RecordBatch:
        counts = np.array([each.records for each in batches])
        try:
            columns = _RecordColumns(batches, counts)
            arrays = [self._column(name.lower(), batches, columns) for name in self._schema.names]
        except _Malformed as error:
            batch = batches[error.number]
            raise self._unreadable(
                batch.base,
                batch.number,
                "a record is cut off, too short or too long, or its time is out of range",
            ) from None
        return rows_of(arrays, self._schema)

    def _column(self, name: str, batches: list[_Batch], columns: _RecordColumns) -> pa.Array:
        def spread(values: Iterable[int]) -> Any:
            return np.repeat(np.array([*values]), columns.counts)

        if name in ("key", "value", "headers"):
            return {"key": columns.keys, "value": columns.values, "headers": columns.headers}[name]()
        if name == "topic":
            numbers = self._topic_of[spread(each.number for each in batches)]
            return pa.DictionaryArray.from_arrays(numbers, self._topics).cast(pa.string())
        if name == "partition":
            return pa.array(self._partition_of[spread(each.number for each in batches)])
        if name == "offset":
            return pa.array(spread(each.base for each in batches) + columns.offset_deltas)
        if name == "timestamp":
            milliseconds = columns.times_after(spread(each.first_time_ms for each in batches))
            return pa.array(milliseconds * 1000).view(pa.timestamp("us", tz="UTC"))
        assert name == "timestamptype", name
        return pa.array(spread(each.time_type for each in batches).astype(np.int32))

    def _unreadable(self, base: int, number: int, problem: str) -> UnreadableRecords:
        topic, partition = self._places.names[number]
        return UnreadableRecords(
            f"the batch at offset {base} of topic {topic}, partition {partition}, cannot be"
            f" read: {problem}; begin after it"
            " (startingOffsets, startingTimestamp)"
        )


def _unpacked(records: memoryview, compression: int) -> Buffer:
    """The batch's records, decompressed. Raises ValueError, OSError, struct.error or Arrow's
    exceptions if they are invalid."""
    if compression == _PLAIN:
        return records
    if compression == _SNAPPY:
        return _unpacked_snappy(records)
    if compression not in _STREAMED:
        raise ValueError(f"compression type {compression} is not known")
    with pa.CompressedInputStream(pa.BufferReader(records), _STREAMED[compression]) as stream:
        data: bytes = stream.read(MOST_UNPACKED_BYTES + 1)
    return _bounded(data)


def _unpacked_snappy(records: memoryview) -> Buffer:
    if records[: len(_FRAMED_SNAPPY)] != _FRAMED_SNAPPY:
        return _snappy_block(records, MOST_UNPACKED_BYTES)
    blocks: list[Buffer] = []
    at, left_bytes = _FRAMED_FROM, MOST_UNPACKED_BYTES
    while at < len(records):
        (size,) = struct.unpack_from(">i", records, at)
        at += 4
        if not 0 <= size <= len(records) - at:
            raise ValueError("a block of snappy is cut off")
        blocks.append(_snappy_block(records[at : at + size], left_bytes))
        left_bytes -= len(blocks[-1])
        at += size
    return b"".join(blocks)


def _snappy_block(block: memoryview, most_bytes: int) -> Buffer:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > most_bytes:
        raise ValueError(f"it has more than {MOST_UNPACKED_BYTES} bytes")
    data: bytes = pa.decompress(block, size, "snappy", asbytes=True)
    return data


def _bounded(data: bytes) -> bytes:
    if len(data) > MOST_UNPACKED_BYTES:
        raise ValueError(f"it has more than {MOST_UNPACKED_BYTES} bytes")
    return data


# ---------------------------------------------------------------- many records at once


class _Malformed(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        """Number of the batch."""


class _Pieces(NamedTuple):
    starts: Int64Array
    sizes: Int64Array
    """Size of each; -1: null."""


class _RecordColumns:
    """Raises _Malformed if a record does not end at its length."""

    def __init__(self, batches: list[_Batch], counts: Int64Array) -> None:
        whole = b"".join([*(each.data for each in batches), _PADDING])
        starts, stops = _record_bounds(whole, batches)
        self._whole = whole
        self._data = np.frombuffer(whole, np.uint8)
        self._buffer = pa.py_buffer(whole)
        self.counts = counts
        self._stops = stops
        at = starts + 1  # attributes of a record, of which none is used
        self.time_deltas, at = self._numbers(at)
        self.offset_deltas, at = self._numbers(at)
        self._keys, at = self._pieces(at)
        self._values, at = self._pieces(at)
        header_counts, at = self._numbers(at)
        self._check((header_counts >= 0) & (header_counts <= stops - at))
        self._check((header_counts > 0) | (at == stops))
        self._header_counts, self._headers_at = header_counts, at

    def times_after(self, first_ms: Int64Array) -> Int64Array:
        """Times of the records, in milliseconds. `first_ms`: of the batch of each."""
        for times in (first_ms, self.time_deltas):
            self._check((times >= -MOST_TIME_MS) & (times <= MOST_TIME_MS))
        return first_ms + self.time_deltas

    def keys(self) -> pa.Array:
        return self._binary(self._keys, pa.binary())

    def values(self) -> pa.Array:
        return self._binary(self._values, pa.binary())

    def _check(self, good: Any, rows: Any = None) -> None:
        if not bool(good.all()):
            row = int(good.argmin())
            row = row if rows is None else int(rows[row])
            raise _Malformed(int(np.searchsorted(np.cumsum(self.counts), row, side="right")))

    def _numbers(self, at: Int64Array, rows: Any = None) -> tuple[Int64Array, Int64Array]:
        """(varints at these positions, end of each); each must end within its record."""
        byte = self._data[at].astype(np.uint64)
        value, at = byte & _LOW_7, at + 1
        more, shift = np.flatnonzero(byte > _LOW_7), 7
        while len(more):
            self._check(np.full(1, shift < 64), more if rows is None else rows[more])
            byte = self._data[at[more]].astype(np.uint64)
            value[more] |= (byte & _LOW_7) << np.uint64(shift)
            at[more] += 1
            shift += 7
            more = more[byte > _LOW_7]
        self._check(at <= (self._stops if rows is None else self._stops[rows]), rows)
        return (value >> _1).view(np.int64) ^ -(value & _1).view(np.int64), at

    def _pieces(self, at: Int64Array, rows: Any = None) -> tuple[_Pieces, Int64Array]:
        """(byte strings at these positions, each after its size; end of each)."""
        sizes, starts = self._numbers(at, rows)
        stops = self._stops if rows is None else self._stops[rows]
        self._check((sizes >= -1) & (sizes <= stops - starts), rows)
        return _Pieces(starts, sizes), starts + np.maximum(sizes, 0)

    def _binary(self, pieces: _Pieces, kind: pa.DataType) -> pa.Array:
        """A column of the pieces, which are in ascending order: every second element of an Arrow
        array of the pieces and the bytes between them, since Arrow copies faster than Python."""
        starts, sizes = pieces
        if not len(starts):
            return pa.array([], kind)
        edges = np.empty(2 * len(starts), np.int32)
        edges[0::2], edges[1::2] = starts, starts + np.maximum(sizes, 0)
        array = pa.Array.from_buffers(kind, len(edges) - 1, [None, pa.py_buffer(edges), self._buffer])
        return array.take(pa.array(np.arange(0, len(edges), 2), mask=sizes < 0))

    def headers(self) -> pa.Array:
        """The column of headers: read the first header of every record, then the second ones, and so
        on, until few records are left."""
        counts, at = self._header_counts, self._headers_at
        rows, found = np.flatnonzero(counts > 0), []
        at, left = at[rows], counts[rows]
        while len(rows) > FEW_ROWS:
            keys, at = self._pieces(at, rows)
            self._check(keys.sizes >= 0, rows)
            values, at = self._pieces(at, rows)
            found.append(np.stack([rows, *keys, *values]))
            left = left - 1
            self._check((left > 0) | (at == self._stops[rows]), rows)
            rows, at, left = (column[left > 0] for column in (rows, at, left))
        columns = (column.tolist() for column in (rows, at, left))
        found += [self._headers_of(*each) for each in zip(*columns, strict=True)]
        table = np.concatenate([np.zeros((5, 0), np.int64), *found], axis=1)
        table = table[:, np.argsort(table[0], kind="stable")]
        items = pa.StructArray.from_arrays(
            [
                self._binary(_Pieces(table[1], table[2]), pa.string()),
                self._binary(_Pieces(table[3], table[4]), pa.binary()),
            ],
            ["key", "value"],
        )
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        none = np.append(counts == 0, False)  # as with Spark's own source
        return pa.ListArray.from_arrays(
            pa.array(offsets, mask=none), items, type=pa.list_(pa.field("element", items.type))
        )

    def _headers_of(self, row: int, at: int, left: int) -> Int64Array:
        """The same for the other headers of one record."""
        data, stop, found = self._whole, int(self._stops[row]), array("q")
        for number in range(2 * left):  # keys and values in turn
            byte = data[at]
            value, shift, at = byte & 0x7F, 7, at + 1
            while byte > 0x7F and shift < 64:
                byte = data[at]
                value |= (byte & 0x7F) << shift
                shift, at = shift + 7, at + 1
            size = value >> 1 ^ -(value & 1)
            least = -1 if number % 2 else 0
            if byte > 0x7F or not least <= size <= stop - at:
                break
            found.append(at)
            found.append(size)
            at += max(size, 0)
        self._check(np.full(1, len(found) == 4 * left and at == stop), [row])
        table = np.frombuffer(found, np.int64).reshape(left, 4).T
        return np.concatenate([np.full((1, left), row), table])


def _record_bounds(data: bytes, batches: list[_Batch]) -> tuple[Int64Array, Int64Array]:
    """(begin after its length, end) of each record. Raises _Malformed."""
    starts, stops = array("q"), array("q")
    at = 0
    for number, batch in enumerate(batches):
        end = at + len(batch.data)
        for _ in range(batch.records):
            byte = data[at]
            at += 1
            size, shift = byte & 0x7F, 7
            while byte > 0x7F and shift < 35:
                byte = data[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
            starts.append(at)
            at += size >> 1
            if size & 1 or size >> 1 < LEAST_RECORD_BYTES - 1 or at > end or byte > 0x7F:
                raise _Malformed(number)
            stops.append(at)
        if at != end:
            raise _Malformed(number)
    return np.array(starts, np.int64), np.array(stops, np.int64)


_LOW_7, _1 = np.uint64(0x7F), np.uint64(1)
