"""Sessions where leaders change: what a leader may let in, and what it may answer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import ProducerExpired, ProducerFenced, SequenceGap
from quorumlog.log_state.control_entries import ProducerEpoch
from quorumlog.node.pending_appends import SessionPlace
from quorumlog.node.producer_sessions import ProducerConnected
from quorumlog.testing.member import SimMember
from quorumlog.testing.operations import PRODUCED
from quorumlog.testing.profile import SimulationProfile
from sim.log import run
from sim.log.profile import draw_profile
from sim.log.run import run_seed
from tests.sim import test_machine_installs as installs
from tests.sim.scenario import ELECTION_MS, Scenario
from tests.sim.test_installs import SMALL, drop
from tests.sim.test_state_machines import MachineScenario, cut_as_far_as_machines_let

TOKENS = [bytes([number]) * 16 for number in range(1, 5)]


def ask_to_connect(
    member: SimMember, token: bytes = TOKENS[0], ends: ProducerEpoch | None = None
) -> list[Any]:
    answers: list[Any] = []
    sessions, deadline_ms = member.node.sessions, member.node.deadline_ms(60_000)
    member.enter(lambda: sessions.connect("p", token, ends, deadline_ms, answers.append, None))
    return answers


def connect(
    scene: Scenario, member: SimMember, token: bytes = TOKENS[0], ends: ProducerEpoch | None = None
) -> ProducerConnected:
    answers = ask_to_connect(member, token, ends)
    scene.until(lambda: bool(answers), "an answer to a connect")
    assert isinstance(answers[0], ProducerConnected), answers
    return answers[0]


def send(
    member: SimMember, epoch: ProducerEpoch, sequence: int, *bodies: bytes, producer: str = "p"
) -> list[Any]:
    outcomes: list[Any] = []
    place = SessionPlace(producer, epoch, sequence)
    batch = EntryBatch.from_bodies(list(bodies))
    member.enter(lambda: member.node.append(batch, 60_000, outcomes.append, None, None, place))
    return outcomes


def append(
    scene: Scenario,
    member: SimMember,
    epoch: ProducerEpoch,
    sequence: int,
    *bodies: bytes,
    producer: str = "p",
) -> Any:
    outcomes = send(member, epoch, sequence, *bodies, producer=producer)
    scene.until(lambda: bool(outcomes), "an answer to an append")
    return outcomes[0]


def bodies(member: SimMember) -> list[bytes]:
    store, found = member.node.store, list[bytes]()
    for index in range(store.begin.index + 1, store.end.index + 1):
        found += [entry.body for entry in store.read_from(index, index + 1, 1)[1].entries()]
    return [body for body in found if body.startswith(PRODUCED)]


def test_a_leader_that_is_alone_answers_nothing_and_lets_nothing_in_that_stays() -> None:
    """Each answer of its would be wrong: the others go on without it."""
    scene = Scenario()
    old = scene.await_leader()
    others = scene.followers()
    epoch = connect(scene, old).epoch
    assert isinstance(append(scene, old, epoch, 0, b"P0"), AppendReceipt)
    scene.cut([old], others)
    lone = [send(old, epoch, 1, b"Plost")]
    scene.run_for(20)
    lone += [send(old, epoch, 1, b"Plost"), send(old, epoch, 9, b"Pgap"), ask_to_connect(old, TOKENS[1])]
    shown: list[Any] = []
    old.enter(lambda: old.node.sessions.show("p", shown.append, None))
    new = scene.await_leader(*others)
    assert isinstance(append(scene, new, epoch, 1, b"P1"), AppendReceipt)
    assert not any(
        isinstance(one, AppendReceipt | SequenceGap | ProducerConnected) for o in lone for one in o
    )
    assert not any(hasattr(one, "session") for one in shown)
    scene.heal()
    scene.until(lambda: old.node.raft.ledger_end == new.node.raft.ledger_end, "one log")
    assert bodies(old) == [b"P0", b"P1"]


def test_what_is_not_committed_yet_counts_for_what_comes_behind_it() -> None:
    scene = Scenario()
    leader = scene.await_leader()
    epoch = connect(scene, leader).epoch
    others = scene.followers()
    scene.cut([leader], others)
    outcomes = [send(leader, epoch, 0, b"P0")]
    scene.run_for(5)
    outcomes += [send(leader, epoch, 1, b"P1"), send(leader, epoch, 0, b"P0")]
    scene.run_for(5)
    assert outcomes == [[], [], []]
    scene.heal()
    scene.until(lambda: all(outcomes), "answers to all")
    assert isinstance(outcomes[1][0], AppendReceipt)
    assert outcomes[0] == outcomes[2]
    assert bodies(leader) == [b"P0", b"P1"]


def test_a_repetition_of_what_nobody_else_has_is_no_receipt_yet() -> None:
    """A majority still follows the leader while its data does not get through."""
    scene = Scenario()
    leader = scene.await_leader()
    epoch = connect(scene, leader).epoch
    others = scene.followers()
    for member in others:
        scene.cluster.network.pipes[leader.member_id, member.member_id].limits(None, largest_bytes=200)
    end_index = leader.node.store.end.index
    body = b"P" + bytes(400)
    first = send(leader, epoch, 0, body)
    scene.until(lambda: leader.node.store.end.index > end_index, "an entry that nobody else gets")
    again, gap = send(leader, epoch, 0, body), send(leader, epoch, 5, b"P5")
    shown: list[Any] = []
    leader.enter(lambda: leader.node.sessions.show("p", shown.append, None))
    scene.run_for(ELECTION_MS)
    assert [told.session.last_sequence for told in shown] == [-1], "what is committed"
    assert [first, again, gap] == [[], [], []]
    leader.kill()
    scene.until(lambda: scene.leader(*others) is not None, "another leader")
    assert isinstance(append(scene, scene.await_leader(*others), epoch, 0, b"P0"), AppendReceipt)
    scene.make_whole()
    assert bodies(leader) == [b"P0"]


def test_of_what_was_on_its_way_a_new_leader_appends_only_the_rest() -> None:
    """Of two batches the heir has a part of the first. The producer asks for both again."""
    one_by_one = dataclasses.replace(SMALL.consensus, push_limit_bytes=700, push_window_bytes=700)
    scene = Scenario(profile=dataclasses.replace(SMALL, consensus=one_by_one))
    old = scene.await_leader()
    epoch = connect(scene, old).epoch
    others = scene.followers()
    produced = [b"P%d" % number + bytes(500) for number in range(8)]
    first, second = produced[:4], produced[4:]
    lost = [send(old, epoch, 0, *first), send(old, epoch, 4, *second)]
    scene.until(lambda: any(bodies(m) for m in others), "entries of the first", step_ms=0.02)
    scene.cut([old], others)
    new = scene.await_leader(*others)
    assert 0 < len(bodies(new)) < len(first)
    receipts = [append(scene, new, epoch, 0, *first), append(scene, new, epoch, 4, *second)]
    held = receipts[0].parts[0].count
    assert [[part.count for part in each.parts] for each in receipts] == [[held, 4 - held], [4]]
    assert [append(scene, new, epoch, 0, *first), append(scene, new, epoch, 4, *second)] == receipts
    scene.heal()
    scene.make_whole()
    assert [bodies(member) for member in scene.members] == [produced] * 3
    assert not any(isinstance(one, AppendReceipt) for outcomes in lost for one in outcomes)


def test_an_unknown_epoch_and_a_gap_let_nothing_in() -> None:
    scene = Scenario()
    leader = scene.await_leader()
    epoch = connect(scene, leader).epoch
    later = ProducerEpoch(epoch.index + 50, epoch.term)
    assert isinstance(append(scene, leader, later, 0, b"Plater"), ProducerExpired)
    assert isinstance(append(scene, leader, epoch, 0, b"Pq", producer="q"), ProducerExpired)
    gap = append(scene, leader, epoch, 1, b"P1")
    assert isinstance(gap, SequenceGap)
    assert gap.expected_sequence == 0
    assert isinstance(append(scene, leader, epoch, 0, b"P0"), AppendReceipt)
    assert bodies(leader) == [b"P0"]


def test_who_is_fenced_is_fenced_at_every_leader() -> None:
    scene = Scenario()
    old = scene.await_leader()
    first = connect(scene, old)
    second = connect(scene, old, TOKENS[1], first.epoch)
    assert isinstance(append(scene, old, second.epoch, 0, b"P0"), AppendReceipt)
    others = scene.followers()
    scene.cut([old], others)
    new = scene.await_leader(*others)
    assert isinstance(append(scene, new, first.epoch, 1, b"Plate"), ProducerFenced)
    assert connect(scene, new, TOKENS[0]) == ProducerConnected(False, second.epoch, 0)
    assert isinstance(append(scene, new, second.epoch, 1, b"P1"), AppendReceipt)


def test_numbers_go_on_with_the_next_epoch() -> None:
    scene = Scenario()
    leader = scene.await_leader()
    first = connect(scene, leader)
    append(scene, leader, first.epoch, 0, b"P0", b"P1")
    second = connect(scene, leader, TOKENS[1], first.epoch)
    assert second.last_sequence == 1
    again = append(scene, leader, second.epoch, 1, b"P1")
    assert isinstance(again, AppendReceipt)
    assert bodies(leader) == [b"P0", b"P1"]


def test_sessions_outlive_the_entries_that_made_them() -> None:
    """The first segments go, and every process begins anew."""
    scene = Scenario(profile=SMALL)
    leader = scene.await_leader()
    epoch = connect(scene, leader).epoch
    receipt = append(scene, leader, epoch, 0, b"P0", b"P1")
    scene.append(30)
    for member in scene.members:
        assert drop(scene, member) > receipt.last_index
    for member in scene.members:
        member.kill()
    for member in scene.members:
        member.start()
    leader = scene.await_leader()
    assert append(scene, leader, epoch, 0, b"P0", b"P1") == receipt
    assert isinstance(append(scene, leader, epoch, 2, b"P2"), AppendReceipt)
    scene.make_whole()


def test_sessions_travel_with_a_snapshot() -> None:
    """To a member that was away and leads next, when the producer asks for its last again."""
    scene = MachineScenario(profile=installs.PIECES)
    leader = scene.await_leader()
    first = connect(scene, leader)
    receipt = append(scene, leader, first.epoch, 0, b"P0", b"P1")
    away = scene.followers()[0]
    away.kill()
    installs.fill(scene)
    for member in scene.members:
        if member.is_up:
            scene.until(lambda m=member: installs.has_two(m), "two snapshots")
            assert cut_as_far_as_machines_let(scene, member)
            assert member.node.store.begin.index > receipt.last_index
    away.start()
    replaced = scene.cluster.trace.counts
    scene.until(lambda: replaced["install: a log is replaced"] > 0, "an installed log", within_ms=60_000)
    scene.make_whole()
    leader = scene.await_leader()
    if leader is not away:
        scene.hand_over(leader, away)
    assert append(scene, away, first.epoch, 0, b"P0", b"P1") == receipt
    gap = append(scene, away, first.epoch, 3, b"P3")
    assert isinstance(gap, SequenceGap)
    assert isinstance(append(scene, away, first.epoch, 2, b"P2"), AppendReceipt)


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_producers_survive_what_strikes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = run_with_producers(seed, monkeypatch)
    assert counts["producer: AppendReceipt"] > 0


def run_with_producers(seed: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:

    def with_producers(*arguments: Any, **options: Any) -> SimulationProfile:
        return dataclasses.replace(draw_profile(*arguments, **options), producers=2)

    monkeypatch.setattr(run, "draw_profile", with_producers)
    result = run_seed(seed)
    assert not result.failure, result.failure
    return result.counts
