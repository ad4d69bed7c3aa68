"""Who is answered next, of many that ask one machine."""

from __future__ import annotations

from typing import Any

from quorumlog.node.machine_driver import MOST_QUESTIONS, Question, Questions


class Client:
    def __init__(self, is_full: bool = False) -> None:
        self.is_full = is_full
        self.told: list[tuple[Any, int]] = []

    def done(self, answer: Any, applied_index: int) -> None:
        self.told.append((answer, applied_index))


def question(client: Client, behind_index: int = 0, deadline_ms: float = 1_000.0) -> Question:
    return Question(behind_index, lambda runner: None, deadline_ms, client.done, client)


def test_one_question_is_answered_beside_thousands_of_others() -> None:
    """Three clients with 30,000 each held up everybody until his time was up."""
    questions, many, others, one = Questions(), Client(), Client(), Client()
    for client in (many, others):
        for _ in range(10_000):
            questions.add(question(client))
    questions.answered(questions.take(5), [], 5)
    questions.add(question(one))
    ready = questions.take(5)
    owners = [each.owner for each in ready]
    assert owners.count(one) == 1
    assert abs(owners.count(many) - owners.count(others)) <= 1
    questions.answered(ready, [b""] * len(ready), 5)
    assert one.told == [(b"", 5)]
    asked = len(many.told) + len(others.told)
    while ready := questions.take(5):
        assert len(ready) <= MOST_QUESTIONS
        questions.answered(ready, [b""] * len(ready), 5)
    assert len(many.told) + len(others.told) == 20_000 > asked
    assert not questions


def test_each_of_more_clients_than_one_turn_answers_has_its_turn() -> None:
    questions, clients = Questions(), [Client() for _ in range(MOST_QUESTIONS + 1)]
    for client in clients:
        for _ in range(3):
            questions.add(question(client))
    for _ in range(2):
        ready = questions.take(0)
        questions.answered(ready, [b""] * len(ready), 0)
    assert all(client.told for client in clients)


def test_large_answers_to_one_client_keep_nobody_else_waiting() -> None:
    """Whoever asked for megabytes was answered first each time, and the others never."""
    who_was_not_answered_is_the_first()


def who_was_not_answered_is_the_first() -> None:
    questions, large, others = Questions(), Client(), [Client(), Client()]
    for client in (large, *others):
        for _ in range(40):
            questions.add(question(client))
    for _ in range(9):
        ready = questions.take(5)
        questions.answered(ready, [b"megabytes"], 5)
    assert [len(each.told) for each in (large, *others)] == [3, 3, 3]


def test_who_goes_while_others_are_answered_is_not_answered() -> None:
    questions, first, goes = Questions(), Client(), Client()
    leaving = Question(0, lambda runner: None, 1_000.0, lambda *told: questions.discard(goes), first)
    for each in (leaving, question(goes)):
        questions.add(each)
    questions.answered(questions.take(0), [b"", b""], 0)
    assert not goes.told


def test_only_what_may_be_answered_is_taken_and_in_order() -> None:
    questions, client, full = Questions(), Client(), Client(is_full=True)
    later, first, second = question(client, 9), question(client, 2), question(client, 3)
    for each in (later, first, second, question(full)):
        questions.add(each)
    assert questions.take(3) == [first, second]
    questions.answered([first, second], [b"1"], 3)
    assert client.told == [(b"1", 3)]
    assert questions.take(9) == [second, later], "what was not asked is asked next"
    questions.answered([second, later], [b"2", b"3"], 9)
    assert client.told[1:] == [(b"2", 9), (b"3", 9)]
    full.is_full = False
    assert [each.owner for each in questions.take(9)] == [full]


def test_who_has_gone_or_waited_too_long_is_not_answered() -> None:
    questions, goes, waits = Questions(), Client(), Client()
    early, late = question(waits, deadline_ms=10.0), question(waits, 99)
    for each in (question(goes), question(goes, 99), early, late):
        questions.add(each)
    ready = questions.take(0)
    assert len(ready) == 2
    questions.discard(goes)
    assert questions.expire(9.0) == []
    assert questions.expire(10.0) == [early]
    questions.answered(ready, [b"", b""], 0)
    assert not goes.told and not waits.told
    assert questions.expire(1_000.0) == [late]
    assert not questions
