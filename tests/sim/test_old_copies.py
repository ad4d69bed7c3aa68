"""A member whose directory was put back to an older copy, and the leader that knows what it has said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import msgspec

from quorumlog.consensus.messages import AnyPeerMessage, HeartbeatRequest
from quorumlog.consensus.ready import Role
from quorumlog.testing.member import SimMember
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario
from tests.sim.test_log_begin import boundaries, drop, fill

REPLACING = replace(QUIET, auto_replace_after_ms=3_000)


def copied(scene: Scenario, member: SimMember) -> dict[str, bytes]:
    """As an operator copies a directory, or a machine is saved: in order."""
    member.stop()
    copy = member.disk.snapshot()
    member.start()
    scene.append()
    return copy


def put_back(scene: Scenario, member: SimMember, copy: dict[str, bytes]) -> None:
    member.kill()
    member.disk.restore(copy)
    scene.cluster.notify("put_back", member)
    member.start()


def found_out(scene: Scenario, member: SimMember) -> None:
    old = member.replica
    scene.until(lambda: member.is_up and member.replica != old, "another directory")
    scene.until(lambda: member.node.raft.role is Role.OBSERVER, "an observer")


def is_voter(scene: Scenario, member: SimMember) -> bool:
    membership = scene.await_leader().node.status().membership
    return not membership.is_joint and member.replica in membership.new


def test_a_member_that_is_put_back_is_found_out_and_votes_again_as_another_directory() -> None:
    scene = Scenario(profile=REPLACING)
    scene.append(3)
    member = scene.followers()[0]
    copy = copied(scene, member)
    scene.append(20)
    put_back(scene, member, copy)
    found_out(scene, member)
    member.stop()
    member.start()
    scene.run_for(ELECTION_MS)
    assert member.node.raft.role is Role.OBSERVER, "a restart makes it no voter"
    scene.until(lambda: is_voter(scene, member), "a voter", within_ms=20_000)
    scene.append(3)
    scene.make_whole()


def test_killed_when_it_was_told_it_is_another_directory_at_the_next_start() -> None:
    scene = Scenario()
    scene.append(3)
    member = scene.followers()[0]
    copy = copied(scene, member)
    scene.append(3)
    old = member.replica
    put_back(scene, member, copy)
    scene.until(lambda: not member.is_up, "the end of its node")
    scene.cut([member], [each for each in scene.members if each is not member])
    scene.until(lambda: member.is_up, "another node")
    scene.run_for(10)
    assert member.replica != old, "nobody has told it again"


def test_a_copy_that_ends_below_the_begin_of_the_log_is_found_out_too() -> None:
    """What it lacks is gone. It would be given the start of the log otherwise."""
    scene = Scenario(profile=REPLACING)
    scene.append(3)
    member = scene.followers()[0]
    copy = copied(scene, member)
    fill(scene)
    for each in scene.members:
        drop(scene, each, boundaries(each)[-1])
    put_back(scene, member, copy)
    found_out(scene, member)
    scene.until(lambda: is_voter(scene, member), "a voter", within_ms=20_000)
    scene.make_whole()


def two_leaders() -> tuple[Scenario, SimMember, SimMember, SimMember, dict[str, bytes]]:
    """The first leads a term that is over, and its clock is slow; it was cut off. The second has led the
    next one, and is down, with an entry that the third has acknowledged, after it had voted for it. The
    third is down, too; the last is an older copy of its disk."""
    scene = Scenario()
    scene.append(3)
    old_leader, (new_leader, member) = scene.await_leader(), scene.followers()
    copy = copied(scene, member)
    scene.append(3)
    old_leader.set_clock(rate=0.01)
    scene.cut([old_leader], [new_leader, member])
    scene.until(lambda: scene.leader(new_leader, member) is not None, "a leader of a later term")
    if scene.leader() is not new_leader:
        scene.hand_over(member, new_leader)
    scene.ask_and_wait(new_leader)
    assert old_leader.node.raft.role is Role.LEADER
    new_leader.kill()
    member.kill()
    return scene, old_leader, new_leader, member, copy


def test_what_it_promised_in_a_later_term_holds_although_it_has_forgotten_it() -> None:
    """Neither may the first commit anything with it in the place of that, nor be elected by it."""
    later_term_holds(with_longer_log=False)


def test_nor_does_the_leader_of_the_earlier_term_win_with_a_longer_log() -> None:
    later_term_holds(with_longer_log=True)


def later_term_holds(*, with_longer_log: bool) -> None:
    scene, old_leader, new_leader, member, copy = two_leaders()
    if with_longer_log:
        scene.ask(old_leader)
    put_back(scene, member, copy)
    scene.heal(old_leader, member)
    found_out(scene, member)
    old_leader.set_clock(rate=1.0)
    asked = scene.ask(old_leader, timeout_ms=1_000)
    scene.run_for(20 * ELECTION_MS)
    assert not asked.is_committed
    assert scene.leader() is None
    new_leader.start()
    scene.heal()
    scene.await_leader()
    scene.append(3)
    scene.make_whole()


@contextmanager
def of_an_earlier_release(old: SimMember) -> Iterator[None]:
    """It does not read what it is told."""
    receive = SimMember.receive

    def read(member: SimMember, message: AnyPeerMessage) -> None:
        if member is old and isinstance(message, HeartbeatRequest):
            message = msgspec.structs.replace(message, set_back=None)
        receive(member, message)

    with patch.object(SimMember, "receive", read):
        yield


def test_an_earlier_release_that_goes_on_as_it_was_counts_in_nothing() -> None:
    """The story of the later term, with a member that stays who it was, and would catch up."""
    scene, old_leader, new_leader, member, copy = two_leaders()
    with of_an_earlier_release(member):
        put_back(scene, member, copy)
        scene.heal(old_leader, member)
        scene.until(lambda: bool(old_leader.node.raft._state.set_back), "the finding")
        old_leader.set_clock(rate=1.0)
        asked = scene.ask(old_leader, timeout_ms=1_000)
        scene.run_for(20 * ELECTION_MS)
        assert not asked.is_committed
        assert old_leader.node.raft.role is not Role.LEADER
        new_leader.start()
        scene.heal()
        scene.await_leader()
        scene.append()


def test_a_power_loss_may_take_what_was_acknowledged_under_async() -> None:
    storage = replace(QUIET.storage, flush="async", flush_interval_ms=1_000)
    scene = Scenario(flush="async", profile=replace(QUIET, storage=storage))
    scene.append(3)
    scene.run_for(3_000)
    member = scene.followers()[0]
    replica = member.replica
    scene.append(3)
    held = member.node.store.end.index
    member.lose_power()
    member.start()
    assert member.node.store.end.index < held
    scene.append(3)
    scene.make_whole()
    assert member.replica == replica
    assert scene.cluster.trace.counts["an older copy becomes another directory"] == 0
