"""A server that does not answer to a connection is dialled again, and not once more each time."""

from __future__ import annotations

import asyncio

import pytest

from quorumlog.client.async_client import AsyncLedgerClient
from quorumlog.errors import Unreachable
from quorumlog.net.rpc.timings import Timings


def test_a_dial_that_is_given_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[int] = [0]
    most: list[int] = []

    async def never(*_: object, **__: object) -> None:
        under_way[0] += 1
        most.append(under_way[0])
        try:
            await asyncio.Event().wait()
        finally:
            under_way[0] -= 1

    async def run() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
        timings = Timings(connect_timeout_ms=10, tick_ms=5)
        async with AsyncLedgerClient("127.0.0.1:1", timeout_ms=500, timings=timings) as client:
            with pytest.raises(Unreachable):
                await client.end_index()

    asyncio.run(run())
    assert len(most) > 1
    assert set(most) == {1}
    assert under_way == [0]
