"""Who waits for a change hears of the end of the watch, and of that of its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from quorumlog.errors import Unreachable
from quorumlog.kv.client.asking import Asking
from quorumlog.kv.client.values import Values, codec_of
from quorumlog.kv.client.watching import Watching
from quorumlog.kv.requests import Event, EventsResponse, KeyValue, WatchRequest
from quorumlog.net.rpc.calls import LEADER_OR_ANY, Call, CallState


class FakeAsking:
    def __init__(self) -> None:
        self.seen_revision = 0
        self.is_closed = False
        self.tell: Callable[[Any], None]

    def watch(
        self, asked: WatchRequest, told: Callable[[Any], None], ended: Callable[[Call], None]
    ) -> Call:
        call = Call(asked, LEADER_OR_ANY, submitted_ms=0, deadline_ms=0, on_done=ended)
        self.tell = told
        if self.is_closed:
            self.cancel(call)
        return call

    def cancel(self, call: Call) -> None:
        call.state, call.error = CallState.DONE, Unreachable("the client is closed")
        assert call.on_done is not None
        call.on_done(call)


def watching(asking: FakeAsking) -> Watching[bytes]:
    asked, values = WatchRequest(key=b"k"), Values(codec_of("bytes"))
    return Watching(cast(Asking, asking), values, asked, most_held_bytes=1)


def events(revision: int) -> EventsResponse:
    event = Event(KeyValue(b"k", 1, revision, revision, b"v"))
    return EventsResponse(next_revision=revision + 1, events=[event])


def test_close_ends_who_waits_for_a_change() -> None:
    async def run() -> None:
        asking = FakeAsking()
        watch = watching(asking)
        asking.tell(EventsResponse(next_revision=1, events=[]))

        async def iterate() -> None:
            async for _ in watch:
                raise AssertionError("nothing has changed")

        waiting = [asyncio.ensure_future(each) for each in (watch.batch(), iterate())]
        await asyncio.sleep(0)
        await watch.close()
        for each in waiting:
            with pytest.raises(Unreachable, match="the watch is closed"):
                await asyncio.wait_for(each, 5)

    asyncio.run(run())


def test_one_that_holds_too_much_when_its_client_is_closed_ends_behind_that() -> None:
    async def run() -> None:
        asking = FakeAsking()
        watch = watching(asking)
        asking.tell(events(1))
        asking.is_closed = True
        assert [change.revision for change in await watch.batch()] == [1]
        with pytest.raises(Unreachable, match="the client is closed"):
            await asyncio.wait_for(watch.batch(), 5)

    asyncio.run(run())
