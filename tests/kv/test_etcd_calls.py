"""Calls of etcd's clients: which the member's own store answers, and which go on to another one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.kv.etcd.calls import ForwardedCalls, LocalCalls
from quorumlog.kv.requests import (
    AnswerResponse,
    CommandRequest,
    Put,
    PutAnswer,
    QuestionRequest,
    Range,
    RangeAnswer,
    Request,
    done,
    encode,
)

OWN_REVISION, OTHER_REVISION = 10, 11


class Leader:
    """A store that leads, and answers with its own revision; and the stores of all members."""

    leads = True

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.forwarded: list[Request] = []
        self.seen_revision = OTHER_REVISION
        quotas = SimpleNamespace(refusal_of_connection=lambda calls: None, enter=lambda calls: None)
        self.access = SimpleNamespace(quotas=quotas)
        self.asking = self
        carrier = SimpleNamespace(meter=None, next_number=lambda: len(self.asked) + 1)
        client: Any = SimpleNamespace(asking=self)
        self.calls = LocalCalls(self, ForwardedCalls(client), carrier, "")  # type: ignore[arg-type]

    def session_of(self, connection: Any) -> Any:
        return SimpleNamespace(frame=self._frame)

    def _frame(self, frame: Any) -> None:
        request = frame.message
        self.asked.append(request)
        answer = PutAnswer() if isinstance(request, CommandRequest) else RangeAnswer()
        response = AnswerResponse(request_id=request.request_id, answer=done(OWN_REVISION, answer))
        self.calls.send("", response)

    async def call(self, request: Request, answer: Any, *, target: Any) -> tuple[int, Any]:
        self.forwarded.append(request)
        return OTHER_REVISION, answer()


@pytest.mark.parametrize("is_command", [True, False])
def test_a_command_that_was_carried_out_is_not_sent_to_another_member_too(is_command: bool) -> None:
    """Its answer may be late: another member has led meanwhile, and answered at a later revision."""
    store = Leader()
    command = CommandRequest(command=encode(Put(b"a", b"1")))
    question = QuestionRequest(question=encode(Range(b"a")))
    request: Request = command if is_command else question
    answer: Any = PutAnswer if is_command else RangeAnswer
    revision, _ = asyncio.run(store.calls.call(request, answer))
    assert len(store.asked) == 1
    assert store.forwarded == ([] if is_command else [request]), "what is read never goes back"
    assert revision == (OWN_REVISION if is_command else OTHER_REVISION)
    assert store.seen_revision == OTHER_REVISION
