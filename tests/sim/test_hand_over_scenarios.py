"""Handing over while others append, and before a member stops."""

from __future__ import annotations

from dataclasses import replace

from quorumlog.entry import AppendReceipt
from quorumlog.errors import NotLeader
from quorumlog.node.transfers import TransferOutcome
from quorumlog.testing.member import SimMember
from quorumlog.testing.operations import ClientAppend
from quorumlog.testing.promises import CheckedMember, Checker
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario


def asked_to_hand_over(leader: SimMember, to: SimMember) -> list[TransferOutcome]:
    """What becomes of it comes into the list."""
    told: list[TransferOutcome] = []
    leader.enter(lambda: leader.node.transfer(to.member_id, told.append))
    return told


def proposed(scene: Scenario, leader: SimMember) -> ClientAppend:
    """An append that is on its way to the others' disks."""
    asked = scene.ask(leader)
    end_index = leader.node.store.end.index
    scene.until(lambda: leader.node.store.end.index > end_index, "proposed append", step_ms=0.02)
    assert not asked.is_committed
    return asked


def test_a_leader_hands_over_while_entries_are_on_their_way() -> None:
    """And nobody is left with an outcome that is unknown."""
    scene = Scenario(profile=replace(QUIET, sync_ms=20.0), seed=6)
    scene.append(3)
    leader = scene.await_leader()
    heir = scene.followers()[0]
    term = leader.node.raft.term
    before = [proposed(scene, leader) for _ in range(3)]
    told = asked_to_hand_over(leader, heir)
    scene.run_for(0.1)
    meanwhile = scene.ask(leader)
    scene.until(lambda: bool(told), "end of the hand-over")
    assert scene.leader() is heir, told
    assert heir.node.raft.term == term + 1
    scene.until(lambda: meanwhile.outcome is not None, "answer")
    assert all(isinstance(append.outcome, AppendReceipt) for append in before)
    assert isinstance(meanwhile.outcome, NotLeader)
    assert meanwhile.outcome.leader_id == heir.member_id, "it waits in vain, and is not told for whom"
    scene.make_whole()


def test_appends_go_on_after_a_hand_over_that_came_to_nothing() -> None:
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    heir = scene.followers()[0]
    scene.cut([leader], [heir], both_ways=False)
    told = asked_to_hand_over(leader, heir)
    scene.run_for(1)
    meanwhile = scene.ask(leader)
    scene.until(lambda: bool(told), "end of the hand-over", within_ms=4 * ELECTION_MS)
    scene.until(lambda: meanwhile.is_committed, "append that waited")
    assert scene.leader() is leader
    scene.heal()
    scene.make_whole()


def test_a_leader_that_is_stopped_asks_the_next_when_the_first_cannot_take_over() -> None:
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    full, away = scene.followers()
    usage = full.disk.usage("/")
    full.disk.capacity_bytes = int((usage.total_bytes - usage.free_bytes) / 0.9)
    elector = leader.node.raft._elector
    while elector.answers.takes_over(full.replica):
        scene.ask_and_wait(leader, body_bytes=2000)
    away.kill()
    scene.run_for(10)
    leader.terminate(lambda: None)
    scene.run_for(30)
    assert leader.is_up, "it has left the group without a leader"
    away.start()
    scene.until(lambda: not leader.is_up, "end of the member", within_ms=4 * ELECTION_MS)
    assert scene.leader() is away, "nobody leads in its place"
    scene.make_whole()


def test_a_leader_whose_own_disk_hangs_hands_over_all_the_same() -> None:
    """Half an election time-out is what entries on their way are given."""
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    heir, other = scene.followers()
    leader.sync_ms = 1e9
    scene.cut([leader], [other])
    asked = proposed(scene, leader)
    asked_to_hand_over(leader, heir)
    scene.run_for(0.4 * ELECTION_MS)
    assert scene.leader() is leader
    assert not asked.is_committed
    scene.until(lambda: scene.leader() is heir, "hand-over", within_ms=0.6 * ELECTION_MS)
    scene.until(lambda: heir.node.committed_index == heir.node.store.end.index, "commit")


class TurnCounter(Checker):
    def __init__(self, scene: Scenario, member: SimMember) -> None:
        super().__init__(scene.cluster)
        self._member, self.count = member, 0
        scene.watch(self)

    def turned(self, member: CheckedMember) -> None:
        self.count += member is self._member


def test_a_leader_that_stops_sleeps_while_a_hand_over_runs() -> None:
    """A turn for each message and timer, and none for nothing."""
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    for member in scene.followers():
        scene.cut([leader], [member], both_ways=False)
    scene.run_for(5)
    turns = TurnCounter(scene, leader)
    leader.enter(lambda: leader.node.find_successor(lambda reason: None))
    scene.run_for(ELECTION_MS / 2)
    assert 0 < turns.count < ELECTION_MS / 2


def test_a_leader_that_nobody_can_follow_stops_all_the_same() -> None:
    scene = Scenario()
    scene.append(3)
    leader = scene.await_leader()
    for member in scene.followers():
        member.kill()
    scene.run_for(10)
    leader.terminate(lambda: None)
    scene.until(lambda: not leader.is_up, "end of the member", within_ms=4 * ELECTION_MS)
