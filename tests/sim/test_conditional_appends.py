"""Conditional appends where leaders change: who is let in, and when a refusal may be believed.

Every run is watched by the checker `conditional_appends` as well.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorumlog.consensus.ready import Role
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    DiskFull,
    LeaderNotReady,
    NotLeader,
    OutcomeUnknown,
    RequestTimeout,
    WrongLastIndex,
)
from quorumlog.testing import SimulatedLog
from quorumlog.testing.member import SimMember
from quorumlog.testing.operations import ClientAppend
from sim.log.run import run_seed
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario


def last_data(scene: Scenario) -> int:
    """Index of an entry that is acknowledged here and now."""
    asked = scene.ask(scene.await_leader())
    return receipt(scene, asked).last_index


def receipt(scene: Scenario, asked: ClientAppend) -> AppendReceipt:
    scene.until(lambda: asked.returned_ms >= 0, "an answer")
    assert isinstance(asked.outcome, AppendReceipt), asked.outcome
    return asked.outcome


def refusal(scene: Scenario, asked: ClientAppend) -> WrongLastIndex:
    scene.until(lambda: asked.returned_ms >= 0, "an answer")
    assert isinstance(asked.outcome, WrongLastIndex), asked.outcome
    return asked.outcome


def judged(scene: Scenario, leader: SimMember, expected: int) -> ClientAppend:
    """Asked until the leader knows what its log ends with."""
    while True:
        asked = scene.ask(leader, expected_last=expected)
        scene.until(lambda asked=asked: asked.returned_ms >= 0, "an answer")  # type: ignore[misc]
        if not isinstance(asked.outcome, LeaderNotReady):
            return asked


def test_of_two_that_expect_the_same_entry_one_succeeds() -> None:
    """They gather while the disk is at work, and none is committed when the others are judged."""
    scene = Scenario(profile=replace(QUIET, sync_ms=40.0))
    expected = last_data(scene) + 1
    leader = scene.await_leader()
    scene.ask(leader)
    scene.until(lambda: leader.node.store.end.index == expected, "an entry on its way to the disk")
    asked = [scene.ask(leader, expected_last=expected) for _ in range(5)]
    scene.until(lambda: all(one.returned_ms >= 0 for one in asked), "all answers")
    won = [one for one in asked if one.is_committed]
    assert len(won) == 1
    index = receipt(scene, won[0]).first_index
    for one in asked:
        if one is not won[0]:
            error = refusal(scene, one)
            assert (error.expected, error.actual) == (expected, index)
    scene.make_whole()


def test_the_no_op_of_an_election_does_not_count() -> None:
    scene = Scenario()
    expected = last_data(scene)
    for number in range(1, 4):
        scene.until(
            lambda end=expected + number - 1: all(  # type: ignore[misc]
                member.node.durable_committed_index >= end for member in scene.members
            ),
            "one log",
        )
        scene.hand_over(scene.await_leader(), scene.followers()[0])
    leader = scene.await_leader()
    scene.until(lambda: leader.node.committed_index >= expected + 3, "the no-ops")
    asked = scene.ask(leader, expected_last=expected)
    scene.until(lambda: asked.returned_ms >= 0, "an answer")
    if isinstance(asked.outcome, LeaderNotReady):  # it had to read the end of its log first
        asked = scene.ask(leader, expected_last=expected)
    first_index = receipt(scene, asked).first_index
    assert first_index >= expected + 4
    again = scene.ask(leader, expected_last=first_index - 1)
    assert refusal(scene, again).actual == first_index
    scene.make_whole()


def test_an_empty_log_and_one_that_begins_with_no_ops_are_expected_as_minus_one() -> None:
    log = SimulatedLog(seed=3, faults=())
    with pytest.raises(WrongLastIndex) as caught:
        log.append(b"too far", expected_last=7)
    assert (caught.value.expected, caught.value.actual) == (7, -1)
    first = log.append(b"first", expected_last=-1)
    with pytest.raises(WrongLastIndex) as caught:
        log.append(b"second", expected_last=-1)
    assert caught.value.actual == first.first_index
    log.append(b"a", b"b", expected_last=first.last_index)
    assert [entry.body for entry in log.read()] == [b"first", b"a", b"b"]


def test_after_a_restart_of_all_the_end_of_the_log_is_read_first() -> None:
    scene = Scenario()
    expected = last_data(scene)
    for member in scene.members:
        member.lose_power()
    for member in scene.members:
        member.start()
    scene.until(lambda: scene.leader() is not None, "a leader")
    late = scene.ask(scene.await_leader(), expected_last=expected - 1)
    scene.until(lambda: late.returned_ms >= 0, "an answer")
    while not isinstance(late.outcome, WrongLastIndex):
        assert isinstance(late.outcome, LeaderNotReady | NotLeader), late.outcome
        late = scene.ask(scene.await_leader(), expected_last=expected - 1)
        scene.until(lambda late=late: late.returned_ms >= 0, "an answer")  # type: ignore[misc]
    assert late.outcome.actual == expected
    receipt(scene, scene.ask(scene.await_leader(), expected_last=expected))
    scene.make_whole()


def test_what_was_last_in_an_earlier_term_of_its_own_is_not_trusted() -> None:
    """Another has led meanwhile, and what it appended lies behind the entry that this one remembers."""
    scene = Scenario()
    scene.append(1)
    one, other = scene.await_leader(), scene.followers()[0]
    stale = last_data(scene)
    scene.run_for(200)
    scene.hand_over(one, other)
    scene.append(2)
    scene.hand_over(other, one)
    scene.until(lambda: one.node.committed_index == one.node.store.end.index, "the no-op")
    asked = judged(scene, one, stale)
    assert refusal(scene, asked).expected == stale
    scene.make_whole()


def test_a_look_that_ends_late_says_nothing_of_what_was_appended_meanwhile() -> None:
    scene = Scenario()
    expected = last_data(scene)
    scene.run_for(200)
    one, other = scene.await_leader(), scene.followers()[0]
    scene.hand_over(one, other)
    scene.until(lambda: other.node.committed_index == other.node.store.end.index, "the no-op")
    other.read_ms = look_ms = 5_000.0
    first = scene.ask(other, expected_last=expected)
    scene.until(lambda: first.returned_ms >= 0, "an answer")
    assert isinstance(first.outcome, LeaderNotReady), first.outcome
    appended = receipt(scene, scene.ask(other))
    scene.run_for(look_ms)
    asked = scene.ask(other, expected_last=expected)
    assert refusal(scene, asked).actual == appended.last_index
    scene.make_whole()


def test_a_leader_that_was_replaced_unknown_to_it_refuses_no_condition() -> None:
    """It would name an entry as the last one that another has long been appended behind."""
    scene = Scenario()
    scene.append(3)
    old = scene.await_leader()
    others = scene.followers()
    scene.cut([old], others)
    for member in others:
        scene.cluster.network.reset(old.member_id, member.member_id, closed_by=old.member_id)
    scene.ask_and_wait(scene.await_leader(*others))
    new_last = others[0].node.store.end.index
    asked = scene.ask(old, expected_last=new_last)
    scene.run_for(4 * ELECTION_MS)
    assert isinstance(asked.outcome, NotLeader | LeaderNotReady), asked.outcome
    scene.heal()
    scene.make_whole()


def behind_what_nobody_else_gets(*, timeout_ms: int = 5_000) -> tuple[Scenario, SimMember, ClientAppend]:
    """A leader that a majority still follows while its data does not get through, and an append whose
    condition is unmet because of an entry that the leader holds alone."""
    scene = Scenario()
    expected = last_data(scene)
    leader = scene.await_leader()
    for member in scene.followers():
        scene.cluster.network.pipes[leader.member_id, member.member_id].limits(None, largest_bytes=200)
    scene.ask(leader, 400)
    scene.until(lambda: leader.node.store.end.index > expected, "an entry that nobody else gets")
    return scene, leader, scene.ask(leader, expected_last=expected, timeout_ms=timeout_ms)


def test_a_refusal_waits_for_the_entry_that_it_names() -> None:
    scene, leader, asked = behind_what_nobody_else_gets()
    others = scene.followers()
    scene.run_for(ELECTION_MS)
    assert leader.node.raft.role is Role.LEADER
    assert not isinstance(asked.outcome, WrongLastIndex), "refused for what may be lost"
    leader.kill()
    scene.until(lambda: scene.leader(*others) is not None, "another leader")
    assert not any(each.is_committed for each in scene.cluster.operations.appends[1:])
    scene.make_whole()


def test_who_is_refused_beside_a_batch_that_finds_no_space_is_answered_with_it() -> None:
    scene = Scenario(profile=replace(QUIET, sync_ms=40.0))
    expected = last_data(scene)
    leader = scene.await_leader()
    scene.ask(leader)
    scene.until(lambda: leader.node.store.end.index > expected, "an entry on its way to the disk")
    usage = leader.disk.usage("/")
    leader.disk.capacity_bytes = usage.total_bytes - usage.free_bytes
    asked = [scene.ask(leader, 7_900) for _ in range(6)]
    asked.append(scene.ask(leader, expected_last=expected))
    scene.until(lambda: all(one.returned_ms >= 0 for one in asked), "all answers", within_ms=1_000)
    assert {type(one.outcome) for one in asked} == {DiskFull}
    leader.disk.capacity_bytes *= 2
    scene.make_whole()


def test_a_refusal_that_waits_is_answered_when_its_time_is_over() -> None:
    scene, leader, asked = behind_what_nobody_else_gets(timeout_ms=300)
    scene.until(lambda: asked.returned_ms >= 0, "an answer", within_ms=440)
    assert isinstance(asked.outcome, RequestTimeout), asked.outcome
    assert leader.node.raft.role is Role.LEADER
    scene.make_whole()


def test_a_refusal_that_waits_is_answered_when_leadership_is_lost() -> None:
    scene, leader, asked = behind_what_nobody_else_gets()
    scene.until(lambda: leader.node.raft.role is not Role.LEADER, "end of a term without commits")
    scene.until(lambda: asked.returned_ms >= 0, "an answer", within_ms=10)
    assert isinstance(asked.outcome, NotLeader | LeaderNotReady), asked.outcome
    scene.make_whole()


@pytest.mark.parametrize("seed", range(4))
def test_writers_that_build_on_each_other_survive_what_strikes(seed: int) -> None:
    """A counter by compare-and-append: every number once, in order, whatever the faults."""
    log = SimulatedLog(seed)
    last_index, wanted, appended = -1, 0, 0
    for _ in range(30):
        try:
            last_index = log.append(b"%d" % wanted, expected_last=last_index).last_index
            wanted, appended = wanted + 1, appended + 1
        except (WrongLastIndex, OutcomeUnknown):
            entries = log.read()
            last_index, wanted = (entries[-1].index, len(entries)) if entries else (-1, 0)
        log.run_for(300)
    log.heal()
    bodies = [entry.body for entry in log.read()]
    assert appended > 10
    assert bodies == [b"%d" % number for number in range(len(bodies))]


def test_random_runs_meet_both_outcomes() -> None:
    counts: dict[str, int] = {}
    for seed in range(40):
        result = run_seed(seed, faults_ms=2_000)
        assert not result.failure, (seed, result.failure)
        for what in ("conditional append: refused", "conditional append: in the log"):
            counts[what] = counts.get(what, 0) + result.counts[what]
        if len(counts) == 2 and all(counts.values()):
            return
    raise AssertionError(counts)
