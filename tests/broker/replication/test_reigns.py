"""What slaves are told of a reign, and what a master waits for until they know it."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from msgspec.structs import replace as replace_fields

from quorumlog.broker.client.switching import Lost, switch_surveyed
from quorumlog.broker.errors import InSyncReplicasNotEnough, NotMaster, SwitchRefused
from quorumlog.broker.message_log import Role
from quorumlog.broker.wire.broker_messages import ReplicaRequest
from tests.broker.replication import replica_world
from tests.broker.replication.replica_world import Broker, SimulatedAsked, World
from tests.broker.replication.test_switching import following
from tests.broker.store.store_making import SMALL, numbers_in_queue


def start_with(broker: Broker, **options: int) -> None:
    """The process of a broker ends, and is started with other options."""
    if broker.replica is not None:
        broker.crash(broker.world.random, power=False)
    with patch.object(replica_world, "SMALL", replace(SMALL, **options)):
        broker.start()


def alone(world: World, *names: str) -> None:
    """These are away."""
    world.away = set(names)
    for name in names:
        world.cut(name)


def test_slaves_hear_of_topics_that_a_master_was_started_again_with() -> None:
    world = World(2)
    following(world)
    a, b, _ = world.brokers.values()
    a.living.set_topics({"t": 1})
    following(world)
    a.crash(world.random, power=False)
    store_of = replica_world.ReplicaStore
    with patch.object(
        replica_world,
        "ReplicaStore",
        lambda *args, **options: store_of(*args, **{**options, "topics": {"t": 1, "new": 4}}),
    ):
        a.start()
    following(world)
    assert b.living.record.topics == {"t": 1, "new": 4}
    assert b.living.store.topics == {"t": 1, "new": 4}


# ------------------------------------------------------------------ in_sync_replicas of a running reign


def test_a_master_that_is_set_to_fewer_waits_until_its_slaves_know_it() -> None:
    """A slave that was away would be switched to as one that lacks nothing."""
    world = World(3)
    following(world)
    a = world.brokers["a"]
    alone(world, "b", "c")
    start_with(a, in_sync_replicas=1)
    refusal = a.living._refusal()
    assert isinstance(refusal, InSyncReplicasNotEnough)
    assert "in_sync_replicas 1 holds once it is stored by b and c" in str(refusal)
    world.put(a)
    a.work()
    assert world.acknowledged == []
    start_with(a, in_sync_replicas=1)
    assert a.living.in_sync_replicas == 2, "also after another start"
    alone(world)
    following(world)
    assert a.living.in_sync_replicas == 1
    start_with(a, in_sync_replicas=1)
    alone(world, "b", "c")
    assert a.living.in_sync_replicas == 1, "that they know it is on disk"
    world.put(a)
    a.work()
    a.crash(world.random, power=False)
    alone(world)
    assert "acknowledged without its slaves" in world.switch("b")


def test_who_is_lost_for_good_is_not_waited_for_by_a_master_that_is_set_to_fewer() -> None:
    world = World(3, brokers=2)
    following(world)
    a = world.brokers["a"]
    alone(world, "b")
    start_with(a, in_sync_replicas=1)
    with pytest.raises(InSyncReplicasNotEnough, match="--unsafe"):
        a.living.forget("b")
    a.living.forget("b", unsafe=True)
    world.put(a)
    a.work()
    assert world.acknowledged == [0]


def test_what_was_acknowledged_before_a_master_was_set_to_more_may_be_nowhere_else() -> None:
    world = World(5)
    following(world)
    a, b, _ = world.brokers.values()
    start_with(a, in_sync_replicas=1)
    following(world)
    alone(world, "b", "c")
    for _ in range(8):
        world.put(a)
    a.work()
    assert len(world.acknowledged) == 8
    start_with(a, in_sync_replicas=2)
    alone(world)
    for name in "bc":
        while not world.brokers[name].living.record.waited_from:
            world.connect(name)
            world.pump(name, 200)
    assert b.living.record.in_sync_replicas == 2
    assert b.living.max_offset < a.living.max_offset
    alone(world, "a")
    assert "acknowledged without its slaves" in world.switch("b")
    alone(world)
    following(world)
    alone(world, "a")
    assert not world.switch("b"), "it has all of that"


# ------------------------------------------------------------------ who counts


def test_only_a_master_forgets() -> None:
    """Of a slave that has a list of its own a switch would be done without those that it lacks."""
    world = World(1)
    following(world)
    b = world.brokers["b"].living
    with pytest.raises(NotMaster):
        b.forget("c")
    assert [peer.id for peer in b.record.counted] == ["b", "c"]


def test_another_directory_under_the_name_of_a_slave_counts_once_the_old_one_is_forgotten() -> None:
    """It has forgotten what it promised. Here to b, of whom a does not know."""
    world = World(7)
    a, b, c = world.brokers.values()
    alone(world, "b")
    following(world)
    world.put(a)
    following(world)
    assert [peer.id for peer in a.living.record.counted] == ["c"]
    alone(world, "a")
    assert not world.switch("c")
    following(world)
    world.put(c)
    following(world)
    alone(world)
    b.crash(world.random, power=False)
    c.crash(world.random, power=False)
    c.empty(a)
    held = len(world.acknowledged)
    world.connect("c")
    following(world)
    world.put(a)
    following(world)
    assert c.living.max_offset == a.living.max_offset
    assert len(world.acknowledged) == held
    assert "another directory" in str(a.living._refusal())
    b.start()


def test_in_a_pair_another_directory_counts_once_it_has_everything_and_the_old_one_is_forgotten() -> (
    None
):
    world = World(7, brokers=2)
    a, b = world.brokers.values()
    following(world)
    world.put(a)
    following(world)
    b.crash(world.random, power=False)
    b.empty(a)
    with pytest.raises(InSyncReplicasNotEnough):
        a.living.forget("b")
    following(world)
    a.living.forget("b")
    following(world)
    world.put(a)
    following(world)
    assert world.acknowledged == [0, 1]


# ------------------------------------------------------------------ a master that is lost at once


def lost_at_once(world: World) -> None:
    """a hands over to b, which dies before anybody has met it."""
    following(world)
    world.put(world.brokers["a"])
    following(world)
    assert not world.switch("b")
    world.brokers["b"].crash(world.random, power=False)


def test_the_old_master_says_what_was_acknowledged_before_one_that_nobody_has_met() -> None:
    world = World(21)
    lost_at_once(world)
    a = world.brokers["a"].living
    assert a.record.holds_begin and not a.record.has_met_master
    assert not world.switch("a")
    following(world)
    world.check()
    assert numbers_in_queue(world.settle().living.store) == world.acknowledged


def test_with_who_lacks_what_a_master_began_with_it_is_asked_itself() -> None:
    world = World(22)
    following(world)
    a, b, c = world.brokers.values()
    world.cut("c")
    world.put(a)
    for _ in range(6):
        world.connect("b")
        world.pump("b", 1 << 20)
        b.work()
    a.work()
    assert c.living.max_offset < b.living.max_offset
    alone(world, "a")
    assert not world.switch("b")
    assert not c.living.record.holds_begin
    b.crash(world.random, power=False)
    assert "nor a" in world.switch("c")


def test_who_does_not_count_with_a_master_does_not_stand_for_it() -> None:
    """Each of them, asked alone, would find a next master, and of the same epoch."""
    world = World(23, brokers=4)
    switch_surveyed(SimulatedAsked(world), "d", unsafe=True)
    d = world.brokers["d"]
    assert d.living.role is not Role.SLAVE and not d.living.record.counted
    d.crash(world.random, power=False)
    for name, *others in ("abc", "bac", "cab"):
        alone(world, *others)
        assert "the master d does not answer" in world.switch(name)


# ------------------------------------------------------------------ what a switch has seen


def test_a_slave_that_never_met_anybody_and_has_promised_alone_stands_in_nobody_s_way() -> None:
    world = World(24)
    alone(world, "c")
    following(world)
    a, b, c = world.brokers.values()
    world.put(a)
    following(world)
    c.living.promise(7)
    alone(world, "a")
    assert not world.switch("b")
    assert b.living.epoch == 8
    alone(world)
    following(world)
    world.check()


def test_a_record_of_an_earlier_release_goes_by_whom_it_has_met_not_by_what_it_promised() -> None:
    world = World(29)
    following(world)
    b = world.brokers["b"].living
    b.promise(9)
    b.record = replace_fields(b.record, master_epoch=0)
    assert b.reign_epoch == 1
    b.record = replace_fields(b.record, has_met_master=False)
    assert b.reign_epoch == 9, "of whom it was told it is not known"


def test_brokers_that_never_had_a_master_make_none_of_themselves() -> None:
    world = World(25)
    alone(world, "a")
    assert "has ever met a master" in world.switch("b")
    report = switch_surveyed(SimulatedAsked(world), "b", unsafe=True)
    assert report.epoch > 1, "a is the master of epoch 1"


def test_another_directory_than_the_one_that_was_asked_first_refuses() -> None:
    world = World(26)
    following(world)
    a, b, _ = world.brokers.values()
    asked = SimulatedAsked(world)
    b.crash(world.random, power=False)
    b.empty(a)
    with pytest.raises(SwitchRefused, match="another directory"):
        asked.ask("b", ReplicaRequest(verb="promise", epoch=2))
    assert b.living.epoch < 2


def test_who_came_to_count_after_the_first_question_is_asked_too() -> None:
    """The master was away for a moment, and came back with another slave."""
    world = World(27, brokers=4)
    a, b, c, d = world.brokers.values()
    alone(world, "d")
    following(world)
    alone(world, "a", "d")
    asked = SimulatedAsked(world)
    alone(world)
    following(world)
    for name in "bc":
        world.cut(name)
    alone(world, "b", "c")
    world.put(a)
    for _ in range(6):
        world.connect("d")
        world.pump("d", 1 << 20)
        d.work()
        a.work()
    assert world.acknowledged, "by a and d"
    a.crash(world.random, power=False)
    alone(world, "d")
    try:
        switch_surveyed(asked, "b")
    except SwitchRefused as refusal:
        assert "nor d" in str(refusal)
    else:
        raise AssertionError("d was not asked")
    assert c.replica is not None and b.living.role is Role.SLAVE


def test_of_a_master_that_nobody_has_met_the_lost_range_begins_with_what_is_confirmed() -> None:
    """The one that is left was told of it, and has what nobody else got of the one before."""
    world = World(28, brokers=2)
    following(world)
    a = world.brokers["a"]
    world.put(a)
    following(world)
    confirmed = a.living.confirm_offset
    for _ in range(4):
        world.put(a)
    alone(world, "a")
    assert not world.switch("b")
    alone(world)
    assert not world.switch("b")
    alone(world, "b")
    report = switch_surveyed(SimulatedAsked(world), "a", unsafe=True)
    assert report.lost == Lost(confirmed, -1)
