"""What a producer and a client make of outcomes that nobody knows, and of the end of a session."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from quorumlog.broker.client import async_producer
from quorumlog.broker.client.async_broker_client import AsyncBrokerClient
from quorumlog.broker.client.async_producer import AsyncProducer
from quorumlog.broker.client.broker_calls import BrokerCalls, Encoded, UniqKeys, encode_messages
from quorumlog.broker.message import Message
from quorumlog.broker.wire import (
    GROUP,
    OpenSessionRequest,
    OpenSessionResponse,
    SendResponse,
    SessionSendRequest,
    SessionSendResponse,
)
from quorumlog.errors import LedgerError, OutcomeUnknown, ProducerExpired, ProducerFenced, RequestTimeout
from quorumlog.net.frame import Frame
from quorumlog.net.rpc.calls import Call, CallState

UNKNOWN = OutcomeUnknown("the connection ended")
STORED = SessionSendResponse(queue_offsets=b"", positions=b"", store_time_ms=1)


def opened(epoch: int, last_sequence: int) -> OpenSessionResponse:
    return OpenSessionResponse(opened=True, epoch=(epoch, 1), last_sequence=last_sequence)


class Link:
    """Answers in this order."""

    own_host = bytes(8)

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def call(self, message: Any, encoded: Encoded | None = None, wait_ms: int = 0) -> Frame:
        self.asked.append(message)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Frame(GROUP, answer, None)

    ask = BrokerCalls.ask


def outcomes(link: Link, producer: AsyncProducer, sends: int) -> list[object]:
    """Of one send after the other: whether it was stored, or why not."""
    encoded = encode_messages([Message("t", b"1")], 0, UniqKeys(), bytes(8))
    producer._link = cast(Any, link)

    async def run() -> list[object]:
        found: list[object] = []
        for _ in range(sends):
            try:
                found.append((await producer.send_encoded(encoded)).message_count)
            except LedgerError as error:
                found.append(type(error))
        return found

    return asyncio.run(run())


def test_who_was_fenced_does_not_come_back_by_an_unknown_outcome() -> None:
    other = OpenSessionResponse(opened=False, epoch=(9, 1), last_sequence=4)
    link = Link(opened(1, -1), UNKNOWN, other, other)
    found = outcomes(link, AsyncProducer("a:1", producer_id="p"), 3)
    assert found == [OutcomeUnknown, ProducerFenced, ProducerFenced]
    assert [each.ends for each in link.asked if isinstance(each, OpenSessionRequest)] == [
        None,
        (1, 1),
        (1, 1),
    ]


def test_behind_an_unknown_outcome_another_epoch_begins_under_one_token() -> None:
    link = Link(opened(1, -1), UNKNOWN, RequestTimeout("late"), opened(5, 0), STORED)
    found = outcomes(link, AsyncProducer("a:1", producer_id="p"), 3)
    assert found == [OutcomeUnknown, RequestTimeout, 1]
    _, tried, repeated = [each for each in link.asked if isinstance(each, OpenSessionRequest)]
    assert (tried.token, tried.ends) == (repeated.token, repeated.ends)
    sent = link.asked[-1]
    assert isinstance(sent, SessionSendRequest) and (sent.epoch, sent.sequence) == ((5, 1), 1)


@pytest.mark.parametrize("producer_id", ["", "p"])
def test_whose_session_is_forgotten_begins_anew_once_it_was_told(producer_id: str) -> None:
    link = Link(opened(1, -1), UNKNOWN, ProducerExpired("forgotten"), opened(5, -1), STORED)
    found = outcomes(
        link, AsyncProducer("a:1", idempotent=True, producer_id=producer_id), 2 + bool(producer_id)
    )
    assert found == [OutcomeUnknown, *[ProducerExpired] * bool(producer_id), 1]


def test_what_waits_behind_an_error_of_any_kind_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_producer, "BATCH_MESSAGES", 1)
    stored = SendResponse(queue_offset=0, physical_offset=0, message_count=1, store_time_ms=1)
    encoded = encode_messages([Message("t", b"1")], 0, UniqKeys(), bytes(8))

    async def run() -> None:
        producer = AsyncProducer("a:1")
        producer._link = cast(Any, Link(RuntimeError("of whatever kind"), stored))
        sends = [asyncio.ensure_future(producer.send_encoded(encoded)) for _ in range(2)]
        first, second = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 5)
        assert isinstance(first, RuntimeError) and not isinstance(second, BaseException)

    asyncio.run(run())


def test_two_tasks_may_close_a_client_that_has_something_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        client, calls = AsyncBrokerClient("a:1"), list[Call]()
        monkeypatch.setattr(client._calls, "submit_at_end", calls.extend)
        send = asyncio.ensure_future(client.send(Message("t", b"1"), queue_id=0))
        while not calls:
            await asyncio.sleep(0)
        closing = [asyncio.ensure_future(client.close()) for _ in range(2)]
        for _ in range(4):
            await asyncio.sleep(0)
        (call,) = calls
        call.state, call.error = CallState.DONE, UNKNOWN
        assert call.on_done is not None
        call.on_done(call)
        await asyncio.wait_for(asyncio.gather(*closing), 5)
        assert isinstance(send.exception(), OutcomeUnknown)

    asyncio.run(run())
