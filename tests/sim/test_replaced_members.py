"""Directories that were replaced: what they may still do, and what they may not."""

from __future__ import annotations

from dataclasses import replace

from quorumlog.consensus.ready import Role
from quorumlog.log_state.control_entries import REPLACED_LEVEL
from quorumlog.node.member_changes import MemberVerb
from quorumlog.sim.member import SimMember
from tests.sim.scenario import QUIET, Scenario
from tests.sim.test_log_begin import borders, drop, fill
from tests.sim.test_member_scenarios import make

REPLACING = replace(QUIET, auto_replace_after_ms=3_000)


def wiped_and_replaced(scene: Scenario, member: SimMember) -> None:
    """The directory that it gets is another one of its members."""
    member.wipe()
    scene.append()
    member.start()
    make(scene, MemberVerb.REPLACE, member.member_id)
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
        drop(scene, each, borders(each)[-1])
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
    make(scene, MemberVerb.REPLACE, member.member_id)
    state = scene.await_leader().node.log_state.appended_state()
    assert state.membership is not None
    assert state.membership.new.count(first) == 1
    assert state.membership.replaced == (second,)
    scene.make_whole()


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
