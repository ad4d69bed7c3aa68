"""Which directories a run may lose."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from quorumlog.consensus.membership import Membership
from quorumlog.node.member_changes import MemberOperation
from sim.log.faults.other_mode import OtherMode
from tests.sim.scenario import QUIET, Scenario
from tests.sim.test_member_scenarios import ADDRESS, make


def test_a_directory_that_replaced_a_lost_one_and_is_lost_too_counts_before_the_next_start() -> None:
    scene = Scenario()
    context = scene.cluster.faults.context
    one, other = scene.followers()
    assert context.may_lose(other)
    for _ in range(2):
        context.lose(one)
        one.wipe()
        assert not context.may_lose(other), "the new directory of the other is not begun"
        assert context.may_lose(one)
        scene.append()
        one.start()
        assert not context.may_lose(other), "the new directory of the other does not vote"
        make(scene, MemberOperation.REPLACE, one.member_id)
        scene.append()
        one.kill()
        assert context.may_lose(other), "who was replaced and is down has lost nothing"
        one.start()
    scene.make_whole()


def test_of_each_membership_that_may_hold_a_quorum_is_left() -> None:
    scene = Scenario(profile=replace(QUIET, changes_members=True, spares=1))
    fairness = scene.cluster.faults.context.fairness
    assert fairness is not None
    leader = scene.await_leader()
    one, other = scene.followers()[:2]
    assert fairness.may_lose(one.replica)
    fairness.lose(one.replica)
    assert not fairness.may_lose(other.replica)
    assert fairness.may_lose(scene.members[3].replica), "it is no member"
    assert not fairness.allows(Membership.of((leader.replica, one.replica)))
    make(scene, MemberOperation.ADD, "n3", ADDRESS)
    make(scene, MemberOperation.PROMOTE, "n3")
    assert not fairness.may_lose(other.replica), "of four three are a quorum"
    make(scene, MemberOperation.REMOVE, one.member_id)
    scene.append()
    assert fairness.may_lose(other.replica)
    leader.kill()
    assert fairness.may_lose(other.replica), "its log does not live behind what is committed"
    leader.start()
    scene.make_whole()


def test_who_is_a_quorum_alone_is_not_given_another_flush_mode() -> None:
    """Nobody would refuse it, and what it acknowledges then is another promise."""
    scene = Scenario(profile=replace(QUIET, changes_members=True))
    leader = scene.await_leader()
    for member in scene.followers():
        make(scene, MemberOperation.REMOVE, member.member_id)
    scene.append()
    struck = OtherMode(scene.cluster, Random(1))
    for _ in range(20):
        struck._strike()
        assert struck._odd is not leader
