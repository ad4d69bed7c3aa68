"""Users of masters and slaves: nobody is let in by not knowing, whoever is killed, wiped, cut off or
switched to."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from quorumlog.broker.broker_port import BrokerSession
from quorumlog.broker.broker_server import state_of
from quorumlog.broker.classic_users import LACKS_USERS, LOST_USERS
from quorumlog.broker.client.switching import ClusterProbe
from quorumlog.broker.errors import SwitchRefused
from quorumlog.broker.group_commands import CreateTopic
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.broker.store.message_store import (
    REPLICA_NAME,
    USERS_HEARD,
    USERS_NAME,
    USERS_ON,
    MessageStore,
)
from quorumlog.broker.wire import QueuesRequest, ReplicaRequest, ReplicaResponse
from quorumlog.errors import LeaderNotReady, LedgerError, NotAuthenticated, Unreachable
from quorumlog.log_state.users import UserOperation, UserOrder
from quorumlog.store.state_files import FIRST_ADMIN_NAME, replace_file, save_first_admin
from sim.replicas import schedule
from sim.replicas.machines import Broker
from sim.replicas.promises import ROOT
from sim.replicas.users import HEARTBEAT_MS, MAY_BE_OLD_MS, OwnUsers
from sim.replicas.world import World

ALICE = UserOrder(UserOperation.ADD_USER, "alice", ("admin",))


def group(seed: int, brokers: int = 3, copies: int = 2) -> World:
    """All are on the list, and time has passed for each to know that."""
    world = World(seed, brokers, copies, has_users=True)
    world.form_group()
    hears(world)
    return world


def hears(world: World, rounds: int = 20) -> None:
    """All that is said arrives, as it is said."""
    for _ in range(rounds):
        world.clock.advance(HEARTBEAT_MS)
        for name, broker in world.brokers.items():
            if broker.is_running:
                world.connect(name)
                world.pump(name, 1 << 20)
                broker.work()
        world.note()


def passes(world: World, *names: str) -> None:
    """So much time that what these know is old, and nothing is said."""
    world.clock.advance(MAY_BE_OLD_MS + HEARTBEAT_MS)
    for name in names:
        world.brokers[name].own_users.turn()


def changed(world: World, name: str, order: UserOrder) -> list[LedgerError | None]:
    """What it is answered, as far as it is."""
    told: list[LedgerError | None] = []
    world.brokers[name].own_users.change(order, told.append)
    hears(world)
    return told


def lets_in(world: World, user: str = "") -> dict[str, bool]:
    brokers = world.brokers.items()
    return {name: b.own_users.lets_in(user) for name, b in brokers if b.replica is not None}


def everybody(world: World, *, is_let_in: bool) -> dict[str, bool]:
    return dict.fromkeys(lets_in(world), is_let_in)


def test_from_the_first_user_on_nobody_else_is_let_in_anywhere() -> None:
    world = group(1)
    assert lets_in(world) == everybody(world, is_let_in=True)
    assert changed(world, "a", ALICE) == [None]
    assert lets_in(world) == everybody(world, is_let_in=False)
    assert lets_in(world, "alice") == everybody(world, is_let_in=True)
    for broker in world.brokers.values():  # and after a start, before anything is heard
        broker.crash(world.random, power=True)
        broker.start()
    assert lets_in(world) == everybody(world, is_let_in=False)
    assert not any(lets_in(world, "alice")[name] for name in "bc")
    hears(world)
    assert lets_in(world, "alice") == everybody(world, is_let_in=True)


def test_a_master_killed_between_its_file_and_the_entry_goes_on_without_users() -> None:
    world = group(2)
    a, b = (world.brokers[name] for name in "ab")
    a.living.note_users()
    a.crash(world.random, power=True)
    b.own_users.turn()
    a.start()
    hears(world)
    assert all(each.living.store.has_users for each in world.brokers.values())
    assert lets_in(world) == everybody(world, is_let_in=True)
    passes(world, "b")
    assert not b.own_users.lets_in("")
    assert changed(world, "a", ALICE) == [None]
    assert lets_in(world) == everybody(world, is_let_in=False)


def a_slave_remembers_what_it_was_told_first() -> None:
    """Killed before it has any of the log, and before it has caught up."""
    world = group(3)
    for _ in range(4):
        world.put(world.brokers["a"])
    assert changed(world, "a", ALICE) == [None]
    c = world.brokers["c"]
    c.empty("a")
    c.own_users.turn()
    assert not c.own_users.lets_in("")
    world.connect("c")
    while not c.living.max_offset:
        world.pump("c", 200)
    assert c.living.store.has_users
    c.crash(world.random, power=True)
    c.start()
    c.own_users.turn()
    assert c.living.max_offset, "it has something to show"
    assert not c.own_users.lets_in("")
    hears(world)
    assert (c.own_users.lets_in(""), c.own_users.lets_in("alice")) == (False, True)


def test_a_slave_remembers_what_it_was_told_first() -> None:
    a_slave_remembers_what_it_was_told_first()


def obeys(broker: Broker, message: ReplicaRequest | QueuesRequest) -> bool:
    """At its port, somebody without a user."""
    access = broker.own_users.users.access
    connection = SimpleNamespace(user="", peer_name="c:1")
    session = BrokerSession(cast(Any, SimpleNamespace(reads=None)), cast(Any, connection), access)
    return session._refusal(message, None) is None


FOLLOW = ReplicaRequest(verb="slave", epoch=9, directory_id="e")


def a_slave_that_is_being_filled_obeys_nobody() -> None:
    """From when it knows that there are users, or holds something of another's log; and it serves nobody
    until it has caught up."""
    world = group(13)
    for _ in range(4):
        world.put(world.brokers["a"])
    hears(world)
    b, c = world.brokers["b"], world.brokers["c"]
    c.empty("a")
    c.own_users.turn()
    assert obeys(c, FOLLOW)
    assert not obeys(c, QueuesRequest()) and not c.own_users.lets_in("")
    world.connect("c")
    while not c.living.max_offset:
        world.pump("c", 200)
    assert not c.living.store.has_users
    c.own_users.turn()
    assert not obeys(c, FOLLOW) and not c.own_users.lets_in("")
    hears(world)
    assert changed(world, "a", ALICE) == [None]
    b.empty("a")
    b.own_users.turn()
    assert obeys(b, FOLLOW)
    world.connect("b")
    while not b.living.store.has_users:
        world.pump("b", 200)
    assert not obeys(b, FOLLOW), "at once"
    assert not b.living.max_offset
    b.own_users.turn()
    assert not obeys(b, FOLLOW) and not b.own_users.lets_in("")


def test_a_slave_that_is_being_filled_obeys_nobody() -> None:
    a_slave_that_is_being_filled_obeys_nobody()


def a_slave_that_is_behind_lets_nobody_in_by_what_was() -> None:
    world = group(9)
    assert changed(world, "a", ALICE) == [None]
    c = world.brokers["c"]
    c.crash(world.random, power=False)
    assert changed(world, "a", UserOrder(UserOperation.ADD_USER, "bob", ("admin",))) == [None]
    for _ in range(4):
        world.put(world.brokers["a"])
    assert changed(world, "a", UserOrder(UserOperation.REMOVE_USER, "alice")) == [None]
    c.start()
    world.connect("c")
    for _ in range(1_000):
        world.clock.advance(1)
        world.pump("c", 100)
        c.work()
        assert not c.own_users.lets_in("alice")
    assert c.own_users.lets_in("bob")


def test_a_slave_that_is_behind_lets_nobody_in_by_what_was() -> None:
    a_slave_that_is_behind_lets_nobody_in_by_what_was()


def who_is_cut_off_knows_them_no_more() -> None:
    """The slave that hears nobody, and the master that no slave hears, though the option's time is over
    for the slave that heard that master until now."""
    world = group(4, brokers=5, copies=3)
    assert changed(world, "a", ALICE) == [None]
    for one in "ab":
        world.parted |= {frozenset((one, other)) for other in "cde"}
    for name in "cde":
        world.cut(name)
    hears(world, rounds=2 * (MAY_BE_OLD_MS // HEARTBEAT_MS))
    assert lets_in(world, "alice") == everybody(world, is_let_in=False)
    for name in "abcde":
        access = world.brokers[name].own_users.users.access
        assert access.last is not None, "an administrator can switch"
        assert access.last.has_administrator
    world.parted.clear()
    hears(world)
    assert lets_in(world, "alice") == everybody(world, is_let_in=True)


def test_who_is_cut_off_knows_them_no_more() -> None:
    who_is_cut_off_knows_them_no_more()


def what_was_on_its_way_for_long_is_no_news() -> None:
    """What a master has said counts from when the slave had said the last thing before it."""
    world = group(5, brokers=2)
    assert changed(world, "a", ALICE) == [None]
    world.clock.advance(HEARTBEAT_MS)
    world.pump("b", 0)  # its master has said something, which is on the way
    passes(world, "b")
    b = world.brokers["b"]
    assert not b.own_users.lets_in("alice")
    wire = world.wires["b"]
    wire.slave_link.feed(bytes(wire.to_slave), b.clock())
    wire.to_slave.clear()
    world._work(wire)
    b.work()
    assert not b.own_users.lets_in("alice")
    hears(world)
    assert b.own_users.lets_in("alice")


def test_what_was_on_its_way_for_long_is_no_news() -> None:
    what_was_on_its_way_for_long_is_no_news()


def test_after_a_switch_all_go_by_what_the_new_master_says() -> None:
    world = group(6)
    assert changed(world, "a", ALICE) == [None]
    world.away.add("a")
    world.cut("a")
    assert world.switch("b") == ""
    hears(world)
    assert changed(world, "b", UserOrder(UserOperation.ADD_USER, "bob", ("admin",))) == [None]
    assert changed(world, "b", UserOrder(UserOperation.REMOVE_USER, "alice")) == [None]
    assert lets_in(world, "alice") == everybody(world, is_let_in=False)
    assert [lets_in(world, "bob")[name] for name in "abc"] == [False, True, True]
    world.away.clear()
    assert world.switch("b") == ""
    hears(world)
    assert lets_in(world, "bob") == everybody(world, is_let_in=True)
    assert lets_in(world, "alice") == everybody(world, is_let_in=False)


def an_earlier_release_meets_no_users() -> None:
    world = group(7)
    world.upgrade()
    world.old.add("c")
    hears(world)
    (refusal,) = changed(world, "a", ALICE)
    assert isinstance(refusal, SwitchRefused)
    assert not world.brokers["a"].living.store.has_users
    world.upgrade_slave("c")
    hears(world)
    assert changed(world, "a", ALICE) == [None]
    world.old.add("c")
    world.cut("c")
    hears(world, rounds=3)
    assert any("There are users" in each for each in world.story)


def test_one_of_an_earlier_release_that_was_switched_off_holds_up_nobody() -> None:
    world = group(7)
    world.upgrade()
    world.old.add("c")
    hears(world)
    assert any(not mark.release for mark in world.brokers["a"].living.slaves())
    world.cut("c")
    world.away.add("c")
    assert changed(world, "a", ALICE) == [None]
    world.away.clear()
    hears(world, rounds=3)
    assert any("There are users" in each for each in world.story)
    c = next(mark for mark in world.brokers["a"].living.slaves() if mark.id == "c")
    assert not c.is_connected


def test_an_earlier_release_meets_no_users() -> None:
    an_earlier_release_meets_no_users()


def a_log_that_has_lost_its_users_is_open_to_nobody() -> None:
    world = group(10)
    a = world.brokers["a"]
    a.crash(world.random, power=False)
    replace_file(a.disk, f"{ROOT}/{USERS_NAME}", USERS_ON, synced=True)
    a.start()
    hears(world)
    world.brokers["c"].empty("a")
    hears(world)
    for name, broker in world.brokers.items():
        assert not broker.own_users.lets_in(""), name
        assert LOST_USERS in broker.own_users.users.problems, name
    a.crash(world.random, power=False)
    save_first_admin(a.disk, ROOT, UserOrder(UserOperation.INIT_ADMIN, "alice"))
    a.start()
    hears(world, rounds=60)
    assert lets_in(world) == everybody(world, is_let_in=False)
    assert lets_in(world, "alice") == everybody(world, is_let_in=True)
    assert not a.own_users.users.problems


def test_a_log_that_has_lost_its_users_is_open_to_nobody() -> None:
    a_log_that_has_lost_its_users_is_open_to_nobody()


def hears_states(world: World, name: str) -> None:
    """What its master says, and nothing more of the log."""
    wire, broker = world.wires[name], world.brokers[name]
    world._collect(wire)
    wire.slave_link.feed(bytes(wire.to_slave), broker.clock())
    wire.to_slave.clear()
    world._work(wire)
    broker.own_users.turn()


def named_at_its_master_alone(seed: int) -> World:
    """Acknowledged by a, while b has heard that, and has none of it."""
    world = group(seed, brokers=2, copies=1)
    a, told = world.brokers["a"], list[LedgerError | None]()
    a.own_users.change(ALICE, told.append)
    for _ in range(20):
        a.work()
    assert told == [None]
    return world


def slaves_hear_at_once_that_there_have_been_users() -> None:
    """And whose users are on the way takes them for not known, and not for lost."""
    world = named_at_its_master_alone(12)
    b = world.brokers["b"]
    assert b.own_users.lets_in("")
    hears_states(world, "b")
    assert b.living.store.users_mark == USERS_ON
    assert not b.own_users.lets_in("")
    assert b.own_users.knows is None
    hears(world)
    assert lets_in(world, "alice") == everybody(world, is_let_in=True)


def test_slaves_hear_at_once_that_there_have_been_users() -> None:
    slaves_hear_at_once_that_there_have_been_users()


def who_has_heard_of_users_and_goes_on_alone_is_open_to_nobody() -> None:
    """a has acknowledged users, which are lost with it."""
    for has_come_back in (False, True):
        world = group(11, brokers=2, copies=1)
        a, b = world.brokers["a"], world.brokers["b"]
        told = list[LedgerError | None]()
        a.own_users.change(ALICE, told.append)
        a.own_users.turn()
        hears_states(world, "b")
        assert b.living.store.users_mark == USERS_HEARD
        for _ in range(20):
            a.work()
        assert told == [None]
        a.crash(world.random, power=False)
        assert world.switch("b", unsafe=True, without=["a"]) == ""
        if has_come_back:
            b.crash(world.random, power=True)
            b.start()
        for _ in range(20):
            world.clock.advance(HEARTBEAT_MS)
            b.work()
            assert not b.own_users.lets_in("")
        assert LOST_USERS in b.own_users.users.problems
        b.crash(world.random, power=False)
        save_first_admin(b.disk, ROOT, UserOrder(UserOperation.INIT_ADMIN, "bob"))
        b.start()
        for _ in range(20):
            world.clock.advance(HEARTBEAT_MS)
            b.work()
        assert (b.own_users.lets_in(""), b.own_users.lets_in("bob")) == (False, True)


def test_who_has_heard_of_users_and_goes_on_alone_is_open_to_nobody() -> None:
    who_has_heard_of_users_and_goes_on_alone_is_open_to_nobody()


@pytest.mark.parametrize("role", [None, BrokerRole.ASYNC_MASTER])
def test_a_part_of_a_log_with_users_is_open_to_nobody_by_itself(role: BrokerRole | None) -> None:
    """What says whose slave it was is deleted."""
    world = group(14)
    for _ in range(4):
        world.put(world.brokers["a"])
    a, c = world.brokers["a"], world.brokers["c"]
    a.living.note_users()
    c.empty("a")
    world.connect("c")
    while not c.living.max_offset:
        world.pump("c", 200)
    c.crash(world.random, power=False)
    c.disk.unlink(f"{ROOT}/{REPLICA_NAME}")
    if role is None:
        store = MessageStore(
            *(ROOT, world.config), disk=c.disk, wall_clock=world.clock, clock=c.clock, topics={"t": 1}
        )
        own = OwnUsers(c, store)
    else:
        c.first_role, c.first_master = role, ""
        c.start()
        store, own = c.living.store, c.own_users
    for _ in range(20):
        world.clock.advance(HEARTBEAT_MS)
        store.flush_once()
        store.reput_once()
        own.turn()
        assert not own.lets_in("")
    assert LOST_USERS in own.users.problems


def test_a_state_that_lacks_commands_is_not_saved_as_a_whole() -> None:
    """As of a slave that began in the middle of a log, and had to lead before a snapshot had come."""
    world = group(8)
    assert changed(world, "a", ALICE) == [None]
    follower = world.brokers["a"].own_users.groups.follower
    follower.is_whole = False
    answers: list[object] = []
    for number in range(40):
        create = partial(CreateTopic, f"topic{number}", 1)
        world.brokers["a"].own_users.groups.propose(create, answers.append)
        hears(world)
    assert len(answers) == 40
    assert not follower.is_whole
    assert follower.newest_snapshot() is None


@pytest.mark.parametrize("seed", [288, 338])
def test_a_slave_that_begins_in_the_middle_of_the_log_may_meet_commands_before_their_snapshot(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "USERS_SHARE", 1.0)
    ran = schedule.run(seed)
    assert not ran.failure, ran.failure
    assert ran.counts["replicas: changes of users"] > 5


def left(broker: Broker, verb: UserOperation, name: str) -> None:
    """As `init-admin` does, and it starts again."""
    broker.crash(broker.world.random, power=False)
    save_first_admin(broker.disk, ROOT, UserOrder(verb, name))
    broker.start()


def loses_the_first_commands(broker: Broker) -> None:
    """As of a disk."""
    store = broker.living.store
    store.cleaner.drop_before(store.commit_log.files.base_of(store.commit_log.max_offset))


def a_log_that_lacks_what_its_users_are_made_from_begins_with_a_new_administrator() -> None:
    world = group(15)
    a, c = world.brokers["a"], world.brokers["c"]
    assert changed(world, "a", ALICE) == [None]
    assert changed(world, "a", UserOrder(UserOperation.ADD_USER, "bob")) == [None]
    while a.living.max_offset < 2 * world.config.mapped_file_size_commit_log:
        world.put(a)
        hears(world, rounds=2)
    loses_the_first_commands(a)
    left(a, UserOperation.INIT_ADMIN, "carol")
    hears(world, rounds=60)
    assert lets_in(world, "carol") == everybody(world, is_let_in=False), "who is it to be beside?"
    assert not a.own_users.lets_in("alice")
    assert LACKS_USERS in a.own_users.users.problems
    (refused,) = changed(world, "a", UserOrder(UserOperation.ADD_USER, "eve"))
    assert LACKS_USERS in str(refused)
    c.crash(world.random, power=False)
    left(a, UserOperation.RESET_ADMIN, "dora")
    hears(world, rounds=60)
    c.start()
    hears(world, rounds=60)
    for name in ("", "alice", "bob", "carol"):
        assert lets_in(world, name) == everybody(world, is_let_in=False)
    assert lets_in(world, "dora") == everybody(world, is_let_in=True)
    assert not a.own_users.users.problems
    assert changed(world, "a", UserOrder(UserOperation.ADD_USER, "eve", ("admin",))) == [None]
    for broker in world.brokers.values():
        broker.crash(world.random, power=True)
        broker.start()
    hears(world, rounds=60)
    assert lets_in(world, "alice") == everybody(world, is_let_in=False)
    assert lets_in(world, "eve") == everybody(world, is_let_in=True)


def test_a_log_that_lacks_what_its_users_are_made_from_begins_with_a_new_administrator() -> None:
    a_log_that_lacks_what_its_users_are_made_from_begins_with_a_new_administrator()


def may_switch(broker: Broker, user: str) -> bool:
    connection = SimpleNamespace(user=user, peer_name="c:1")
    session = BrokerSession(
        cast(Any, SimpleNamespace(reads=None)), cast(Any, connection), broker.own_users.users.access
    )
    return session._refusal(FOLLOW, None) is None


def test_who_is_left_at_a_slave_that_knows_no_user_may_switch_to_it() -> None:
    """Its master is lost, which has told it that there would be some."""
    world = group(16)
    a, b = world.brokers["a"], world.brokers["b"]
    a.living.note_users()
    hears(world)
    a.crash(world.random, power=True)
    passes(world, "b", "c")
    assert not may_switch(b, "") and not may_switch(b, "alice")
    for slave in (b, world.brokers["c"]):
        left(slave, UserOperation.INIT_ADMIN, "alice")
        slave.own_users.turn()
        assert may_switch(slave, "alice") and not may_switch(slave, "")
        assert lets_in(world, "alice") == everybody(world, is_let_in=False)
    assert world.switch("b") == ""
    hears(world, rounds=60)
    assert lets_in(world) == everybody(world, is_let_in=False)
    assert lets_in(world, "alice") == everybody(world, is_let_in=True)
    for slave in (b, world.brokers["c"]):
        assert not slave.disk.exists(f"{ROOT}/{FIRST_ADMIN_NAME}")


def who_loses_users_of_whom_another_broker_has_heard_is_open_to_nobody() -> None:
    """a has acknowledged one, and b has heard that there are some; c never has."""
    for is_asked in (True, False):
        world = group(17, copies=1)
        a, b = world.brokers["a"], world.brokers["b"]
        told = list[LedgerError | None]()
        a.own_users.change(ALICE, told.append)
        a.own_users.turn()
        hears_states(world, "b")
        assert b.living.store.users_mark == USERS_HEARD
        for _ in range(20):
            a.work()
        assert told == [None]
        a.crash(world.random, power=False)
        if not is_asked:
            world.away.add("b")
        without = ["a"] if is_asked else ["a", "b"]
        assert world.switch("c", unsafe=True, without=without) == ""
        world.away.clear()
        if not is_asked:
            assert world.switch("c") == ""
        hears(world)
        assert not b.own_users.lets_in("")
        assert LOST_USERS in b.own_users.users.problems
        assert world.brokers["c"].own_users.lets_in("") is not is_asked


def test_who_loses_users_of_whom_another_broker_has_heard_is_open_to_nobody() -> None:
    who_loses_users_of_whom_another_broker_has_heard_is_open_to_nobody()


def who_was_the_master_serves_by_no_less_than_it_has_acknowledged() -> None:
    """It begins again as the slave of one that has not carried out all of that yet."""
    with patch.object(schedule, "USERS_SHARE", 1.0):
        ran = schedule.run(5481)
    assert not ran.failure, ran.failure


def test_who_was_the_master_serves_by_no_less_than_it_has_acknowledged() -> None:
    who_was_the_master_serves_by_no_less_than_it_has_acknowledged()


class Refused(ClusterProbe):
    """Which only c answers; b refuses, and a is away."""

    def __init__(self, world: World, refusal: LedgerError, *, has_users: bool = False) -> None:
        self._world = world
        self._refusal = refusal
        self._b_has_users = has_users
        super().__init__("c")

    def _ask(self, address: str) -> ReplicaResponse:
        if address != "c":
            raise self._refusal if address == "b" else Unreachable("nobody is there")
        answer = state_of(self._world.brokers["c"].living, dialect="quorumlog")
        self.answers["c"] = answer
        return answer

    def _has_users_at(self, address: str) -> bool:
        return address == "b" and self._b_has_users


def test_who_is_refused_for_want_of_a_right_knows_that_there_are_users() -> None:
    with closing(Refused(group(18), NotAuthenticated("who are you?"))) as probe:
        assert probe.unreachable.keys() == {"a", "b"}
        assert probe.have_users(but="c")


@pytest.mark.parametrize("has_users", [True, False])
def test_who_is_refused_by_a_broker_that_has_not_heard_its_master_looks_whether_it_has_users(
    has_users: bool,
) -> None:
    """It refuses all alike. One that is being filled has heard of none."""
    with closing(Refused(group(18), LeaderNotReady("not heard"), has_users=has_users)) as probe:
        assert probe.unreachable.keys() == {"a", "b"}
        assert probe.have_users(but="c") is has_users


def test_the_first_user_is_read_before_retention_takes_the_command() -> None:
    """Of a master that writes more than a file before it has read its first command."""
    ran = schedule.run(1971, ["zookeeper"])
    assert not ran.failure, ran.failure
    assert ran.counts["replicas: looks by users"] > 5


def test_snapshots_have_the_users_when_the_commands_are_gone() -> None:
    world = group(8)
    assert changed(world, "a", ALICE) == [None]
    a = world.brokers["a"]
    for number in range(40):
        order = UserOrder(UserOperation.ADD_ROLE, f"role{number}")
        assert changed(world, "a", order) == [None]
    assert a.own_users.groups.follower.newest_snapshot() is not None
    a.crash(world.random, power=True)
    a.start()
    hears(world)
    for broker in world.brokers.values():
        users = broker.own_users.knows
        assert users is not None
        assert len(users.roles) == 40
