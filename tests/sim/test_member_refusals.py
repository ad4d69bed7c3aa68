"""What is refused of a change of the members, what the sentence says to do, and that it helps."""

from __future__ import annotations

from dataclasses import replace

from quorumlog.errors import LevelNotReported, MembershipRefused
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.node.member_changes import MemberChange, MemberOperation
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario
from tests.sim.test_member_scenarios import ADDRESS, ask, make, voters, with_spares


def test_two_that_are_lost_for_good_do_not_keep_each_other_from_being_removed() -> None:
    """The log has no control entries yet, and the others were started since: each was to be removed
    before the other one."""
    scene = Scenario(size=5)
    scene.append(5)
    lost = scene.members[3:]
    for member in lost:
        member.stop()
    for member in scene.members[:3]:
        member.stop()
        member.start()
    make(scene, MemberOperation.REMOVE, "n3")
    make(scene, MemberOperation.REMOVE, "n4")
    assert voters(scene) == ["n0", "n1", "n2"]
    scene.append()


def test_a_learner_keeps_nobody_from_finishing_an_upgrade() -> None:
    scene = with_spares(1)
    make(scene, MemberOperation.ADD, "n3", ADDRESS)
    scene.run_for(2 * ELECTION_MS)
    leader = scene.await_leader()
    leader.node.orders._refuse_unless_all_answer()


def test_who_adds_a_learner_again_is_told_how_it_comes_to_vote() -> None:
    scene = with_spares(1)
    make(scene, MemberOperation.ADD, "n3", ADDRESS)
    outcome = ask(scene, scene.await_leader(), MemberChange(MemberOperation.ADD, "n3", ADDRESS))
    assert isinstance(outcome, MembershipRefused)
    assert "n3 is a learner already; quorumlog member promote n3 lets it vote" in str(outcome)


def test_the_only_voter_is_not_removed_and_the_sentence_says_what_comes_first() -> None:
    scene = Scenario(size=1)
    outcome = ask(scene, scene.await_leader(), MemberChange(MemberOperation.REMOVE, "n0"))
    assert isinstance(outcome, MembershipRefused)
    assert "there would be no voter" in str(outcome)
    assert "another member has to be added first" in str(outcome)


def test_who_runs_on_another_directory_than_the_member_is_replaced_before_an_upgrade_ends() -> None:
    scene = Scenario(profile=replace(QUIET, auto_replace_after_ms=0))
    scene.append(5)
    wiped = scene.followers()[0]
    wiped.wipe()
    wiped.start()
    leader = scene.await_leader()
    scene.until(lambda: wiped.replica in leader.node.raft.connected, "connection")
    scene.run_for(2 * ELECTION_MS)
    try:
        leader.node.orders._refuse_unless_all_answer()
    except LevelNotReported as error:
        assert f"quorumlog member replace {wiped.member_id}" in str(error)
    else:
        raise AssertionError


def test_a_dry_run_is_refused_as_the_change_would_be() -> None:
    """The log has no control entries yet, and a member that is away has told nothing."""
    scene = with_spares(1)
    scene.append(5)
    scene.members[2].stop()
    for member in scene.members[:2]:
        member.stop()
        member.start()
    leader = scene.await_leader()
    scene.until(lambda: scene.members[3].replica in leader.node.raft.connected, "connection")
    scene.append()
    scene.run_for(ELECTION_MS)
    outcomes = [
        ask(scene, leader, MemberChange(MemberOperation.ADD, "n3", ADDRESS, dry_run=dry_run))
        for dry_run in (True, False)
    ]
    assert isinstance(outcomes[1], LevelNotReported), outcomes
    assert str(outcomes[0]) == str(outcomes[1])


def test_a_group_that_this_release_has_formed_takes_no_member_of_an_earlier_one() -> None:
    scene = with_spares(1)
    scene.append(5)
    leader, spare = scene.await_leader(), scene.members[3]
    spare.stop()
    spare.level = LEVEL - 1
    spare.start()
    scene.until(lambda: leader.members_below(LEVEL) == ["n3"], "a greeting")
    scene.until(lambda: spare.replica in leader.node.raft.connected, "connection")
    outcome = ask(scene, leader, MemberChange(MemberOperation.ADD, "n3", ADDRESS))
    assert isinstance(outcome, LevelNotReported), outcome


def test_a_leader_that_is_to_be_removed_is_asked_again_while_nobody_can_take_over() -> None:
    scene = Scenario()
    scene.append()
    leader = scene.await_leader()
    for full in scene.followers():
        full.enter(lambda full=full: setattr(full.node._writer, "disk_full", "no space"))
    scene.run_for(ELECTION_MS / 2)
    outcome = ask(scene, leader, MemberChange(MemberOperation.REMOVE, leader.member_id))
    assert isinstance(outcome, MembershipRefused), outcome
    assert outcome.retry_after_ms


def test_who_is_left_of_a_lost_majority_says_so_and_what_is_left_to_do() -> None:
    """One of two was wiped: no change can be asked for any more, and none is waited for."""
    scene = Scenario(size=2)
    scene.append(5)
    left, wiped = scene.members
    wiped.wipe()
    wiped.start()
    scene.until(lambda: left.node.members.lost_majority != "", "a problem")
    (problem,) = [each for each in left.node.problems() if "no leader can be elected" in each]
    assert problem.startswith("n1 runs on another directory than the one that votes")
    assert "quorumlog recover --unsafe" in problem


def test_one_of_three_that_has_lost_its_directory_is_no_lost_majority() -> None:
    scene = Scenario()
    scene.append(5)
    wiped, leader = scene.followers()[0], scene.await_leader()
    wiped.wipe()
    wiped.start()
    scene.run_for(ELECTION_MS / 2)
    leader.stop()
    (other,) = [each for each in scene.members if each not in (wiped, leader)]
    scene.run_for(4 * ELECTION_MS)
    assert wiped.replica in other.node.raft.connected
    assert other.node.members.lost_majority == "", "the third is only away"
