"""Watching: changes from a revision on, without a gap, whichever member tells them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from quorumlog.errors import LedgerError
from quorumlog.kv.client.link import Link, LinkLost
from quorumlog.kv.client.router import RETRY_S, Router
from quorumlog.kv.client.values import Change, Values
from quorumlog.kv.errors import error_of
from quorumlog.kv.requests.answers import Event
from quorumlog.kv.requests.frames import Kind, Watch
from quorumlog.kv.requests.operations import encode

_events = msgspec.msgpack.Decoder(tuple[int, list[Event]])
_ended = msgspec.msgpack.Decoder(tuple[int, str, int])
FOREVER_S = 1e9


class Watching:
    """An asynchronous iterator of changes, and a context manager that ends it. A new leader is asked for
    what follows the last change that was told: none is lost, none comes twice. Raises Compacted where
    history ends above it, ClusterChanged after a restore."""

    def __init__(self, router: Router, values: Values, asked: Watch) -> None:
        self._router = router
        self._values = values
        self._asked = asked
        self.next_revision = asked.first_revision
        """Every change below was told. Kept by an application, it goes on from there later."""
        self._batches: deque[list[Change]] = deque()
        self._news = asyncio.Event()
        self._failure: LedgerError | None = None
        self._link: Link | None = None
        self._number = 0
        self._began = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            try:
                link = await self._router.link(time.monotonic() + FOREVER_S)
                asked = msgspec.structs.replace(self._asked, first_revision=self.next_revision)
                self._number = link.stream(Kind.WATCH, encode(asked), self._told)
                self._link = link
                await asyncio.shield(link.lost)
            except LinkLost:
                await asyncio.sleep(RETRY_S)
            except LedgerError as error:
                self._fail(error)
                return

    def _told(self, kind: Kind, body: bytes) -> None:
        if kind is Kind.EVENTS:
            next_revision, events = _events.decode(body)
            changes = [
                self._values.change(event)
                for event in events
                if event.kv.mod_revision >= self.next_revision
            ]
            self.next_revision = max(self.next_revision, next_revision)
            self._began.set()
            if changes:
                self._batches.append(changes)
                self._news.set()
        elif kind is Kind.ENDED:
            self._fail(error_of(*_ended.decode(body)))
            self._task.cancel()

    def _fail(self, error: LedgerError) -> None:
        self._failure = error
        self._began.set()
        self._news.set()

    async def began(self) -> None:
        """Returns once a member follows it: later changes are told."""
        await self._began.wait()
        if self._failure is not None:
            raise self._failure

    async def batch(self) -> list[Change]:
        """At least one change; all changes of a revision come together."""
        while not self._batches:
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        return self._batches.popleft()

    async def __aiter__(self) -> AsyncIterator[Change]:
        while True:
            for change in await self.batch():
                yield change

    async def close(self) -> None:
        self._task.cancel()
        if self._link is not None and self._link.is_up:
            self._link.forget(self._number)

    async def __aenter__(self) -> Watching:
        await self.began()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
