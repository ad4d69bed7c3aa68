"""Members that come, go and are replaced, while somebody appends; every checker looks on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorumlog.config import MemberAddress
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.ready import Role
from quorumlog.errors import LedgerError, LevelNotReported, MembershipRefused, NotLeader
from quorumlog.log_state.control_entries import LEVEL, Keep, LevelReached
from quorumlog.node.member_changes import MemberChange, MemberOperation, MemberOutcome
from quorumlog.testing.member import SimMember
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario

ADDRESS = "10.0.0.9:20911"


def with_spares(spares: int, size: int = 3) -> Scenario:
    return Scenario(profile=replace(QUIET, spares=spares), size=size)


def ask(scene: Scenario, leader: SimMember, change: MemberChange) -> MemberOutcome:
    """What comes of it, within a few election time-outs."""
    outcomes: list[MemberOutcome] = []
    leader.enter(lambda: leader.node.members.request(change, outcomes.append))
    scene.until(lambda: bool(outcomes), f"outcome of {change}")
    return outcomes[0]


def make(scene: Scenario, verb: MemberOperation, member_id: str, address: str = "") -> Membership:
    """Ask again, wherever the leader is, as long as that may help."""
    until_ms = scene.cluster.now_ms + 60 * ELECTION_MS
    while True:
        outcome = ask(scene, scene.await_leader(), MemberChange(verb, member_id, address))
        if not isinstance(outcome, LedgerError):
            return outcome
        assert outcome.retriable or outcome.retry_after_ms, outcome
        assert scene.cluster.now_ms < until_ms, outcome
        scene.run_for(ELECTION_MS / 4)


def voters(scene: Scenario) -> list[str]:
    membership = scene.await_leader().node.status().membership
    assert not membership.is_joint
    return [voter.member_id for voter in membership.new]


def test_a_new_member_learns_the_log_votes_and_outlives_the_founders() -> None:
    scene = with_spares(2)
    scene.append(20)
    for member_id in ("n3", "n4"):
        added = make(scene, MemberOperation.ADD, member_id, f"10.0.0.9:{member_id[1:]}")
        assert [learner.member_id for learner in added.learners] == [member_id]
        make(scene, MemberOperation.PROMOTE, member_id)
    assert voters(scene) == ["n0", "n1", "n2", "n3", "n4"]
    for member_id in ("n0", "n1", "n2"):
        make(scene, MemberOperation.REMOVE, member_id)
        scene.append()
    assert voters(scene) == ["n3", "n4"]
    for member in scene.members[:3]:
        assert member.node.raft.role is Role.OBSERVER
        member.kill()
    scene.append(3)
    assert dict(scene.await_leader().node.status().membership.addresses) == {
        "n3": "10.0.0.9:3",
        "n4": "10.0.0.9:4",
    }
    for member in scene.members[:3]:
        member.start()
    scene.make_whole()


def test_who_has_lost_nothing_is_not_replaced() -> None:
    scene = Scenario()
    for member in scene.members:
        outcome = ask(
            scene, scene.await_leader(), MemberChange(MemberOperation.REPLACE, member.member_id)
        )
        assert isinstance(outcome, MembershipRefused)
        assert "nothing is lost" in str(outcome)
        assert not outcome.retry_after_ms, "it would be asked again and again"


def test_who_does_not_lead_names_the_leader_where_the_log_says_it_is() -> None:
    scene = Scenario()
    leader = scene.await_leader()
    make(scene, MemberOperation.SET_ADDRESS, leader.member_id, ADDRESS)
    scene.append()
    outcome = ask(scene, scene.followers()[0], MemberChange(MemberOperation.REMOVE, "n9"))
    assert isinstance(outcome, NotLeader)
    assert (outcome.leader_id, outcome.leader_address) == (leader.member_id, ADDRESS)


def test_options_that_are_ahead_of_the_log_are_no_problem_once_it_has_caught_up() -> None:
    """A member is away while another one is moved, and comes back with the new list."""
    scene = Scenario()
    away, moved = scene.followers()
    make(scene, MemberOperation.SET_ADDRESS, moved.member_id, "10.0.0.9:2")
    scene.append()
    away.kill()
    make(scene, MemberOperation.SET_ADDRESS, moved.member_id, ADDRESS)
    members = tuple(
        MemberAddress(moved.member_id, "10.0.0.9", 20911) if each.member_id == moved.member_id else each
        for each in away.config.members
    )
    away.config = replace(away.config, members=members)
    scene.cut([away], [each for each in scene.members if each is not away])
    away.start()
    scene.until(lambda: away.node.members.problem != "", "problem")
    assert "the log counts, and `quorumlog member` changes it" in away.node.members.problem
    scene.heal()
    scene.append()
    assert away.node.members.problem == ""
    make(scene, MemberOperation.SET_ADDRESS, moved.member_id, "10.0.0.9:1")
    scene.append()
    assert away.node.members.problem == "", "nobody has to follow the log in files"


def test_a_learner_commits_nothing() -> None:
    scene = with_spares(1)
    make(scene, MemberOperation.ADD, "n3", ADDRESS)
    leader = scene.await_leader()
    learner = scene.members[3]
    others = [m for m in scene.members if m not in (leader, learner)]
    scene.cut([leader], others)
    asked = scene.ask(leader)
    scene.until(lambda: learner.node.store.end == leader.node.store.end, "entry at the learner")
    scene.run_for(ELECTION_MS / 4)
    assert not asked.is_committed
    scene.heal()
    scene.make_whole()


def test_each_member_is_wiped_in_turn_and_replaced_while_somebody_appends() -> None:
    scene = Scenario()
    for member in scene.members:
        scene.append(5)
        old = member.replica
        member.wipe()
        scene.append()
        member.start()
        make(scene, MemberOperation.REPLACE, member.member_id)
        membership = scene.await_leader().node.status().membership
        assert member.replica in membership.new
        assert old not in membership.new
        scene.append()
        assert member.node.raft.role in (Role.FOLLOWER, Role.LEADER)
    scene.make_whole()


def test_a_lost_directory_is_replaced_without_an_operator() -> None:
    """Each in turn, while somebody appends; not before it was away for as long as it may be."""
    scene = Scenario(profile=replace(QUIET, auto_replace_after_ms=3_000))
    for member in scene.members:
        scene.append(5)
        old = member.replica
        member.wipe()
        scene.append()
        member.start()
        scene.run_for(2_000)
        assert old in scene.await_leader().node.status().membership.new

        def is_replaced(member: SimMember = member) -> bool:
            scene.ask_and_wait(scene.await_leader())
            membership = scene.await_leader().node.status().membership
            return not membership.is_joint and member.replica in membership.new

        scene.until(is_replaced, "replacement", step_ms=100)
        assert old not in scene.await_leader().node.status().membership.members()
    scene.make_whole()


def test_a_learner_that_has_lost_its_directory_learns_again() -> None:
    scene = Scenario(profile=replace(QUIET, spares=1, auto_replace_after_ms=3_000))
    make(scene, MemberOperation.ADD, "n3", ADDRESS)
    learner = scene.members[3]
    old = learner.replica
    learner.wipe()
    learner.start()

    def is_replaced() -> bool:
        return scene.await_leader().node.status().membership.learners == (learner.replica,)

    scene.until(is_replaced, "replacement", step_ms=100)
    assert old != learner.replica
    scene.make_whole()


def test_a_lost_directory_is_replaced_once_the_new_one_has_caught_up() -> None:
    """Over a thin line: it was away for long enough before it holds the log."""
    profile = replace(
        QUIET,
        auto_replace_after_ms=2_000,
        consensus=replace(QUIET.consensus, push_limit_bytes=6_000, push_window_bytes=24_000),
    )
    scene = Scenario(profile=profile)
    victim = scene.followers()[0]
    old = victim.replica
    victim.wipe()
    leader = scene.await_leader()
    for _ in range(60):
        scene.ask_and_wait(leader, body_bytes=1_000)
    end_index = leader.node.store.end.index
    way = scene.cluster.network.pipes[leader.member_id, victim.member_id]
    way.limits(10.0)
    victim.start()

    def is_named() -> bool:
        return victim.replica in leader.node.status().membership.voters()

    scene.until(is_named, "joint entry", within_ms=60_000)
    assert old in leader.node.status().membership.old
    assert victim.node.store.end.index >= end_index, "it was given a vote before it had the log"
    way.limits(None)
    scene.make_whole()


def test_a_directory_that_comes_back_in_time_is_given_all_of_it_again() -> None:
    scene = Scenario(profile=replace(QUIET, auto_replace_after_ms=3_000))
    scene.append(3)
    member = scene.followers()[0]
    old = member.replica
    member.kill()
    scene.run_for(2_000)
    member.start()
    scene.run_for(2_000)
    member.wipe()
    scene.append()
    member.start()
    scene.run_for(2_000)
    assert old in scene.await_leader().node.status().membership.new
    scene.until(
        lambda: member.replica in scene.await_leader().node.status().membership.new, "replacement"
    )
    scene.make_whole()


def test_a_directory_that_was_replaced_is_not_put_back_by_itself() -> None:
    """It comes back when the one after it is away."""
    scene = Scenario(profile=replace(QUIET, auto_replace_after_ms=3_000))
    scene.append(3)
    member = scene.followers()[0]
    old = member.replica
    member.stop()
    copy = member.disk.snapshot()
    member.wipe()
    scene.append()
    member.start()
    make(scene, MemberOperation.REPLACE, member.member_id)
    new = member.replica
    scene.append()
    member.stop()
    scene.append()
    member.disk.restore(copy)
    member.start()
    assert member.replica == old
    for _ in range(10):
        scene.run_for(1_000)
        scene.ask_and_wait(scene.await_leader())
    membership = scene.await_leader().node.status().membership
    assert new in membership.new
    assert old not in membership.members()
    assert member.node.raft.role is Role.OBSERVER


def test_a_member_that_is_only_away_is_not_replaced() -> None:
    scene = Scenario(profile=replace(QUIET, auto_replace_after_ms=3_000))
    away = scene.followers()[0]
    away.kill()
    for _ in range(10):
        scene.run_for(1_000)
        scene.ask_and_wait(scene.await_leader())
    away.start()
    scene.make_whole()
    assert scene.await_leader().node.status().membership_index == -1


def test_a_leader_that_is_to_be_removed_hands_over_first() -> None:
    scene = Scenario()
    scene.append()
    leader = scene.await_leader()
    outcome = ask(scene, leader, MemberChange(MemberOperation.REMOVE, leader.member_id))
    assert isinstance(outcome, NotLeader)
    successor = scene.await_leader()
    assert outcome.leader_id == successor.member_id != leader.member_id
    assert outcome.leader_address == str(successor.config.own_address)
    make(scene, MemberOperation.REMOVE, leader.member_id)
    scene.append()
    assert leader.member_id not in voters(scene)


@pytest.mark.parametrize("unfit", [0, 1])
def test_a_leader_that_is_to_be_removed_hands_over_to_one_that_can_take_over(unfit: int) -> None:
    """Both hold all that it holds, and the disk of one is full."""
    scene = Scenario()
    scene.append()
    leader, full = scene.await_leader(), scene.followers()[unfit]
    full.enter(lambda: setattr(full.node._writer, "disk_full", "no space"))
    scene.run_for(ELECTION_MS / 2)
    outcome = ask(scene, leader, MemberChange(MemberOperation.REMOVE, leader.member_id))
    assert isinstance(outcome, NotLeader), outcome
    assert scene.await_leader() not in (leader, full)


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_change_outlives_the_leader_that_began_it(seed: int) -> None:
    """The next one ends it, or it was cut and nobody knows of it any more."""
    scene = Scenario(profile=replace(QUIET, spares=1), seed=seed)
    make(scene, MemberOperation.ADD, "n3", ADDRESS)
    make(scene, MemberOperation.PROMOTE, "n3")
    leader = scene.await_leader()
    change = MemberChange(MemberOperation.REMOVE, scene.followers()[0].member_id)
    leader.enter(lambda: leader.node.members.request(change, lambda outcome: None))
    scene.until(lambda: leader.node.status().membership.is_joint, "joint membership", step_ms=0.01)
    scene.run_for(0.5 * seed)
    leader.lose_power()
    scene.append(2)
    leader.start()
    scene.make_whole()
    assert not scene.await_leader().node.status().membership.is_joint


def test_what_makes_no_sense_is_refused_with_the_reason() -> None:
    scene = with_spares(1)
    leader = scene.await_leader()
    for change, reason in (
        (MemberChange(MemberOperation.REMOVE, "n9"), "n9 is not among the members: n0, n1, n2"),
        (MemberChange(MemberOperation.PROMOTE, "n1"), "n1 is a voter already"),
        (MemberChange(MemberOperation.ADD, "n1", ADDRESS), "n1 is a member already"),
        (MemberChange(MemberOperation.ADD, "n3", "127.0.0.1:20911"), "is the address of n0"),
        (MemberChange(MemberOperation.ADD, "n8", ADDRESS), "n8 does not answer at 10.0.0.9:20911"),
        (MemberChange(MemberOperation.REPLACE, "n1"), "nothing is lost, and nothing to be replaced"),
    ):
        if change.member_id == leader.member_id:
            continue
        outcome = ask(scene, leader, change)
        assert isinstance(outcome, MembershipRefused), outcome
        assert reason in str(outcome)
    assert leader.node.status().membership_index == -1


def test_a_member_that_is_lost_for_good_is_removed_although_it_never_said_what_it_knows() -> None:
    """The log has no control entries yet, and both others were started since."""
    scene = Scenario()
    scene.append(5)
    lost = scene.members[2]
    lost.stop()
    for member in scene.members[:2]:
        member.stop()
        member.start()
    leader = scene.await_leader()
    with pytest.raises(LevelNotReported, match=r"n2 has not reported .*quorumlog member remove n2"):
        leader.node.propose_control(Keep(0))
    make(scene, MemberOperation.REMOVE, "n2")
    assert voters(scene) == ["n0", "n1"]
    scene.append()


def test_who_could_not_read_the_log_is_not_added() -> None:
    """It waited for ever for entries that it does not know, and nobody said why."""
    scene = with_spares(1)
    scene.append(5)
    leader, spare = scene.await_leader(), scene.members[3]
    spare.stop()
    spare.level = LEVEL - 1
    spare.start()
    leader.node.propose_control(LevelReached(LEVEL))
    scene.until(lambda: leader.members_below(LEVEL) == ["n3"], "a greeting")
    scene.until(lambda: spare.replica in leader.node.raft.connected, "connection")
    outcomes: list[MemberOutcome] = []
    leader.node.members.request(MemberChange(MemberOperation.ADD, "n3", ADDRESS), outcomes.append)
    (outcome,) = outcomes
    assert isinstance(outcome, LevelNotReported)
    assert "n3 runs an earlier release, which cannot read this log" in str(outcome)
    spare.stop()
    spare.level = LEVEL
    spare.start()
    scene.until(lambda: not leader.members_below(LEVEL), "a greeting")
    make(scene, MemberOperation.ADD, "n3", ADDRESS)
    scene.append()


def test_who_was_removed_needs_to_know_nothing() -> None:
    """It stays connected for a while, and an upgrade could not be finished until it was parted from."""
    scene = Scenario()
    scene.append(5)
    leader, gone = scene.await_leader(), scene.followers()[0]
    for member in scene.members:
        member.stop()
        member.level = LEVEL - 1 if member is gone else LEVEL
        member.start()
    make(scene, MemberOperation.REMOVE, gone.member_id)
    leader = scene.await_leader()
    assert gone.member_id in leader.members_below(LEVEL)
    leader.node.propose_control(LevelReached(LEVEL))


def test_under_async_no_power_loss_takes_back_a_removal() -> None:
    """Who was left knew of the old list alone, those removed of the new one, and nobody led any more."""
    forgetful = replace(QUIET.storage, flush_interval_ms=1_000_000)
    for seed in range(8):  # chance has a part in what a power loss leaves
        scene = Scenario(profile=replace(QUIET, storage=forgetful), flush="async", seed=seed)
        scene.append(5)
        leader, *others = scene.await_leader(), *scene.followers()
        for member in others:
            make(scene, MemberOperation.REMOVE, member.member_id)
        leader.lose_power()
        leader.start()
        assert scene.await_leader() is leader
        assert voters(scene) == [leader.member_id]
        scene.append()


def test_a_dry_run_changes_nothing() -> None:
    scene = with_spares(1)
    leader = scene.await_leader()
    scene.until(lambda: scene.members[3].replica in leader.node.raft.connected, "connection")
    outcome = ask(scene, leader, MemberChange(MemberOperation.ADD, "n3", ADDRESS, dry_run=True))
    assert isinstance(outcome, Membership)
    assert [learner.member_id for learner in outcome.learners] == ["n3"]
    assert leader.node.status().membership_index == -1


def test_the_members_are_known_after_a_start_of_all() -> None:
    """From the log; until that is read nobody leads."""
    scene = with_spares(1)
    make(scene, MemberOperation.ADD, "n3", ADDRESS)
    make(scene, MemberOperation.PROMOTE, "n3")
    scene.append(3)
    for member in scene.members:
        member.lose_power()
    for member in scene.members[1:]:
        member.start()
    scene.append()
    assert voters(scene) == ["n0", "n1", "n2", "n3"]
    scene.members[0].start()
    scene.make_whole()


def test_another_address_is_known_to_all() -> None:
    scene = Scenario()
    make(scene, MemberOperation.SET_ADDRESS, "n1", ADDRESS)
    scene.append()
    for member in scene.members:
        assert dict(member.node.status().membership.addresses)["n1"] == ADDRESS
