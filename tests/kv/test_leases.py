"""What a client believes of its lease, where members answer late or say nothing."""

from __future__ import annotations

import asyncio
from typing import cast
from unittest import mock

import pytest

from quorumlog.errors import Forbidden, LedgerError
from quorumlog.kv.client import leasing
from quorumlog.kv.client.asking import Asking
from quorumlog.kv.client.leasing import Lease
from quorumlog.kv.requests import CommandRequest, GrantAnswer, Request

TTL_S = 0.6


class Member:
    """It keeps every lease alive, after so long by `clock`."""

    timeout_ms = 10_000
    is_closed = False

    def __init__(self, *, answers_after_s: float) -> None:
        self.now_s = 0.0
        self._answers_after_s = answers_after_s
        self.refusal: LedgerError | None = None

    def clock(self, number: int) -> float:
        return self.now_s

    async def call(self, request: Request, *rest: object, **options: object) -> tuple[int, object]:
        if self.refusal is not None:
            raise self.refusal
        is_command = isinstance(request, CommandRequest)
        self.now_s += self._answers_after_s
        return 1, GrantAnswer(7, int(TTL_S * 1000)) if is_command else [int(TTL_S * 1000)]


def lease_of(member: Member) -> asyncio.Future[Lease]:
    return asyncio.ensure_future(Lease.grant(cast(Asking, member), TTL_S))


def a_lease_counts_from_when_a_keep_alive_was_sent() -> None:
    async def story() -> None:
        member = Member(answers_after_s=0.25)
        with mock.patch.object(leasing, "time") as time:
            time.clock_gettime.side_effect = member.clock
            lease = await lease_of(member)
            assert member.now_s == 0.25 and lease.is_alive
            await lease.keep_alive_once()
            assert member.now_s == 0.5 and lease.is_alive
            member.now_s = 0.25 + TTL_S
            assert not lease.is_alive

    asyncio.run(story())


def test_a_lease_that_may_not_be_kept_alive_any_more_is_lost() -> None:
    """At once, and it says why."""

    async def story() -> None:
        member = Member(answers_after_s=0.0)
        with mock.patch.object(leasing, "KEEP_ALIVES_PER_TTL", 1e6):
            lease = await lease_of(member)
            member.refusal = Forbidden("user bob may not write any key")
            lease.keep_alive()
            async with asyncio.timeout(30):
                await lease.lost.wait()
            assert member.now_s == 0.0 and not lease.is_alive
            with pytest.raises(Forbidden):
                lease.check()

    asyncio.run(story())


def a_lease_is_lost_when_it_may_have_ended() -> None:
    """Nobody keeps it alive; and who comes too late with that does not have it back."""

    async def story() -> None:
        lease = await lease_of(Member(answers_after_s=0.0))
        async with asyncio.timeout(30):
            await lease.lost.wait()
        assert await lease.keep_alive_once() == 1000 * TTL_S
        assert lease.lost.is_set() and not lease.is_alive

    asyncio.run(story())


def test_a_lease_counts_from_when_a_keep_alive_was_sent() -> None:
    a_lease_counts_from_when_a_keep_alive_was_sent()


def test_a_lease_is_lost_when_it_may_have_ended() -> None:
    a_lease_is_lost_when_it_may_have_ended()
