"""A disk of which no sync returns: who leads meanwhile, what is acknowledged, and what is not said.

The mutants (tests/mutants/) run these as well: each fails where the rule that it is about is broken.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from quorumlog.consensus.ready import Role
from quorumlog.errors import LedgerError, NotLeader, TransferFailed
from quorumlog.log_state.control_entries import Keep
from quorumlog.node.ledger_node import HANGS_AFTER_MS, MOST_HELD_BACK
from quorumlog.store.state_files import FIRST_ADMIN_NAME, replace_file
from quorumlog.testing.member import SimMember
from sim.log.profile import draw_profile
from sim.log.run import run_seed
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario
from tests.sim.test_hand_over_scenarios import asked_to_hand_over
from tests.sim.test_state_machines import MachineScenario

SOON_MS = 2 * ELECTION_MS


def hung(scene: Scenario, member: SimMember) -> None:
    """Its disk hangs, and it knows."""
    member.hang(True)
    scene.ask_and_wait(scene.await_leader())
    scene.run_for(HANGS_AFTER_MS + SOON_MS)


def test_a_leader_whose_disk_hangs_hands_over() -> None:
    scene = Scenario()
    scene.append(3)
    old = scene.await_leader()
    old.hang(True)
    scene.ask_and_wait(old)  # the others commit it
    begun_ms = scene.cluster.now_ms
    scene.until(lambda: scene.leader() is not old, "another leader", within_ms=HANGS_AFTER_MS + SOON_MS)
    assert scene.cluster.now_ms - begun_ms > HANGS_AFTER_MS - SOON_MS, "it had hardly begun"
    new = scene.await_leader()
    scene.ask_and_wait(new)
    scene.run_for(SOON_MS)
    asked = scene.ask(old)
    scene.until(lambda: asked.outcome is not None, "answer of one whose term waits for its disk")
    assert old.node.is_held and old.node.disk_waits_since_ms is not None
    assert isinstance(asked.outcome, NotLeader) and asked.outcome.leader_id == new.member_id
    old.hang(False)
    scene.await_one_log(old, new)
    scene.until(lambda: old.node.disk_waits_since_ms is None, "end of its syncs")
    scene.make_whole()


def test_a_disk_hangs_no_longer_than_the_process_on_it() -> None:
    """An operator may leave a file in the directory of a member that was killed for it."""
    scene = Scenario()
    scene.append()
    member = scene.followers()[0]
    hung(scene, member)
    member.kill()
    replace_file(member.disk, f"{member.path}/{FIRST_ADMIN_NAME}", b"", synced=True)
    member.disk.delete(f"{member.path}/{FIRST_ADMIN_NAME}")
    member.start()
    scene.make_whole()


def test_a_new_log_waits_for_no_disk_that_hangs_as_its_first_mark_is_written() -> None:
    scene = Scenario(profile=replace(QUIET, time_marks=True))
    old = scene.await_leader()
    old.hang(True)
    term = old.node.raft.term
    scene.ask_and_wait(old)
    assert old.node.log_state.is_noting
    scene.run_for(SOON_MS)
    assert scene.leader() is old and old.node.raft.term == term, "its heartbeats went on"
    old.hang(False)
    scene.until(lambda: not old.node.log_state.is_noting, "the note")
    scene.ask_and_wait(old)
    assert old.node.log_time_ms() is not None
    scene.make_whole()


def test_a_follower_whose_disk_hangs_takes_the_first_mark_once_that_is_noted() -> None:
    scene = Scenario(profile=replace(QUIET, time_marks=True))
    leader, (hung, _) = scene.await_leader(), scene.followers()
    hung.hang(True)
    scene.ask_and_wait(leader)
    scene.run_for(SOON_MS)
    assert hung.node.log_state.is_noting and hung.node.disk_waits_since_ms is not None
    assert hung.node.raft.leader == leader.replica, "it hears heartbeats"
    hung.hang(False)
    scene.make_whole()


def test_a_leader_whose_disk_hangs_stays_while_nothing_is_committed_without_it() -> None:
    """Of three one is dead: nothing can be acknowledged, and nothing is lost."""
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    scene.followers()[0].kill()
    leader.hang(True)
    asked = scene.ask(leader, timeout_ms=60_000)
    scene.run_for(2 * HANGS_AFTER_MS)
    assert asked.outcome is None
    assert scene.leader() is leader
    leader.hang(False)
    scene.until(lambda: asked.is_committed, "acknowledged append")
    scene.make_whole()


def test_who_has_a_disk_that_hangs_takes_nothing_over() -> None:
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    hanging, sound = scene.followers()
    hung(scene, hanging)
    told = asked_to_hand_over(leader, hanging)
    scene.until(lambda: bool(told), "refusal")
    assert isinstance(told[0], TransferFailed) and "hangs" in str(told[0])
    leader.kill()
    scene.run_for(10 * ELECTION_MS)
    assert hanging.node.raft.role is not Role.LEADER
    leader.start()
    assert scene.await_leader(leader, sound)
    scene.make_whole()


def test_a_vote_leaves_once_it_is_on_a_disk_that_hung() -> None:
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    hanging, candidate = scene.followers()
    hanging.hang(True)
    leader.kill()
    scene.run_for(20 * ELECTION_MS)
    assert candidate.node.raft.role is not Role.LEADER, "elected by a promise that is on no disk"
    assert hanging.node.is_held
    hanging.hang(False)
    scene.await_leader()
    scene.make_whole()  # PromisesOnDisk raises if a vote left before


def test_what_comes_while_a_promise_waits_is_bounded_and_missed_by_nobody() -> None:
    scene = Scenario()
    scene.append(3)
    old = scene.await_leader()
    hung(scene, old)
    new = scene.await_leader()
    assert new is not old
    for _ in range(20):
        scene.ask_and_wait(new)
    scene.run_for(2 * MOST_HELD_BACK * QUIET.consensus.heartbeat_interval_ms)
    assert old.node.is_held
    assert len(old.node._held_back) <= MOST_HELD_BACK
    scene.cut([old], [new])  # connections come and go meanwhile
    scene.run_for(SOON_MS)
    scene.heal()
    old.hang(False)
    scene.await_one_log(old, new)
    scene.make_whole()


def test_a_member_whose_disk_hangs_makes_no_space_on_its_loop() -> None:
    """That waits for the disk, and nobody would be answered meanwhile."""
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    hanging = scene.followers()[0]
    hung(scene, hanging)
    free_bytes = hanging.disk.usage("/").free_bytes
    for _ in range(20):
        scene.ask_and_wait(leader, body_bytes=3000)
    assert hanging.disk.usage("/").free_bytes == free_bytes, "its loop waits for the disk"
    assert hanging.node.store.end.index < leader.node.store.end.index
    hanging.hang(False)
    scene.await_one_log(hanging, leader)
    scene.make_whole()


def test_what_would_free_space_makes_none_on_a_disk_that_hangs() -> None:
    """Data in front of a KEEP may use the reserve, and would wait there for more of it."""
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    hanging = scene.followers()[0]
    hung(scene, hanging)
    free_bytes = hanging.disk.usage("/").free_bytes
    for _ in range(60):
        scene.ask_and_wait(leader, body_bytes=3000)
        leader.enter_node("propose_control", Keep(0))
    scene.run_for(SOON_MS)
    assert hanging.disk.usage("/").free_bytes == free_bytes, "its loop waits for the disk"
    hanging.hang(False)
    scene.await_one_log(hanging, leader)
    scene.make_whole()


def test_a_question_to_a_machine_ends_in_time_while_a_promise_waits() -> None:
    scene = MachineScenario()
    scene.commands(3)
    scene.settle()
    leader = scene.await_leader()
    hanging = scene.followers()[0]
    hanging.hang(True)
    leader.kill()
    scene.until(lambda: hanging.node.is_held, "a vote that waits")
    answers: list[object] = []
    machines = hanging.node.machines
    hanging.enter(lambda: machines.ask_here(scene.name, b"", 1_000, answers.append))
    scene.until(lambda: bool(answers), "answer")
    assert isinstance(answers[0], LedgerError), answers
    hanging.hang(False)
    scene.make_whole()


def test_a_group_of_one_leads_once_its_term_is_on_disk() -> None:
    scene = Scenario(size=1, start=False)
    member = scene.members[0]
    member.start()
    member.hang(True)
    asked = scene.ask(member)
    scene.run_for(HANGS_AFTER_MS)
    assert not asked.is_committed
    assert member.node.is_held
    member.hang(False)
    scene.await_leader()
    scene.ask_and_wait(member)
    scene.make_whole()


def test_random_runs_keep_their_promises_on_disks_that_hang() -> None:
    seeds = [seed for seed in range(1, 40) if draw_profile(Random(seed)).has_hanging_disks][:3]
    hung = 0
    for seed in seeds:
        result = run_seed(seed)
        assert not result.failure, result.failure
        hung += result.counts["fault: hanging disk"]
    assert hung
