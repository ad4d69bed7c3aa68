"""What master and slave say, cut anywhere, and what they refuse."""

from __future__ import annotations

from random import Random

import pytest

from quorumlog.broker.message_log import Role
from quorumlog.broker.messages.message import PutResult
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.replication.protocol.ha_frames import HaDecoder, Refuse, encode_control
from quorumlog.broker.replication.protocol.master_link import MasterLink
from quorumlog.broker.replication.protocol.record_assembler import RecordAssembler
from quorumlog.broker.replication.protocol.rocketmq_links import (
    RocketmqMasterLink,
    RocketmqSlaveLink,
)
from quorumlog.broker.replication.protocol.slave_link import SlaveLink
from quorumlog.broker.replication.roles import Member
from quorumlog.errors import ProtocolViolation
from tests.broker.replication.replica_world import World
from tests.broker.store.store_making import (
    SMALL,
    numbered,
    numbers_in_queue,
    put_and_work,
    records_of,
)

TIMES = {"heartbeat_ms": 1e12, "silence_ms": 1e15}
FILE_BYTES = SMALL.mapped_file_size_commit_log


def filled(world: World, count: int) -> bytes:
    """Of the master, which waits for nobody."""
    master = world.brokers["a"]
    for _ in range(count):
        world.put(master)
        master.work()
    log = master.living.store.commit_log
    return log.read_bytes(0, log.max_offset)


def lone_world(seed: int, count: int) -> tuple[World, bytes]:
    world = World(seed, brokers=1)
    world.brokers["a"].living._acks.in_sync_replicas = 1
    return world, filled(world, count)


def test_records_are_assembled_from_pieces_that_are_cut_anywhere() -> None:
    _, data = lone_world(1, 40)
    assert len(data) > 2 * FILE_BYTES, "blanks, too"
    whole = RecordAssembler(0, FILE_BYTES).feed(data)
    expected = [size for each in whole for size in each.records.sizes.tolist()]
    for seed in range(6):
        random = Random(seed)
        assembler, at, sizes, next_position = RecordAssembler(0, FILE_BYTES), 0, list[int](), 0
        while at < len(data):
            piece = data[at : at + random.choice((1, 7, 90, 3000))]
            at += len(piece)
            for found in assembler.feed(piece):
                assert found.position == next_position
                next_position = found.next_position
                assert data[found.position :].startswith(found.records.buffer)
                sizes += found.records.sizes.tolist()
            assert assembler.whole_position == next_position
        assert sizes == expected
    with pytest.raises(ProtocolViolation, match="is no record"):
        RecordAssembler(0, FILE_BYTES).feed(b"\xff" * 100)
    with pytest.raises(ProtocolViolation, match="names another position"):
        RecordAssembler(FILE_BYTES, FILE_BYTES).feed(data)


def test_frames_that_are_none_close_the_connection() -> None:
    world, _ = lone_world(2, 3)
    master = world.brokers["a"].living
    for garbage in (b"\0" * 40, b"\xff" * 40, (12).to_bytes(8), encode_control(Refuse(message="x"))):
        link = MasterLink(master, 0, **TIMES)
        link.feed(garbage, 1)
        assert link.closed, garbage
    java = MasterLink(master, 0, **TIMES)
    java.feed((0).to_bytes(8), 1)
    assert "--ha-dialect rocketmq" in java.closed
    slave = SlaveLink(master.own_log(), 0, **TIMES)
    slave.feed((7).to_bytes(8) + (4).to_bytes(4) + b"abcd", 1)
    assert "--ha-dialect rocketmq" in slave.closed
    theirs = RocketmqSlaveLink(0, FILE_BYTES, 0, reports_flushed=True, **TIMES)
    theirs.feed((3).to_bytes(8) + (4).to_bytes(4) + b"abcd", 1)
    assert "begins with a file" in theirs.closed


def test_whole_frames_and_single_bytes_mean_the_same() -> None:
    world = World(3, brokers=2)
    hello = b"".join(SlaveLink(world.brokers["b"].living.own_log(), 0, **TIMES).out)
    decoder = HaDecoder()
    frames = [frame for at in range(len(hello)) for frame in decoder.feed(hello[at : at + 1])]
    assert frames == list(HaDecoder().feed(hello))


def test_a_slave_gets_the_log_from_where_the_master_begins() -> None:
    world = World(4, brokers=2)
    a, b = world.brokers["a"].living, world.brokers["b"].living
    a._acks.in_sync_replicas = 1
    filled(world, 40)
    a.store.cleaner.drop_before(FILE_BYTES)
    for _ in range(60):
        world.connect("b")
        world.pump("b", 1 << 20)
        world.brokers["b"].work()
        world.join()
    assert b.min_offset == a.min_offset == FILE_BYTES
    assert b.max_offset == b.confirm_offset == a.max_offset
    assert numbers_in_queue(b.store) == numbers_in_queue(a.store)
    assert b.role is Role.SLAVE
    (slave,) = a.slaves()
    assert a.counts(slave.member)
    assert (slave.lag_bytes, slave.lag_ms, slave.is_caught_up) == (0, 0, True)


@pytest.mark.parametrize("was_there", [0, 2, 5])
@pytest.mark.parametrize("is_derived_anew", [False, True])
def test_a_slave_that_begins_where_its_master_does_knows_how_many_messages_came_before(
    was_there: int, is_derived_anew: bool
) -> None:
    """Of a queue whose messages retention has taken, none comes with the log."""
    world = World(6, brokers=2)
    a, b = world.brokers["a"], world.brokers["b"]
    a.living._acks.in_sync_replicas = 1
    rare = QueueKey("rare", 0)
    for broker in (a, b):
        broker.living.store.topics = None

    def put(topic: str, count: int) -> list[int]:
        outcomes = put_and_work(
            a.living.store, *[records_of([each]) for each in numbered(0, count, topic)]
        )
        return [outcome.queue_offset for outcome in outcomes if isinstance(outcome, PutResult)]

    def follow() -> None:
        for _ in range(60):
            world.connect("b")
            world.pump("b", 1 << 20)
            b.work()
            world.join()

    put("rare", was_there)
    put("many", 2 * was_there)
    if was_there:
        follow()
        assert b.living.max_offset == a.living.max_offset
    world.cut("b")
    put("rare", 5 - was_there)
    put("many", 55 - 2 * was_there)
    put("t", 40)
    stop = a.living.store.commit_log.files.base_of(a.living.max_offset)
    a.living.store.cleaner.drop_before(stop)
    follow()
    assert b.living.min_offset == stop
    if is_derived_anew:
        b.work()
        b.living.store.flush_queues(thorough=True)
        for queue in b.living.store.queues.all:
            for file in queue.files.files:
                b.disk.delete(file.path)
    b.crash(world.random, power=False)
    b.start()
    a.crash(world.random, power=False)
    assert world.switch("b", unsafe=True) == ""
    b.living._acks.in_sync_replicas = 1
    b.living.store.topics = None
    for key, expected in ((rare, 5), (QueueKey("many", 0), 55)):
        (outcome,) = put_and_work(b.living.store, records_of(numbered(0, 1, key.topic)))
        assert isinstance(outcome, PutResult)
        assert outcome.queue_offset == expected


def test_a_promise_ends_what_an_older_master_may_do() -> None:
    world = World(5, brokers=2)
    for _ in range(10):
        world.connect("b")
        world.pump("b", 1 << 20)
        world.join()
    a, b = world.brokers["a"], world.brokers["b"].living
    assert a.living.counts(Member("b", b.directory_id))
    world.put(a)
    a.work()
    b.promise(7)
    for _ in range(5):
        world.connect("b")
        world.pump("b", 1 << 20)
    assert world.acknowledged == []
    assert b.max_offset == 0
    assert a.living.fenced_by == 7
    assert b.epoch == 7
    world.put(a)  # and it takes nothing more
    assert world.acknowledged == []


def test_two_java_slaves_of_one_host_are_both_served_and_count_as_one() -> None:
    world, data = lone_world(6, 8)
    master = world.brokers["a"].living
    master.has_epochs = False
    links = []
    for _ in range(2):
        link = RocketmqMasterLink(master, "10.0.0.9", 0, chunk_bytes=FILE_BYTES, **TIMES)
        link.feed((0).to_bytes(8), 1)
        links.append(link)
    assert [link.closed for link in links] == ["", ""]
    assert [b"".join(link.data(data[:FILE_BYTES]))[12:] for link in links] == [data[:FILE_BYTES]] * 2
    links[1].feed(len(data).to_bytes(8), 2)
    (slave,) = master.slaves()
    assert (slave.id, slave.written_offset, slave.is_connected) == ("10.0.0.9", len(data), True)
    for link, is_connected in zip(links, (True, False), strict=True):
        assert link.mark is not None
        master.slave_lost(link.mark, link)
        assert [each.is_connected for each in master.slaves()] == [is_connected]
