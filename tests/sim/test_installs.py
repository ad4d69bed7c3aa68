"""Members whose logs end before the leader's begins, step by step: who takes over what, and when not.

The mutants (tests/mutants/) run some of these as well.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from quorumlog.config import StoreConfig
from quorumlog.consensus.messages import InstallRequest, VoteRequest
from quorumlog.consensus.ready import Envelope
from quorumlog.errors import DirectoryDamaged
from quorumlog.testing.member import SimMember
from quorumlog.testing.profile import SimulationProfile
from quorumlog.testing.promises import CheckedMember, Checker
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario

SMALL = replace(
    QUIET,
    storage=StoreConfig(
        segment_bytes=1024,
        index_segment_bytes=320,
        reserve_step_bytes=1024,
        index_sync_bytes=1 << 20,
        checkpoint_interval_ms=1_000_000,
    ),
)


def replace_sender(message: Any, sender: Any) -> Any:
    return msgspec.structs.replace(message, sender=sender)


class Sent(Checker):
    def __init__(self, scene: Scenario, kind: type) -> None:
        super().__init__(scene.cluster)
        self._kind = kind
        self.messages: list[tuple[str, Any]] = []
        """(sender, message)"""
        scene.watch(self)

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        if isinstance(envelope.message, self._kind):
            self.messages.append((member.member_id, envelope.message))


def drop(scene: Scenario, member: SimMember) -> int:
    """At the newest boundary that may be; the index of the entry before the first that is left."""
    node, store = member.node, member.node.store

    asked: list[int] = []

    def begin() -> bool:
        last_index = min(node.durable_committed_index, store.durable.index - 1)
        starts = [s for s in store.boundaries.saved() if store.begin.index < s.point.index <= last_index]
        if starts:
            asked.append(starts[0].point.index)
            member.enter(lambda: node.drops.begin(starts[0]))
        return bool(starts)

    scene.until(begin, "a boundary to drop at", step_ms=20)
    scene.until(lambda: store.begin.index == asked[0] and not node.drops.is_under_way, "the drop")
    return asked[0]


def behind(
    *, wiped: bool = False, profile: SimulationProfile = SMALL
) -> tuple[Scenario, SimMember, SimMember]:
    """(scene, leader, a member that is down, and whose log ends where nobody has entries any more)."""
    scene = Scenario(profile=profile)
    scene.append(3)
    leader, away = scene.await_leader(), scene.followers()[0]
    away.kill()
    for member in scene.members:
        if member is not away:
            scene.append(12)
    for member in scene.members:
        if member.is_up:
            drop(scene, member)
    if wiped:
        away.wipe()
    return scene, leader, away


@pytest.mark.parametrize("wiped", [False, True])
def test_a_member_that_was_away_takes_over_the_start(wiped: bool) -> None:
    scene, leader, away = behind(wiped=wiped)
    away.start()
    scene.until(lambda: away.is_up and away.node.store.begin == leader.node.store.begin, "the start")
    scene.make_whole()
    assert scene.cluster.trace.counts["install: a log is replaced"] == 1
    scene.append(3)
    # From the file `start` and not from what it remembers.
    away.kill()
    scene.append(3)
    away.start()
    scene.make_whole()
    assert scene.cluster.trace.counts["install: a log is replaced"] == 1


def test_an_installed_member_takes_over_the_start_once() -> None:
    test_a_member_that_was_away_takes_over_the_start(wiped=False)


@pytest.mark.parametrize("how", ["kill", "power loss"])
def test_a_crash_at_any_step_leaves_the_old_log_or_the_new_one(how: str) -> None:
    """From the start of the process on which the installation follows, and the one that it leads to."""
    begins = []
    for effects in range(1 if how == "kill" else 9, 400, 17):
        scene, leader, away = behind()
        away.start()
        first_process = away.process
        scene.cluster.faults.processes.crash_at_effect(away, effects, how)
        scene.until(partial(has_begun_anew, away, first_process), "another process")
        begins.append(away.node.store.begin.index)
        is_over = away.disk.crash_countdown is not None
        scene.make_whole()
        assert away.node.store.begin == leader.node.store.begin
        if is_over:
            break
    assert begins[0] == -1 and begins[-1] > 0, begins


def has_begun_anew(member: SimMember, first_process: int) -> bool:
    return member.process > first_process and member.is_up


def test_a_late_copy_of_the_start_replaces_nothing() -> None:
    scene, _, away = behind()
    sent = Sent(scene, InstallRequest)
    away.start()
    scene.make_whole()
    scene.append(2)
    (sender_id, message), *_ = sent.messages
    end = away.node.store.end
    sender = scene.cluster.member(sender_id).replica
    late = replace_sender(message, sender)
    away.enter(lambda: away.receive(late))
    scene.run_for(100)
    assert away.node.store.end == end
    assert scene.cluster.trace.counts["install: a log is replaced"] == 1
    scene.make_whole()


def test_an_installed_member_stands_for_election_once_it_holds_what_was_committed() -> None:
    """The leader's end is not: a disk is too slow. Then the leader is cut off and the third paused."""
    one_by_one = replace(SMALL.consensus, push_limit_bytes=600, push_window_bytes=600)
    scene, leader, away = behind(profile=replace(SMALL, consensus=one_by_one))
    other = next(m for m in scene.members if m not in (leader, away))
    other.sync_ms = 1e6
    other.least_sync_share = 1.0
    scene.run_for(50)
    for _ in range(3):
        scene.ask(leader, 500)
    scene.run_for(20)
    committed, end = leader.node.committed_index, leader.node.store.end.index
    assert committed < end
    away.start()
    scene.until(lambda: away.is_up and away.node.store.begin == leader.node.store.begin, "the start")
    scene.until(lambda: away.node.store.end.index >= committed, "what was committed", step_ms=0.02)
    asked = Sent(scene, VoteRequest)
    scene.cut([leader], [away, other])
    other.pause(10 * ELECTION_MS)
    scene.run_for(10 * ELECTION_MS)
    assert committed <= away.node.store.end.index < end
    assert away.member_id in {sender for sender, _ in asked.messages}
    other.sync_ms, other.least_sync_share = 1.0, 0.0
    other.kill()
    other.start()
    scene.heal()
    scene.make_whole()


def test_in_async_mode_a_member_whose_log_begins_above_the_leaders_takes_over_the_leaders() -> None:
    """Two lose their power and what they had not synced; the third has dropped what they still hold."""
    replaced = 0
    for seed in range(1, 13):  # what is left after a power loss is luck
        forgetful = replace(SMALL.storage, flush="async", flush_interval_ms=1_000_000)
        scene = Scenario(profile=replace(SMALL, storage=forgetful), flush="async", seed=seed)
        scene.append(3)
        own, *others = scene.members
        for member in others:
            member.stop()
            member.start()  # what they have so far is on disk
        scene.await_leader()
        scene.append(30)
        own.stop()
        own.start()
        scene.await_leader()
        scene.run_for(4 * ELECTION_MS)
        scene.append(1)
        drop(scene, own)
        scene.cut([own], others)
        for member in others:
            member.lose_power()
        for member in others:
            member.start()
        heir = scene.await_leader(*others)
        scene.ask_and_wait(heir)
        lacks_it = heir.node.store.end.index < own.node.store.begin.index
        scene.heal()
        scene.make_whole()
        if lacks_it:
            assert own.node.store.begin.index == -1
            assert scene.cluster.trace.counts["install: a log is replaced"] == 1
            replaced += 1
            break
    assert replaced


def damage(scene: Scenario, member: SimMember) -> None:
    """One of its first entries, which a read finds."""
    position = member.node.store.range_of(5, 6, 1).position
    member.kill()
    member.disk.flip(member.segment_path(position // 1024 * 1024), position % 1024 + 32, 1)
    member.start()
    scene.until(lambda: member.is_up, "a start")

    def read() -> None:
        try:
            member.node.store.read_from(5, 6, 1000)
        except DirectoryDamaged as found:
            member.node.repairer.found(found)

    member.enter(read)
    scene.until(lambda: bool(member.node.store.damaged), "a damaged range", step_ms=0.1)


def test_a_damaged_range_that_all_others_have_dropped_ends_with_a_higher_begin() -> None:
    scene = Scenario(profile=SMALL)
    scene.append(30)
    damaged, *others = scene.followers()
    for member in scene.members:
        if member is not damaged:
            drop(scene, member)
    first = others[0].node.store.begin.index
    damage(scene, damaged)
    assert damaged.node.store.damaged
    scene.append(3)
    scene.make_whole()
    assert not damaged.node.store.damaged
    assert damaged.node.store.begin.index == first
    assert not scene.cluster.trace.counts["install: a log is replaced"]


def test_a_damaged_range_is_kept_while_one_that_may_hold_it_is_away() -> None:
    scene = Scenario(profile=SMALL)
    scene.append(30)
    leader = scene.await_leader()
    damaged, away = scene.followers()
    drop(scene, leader)
    away.kill()
    damage(scene, damaged)
    scene.run_for(10_000)
    assert damaged.node.store.damaged, "nobody asked the one that is away"
    assert damaged.node.store.begin.index == -1
    away.start()
    scene.make_whole()
    assert not damaged.node.store.damaged
    assert damaged.node.store.begin.index == -1, "it was repaired"
