"""Fetch and ListOffsets: committed and applied records, as they are in the log's files."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from quorumlog.client_guard import guarded
from quorumlog.entry_header import Buffer
from quorumlog.errors import LedgerError, ProtocolViolation
from quorumlog.kafka.codec import Cursor
from quorumlog.kafka.commands import first_code
from quorumlog.kafka.machine import BatchPlace, KafkaTopic, Partition
from quorumlog.kafka.service import MOST_TIMEOUT_MS, KafkaCall, KafkaService, code_of
from quorumlog.log_state.users import Kind, Right

FETCH_BYTES = 8 << 20
"""Most bytes of one answer, regardless of the request; a larger batch is sent alone."""
_DENSE = 2
"""Batches are read in one range, with the bytes between them, if the range is less than this many
times their size."""
_SMALL_BYTES = 4096
"""Batches below this size are joined by copying: a buffer for each would cost more."""
_HEAD = struct.Struct(">qii")
"""Base offset, length, leader epoch. The epoch is always sent as -1: a consumer would wait for a
leader of an epoch as high as a producer's."""
_CRC = struct.Struct(">I")
_LENGTH_FROM, _CRC_AT, _CHECKED_FROM = 12, 17, 21

ReadBytes = Callable[[int, int], bytes]


# ---------------------------------------------------------------- Fetch


class _Row:
    """A requested partition."""

    __slots__ = ("asked", "code", "partition", "places", "topic")

    def __init__(
        self, asked: Any, topic: KafkaTopic | None, partition: Partition | None, code: int
    ) -> None:
        self.asked = asked
        self.topic = topic
        self.partition = partition
        self.code = code
        self.places: list[BatchPlace] = []


class _Fetch:
    """One request: waits until its minimum of bytes is available or its maximum wait has passed."""

    def __init__(self, service: KafkaService, call: KafkaCall) -> None:
        self._service = service
        self._call = call
        fields = call.fields
        self._most_bytes = min(max(fields.max_bytes, 0), FETCH_BYTES)
        self._least_bytes = min(fields.min_bytes, self._most_bytes)
        self._find()
        self._timer: asyncio.TimerHandle | None = None
        self._recheck = guarded(self._rights_moved, call.client)

    def _find(self) -> None:
        seen = set[Partition]()
        self._rows = [self._rows_of(topic, seen) for topic in self._call.fields.topics]
        self._all_rows = [row for rows in self._rows for row in rows]

    def _rows_of(self, asked: Any, seen: set[Partition]) -> list[_Row]:
        service = self._service
        topic: KafkaTopic | None
        if self._call.request.version >= 13:
            topic = service.machine.by_id.get(asked.topic_id.bytes)
            missing = ErrorCode.unknown_topic_id
        else:
            topic = service.machine.topics.get(asked.topic)
            missing = ErrorCode.unknown_topic_or_partition
        name = asked.topic if topic is None and hasattr(asked, "topic") else ""
        code: int = 0
        if topic is not None or name:
            name = name if topic is None else topic.name
            code = self._call.denied(Right.READ, Kind.TOPIC, name)
        if not code and not service.leads:
            code = ErrorCode.not_leader_or_follower
        rows = []
        for each in asked.partitions:
            partition = (
                None if topic is None else service.machine.partition(topic.topic_id, each.partition)
            )
            wrong: int = code
            if partition is None:
                unknown = missing if topic is None else ErrorCode.unknown_topic_or_partition
                wrong = code or unknown
            elif partition in seen:
                # What waits is looked at whenever a record comes: once for each partition that there is.
                partition, wrong = None, code or ErrorCode.invalid_request
            else:
                seen.add(partition)
            rows.append(_Row(each, topic, partition, wrong))
        return rows

    def begin(self) -> None:
        """An offset above the end may come from a later leader. OFFSET_OUT_OF_RANGE is answered only
        once a majority has confirmed this leader: it makes a consumer reset its position."""
        if any(map(self._is_ahead, self._all_rows)):
            self._service.confirm(self._call.client, self._confirmed)
        else:
            self._begin()

    @staticmethod
    def _is_ahead(row: _Row) -> bool:
        partition = row.partition
        return partition is not None and not row.code and row.asked.fetch_offset > partition.end_offset

    def _confirmed(self, refusal: LedgerError | None) -> None:
        self._find()
        if refusal is not None:
            for row in filter(self._is_ahead, self._all_rows):
                row.code = ErrorCode.not_leader_or_follower
        self._begin()

    def _begin(self) -> None:
        wait_ms = min(self._call.fields.max_wait, MOST_TIMEOUT_MS)
        if self._look() or wait_ms <= 0:
            self._read()
            return
        self._call.on_lost = self._end
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._over)
        for partition in self._partitions():
            self._service.waiting.setdefault(partition, set()).add(self._wake)
        self._service.rechecks.add(self._recheck)

    def _partitions(self) -> set[Partition]:
        return {row.partition for row in self._all_rows if row.partition is not None}

    def _look(self) -> bool:
        """True if the request has enough bytes, or an error."""
        left_bytes, found_bytes, is_wrong = self._most_bytes, 0, False
        log_begin = self._service.log_begin
        for row in self._all_rows:
            partition, offset, row.places = row.partition, row.asked.fetch_offset, []
            if partition is None or row.code:
                is_wrong = True
            elif not partition.start_offset(log_begin) <= offset <= partition.end_offset:
                row.code, is_wrong = ErrorCode.offset_out_of_range, True
            elif left_bytes > 0 or not found_bytes:
                most_bytes = min(left_bytes, row.asked.partition_max_bytes)
                row.places = partition.find(offset, most_bytes)
                size_bytes = sum(place.size_bytes for place in row.places)
                left_bytes -= size_bytes
                found_bytes += size_bytes
        return is_wrong or found_bytes >= self._least_bytes

    def _wake(self) -> None:
        service = self._service
        for row in self._all_rows:
            if not service.leads:
                row.code = row.code or ErrorCode.not_leader_or_follower
            elif row.topic is not None and row.topic.topic_id not in service.machine.by_id:
                row.code = ErrorCode.unknown_topic_or_partition  # it is deleted
        if self._look():
            self._end()
            self._read()

    def _rights_moved(self) -> None:
        for row in self._all_rows:
            if row.topic is not None:
                row.code = row.code or self._call.denied(Right.READ, Kind.TOPIC, row.topic.name)
        self._wake()

    def _over(self) -> None:
        self._end()
        self._look()
        self._read()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._call.on_lost = None
        self._service.rechecks.discard(self._recheck)
        waiting = self._service.waiting
        for partition in self._partitions():
            wakes = waiting.get(partition, set())
            wakes.discard(self._wake)
            if not wakes:
                waiting.pop(partition, None)

    def _read(self) -> None:
        rows = [row for row in self._all_rows if row.places]
        if not rows:
            self._answer({})
            return
        places = [row.places for row in rows]

        def done(found: list[list[Buffer] | None] | None) -> None:
            if found is None:
                found = [None] * len(rows)
            self._answer(dict(zip(map(id, rows), found, strict=True)))

        self._service.read(lambda read: [records_of(read, each) for each in places], self._call, done)

    def _answer(self, found: dict[int, list[Buffer] | None]) -> None:
        service, responses, first_code = self._service, [], 0
        for asked, rows in zip(self._call.fields.topics, self._rows, strict=True):
            partitions = []
            for row in rows:
                records, code, partition = found.get(id(row), []), row.code, row.partition
                if records is None:
                    records, code = [], ErrorCode.kafka_storage_error  # it is mended, and may come again
                end_offset = -1 if partition is None else partition.end_offset
                start = -1 if partition is None else partition.start_offset(service.log_begin)
                partitions.append(
                    {
                        "partition_index": row.asked.partition,
                        "error_code": code,
                        "high_watermark": end_offset,
                        "last_stable_offset": end_offset,
                        "log_start_offset": start,
                        "records": records,
                    }
                )
                first_code = first_code or code
            responses.append(
                {
                    "topic": getattr(asked, "topic", ""),
                    "topic_id": getattr(asked, "topic_id", None),
                    "partitions": partitions,
                }
            )
        self._call.answer({"responses": responses}, first_code)


def fetch(service: KafkaService, call: KafkaCall) -> None:
    """There are no fetch sessions: each request names all its partitions."""
    if getattr(call.fields, "session_id", 0):
        code = ErrorCode.fetch_session_id_not_found
        call.answer({"error_code": code}, code)
    else:
        _Fetch(service, call).begin()


def records_of(read: ReadBytes, places: Sequence[BatchPlace]) -> list[Buffer] | None:
    """The batches with their offsets, and without the leader epochs that producers write. Ends before
    a batch that is damaged; None if that is the first. Runs on a thread that may wait for the disk."""
    wanted = sum(place.size_bytes for place in places)
    begin = places[0].position
    span = places[-1].position + places[-1].size_bytes - begin
    whole = memoryview(read(begin, span)) if span <= _DENSE * wanted else None
    found: list[Buffer] = []
    for place in places:
        if whole is None:
            data = memoryview(read(place.position, place.size_bytes))
        else:
            data = whole[place.position - begin :][: place.size_bytes]
        if not _is_whole(data, place):
            break
        head = _HEAD.pack(place.base_offset, place.size_bytes - _LENGTH_FROM, -1)
        found += (head, data[_HEAD.size :])
    if not found:
        return None
    return [b"".join(found)] if wanted < _SMALL_BYTES * len(places) else found


def _is_whole(data: memoryview, place: BatchPlace) -> bool:
    if len(data) < place.size_bytes:
        return False
    return bool(_CRC.unpack_from(data, _CRC_AT)[0] == crc32c(data[_CHECKED_FROM:]))


# ---------------------------------------------------------------- ListOffsets

LATEST, EARLIEST, NEWEST_RECORD = -1, -2, -3
_BATCH = struct.Struct(">21xhi4x8x8x")
"""Attributes, last offset delta."""
_TIMES = struct.Struct(">27xqq")
_RECORDS_AT = 61
_COMPRESSION, _PLAIN, _GZIP = 7, 0, 1
_MOST_UNPACKED_BYTES, _MOST_LOOKED_AT = 64 << 20, 250_000
"""Bytes and records that one request may search, about a second's work; of further batches only the
header is used."""


def list_offsets(service: KafkaService, call: KafkaCall) -> None:
    """The latest offset is answered once a majority has confirmed the leader."""
    looks: list[tuple[dict[str, Any], BatchPlace, int]] = []
    """(answer of the partition, batch with the record, timestamp searched for)."""
    seen: set[tuple[str, int]] = set()

    def confirmed(refusal: LedgerError | None) -> None:
        code = 0 if refusal is None else code_of(refusal)
        if not code and not service.leads:
            code = ErrorCode.not_leader_or_follower
        topics = []
        for topic in call.fields.topics:
            refused = code or call.denied(Right.READ, Kind.TOPIC, topic.name)
            rows = []
            for each in topic.partitions:
                row: dict[str, Any] = {"partition_index": each.partition_index, "error_code": refused}
                rows.append(row)
                place = topic.name, each.partition_index
                if refused:
                    pass
                elif place in seen:
                    row["error_code"] = ErrorCode.invalid_request  # as in Kafka: each takes its time
                else:
                    seen.add(place)
                    _find_offset(service, topic.name, each, row, looks)
            topics.append({"name": topic.name, "partitions": rows})
        if looks:
            service.read(read, call, lambda found: looked(topics, found))
        else:
            answer(topics)

    def read(read_bytes: ReadBytes) -> list[tuple[int, int] | None]:
        room = _Room()
        return [_record_at(read_bytes, place, time_ms, room) for _, place, time_ms in looks]

    def looked(topics: list[dict[str, Any]], found: list[tuple[int, int] | None] | None) -> None:
        for (row, _, _), at in zip(looks, found or [None] * len(looks), strict=True):
            if at is None:
                row["error_code"] = ErrorCode.kafka_storage_error
            else:
                row["timestamp"], row["offset"] = at
        answer(topics)

    def answer(topics: list[dict[str, Any]]) -> None:
        rows = (row for topic in topics for row in topic["partitions"])
        call.answer({"topics": topics}, first_code(rows))

    service.confirm(call.client, confirmed)


def _find_offset(
    service: KafkaService,
    name: str,
    asked: Any,
    row: dict[str, Any],
    looks: list[tuple[dict[str, Any], BatchPlace, int]],
) -> None:
    topic, number, time_ms = service.machine.topics.get(name), asked.partition_index, asked.timestamp
    if topic is None or not 0 <= number < len(topic.partitions):
        row["error_code"] = ErrorCode.unknown_topic_or_partition
        return
    partition = topic.partitions[number]
    if time_ms == LATEST:
        row["offset"] = partition.end_offset
    elif time_ms == EARLIEST:
        row["offset"] = partition.start_offset(service.log_begin)
    elif time_ms >= 0 or time_ms == NEWEST_RECORD:
        place = partition.find_time(None if time_ms < 0 else time_ms, service.log_begin)
        if place is not None:
            looks.append((row, place, time_ms))
    else:
        row["error_code"] = ErrorCode.invalid_request


class _Room:
    """The bytes and records that one request may still search."""

    def __init__(self) -> None:
        self.left_bytes = _MOST_UNPACKED_BYTES
        self.left_records = _MOST_LOOKED_AT

    def records_of(self, batch: memoryview, compression: int, count: int) -> memoryview | None:
        """The unpacked records; None: only the header is used."""
        records = batch[_RECORDS_AT:]
        if compression not in (_PLAIN, _GZIP) or count > self.left_records:
            return None
        if compression == _GZIP:
            if self.left_bytes <= 0:
                return None
            unpacking = zlib.decompressobj(31)
            records = memoryview(unpacking.decompress(records, self.left_bytes))
            self.left_bytes -= len(records)
            if not unpacking.eof:
                return None
        self.left_records -= count
        return records


def _record_at(read: ReadBytes, place: BatchPlace, time_ms: int, room: _Room) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record of a batch that is not older than the time, or of the
    newest record. For a batch that is compressed other than with gzip, or beyond the room, it is the
    batch's first record, or its last. None: the batch is damaged. Runs on a thread that may wait for
    the disk."""
    data = memoryview(read(place.position, place.size_bytes))
    if not _is_whole(data, place):
        return None
    attributes, last_delta = _BATCH.unpack_from(data)
    first_ms, newest_ms = _TIMES.unpack_from(data)
    records = room.records_of(data, attributes & _COMPRESSION, last_delta + 1)
    if records is None:
        if time_ms == NEWEST_RECORD:
            return newest_ms, place.base_offset + last_delta
        return max(first_ms, time_ms), place.base_offset
    cursor, wanted = Cursor(records), newest_ms if time_ms == NEWEST_RECORD else time_ms
    for _ in range(last_delta + 1):
        stop = _signed(cursor) + cursor.position
        cursor.take(1)
        record_ms, delta = first_ms + _signed(cursor), _signed(cursor)
        if record_ms >= wanted:
            return record_ms, place.base_offset + delta
        cursor.take(stop - cursor.position)
    return newest_ms, place.base_offset + last_delta


def _signed(cursor: Cursor) -> int:
    """A signed varint of up to 64 bits."""
    value = shift = 0
    while True:
        byte = cursor.take(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
        if shift > 63:
            raise ProtocolViolation("a number of more than 64 bits")
