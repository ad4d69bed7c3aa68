"""Linearizable reads from followers, and how fresh members say that they are; every checker looks on."""

from __future__ import annotations

from dataclasses import replace

from quorumlog.entry import AppendReceipt
from quorumlog.errors import LeaderNotReady, NotLeader
from quorumlog.testing.member import SimMember
from sim.log.operations import FreshRead
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario

HEARTBEAT_MS = QUIET.consensus.heartbeat_interval_ms


def read(scene: Scenario, member: SimMember) -> FreshRead:
    return scene.world.fresh_reads.ask(member)


def is_answered(asked: FreshRead) -> bool:
    return asked.index >= 0 or asked.refusal is not None


def granted(scene: Scenario, asked: FreshRead) -> FreshRead:
    scene.until(lambda: is_answered(asked), "answer to a read", step_ms=0.1)
    assert asked.refusal is None, asked.refusal
    return asked


def age_ms(member: SimMember) -> float:
    return member.local_ms - member.node.raft.reads.fresh_since_ms()


def test_every_member_answers_at_once_and_misses_nothing() -> None:
    scene = Scenario(size=5)
    for _ in range(5):
        scene.ask_and_wait(scene.await_leader())
        asked = [read(scene, member) for member in scene.members]
        for each in asked:
            assert granted(scene, each).index >= each.acknowledged_index
    scene.make_whole()


def test_a_follower_answers_only_what_it_has_committed_itself() -> None:
    """Its leader has acknowledged with the other follower; this one is still to get the entry."""
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    late, other = scene.followers()
    scene.run_for(3 * HEARTBEAT_MS)
    pipe = scene.cluster.network.pipes[leader.member_id, late.member_id]
    pipe.limits(1e-9)  # data crawls, heartbeats pass
    receipt = acknowledged(scene, leader)
    assert late.node.committed_index < receipt.last_index
    asked = read(scene, late)
    scene.run_for(2 * HEARTBEAT_MS)
    assert not is_answered(asked), "it was answered without the entry that was acknowledged before"
    assert granted(scene, read(scene, other)).index >= receipt.last_index
    pipe.limits(None)
    assert granted(scene, asked).index >= receipt.last_index
    scene.make_whole()


def acknowledged(scene: Scenario, leader: SimMember) -> AppendReceipt:
    asked = scene.ask(leader)
    scene.until(lambda: asked.is_committed, "acknowledged append", step_ms=0.1)
    assert isinstance(asked.outcome, AppendReceipt)
    return asked.outcome


def test_a_follower_of_a_leader_that_was_replaced_gets_no_answer_from_it() -> None:
    """The two are alone together; the others have elected another one, and go on."""
    scene = Scenario(size=5)
    scene.append(3)
    old = scene.await_leader()
    with_it, *others = scene.followers()
    scene.run_for(3 * HEARTBEAT_MS)
    scene.cut([old, with_it], others)
    for member in others:
        for each in (old, with_it):
            scene.cluster.network.reset(each.member_id, member.member_id, closed_by=each.member_id)
    acknowledged(scene, scene.await_leader(*others))
    asked = read(scene, with_it)
    scene.run_for(4 * ELECTION_MS)
    assert isinstance(asked.refusal, (NotLeader, LeaderNotReady)), asked
    scene.heal()
    scene.make_whole()


def test_the_new_leader_answers_followers_once_it_has_committed_in_its_term() -> None:
    """It holds an entry that was acknowledged, and does not know that it was."""
    scene = Scenario(profile=replace(QUIET, sync_ms=40.0))
    scene.append(3)
    old = scene.await_leader()
    heir, away = scene.followers()
    scene.cut([old, heir], [away])
    receipt = acknowledged(scene, old)
    old.kill()
    scene.heal()
    scene.until(lambda: scene.leader(heir) is not None, "the heir", step_ms=0.1)
    assert heir.node.committed_index < receipt.last_index, "it knows already: nothing to test"
    scene.until(lambda: away.node.raft.reads._freshness.leader_tells, "a heartbeat", step_ms=0.1)
    asked = read(scene, away)
    assert granted(scene, asked).index >= receipt.last_index


def test_what_a_member_knows_grows_old_when_it_hears_of_no_quorum() -> None:
    scene = Scenario()
    scene.append(3)
    scene.run_for(4 * HEARTBEAT_MS)
    for member in scene.members:
        assert 0 <= age_ms(member) <= 4 * HEARTBEAT_MS, member.member_id
    leader = scene.await_leader()
    one, other = scene.followers()
    scene.cut([leader, one], [other])
    scene.run_for(2 * ELECTION_MS)
    assert age_ms(other) >= 2 * ELECTION_MS
    assert age_ms(one) <= 4 * HEARTBEAT_MS
    scene.heal()
    scene.make_whole()
