"""The state machine beside a simple model: offsets, producers, committed offsets, what is gone."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryId
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import CommandError
from quorumlog.kafka import machine as machine_module
from quorumlog.kafka.machine import (
    ROOM_BYTES,
    CommitKafkaOffsets,
    CommittedOffset,
    CreateKafkaTopic,
    DeleteKafkaGroup,
    DeleteKafkaTopic,
    EndpointOnly,
    GrowKafkaTopic,
    KafkaMachine,
    KeepKafkaOffsets,
    Partition,
    Produced,
    decode_numbers,
    entries_of,
    entry_of,
)
from quorumlog.kafka.places import PREFIX_BYTES, find_places, topic_names
from tests.kafka.batches import made_batch

TOPIC = bytes(range(16))


class Log:
    """Entries as a log has them, one behind the other, and the machine that applies them."""

    def __init__(self) -> None:
        self.begin = 0
        self.grown: list[set[Partition]] = []
        self.machine = KafkaMachine(self.grown.append, lambda: self.begin)
        self.data = bytearray()
        self.index = 0

    def apply(self, batch: EntryBatch) -> list[bytes | CommandError | None]:
        starts = len(self.data) + batch.starts
        batch.stamp(self.index, 1, starts.tolist(), 0)
        self.index += batch.count
        self.data += batch.buffer
        return list(self.machine.apply(batch, self.index - batch.count))

    def do(self, command: object, time_ms: int = 0) -> int:
        """`time_ms`: by the log's clock."""
        batch = entry_of(command)  # type: ignore[arg-type]
        EndpointOnly().fill(batch, EntryId(self.index, 1), batch.starts, time_ms)
        (result,) = self.apply(batch)
        assert isinstance(result, bytes), result
        return decode_numbers(result)[0]

    def produce(self, data: bytes, partition: int = 0, topic: bytes = TOPIC) -> tuple[int, int]:
        (result,) = self.apply(entries_of([(topic, partition, data)]))
        assert isinstance(result, bytes), result
        return Produced.of(result)

    def read(
        self, offset: int, most_bytes: int = 1 << 30, partition: int = 0
    ) -> list[tuple[int, bytes]]:
        found = self.machine.by_id[TOPIC].partitions[partition].find(offset, most_bytes)
        return [
            (each.base_offset, bytes(self.data[each.position :][: each.size_bytes])) for each in found
        ]

    def saved(self) -> bytes:
        stream = Stream()
        self.machine.save(stream)
        return bytes(stream.data)


class Stream:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def read(self, size_bytes: int = -1) -> bytes:
        stop = len(self.data) if size_bytes < 0 else size_bytes
        found, self.data = bytes(self.data[:stop]), self.data[stop:]
        return found


def a_log(partitions: int = 1) -> Log:
    log = Log()
    assert log.do(CreateKafkaTopic(TOPIC, "orders", partitions)) == 0
    return log


def a_batch(count: int = 1, producer: tuple[int, int, int] = (-1, -1, -1), timestamp: int = 1) -> bytes:
    return made_batch([b"value"] * count, producer=producer, timestamp=timestamp)


# ---------------------------------------------------------------- records


def test_records_are_numbered_in_the_order_of_the_log() -> None:
    log = a_log(partitions=2)
    first, second = a_batch(3), a_batch(2)
    assert log.produce(first) == (0, 0)
    assert log.produce(second, partition=1) == (0, 0)
    assert log.produce(second) == (0, 3)
    assert log.read(0) == [(0, first), (3, second)]
    assert log.read(2) == [(0, first), (3, second)]
    assert log.read(3) == [(3, second)]
    assert log.read(5) == []
    assert log.read(0, most_bytes=1) == [(0, first)]


def test_several_batches_of_one_request_are_several_entries() -> None:
    log = a_log(partitions=2)
    batches = [(TOPIC, 0, a_batch(2)), (TOPIC, 1, a_batch(1)), (TOPIC, 0, a_batch(1))]
    results = [Produced.of(each) for each in log.apply(entries_of(batches))]
    assert results == [(0, 0), (0, 0), (0, 2)]


def test_a_batch_with_room_in_front_of_it_becomes_an_entry_where_it_lies() -> None:
    data = a_batch(3)
    frame = bytearray(b"." * ROOM_BYTES + data + b"behind")
    (copied,) = entries_of([(TOPIC, 3, data)]).bodies()
    batch = entries_of([(TOPIC, 3, memoryview(frame)[ROOM_BYTES : -len(b"behind")])])
    (body,) = batch.bodies()
    assert bytes(body) == bytes(copied)
    assert body.obj is frame
    assert frame.endswith(data + b"behind")
    (body,) = entries_of([(TOPIC, 3, memoryview(frame)[ROOM_BYTES - 1 : -len(b"behind")])]).bodies()
    assert body.obj is not frame


def test_a_topic_that_is_not_there_takes_nothing() -> None:
    log = a_log()
    unknown = ErrorCode.unknown_topic_or_partition
    assert log.produce(a_batch(), topic=bytes(16)) == (unknown, -1)
    assert log.produce(a_batch(), partition=1) == (unknown, -1)
    assert log.produce(a_batch(), partition=-1) == (unknown, -1)
    assert log.do(DeleteKafkaTopic(TOPIC)) == 0
    assert log.produce(a_batch()) == (unknown, -1)


def test_what_is_no_entry_of_this_machine_is_refused_and_changes_nothing() -> None:
    log = a_log()
    before = log.saved()
    bodies = [b"", b"\2", b"\2\x91\x63", b"\1" + bytes(100), b"\7whatever"]
    results = log.apply(EntryBatch.from_bodies(bodies))
    assert all(isinstance(each, CommandError) for each in results)
    assert log.saved() == before


# ---------------------------------------------------------------- producers


def test_a_batch_that_comes_again_is_there_once() -> None:
    log = a_log()
    sent = [a_batch(2, producer=(7, 0, 2 * number)) for number in range(6)]
    assert [log.produce(each) for each in sent] == [(0, 2 * number) for number in range(6)]
    assert [log.produce(each) for each in sent[1:]] == [(0, 2 * number) for number in range(1, 6)]
    assert log.produce(sent[0])[0] == ErrorCode.out_of_order_sequence_number
    assert [base for base, _ in log.read(0)] == [0, 2, 4, 6, 8, 10]


def test_a_gap_in_a_producer_s_sequence_is_refused() -> None:
    log = a_log()
    out_of_order = (ErrorCode.out_of_order_sequence_number, -1)
    assert log.produce(a_batch(producer=(7, 0, 1))) == out_of_order
    assert log.produce(a_batch(producer=(7, 0, 0))) == (0, 0)
    assert log.produce(a_batch(producer=(7, 0, 2))) == out_of_order
    assert log.produce(a_batch(producer=(7, 0, 1))) == (0, 1)


def test_a_producer_of_a_topic_that_was_created_again_is_told_to_begin_anew() -> None:
    """Clients end at a gap in the sequence of a producer that is known; here they take another id."""
    log, again = a_log(), bytes(16)
    log.produce(a_batch(producer=(7, 0, 0)))
    assert log.do(DeleteKafkaTopic(TOPIC)) == 0
    assert log.do(CreateKafkaTopic(again, "orders", 1)) == 0
    assert log.produce(a_batch(producer=(7, 0, 1)), topic=again) == (ErrorCode.unknown_producer_id, -1)
    out_of_order = (ErrorCode.out_of_order_sequence_number, -1)
    assert log.produce(a_batch(producer=(8, 0, 1)), topic=again) == out_of_order
    assert log.produce(a_batch(producer=(7, 1, 0)), topic=again) == (0, 0)
    assert log.produce(a_batch(producer=(7, 1, 5)), topic=again) == out_of_order


def test_a_producer_that_made_room_for_others_is_told_to_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_module, "MOST_PRODUCERS", 2)
    log = a_log()
    for producer_id in (1, 2, 3, 4, 5):
        assert log.produce(a_batch(producer=(producer_id, 0, 0)))[0] == 0
    codes = [log.produce(a_batch(producer=(each, 0, 1)))[0] for each in (1, 2, 3, 4, 5)]
    out_of_order, unknown = ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id
    assert codes == [out_of_order, unknown, unknown, 0, 0]  # of the first not even that is known


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_with_zero() -> None:
    log = a_log()
    assert log.produce(a_batch(producer=(7, 1, 0))) == (0, 0)
    assert log.produce(a_batch(producer=(7, 0, 0))) == (ErrorCode.invalid_producer_epoch, -1)
    assert log.produce(a_batch(producer=(7, 2, 1)))[0] == ErrorCode.out_of_order_sequence_number
    assert log.produce(a_batch(producer=(7, 2, 0))) == (0, 1)
    assert log.produce(a_batch(producer=(7, 1, 1))) == (ErrorCode.invalid_producer_epoch, -1)


def test_sequences_begin_again_behind_the_last_number() -> None:
    log = a_log()
    count = 2**31 - 2  # as its header says it
    many = made_batch([b"value"], producer=(7, 0, 0), record_count=count, last_delta=count - 1)
    assert log.produce(many) == (0, 0)
    assert log.produce(a_batch(4, producer=(7, 0, count))) == (0, count)
    assert log.produce(a_batch(4, producer=(7, 0, count))) == (0, count)
    assert log.produce(a_batch(producer=(7, 0, 2))) == (0, count + 4)


# ---------------------------------------------------------------- what is gone


def test_a_partition_begins_where_the_log_does() -> None:
    log = a_log()
    for _ in range(4):
        log.produce(a_batch(10))
    partition = log.machine.by_id[TOPIC].partitions[0]
    third, fourth = (each.position - HEADER_BYTES - PREFIX_BYTES for each in partition.find(20, 1 << 30))
    assert [partition.start_offset(begin) for begin in (0, third, fourth)] == [0, 20, 30]
    log.begin = third
    assert log.produce(a_batch()) == (0, 40)
    assert [base for base, _ in log.read(20)] == [20, 30, 40]
    log.begin = len(log.data)
    assert partition.start_offset(log.begin) == partition.end_offset == 41


def test_the_first_record_that_is_not_older_is_found_though_times_go_back() -> None:
    log = a_log()
    for timestamp in (100, 300, 200):
        log.produce(a_batch(10, timestamp=timestamp))  # up to 9 ms later
    partition = log.machine.by_id[TOPIC].partitions[0]

    def found(time_ms: int | None) -> int | None:
        place = partition.find_time(time_ms, 0)
        return None if place is None else place.base_offset

    assert [found(each) for each in (0, 109, 110, 309, 310, None)] == [0, 0, 10, 10, None, 10]


# ---------------------------------------------------------------- offsets and topics


def test_committed_offsets_are_of_topics_that_are_there() -> None:
    log = a_log(partitions=2)
    committed = CommittedOffset(5, -1, "said")
    rows = [(TOPIC, 0, committed), (TOPIC, 2, committed), (bytes(16), 0, committed)]
    (result,) = log.apply(entry_of(CommitKafkaOffsets("readers", rows)))
    unknown = ErrorCode.unknown_topic_or_partition
    assert isinstance(result, bytes)
    assert decode_numbers(result) == [0, unknown, unknown]
    assert log.machine.groups == {"readers": {(TOPIC, 0): committed}}
    assert log.do(DeleteKafkaTopic(TOPIC)) == 0
    assert log.machine.groups == {"readers": {}}


def test_topics_grow_and_are_refused_beyond_all_bounds() -> None:
    log = a_log()
    assert log.do(CreateKafkaTopic(TOPIC[::-1], "orders", 1)) == ErrorCode.topic_already_exists
    assert log.do(CreateKafkaTopic(TOPIC[::-1], "..", 1)) == ErrorCode.invalid_topic_exception
    assert log.do(CreateKafkaTopic(TOPIC[::-1], "large", 10_000)) == ErrorCode.invalid_partitions
    assert log.do(GrowKafkaTopic(TOPIC, 1)) == ErrorCode.invalid_partitions
    assert log.do(GrowKafkaTopic(TOPIC, 3)) == 0
    assert log.produce(a_batch(), partition=2) == (0, 0)


def commit(log: Log, group: str, time_ms: int, partition: int = 0) -> None:
    rows = [(TOPIC, partition, CommittedOffset(5, -1, ""))]
    assert log.do(CommitKafkaOffsets(group, rows), time_ms) == 0


def kept(log: Log) -> dict[str, set[int]]:
    """Partitions with committed offsets, by group."""
    return {name: {number for _, number in offsets} for name, offsets in log.machine.groups.items()}


def test_offsets_of_a_group_without_members_expire_once_they_are_old() -> None:
    log = a_log(partitions=2)
    commit(log, "gone", 1_000)
    commit(log, "idle", 1_000)
    assert log.do(KeepKafkaOffsets(["idle"], 1_000), 1_999) == 0
    assert kept(log) == {"gone": {0}, "idle": {0}}
    commit(log, "gone", 2_000, partition=1)
    log.do(KeepKafkaOffsets(["idle"], 1_000), 2_000)
    assert kept(log) == {"gone": {1}, "idle": {0}}, "a group that has members keeps its own"
    log.do(KeepKafkaOffsets([], 1_000), 2_999)
    assert kept(log) == {"gone": {1}, "idle": {0}}
    log.do(KeepKafkaOffsets([], 1_000), 3_000)
    assert kept(log) == {}


def test_nothing_expires_before_all_groups_with_members_are_named() -> None:
    log = a_log()
    commit(log, "first", 0)
    commit(log, "second", 0)
    log.do(KeepKafkaOffsets(["first"], None), 9_000)
    assert kept(log) == {"first": {0}, "second": {0}}
    log.do(KeepKafkaOffsets(["second"], 1_000), 9_000)
    assert kept(log) == {"first": {0}, "second": {0}}
    log.do(KeepKafkaOffsets([], 1_000), 10_000)
    assert kept(log) == {}


def reload(log: Log) -> None:
    saved = log.saved()
    log.machine = KafkaMachine(log.grown.append, lambda: 0)
    log.machine.load(Stream(saved))


def test_offsets_committed_under_a_leader_whose_clock_is_slow_are_kept() -> None:
    log = a_log()
    commit(log, "other", 9_000)
    reload(log)
    commit(log, "job", 1_000)
    log.do(KeepKafkaOffsets(["job"], 1_000), 1_000)
    log.do(KeepKafkaOffsets([], 1_000), 9_999)
    assert kept(log) == {"other": {0}, "job": {0}}
    log.do(KeepKafkaOffsets([], 1_000), 10_000)
    assert kept(log) == {}


def test_an_outage_counts_as_no_absence_of_members() -> None:
    log, day_ms = a_log(), 86_400_000
    for group in ("left", "here", "also"):
        commit(log, group, 0)
    log.do(KeepKafkaOffsets(["left", "here", "also"], day_ms, is_first=True), 1_000)
    log.do(KeepKafkaOffsets(["here"], None), 5_000)
    log.do(KeepKafkaOffsets(["also"], day_ms), 6_000)
    commit(log, "new", 7_000)
    log.do(KeepKafkaOffsets([], None), 8_000)  # the leader dies before the last of these
    reload(log)
    start_ms = 3 * day_ms
    log.do(KeepKafkaOffsets([], day_ms, is_first=True), start_ms)
    assert kept(log) == {"here": {0}, "also": {0}, "new": {0}}
    log.do(KeepKafkaOffsets(["also"], day_ms), start_ms + day_ms - 1)
    assert kept(log) == {"here": {0}, "also": {0}, "new": {0}}
    log.do(KeepKafkaOffsets([], day_ms), start_ms + day_ms)
    assert kept(log) == {"also": {0}}


def test_a_snapshot_knows_which_groups_had_members() -> None:
    log = a_log()
    commit(log, "idle", 0)
    log.do(KeepKafkaOffsets(["idle"], 1_000), 5_000)
    reload(log)
    log.do(KeepKafkaOffsets([], 1_000), 5_999)
    assert kept(log) == {"idle": {0}}
    log.do(KeepKafkaOffsets([], 1_000), 6_000)
    assert kept(log) == {}


def test_a_snapshot_of_an_earlier_build_is_read() -> None:
    log = a_log()
    commit(log, "g", 5)
    log.do(KeepKafkaOffsets(["g"], 1_000), 5_000)
    data = log.saved()
    size = int.from_bytes(data[:8], "big")
    head = msgspec.msgpack.encode(msgspec.msgpack.decode(data[8 : 8 + size])[:4])
    log.machine.load(Stream(len(head).to_bytes(8, "big") + head + data[8 + size :]))
    assert kept(log) == {"g": {0}}
    log.do(KeepKafkaOffsets([], 1_000), 5_999)
    assert kept(log) == {"g": {0}}
    log.do(KeepKafkaOffsets([], 1_000), 6_000)
    assert kept(log) == {}


def test_a_snapshot_knows_which_batches_its_member_had_dropped() -> None:
    log = a_log()
    for _ in range(4):
        log.produce(a_batch())
    positions = find_places(log.machine.query, None, 0, len(log.data)).places.positions.tolist()
    log.begin = positions[2]
    log.produce(a_batch())
    # Another member's log still begins at 0; that the first batches are unknown here must be told.
    machine = KafkaMachine(log.grown.append, lambda: 0)
    machine.load(Stream(log.saved()))
    found = find_places(machine.query, ["orders"], 0, len(log.data))
    assert found.begin_position == positions[2]
    assert found.places.positions.tolist()[:2] == positions[2:]
    stream = Stream()
    machine.save(stream)
    assert bytes(stream.data) == log.saved()
    machine.clear()
    assert find_places(machine.query, None, 0, 1).begin_position == 0


# ---------------------------------------------------------------- model


@dataclass
class Model:
    """One partition, and what its producers have sent, the plain way."""

    records: list[bytes] = field(default_factory=list)
    sent: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    """By producer and epoch: first sequence and base offset of each batch."""
    epochs: dict[int, int] = field(default_factory=dict)

    def produce(self, data: bytes, count: int, producer: tuple[int, int, int]) -> tuple[int, int]:
        producer_id, epoch, sequence = producer
        if producer_id >= 0:
            if epoch < self.epochs.get(producer_id, 0):
                return ErrorCode.invalid_producer_epoch, -1
            batches = self.sent.get((producer_id, epoch), [])
            for first, base in batches[-5:]:
                if first == sequence:  # all batches with one first sequence are equally long here
                    return 0, base
            expected = batches[-1][0] + count_at(batches[-1][0]) if batches else 0
            if sequence != expected:
                return ErrorCode.out_of_order_sequence_number, -1
            self.epochs[producer_id] = epoch
            self.sent.setdefault((producer_id, epoch), []).append((sequence, len(self.records)))
        base = len(self.records)
        self.records += [data] * count
        return 0, base


def count_at(sequence: int) -> int:
    return 1 + sequence % 3


STEPS = st.lists(
    st.tuples(st.integers(-1, 2), st.integers(0, 1), st.integers(0, 14), st.booleans()), max_size=60
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_producers_repeat_lose_and_mix_up_what_they_send(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    """And a snapshot in between changes nothing."""
    log, model = a_log(), Model()
    for producer_id, epoch, sequence, is_reloaded in steps:
        producer = (producer_id, epoch, sequence) if producer_id >= 0 else (-1, -1, -1)
        count = count_at(sequence)
        data = a_batch(count, producer=producer)
        assert log.produce(data) == model.produce(data, count, producer)
        if is_reloaded:
            saved = log.saved()
            log.machine = KafkaMachine(log.grown.append, lambda: 0)
            log.machine.load(Stream(saved))
            assert log.saved() == saved
    found = log.read(0)
    assert [data for _, data in found for _ in range(records_in(data))] == model.records
    assert [base for base, _ in found] == sorted({base for base, _ in found})


def records_in(data: bytes) -> int:
    return int.from_bytes(data[57:61], "big")


def test_a_snapshot_has_what_it_had_when_it_began() -> None:
    log = a_log()
    log.produce(a_batch(2, producer=(1, 0, 0)))
    before = log.saved()
    stream = Stream()
    save = log.machine.save_slices(stream)
    next(save)
    log.produce(a_batch(5))
    log.do(CreateKafkaTopic(TOPIC[::-1], "later", 1))
    for _ in save:
        pass
    assert bytes(stream.data) == before


def test_a_command_whose_text_is_no_utf_8_stops_no_member() -> None:
    log = a_log()
    (made,) = map(bytes, entry_of(DeleteKafkaGroup("group")).bodies())
    (result,) = log.apply(EntryBatch.from_bodies([made.replace(b"group", b"\xff" * 5)]))
    assert isinstance(result, CommandError)
    assert log.produce(a_batch()) == (0, 0)


@pytest.mark.parametrize("most", [1, 2, 5, 1_000])
def test_places_of_batches_are_told_in_pieces(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(machine_module, "MOST_PLACES", most)
    log = a_log(2)
    other = bytes(16)
    log.do(CreateKafkaTopic(other, "another", 1))
    positions: list[tuple[int, int, str, int]] = []
    for number in range(12):
        topic, partition = (TOPIC, number % 2) if number % 3 else (other, 0)
        position = len(log.data)
        _, base = log.produce(made_batch([b"v"] * (1 + number % 4)), partition, topic)
        positions.append((position, base, "orders" if topic == TOPIC else "another", partition))
    log.produce(made_batch([b"v"], producer=(1, 0, 9)))  # refused, and so nowhere
    ask = log.machine.query

    def found(topics: list[str] | None, first: int, stop: int) -> list[tuple[int, int, str, int]]:
        places = find_places(ask, topics, first, stop).places
        columns = zip(*(column.tolist() for column in places[:3]), strict=True)
        return [(position, base, *places.names[number]) for position, base, number in columns]

    assert topic_names(ask) == ["another", "orders"]
    assert found(None, 0, len(log.data)) == positions
    assert found(["orders", "nowhere"], 0, len(log.data)) == [p for p in positions if p[2] == "orders"]
    assert found(None, positions[3][0], positions[7][0]) == positions[3:7]
    assert find_places(ask, ["nowhere"], 0, 0).missing == ["nowhere"]
    log.begin = positions[5][0]
    log.produce(made_batch([b"v"]))
    assert find_places(ask, None, 0, log.begin + 1).begin_position == log.begin
    assert found(None, 0, len(log.data))[: len(positions) - 5] == positions[5:]
