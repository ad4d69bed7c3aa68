"""Single appends of many tasks, joined: those that begin in one turn of the loop leave at its end."""

from __future__ import annotations

import asyncio

from quorumlog.client.protocol.appending import AppendJoiner, JoinedAppends, Outcome
from quorumlog.client.protocol.client_requests import Request
from quorumlog.net.io_loop import IoLoop
from quorumlog.net.system import now_ms


class TaskJoiner:
    def __init__(self, io: IoLoop, *, in_session: bool) -> None:
        self._io = io
        self._joiner = AppendJoiner(in_session=in_session)
        self._is_scheduled = False

    def add(
        self, body: bytes, timeout_ms: float, machine: str = ""
    ) -> tuple[asyncio.Future[Outcome], JoinedAppends]:
        """What to await, and the frame to `leave` if that is cancelled."""
        loop = self._io.own_loop.running()
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._send_at_end)
        waiter: asyncio.Future[Outcome] = loop.create_future()
        return waiter, self._joiner.add(body, timeout_ms, waiter, now_ms(), machine)

    def leave(self, waiter: asyncio.Future[Outcome], joined: JoinedAppends) -> None:
        if joined.leave(waiter) and joined.request is not None:
            self._io.cancel((joined.request,))

    def send(self) -> None:
        """What has gathered, ahead of what its caller submits next."""
        if self._is_scheduled:
            self._io.submit(self._requests())

    def _send_at_end(self) -> None:
        self._is_scheduled = False
        self._io.submit_at_end(self._requests())

    def _requests(self) -> list[Request]:
        # A task that was cancelled in this turn runs, and leaves its frame, only in the next one.
        ready = self._joiner.take(asyncio.Future.cancelled)
        requests = [joined.try_to_make_request(asyncio.Future.set_result) for joined in ready]
        return [_told(request) for request in requests if request is not None]


def _told(request: Request) -> Request:
    request.on_done = _give
    return request


def _give(request: Request) -> None:
    joined: JoinedAppends = request.context
    for waiter, outcome in zip(joined.waiters, joined.outcomes(), strict=True):
        if not waiter.done():
            waiter.set_result(outcome)
