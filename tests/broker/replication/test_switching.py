"""Switches by hand: what operators may do, what is refused, what is lost, and what of it is said."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace as with_config
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from quorumlog.broker.client import switching
from quorumlog.broker.client.switching import Lost, Switch, change_list
from quorumlog.broker.config import ASYNC_FLUSH
from quorumlog.broker.epochs import CopyList, Epoch
from quorumlog.broker.errors import InSyncReplicasNotEnough, NotMaster, StaleEpoch, SwitchRefused
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.replication.acknowledgements import Member
from quorumlog.broker.replication.links import MasterLink, SlaveLink
from quorumlog.broker.replication.replica import DRAIN_MS, ReplicaObserver
from quorumlog.broker.replication.replica_file import ReplicaRecord
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.broker.wire import ReplicaRequest
from quorumlog.errors import ConfigError, LedgerError
from sim.replicas.operators import OperatorGone, SimulatedProbe
from sim.replicas.world import World
from tests.broker.store.store_making import SMALL, numbers_in_queue


def following(world: World, rounds: int = 12) -> None:
    world.turns(rounds)


def group(seed: int, brokers: int = 3, copies: int = 2) -> World:
    """All of them are on the list."""
    world = World(seed, brokers, copies)
    world.form_group()
    assert listed(world) == list(world.brokers)
    assert not world.brokers["a"].living._refusal()
    return world


def refused(asked: SimulatedProbe, to: str) -> str:
    """Why; empty: it was not."""
    try:
        Switch(asked, to).run()
    except LedgerError as error:
        return str(error)
    return ""


def listed(world: World, name: str = "a") -> list[str]:
    copy_list = world.brokers[name].living.history.copy_list
    return [] if copy_list is None else copy_list.ids


def down(world: World, *names: str) -> None:
    for name in names:
        world.brokers[name].crash(world.random, power=False)


class Unlucky(Random):
    """With what is not synced when the power is lost."""

    def random(self) -> float:
        return 1.0

    def choice(self, seq: Any) -> Any:
        return seq[0]


@pytest.mark.parametrize("is_master_lost", [False, True])
def test_of_two_switches_at_once_one_is_done(is_master_lost: bool) -> None:
    """Both operators have asked everybody before either has told anybody anything."""
    world = group(6)
    if is_master_lost:
        down(world, "a")
    first, second = SimulatedProbe(world), SimulatedProbe(world)
    done = []

    def meanwhile(line: str) -> None:
        if "voted for epoch" in line:
            with suppress(StaleEpoch, SwitchRefused):
                done.append(Switch(second, "c").run())

    with suppress(StaleEpoch, SwitchRefused):
        done.append(Switch(first, "b", say=meanwhile).run())
    (report,) = done
    leading = [broker.name for broker in world.masters if broker.living.is_leading]
    assert report.master in leading
    following(world)
    world.put(world.brokers[report.master])
    following(world)
    assert world.acknowledged == [0]


def test_a_planned_switch_loses_nothing_and_what_is_under_way_is_acknowledged_before() -> None:
    world = group(1)
    a, b, _ = world.brokers.values()
    for _ in range(5):
        world.put(a)
    assert world.acknowledged == []
    world.meanwhile = lambda: following(world, 1)
    report = Switch(SimulatedProbe(world), "b", timeout_ms=10_000).run()
    assert (report.master, report.lost, report.followers) == ("b", None, ["a", "c"])
    assert sorted(world.acknowledged) == [0, 1, 2, 3, 4]
    assert (a.living.role, b.living.role) == (BrokerRole.SLAVE, BrokerRole.SYNC_MASTER)
    following(world)
    world.put(b)
    following(world)
    assert len(world.acknowledged) == 6
    assert a.living.log_epoch == 2


def test_a_planned_switch_to_one_that_does_not_come_so_far_leaves_the_master() -> None:
    world = group(2)
    a = world.brokers["a"]
    world.cut("b")
    world.put(a)
    assert "b is behind: its disk has the log up to" in world.switch("b")
    assert a.living.is_leading
    following(world)
    assert world.acknowledged == [0]


def test_who_has_less_is_refused_and_the_greatest_log_leads() -> None:
    world = group(3)
    a, b, c = world.brokers.values()
    world.cut("c")
    for _ in range(3):
        world.put(a)
    for _ in range(6):
        world.turn(["a", "b"])
    assert world.acknowledged == [0, 1, 2]
    down(world, "a")
    assert "broker b has more on its disk than c" in world.switch("c")
    assert not world.switch("b")
    following(world)
    assert numbers_in_queue(c.living.store) == [0, 1, 2]
    assert b.living.is_leading


def test_of_two_logs_that_of_the_newer_epoch_has_more() -> None:
    """The old master's is longer by what nobody acknowledged."""
    world = group(10)
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
    down(world, "b")
    assert a.living.max_offset > c.living.max_offset
    assert "Take --to c" in world.switch("a")
    assert not world.switch("c")
    following(world)
    world.check()
    (tail,) = a.living.record.tails
    assert tail.stop_offset > tail.first_offset


def test_with_too_few_answers_a_switch_is_refused_by_name() -> None:
    world = group(4, brokers=4, copies=2)
    down(world, "a", "b")
    why = world.switch("c")
    assert "a and b did not answer" in why
    assert "2 of a, b, c, d answer, 3 are needed" in why
    assert "--to c --without a --without b --unsafe" in why
    world.brokers["b"].start()
    assert not world.switch("c") or not world.switch("b")


def test_of_a_pair_one_reads_and_waits_and_goes_on_alone_once_the_other_is_given_up() -> None:
    world = group(5, brokers=2)
    a, b = world.brokers.values()
    world.put(a)
    following(world)
    down(world, "b")
    refusal = a.living._refusal()
    assert "1 of 2 required copies in sync, master included (replica list: a, b); b is" in str(refusal)
    with pytest.raises(SwitchRefused, match="needs --unsafe"):
        Switch(SimulatedProbe(world), "a", without=["b"]).run()
    with pytest.raises(SwitchRefused, match="is the master already"):
        Switch(SimulatedProbe(world), "a", unsafe=True).run()
    report = Switch(SimulatedProbe(world), "a", without=["b"], unsafe=True).run()
    assert report.lost is None, "nothing that was acknowledged is on b alone"
    world.put(a)
    following(world)
    assert world.acknowledged == [0, 1]
    copy_list = a.living.history.copy_list
    assert copy_list is not None
    assert (copy_list.ids, copy_list.copies) == (["a"], 1)
    # It meets a: it follows, and is off the list.
    b.start()
    assert world.switch("a") == ""
    following(world)
    assert numbers_in_queue(b.living.store) == [0, 1]
    assert listed(world, "b") == ["a"]
    a.living.add("b")
    following(world)
    assert listed(world, "b") == ["a", "b"]


def test_of_a_pair_the_slave_goes_on_alone_and_says_what_may_be_missing() -> None:
    world = group(6, brokers=2)
    a, b = world.brokers.values()
    world.put(a)
    following(world)
    seen = b.living.confirm_offset
    down(world, "a")
    # One of two has all that was acknowledged: two copies.
    assert not world.switch("b")
    assert "1 of 2 required copies in sync" in str(b.living._refusal())
    report = Switch(SimulatedProbe(world), "b", without=["a"], unsafe=True).run()
    assert report.lost is None
    world.put(b)
    following(world)
    assert len(world.acknowledged) == 2
    assert b.living.confirm_offset > seen


def test_the_range_that_may_be_lost_begins_where_consumers_have_seen_the_log() -> None:
    world = group(7, copies=1)
    a, b, _ = world.brokers.values()
    world.put(a)
    following(world)
    seen = b.living.confirm_offset
    world.cut("b")
    world.put(a)
    a.work()
    assert world.acknowledged == [0, 1], "one copy"
    down(world, "a")
    assert "2 of a, b, c answer, 3 are needed" in world.switch("b")
    with pytest.raises(SwitchRefused, match="must never become master again"):
        Switch(SimulatedProbe(world), "b", unsafe=True).run()
    with pytest.raises(SwitchRefused, match=r"broker c answers: omit --without c .*out: a\)"):
        Switch(SimulatedProbe(world), "b", without=["a", "c"], unsafe=True).run()
    report = Switch(SimulatedProbe(world), "b", without=["a"], unsafe=True).run()
    assert report.lost == Lost(seen, -1)


def test_the_range_that_is_lost_begins_where_the_logs_part() -> None:
    world = group(9)
    a, b, c = world.brokers.values()
    world.put(a)
    following(world)
    common = a.living.max_offset
    for _ in range(8):
        world.put(a)  # nobody else gets them
    world.away.add("a")
    world.cut("a")
    assert not world.switch("b")
    following(world)
    world.put(b)
    following(world)
    world.away.clear()
    down(world, "b")
    with pytest.raises(SwitchRefused, match="Take --to c"):
        Switch(SimulatedProbe(world), "a").run()
    report = Switch(SimulatedProbe(world), "a", without=["b"], unsafe=True).run()
    assert report.lost == Lost(common, -1)
    assert c.living.max_offset > common


def test_a_master_that_comes_back_acknowledges_nothing() -> None:
    world = group(11)
    a, b, _ = world.brokers.values()
    down(world, "a")
    assert not world.switch("b")
    following(world)
    a.start()
    assert a.living.is_leading, "as far as it knows"
    world.put(a)
    following(world)
    assert world.acknowledged == []
    assert "first make it follow with --to b" in world.switch("a")
    assert not b.living.is_drained
    world.switch("b")  # whoever missed it is told
    following(world)
    world.put(b)
    following(world)
    assert [len(numbers_in_queue(each.living.store)) for each in world.brokers.values()] == [1, 1, 1]


def test_two_that_lead_epochs_of_one_number_are_told_apart() -> None:
    """Two operators drew it, each with enough promises: the greater pair goes on."""
    world = group(12, copies=3)
    a, b, c = world.brokers.values()
    down(world, "a")
    for name in "bc":
        world.hidden = {"b", "c"} - {name}
        assert not world.switch(name)
    world.hidden.clear()
    assert b.living.record.promised == Epoch(2, "b1")
    assert c.living.record.promised == Epoch(2, "c1")
    a.start()
    assert not world.switch("c")
    following(world)
    world.put(c)
    following(world)
    assert len(world.acknowledged) == 1
    assert b.living.role is BrokerRole.SLAVE


def test_a_master_that_has_gone_on_is_not_replaced_by_a_switch_that_was_too_slow() -> None:
    world = group(13)
    a, b, _ = world.brokers.values()

    def slow(line: str) -> None:
        if "accepts no more messages" in line:
            return
        raise AssertionError(line)

    asked = SimulatedProbe(world)

    def meanwhile() -> None:
        if a.living.is_drained and b.living.record.promised.number == 1:
            return
        if a.living.is_drained:  # b has promised, and a not yet
            world.clock.now_ms += DRAIN_MS
            a.living.end_drain()
            world.put(a)
            a.work()
            for _ in range(4):
                world.pump("c", 1 << 20)
                world.brokers["c"].work()

    world.meanwhile = meanwhile
    assert "Take --to " in refused(asked, "b")
    world.meanwhile = lambda: None
    assert world.acknowledged == [0], "by a and c"
    assert not world.switch("a") or not world.switch("c")
    following(world)
    world.check()


def test_what_an_older_master_wrote_is_acknowledged_once_a_slave_has_come_to_the_own_run() -> None:
    """A master of an epoch between is away, whose log is greater than what the slave has until then."""
    world = group(30)
    a, b, c = world.brokers.values()
    for _ in range(40):  # more than a file, and so than a frame
        world.put(a)
    down(world, "a")
    assert not world.switch("b")
    world.cut("c")
    world.put(b)
    b.work()
    down(world, "b")
    a.start()
    assert not world.switch("a")
    begin = a.living.max_offset
    while not c.living.max_offset:
        world.connect("c")
        world.pump("c", 50)
        c.work()
    for _ in range(4):  # its report arrives
        world.pump("c", 40)
    assert c.living.flushed_offset < begin
    assert (a.living.confirm_offset, world.acknowledged) == (0, [])
    down(world, "a")
    b.start()
    assert "of epoch 2" in world.switch("c")
    world.switch("b")
    assert world.serves()
    assert c.living.max_offset < begin, "b leads, which never had it"


def test_a_promise_to_another_one_ends_what_a_master_may_acknowledge() -> None:
    """The slave was not told yet whom it is to follow."""
    world = group(31, brokers=2)
    a, b = world.brokers.values()
    b.living.promise(9)
    following(world)
    a.living.fenced_by = 0  # as if it had heard of nothing
    world.put(a)
    a.work()
    following(world)
    assert world.acknowledged == []
    assert b.living.record.promised == Epoch(9, "b1")


def test_who_drains_a_master_and_is_killed_leaves_it_the_master() -> None:
    world = group(14)
    a = world.brokers["a"]
    with pytest.raises(OperatorGone):
        Switch(SimulatedProbe(world, is_gone_at=4), "b").run()
    assert a.living.is_drained
    world.put(a)
    assert world.acknowledged == []
    world.clock.now_ms += DRAIN_MS
    a.living.end_drain()
    world.put(a)
    following(world)
    assert world.acknowledged == [1]


@pytest.mark.parametrize("gone_at", range(3, 12))
def test_a_switch_that_is_killed_between_its_steps_leaves_nothing_that_a_switch_does_not_mend(
    gone_at: int,
) -> None:
    world = group(15)
    world.put(world.brokers["a"])
    following(world)
    world.switch("b", is_gone_at=gone_at)
    following(world)
    world.tick()
    assert world.serves()
    assert world.acknowledged[0] == 0


def test_another_directory_than_the_one_that_was_asked_first_refuses() -> None:
    world = group(16)
    down(world, "a")
    asked = SimulatedProbe(world)
    world.brokers["b"].empty("a")
    assert "another directory" in refused(asked, "b")
    assert "has not connected to a master yet" in world.switch("b") or "not on the list" in world.switch(
        "b"
    )


def test_a_directory_that_was_emptied_promises_nothing_until_it_is_on_the_list() -> None:
    world = group(17)
    down(world, "a")
    world.brokers["b"].empty("c")
    why = world.switch("c")
    assert "a and b did not answer, or has another directory than the replica list" in why
    world.brokers["a"].start()
    following(world)
    assert world.brokers["a"].living.is_leading
    world.brokers["b"].empty("a")
    following(world)
    world.brokers["a"].living.add("b")
    following(world)
    down(world, "a")
    assert not world.switch("b") or not world.switch("c")


def test_an_emptied_master_that_was_started_as_before_is_not_followed_by_who_knew_the_old_one() -> None:
    world = group(18)
    a = world.brokers["a"]
    world.put(a)
    following(world)
    a.empty("b")
    a.first_role = BrokerRole.SYNC_MASTER
    a.disk = type(a.disk)()
    a.start()
    following(world)
    world.put(a)
    following(world)
    assert world.acknowledged == [0]
    assert numbers_in_queue(world.brokers["b"].living.store) == [0]


def test_what_slaves_have_not_flushed_counts_at_a_switch() -> None:
    """Without --flush sync it was acknowledged, too."""
    world = group(7, brokers=2)
    b = world.brokers["b"].living
    link = world.wires["b"].slave_link
    assert link._welcome is not None
    runs = [replace(run, is_flushed=False) for run in link._welcome.runs]
    link._welcome = replace(link._welcome, runs=runs)
    world.put(world.brokers["a"])
    world.brokers["a"].work()
    for _ in range(5):
        world.pump("b", 1 << 20)
    assert b.flushed_offset < b.max_offset
    b.promise(9)
    assert b.flushed_offset == b.max_offset


def test_the_tail_that_a_master_has_lost_is_cut_off_with_sync_flush_alone() -> None:
    """What was acknowledged was on its disk."""
    world = group(19)
    a, b, _ = world.brokers.values()
    world.put(a)
    for _ in range(4):
        world.pump("b", 1 << 20)
        b.work()
    assert b.living.flushed_offset == a.living.max_offset > 0
    assert world.acknowledged == []
    a.disk.lose_power(world.random)
    a.crash(world.random, power=True)
    a.start()
    following(world)
    if a.living.max_offset == 0:
        assert b.living.max_offset == 0
        assert len(b.living.record.tails) == 1
    world.put(a)
    following(world)
    assert len(world.acknowledged) == 1


def test_what_was_acknowledged_without_a_flush_is_not_cut_off_by_a_master_that_flushes_now() -> None:
    """It was on no disk when its master lost its power, and the slave has all of it."""
    world = World(20, brokers=2)
    down(world, "a", "b")
    for broker in world.brokers.values():
        broker.start(with_config(SMALL, flush_disk_type=ASYNC_FLUSH))
    following(world)
    a, b = world.brokers.values()
    world.put(a)
    for _ in range(8):
        world.pump("b", 1 << 20)
    assert world.acknowledged == [0]
    b.work()
    a.crash(Unlucky(), power=True)
    a.start()
    assert a.living.max_offset == 0
    following(world)
    assert b.living.max_offset > 0, "an acknowledged message is lost"
    assert "has lost messages that it had sent" in world.story[-1]


def test_brokers_that_never_had_a_master_make_none_of_themselves() -> None:
    world = World(20)
    down(world, "a")
    assert "has not connected to a master yet" in world.switch("b")
    report = Switch(SimulatedProbe(world), "b", without=["a"], unsafe=True).run()
    assert report.lost == Lost(0, -1)


# -------------------------------------------------------------------- the list


def test_a_group_forms_of_the_first_slaves_and_others_are_added() -> None:
    world = World(21)
    a = world.brokers["a"]
    assert "of 2" in str(a.living._refusal())
    assert "replica list: a)" in str(a.living._refusal())
    following(world)
    assert not a.living._refusal()
    assert len(listed(world)) == 2
    (other,) = {"b", "c"} - {*listed(world)}
    assert "is not on the list" in world.switch(other)
    a.living.add(other)
    with pytest.raises(SwitchRefused, match="is not confirmed yet"):
        a.living.set_copies(3)
    following(world)
    assert listed(world, other) == ["a", "b", "c"]
    a.living.set_copies(3)
    following(world)
    assert a.living.in_sync_replicas == 3
    down(world, other)
    assert "2 of 3 required copies in sync, master included" in str(a.living._refusal())


def test_a_list_that_could_not_be_confirmed_now_is_refused() -> None:
    world = group(22)
    a = world.brokers["a"]
    with pytest.raises(SwitchRefused, match="broker a leads"):
        a.living.remove("a")
    with pytest.raises(SwitchRefused, match="no broker z is on the list"):
        a.living.remove("z")
    with pytest.raises(SwitchRefused, match="broker b is on the list"):
        a.living.add("b")
    with pytest.raises(SwitchRefused, match="4 copies need 4 brokers, the list has 3"):
        a.living.set_copies(4)
    with pytest.raises(NotMaster, match="--servers a"):
        world.brokers["b"].living.remove("c")
    down(world, "b")
    with pytest.raises(Exception, match="2 of a, b, c are in sync, and the change needs 3"):
        a.living.set_copies(3)
    a.living.remove("b")
    following(world)
    with pytest.raises(SwitchRefused, match="2 copies need as many brokers"):
        a.living.remove("c")
    with pytest.raises(SwitchRefused, match="does not follow this master: start it with --role slave"):
        a.living.add("b")


def test_what_is_under_way_is_acknowledged_while_the_list_changes() -> None:
    world = group(23)
    a = world.brokers["a"]
    world.put(a)
    a.living.set_copies(1)
    assert world.acknowledged == []
    following(world)
    assert world.acknowledged == [0]


def test_messages_are_taken_while_the_list_changes_and_its_slaves_come_back() -> None:
    world = group(23)
    a = world.brokers["a"]
    save, in_between = a.living._save, list[bool]()

    def saved(record: ReplicaRecord) -> None:
        in_between.append(a.living._may_acknowledge())
        save(record)

    a.living._save = saved  # type: ignore[method-assign]
    a.living.set_copies(3)
    assert in_between == [True], "what is under way is an unknown outcome"
    assert not world.wires, "all of them come back"
    world.put(a)
    assert world.acknowledged == []
    following(world)
    assert world.acknowledged == [0]
    # Who does not come back is missed in the end.
    a.living.set_copies(2)
    world.clock.now_ms += 1_000
    assert "1 of 3 required copies in sync, master included" in str(a.living._refusal())


def test_a_broker_is_added_under_load_and_one_that_lacks_much_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(23, brokers=2, copies=1)
    a, b = world.brokers.values()
    a.living.store.config = with_config(SMALL, ha_max_gap_not_in_sync=4096)
    following(world)
    for _ in range(3):
        world.put(a)
    a.work()
    assert (len(world.acknowledged), b.living.max_offset) == (3, 0)
    a.living.add("b")
    following(world)
    assert listed(world, "b") == ["a", "b"]
    a.living.remove("b")
    following(world)
    for _ in range(30):
        world.put(a)

    class Probe(SimulatedProbe):
        def __init__(self, server: str) -> None:
            super().__init__(world)

        def close(self) -> None: ...

    monkeypatch.setattr(switching, "ClusterProbe", Probe)
    add = ReplicaRequest(verb="add", broker_id="b")
    with pytest.raises(InSyncReplicasNotEnough, match=r"broker b is not in sync: it lacks \d+ bytes"):
        change_list("a", add, timeout_ms=1)
    world.meanwhile = lambda: following(world, 1)
    answer = change_list("a", add)
    assert answer.is_list_confirmed
    assert listed(world, "b") == ["a", "b"]


def test_a_slave_that_lacks_a_list_asks_the_one_before() -> None:
    """The new one is confirmed, and one that was away goes by the old: which meets those that know."""
    world = group(24)
    a, b, c = world.brokers.values()
    world.away.add("c")
    world.cut("c")
    a.living.remove("c")
    following(world)
    world.put(a)
    following(world)
    assert len(world.acknowledged) == 1
    down(world, "a", "b")
    world.away.clear()
    assert "1 of a, b, c answer, 2 are needed" in world.switch("c")
    b.start()
    assert "Take --to b" in world.switch("c") or "is not on the list" in world.switch("c")
    assert not world.switch("b")
    following(world)
    assert numbers_in_queue(c.living.store) == [0]


def test_a_broker_that_was_taken_off_stays_off() -> None:
    world = group(33, brokers=2)
    a = world.brokers["a"].living
    a.set_copies(1)
    following(world)
    a.remove("b")
    following(world)
    assert listed(world) == ["a"]
    with pytest.raises(ConfigError, match="cannot have 1 copies"):
        world.brokers["b"].living.promise(7)
        world.brokers["b"].living.lead(7, forced_list=CopyList((), 1))


def test_slaves_know_once_a_list_is_confirmed_also_without_a_message_since() -> None:
    world = group(25)
    a, b, _ = world.brokers.values()
    a.living.remove("c")
    following(world)
    assert b.living.record.confirmed == b.living.history.last.key  # type: ignore[union-attr]
    down(world, "a", "c")
    assert not world.switch("b"), "one of two"


def test_a_link_of_the_run_before_is_not_counted_in_the_next() -> None:
    world = group(26, brokers=2)
    a = world.brokers["a"].living
    world.cut("b")
    world.connect("b")
    for _ in range(2):
        wire = world.wires["b"]
        wire.slave_link.feed(b"", 0)
    link = world.wires["b"].master_link
    world.pump("b", 1 << 20)  # hello, and welcome
    observer, a.observer = a.observer, ReplicaObserver()
    a._begin(a.record.promised, a.role, goes_on=True)
    a.observer = observer
    for _ in range(3):
        world.pump("b", 1 << 20)
    assert link.mark is None or link.mark not in a._acks.marks.values()
    following(world)
    assert a._acks.is_run_confirmed


def test_an_option_that_differs_from_the_list_changes_nothing() -> None:
    world = group(27)
    a = world.brokers["a"]
    down(world, "a")
    a.start(with_config(SMALL, in_sync_replicas=1))
    following(world)
    assert a.living.in_sync_replicas == 2


def test_slaves_hear_of_topics_that_a_master_was_given() -> None:
    world = group(28)
    a = world.brokers["a"].living
    a.store.topics = {"t": 1, "new": 4}
    a.set_copies(1)
    following(world)
    b = world.brokers["b"].living
    assert b.record.topics == {"t": 1, "new": 4}
    assert b.store.topics == {"t": 1, "new": 4}


def test_a_verb_of_the_release_before_is_none() -> None:
    from quorumlog.broker.broker_server import work_of

    world = World(29, brokers=1)
    assert work_of(world.brokers["a"].living, ReplicaRequest(verb="forget", broker_id="b")) is None


def test_after_a_coordinator_who_led_last_forms_the_group_anew() -> None:
    """Its set changed as it liked: the list before knows nothing of that."""
    world = group(32)
    a, b, c = world.brokers.values()
    b.living.become_master(5, frozenset({Member("a", "a1"), Member("b", "b1")}))
    for slave in (a, c):
        slave.living.become_slave(5, b.living.me)
    following(world)
    world.put(b)
    following(world)
    assert world.acknowledged == [0]
    down(world, "b")
    assert world.switch("a"), "a is on no list"
    b.start()
    assert (b.living.in_sync_replicas, listed(world, "b")) == (2, ["b"])
    following(world)
    assert len(listed(world, "b")) == 2
    world.put(b)
    following(world)
    assert numbers_in_queue(a.living.store) == [0, 1]


def test_what_a_given_up_master_had_confirmed_beyond_the_own_end_is_nothing_of_the_next_one() -> None:
    world = group(34, copies=1)
    a, b, c = world.brokers.values()
    a.living.remove("c")
    following(world)
    world.cut("b")
    for _ in range(12):
        world.put(a)
        a.work()
    assert len(world.acknowledged) == 12, "by a alone"
    c.living.store.commit_log.replicated_offset = a.living.confirm_offset  # it was told so
    world.cut("c")
    down(world, "a")
    report = Switch(SimulatedProbe(world), "b", without=["a"], unsafe=True).run()
    assert report.lost is not None
    world.is_past_given_up = True
    for _ in range(12):
        world.connect("c")
        world.pump("c", 1 << 20)
    assert c.living.store.commit_log.replicated_offset == b.living.confirm_offset == 0
    following(world)
    world.put(b)
    following(world)
    assert len(world.acknowledged) == 13


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_bytes_of_the_next_run_do_not_come_over_a_link_of_the_run_before(flush: str) -> None:
    """A slave would take them for some of a run that ended below: it would cut off what it has shown,
    or, with --flush async, follow no more."""
    world = group(41)
    a, b, _ = world.brokers.values()
    a.living.set_copies(1)
    following(world)
    for broker in world.brokers.values():
        broker.living.store.config = with_config(SMALL, flush_disk_type=flush)
        world.cut(broker.name)
    following(world)
    world.put(a)
    following(world)
    observer, a.living.observer = a.living.observer, ReplicaObserver()  # the loop has not come to it
    a.living.remove("c")
    world.put(a)
    a.work()
    assert world.acknowledged == [0, 1]
    for _ in range(4):
        world.pump("b", 1 << 20)
        b.work()
    seen = numbers_in_queue(b.living.store)
    a.living.observer = observer
    observer.role_changed()
    for _ in range(12):
        world.turn(["a", "b"])
        assert numbers_in_queue(b.living.store)[: len(seen)] == seen
    assert numbers_in_queue(b.living.store) == [0, 1]
    assert (b.living.history, b.living.record.tails) == (a.living.history, [])


def test_a_change_right_after_another_asks_nobody_who_went_off_the_list() -> None:
    world = group(42)
    a = world.brokers["a"]
    a.living.remove("c")
    for name in 3 * ["b", "c"]:
        world.connect(name)
        world.pump(name, 1 << 20)
        world.brokers[name].work()
    assert a.living._acks.is_run_confirmed
    assert not a.living.is_run_confirmed, "nobody has noted it"
    a.living.add("c")
    assert [each.ids for each in a.living._acks.lists] == [["a", "b"], ["a", "b", "c"]]


def test_what_was_cut_off_is_not_acknowledged_once_the_log_has_grown_again() -> None:
    """It still waits for the disk, and the broker leads once more."""
    world = group(43)
    a, b, _ = world.brokers.values()
    world.put(a)
    following(world)
    world.put(a)  # nobody gets it
    world.away.add("a")
    world.cut("a")
    assert not world.switch("b")
    for _ in range(12):
        world.turn(["b", "c"])
    for _ in range(20):
        world.put(b)
    for _ in range(12):
        world.turn(["b", "c"])
    world.away.clear()
    assert not world.switch("b"), "a is told to follow"
    for _ in range(20):
        world.connect("a")
        world.pump("a", 1 << 20)
    assert a.living.flushed_offset == b.living.max_offset
    assert len(a.living.record.tails) == 1
    assert not world.switch("a")
    for _ in range(4):
        world.turn(["b", "c"])
    a.work()
    assert 1 not in world.acknowledged
    following(world)
    assert 1 not in world.acknowledged


def test_a_queue_that_shows_what_is_alive_keeps_it_when_its_slave_is_told_from_where() -> None:
    """Of a broker that had given numbers again; the others were recovered with --given-again."""
    world = group(1, brokers=2)
    a, b = world.brokers["a"], world.brokers["b"]
    position = a.living.max_offset
    for _ in range(4):
        world.put(a)
        following(world)
    key, queues = QueueKey("t", 0), b.living.store.queues
    before = queues.get(key)
    assert before is not None
    shown = before.min_offset, before.max_offset
    a.living.store.queues.alive_from[key] = position
    a.living.store.queues.record_ends()
    world.cut("b")
    following(world)
    assert queues.alive_from == {key: position}
    assert (before.min_offset, before.max_offset) == shown


def test_a_log_is_not_cut_where_what_both_have_was_deleted_meanwhile() -> None:
    """By age, between the welcome of the master and the cut."""
    world = group(40, brokers=2, copies=1)
    a, b = world.brokers.values()
    world.put(a)
    following(world)
    down(world, "b")
    for _ in range(30):
        world.put(a)
        a.work()
    down(world, "a")
    b.start()
    assert not world.switch("b", without=["a"], unsafe=True)
    a.start()
    world.switch("b")
    own, end = a.living.own_log(), a.living.max_offset
    link = SlaveLink(own, 0.0, heartbeat_ms=1e12, silence_ms=1e15)
    master = MasterLink(b.living, 0.0, heartbeat_ms=1e12, silence_ms=1e15)
    for _ in range(3):
        for each in [bytes(out) for out in link.out]:
            master.feed(each, 0.0)
        for each in [bytes(out) for out in master.out]:
            link.feed(each, 0.0)
        link.out.clear()
        master.out.clear()
    follow = link.take_work().follow
    assert follow is not None and follow.cuts
    a.living.store.cleaner.drop_before(4096)
    assert follow.start_offset < a.living.min_offset
    why = ""
    try:
        a.living.follow(follow)
    except StaleEpoch as refused:
        why = str(refused)
    assert "has been deleted by age" in why
    assert (a.living.max_offset, a.living.record.tails) == (end, [])
