"""Data that comes slowly, late or never while heartbeats pass, step by step on the simulator.

The mutants (tests/mutants/) run these as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest

from quorumlog.consensus.messages import AnyPeerMessage, PushEntryRequest, PushType
from quorumlog.consensus.ready import Envelope, Role
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import DirectoryDamaged
from quorumlog.node import repair
from quorumlog.testing import SimulatedLog
from quorumlog.testing.member import SimMember
from quorumlog.testing.network import Pipe
from quorumlog.testing.profile import LINK_KINDS
from quorumlog.testing.promises import Checker
from sim.log.profile import draw_profile
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario

SMALL_PUSHES = replace(
    QUIET,
    consensus=replace(QUIET.consensus, push_limit_bytes=6_000, push_window_bytes=24_000),
)
BODY_BYTES = 950


class Pushed(Checker):
    """How often each push was sent to one member, and how often it was asked what has arrived."""

    def __init__(self, scene: Scenario, to: SimMember) -> None:
        super().__init__(scene.cluster)
        self._to = to.member_id
        self.times: Counter[int] = Counter()
        self.questions = 0
        scene.watch(self)

    def sent(self, member: SimMember, envelope: Envelope) -> None:
        message = envelope.message
        if envelope.to.member_id != self._to or not isinstance(message, PushEntryRequest):
            return
        if message.push is PushType.APPEND:
            self.times[message.first_index] += 1
        elif message.asks_what_arrived:
            self.questions += 1


def one_behind(entries: int = 50) -> tuple[Scenario, SimMember, SimMember]:
    """A leader, and a follower that is down and lacks so many entries, about a thousand bytes each."""
    scene = Scenario(profile=SMALL_PUSHES)
    scene.append(2)
    leader, behind = scene.await_leader(), scene.followers()[0]
    behind.stop()
    for _ in range(entries):
        scene.ask_and_wait(leader, BODY_BYTES)
    return scene, leader, behind


def way(scene: Scenario, one: SimMember, other: SimMember) -> Pipe:
    return scene.cluster.network.pipes[one.member_id, other.member_id]


@pytest.mark.parametrize("bytes_per_ms", [2.0, 20.0])
def test_a_throttled_link_is_used_to_nine_tenths_at_least(bytes_per_ms: float) -> None:
    """A push of six thousand bytes takes 3 s or 300 ms; silence is looked into after 300 ms."""
    _catches_up_through(bytes_per_ms)


def test_the_slowest_link_carries_no_push_twice() -> None:
    _catches_up_through(0.5)


def _catches_up_through(bytes_per_ms: float) -> None:
    scene, leader, behind = one_behind()
    pushed = Pushed(scene, behind)
    missing_bytes = 50 * (BODY_BYTES + HEADER_BYTES)
    way(scene, leader, behind).limits(bytes_per_ms)
    began_ms = scene.cluster.now_ms
    behind.start()
    ideal_ms = missing_bytes / bytes_per_ms
    scene.until(
        lambda: behind.is_up and behind.node.store.end == leader.node.store.end,
        "follower that has caught up",
        within_ms=ideal_ms / 0.9 + 200,
    )
    assert scene.cluster.now_ms - began_ms > ideal_ms, "the link carried more than it can"
    assert max(pushed.times.values()) == 1
    scene.make_whole()


def test_a_slow_disk_gets_no_push_twice() -> None:
    pushed = _catches_up_with_syncs_of(3_000.0)
    # After 300, 600 and 1200 ms of the first sync, and the patience that these have taught is kept; it
    # would be twelve if each came as soon as the first.
    assert 3 <= pushed.questions <= 8, pushed.questions


@pytest.mark.parametrize("sync_ms", [900.0, 1_500.0, 6_000.0])
def test_no_disk_gets_a_push_twice_however_slow_it_is(sync_ms: float) -> None:
    _catches_up_with_syncs_of(sync_ms)


def _catches_up_with_syncs_of(sync_ms: float) -> Pushed:
    scene, leader, behind = one_behind()
    pushed = Pushed(scene, behind)
    behind.sync_ms, behind.least_sync_share = sync_ms, 1.0
    behind.start()
    scene.until(
        lambda: behind.node.raft.log.durable_index == leader.node.store.end.index,
        "follower whose disk has all",
        within_ms=20 * sync_ms,
    )
    assert max(pushed.times.values()) == 1, pushed.times
    behind.sync_ms = 1.0
    scene.make_whole()
    return pushed


def test_a_follower_that_gets_four_fifths_of_what_its_link_carries_falls_no_further_behind() -> None:
    scene, leader, behind = one_behind(entries=1)
    behind.start()
    scene.until(lambda: behind.is_up and behind.node.store.end == leader.node.store.end, "one log")
    pushed = Pushed(scene, behind)
    way(scene, leader, behind).limits(2.0)  # an entry takes half a second, and a bit for its frame
    lags = []
    for _ in range(60):
        scene.ask_and_wait(leader, BODY_BYTES)
        scene.run_for(700)
        lags.append(leader.node.store.end.index - behind.node.store.end.index)
    assert max(lags) <= 2
    assert max(pushed.times.values()) == 1


def test_a_connection_without_room_is_told_to_the_leader_which_sends_that_push_later() -> None:
    scene, leader, behind = one_behind()
    way(scene, leader, behind).limits(20.0, room_bytes=4_000)
    pushed = Pushed(scene, behind)
    behind.start()
    scene.until(
        lambda: behind.is_up and behind.node.store.end == leader.node.store.end,
        "follower that has caught up",
        within_ms=5_500,
    )
    refused = scene.cluster.trace.counts["link: full"]
    again = sum(pushed.times.values()) - len(pushed.times)
    assert 0 < again <= refused, (
        "what found no room goes again, and nothing else; another message may find none"
    )
    scene.make_whole()


def test_a_full_link_is_used_to_nine_tenths_while_what_went_before_is_acknowledged() -> None:
    """The pause after a full link is as long as it is, whatever is answered meanwhile."""
    scene, leader, behind = one_behind()
    way(scene, leader, behind).limits(5.0, room_bytes=12_000)
    behind.start()
    scene.until(
        lambda: behind.is_up and behind.node.store.end == leader.node.store.end,
        "follower that has caught up",
        within_ms=50 * (BODY_BYTES + HEADER_BYTES) / 5.0 / 0.9,
    )
    assert scene.cluster.trace.counts["link: full"] > 0
    scene.make_whole()


def test_a_lost_push_goes_again_while_its_receiver_is_sent_a_repair() -> None:
    """Bytes move all the time, and none of them are of a push."""
    scene = Scenario(profile=SMALL_PUSHES)
    scene.append(2)
    leader, (hurt, other) = scene.await_leader(), scene.followers()
    for _ in range(60):
        scene.ask_and_wait(leader, BODY_BYTES)
    scene.run_for(500)
    first_index, stop_index = 3, 55
    for index in range(first_index, stop_index):
        position = hurt.node.store.range_of(index, index + 1, 1).position
        hurt.disk.flip(f"{hurt.path}/data/{position // 8192 * 8192:020d}", position % 8192 + 32, 1)
    way(scene, leader, hurt).limits(10.0)
    other.kill()
    with ExitStack() as patches:
        patches.enter_context(patch.object(repair, "PIECE_BYTES", 4_000))
        damage = DirectoryDamaged("", path="", position=0, index=first_index, stop_index=stop_index)
        hurt.enter(lambda: hurt.node.repairer.found(damage))
        scene.until(lambda: bool(hurt.node.store.damaged), "damaged range")
        scene.run_for(300)
        losses, receive = 0, SimMember.receive

        def lost_once(member: SimMember, message: AnyPeerMessage) -> None:
            nonlocal losses
            is_push = isinstance(message, PushEntryRequest) and message.push is PushType.APPEND
            if losses or member is not hurt or not is_push:
                receive(member, message)
            else:
                losses += 1

        patches.enter_context(patch.object(SimMember, "receive", lost_once))
        asked = scene.ask(leader, 100)
        scene.until(lambda: asked.is_committed, "commit", within_ms=2_000)
        assert losses
        assert hurt.node.store.damaged, "the repair was over before"
    scene.make_whole()


@pytest.mark.parametrize(("entries", "body_bytes"), [(20, 50_000), (1, 1_000_000)])
def test_a_repair_gets_through_a_thin_line(entries: int, body_bytes: int) -> None:
    """A megabyte at 50 KiB/s: the whole of what is asked for at first takes 20 s there."""
    segments = replace(QUIET.storage, segment_bytes=4 << 20, reserve_step_bytes=1 << 20)
    scene = Scenario(profile=replace(QUIET, storage=segments, max_uncommitted_bytes=4 << 20))
    scene.append(2)
    leader, (hurt, other) = scene.await_leader(), scene.followers()
    for _ in range(entries):
        scene.ask_and_wait(leader, body_bytes)
    scene.append()
    store = hurt.node.store
    first_index, stop_index = 3, 3 + entries
    indices = range(first_index, stop_index)
    for position in [store.range_of(index, index + 1, 1).position for index in indices]:
        hurt.disk.flip(hurt.segment_path(), position + 8, 1)
    for member in (leader, other):
        way(scene, member, hurt).limits(51.2)
    damage = DirectoryDamaged("", path="", position=0, index=first_index, stop_index=stop_index)
    hurt.is_damaged = True
    hurt.enter(lambda: hurt.node.repairer.found(damage))
    scene.until(lambda: bool(store.damaged), "damaged range")
    ideal_ms = entries * body_bytes / 51.2
    scene.until(lambda: not store.damaged, "repair", within_ms=8 * ideal_ms, step_ms=100)
    scene.make_whole()


def test_a_push_that_a_follower_drops_goes_again_while_newer_ones_arrive() -> None:
    """An old leader meets damage just where the first push of the new one would have its log cut. It
    drops that push, and what is appended all the time waits there, so bytes move without end."""
    scene = Scenario()
    scene.append(5)
    old, others = scene.await_leader(), scene.followers()
    index = old.node.store.end.index
    scene.cut([old], others)
    scene.ask(old)
    scene.until(lambda: old.node.store.durable.index == index + 1, "a tail that has to go")
    leader = scene.await_leader(*others)
    for _ in range(3):
        scene.ask_and_wait(leader)
    for _ in range(2):  # the second start trusts what the first has synced, and reads none of it
        old.stop()
        old.start()
    scene.until(lambda: old.node.log_state.states is not None, "state of its log", step_ms=0.1)
    position = old.node.store.range_of(index, index + 1, 1).position
    old.disk.flip(old.segment_path(), position + 8, 1)
    old.is_damaged = True
    next(member for member in others if member is not leader).kill()
    pushed = Pushed(scene, old)
    scene.heal()
    asked = []
    while not (asked and asked[0].is_committed):
        assert len(asked) < 60, "no commit within 4 x push_resend_ms"
        asked.append(scene.ask(leader))
        scene.run_for(20)
    assert pushed.questions, "the push was not dropped"
    assert [first for first, times in pushed.times.items() if times > 1] == [index + 1]
    scene.make_whole()


def test_a_leader_whose_large_frames_arrive_nowhere_makes_way_for_another() -> None:
    """Its heartbeats pass, so everybody would follow it for ever."""
    scene = Scenario()
    scene.append(3)
    old, others = scene.await_leader(), scene.followers()
    for member in others:
        way(scene, old, member).limits(None, largest_bytes=400)
    scene.ask(old, 1_000)
    scene.until(
        lambda: all(peer.stalled_since_ms is not None for peer in old.node.status().peers),
        "word of who gets nothing",
        within_ms=5 * ELECTION_MS,
    )
    scene.until(lambda: scene.leader(*others) is not None, "another leader", within_ms=16 * ELECTION_MS)
    scene.ask_and_wait(scene.await_leader(*others), 1_000)
    scene.run_for(20 * ELECTION_MS)
    assert old.node.raft.role is Role.FOLLOWER
    scene.make_whole()


def test_a_leader_that_is_heard_by_a_majority_stays_whatever_becomes_of_the_others() -> None:
    scene = Scenario(size=5)
    scene.append(3)
    leader, others = scene.await_leader(), scene.followers()
    term = leader.node.raft.term
    for member in others[:2]:
        way(scene, leader, member).limits(None, largest_bytes=400)
    for _ in range(50):
        scene.ask_and_wait(leader, 1_000)
        scene.run_for(ELECTION_MS / 2)
    assert leader.node.raft.term == term
    scene.make_whole()


def test_a_small_steady_load_hides_no_disks_that_hang() -> None:
    """The machines of the two go on to take and to acknowledge bytes. One disk that hangs is named;
    under two nothing is committed, and the leader makes way."""
    scene = Scenario(profile=replace(QUIET, max_uncommitted_bytes=1 << 26))
    scene.append(3)
    leader, (one, other) = scene.await_leader(), scene.followers()
    one.sync_ms, one.least_sync_share = 1e9, 1.0

    def is_named() -> bool:
        peers = leader.node.status().peers
        return [p.replica.member_id for p in peers if p.stalled_since_ms is not None] == [one.member_id]

    _under_a_small_steady_load(scene, leader, is_named)
    other.sync_ms, other.least_sync_share = 1e9, 1.0
    _under_a_small_steady_load(scene, leader, lambda: leader.node.raft.role is not Role.LEADER)
    for member in (one, other):
        member.lose_power()
        member.sync_ms, member.least_sync_share = 1.0, 0.0
        member.start()
    scene.make_whole()


def _under_a_small_steady_load(scene: Scenario, leader: SimMember, is_over: Callable[[], bool]) -> None:
    for _ in range(15 * ELECTION_MS // 100):
        scene.ask(leader, BODY_BYTES)
        scene.run_for(100)
        if is_over():
            return
    raise AssertionError("not within fifteen election time-outs")


def test_a_slow_link_deposes_nobody() -> None:
    scene = Scenario(profile=SMALL_PUSHES)
    scene.append(3)
    leader = scene.await_leader()
    term = leader.node.raft.term
    for member in scene.followers():
        way(scene, leader, member).limits(0.2)
    asked = scene.ask(leader, 1_500)
    scene.run_for(4_900)
    scene.until(lambda: leader.node.committed_index == leader.node.store.end.index, "commit")
    assert asked.outcome is not None
    assert leader.node.raft.term == term
    scene.make_whole()


def test_most_runs_have_no_link_faults() -> None:
    assert 2 < sum(bool(draw_profile(Random(seed)).link_kinds) for seed in range(1, 40)) < 20


@pytest.mark.parametrize("kind", LINK_KINDS)
def test_a_log_of_ones_own_can_ask_for_them(kind: str) -> None:
    log = SimulatedLog(3, faults=(kind,), fault_every_ms=300)
    for number in range(20):
        log.append(b"%d" % number * 100)
        log.run_for(200)
    assert log.trace.counts[f"fault: {kind}"] > 3
    log.heal()
