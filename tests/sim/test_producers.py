"""Sessions where leaders change: what a leader may let in, and what it may answer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import ProducerFenced, SequenceGap
from quorumlog.log_state.control_entries import Epoch
from quorumlog.node.pending_appends import SessionPlace
from quorumlog.node.writing.producer_sessions import Connected
from quorumlog.sim import run
from quorumlog.sim.member import SimMember
from quorumlog.sim.profile import SimulationProfile, draw_profile
from quorumlog.sim.run import run_seed
from tests.sim.scenario import Scenario

TOKENS = [bytes([number]) * 16 for number in range(1, 5)]


def ask_to_connect(member: SimMember, token: bytes = TOKENS[0], ends: Epoch | None = None) -> list[Any]:
    answers: list[Any] = []
    sessions, deadline_ms = member.node.sessions, member.node.deadline_ms(60_000)
    member.enter(lambda: sessions.connect("p", token, ends, deadline_ms, answers.append, None))
    return answers


def connect(
    scene: Scenario, member: SimMember, token: bytes = TOKENS[0], ends: Epoch | None = None
) -> Connected:
    answers = ask_to_connect(member, token, ends)
    scene.until(lambda: bool(answers), "an answer to a connect")
    assert isinstance(answers[0], Connected), answers
    return answers[0]


def send(member: SimMember, epoch: Epoch, sequence: int, *bodies: bytes) -> list[Any]:
    outcomes: list[Any] = []
    place = SessionPlace("p", epoch, sequence)
    batch = EntryBatch.from_bodies(list(bodies))
    member.enter(lambda: member.node.append(batch, 60_000, outcomes.append, None, None, place))
    return outcomes


def append(scene: Scenario, member: SimMember, epoch: Epoch, sequence: int, *bodies: bytes) -> Any:
    outcomes = send(member, epoch, sequence, *bodies)
    scene.until(lambda: bool(outcomes), "an answer to an append")
    return outcomes[0]


def bodies(member: SimMember) -> list[bytes]:
    store, found = member.node.store, list[bytes]()
    for index in range(store.begin.index + 1, store.end.index + 1):
        found += [entry.body for entry in store.read_from(index, index + 1, 1)[1].entries()]
    return [body for body in found if body.startswith(b"#")]


def test_a_leader_that_is_alone_answers_nothing_and_lets_nothing_in_that_stays() -> None:
    """Each answer of its would be wrong: the others go on without it."""
    scene = Scenario()
    old = scene.await_leader()
    others = scene.followers()
    epoch = connect(scene, old).epoch
    assert isinstance(append(scene, old, epoch, 0, b"#0"), AppendReceipt)
    scene.cut([old], others)
    lone = [send(old, epoch, 1, b"#lost")]
    scene.run_for(20)
    lone += [send(old, epoch, 1, b"#lost"), send(old, epoch, 9, b"#gap"), ask_to_connect(old, TOKENS[1])]
    shown: list[Any] = []
    old.enter(lambda: old.node.sessions.show("p", shown.append, None))
    new = scene.await_leader(*others)
    assert isinstance(append(scene, new, epoch, 1, b"#1"), AppendReceipt)
    assert not any(isinstance(one, AppendReceipt | SequenceGap | Connected) for o in lone for one in o)
    assert not any(hasattr(one, "session") for one in shown)
    scene.heal()
    scene.until(lambda: old.node.raft.ledger_end == new.node.raft.ledger_end, "one log")
    assert bodies(old) == [b"#0", b"#1"]


def test_who_is_fenced_is_fenced_at_every_leader() -> None:
    scene = Scenario()
    old = scene.await_leader()
    first = connect(scene, old)
    second = connect(scene, old, TOKENS[1], first.epoch)
    assert isinstance(append(scene, old, second.epoch, 0, b"#0"), AppendReceipt)
    others = scene.followers()
    scene.cut([old], others)
    new = scene.await_leader(*others)
    assert isinstance(append(scene, new, first.epoch, 1, b"#late"), ProducerFenced)
    assert connect(scene, new, TOKENS[0]) == Connected(False, second.epoch, 0)
    assert isinstance(append(scene, new, second.epoch, 1, b"#1"), AppendReceipt)


def test_numbers_go_on_with_the_next_epoch() -> None:
    scene = Scenario()
    leader = scene.await_leader()
    first = connect(scene, leader)
    append(scene, leader, first.epoch, 0, b"#0", b"#1")
    second = connect(scene, leader, TOKENS[1], first.epoch)
    assert second.last_sequence == 1
    again = append(scene, leader, second.epoch, 1, b"#1")
    assert isinstance(again, AppendReceipt)
    assert bodies(leader) == [b"#0", b"#1"]


@pytest.mark.parametrize("seed", [0, 2, 17])
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
