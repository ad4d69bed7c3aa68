"""What master and slave say, cut anywhere, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import msgspec
import pytest

from quorumlog.broker.epochs import Epoch, EpochHistory, Peer, Run
from quorumlog.broker.message import PutMessageResult
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.replication.acknowledgements import Member
from quorumlog.broker.replication.links import (
    HaCodec,
    Heartbeat,
    MasterLink,
    RecordAssembler,
    Refuse,
    SlaveLink,
    SlaveLog,
    fed,
)
from quorumlog.broker.replication.replica import BrokerReplica
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.replication.rocketmq_links import (
    RocketmqMasterLink,
    RocketmqSlaveLink,
)
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.errors import ProtocolViolation
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.testing.disk import SimDisk
from quorumlog.version import VERSION
from sim.replicas.machines import Moments
from sim.replicas.world import World
from tests.broker.store.store_making import (
    SMALL,
    is_ok,
    numbered,
    numbers_in_queue,
    put,
    put_and_work,
    records_of,
    work,
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
    world = World(seed, brokers=1, copies=1)
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
    with pytest.raises(ProtocolViolation, match="is not a record"):
        RecordAssembler(0, FILE_BYTES).feed(b"\xff" * 100)
    with pytest.raises(ProtocolViolation, match="names another position"):
        RecordAssembler(FILE_BYTES, FILE_BYTES).feed(data)


def test_frames_that_are_none_close_the_connection() -> None:
    world, _ = lone_world(2, 3)
    master = world.brokers["a"].living
    refusal = b"".join(HaCodec().encode(Refuse(message="x")))
    for garbage in (b"\0" * 40, b"\xff" * 40, (12).to_bytes(8), refusal):
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


def test_a_slave_whose_log_begins_above_what_is_to_be_cut_off_does_not_follow() -> None:
    """It has deleted by age what both had; the master was made one with --unsafe."""
    world = World(5, brokers=2)
    master, slave = world.brokers["a"].living, world.brokers["b"].living
    history = EpochHistory([Run(1, "a1", 0, 0), Run(1, "b1", 0, 900)])
    own = slave.own_log()._replace(history=history, min_offset=4096, max_offset=8192)
    link = SlaveLink(own, 0, **TIMES)
    theirs = MasterLink(master, 0, **TIMES)
    theirs._history = EpochHistory([Run(1, "a1", 0, 0), Run(2, "a1", 0, 900)])
    theirs.feed(b"".join(link.out), 1)
    link.feed(b"".join(theirs.out), 1)
    assert "one of them begins at 4096: the records between were deleted by age. Stop" in link.closed
    assert link.refused


def test_whole_frames_and_single_bytes_mean_the_same() -> None:
    world = World(3, brokers=2)
    hello = b"".join(SlaveLink(world.brokers["b"].living.own_log(), 0, **TIMES).out)
    codec = HaCodec()
    said = [each for at in range(len(hello)) for each in fed(codec, hello[at : at + 1])]
    assert [type(each) for each in said] == [Hello, SlaveLog]
    assert said == list(fed(HaCodec(), hello))


def test_a_slave_and_its_master_tell_their_releases() -> None:
    world = World(5, brokers=2)
    world.connect("b")
    for _ in range(4):
        world.pump("b", 1 << 20)
    follow = world.wires["b"].slave_link._welcome
    assert follow is not None
    assert follow.release == VERSION
    assert [each.release for each in world.brokers["a"].living.slaves()] == [VERSION]


def test_a_slave_is_told_once_what_is_confirmed() -> None:
    """A frame of the log says it too, and a message of its own would keep the slave from its disk."""
    world = World(5, brokers=2)
    world.connect("b")
    for _ in range(4):
        world.pump("b", 1 << 20)
    link = world.wires["b"].master_link
    assert isinstance(link, MasterLink)
    world.put(world.brokers["a"])
    link.confirmed()
    link.out.clear()
    link.confirmed()
    assert not link.out
    commit_log = world.brokers["a"].living.store.commit_log
    commit_log.flush(0)
    commit_log.replicated_offset = commit_log.max_offset
    link.data(commit_log.read_bytes(link.next_offset, 1 << 20))
    link.confirmed()
    assert not link.out
    link.tick(link._spoke_ms + link._heartbeat_ms)
    (beat,) = fed(HaCodec(), b"".join(link.out))
    assert isinstance(beat, Heartbeat)
    assert beat.confirm_offset == commit_log.max_offset


def test_whoever_is_no_slave_is_told_whose_port_it_is() -> None:
    world, _ = lone_world(2, 3)
    link = MasterLink(world.brokers["a"].living, 0, **TIMES)
    link.feed(b"".join(HaCodec().encode(Hello(role="client"))), 1)
    (answer,) = fed(HaCodec(), b"".join(link.out))
    assert isinstance(answer, HelloResponse)
    assert (
        answer.message == link.closed == "this is the port for the slaves of broker a; it listens at a"
    )


def test_a_slave_gets_the_log_from_where_the_master_begins() -> None:
    world = World(4, brokers=2, copies=1)
    a, b = world.brokers["a"].living, world.brokers["b"].living
    filled(world, 40)
    a.store.cleaner.drop_before(FILE_BYTES)
    for _ in range(60):
        world.connect("b")
        world.pump("b", 1 << 20)
        world.brokers["b"].work()
        world.note()
        if [each.lag_bytes for each in a.slaves() if not a.counts(each.member)] == [0]:
            a.add("b")
    assert b.min_offset == a.min_offset == FILE_BYTES
    assert b.max_offset == b.confirm_offset == a.max_offset
    assert numbers_in_queue(b.store) == numbers_in_queue(a.store)
    assert b.role is BrokerRole.SLAVE
    (slave,) = a.slaves()
    assert a.counts(slave.member)
    assert (slave.lag_bytes, slave.lag_ms, slave.is_caught_up) == (0, 0, True)


@pytest.mark.parametrize("was_there", [0, 2, 5])
@pytest.mark.parametrize("is_derived_anew", [False, True])
def test_a_slave_that_begins_where_its_master_does_knows_how_many_messages_came_before(
    was_there: int, is_derived_anew: bool
) -> None:
    """Of a queue whose messages retention has taken, none comes with the log."""
    world = World(6, brokers=2, copies=1)
    a, b = world.brokers["a"], world.brokers["b"]
    rare = QueueKey("rare", 0)
    for broker in (a, b):
        broker.living.store.topics = None

    def put(topic: str, count: int) -> list[int]:
        outcomes = put_and_work(
            a.living.store, *[records_of([each]) for each in numbered(0, count, topic)]
        )
        return [outcome.queue_offset for outcome in outcomes if isinstance(outcome, PutMessageResult)]

    def follow() -> None:
        for _ in range(60):
            world.connect("b")
            world.pump("b", 1 << 20)
            b.work()
            world.note()

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
    assert world.force("b") == ""
    b.living.store.topics = None
    for key, expected in ((rare, 5), (QueueKey("many", 0), 55)):
        (outcome,) = put_and_work(b.living.store, records_of(numbered(0, 1, key.topic)))
        assert isinstance(outcome, PutMessageResult)
        assert outcome.queue_offset == expected


def test_a_slave_that_has_lost_its_log_with_the_power_forgets_where_queues_began() -> None:
    """It had followed a master of which retention had taken the first messages; this one has them."""
    world = World(6, brokers=2, copies=1)
    a, b = world.brokers["a"], world.brokers["b"]
    key = QueueKey("t", 0)
    store = b.living.store
    begin = store.commit_log.files.segment_bytes
    store.begin_anew_at(begin, {key: 3})
    b.crash(world.random, power=False)
    for path in b.disk.paths():
        if path.startswith(f"{store.root}/commitlog/"):
            b.disk.delete(path)
    b.start()
    assert b.living.max_offset == 0
    assert b.living.store.queues.queue_of(key).max_offset == 3
    put_and_work(a.living.store, *[records_of([each]) for each in numbered(0, 5)])
    for _ in range(60):
        world.connect("b")
        world.pump("b", 1 << 20)
        b.work()
        world.note()
    queue = b.living.store.queues.queue_of(key)
    assert (queue.min_offset, queue.max_offset) == (0, 5)
    b.crash(world.random, power=False)
    b.start()
    queue = b.living.store.queues.queue_of(key)
    assert (queue.min_offset, queue.max_offset) == (0, 5)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_slave_is_told_of_topics_that_were_made_again(is_known: bool) -> None:
    """0 comes twice in the log that it copies."""
    world = World(6, brokers=2, copies=1)
    a, b = world.brokers["a"], world.brokers["b"]
    again = QueueKey("again", 0)
    for broker in (a, b):
        broker.living.store.topics = None
    store = a.living.store
    put_and_work(store, *[records_of([each]) for each in numbered(0, 5, "again")])
    if is_known:  # of what its master told before
        for _ in range(60):
            world.connect("b")
            world.pump("b", 1 << 20)
            b.work()
        assert numbers_in_queue(b.living.store, "again") == list(range(5))
        world.cut("b")
    store.queues.hide({again: a.living.max_offset}, 0)  # as at the first start on a Java broker's store
    store.commit_log.next_queue_offsets.pop(again)
    put_and_work(store, *[records_of([each]) for each in numbered(5, 3, "again")])
    for _ in range(60):
        world.connect("b")
        world.pump("b", 1 << 20)
        b.work()
    assert numbers_in_queue(b.living.store, "again") == [5, 6, 7]
    for _ in range(2):
        b.crash(world.random, power=False)
        b.start()
        assert numbers_in_queue(b.living.store, "again") == [5, 6, 7]
    a.crash(world.random, power=False)
    assert world.force("b") == ""
    b.living.store.topics = None
    (outcome,) = put_and_work(b.living.store, records_of(numbered(8, 1, "again")))
    assert isinstance(outcome, PutMessageResult)
    assert outcome.queue_offset == 3


def test_a_promise_ends_what_an_older_master_may_do() -> None:
    world = World(5, brokers=2)
    for _ in range(10):
        world.connect("b")
        world.pump("b", 1 << 20)
        world.note()
    a, b = world.brokers["a"], world.brokers["b"].living
    assert a.living.counts(Member("b", b.directory_id))
    world.put(a)
    a.work()
    b.promise(7)
    assert b.record.promised == (7, b.directory_id)
    for _ in range(5):
        world.connect("b")
        world.pump("b", 1 << 20)
    assert world.acknowledged == []
    assert b.max_offset == 0
    assert a.living.fenced_by == 7
    assert b.epoch == 7
    # Of a slave a newer epoch than its own says nothing, whoever asks it to be let in.
    asked = MasterLink(b, 0.0, **TIMES, refusal="broker b is not the master")
    slave = SlaveLink(World(7, brokers=1).brokers["a"].living.own_log(), 0.0, **TIMES)
    for message in fed(HaCodec(), b"".join(slave.out)):
        if isinstance(message, SlaveLog):
            message = msgspec.structs.replace(message, promised=Epoch(9, "c1"))
        asked.feed(b"".join(HaCodec().encode(message)), 0.0)
    b.newer_epoch(Epoch(9, "c1"), "a1")
    assert (asked.closed, b.fenced_by) == ("broker b is not the master", 0)
    world.put(a)  # and it takes nothing more
    assert world.acknowledged == []


def java_replica(role: BrokerRole, disk: SimDisk, in_sync_replicas: int = 0) -> BrokerReplica:
    """With --ha-dialect rocketmq."""
    clock = Moments()
    config = replace(SMALL, in_sync_replicas=in_sync_replicas)
    store = ReplicaStore("store", config, disk=disk, wall_clock=clock, clock=clock)
    me = Peer(id="a", address="a", ha_address="a")
    master = "m" if role is BrokerRole.SLAVE else ""
    return BrokerReplica(store, me, role, master_ha_address=master, has_epochs=False)


def java_master(in_sync_replicas: int = 2, disk: SimDisk | None = None) -> BrokerReplica:
    return java_replica(BrokerRole.SYNC_MASTER, disk or SimDisk(), in_sync_replicas)


def test_what_a_java_slave_has_a_part_of_is_neither_acknowledged_nor_shown() -> None:
    """It reports where the bytes end that have come."""
    master = java_master()
    store = master.store
    link = RocketmqMasterLink(master, "host", 0, chunk_bytes=64, **TIMES)
    link.feed((0).to_bytes(8), 1)
    puts = [put(store, records_of([each])) for each in numbered(0, 8)]
    ends = [0]
    work(store)
    log = store.commit_log
    found = log.read(0, log.max_offset)
    assert found is not None
    ends += (found.records.starts + found.records.sizes).tolist()
    assert len(ends) == 9 and puts == [[]] * 8
    for offset in range(0, log.max_offset + 1, 7):
        link.feed(offset.to_bytes(8), 1)
        work(store)
        assert log.confirm_offset in ends and log.confirm_offset <= offset
        assert numbers_in_queue(store) == list(range(ends.index(log.confirm_offset)))
    link.feed(log.max_offset.to_bytes(8), 1)
    work(store)
    assert numbers_in_queue(store) == list(range(8))
    assert all(is_ok(answer) for (answer,) in puts)


def test_a_slave_that_had_more_than_its_java_dialect_master_is_not_served_later() -> None:
    """It has other bytes, and would be given what comes behind them. One that is emptied is served."""
    master = java_master(1)
    put_and_work(master.store, records_of(numbered(0, 1)))
    end = master.max_offset

    def come(master: BrokerReplica, offset: int, host: str = "host") -> str:
        link = RocketmqMasterLink(master, host, 0, chunk_bytes=64, **TIMES)
        link.feed(offset.to_bytes(8), 1)
        return link.closed

    ahead = 3 * end
    assert "not the same" in come(master, ahead)
    assert master.has_ahead_to_note
    master.note_ahead()
    assert not master.has_ahead_to_note
    put_and_work(master.store, *[records_of([each]) for each in numbered(1, 5)])
    assert master.max_offset > ahead
    assert come(master, ahead, "other") == ""
    assert "Empty the slave's directory" in come(master, ahead)
    disk = master.store.disk
    assert isinstance(disk, SimDisk)
    disk.kill()
    master = java_master(1, disk)
    assert "Empty the slave's directory" in come(master, ahead)
    assert come(master, 0) == ""
    assert come(master, end) == ""


def java_slave(disk: SimDisk) -> RocketmqSlaveLink:
    slave = java_replica(BrokerRole.SLAVE, disk)
    own = slave.own_log()
    tail = slave.store.last_record()
    return RocketmqSlaveLink(
        own.max_offset, own.file_bytes, 0, own_tail=tail, reports_flushed=True, **TIMES
    )


def test_a_java_dialect_slave_goes_on_only_behind_the_record_that_it_has() -> None:
    world, data = lone_world(8, 40)
    disk = world.brokers["a"].disk
    log = world.brokers["a"].living.store.commit_log
    assert len(data) > FILE_BYTES
    world.brokers["a"].living.store.flush_queues(thorough=True)
    disk.kill()
    disk.delete("store/replica")
    stop = log.max_offset
    more = bytes(world.random.randbytes(40))

    def sent(position: int, body: bytes) -> bytes:
        return position.to_bytes(8) + len(body).to_bytes(4) + body

    link = java_slave(disk)
    (first,) = link.out
    begin = int.from_bytes(bytes(first))
    assert 0 < begin < stop
    link.out.clear()
    for at in range(begin, stop, 9):
        link.feed(sent(at, data[at : min(at + 9, stop)]), 1)
    assert (link.closed, [int.from_bytes(bytes(each)) for each in link.out]) == ("", [stop])
    disk.kill()
    for changed in (
        b"x" + data[begin + 1 :],
        data[begin : stop - 1] + b"x",
        data[begin : stop - 9] + more,
    ):
        link = java_slave(disk)
        link.feed(sent(begin, changed), 1)
        assert "has another record" in link.closed and link.refused
        disk.kill()
    link = java_slave(disk)
    link.feed(sent(begin, b""), 1)
    assert "sends nothing" in link.closed and link.refused


def test_with_the_java_dialect_each_start_says_what_a_broker_is() -> None:
    disk = SimDisk()
    slave = java_replica(BrokerRole.SLAVE, disk)
    assert slave.role is BrokerRole.SLAVE
    disk.kill()
    master = java_replica(BrokerRole.ASYNC_MASTER, disk)
    assert (master.role, master.is_leading, master.master) == (BrokerRole.ASYNC_MASTER, True, None)
    (answer,) = put_and_work(master.store, records_of(numbered(0, 1)))
    assert is_ok(answer)
    disk.kill()
    slave = java_replica(BrokerRole.SLAVE, disk)
    assert slave.role is BrokerRole.SLAVE and slave.max_offset == master.max_offset
    assert slave.master is not None and slave.master.ha_address == "m"
    disk.kill()
    master = java_replica(BrokerRole.SYNC_MASTER, disk)
    assert (master.role, master.is_leading, master.in_sync_replicas) == (BrokerRole.SYNC_MASTER, True, 2)


def test_two_java_slaves_of_one_host_are_both_served_and_count_as_one() -> None:
    world, data = lone_world(6, 8)
    master = world.brokers["a"].living
    master.has_epochs = False
    master._acks.lists = ()
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


def test_a_slave_that_no_list_names_fences_nobody() -> None:
    """Of another group, whose master had this address before."""
    world = World(7, brokers=1)
    master = world.brokers["a"].living
    stranger = World(8, brokers=1).brokers["a"].living.own_log()
    peer = Peer(id="x", directory_id="x of another group")
    link = SlaveLink(stranger._replace(slave=peer, promised=Epoch(5, "y1")), 0.0, **TIMES)
    asked = MasterLink(master, 0.0, **TIMES)
    asked.feed(b"".join(link.out), 1.0)
    assert "has promised epoch" in asked.closed
    assert master.fenced_by == 0
