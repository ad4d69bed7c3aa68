"""Switches by hand: what two operators at once may do, what is lost, and what of it is said."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from quorumlog.broker.client.switching import Lost, switch_surveyed
from quorumlog.broker.errors import StaleEpoch, SwitchRefused
from quorumlog.broker.replication.protocol.acknowledgements import Acknowledgements
from tests.broker.replication.replica_world import SimulatedAsked, World


def following(world: World, rounds: int = 12) -> None:
    for _ in range(rounds):
        for name in world.brokers:
            world.connect(name)
            world.pump(name, 1 << 20)
            if world.brokers[name].replica is not None:
                world.brokers[name].work()
        world.join()


@pytest.mark.parametrize("is_master_lost", [False, True])
def test_of_two_switches_at_once_one_is_refused(is_master_lost: bool) -> None:
    """Both operators have asked everybody before either has told anybody anything."""
    world = World(6)
    following(world)
    if is_master_lost:
        world.brokers["a"].crash(world.random, power=False)
    first, second = SimulatedAsked(world), SimulatedAsked(world)
    refusals = []

    def meanwhile(line: str) -> None:
        if "becomes a slave" in line:
            with pytest.raises((StaleEpoch, SwitchRefused)) as refused:
                switch_surveyed(second, "c")
            refusals.append(refused)

    switch_surveyed(first, "b", say=meanwhile)
    if is_master_lost:
        with pytest.raises(StaleEpoch, match="another switch"):
            switch_surveyed(second, "c")
    else:
        assert refusals
    assert [broker.name for broker in world.masters] == ["b"]
    following(world)
    assert world.brokers["c"].living.master == world.brokers["b"].living.address


def test_what_slaves_have_not_flushed_counts_at_a_switch() -> None:
    """Without --flush sync it was acknowledged, too."""
    world = World(7, brokers=2)
    following(world)
    b = world.brokers["b"].living
    link = world.wires["b"].slave_link
    assert link._welcome is not None
    link._welcome = replace(link._welcome, asks_flush=False)
    world.put(world.brokers["a"])
    world.brokers["a"].work()
    for _ in range(5):
        world.pump("b", 1 << 20)
    assert b.flushed_offset < b.max_offset
    b.promise(9)
    assert b.flushed_offset == b.max_offset


def test_a_forgotten_slave_helps_to_acknowledge_nothing_while_that_is_stored() -> None:
    acks = Acknowledgements("a", 2, 0, counted={"b": "b-1", "c": "c-1"}, own_offset=200)
    b, c = acks.connected("b", "b-1"), acks.connected("c", "c-1")
    acks.report(b, 100, 100, 100)
    acks.report(c, 100, 100, 100)
    assert acks.holders_without("c") == 1
    acks.forget("c")
    acks.report(c, 150, 150, 150)
    assert acks.confirmed_offset == 100
    assert acks.holders_without("b") == 0


def test_a_switch_without_the_master_is_refused_where_it_waited_for_nobody() -> None:
    world = World(8, brokers=2)
    following(world)
    a, b = world.brokers["a"], world.brokers["b"]
    world.put(a)
    following(world)
    a.crash(world.random, power=False)
    b.living.record = replace(b.living.record, in_sync_replicas=1)
    assert "in_sync_replicas 1" in world.switch("b")
    asked = SimulatedAsked(world)
    report = switch_surveyed(asked, "b", unsafe=True)
    assert report.lost == Lost(b.living.max_offset, -1)


def test_the_range_that_is_lost_begins_where_the_logs_part() -> None:
    world = World(9)
    following(world)
    a, b, c = world.brokers.values()
    world.put(a)
    following(world)
    common = a.living.max_offset
    for _ in range(8):
        world.put(a)  # nobody else gets them
    world.away.add("a")
    world.cut("a")
    assert a.living.max_offset > common
    assert not world.switch("b")
    following(world)
    world.put(b)
    following(world)
    world.away.clear()
    b.crash(world.random, power=False)
    report = switch_surveyed(SimulatedAsked(world), "a", unsafe=True)
    assert report.lost == Lost(common, c.living.max_offset)
