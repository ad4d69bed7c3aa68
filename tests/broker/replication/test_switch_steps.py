"""Between two steps of a switch, or of what leads to one: who hangs, is killed or is replaced."""

from __future__ import annotations

from contextlib import suppress
from unittest.mock import patch

import pytest

from quorumlog.broker.client.switching import switch_surveyed
from quorumlog.broker.errors import InSyncReplicasNotEnough, SwitchRefused
from quorumlog.broker.message_log import Role
from quorumlog.broker.replication.replica_master import DRAIN_MS
from quorumlog.broker.wire.broker_messages import ReplicaRequest, ReplicaResponse
from quorumlog.sim.disk.sim_disk import SimDisk
from tests.broker.replication.replica_world import OperatorGone, SimulatedAsked, World
from tests.broker.replication.test_reigns import alone, start_with
from tests.broker.replication.test_switching import following
from tests.broker.store.store_making import numbers_in_queue


def with_a_message(seed: int, brokers: int = 3) -> World:
    world = World(seed, brokers=brokers)
    following(world)
    world.put(world.brokers["a"])
    following(world)
    assert world.acknowledged == [0]
    return world


def goes_on(world: World, *names: str) -> None:
    """Only these follow."""
    for _ in range(12):
        for name in names:
            world.connect(name)
            world.pump(name, 1 << 20)
        for broker in world.brokers.values():
            if broker.replica is not None:
                broker.work()
        world.join()


def holds_what_was_acknowledged(world: World) -> None:
    alone(world)
    assert set(world.acknowledged) <= set(numbers_in_queue(world.settle().living.store))


def test_of_a_pair_whose_switch_was_killed_each_half_alone_makes_no_master() -> None:
    """One was told of the other, which was not crowned: both would have found the same epoch."""
    world = with_a_message(9, brokers=2)
    a, b = world.brokers.values()
    for step in range(3, 12):
        world.switch("b", is_gone_at=step)
        if a.living.record.master is not None:
            break
        world.clock.now_ms += DRAIN_MS
        a.living.end_drain()
    assert a.living.record.master is not None and b.living.role is Role.SLAVE
    alone(world, "a")
    assert "the master a does not answer" in world.switch("b")
    alone(world, "b")
    world.switch("a")
    alone(world)
    assert len({broker.living.history.log_epoch for broker in world.masters}) == len(world.masters)
    holds_what_was_acknowledged(world)


def test_a_drain_that_was_over_and_began_again_is_another_one() -> None:
    world = with_a_message(1)
    a = world.brokers["a"]
    is_over = False

    def slowly() -> None:
        nonlocal is_over
        if not a.living.is_drained or is_over:
            return
        is_over = True
        world.clock.now_ms += DRAIN_MS
        a.living.end_drain()
        world.cut("b")
        world.put(a)
        goes_on(world, "c")
        a.living.drain()  # by a second operator

    world.meanwhile = slowly
    assert "was drained for too long" in world.switch("b")
    assert len(world.acknowledged) == 2
    world.meanwhile = lambda: None
    holds_what_was_acknowledged(world)


def test_options_that_change_between_telling_and_crowning_are_another_begin() -> None:
    world = with_a_message(5)
    a, b, _ = world.brokers.values()
    is_done = False

    def meanwhile() -> None:
        nonlocal is_done
        told = a.replica is not None and a.living.record.master is not None
        if told and not is_done:
            is_done = True
            start_with(b, in_sync_replicas=1)

    world.meanwhile = meanwhile
    assert "other options" in world.switch("b")
    assert is_done and b.living.role is Role.SLAVE
    world.meanwhile = lambda: None
    holds_what_was_acknowledged(world)


def test_who_is_asked_must_be_the_directory_that_its_master_knows() -> None:
    """The old one's connection still stands, and an emptied one answers under its name."""
    world = with_a_message(9)
    b = world.brokers["b"]
    world.wires.pop("b")
    b.replica, b.disk, b.seen = None, SimDisk(), []
    b.start()
    assert "another directory" in world.switch("b")
    assert [broker.name for broker in world.masters] == ["a"]


def test_with_unsafe_too_whoever_answers_knows_of_a_master_before_it_reigns() -> None:
    world = World(3, brokers=4)
    a, b, _, d = world.brokers.values()
    alone(world, "d")
    following(world)
    world.put(a)
    following(world)
    alone(world)
    goes_on(world)
    b.living.promise(2)  # by a switch that went no further: nobody reigns
    asked = SimulatedAsked(world)
    call = asked._call

    def killed(broker_id: str, request: ReplicaRequest) -> ReplicaResponse:
        if broker_id in "bc" and request.verb == "slave":
            raise OperatorGone
        return call(broker_id, request)

    with patch.object(asked, "_call", killed), suppress(OperatorGone):
        switch_surveyed(asked, "d", unsafe=True)
    assert d.living.role is Role.SLAVE
    holds_what_was_acknowledged(world)


# ------------------------------------------------------------------ forgetting


def test_a_directory_that_replaces_a_forgotten_one_is_asked_from_then_on() -> None:
    """Who is left on the list may lack what it has."""
    world = with_a_message(5)
    a, b, c = world.brokers.values()
    world.cut("b")
    world.put(a)
    goes_on(world, "c")
    assert len(world.acknowledged) == 2
    c.crash(world.random, power=False)
    c.empty(a)
    goes_on(world, "c")
    a.living.forget("c")
    while b.living.record.state_version < a.living.record.state_version:
        world.connect("b")
        world.pump("b", 60)
    assert b.living.max_offset < a.living.max_offset
    alone(world, "a", "c")
    assert "nor c" in world.switch("b")
    holds_what_was_acknowledged(world)


def test_a_directory_that_replaces_a_forgotten_one_is_asked_also_while_it_is_away() -> None:
    world = with_a_message(5)
    a, b, c = world.brokers.values()
    world.cut("b")
    world.put(a)
    goes_on(world, "c")
    c.crash(world.random, power=False)
    c.empty(a)
    goes_on(world, "c")
    world.cut("c")
    a.living.forget("c")
    while b.living.record.state_version < a.living.record.state_version:
        world.connect("b")
        world.pump("b", 60)
    assert b.living.max_offset < a.living.max_offset
    alone(world, "a", "c")
    assert "nor c" in world.switch("b")
    holds_what_was_acknowledged(world)


def test_what_holds_a_message_under_the_name_of_another_directory_is_not_relied_on() -> None:
    """The one that is on the list comes back, without it."""
    world = with_a_message(6)
    a, b, c = world.brokers.values()
    old = c.disk
    c.crash(world.random, power=False)
    world.put(a)
    goes_on(world, "b")
    assert len(world.acknowledged) == 2
    c.empty(a)
    goes_on(world, "c")
    b.crash(world.random, power=False)
    assert c.living.max_offset == a.living.max_offset and c.disk is not old
    with pytest.raises(InSyncReplicasNotEnough):
        a.living.forget("b")


def test_a_loss_of_power_takes_nothing_back_of_what_others_must_hold() -> None:
    """The mark of what is confirmed is a second old on the disk."""
    world = with_a_message(5)
    a, b, c = world.brokers.values()
    world.cut("b")
    for _ in range(6):
        world.put(a)
        goes_on(world, "c")
    assert len(world.acknowledged) == 7
    a.crash(world.random, power=True)
    c.crash(world.random, power=False)
    a.start()
    assert a.living.confirm_offset < a.living.max_offset
    for _ in range(8):
        world.connect("b")
        world.pump("b", 60)
    assert b.living.max_offset < a.living.max_offset
    try:
        a.living.forget("c")
    except InSyncReplicasNotEnough:
        pass
    else:
        raise AssertionError("b has not what only c had")
    goes_on(world, "b")
    a.living.forget("c")


def test_two_directories_that_were_replaced_count_again_where_three_have_to_have_it() -> None:
    world = with_a_message(11)
    a, b, c = world.brokers.values()
    start_with(a, in_sync_replicas=3)
    goes_on(world, "b", "c")
    for broker in (b, c):
        broker.crash(world.random, power=False)
        broker.empty(a)
    goes_on(world, "b", "c")
    with pytest.raises(InSyncReplicasNotEnough):
        a.living.forget("b")  # c is on the list with a directory that may come back
    a.living.forget("b", unsafe=True)
    a.living.forget("c")
    goes_on(world, "b", "c")
    world.put(a)
    goes_on(world, "b", "c")
    assert world.acknowledged == [0, 1]


def test_of_the_lists_of_one_reign_the_newest_goes_before_others() -> None:
    """An older one names who was forgotten since."""
    world = with_a_message(9, brokers=4)
    a, b, c, _ = world.brokers.values()
    alone(world, "c", "d")
    following(world)
    world.put(a)
    following(world)
    a.living.forget("d")
    following(world)
    assert "d" in {peer.id for peer in c.living.record.counted}
    alone(world, "d")
    b.living.promise(2)  # by a switch that went no further
    assert not world.switch("b")
    following(world)
    assert set(world.acknowledged) <= set(numbers_in_queue(b.living.store))


def test_a_number_that_is_raised_from_two_says_nothing_new_of_what_is_on_others() -> None:
    world = with_a_message(5)
    a, b, _ = world.brokers.values()
    for _ in range(5):
        world.put(a)
    a.work()
    start_with(a, in_sync_replicas=3)
    for name in "bc":
        while world.brokers[name].living.record.in_sync_replicas != 3:
            world.connect(name)
            world.pump(name, 200)
    assert b.living.max_offset < a.living.max_offset
    alone(world, "a")
    assert not world.switch("b")


def test_an_emptied_master_that_was_started_as_before_is_not_followed_by_who_knew_the_old_one() -> None:
    """It reigns in epoch 1 again, and its bytes are others."""
    world = with_a_message(8, brokers=2)
    a, b = world.brokers.values()
    a.crash(world.random, power=False)
    a.disk, a.seen = SimDisk(), []
    a.start()
    for _ in range(12):
        world.connect("b")
        world.pump("b", 1 << 20)
    assert any(
        "has another directory than the one that this slave knows" in line for line in world.story
    )
    assert numbers_in_queue(b.living.store) == world.acknowledged
    with pytest.raises(SwitchRefused):
        switch_surveyed(SimulatedAsked(world), "b")


def test_what_is_under_way_when_a_switch_begins_is_acknowledged_before_it_is_done() -> None:
    world = with_a_message(4)
    a = world.brokers["a"]
    world.put(a)

    def meanwhile() -> None:
        if a.living.role is not Role.SLAVE and a.living.is_drained:
            goes_on(world, "b", "c")

    world.meanwhile = meanwhile
    with patch("quorumlog.broker.client.switching._POLL_S", 0):
        report = switch_surveyed(SimulatedAsked(world), "b", timeout_ms=60_000)
    assert report.lost is None
    assert world.acknowledged == [0, 1]
    world.meanwhile = lambda: None
    holds_what_was_acknowledged(world)
