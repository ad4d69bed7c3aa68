"""Machines whose results are large: a member holds no more of them than it must."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, Durability, EntryKind
from quorumlog.errors import ResultUnknown
from quorumlog.log_state.control_entries import OpenProducer, ProducerBatch, ProducerEpoch, encode_body
from quorumlog.node import kept_results, machine_driver, machine_runner
from quorumlog.node.machine_driver import AwaitedResults, Question, answers_of
from quorumlog.node.machine_runner import AppliedResults, MachineRunner
from quorumlog.state_machine import FirstResults, Result, StateMachine, machine
from tests.node.machines import Chain
from tests.node.test_session_commands import Sessions
from tests.node.test_state_machines import Group


class AFew(Chain):
    """Applies some of the first entries of what it is given."""

    most = 2
    longest = 0

    def apply(self, batch: EntryBatch, first_index: int) -> Sequence[Result] | FirstResults | None:
        AFew.longest = max(AFew.longest, batch.count)
        results = super().apply(batch.slice(0, min(self.most, batch.count)), first_index)
        assert isinstance(results, list)
        return FirstResults(results)


def test_entries_that_a_machine_leaves_are_given_to_it_again(tmp_path: Path) -> None:
    entries_that_a_machine_leaves_are_given_to_it_again(tmp_path)


def entries_that_a_machine_leaves_are_given_to_it_again(tmp_path: Path) -> None:
    group = Group(tmp_path, AFew)
    bodies = [b"%d" % number for number in range(9)]
    receipt = group.append(*bodies[:5], b"no way", *bodies[5:])
    assert AFew.longest > 2
    assert isinstance(receipt, AppendReceipt), receipt
    first = receipt.first_index
    expected = [
        None if body == b"no way" else b"%d:" % index + body
        for index, body in enumerate([*bodies[:5], b"no way", *bodies[5:]], first)
    ]
    assert receipt.results == tuple(expected)
    assert receipt.failures == ((5, "b'no way' is refused"),)
    assert [[body for _, body in taken] for taken in group.settle()] == [bodies] * 3
    group.cell.close()


def test_sessions_have_the_results_of_batches_that_were_cut_so(tmp_path: Path) -> None:
    group = Sessions(tmp_path, make=AFew)
    bodies = [b"%d" % number for number in range(7)]
    first = group.command(0, *bodies)
    second = group.command(7, *bodies)
    group.settle()
    group.restart_all()
    assert group.command(0, *bodies) == first
    assert group.command(7, *bodies) == second
    group.cell.close()


def _log() -> list[EntryBatch]:
    """Batches of sessions, one of which is cut by the end of its term, and ends of sessions."""

    def control(kind: EntryKind, body: Any) -> EntryBatch:
        return EntryBatch.control(kind, encode_body(body))

    def batch(producer: str, count: int, said: int | None = None) -> list[EntryBatch]:
        body = ProducerBatch(producer, ProducerEpoch(5, 1), 0, said or count)
        own = EntryBatch.from_bodies([b"%s%d" % (producer.encode(), each) for each in range(count)])
        own.set_channel(1)
        return [control(EntryKind.PRODUCER, body), own]

    plain = EntryBatch.from_bodies([b"plain"] * 3)
    parts = [
        (1, batch("p", 5)),
        (1, [plain, *batch("q", 4)]),
        (1, batch("p", 2, said=6)),
        (2, batch("q", 3)),
        (2, [control(EntryKind.OPEN, OpenProducer("r", bytes(16), evicts=("p",)))]),
        (2, batch("r", 4)),
    ]
    index, stretches = 10, []
    for term, those in parts:
        stretch = EntryBatch.concatenate(those)
        stretch.stamp(index, term, np.zeros(stretch.count, np.int64), 0)
        index += stretch.count
        stretches.append(stretch)
    return stretches


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("left_out", [(), (11,), (12, 13, 15), tuple(range(10, 60))], ids=str)
def test_what_is_kept_does_not_depend_on_how_many_a_machine_takes_at_once(
    most: int, left_out: tuple[int, ...]
) -> None:
    what_is_kept_does_not_depend_on_how_many_a_machine_takes_at_once(most, left_out)


def what_is_kept_does_not_depend_on_how_many_a_machine_takes_at_once(
    most: int = 2, left_out: tuple[int, ...] = ()
) -> None:
    """Nor on which entries were stepped over, among those that it takes."""
    orders = frozenset((index, 99) for index in left_out)
    stretches = _log()
    whole = EntryBatch.concatenate(stretches)
    saved: dict[int, bytes] = {}
    one_by_one = MachineRunner("chain", 1, Chain(), 1)
    for place in range(whole.count):
        turn = one_by_one.apply(whole.slice(place, place + 1), orders)
        assert turn.applied is not None
        saved[turn.applied.index] = one_by_one._kept.encode()
    few = AFew()
    few.most = most
    runner = MachineRunner("chain", 1, few, 1)
    rest, turns = whole, 0
    while rest.count:
        turn = runner.apply(rest, orders)
        assert turn.stopped is None
        assert turn.applied is not None
        assert runner._kept.encode() == saved[turn.applied.index], turn.applied
        rest = rest.slice(turn.applied.index + 1 - rest.first_index, rest.count)
        turns += 1
    assert turns > whole.count // 5 or left_out
    assert few.taken == one_by_one.machine.taken  # type: ignore[attr-defined]


def test_a_turn_ends_where_what_it_has_given_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each call of the machine gave little."""
    monkeypatch.setattr(machine_runner, "MOST_RESULT_BYTES", 10)
    runner = MachineRunner("chain", 1, Chain(), 1)
    batch = EntryBatch.concatenate(_log())
    turn = runner.apply(batch)
    assert turn.applied is not None
    assert batch.first_index < turn.applied.index < batch.last_index
    rest = batch.slice(turn.applied.index + 1 - batch.first_index, batch.count)
    last = runner.apply(rest)
    assert last.applied is not None
    assert last.applied.index == batch.last_index
    whole = MachineRunner("chain", 1, Chain(), 1)
    monkeypatch.undo()
    whole.apply(batch)
    assert runner._kept.encode() == whole._kept.encode()


def test_a_machine_that_answers_each_command_with_much_is_given_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "MOST_RESULT_BYTES", 10)

    class Long(Chain):
        def command(self, body: bytes, index: int) -> bytes | None:
            super().command(body, index)
            return bytes(6)

    runner = MachineRunner("chain", 1, Long(), 1)
    batch = EntryBatch.from_bodies([b"x"] * 5)
    batch.set_channel(1)
    batch.stamp(1, 1, np.zeros(5, np.int64), 0)
    counts = []
    while batch.count:
        turn = runner.apply(batch)
        counts.append(turn.entries)
        batch = batch.slice(turn.entries, batch.count)
    assert counts == [2, 2, 1]


@pytest.mark.parametrize("results", [[], [b"a"] * 3])
def test_first_results_are_at_least_one_and_at_most_all(results: list[Result]) -> None:
    class Wrong(StateMachine):
        def apply(self, batch: EntryBatch, first_index: int) -> FirstResults:
            return FirstResults(results)

    batch = EntryBatch.from_bodies([b"x"] * 2)
    batch.set_channel(1)
    batch.stamp(1, 1, np.zeros(2, np.int64), 0)
    turn = MachineRunner("wrong", 1, Wrong(), 1).apply(batch)
    assert turn.stopped is not None
    assert f"{len(results)} results for 2 entries" in str(turn.stopped)


def test_a_result_that_was_not_built_leaves_what_itself_would_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of any session."""
    monkeypatch.setattr(kept_results, "MOST_BYTES", 200)

    class Large(Chain):
        stands_in = False

        def apply(self, batch: EntryBatch, first_index: int) -> Sequence[Result] | FirstResults | None:
            large = [place for place, body in enumerate(batch.bodies()) if bytes(body) == b"q2"]
            results: list[Result] = [bytes(body) for body in batch.bodies()]
            for place in large:
                results[place] = b"too large" if self.stands_in else bytes(185)
            return FirstResults(results, large if self.stands_in else ())

    saved = []
    for stands_in in (False, True):
        large = Large()
        large.stands_in = stands_in
        runner = MachineRunner("chain", 1, large, 1)
        saved.append([])
        for stretch in _log():
            runner.apply(stretch)
            saved[-1].append(runner._kept.encode())
    assert saved[0] == saved[1]
    assert saved[0][0]
    assert saved[0][1] == b""


def test_results_that_nobody_can_have_yet_are_held_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_driver, "MOST_HELD_BYTES", 100)
    awaited = AwaitedResults(lambda: float("inf"))
    outcomes: list[Any] = []
    for first_index, count in ((1, 3), (4, 1), (5, 2)):
        receipt = AppendReceipt(1, first_index, count, Durability.SYNC)
        awaited.committed(receipt, 1e9, outcomes.append)
    for index in range(1, 7):
        awaited.applied([AppliedResults(np.array([index]), [bytes(60)])], index)
        held = sum(each.results.size_bytes for each in awaited._kept)
        assert held <= 100
        assert awaited._held_bytes == held
    assert isinstance(outcomes[0], ResultUnknown)
    assert "above 100 bytes in all" in str(outcomes[0])
    assert outcomes[1].results == (bytes(60),), "of somebody else"
    assert isinstance(outcomes[2], ResultUnknown)
    assert awaited._held_bytes == 0


def test_questions_are_answered_so_many_at_once_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_driver, "MOST_RESULT_BYTES", 10)

    class Talks(Chain):
        def query(self, question: bytes) -> bytes:
            return question * 6

    runner = MachineRunner("chain", 1, Talks(), 1)
    ask = partial(MachineRunner.query, question=b"?")
    assert answers_of([Question(0, ask, 0.0, print, None)] * 5, runner) == [b"?" * 6] * 2
    group = Group(tmp_path, Talks)
    group.append(b"a")
    answers: list[Any] = []
    for number in range(7):
        leader = group.cell.leader()
        leader.machines.ask("chain", b"%d" % number, 5000, answers.append)
    group.cell.until(lambda: len(answers) == 7)
    assert [answer[0] for answer in answers] == [b"%d" % number * 6 for number in range(7)]
    group.cell.close()
