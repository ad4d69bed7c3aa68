"""Who leads by a coordinator; `make sim-replicas` runs many more schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from msgspec.structs import replace as replace_record

from quorumlog.broker.epochs import Epoch, Peer
from quorumlog.broker.failover import (
    CoordinatorRequest,
    CoordinatorSnapshot,
    ElectionRecord,
    EpochVote,
    FailoverOptions,
    FailoverRules,
    FollowMaster,
    GrantedLease,
    GrantLease,
    Lead,
    OnDisk,
    Phase,
    PutRecord,
    Read,
    Renew,
    RevokeLease,
)
from quorumlog.broker.replication.acknowledgements import Acknowledgements, Member, SlaveState
from sim.replicas.machines import Broker as SimBroker
from sim.replicas.registers import REGISTERS
from sim.replicas.schedule import becomes_whole, is_acknowledged, run, serving, until
from sim.replicas.world import World

Asked = TypeVar("Asked")


def brokers_keep_their_promises(register: str = "etcd", seeds: int = 80) -> None:
    """What mutants are run against."""
    for seed in range(seeds):
        failure = run(seed, [register]).failure
        assert not failure, failure


def brokers_with_leases_that_end_in_time_keep_their_promises() -> None:
    brokers_keep_their_promises("store", 300)


def brokers_with_zookeeper_keep_their_promises() -> None:
    brokers_keep_their_promises("zookeeper", 400)


def elected_world(
    seed: int, brokers: int = 3, copies: int = 2, options: FailoverOptions | None = None
) -> tuple[World, SimBroker]:
    """All of them are in sync; and the master."""
    options = options or FailoverOptions(lease_ms=3_000)
    register = REGISTERS[seed % len(REGISTERS)]
    world = World(seed, brokers, copies, is_harsh=True, register=register, options=options)
    becomes_whole(world)
    (master,) = serving(world)
    return world, master


def a_master_that_is_paused_beyond_its_lease_says_nothing_more(seeds: Sequence[int]) -> None:
    """What it waits for comes while it is paused: it is the first that it hears."""
    for seed in seeds:
        world, master = elected_world(seed)
        world.put(master)
        master.work()
        slaves = [name for name in world.brokers if name != master.name]
        for name in slaves:
            world.pump(name, 1 << 20)
        wires = list(world.wires.values())
        master.is_paused = True
        epoch = world.promises.taken_epoch
        until(world, lambda: world.promises.taken_epoch > epoch, "led by another one")  # noqa: B023
        for wire in wires:
            wire.master_link.feed(bytes(wire.to_master), world.clock())
        world.check()
        master.go_on()
        becomes_whole(world)


def paused_masters_say_nothing_more() -> None:
    a_master_that_is_paused_beyond_its_lease_says_nothing_more(range(30))


def test_a_master_that_is_paused_beyond_its_lease_says_nothing_more() -> None:
    a_master_that_is_paused_beyond_its_lease_says_nothing_more(range(3))


def the_next_acknowledgement_comes_with_the_end_of_the_lease(seeds: Sequence[int]) -> None:
    """And does not wait until the old master has been out of step for `in_sync_timeout_ms`."""
    options = FailoverOptions(lease_ms=3_000, in_sync_timeout_ms=600_000)
    for seed in seeds:
        world, master = elected_world(seed, options=options)
        began_ms, epoch = world.clock.now_ms, world.promises.taken_epoch
        master.crash(world.random, power=False)
        is_acknowledged(world)
        assert world.promises.taken_epoch > epoch
        assert world.clock.now_ms < began_ms + 20_000.0  # a request may take seconds


def acknowledgements_go_on_with_the_lease() -> None:
    the_next_acknowledgement_comes_with_the_end_of_the_lease(range(6))


def test_the_next_acknowledgement_comes_with_the_end_of_the_lease() -> None:
    the_next_acknowledgement_comes_with_the_end_of_the_lease(range(3))


@pytest.mark.parametrize("copies", [1, 2])
def test_of_two_brokers_one_goes_on_alone_where_one_copy_is_enough(copies: int) -> None:
    world, master = elected_world(1, 2, copies)
    epoch = world.promises.taken_epoch
    master.crash(world.random, power=False)
    until(world, lambda: world.promises.taken_epoch > epoch, "led by the other one")
    if copies == 1:
        is_acknowledged(world)
    else:
        before = len(world.acknowledged)
        for _ in range(200):
            for each in world.masters:
                world.put(each)
            world.turn([*world.brokers])
        assert len(world.acknowledged) == before
    becomes_whole(world)


def who_promised_a_number_in_vain_fences_nobody() -> None:
    """It was given to another one, whom it knows as its master of before."""
    world, master = elected_world(0)
    slave = next(b for b in world.brokers.values() if b is not master)
    world.cut(slave.name)
    slave.living.record = replace_record(slave.living.record, promised=Epoch(master.living.epoch, "z"))
    world.turn([*world.brokers])
    world.turn([*world.brokers])
    assert not master.living.fenced_by, "for ever"
    assert master.living.takes_messages


def who_promised_a_greater_number_in_vain_is_heard_of() -> None:
    """It knows of no master until the register tells, and the master needs it."""
    world, master = elected_world(0, 2, 2)
    slave = next(b for b in world.brokers.values() if b is not master)
    epoch = world.promises.taken_epoch
    slave.living._save(replace_record(slave.living.record, master=None))
    slave.living.promise(epoch + 1)
    world.refusing(slave.living.become_slave, epoch, master.living.me)
    assert slave.living.epoch == epoch + 1
    until(world, lambda: world.promises.taken_epoch > epoch + 1, "led in a newer epoch")
    becomes_whole(world)


def test_who_promised_a_greater_number_in_vain_is_heard_of() -> None:
    who_promised_a_greater_number_in_vain_is_heard_of()


def test_who_promised_a_number_in_vain_fences_nobody() -> None:
    who_promised_a_number_in_vain_fences_nobody()


class Broker:
    """What the rules ask of their own broker."""

    def __init__(self, broker_id: str = "a") -> None:
        self.me = Peer(id=broker_id, address=f"{broker_id}:1", ha_address=f"{broker_id}:2")
        self.id = broker_id
        self.directory_id = f"{broker_id}-1"
        self.epoch = self.log_epoch = self.max_offset = self.fenced_by = 0
        self.held: list[SlaveState] = []
        self.in_sync_set = members(broker_id)
        self.stops = 0

    def slaves(self) -> list[SlaveState]:
        return self.held

    def wait_for(self, in_sync_set: frozenset[Member]) -> None:
        self.in_sync_set = in_sync_set

    def stop_acknowledging(self) -> None:
        self.stops += 1


class Rules(FailoverRules):
    def __init__(
        self, broker: Broker, options: FailoverOptions | None = None, **options_of_group: bool
    ) -> None:
        self.steps: list[CoordinatorRequest | OnDisk] = []
        super().__init__(
            broker,
            options or FailoverOptions(),
            0.0,
            lambda step: self.steps.append(step),
            **options_of_group,
        )

    def asked(self, kind: type[Asked]) -> Asked:
        """The only one of those that were begun since the last."""
        steps, self.steps = self.steps, []
        (found,) = (step for step in steps if isinstance(step, kind))
        return found

    def finds(self, found: CoordinatorSnapshot, now_ms: float) -> None:
        """The coordinator holds that."""
        self.changed(now_ms)
        self.answered(self.asked(Read), found, now_ms)
        self.tick(now_ms)


def slave(name: str, *, is_connected: bool = True, holds: bool = True) -> SlaveState:
    return SlaveState(name, f"{name}-1", is_connected, 0, 0, 0, 0, is_connected, holds)


def members(*names: str) -> frozenset[Member]:
    return frozenset(Member(name, f"{name}-1") for name in names)


def leading(
    broker: Broker, options: FailoverOptions | None = None, *, relays_renewals: bool = False
) -> Rules:
    """The first of a group, at 0 ms; its lease is 7."""
    rules = Rules(broker, options, relays_renewals=relays_renewals)
    rules.finds(CoordinatorSnapshot(0, None, 0), 0.0)
    rules.answered(rules.asked(GrantLease), GrantedLease(7, 10_000), 0.0)
    assert rules.steps == [EpochVote(1)]
    rules.done(rules.asked(EpochVote), 0.0)
    rules.answered(rules.asked(PutRecord), 11, 0.0)
    assert rules.steps == [Lead(1, members("a"))]
    rules.done(rules.asked(Lead), 0.0)
    return rules


def whoever_may_be_a_member_is_waited_for() -> None:
    """A change was not answered, and the slave has gone: the coordinator may hold it by now."""
    broker = Broker()
    rules = leading(broker)
    broker.held = [slave("c")]
    rules.tick(10.0)
    assert broker.in_sync_set == members("a", "c")
    rules.tick(20.0)
    change = rules.asked(PutRecord)
    assert change.record.in_sync == {"a": "a-1", "c": "c-1"}
    broker.held = [slave("c", is_connected=False)]
    rules.answered(change, None, 30.0, "lost")
    rules.answered(rules.asked(Read), None, 40.0, "lost")
    rules.tick(50.0)
    assert broker.in_sync_set == members("a", "c"), "c may be elected"
    # Asked again, so that one of both is the last: it was too late, the first had come.
    rules.answered(rules.asked(PutRecord), None, 55.0)
    rules.answered(rules.asked(Read), None, 56.0, "lost")
    # The coordinator tells that it was done: c is a member, and leaves as one.
    record = ElectionRecord(epoch=1, master=broker.me, in_sync={"a": "a-1", "c": "c-1"})
    rules.finds(CoordinatorSnapshot(12, record.encode(), 7), 60.0)
    assert not rules.steps
    rules.tick(4_000.0)
    change = rules.asked(PutRecord)
    assert change.record.in_sync == {"a": "a-1"}
    assert broker.in_sync_set == members("a", "c"), "until that is known"
    rules.answered(change, 13, 4_010.0)
    assert broker.in_sync_set == members("a")


def test_whoever_may_be_a_member_is_waited_for() -> None:
    whoever_may_be_a_member_is_waited_for()


def what_a_wiped_store_holds_says_nothing_of_what_it_was() -> None:
    """b was wiped, and the coordinator still holds what it was: that may come back, and be elected."""
    a, b, wiped = Member("a", "a-1"), Member("b", "b-1"), Member("b", "b-2")
    acknowledgements = Acknowledgements("a-1", 2, 100, frozenset({a, b}), own_offset=500)
    acknowledgements.report(acknowledgements.connected(*wiped), 500, 500, 500)
    assert acknowledgements.confirmed_offset == 100
    acknowledgements.in_sync_set = frozenset({a, b, wiped})  # on its way into the set
    acknowledgements.advance()
    assert acknowledgements.confirmed_offset == 100
    acknowledgements.in_sync_set = frozenset({a, wiped})
    acknowledgements.advance()
    assert acknowledgements.confirmed_offset == 500


def test_what_a_wiped_store_holds_says_nothing_of_what_it_was() -> None:
    what_a_wiped_store_holds_says_nothing_of_what_it_was()


def test_a_wiped_store_takes_the_place_of_what_it_was() -> None:
    broker = Broker()
    rules = leading(broker)
    record = ElectionRecord(epoch=1, master=broker.me, in_sync={"a": "a-1", "b": "b-1"})
    rules.changed(1.0)
    rules.answered(rules.asked(Read), CoordinatorSnapshot(12, record.encode(), 7), 1.0)
    wiped = replace(slave("b"), directory_id="b-2")
    broker.held = [wiped]
    rules.tick(10.0)
    assert broker.in_sync_set == members("a", "b") | {wiped.member}
    rules.tick(20.0)
    change = rules.asked(PutRecord)
    assert change.record.in_sync == {"a": "a-1", "b": "b-2"}
    rules.answered(change, 13, 30.0)
    assert broker.in_sync_set == members("a") | {wiped.member}


def test_a_slave_that_went_before_it_was_a_member_is_not_waited_for_for_ever() -> None:
    broker = Broker()
    rules = leading(broker)
    broker.held = [slave("c")]
    rules.tick(10.0)
    rules.tick(20.0)
    change = rules.asked(PutRecord)
    broker.held = []
    rules.answered(change, None, 30.0, "lost")
    # It has not come to the coordinator, and still may.
    record = ElectionRecord(epoch=1, master=broker.me, in_sync={"a": "a-1"})
    rules.answered(rules.asked(Read), CoordinatorSnapshot(11, record.encode(), 7), 40.0)
    rules.tick(50.0)
    change = rules.asked(PutRecord)
    assert change.record.in_sync == {"a": "a-1"}
    rules.answered(change, 12, 60.0)
    assert broker.in_sync_set == members("a")


def a_lease_counts_from_when_its_renewal_was_sent() -> None:
    rules = leading(Broker(), FailoverOptions())
    rules.tick(1_000.0)
    renewal = rules.asked(Renew)
    assert rules.may_acknowledge(9_499.0) and not rules.may_acknowledge(9_500.0)
    rules.answered(renewal, 10_000, 5_000.0)
    assert rules.may_acknowledge(10_499.0) and not rules.may_acknowledge(10_500.0)
    rules.tick(10_500.0)
    assert rules.phase is Phase.WAITING


def test_a_lease_counts_from_when_its_renewal_was_sent_and_less_than_its_time() -> None:
    a_lease_counts_from_when_its_renewal_was_sent()


def test_a_renewal_that_is_relayed_proves_the_one_before_it() -> None:
    rules = leading(Broker(), relays_renewals=True)

    def renewed(sent_ms: float, answered_ms: float) -> float:
        rules.tick(sent_ms)
        renewal = rules.asked(Renew)
        rules.answered(renewal, 10_000, answered_ms)
        return answered_ms + rules.lease_left_ms(answered_ms)

    assert renewed(0.0, 10.0) == 9_500.0, "granted just now"
    assert renewed(2_500.0, 2_600.0) == 9_500.0, "from the grant: this one may not be relayed yet"
    assert renewed(5_000.0, 6_900.0) == 12_000.0, "from the one before"
    assert renewed(7_500.0, 7_600.0) == 12_000.0, "it was sent too soon behind an answer"
    assert renewed(10_000.0, 10_100.0) == 14_500.0


def test_who_may_lead() -> None:
    who_may_lead()


def who_may_lead() -> None:
    record = ElectionRecord(epoch=4, master=Broker("b").me, in_sync={"b": "b-1", "a": "a-1"})

    def found_by(broker: Broker, found: CoordinatorSnapshot, *, begins: bool = False) -> Rules:
        rules = Rules(broker, begins=begins)
        rules.finds(found, 0.0)
        return rules

    free, led = CoordinatorSnapshot(5, record.encode(), 0), CoordinatorSnapshot(5, record.encode(), 9)
    member, other, wiped, newer, used = (Broker(), Broker("c"), Broker(), Broker(), Broker())
    wiped.directory_id = "a-2"
    newer.log_epoch = 5
    used.max_offset = 100
    assert found_by(member, free).asked(GrantLease), "a member, where nobody leads"
    assert found_by(member, led).steps == [FollowMaster(4, record.master)]
    waits = found_by(other, free)
    assert not waits.steps
    assert waits.problem.endswith("this broker is not in sync: it waits for one of a, b")
    assert not found_by(wiped, free).steps, "the store that was a member is gone"
    assert "lost its newest state" in found_by(newer, free).problem
    assert "--failover-begin" in found_by(used, CoordinatorSnapshot(0, None, 0)).problem
    assert found_by(used, CoordinatorSnapshot(0, None, 0), begins=True).asked(GrantLease)
    own = CoordinatorSnapshot(
        5, ElectionRecord(epoch=4, master=member.me, in_sync={"a": "a-1"}).encode(), 9
    )
    assert found_by(member, own).asked(RevokeLease).lease == 9, "of the process before"
    for other in (b"{}", b'{"x":' * 5_000, b'{"epoch":1,"master":{"id":"\xff"}}'):
        assert "none of ours" in found_by(member, CoordinatorSnapshot(5, other, 0)).problem


def test_the_old_master_leaves_in_a_take_and_the_peers_stay() -> None:
    def taken(old: str) -> dict[str, str]:
        in_sync = {name: f"{name}-1" for name in "abc"}
        record = ElectionRecord(epoch=4, master=Broker(old).me, in_sync=in_sync)
        rules = Rules(Broker())
        rules.finds(CoordinatorSnapshot(5, record.encode(), 0), 0.0)
        rules.answered(rules.asked(GrantLease), GrantedLease(7, 10_000), 0.0)
        assert rules.steps == [EpochVote(5)]
        rules.done(rules.asked(EpochVote), 0.0)
        return rules.asked(PutRecord).record.in_sync

    assert taken("b") == {"a": "a-1", "c": "c-1"}
    assert taken("a") == {"a": "a-1", "b": "b-1", "c": "c-1"}, "it was the master itself"


def test_a_master_without_its_coordinator_stops_before_its_lease_ends() -> None:
    for seed in range(3):
        world, master = elected_world(seed)
        epoch = world.promises.taken_epoch
        world.hidden.add(master.name)
        until(world, lambda: world.promises.taken_epoch > epoch, "led by another one")  # noqa: B023
        becomes_whole(world)
