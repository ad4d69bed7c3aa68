"""Directories that were replaced: what they may still do, and what they may not."""

from __future__ import annotations

from dataclasses import replace

from quorumlog.consensus.membership import Membership
from quorumlog.consensus.ready import Role
from quorumlog.errors import MembershipRefused
from quorumlog.log_state.control_entries import REPLACED_LEVEL
from quorumlog.node.member_changes import MemberChange, MemberOperation, MemberOutcome
from quorumlog.testing.member import SimMember
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario
from tests.sim.test_log_begin import boundaries, drop, fill
from tests.sim.test_member_scenarios import ask, make

REPLACING = replace(QUIET, auto_replace_after_ms=3_000)


def wiped_and_replaced(scene: Scenario, member: SimMember) -> None:
    """The directory that it gets is another one of its members."""
    member.wipe()
    scene.append()
    member.start()
    make(scene, MemberOperation.REPLACE, member.member_id)
    scene.append()


def come_and_go(scene: Scenario, member: SimMember) -> None:
    """The second directory of a member comes back when the third one is away, and nobody has seen since
    its start what replaced it: the entries that named it are gone."""
    wiped_and_replaced(scene, member)
    second = member.replica
    member.stop()
    copy = member.disk.snapshot()
    wiped_and_replaced(scene, member)
    third = member.replica
    fill(scene)
    for each in scene.members:
        drop(scene, each, boundaries(each)[-1])
    for each in scene.members:
        each.stop()
    member.disk.restore(copy)
    for each in scene.members:
        each.start()
    assert member.replica == second
    scene.until(lambda: scene.leader() not in (None, member), "leader")
    assert second not in scene.await_leader().node.raft.members.ever_known
    for _ in range(10):
        scene.run_for(1_000)
        scene.ask_and_wait(scene.await_leader())
    membership = scene.await_leader().node.status().membership
    assert third in membership.new
    assert second not in membership.members()
    assert member.node.raft.role is Role.OBSERVER


def test_who_was_replaced_is_not_put_back_although_the_log_has_dropped_what_named_it() -> None:
    scene = Scenario(profile=REPLACING)
    scene.append(3)
    come_and_go(scene, scene.followers()[0])


def test_an_operator_may_put_back_who_was_replaced() -> None:
    scene = Scenario()
    scene.append(3)
    member = scene.followers()[0]
    member.stop()
    copy, first = member.disk.snapshot(), member.replica
    wiped_and_replaced(scene, member)
    second = member.replica
    member.stop()
    member.disk.restore(copy)
    member.start()
    scene.until(lambda: first in scene.await_leader().node.raft.connected, "connection")
    make(scene, MemberOperation.REPLACE, member.member_id)
    state = scene.await_leader().node.log_state.appended_state()
    assert state.membership is not None
    assert state.membership.new.count(first) == 1
    assert state.membership.replaced == (second,)
    scene.make_whole()


def test_who_was_wiped_and_not_replaced_elects_nobody() -> None:
    scene = Scenario()
    scene.append(3)
    leader, wiped = scene.await_leader(), scene.followers()[0]
    other = next(each for each in scene.followers() if each is not wiped)
    wiped.wipe()
    scene.append()
    wiped.start()
    scene.until(lambda: wiped.node.store.end == leader.node.store.end, "log of the wiped one")
    leader.kill()
    scene.run_for(10 * ELECTION_MS)
    assert scene.leader(wiped, other) is None
    leader.start()
    scene.make_whole()


def test_a_second_change_waits_for_the_first() -> None:
    """And says so; what was only tried has changed nothing."""
    scene = Scenario(profile=replace(QUIET, spares=1))
    make(scene, MemberOperation.ADD, "n3", "10.0.0.9:1")
    make(scene, MemberOperation.PROMOTE, "n3")
    leader = scene.await_leader()
    index = leader.node.status().membership_index
    scene.until(lambda: len(leader.node.raft.connected) == 3, "connections")
    away = next(each for each in scene.followers() if each.member_id != "n3")
    for verb, address in (
        (MemberOperation.REMOVE, ""),
        (MemberOperation.SET_ADDRESS, "10.0.0.9:2"),
    ):
        tried = ask(scene, leader, MemberChange(verb, away.member_id, address, dry_run=True))
        assert isinstance(tried, Membership), tried
    for verb in (MemberOperation.PROMOTE, MemberOperation.REPLACE):
        tried = ask(scene, leader, MemberChange(verb, away.member_id, dry_run=True))
        assert isinstance(tried, MembershipRefused), tried
    assert leader.node.status().membership_index == index
    others = [each for each in scene.members if each is not leader]
    scene.cut([leader], others, both_ways=False)
    outcomes: list[MemberOutcome] = []
    first = MemberChange(MemberOperation.REMOVE, away.member_id)
    leader.enter(lambda: leader.node.members.request(first, outcomes.append))
    scene.until(lambda: leader.node.status().membership.is_joint, "joint membership", step_ms=0.1)
    second = ask(scene, leader, MemberChange(MemberOperation.REMOVE, "n3"))
    assert isinstance(second, MembershipRefused)
    assert "another change of the members is under way" in str(second)
    assert second.retry_after_ms, "it is worth while to ask again"
    assert not outcomes
    scene.heal()
    scene.make_whole()


def both_alive(scene: Scenario) -> tuple[SimMember, SimMember]:
    """(the new directory of a member, the old one), on two machines; both hold the log."""
    scene.append(3)
    new = scene.followers()[0]
    new.stop()
    copy, first = new.disk.snapshot(), new.replica
    new.wipe()
    scene.append()
    new.start()
    leader = scene.await_leader()
    old = scene.cluster.add_twin(new)
    scene.members = scene.cluster.members
    old.disk.restore(copy)
    old.start()
    assert old.replica == first
    connected = {old.replica, new.replica}
    scene.until(lambda: connected <= set(leader.node.raft.connected), "both connected")
    scene.append()
    return new, old


def test_while_a_directory_is_replaced_both_are_connected_and_count() -> None:
    """The third member is away: a majority of the old half is the leader and the old directory, one of
    the new half the leader and the new one."""
    scene = Scenario()
    new, old = both_alive(scene)
    leader = scene.await_leader()
    (third,) = [each for each in scene.members if each not in (leader, new, old)]

    def tried() -> bool:
        change = MemberChange(MemberOperation.REPLACE, new.member_id, dry_run=True)
        return isinstance(ask(scene, leader, change), Membership)

    scene.until(tried, "a directory that keeps up", step_ms=20)
    outcomes: list[MemberOutcome] = []
    change = MemberChange(MemberOperation.REPLACE, new.member_id)
    leader.enter(lambda: leader.node.members.request(change, outcomes.append))
    scene.until(lambda: leader.node.status().membership.is_joint, "joint membership", step_ms=0.02)
    third.kill()
    scene.until(lambda: bool(outcomes), "end of the change", within_ms=4 * ELECTION_MS)
    membership = leader.node.status().membership
    assert new.replica in membership.new and old.replica not in membership.members()
    scene.until(lambda: old.node.raft.role is Role.OBSERVER, "an observer")
    third.start()
    scene.make_whole()


def test_a_directory_that_is_back_at_another_machine_is_not_replaced_without_an_operator() -> None:
    scene = Scenario(profile=REPLACING)
    new, old = both_alive(scene)
    for _ in range(8):
        scene.run_for(1_000)
        scene.ask_and_wait(scene.await_leader())
    assert old.replica in scene.await_leader().node.status().membership.new
    old.kill()
    scene.until(lambda: new.replica in scene.await_leader().node.status().membership.new, "replacement")
    scene.run_for(1_000)
    old.start()
    scene.make_whole()
    assert old.node.raft.role is Role.OBSERVER


def test_of_several_directories_that_are_there_the_new_one_takes_the_place_of_the_lost_one() -> None:
    """The first of a member is back on another machine when the second is lost: the third is let in."""
    scene = Scenario(profile=REPLACING)
    scene.append(3)
    member = scene.followers()[0]
    member.stop()
    copy, first = member.disk.snapshot(), member.replica
    wiped_and_replaced(scene, member)
    old = scene.cluster.add_twin(member)
    scene.members = scene.cluster.members
    old.disk.restore(copy)
    old.start()
    scene.until(lambda: first in scene.await_leader().node.raft.connected, "the first one")
    member.wipe()
    scene.append()
    member.start()

    def is_replaced() -> bool:
        membership = scene.await_leader().node.status().membership
        return not membership.is_joint and membership.is_voter(member.replica)

    scene.until(is_replaced, "replacement", step_ms=20)
    assert first not in scene.await_leader().node.status().membership.members()
    scene.make_whole()


def test_a_member_is_wiped_and_replaced_by_who_was_asked_to_try_first() -> None:
    scene = Scenario()
    scene.append(3)
    member = scene.followers()[0]
    old = member.replica
    member.wipe()
    scene.append()
    member.start()

    def tried() -> bool:
        change = MemberChange(MemberOperation.REPLACE, member.member_id, dry_run=True)
        return isinstance(ask(scene, scene.await_leader(), change), Membership)

    scene.until(tried, "a dry run that says that it would be done", step_ms=20)
    assert old in scene.await_leader().node.status().membership.new


def test_who_was_replaced_is_not_named_as_long_as_a_member_could_not_read_that() -> None:
    scene = Scenario(start=False)
    for member in scene.members:
        member.level = REPLACED_LEVEL - (member is scene.members[2])
        member.start()
    scene.append(3)
    wiped_and_replaced(scene, scene.members[1])
    state = scene.await_leader().node.log_state.appended_state()
    assert state.membership is not None
    assert (state.level, state.membership.replaced) == (1, ())
