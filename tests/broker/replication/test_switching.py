"""Switches by hand: what two operators at once may do, what is lost, and what of it is said."""

from __future__ import annotations

from contextlib import suppress
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from quorumlog.broker.client.switching import Lost, switch_surveyed
from quorumlog.broker.errors import StaleEpoch, SwitchRefused
from quorumlog.broker.message_log import Role
from quorumlog.broker.replication.protocol.acknowledgements import Acknowledgements
from quorumlog.broker.replication.replica_master import DRAIN_MS
from quorumlog.broker.replication.roles import Member
from quorumlog.broker.wire.broker_messages import ReplicaRequest, ReplicaResponse
from quorumlog.errors import Unreachable
from tests.broker.replication.replica_world import SimulatedAsked, World
from tests.broker.store.store_making import numbers_in_queue


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


def test_of_two_logs_that_of_the_newer_epoch_has_more() -> None:
    """The old master's is longer by what nobody acknowledged."""
    world = World(10)
    following(world)
    a, b, c = world.brokers.values()
    for _ in range(8):
        world.put(a)
    world.away.add("a")
    world.cut("a")
    assert not world.switch("b")
    following(world)
    world.put(b)
    following(world)
    assert world.acknowledged, "by b and c"
    world.away.clear()
    b.crash(world.random, power=False)
    assert a.living.max_offset > c.living.max_offset
    assert "Take --to c" in world.switch("a")


def with_more_than_others(world: World) -> None:
    """Broker a has many messages that nobody else has, and b is the master in its place."""
    a = world.brokers["a"]
    following(world)
    world.put(a)
    following(world)
    for _ in range(40):
        world.put(a)
    world.away.add("a")
    world.cut("a")
    assert not world.switch("b")


def test_who_follows_a_later_master_goes_before_who_has_more_of_an_older_one() -> None:
    """What that one wrote is not known while it is down, and a must not confirm its own in its place."""
    world = World(14)
    with_more_than_others(world)
    a, b, c = world.brokers.values()
    following(world)
    world.put(b)
    assert a.living.max_offset > b.living.max_offset > c.living.max_offset
    b.crash(world.random, power=False)
    world.away.clear()
    assert "Take --to c" in world.switch("a")
    assert not world.switch("c")
    following(world)
    world.check()


def test_a_master_that_is_lost_on_the_way_of_its_slaves_to_its_begin_is_asked() -> None:
    """It may have confirmed what they have of an older epoch, and another one has written since."""
    world = World(14)
    with_more_than_others(world)
    a, b, c = world.brokers.values()
    confirmed = a.living.confirm_offset
    following(world)
    world.put(b)
    b.crash(world.random, power=False)
    world.away.clear()
    assert not world.switch("a", unsafe=True)
    while c.living.max_offset == confirmed:
        world.connect("c")
        world.pump("c", 300)
    assert c.living.max_offset < a.living.max_offset
    world.away.add("a")
    world.cut("a")
    b.start()
    for name in "bc":
        assert "nor a slave that counts with it" in world.switch(name)
    world.away.clear()
    following(world)
    world.check()


@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_master_that_nobody_has_met_is_asked_for_what_was_acknowledged_before_it(
    is_emptied: bool,
) -> None:
    """An emptied directory under its name is not it."""
    world = World(5)
    a, b, c = world.brokers.values()
    world.away.add("b")
    following(world)
    world.put(a)
    following(world)  # c alone counts
    world.away.clear()
    for _ in range(12):
        world.connect("b")
        world.pump("b", 1 << 20)
    world.away.add("a")
    world.cut("a")
    assert not world.switch("b")
    following(world)
    world.put(b)
    following(world)
    assert len(world.acknowledged) == 2, "the second by b and c"
    world.away = {"b"}
    world.cut("b")
    assert not world.switch("c")
    world.away = {"b", "c"}
    world.cut("c")
    if is_emptied:
        c.crash(world.random, power=False)
        c.empty(a)
        world.away = {"b"}
    assert "the master c does not answer" in world.switch("a")
    if is_emptied:
        return
    assert numbers_in_queue(world.settle().living.store) == world.acknowledged


def a_slave_that_does_not_count(seed: int, brokers: int = 3) -> World:
    """The last of the brokers follows a, and does not count; a is away then, with a message."""
    world = World(seed, brokers=brokers)
    last = list(world.brokers)[-1]
    world.away.add(last)
    following(world)
    world.put(world.brokers["a"])
    following(world)
    world.away.clear()
    for _ in range(12):
        world.connect(last)
        world.pump(last, 1 << 20)
    world.away.add("a")
    world.cut("a")
    return world


def test_nobody_reigns_before_all_that_promised_know_whose_the_epoch_is() -> None:
    world = a_slave_that_does_not_count(5)
    a, b, c = world.brokers.values()
    asked = SimulatedAsked(world)
    call = asked._call

    def without_b(broker_id: str, request: ReplicaRequest) -> ReplicaResponse:
        if request.verb == "slave" and broker_id == "b":
            raise Unreachable("b, for a moment")
        return call(broker_id, request)

    with patch.object(asked, "_call", without_b), suppress(Unreachable):
        switch_surveyed(asked, "c")
    assert c.living.role is Role.SLAVE
    assert not world.switch("c")
    world.away = {"b"}
    world.cut("b")
    world.switch("c")
    following(world)
    world.put(c)
    following(world)
    assert len(world.acknowledged) == 2, "the second by c and a"
    world.away = {"a", "c"}
    for name in "ac":
        world.cut(name)
    assert "does not answer" in world.switch("b")
    assert numbers_in_queue(world.settle().living.store) == world.acknowledged
    assert a.living.epoch == b.living.epoch


def test_who_was_not_told_who_counts_does_not_stand_for_a_master() -> None:
    """Its own list is of the reign before, and does not name who acknowledged with this one."""
    world = World(0, brokers=4)
    a, b, c, d = world.brokers.values()
    world.away = {"c", "d"}
    following(world)
    world.away = {"d"}
    world.put(a)
    for _ in range(12):
        for name in "bc":
            world.connect(name)
            world.pump(name, 1 << 20)
            world.brokers[name].work()
        a.work()
    world.away = {"c"}
    world.cut("c")
    following(world)  # d counts, and c does not know
    a.crash(world.random, power=False)
    world.away = set()
    assert not world.switch("b")
    while len(c.living.history.runs) == 1:
        world.connect("c")
        world.pump("c", 50)
    world.away = {"c"}
    world.cut("c")
    following(world)
    world.put(b)
    following(world)
    assert len(world.acknowledged) == 2, "the second by b and d"
    b.crash(world.random, power=False)
    d.crash(world.random, power=False)
    world.away = set()
    a.start()
    assert "the master b does not answer" in world.switch("c")
    assert numbers_in_queue(world.settle().living.store) == world.acknowledged


def test_who_has_a_reign_from_its_begin_stands_for_a_master_that_started_again() -> None:
    world = World(14)
    following(world)
    a, b, _ = world.brokers.values()
    world.put(a)
    following(world)
    for _ in range(6):
        world.put(a)
    a.work()
    a.crash(world.random, power=False)
    a.start()
    for name in "bc":
        while len(world.brokers[name].living.history.runs) == 1:
            world.connect(name)
            world.pump(name, 60)
    assert b.living.max_offset < a.living.max_offset
    world.away.add("a")
    world.cut("a")
    assert not world.switch("b")
    following(world)
    world.check()


def test_a_master_that_has_gone_on_is_not_replaced_by_a_switch_that_was_too_slow() -> None:
    world = World(11)
    following(world)
    a, b = world.brokers["a"], world.brokers["b"]

    def slowly() -> None:
        if a.living.is_drained:
            world.clock.now_ms += DRAIN_MS
            a.living.end_drain()
            world.cut("b")
            world.put(a)
            for _ in range(5):
                world.pump("c", 1 << 20)
                a.work()

    world.meanwhile = slowly
    assert "broker a was drained for too long" in world.switch("b")
    assert world.acknowledged, "by a and c"
    world.meanwhile = lambda: None
    # As b has promised an epoch already, a reigns no more. The same command says who has most.
    following(world)
    assert a.living.fenced_by or a.living.epoch
    master = world.settle()
    assert set(world.acknowledged) <= set(numbers_in_queue(master.living.store))
    assert b.living.role is Role.SLAVE


def test_who_drains_a_master_and_is_killed_leaves_it_the_master() -> None:
    world = World(12)
    following(world)
    a = world.brokers["a"]
    # Three are asked who they are, then one is drained; the next step would be a promise.
    assert world.switch("b", is_gone_at=4) == "gone"
    world.put(a)
    following(world)
    assert a.living.is_drained and not world.acknowledged
    world.clock.now_ms += DRAIN_MS
    a.living.end_drain()
    world.put(a)
    following(world)
    assert world.acknowledged == [1]


def test_a_slave_counts_only_once_all_that_count_know_of_it() -> None:
    """Also after another start: whoever knows only of b would be switched to without c being asked."""
    world = World(13)
    a, c = world.brokers["a"], world.brokers["c"]
    world.away.add("c")
    following(world)
    assert [peer.id for peer in a.living.record.counted] == ["b"]
    world.cut("b")
    world.away = {"b"}
    following(world)
    a.living._acks.in_sync_replicas = 1  # it takes one all the same
    world.put(a)
    a.living._acks.in_sync_replicas = 2
    for start_again in (False, True):
        if start_again:
            a.crash(world.random, power=False)
            a.start()
        following(world)
        assert a.living.record.joining == ["c"]
        assert not a.living.counts(Member("c", c.living.directory_id))
        assert "does not count" in world.switch("c")
    assert c.living.max_offset == a.living.max_offset
    assert a.living.confirm_offset == 0, "acknowledged by one that b knows nothing of"
    world.away.clear()
    following(world)
    assert a.living.counts(Member("c", c.living.directory_id))
    assert a.living.record.joining == []
    assert a.living.confirm_offset == a.living.max_offset > 0


def test_who_was_told_of_a_new_master_and_no_more_asks_the_old_one() -> None:
    """With the new one it may have acknowledged what nobody else has."""
    world = World(14)
    following(world)
    a, b, _ = world.brokers.values()
    assert not world.switch("b")
    world.away.add("c")
    world.cut("c")
    following(world)
    world.put(b)
    following(world)
    assert world.acknowledged, "by a and b"
    b.crash(world.random, power=False)
    world.away = {"a"}
    assert "nor a, which may hold what was acknowledged" in world.switch("c")
    world.away.clear()
    assert not world.switch("a")
    assert numbers_in_queue(a.living.store) == world.acknowledged
