"""A slave of the release before and a new master, and the reverse: what is served, and what counts."""

from __future__ import annotations

import pytest

from quorumlog.broker.epochs import (
    CopyList,
    Epoch,
    EpochHistory,
    Peer,
    Run,
    common_offset,
    judge,
)
from quorumlog.broker.errors import SwitchRefused
from quorumlog.broker.replication import links as old
from quorumlog.broker.replication.links import (
    AnyHaMessage,
    OldMasterCodec,
    OldMasterLink,
    Report,
    State,
    Welcome,
)
from quorumlog.errors import ProtocolViolation
from sim.replicas.world import World
from tests.broker.replication.test_switching import following, group, listed
from tests.broker.store.store_making import numbers_in_queue

TIMES = {"heartbeat_ms": 1e12, "silence_ms": 1e15}


def upgraded(world: World) -> World:
    world.upgrade()
    return world


def test_a_slave_of_the_release_before_counts_under_the_list_that_does_not_change() -> None:
    world = upgraded(group(3, brokers=3, copies=2))
    world.old = {"b"}
    world.away = {"c"}
    following(world)
    a, b, _ = world.brokers.values()
    world.put(a)
    following(world)
    assert world.acknowledged == [0]
    assert numbers_in_queue(b.living.store) == [0]
    assert listed(world, "b") == ["a", "b", "c"]
    why = ""
    for change in (lambda: a.living.remove("c"), lambda: a.living.set_copies(3)):
        try:
            change()
        except SwitchRefused as refused:
            why = str(refused)
        assert "broker b is of the release before" in why
    # What it reports before it has stored which list that is counts for nothing.
    wire = world.wires["b"]
    assert isinstance(wire.slave_link, OldMasterLink)
    codec = wire.slave_link._codec
    assert isinstance(codec, OldMasterCodec)
    world.put(a)
    a.work()
    end = a.living.max_offset
    for other in (-1, +1, 0):  # one before, one that this master did not tell, and one before that
        codec.stored_version += other
        report = codec.encode(Report(written_offset=end, flushed_offset=end))
        wire.master_link.feed(b"".join(report), 0.0)
        codec.stored_version -= other
        assert world.acknowledged == [0]
    following(world)
    assert world.acknowledged == [0, 1]


def test_a_slave_of_the_release_before_is_refused_by_name_after_a_switch_and_does_not_join() -> None:
    world = group(4, brokers=2)
    world.old = {"b"}
    world.cut("b")
    following(world)
    assert any(
        "broker b is of the release before: upgrade it. There was" in each for each in world.story
    )
    joins = upgraded(World(5, brokers=1, copies=2))
    assert listed(joins) == ["a"]


def test_a_slave_of_the_release_before_does_not_begin_in_the_middle() -> None:
    world = upgraded(group(6, brokers=2, copies=1))
    a = world.brokers["a"]
    world.brokers["b"].empty("a")
    world.old = {"b"}
    for _ in range(40):
        world.put(a)
    a.work()
    a.living.store.cleaner.drop_before(8192)
    following(world)
    assert any("It could not receive the begins of queues" in each for each in world.story)
    assert world.brokers["b"].living.max_offset == 0


def test_nothing_below_the_begin_of_its_run_is_reported_to_a_master_of_the_release_before() -> None:
    """It would acknowledge it, and a switch may find that another one has more."""
    world = upgraded(group(7, brokers=2))
    own = world.brokers["b"].living.own_log()
    link = OldMasterLink(own, 0.0, **TIMES)
    master = Peer(id="a", directory_id="a1")
    welcome = old.Welcome1(
        master=master,
        epoch=9,
        run=0,
        history=[(1, 0, 0), (9, 0, 500)],
        min_offset=0,
        max_offset=900,
        asks_flush=True,
    )
    counted = [own.slave, Peer(id="c", directory_id="c1")]
    state = old.State1(version=77, counted=counted, in_sync_replicas=2, is_sync=True, topics={})
    link.feed(old.encode_control(welcome), 0.0)
    follow = link.take_work().follow
    assert follow is not None
    assert follow.history.epoch == (9, "")
    link.follows(0)
    link.feed(old.encode_control(state), 0.0)
    link.out.clear()
    link.done(400, 400, 0.0)
    told = link.take_work().state
    assert told is not None
    assert told.copy_list == CopyList((master, *counted), 2)
    link.done(400, 400, 0.0)
    link.done(600, 499, 0.0)
    link.done(600, 600, 0.0)
    reports = [old._REPORT.unpack(payload) for _, payload in old.OldFrames().feed(b"".join(link.out))]
    assert reports == [(9, 0, 0, 0), (9, 0, 0, 77), (9, 600, 0, 77), (9, 600, 600, 77)]
    # Another directory under the name of the master of this epoch.
    again = OldMasterLink(
        own._replace(promised=Epoch(9), master=Peer(id="a", directory_id="x")), 0.0, **TIMES
    )
    again.feed(old.encode_control(welcome), 0.0)
    assert "it has lost its log" in again.closed


def test_a_run_that_an_earlier_release_has_noted_without_its_leader_is_the_same() -> None:
    ours = EpochHistory([Run(1, "", 0, 0), Run(2, "b1", 0, 100), Run(2, "b1", 1, 200)])
    theirs = EpochHistory([Run(1, "", 0, 0), Run(2, "", 0, 100)])
    assert common_offset(theirs, 180, ours, 300) == common_offset(ours, 300, theirs, 180) == 180
    assert common_offset(theirs, 250, ours, 300) == 200
    other = EpochHistory([Run(1, "", 0, 0), Run(2, "c1", 0, 100)])
    assert common_offset(other, 180, ours, 300) == 100
    # It is of this epoch, and no older one: what it has more may have been acknowledged.
    assert (
        "has lost messages that it had sent" in judge(theirs, 250, ours, 300, directory_id="c1").problem
    )


def test_a_slave_of_the_release_before_names_the_highest_state_that_it_was_ever_told() -> None:
    """Also one of a connection before: what it reports counts once it was told the state anew."""
    history = EpochHistory([Run(1, "a1", 0, 0, CopyList((Peer(id="a", directory_id="a1"),), 1))])
    welcome = Welcome(
        master=Peer(id="a", directory_id="a1"), runs=list(history.runs), min_offset=0, max_offset=0
    )
    before, codec = old.OldSlaveCodec(history), old.OldSlaveCodec(history)
    state = State(topics={}, is_run_confirmed=True)
    versions = []
    for each, times in ((before, 3), (codec, 1)):
        each.encode(welcome)
        for _ in range(times):
            each.encode(state)
            versions.append(each._version)
    assert versions[:3] == sorted(set(versions[:3]))

    def reported() -> list[AnyHaMessage]:
        """By such a slave: the highest that it was told."""
        said = Report(written_offset=10, flushed_offset=10)
        report = old.encode_report(1, said, max(versions))
        codec.get_buffer()[: len(report)] = report
        return list(codec.buffer_updated(len(report)))

    assert reported() == []
    assert codec.told_again() == state
    codec.encode(state)
    versions.append(codec._version)
    assert codec.told_again() is None
    assert reported() == [Report(written_offset=10, flushed_offset=10)]


def test_a_frame_that_is_no_text_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation):
        old.decoded_control(5, b"\x81\xa7message\xa1\xff")


def test_a_slave_of_the_release_before_is_refused_while_two_lists_hold() -> None:
    """It can name one of them."""
    world = upgraded(group(8, brokers=3, copies=2))
    world.old, world.away = {"b"}, {"b"}
    following(world)
    a, b, _ = world.brokers.values()
    a.living.set_copies(1)
    world.away = {"c"}
    following(world)
    assert [each.copies for each in a.living._acks.lists] == [2, 1]
    assert any("b is of the release before: upgrade it. There was" in each for each in world.story)
    assert b.living.history.copy_list is not None and b.living.history.copy_list.copies == 2
    world.away = set()
    following(world)
    assert [each.copies for each in a.living._acks.lists] == [1]
    assert b.living.max_offset == a.living.max_offset


def test_who_is_told_to_follow_in_an_epoch_of_the_release_before_promises_no_other_one() -> None:
    world = upgraded(group(9, brokers=3, copies=2))
    world.brokers["b"].empty("c")  # who is not the master
    assert not world.switch("a")
    a, b, _ = world.brokers.values()
    assert b.living.master is not None and b.living.master.id == "a"
    following(world)
    assert b.living.record.promised == a.living.record.promised == Epoch(1, "")
    assert not a.living.fenced_by
    world.put(a)
    following(world)
    assert numbers_in_queue(b.living.store) == [0]
