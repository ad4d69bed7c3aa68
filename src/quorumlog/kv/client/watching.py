"""Watching: changes from a revision on, without a gap, from any member."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, Self

import msgspec

from quorumlog.errors import LedgerError, ProtocolViolation, Unreachable
from quorumlog.kv.client.asking import Asking
from quorumlog.kv.client.values import Change, V, Values
from quorumlog.kv.errors import InvalidRequest, ValueUnreadable
from quorumlog.kv.old_spellings import takes_seconds
from quorumlog.kv.requests import Event, EventsResponse, WatchRequest, checked
from quorumlog.net.rpc.calls import Call
from quorumlog.wire.client_message import ClientMessage

_EVENT_BYTES = 64
"""Bytes counted for an event besides its keys and values."""
MOST_HELD_BYTES = 16 << 20
"""Above these bytes no more is received until half is returned; a member keeps the rest as history."""


class Watching(Generic[V]):
    """An iterator of changes, and a context manager that ends it. It resumes at a new leader after the
    last change received: none is lost, none is repeated. Raises Compacted if history begins above it,
    ClusterChanged after a restore, and ValueUnreadable, after which it continues after that value."""

    def __init__(
        self,
        asking: Asking,
        values: Values[V],
        request: WatchRequest,
        most_held_bytes: int | None = None,
        holds: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        """`holds` is called with the bytes held, whenever they change. Raises InvalidRequest."""
        request = checked(request)
        if not request.key:
            raise InvalidRequest("a key is at least one byte")
        self._asking = asking
        self._values = values
        self._request = request
        # The member may not have come as far as another one that was asked before.
        self._received = request.first_revision or asking.seen_revision + 1
        """Every change below was received."""
        self._batches: deque[tuple[list[Event], int]] = deque()
        """Received events, and their size in bytes."""
        self._held_bytes = 0
        self._most_held_bytes = most_held_bytes or MOST_HELD_BYTES
        self._holds = holds
        self._left: deque[Change[V]] = deque()
        """Changes of the batch that is being returned."""
        self._news = asyncio.Event()
        self._failure: LedgerError | None = None
        self._began = asyncio.Event()
        self._is_closed = False
        self._call: Call | None = None
        """None: no more is received."""
        self._open(request)

    @property
    def next_revision(self) -> int:
        """Every change below was returned. An application may store it and resume there later; while
        some changes of a revision are not returned yet, it is that revision."""
        received = self._received  # before the others: what comes meanwhile lies in them by then
        if self._left:
            return self._left[0].revision
        return self._batches[0][0][0].kv.mod_revision if self._batches else received

    # ---------------------------------------------------------------- what comes

    def _open(self, request: WatchRequest) -> None:
        self._call = self._asking.watch(request, self._on_message, self._ended)
        if self._call.is_done:
            self._ended(self._call)

    def _left_off(self) -> WatchRequest:
        return msgspec.structs.replace(self._request, first_revision=self._received)

    def _on_message(self, message: ClientMessage) -> None:
        if not isinstance(message, EventsResponse):
            raise ProtocolViolation(f"{type(message).__name__} for a watch")
        fresh = [event for event in message.events if event.kv.mod_revision >= self._received]
        self._received = max(self._received, message.next_revision)
        assert self._call is not None
        self._call.message = self._left_off()
        self._began.set()
        if fresh:
            size_bytes = sum(map(_size_bytes, fresh))
            self._batches.append((fresh, size_bytes))
            self._held_bytes += size_bytes
            self._news.set()
            self._holds(self._held_bytes)
            if self._held_bytes > self._most_held_bytes:
                self._forget()

    def _forget(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            self._asking.cancel(call)

    def _ended(self, call: Call) -> None:
        if call is self._call and call.error is not None:
            self._fail(call.error)

    def _fail(self, error: LedgerError) -> None:
        self._failure = self._failure or error
        self._began.set()
        self._news.set()

    # ---------------------------------------------------------------- what is given

    async def began(self) -> None:
        """Returns once a member serves it: later changes are delivered. Raises Unreachable if none does
        in the client's time-out."""
        await self._began.wait()
        if self._failure is not None and not self._batches:
            raise self._failure

    @takes_seconds
    async def batch(self, *, timeout_ms: float | None = None) -> list[Change[V]]:
        """At least one change; all changes of a revision come together. Raises TimeoutError if none
        comes in `timeout_ms`, and the errors of its class."""
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            await self._fill()
        changes = list(self._left)
        self._left.clear()
        return changes

    async def _fill(self) -> deque[Change[V]]:
        """Wait until there is at least one change to return, which the caller removes."""
        while not self._left:
            while not self._batches:
                if self._failure is not None:
                    raise self._failure
                self._news.clear()
                await self._news.wait()
            self._take(*self._batches.popleft())
        return self._left

    def _take(self, events: list[Event], size_bytes: int) -> None:
        """The next changes. Raises ValueUnreadable; the next call returns the changes after that
        value."""
        for place, event in enumerate(events):
            try:
                change = self._values.change(event)
            except ValueUnreadable:
                # Those before it are given first.
                rest = events[place + (not self._left) :]
                if rest:
                    self._batches.appendleft((rest, size_bytes))
                    size_bytes = 0
                self._taken(size_bytes)
                if self._left:
                    return
                raise
            if change is not None:
                self._left.append(change)
        self._taken(size_bytes)

    def _taken(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._holds(self._held_bytes)
        is_low = self._held_bytes <= self._most_held_bytes // 2
        if self._call is None and not self._is_closed and is_low:
            self._open(self._left_off())

    async def __aiter__(self) -> AsyncIterator[Change[V]]:
        while True:
            yield (await self._fill()).popleft()

    async def close(self) -> None:
        """End the watch: a waiting caller gets Unreachable. May be repeated."""
        self._is_closed = True
        self._forget()
        self._fail(Unreachable("the watch is closed"))

    async def __aenter__(self) -> Self:
        try:
            await self.began()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _size_bytes(event: Event) -> int:
    items = (event.kv, event.prev_kv)
    return _EVENT_BYTES + sum(len(kv.key) + len(kv.value) for kv in items if kv is not None)
