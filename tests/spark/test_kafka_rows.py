"""Record batches of producers as rows: beside aiokafka's reader, and what no client can read."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumlog.kafka.machine import entries_of
from quorumlog.kafka.places import BatchPlaces
from quorumlog.spark.kafka.record_rows import (
    COLUMNS,
    MOST_TIME_MS,
    MOST_UNPACKED_BYTES,
    KafkaRows,
    UnreadableRecords,
    _RecordColumns,
    kafka_schema,
)
from tests.kafka.batches import made_batch, zigzag

TOPIC = bytes(16)
HEADER_BYTES = 61


class Record(NamedTuple):
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def built(records: list[Record]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for offset, (timestamp, key, value, headers) in enumerate(records):
        builder.append(offset, timestamp, key, value, headers)
    return bytes(builder.build())


def rows_of(
    batches: list[bytes], columns: tuple[str, ...] = COLUMNS, batch_bytes: int = 1 << 30
) -> list[dict[str, Any]]:
    """As entries one after the other, each with its offsets behind those of the one before."""
    entries = entries_of([(TOPIC, 0, data) for data in batches])
    entries.stamp(0, 1, entries.starts.tolist(), 0)
    counts = [struct.unpack_from(">i", data, 57)[0] for data in batches]
    bases = np.cumsum([10, *counts[:-1]])
    numbers = np.zeros(len(batches), np.int32)
    places = BatchPlaces(entries.starts, bases, numbers, [("orders", 3)])
    encoder = KafkaRows(kafka_schema(columns), places, batch_bytes)
    return [row for rows in encoder.rows(entries) for row in rows.to_pylist()]


def read_by_aiokafka(batches: list[bytes]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for data in batches:
        batch = MemoryRecords(struct.pack(">q", 10 + len(found)) + data[8:]).next_batch()
        assert batch is not None
        for record in batch:
            headers = [{"key": key, "value": value} for key, value in record.headers]
            found.append(
                {
                    "key": record.key,
                    "value": record.value,
                    "topic": "orders",
                    "partition": 3,
                    "offset": record.offset,
                    "timestamp": np.datetime64(record.timestamp, "ms"),
                    "timestampType": record.timestamp_type,
                    "headers": headers or None,
                }
            )
    return found


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**row, "timestamp": np.datetime64(row["timestamp"].replace(tzinfo=None), "ms")} for row in rows
    ]


def repacked(data: bytes, compression: int, records: bytes) -> bytes:
    """The batch with other bytes for its records."""
    return (
        data[:8]
        + struct.pack(">i", HEADER_BYTES - 12 + len(records))
        + data[12:21]
        + struct.pack(">h", compression)
        + data[23:HEADER_BYTES]
        + records
    )


BYTES = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.builds(
        Record,
        st.integers(0, 2**41),
        BYTES,
        BYTES,
        st.lists(st.tuples(st.text(max_size=20), BYTES), max_size=4),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=4), st.sampled_from([1, 1 << 30]))
def test_rows_are_what_aiokafka_reads(batches: list[list[Record]], batch_bytes: int) -> None:
    made = [built(records) for records in batches]
    found = rows_of(made, batch_bytes=batch_bytes)
    assert comparable(found) == read_by_aiokafka(made)
    columns = ("offset", "headers", "key")
    assert rows_of(made, columns) == [{each: row[each] for each in columns} for row in found]


def streamed(records: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(records)
    return bytes(sink.getvalue())


def framed_snappy(records: bytes) -> bytes:
    """As Java's clients do, in blocks."""
    out = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for at in range(0, len(records), 1_000):
        block = pa.compress(records[at : at + 1_000], "snappy", asbytes=True)
        out += struct.pack(">i", len(block)) + block
    return out


def packed(records: bytes) -> dict[str, tuple[int, bytes]]:
    return {
        "gzip": (1, streamed(records, "gzip")),
        "snappy": (2, pa.compress(records, "snappy", asbytes=True)),
        "snappy in blocks": (2, framed_snappy(records)),
        "lz4": (3, streamed(records, "lz4")),
        "zstd": (4, streamed(records, "zstd")),
    }


@pytest.mark.parametrize("codec", packed(b""))
def test_compressed_records_are_read(codec: str) -> None:
    data = built([Record(n, b"%d" % n, bytes([n % 256]) * 300, []) for n in range(100)])
    assert rows_of([repacked(data, *packed(data[HEADER_BYTES:])[codec])]) == rows_of([data])


@pytest.mark.parametrize("codec", packed(b""))
def test_records_that_are_cut_off_are_refused_by_their_place(codec: str) -> None:
    data = built([Record(n, None, bytes(300), [("name", b"v")]) for n in range(100)])
    compression, records = packed(data[HEADER_BYTES:])[codec]
    with pytest.raises(UnreadableRecords, match="at offset 20 of topic orders, partition 3"):
        rows_of([made_batch([b"v"] * 10), repacked(data, compression, records[:-1])])


def test_records_that_are_more_than_a_batch_may_have_are_refused() -> None:
    records = streamed(bytes(MOST_UNPACKED_BYTES + 1), "zstd")
    with pytest.raises(UnreadableRecords, match="more than"):
        rows_of([repacked(made_batch([b"v"]), 4, records)])


def test_a_batch_that_is_too_short_for_its_records_is_refused_before_they_are_read() -> None:
    count = 50_000_000
    many = made_batch([b"v"], record_count=count, last_delta=count - 1)
    with pytest.raises(UnreadableRecords, match=f"too short for {count} records"):
        rows_of([repacked(many, 4, streamed(bytes(count), "zstd"))])


def test_a_record_without_bytes_is_refused() -> None:
    two = made_batch([b"value" * 3] * 2)
    with pytest.raises(UnreadableRecords, match="too short"):
        rows_of([repacked(two, 0, b"\0" + two[HEADER_BYTES:])])


def test_the_smallest_records_are_read() -> None:
    none = made_batch([b"v"] * 2)
    found = rows_of([repacked(none, 0, bytes([12, 0, 0, 0, 1, 1, 0]) * 2)])
    assert [(row["key"], row["value"], row["headers"]) for row in found] == [(None, None, None)] * 2


@pytest.mark.parametrize("first_ms", [MOST_TIME_MS + 1, -(1 << 63), (1 << 63) // 1000 * 3])
def test_a_time_that_is_out_of_range_is_refused(first_ms: int) -> None:
    with pytest.raises(UnreadableRecords, match="offset 20 of topic orders"):
        rows_of([made_batch([b"v"] * 10), made_batch([b"v"], timestamp=first_ms)])
    record = b"\0" + zigzag(first_ms) + bytes([0, 1, 1, 0])
    with pytest.raises(UnreadableRecords, match="offset 10 of topic orders"):
        rows_of([repacked(made_batch([b"v"]), 0, zigzag(len(record)) + record)])


@pytest.mark.parametrize("cut", [0, 1])
def test_many_headers_of_few_records_take_few_steps_of_numpy(
    cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    pieces = _RecordColumns._pieces

    def counted(self: _RecordColumns, at: Any, rows: Any = None) -> Any:
        nonlocal steps
        steps += 1
        return pieces(self, at, rows)

    monkeypatch.setattr(_RecordColumns, "_pieces", counted)
    many = [("name", None if n % 3 else b"v" * (n % 200)) for n in range(10_000)]
    records = [Record(n, b"k", b"v", many[: 2 + 3 * n]) for n in range(100)]
    data = built([*records, Record(100, b"k", b"v", many)])
    if not cut:
        assert comparable(rows_of([data])) == read_by_aiokafka([data])
        assert steps < 500
        return
    last = data.rfind(b"name")
    with pytest.raises(UnreadableRecords, match="cut off"):
        rows_of([data[: last - 1] + b"\x7f" + data[last:]])


@settings(deadline=None)
@given(st.data())
def test_whatever_a_batch_holds_is_rows_or_refused(data: st.DataObject) -> None:
    whole = built([Record(n, b"key", b"value" * 3, [("h", b"1"), ("i", None)]) for n in range(8)])
    records = bytearray(whole[HEADER_BYTES:])
    for at in data.draw(st.lists(st.integers(0, len(records) - 1), min_size=1, max_size=6)):
        records[at] = data.draw(st.integers(0, 255))
    try:
        entries = entries_of([(TOPIC, 0, repacked(whole, 0, bytes(records)))])
        entries.stamp(0, 1, [0], 0)
        places = BatchPlaces(np.zeros(1, int), np.zeros(1, int), np.zeros(1, np.int32), [("t", 0)])
        (rows,) = KafkaRows(kafka_schema(COLUMNS), places, 1).rows(entries)
    except UnreadableRecords:
        return
    assert rows.num_rows == 8
    rows.validate()


def test_entries_without_a_place_are_no_rows() -> None:
    entries = entries_of([(TOPIC, 0, made_batch([b"%d" % n])) for n in range(4)])
    entries.stamp(0, 1, entries.starts.tolist(), 0)
    places = BatchPlaces(entries.starts[1:3], np.array([5, 9]), np.zeros(2, np.int32), [("t", 0)])
    (rows,) = KafkaRows(kafka_schema(("value", "offset")), places, 1 << 20).rows(entries)
    assert rows.to_pylist() == [{"value": b"1", "offset": 5}, {"value": b"2", "offset": 9}]
