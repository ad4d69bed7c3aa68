"""Sending the requests of one client, and waiting for their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from quorumlog.client.arguments import milliseconds
from quorumlog.client.protocol.appending import AppendBatcher, JoinedAppends, JoinedOutcome
from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.protocol.client_requests import Request
from quorumlog.errors import BadRequest
from quorumlog.net.io_loop import IoLoop
from quorumlog.net.rpc.calls import LEADER, RequestTarget, response_of
from quorumlog.net.system import now_ms
from quorumlog.wire.client_messages import AnyClientMessage

T = TypeVar("T")
R = TypeVar("R", bound=AnyClientMessage)


class TaskBatcher:
    """Single appends of many tasks, joined: those that begin in one turn of the loop leave at its
    end."""

    def __init__(self, io: IoLoop, *, in_session: bool) -> None:
        self._io = io
        self._batcher = AppendBatcher(in_session=in_session)
        self._is_scheduled = False

    def add(
        self, body: bytes, timeout_ms: float, machine: str = ""
    ) -> tuple[asyncio.Future[JoinedOutcome], JoinedAppends]:
        """The future to await, and the frame to `leave` if that is cancelled."""
        loop = self._io.own_loop.running()
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._send_at_end)
        waiter: asyncio.Future[JoinedOutcome] = loop.create_future()
        return waiter, self._batcher.add(body, timeout_ms, waiter, now_ms(), machine)

    def leave(self, waiter: asyncio.Future[JoinedOutcome], joined: JoinedAppends) -> None:
        if joined.leave(waiter) and joined.request is not None:
            self._io.cancel((joined.request,))

    def send(self) -> None:
        """Send the gathered appends, ahead of the caller's next request."""
        if self._is_scheduled:
            self._io.submit(self._requests())

    def _send_at_end(self) -> None:
        self._is_scheduled = False
        self._io.submit_at_end(self._requests())

    def _requests(self) -> list[Request]:
        # A task that was cancelled in this turn runs, and leaves its frame, only in the next one.
        requests = []
        for joined in self._batcher.take(asyncio.Future.cancelled):
            request = joined.try_to_make_request(asyncio.Future.set_result)
            if request is not None:
                request.on_done = _give
                requests.append(request)
        return requests


def _give(request: Request) -> None:
    joined: JoinedAppends = request.context
    for waiter, outcome in zip(joined.waiters, joined.outcomes(), strict=True):
        if not waiter.done():
            waiter.set_result(outcome)


class Sender:
    def __init__(self, protocol: ClientProtocol, io: IoLoop, timeout_ms: float) -> None:
        self.protocol = protocol
        self._io = io
        self.wait, self.cancel = io.wait, io.cancel
        self.batcher = TaskBatcher(io, in_session=protocol.producer is not None)
        self.timeout_ms = timeout_ms
        """Of a call that is given none."""
        self._is_over = False

    def timeout_ms_of(self, timeout_ms: float | None) -> float:
        """None: that of the client. Raises BadRequest."""
        if timeout_ms is None:
            return self.timeout_ms
        value_ms = milliseconds(timeout_ms)
        if value_ms is None:
            raise BadRequest(f"timeout_ms must be a number of milliseconds, not {timeout_ms!r}")
        return value_ms

    async def ask(
        self,
        message: AnyClientMessage,
        kind: type[R],
        timeout_ms: float | None = None,
        target: RequestTarget = LEADER,
        **options: Any,
    ) -> R:
        request = request_of(message, target, self.timeout_ms_of(timeout_ms), **options)
        return response_of(await self.call(request), kind)

    async def call(self, request: Request) -> Request:
        """Returns it once it is done."""
        self.submit((request,))
        await self.wait(request)
        return request

    def submit(self, requests: Sequence[Request]) -> None:
        if self._is_over:
            for request in requests:
                self.protocol.submit(request, now_ms())
            return
        if requests and requests[0].batch is not None:
            # Among appends, what was begun first is written first.
            self.batcher.send()
        self._io.submit(requests)

    def end(self) -> None:
        """No loop runs any more: what has no outcome yet fails, and so do later requests."""
        self._is_over = True
        self.protocol.close(now_ms())


def request_of(
    message: AnyClientMessage, target: RequestTarget, timeout_ms: float, **options: Any
) -> Request:
    now = now_ms()
    return Request(message, target, submitted_ms=now, deadline_ms=now + timeout_ms, **options)


def at_once(outcome: Coroutine[Any, Any, T]) -> T:
    """Its result, for which it has nothing to wait for. Any thread."""
    try:
        outcome.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError(f"{outcome} waits")
