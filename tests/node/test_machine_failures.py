"""Whatever an application's machine raises or returns, the member goes on, and says it in words that any
message can carry."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorumlog.entry import AppendReceipt
from quorumlog.errors import CommandError, ResultUnknown, UnknownMachine
from quorumlog.state_machine import ApplyFailure, StateMachine
from quorumlog.state_machine.machine import MOST_WORDS
from tests.node.cell import Cell
from tests.node.machines import Chain
from tests.node.test_session_commands import Sessions
from tests.node.test_state_machines import Group


class Panic(BaseException):
    """As libraries in other languages raise it."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


RAISED: list[Callable[[], BaseException]] = [
    lambda: Panic("a panic"),
    lambda: SystemExit(3),
    Wordless,
    lambda: ValueError("not UTF-8: \udcff"),
    lambda: ValueError("x" * (20 << 20)),
]
REFUSED: list[Callable[[], BaseException]] = [
    lambda: CommandError("not UTF-8: \udcff"),
    lambda: CommandError("x" * (20 << 20)),
]


def raising(make: Callable[[], BaseException]) -> type[Chain]:
    class Raising(Chain):
        def command(self, body: bytes, index: int) -> bytes | None:
            if body == b"bad":
                raise make()
            return super().command(body, index)

        def query(self, question: bytes) -> bytes:
            if question == b"bad":
                raise make()
            return super().query(question)

    return Raising


def assert_can_be_told(words: str) -> None:
    assert len(words) < MOST_WORDS + 500
    msgspec.msgpack.encode(words)


@pytest.mark.parametrize("make", RAISED)
def test_what_a_command_raises_stops_the_machine_alone(
    tmp_path: Path, make: Callable[[], BaseException]
) -> None:
    group = Group(tmp_path, raising(make), members=1)
    outcome = group.append(b"a", b"bad", b"b")
    assert isinstance(outcome, ResultUnknown)
    assert_can_be_told(str(outcome))
    (problem,) = group.cell.leader().problems()
    assert f"entry {group.cell.leader().raft.ledger_end.index - 1}: {type(make()).__name__}" in problem
    assert_can_be_told(problem)
    assert isinstance(group.append(b"plain", machine=""), AppendReceipt), "the log goes on"
    assert isinstance(group.append(b"c"), UnknownMachine)
    group.cell.close()


@pytest.mark.parametrize("make", RAISED + REFUSED)
def test_what_a_question_raises_is_its_answer(tmp_path: Path, make: Callable[[], BaseException]) -> None:
    group = Group(tmp_path, raising(make), members=1)
    answer = group.query(b"bad")
    assert isinstance(answer, CommandError)
    assert_can_be_told(str(answer))
    assert isinstance(group.append(b"a"), AppendReceipt)
    group.cell.close()


@pytest.mark.parametrize("make", REFUSED)
def test_what_a_refusal_says_reaches_its_appender_and_whoever_repeats_it(
    tmp_path: Path, make: Callable[[], BaseException]
) -> None:
    group = Sessions(tmp_path, make=raising(make), members=1)
    first = group.command(0, b"bad")
    ((_, words),) = first.failures
    assert_can_be_told(words)
    assert group.command(0, b"bad").failures == first.failures
    for number in range(1, 5):  # it is saved, too
        group.command(number, b"a")
    group.settle()
    assert group.cell.leader().problems() == ()
    group.cell.close()


def test_a_failure_that_names_no_entry_of_its_batch_is_one_of_all_of_them(tmp_path: Path) -> None:
    class Unclear(Chain):
        def apply(self, batch: Any, first_index: int) -> Any:
            raise ApplyFailure("somewhere")  # type: ignore[arg-type]

    group = Group(tmp_path, Unclear, members=1)
    assert isinstance(group.append(b"a", b"b"), ResultUnknown)
    last = group.cell.leader().raft.ledger_end.index
    (problem,) = group.cell.leader().problems()
    assert f"at entries {last - 1} .. {last}: ApplyFailure: entry somewhere" in problem
    group.cell.close()


def test_a_save_that_panics_is_told_and_stops_nothing(tmp_path: Path) -> None:
    class Unsaved(Chain):
        def save(self, writer: Any) -> None:
            raise Panic("a panic")

    group = Sessions(tmp_path, make=Unsaved, members=1)
    group.append(*[b"a"] * 9)
    group.settle()
    node = group.cell.leader()
    group.cell.until(lambda: node.problems())
    assert "Panic: a panic" in node.problems()[0]
    assert group.append(b"b").result
    group.cell.close()


def test_a_save_that_fails_is_tried_again_less_and_less_often(tmp_path: Path) -> None:
    """On a disk that has no room for it each try takes the room that is left."""
    tries: list[float] = []

    class Unsaved(Chain):
        def save(self, writer: Any) -> None:
            tries.append(group.cell.now_ms)
            raise OSError("no room")

    group = Sessions(tmp_path, make=Unsaved, members=1)
    group.append(*[b"a"] * 9)
    group.settle()
    while len(tries) < 5:
        group.cell.step(1000)
    waits = [later - earlier for earlier, later in pairwise(tries)]
    assert all(1.8 * a < b for a, b in pairwise(waits)), waits
    group.cell.close()


def test_a_machine_for_which_the_log_has_no_channel_left_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.log_state.log_state.MOST_MACHINES", 1)
    cell = Cell(tmp_path, 1, machines={"chain": Chain, "second": Chain})
    leader = cell.leader()
    cell.until(lambda: leader.problems())
    (problem,) = leader.problems()
    assert "second is not bound: the log binds" in problem
    cell.close()


class NoApplied(Chain):
    def applied(self) -> Any:
        return (3, 1, 0)


class Second(Chain):
    version = 2


def panics() -> StateMachine:
    raise Panic("a panic")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (panics, "it cannot be made: Panic: a panic"),
        (lambda: None, "made NoneType, which is no StateMachine"),
        (NoApplied, "apply returned tuple, not Applied"),
        (lambda: Second(), "it has version 2, and its factory 1"),
    ],
)
def test_what_makes_no_machine_stops_it_on_this_member_alone(
    tmp_path: Path, make: Any, said: str
) -> None:
    cell = Cell(tmp_path, 1, machines={"chain": make})
    node = cell.leader()
    cell.until(lambda: node.problems())
    assert said in node.problems()[0]
    cell.close()
