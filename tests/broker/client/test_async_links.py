"""What a request came to that was sent more than once."""

from __future__ import annotations

import asyncio
import time

import pytest

from quorumlog.broker.client.async_link import AsyncLinks, Link
from quorumlog.broker.client.broker_verbs import UniqKeys, encode_messages
from quorumlog.broker.errors import TopicNotPermitted
from quorumlog.broker.message import Message
from quorumlog.broker.wire import AnyBrokerMessage, SendRequest, SessionSendRequest
from quorumlog.entry_header import Buffer
from quorumlog.errors import LedgerError, OutcomeUnknown, PendingFull, Unreachable
from quorumlog.net.frame import Frame

IN_SESSION = SessionSendRequest(producer="p", epoch=(1, 1), sequence=0)
REFUSED = TopicNotPermitted("the topic takes no messages")


class ScriptedLinks(AsyncLinks):
    """Whose broker refuses one request after the other, in this order."""

    def __init__(self, *refusals: LedgerError, timeout_ms: int = 1_000) -> None:
        super().__init__("127.0.0.1:1,127.0.0.1:2", timeout_ms)
        self.refusals = list(refusals)

    async def _dial(self, deadline_s: float) -> Link:
        return Link()

    async def _answer(
        self,
        link: Link,
        request_id: int,
        buffers: list[Buffer],
        is_send: bool,
        deadline_s: float,
        wait_ms: int,
    ) -> Frame:
        raise self.refusals.pop(0)

    async def error_of(self, message: AnyBrokerMessage) -> LedgerError:
        encoded = encode_messages([Message("orders", b"1")], 0, UniqKeys(), bytes(8))
        try:
            await self.call(message, encoded)
        except LedgerError as error:
            return error
        raise AssertionError("it was answered")


def test_a_refusal_behind_a_copy_that_may_be_stored_is_no_refusal() -> None:
    links = ScriptedLinks(OutcomeUnknown("the broker is lost"), REFUSED)
    error = asyncio.run(links.error_of(IN_SESSION))
    assert isinstance(error, OutcomeUnknown), error
    assert "takes no messages" in str(error)
    late = ScriptedLinks(OutcomeUnknown("the broker is lost"), PendingFull("full", retry_after_ms=9_999))
    assert isinstance(asyncio.run(late.error_of(IN_SESSION)), OutcomeUnknown)


def test_what_was_certainly_refused_is_told_as_it_is() -> None:
    links = ScriptedLinks(PendingFull("full", retry_after_ms=1), REFUSED)
    assert asyncio.run(links.error_of(IN_SESSION)) is REFUSED


def test_a_plain_send_that_may_be_stored_is_not_sent_again() -> None:
    links = ScriptedLinks(OutcomeUnknown("the broker is lost"), REFUSED)
    assert isinstance(asyncio.run(links.error_of(SendRequest())), OutcomeUnknown)
    assert links.refusals == [REFUSED]


def test_only_a_broker_that_was_asked_may_take_the_time_to_wait_for_something() -> None:
    left_s = []

    class Dialled(ScriptedLinks):
        async def _dial(self, deadline_s: float) -> Link:
            left_s.append(deadline_s - time.monotonic())
            raise Unreachable("nobody listens")

    links = Dialled(timeout_ms=100)
    with pytest.raises(Unreachable):
        asyncio.run(links.call(IN_SESSION, wait_ms=60_000))
    assert max(left_s) <= 0.1
