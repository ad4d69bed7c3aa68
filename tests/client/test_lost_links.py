"""A connection that is lost in the very turn of the loop in which something is to be written on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from quorumlog.client import AsyncLedgerClient
from tests.client.fake_server import FakeGroup
from tests.client.test_read import fill


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_link_that_is_lost_before_it_is_written_on_is_no_error_of_the_client(
    group: FakeGroup, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    fill(group, 3)
    raised: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
        async with AsyncLedgerClient(group.addresses, timeout_ms=5000) as client:
            await client.get(1)
            for link in client._protocol._links.all():
                if link.context is not None:
                    link.context.abort()
            # Submitted at once; the loss is told in the next turn, in front of the writing.
            assert (await client.get(2)).index == 2

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
    assert not raised
