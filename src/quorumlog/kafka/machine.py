"""KafkaMachine: the state machine: topics, positions of their batches, committed offsets.

A produced batch is one entry: its topic and partition, then the batch as received. Its records get their
offsets here, in the order of the log; a fetch writes the first one into the bytes. Nothing is unpacked,
and of a batch only its count, times and producer are read.

    produce     (topic id, partition) and a record batch    result: error code and base offset
    a command   one of `Command`, the leader's own           result: error codes

Which records are deleted follows from the begin of the member's log; results never depend on it. The
state is changed on the thread that applies entries and read on the loop: an index only grows at its end,
and is replaced as a whole when its front is dropped.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec
import numpy as np
from kio.schema.errors import ErrorCode

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryId, EntryKind
from quorumlog.entry_header import HEADER_BYTES, Buffer, EntryHeader
from quorumlog.errors import BadRequest, CommandError
from quorumlog.header_array import Int64Array
from quorumlog.kafka.places import (
    MOST_PLACES,
    PREFIX_BYTES,
    Cursor,
    PartitionPlaces,
    PlacesAnswer,
    PlacesQuestion,
    Question,
    TopicsQuestion,
)
from quorumlog.state_machine import Result, SnapshotReader, SnapshotWriter, StateMachine

TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")
MOST_PARTITIONS = 10_000
"""Most partitions of all topics together."""
MOST_OFFSETS = 200_000
"""Most committed offsets of all groups together."""
MOST_PRODUCERS = 100_000
"""Most idempotent producers, counted once for each partition that they write to. Above it the one
whose last write is oldest is forgotten."""
KEPT_BATCHES = 5
"""Last batches remembered of a producer and partition, to recognize repeated ones: as many as clients
have in flight."""
SEQUENCES = 1 << 31
"""Sequences wrap around to 0."""

_PRODUCE, _COMMAND = 1, 2
_TIMED = struct.Struct(">Bq")
"""Before a command: its kind, and the time by the log's clock in milliseconds."""
_PLACE = struct.Struct(">B16si")
assert _PLACE.size == PREFIX_BYTES
ROOM_BYTES = HEADER_BYTES + PREFIX_BYTES
_BATCH = struct.Struct(">8xi4xb4x2xi8xqqhii")
"""Length, magic, last offset delta, max timestamp, producer id, epoch, base sequence, count."""
_LEAST_BYTES = PREFIX_BYTES + _BATCH.size
_RESULT = struct.Struct(">hq")
_LENGTH = struct.Struct(">Q")
_SAVED_ROWS = 1 << 16
"""Rows of an index in a slice of a snapshot."""


class CreateKafkaTopic(msgspec.Struct, frozen=True, array_like=True, tag=1):
    topic_id: bytes
    name: str
    partitions: int


class DeleteKafkaTopic(msgspec.Struct, frozen=True, array_like=True, tag=2):
    topic_id: bytes


class GrowKafkaTopic(msgspec.Struct, frozen=True, array_like=True, tag=3):
    topic_id: bytes
    partitions: int
    """Total number of partitions after the change."""


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    offset: int
    leader_epoch: int
    metadata: str
    time_ms: int = 0
    """Time of the entry that committed it, by the log's clock; 0 in a command."""


class CommitKafkaOffsets(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Commit offsets of a group. The result has an error code for each."""

    group: str
    rows: list[tuple[bytes, int, CommittedOffset]]
    """(topic id, partition, committed offset)."""


class DeleteKafkaGroup(msgspec.Struct, frozen=True, array_like=True, tag=5):
    group: str


class KeepKafkaOffsets(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Written by a leader periodically: the groups whose committed offsets are kept."""

    with_members: list[str]
    """Groups that have members now."""
    retention_ms: int | None
    """Offsets committed longer ago than this expire, if their group has had no members for as long.
    None: more entries of this kind follow."""
    is_first: bool = False
    """The leader's first one, or first after a stop: nobody counted members before it. Groups that were
    in use when members were counted last count as having members now."""


Command = (
    CreateKafkaTopic
    | DeleteKafkaTopic
    | GrowKafkaTopic
    | CommitKafkaOffsets
    | DeleteKafkaGroup
    | KeepKafkaOffsets
)
_commands = msgspec.msgpack.Decoder(Command)
_questions = msgspec.msgpack.Decoder(Question)
_numbers = msgspec.msgpack.Decoder(list[int])


def decode_numbers(result: bytes | None) -> list[int]:
    """Decode the result of a command of this release."""
    return [ErrorCode.unknown_server_error] if result is None else _numbers.decode(result)


class Produced(NamedTuple):
    code: int
    base_offset: int

    @classmethod
    def of(cls, result: bytes | None) -> Produced:
        return (
            cls(ErrorCode.unknown_server_error, -1) if result is None else cls(*_RESULT.unpack(result))
        )


def entry_of(command: Command) -> EntryBatch:
    return EntryBatch.from_bodies([_TIMED.pack(_COMMAND, 0) + msgspec.msgpack.encode(command)])


def entries_of(batches: Sequence[tuple[bytes, int, Buffer]]) -> EntryBatch:
    """An entry for each (topic id, partition, record batch). A single batch is not copied if
    `ROOM_BYTES` precede it in the same bytearray, which are overwritten; others are copied."""
    if len(batches) == 1:
        topic_id, partition, data = batches[0]
        room = _with_room(data)
        if room is not None:
            size = len(room)
            header = EntryHeader(EntryKind.NORMAL, size, 0, 0, 0, 0, 0, 0, size - HEADER_BYTES)
            header.pack_into(room, 0)
            _PLACE.pack_into(room, HEADER_BYTES, _PRODUCE, topic_id, partition)
            return EntryBatch(room, None)
    pieces: list[Buffer] = []
    sizes = []
    for topic_id, partition, data in batches:
        pieces += (_BLANK, _PLACE.pack(_PRODUCE, topic_id, partition), data)
        sizes.append(HEADER_BYTES + PREFIX_BYTES + len(data))
    buffer = bytearray().join(pieces)
    view = memoryview(buffer)
    position = 0
    for size in sizes:
        header = EntryHeader(EntryKind.NORMAL, size, 0, 0, 0, 0, 0, 0, size - HEADER_BYTES)
        header.pack_into(view[position:], 0)
        position += size
    return EntryBatch(buffer, sizes)


def _with_room(data: Buffer) -> memoryview | None:
    """The batch with the `ROOM_BYTES` before it."""
    if not isinstance(data, memoryview) or not isinstance(data.obj, bytearray):
        return None
    start = _address_of(data) - _address_of(data.obj)
    return memoryview(data.obj)[start - ROOM_BYTES : start + len(data)] if start >= ROOM_BYTES else None


def _address_of(data: Buffer) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)


_BLANK = bytes(HEADER_BYTES)


# ---------------------------------------------------------------- Partition


class BatchPlace(NamedTuple):
    base_offset: int
    position: int
    """Position of the batch itself in the log."""
    size_bytes: int


class _Index(NamedTuple):
    """A row for each batch. A reader on another thread uses the rows that `bases` has."""

    positions: array[int]
    sizes: array[int]
    times: array[int]
    """The largest timestamp in the batch, in milliseconds since 1970."""
    bases: array[int]

    @classmethod
    def empty(cls) -> _Index:
        return cls(array("q"), array("i"), array("q"), array("q"))


class Partition:
    __slots__ = ("end_offset", "index")

    def __init__(self, end_offset: int = 0, index: _Index | None = None) -> None:
        self.end_offset = end_offset
        """Offset of the next record."""
        self.index = index or _Index.empty()

    def append(self, position: int, size_bytes: int, time_ms: int, count: int) -> int:
        """Returns the base offset."""
        base, index = self.end_offset, self.index
        index.positions.append(position)
        index.sizes.append(size_bytes)
        index.times.append(time_ms)
        index.bases.append(base)
        self.end_offset = base + count
        return base

    def start_offset(self, log_begin: int) -> int:
        """Offset of the oldest record, if the log begins at this position."""
        end_offset, index = self.end_offset, self.index
        first = bisect_left(index.positions, log_begin)
        return index.bases[first] if first < len(index.bases) else end_offset

    def find(self, offset: int, most_bytes: int) -> list[BatchPlace]:
        """The batch with this offset and those after it, one at least, however large."""
        positions, sizes, _, bases = self.index
        row = max(0, bisect_right(bases, offset) - 1)
        found: list[BatchPlace] = []
        size_bytes = 0
        for at in range(row, len(bases) if offset < self.end_offset else 0):
            size_bytes += sizes[at]
            if found and size_bytes > most_bytes:
                break
            found.append(BatchPlace(bases[at], positions[at], sizes[at]))
        return found

    def find_time(self, time_ms: int | None, log_begin: int) -> BatchPlace | None:
        """The first batch with a record that is not older; for None, the first batch with the newest
        record."""
        positions, sizes, times, bases = self.index
        count, first = len(bases), bisect_left(positions, log_begin)
        column = np.array(times[first:count], np.int64)
        if not len(column):
            return None
        row = int(column.argmax() if time_ms is None else (column >= time_ms).argmax())
        if time_ms is not None and column[row] < time_ms:
            return None
        at = first + row
        return BatchPlace(bases[at], positions[at], sizes[at])

    def places(
        self, first_position: int, stop_position: int, most: int
    ) -> tuple[Sequence[int], Sequence[int]]:
        """(positions, base offsets) of the batches in [first_position, stop_position), with a limit."""
        positions, _, _, bases = self.index
        first = bisect_left(positions, first_position, 0, len(bases))
        stop = min(bisect_left(positions, stop_position, first, len(bases)), first + most)
        return positions[first:stop], bases[first:stop]

    def drop_below(self, log_begin: int) -> None:
        index = self.index
        first = bisect_left(index.positions, log_begin)
        if first:
            self.index = _Index(*(column[first:] for column in index))


class KafkaTopic:
    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, topic_id: bytes, name: str, partitions: list[Partition]) -> None:
        self.topic_id = topic_id
        self.name = name
        self.partitions = partitions

    @property
    def uuid(self) -> UUID:
        return UUID(bytes=self.topic_id)


class _Producer(msgspec.Struct, array_like=True):
    """An idempotent producer's state in one partition."""

    epoch: int
    batches: list[tuple[int, int, int]]
    """(first sequence, last sequence, base offset) of its last batches."""


# ---------------------------------------------------------------- snapshots


class _SavedTopic(msgspec.Struct, frozen=True, array_like=True):
    topic_id: bytes
    name: str
    partitions: list[tuple[int, int]]
    """(end offset, rows of the index) of each partition."""


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    """The head of a snapshot; the indices follow, column by column."""

    topics: list[_SavedTopic]
    producers: list[tuple[bytes, int, int, _Producer]]
    """(topic id, partition, producer id, state)."""
    groups: dict[str, list[tuple[bytes, int, CommittedOffset]]]
    had_members_ms: dict[str, int]
    # Earlier builds saved none of what follows.
    dropped_below: int = 0
    """The indices have the batches from this position on."""
    time_ms: int = 0
    """The latest time of a command."""
    count_ms: int = -1
    last_count_ms: int = 0


Offsets = dict[tuple[bytes, int], CommittedOffset]
_ProducerKey = tuple[bytes, int, int]
"""(topic id, partition, producer id)."""


class KafkaMachine(StateMachine):
    may_leave_out = False
    """No entry may be skipped: every later offset would differ from the acknowledged one."""

    def __init__(
        self, grown: Callable[[set[Partition]], None], log_begin: Callable[[], int] = lambda: 0
    ) -> None:
        """`grown` is called with the partitions that have new records, on the thread that applies
        entries. `log_begin` returns the position at which the member's log begins."""
        self._grown = grown
        self._log_begin = log_begin
        self._dropped_below = 0
        """The indices have no batches before this position. A snapshot may be of another member, whose
        log begins later."""
        self._saves = 0
        self._producers: OrderedDict[_ProducerKey, _Producer] = OrderedDict()
        self._forgotten: dict[tuple[str, int, int], None] = {}
        """(topic, partition, producer id) of dropped ones, since this member's start: an error code
        depends on it, and no state."""
        self.topics: dict[str, KafkaTopic] = {}
        self.by_id: dict[bytes, KafkaTopic] = {}
        self.groups: dict[str, Offsets] = {}
        self._had_members_ms: dict[str, int] = {}
        """By group with offsets: time of the last entry that says it has members."""
        self._offsets = 0
        self._time_ms = 0
        """The latest time of a command, by the log's clock: it never goes back."""
        self._count_ms = -1
        """Time of the first of the entries that name the groups with members; -1: none, or the last of
        them is applied."""
        self._last_count_ms = 0
        """The same, of those that are complete."""

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in list(self.topics.values()))

    def partition(self, topic_id: bytes, number: int) -> Partition | None:
        topic = self.by_id.get(topic_id)
        if topic is None or not 0 <= number < len(topic.partitions):
            return None
        return topic.partitions[number]

    # ---------------------------------------------------------------- entries

    def is_quick(self, batch: EntryBatch) -> bool:
        return True  # it waits for no disk

    def apply(self, batch: EntryBatch, first_index: int) -> list[Result]:
        results: list[Result] = []
        grown: set[Partition] = set()
        positions = batch.headers()["pos"].tolist()
        for body, position in zip(batch.bodies(), positions, strict=True):
            if len(body) >= _LEAST_BYTES and body[0] == _PRODUCE:
                results.append(self._produce(body, position + HEADER_BYTES, grown))
            else:
                results.append(self._command(body))
        log_begin = self._log_begin()
        if log_begin > self._dropped_below and not self._saves:
            self._dropped_below = log_begin
            for topic in self.topics.values():
                for partition in topic.partitions:
                    partition.drop_below(log_begin)
        if grown:
            self._grown(grown)
        return results

    def _produce(self, body: memoryview, position: int, grown: set[Partition]) -> bytes | CommandError:
        _, topic_id, number = _PLACE.unpack_from(body)
        length, magic, last_delta, time_ms, producer_id, epoch, sequence, count = _BATCH.unpack_from(
            body, PREFIX_BYTES
        )
        size_bytes = len(body) - PREFIX_BYTES
        if magic != 2 or length + 12 != size_bytes or count < 1 or last_delta != count - 1:
            # A leader lets none in; whatever wrote it, it is no batch on any member alike.
            return CommandError("an entry that is not a record batch")
        partition = self.partition(topic_id, number)
        if partition is None:
            return _RESULT.pack(ErrorCode.unknown_topic_or_partition, -1)
        producer = None
        if producer_id >= 0:
            key = topic_id, number, producer_id
            producer = self._producers.get(key)
            if producer is None or epoch > producer.epoch:
                if sequence != 0:
                    return _RESULT.pack(self._code_of_unknown(key), -1)
                producer = _Producer(epoch, [])
                self._forgotten.pop(self._name_of(key), None)
            elif epoch < producer.epoch:
                return _RESULT.pack(ErrorCode.invalid_producer_epoch, -1)
            else:
                last_sequence = (sequence + count - 1) % SEQUENCES
                for first, last, base in producer.batches:
                    if (first, last) == (sequence, last_sequence):
                        return _RESULT.pack(ErrorCode.none, base)
                if sequence != (producer.batches[-1][1] + 1) % SEQUENCES:
                    return _RESULT.pack(ErrorCode.out_of_order_sequence_number, -1)
        base = partition.append(position + PREFIX_BYTES, size_bytes, time_ms, count)
        if producer is not None:
            producer.batches.append((sequence, (sequence + count - 1) % SEQUENCES, base))
            del producer.batches[:-KEPT_BATCHES]
            self._producers[key] = producer
            self._producers.move_to_end(key)
            if len(self._producers) > MOST_PRODUCERS:
                self._forget(next(iter(self._producers)))
        grown.add(partition)
        return _RESULT.pack(ErrorCode.none, base)

    def _name_of(self, key: _ProducerKey) -> tuple[str, int, int]:
        topic_id, number, producer_id = key
        return self.by_id[topic_id].name, number, producer_id

    def _forget(self, key: _ProducerKey) -> None:
        del self._producers[key]
        self._forgotten[self._name_of(key)] = None
        if len(self._forgotten) > MOST_PRODUCERS:
            del self._forgotten[next(iter(self._forgotten))]

    def _code_of_unknown(self, key: _ProducerKey) -> ErrorCode:
        """For a batch that is not the producer's first. Earlier ones may be in flight: then clients send
        it again after them. A producer that was forgotten has to begin anew, with another id."""
        if self._name_of(key) in self._forgotten:
            return ErrorCode.unknown_producer_id
        return ErrorCode.out_of_order_sequence_number

    def _command(self, body: memoryview) -> bytes | CommandError:
        try:
            kind, time_ms = _TIMED.unpack_from(body)
            command = _commands.decode(body[_TIMED.size :]) if kind == _COMMAND else None
        except (struct.error, msgspec.DecodeError, UnicodeDecodeError):
            command = None
        if command is not None:
            # A leader's clock may be slow; offsets committed under it would be old at once.
            self._time_ms = time_ms = max(self._time_ms, time_ms)
        codes = [ErrorCode.none]
        if isinstance(command, CreateKafkaTopic):
            codes = [self._create(command)]
        elif isinstance(command, DeleteKafkaTopic):
            codes = [self._delete(command.topic_id)]
        elif isinstance(command, GrowKafkaTopic):
            codes = [self._grow(command)]
        elif isinstance(command, CommitKafkaOffsets):
            codes = [self._commit(command.group, *row, time_ms) for row in command.rows]
        elif isinstance(command, KeepKafkaOffsets):
            self._keep(command, time_ms)
        elif isinstance(command, DeleteKafkaGroup):
            found = self.groups.pop(command.group, None)
            self._had_members_ms.pop(command.group, None)
            self._offsets -= len(found or ())
            codes = [ErrorCode.group_id_not_found if found is None else ErrorCode.none]
        else:
            return CommandError("an entry that is not a command of this release")
        return msgspec.msgpack.encode(codes)

    def _create(self, command: CreateKafkaTopic) -> ErrorCode:
        if not TOPIC_NAME.match(command.name) or len(command.topic_id) != 16:
            return ErrorCode.invalid_topic_exception
        if command.name in self.topics or command.topic_id in self.by_id:
            return ErrorCode.topic_already_exists
        if not 1 <= command.partitions <= MOST_PARTITIONS - self.partition_count:
            return ErrorCode.invalid_partitions
        topic = KafkaTopic(
            command.topic_id, command.name, [Partition() for _ in range(command.partitions)]
        )
        self.topics[topic.name] = self.by_id[topic.topic_id] = topic
        return ErrorCode.none

    def _delete(self, topic_id: bytes) -> ErrorCode:
        topic = self.by_id.get(topic_id)
        if topic is None:
            return ErrorCode.unknown_topic_id
        for key in [key for key in self._producers if key[0] == topic_id]:
            self._forget(key)
        del self.topics[topic.name], self.by_id[topic_id]
        for offsets in self.groups.values():
            for place in [place for place in offsets if place[0] == topic_id]:
                del offsets[place]
                self._offsets -= 1
        self._grown(set(topic.partitions))  # whoever waits for more of it hears that it is gone
        return ErrorCode.none

    def _grow(self, command: GrowKafkaTopic) -> ErrorCode:
        topic = self.by_id.get(command.topic_id)
        if topic is None:
            return ErrorCode.unknown_topic_id
        more = command.partitions - len(topic.partitions)
        if not 1 <= more <= MOST_PARTITIONS - self.partition_count:
            return ErrorCode.invalid_partitions
        topic.partitions = [*topic.partitions, *(Partition() for _ in range(more))]
        return ErrorCode.none

    def _keep(self, command: KeepKafkaOffsets, time_ms: int) -> None:
        since_ms = self._last_count_ms
        for group, offsets in self.groups.items() if command.is_first else ():
            if self._had_members_ms.get(group, -1) >= since_ms or any(
                each.time_ms >= since_ms for each in offsets.values()
            ):
                self._had_members_ms[group] = time_ms
        if self._count_ms < 0:
            self._count_ms = time_ms
        for group in command.with_members:
            if group in self.groups:
                self._had_members_ms[group] = time_ms
        if command.retention_ms is None:
            return
        self._last_count_ms, self._count_ms = self._count_ms, -1
        before_ms = time_ms - command.retention_ms
        for group, offsets in list(self.groups.items()):
            if self._had_members_ms.get(group, before_ms) > before_ms:
                continue
            for place in [place for place, each in offsets.items() if each.time_ms <= before_ms]:
                del offsets[place]
                self._offsets -= 1
            if not offsets:
                del self.groups[group]
                self._had_members_ms.pop(group, None)

    def _commit(
        self, group: str, topic_id: bytes, number: int, committed: CommittedOffset, time_ms: int
    ) -> ErrorCode:
        if self.partition(topic_id, number) is None:
            return ErrorCode.unknown_topic_or_partition
        offsets = self.groups.get(group)
        if offsets is None or (topic_id, number) not in offsets:
            if self._offsets >= MOST_OFFSETS:
                return ErrorCode.policy_violation
            self._offsets += 1
            offsets = self.groups.setdefault(group, {})
        offsets[topic_id, number] = msgspec.structs.replace(committed, time_ms=time_ms)
        return ErrorCode.none

    def query(self, question: bytes) -> bytes:
        """See `places`. An empty question has an empty answer: it confirms that all acknowledged
        entries are applied here. Raises CommandError."""
        if not question:
            return b""
        try:
            asked = _questions.decode(question)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise CommandError("a query that this release does not know") from None
        if isinstance(asked, TopicsQuestion):
            return msgspec.msgpack.encode(sorted(self.topics))
        return msgspec.msgpack.encode(self._places(asked))

    def _places(self, asked: PlacesQuestion) -> PlacesAnswer:
        wanted = self.topics.keys() if asked.topics is None else set(asked.topics)
        found: list[PartitionPlaces] = []
        left, after = MOST_PLACES, asked.after or ("", -1, -1)
        rest: Cursor | None = None
        for name in sorted(wanted & self.topics.keys()):
            for number, partition in enumerate(self.topics[name].partitions):
                if (name, number) < after[:2] or rest is not None:
                    continue
                first = asked.first_position
                if (name, number) == after[:2]:
                    first = max(first, after[2] + 1)
                positions, bases = partition.places(
                    first + ROOM_BYTES, asked.stop_position + ROOM_BYTES, left
                )
                if not len(positions):
                    continue
                left -= len(positions)
                column = np.asarray(positions, "<i8") - ROOM_BYTES
                found.append(
                    PartitionPlaces(name, number, column.tobytes(), np.asarray(bases, "<i8").tobytes())
                )
                if not left:
                    rest = name, number, int(column[-1])
        begin = max(self._dropped_below, self._log_begin())
        return PlacesAnswer(begin, sorted(wanted - self.topics.keys()), found, rest)

    # ---------------------------------------------------------------- snapshots

    def save_slices(self, writer: SnapshotWriter) -> Iterator[None]:
        self._saves += 1  # what an index has stays where it is meanwhile
        try:
            partitions = [each for topic in self.topics.values() for each in topic.partitions]
            rows = [len(each.index.bases) for each in partitions]
            saved = _Saved(
                [
                    _SavedTopic(
                        topic.topic_id,
                        topic.name,
                        [(each.end_offset, len(each.index.bases)) for each in topic.partitions],
                    )
                    for topic in self.topics.values()
                ],
                [(*key, producer) for key, producer in self._producers.items()],
                {
                    group: [(*place, committed) for place, committed in offsets.items()]
                    for group, offsets in self.groups.items()
                },
                self._had_members_ms,
                self._dropped_below,
                self._time_ms,
                self._count_ms,
                self._last_count_ms,
            )
            data = msgspec.msgpack.encode(saved)
            writer.write(_LENGTH.pack(len(data)))
            writer.write(data)
            yield
            for partition, count in zip(partitions, rows, strict=True):
                for column in partition.index:
                    for first in range(0, count, _SAVED_ROWS):
                        writer.write(column[first : min(first + _SAVED_ROWS, count)].tobytes())
                        if count > _SAVED_ROWS:
                            yield
        finally:
            self._saves -= 1

    def save(self, writer: SnapshotWriter) -> None:
        for _ in self.save_slices(writer):
            pass

    def load(self, reader: SnapshotReader) -> None:
        (size,) = _LENGTH.unpack(reader.read(_LENGTH.size))
        saved = msgspec.msgpack.decode(reader.read(size), type=_Saved)
        self.clear()
        for each in saved.topics:
            partitions = []
            for end_offset, rows in each.partitions:
                index = _Index.empty()
                for column in index:
                    column.frombytes(reader.read(rows * column.itemsize))
                partitions.append(Partition(end_offset, index))
            topic = KafkaTopic(each.topic_id, each.name, partitions)
            self.topics[topic.name] = self.by_id[topic.topic_id] = topic
        for topic_id, number, producer_id, producer in saved.producers:
            self._producers[topic_id, number, producer_id] = producer
        for group, committed in saved.groups.items():
            self.groups[group] = {(topic_id, number): each for topic_id, number, each in committed}
            self._offsets += len(committed)
        self._had_members_ms = saved.had_members_ms
        self._dropped_below = saved.dropped_below
        self._time_ms = saved.time_ms
        self._count_ms, self._last_count_ms = saved.count_ms, saved.last_count_ms

    def clear(self) -> None:
        """A request that waits for a replaced partition is not woken; it ends by its own time-out."""
        self._producers.clear()
        self._forgotten.clear()
        self._offsets = self._dropped_below = self._time_ms = self._last_count_ms = 0
        self._count_ms = -1
        self.topics, self.by_id, self.groups, self._had_members_ms = {}, {}, {}, {}


class KafkaMachines:
    """Factory of a member's machines; `newest` is the current one."""

    version = KafkaMachine.version
    may_leave_out = KafkaMachine.may_leave_out

    def __init__(self, make: Callable[[], KafkaMachine]) -> None:
        self._make = make
        self.newest: KafkaMachine | None = None
        """None: no log has bound the machine yet."""
        self.filler = EndpointOnly()

    def __call__(self) -> KafkaMachine:
        """Called on the thread that applies entries."""
        self.newest = self._make()
        return self.newest


class EndpointOnly:
    """Accepts entries only from the endpoint in the leader's own process, which has checked them."""

    def __init__(self) -> None:
        self.checked: EntryBatch | None = None

    def check(self, batch: EntryBatch) -> None:
        """Raises BadRequest."""
        if batch is not self.checked:
            raise BadRequest(
                "entries of the state machine kafka are written only through the port of --kafka"
            )

    def fill(self, batch: EntryBatch, first: EntryId, positions: Int64Array, time_ms: int) -> None:
        """Set the time of commands."""
        for body in batch.bodies():
            if body[0] == _COMMAND:
                _TIMED.pack_into(body, 0, _COMMAND, time_ms)
