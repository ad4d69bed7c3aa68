"""Sends that are put together are answered, whatever becomes of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from quorumlog.broker.broker_port import PutQueue
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.store.log_files import PutRequest
from quorumlog.errors import OutcomeUnknown, PendingFull, StoreFailure


class FailingLog:
    """It answers the first, then fails."""

    def put(self, requests: Sequence[PutRequest]) -> None:
        requests[0].done(PendingFull("full"))
        raise StoreFailure("the disk is gone")


def test_who_has_sent_is_told_where_the_store_fails() -> None:
    """They waited until their time was up, and what they held was never given back."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        raised: list[Any] = []
        loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
        log: Any = FailingLog()
        puts = PutQueue(log, loop)
        answers: list[Any] = []
        for _ in range(3):
            puts.add(RecordBatch.contiguous(b"", []), True, answers.append)
        while len(answers) < 3:
            await asyncio.sleep(0)
        assert isinstance(answers[0], PendingFull)
        for each in answers[1:]:
            assert isinstance(each, OutcomeUnknown)
            assert "the disk is gone" in str(each)
        assert puts._pending_bytes == 0
        assert [type(each) for each in raised] == [StoreFailure], "whoever watches the store hears of it"

    asyncio.run(asyncio.wait_for(scene(), 10))
