"""Bare connections: clients without error handling.

Hundreds of full clients in one Python process would measure that process. These send real frames, with
no retries and no routing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self, TypeVar, cast

from quorumlog.batch import EntryBatch
from quorumlog.bench.running_group import RunningGroup
from quorumlog.config import parse_address
from quorumlog.errors import LedgerError, Unreachable
from quorumlog.net.credentials import Proof, user_of_clients
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import AnyFrameMessage, FrameDecoder, encode_frame
from quorumlog.net.hello import Challenge, ChallengeResponse, Hello, HelloResponse
from quorumlog.net.tls import tls_of_clients
from quorumlog.wire.client_messages import AppendRequest, AppendResponse


class RawConnection(asyncio.BufferedProtocol):
    """One connection of a client, greeted by `connect`."""

    def __init__(self, group: str) -> None:
        self._group = group
        user = user_of_clients()
        self._proof = None if user is None else Proof(user)
        hello = Hello(role="client", user="" if user is None else user.name)
        self._hello = b"".join(encode_frame(group, hello))
        self._decoder = FrameDecoder()
        self.get_buffer = self._decoder.get_buffer  # type: ignore[method-assign]
        self._transport: asyncio.Transport
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self, address: str) -> Self:
        """Raises the LedgerError with which the server refuses."""
        host, port = parse_address(address)
        tls = tls_of_clients()
        await asyncio.get_running_loop().create_connection(
            lambda: self, host, port, ssl=None if tls is None else tls.context
        )
        await self.greeted
        return self

    def close(self) -> None:
        self._transport.close()

    def _answered(self, message: AnyFrameMessage) -> None:
        raise NotImplementedError

    def _fail(self, error: LedgerError) -> None:
        _fail(self.greeted, error)

    # ---------------------------------------------------------------- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._hello)

    def buffer_updated(self, nbytes: int) -> None:
        for _, message, *_ in self._decoder.buffer_updated(nbytes):
            if self.greeted.done():
                self._answered(message)
            elif isinstance(message, HelloResponse):
                self.greeted.set_result(None)
            elif isinstance(message, Challenge) and self._proof is not None:
                answer = ChallengeResponse(data=self._proof.answer(message))
                self._transport.write(b"".join(encode_frame(self._group, answer)))
            elif isinstance(message, ErrorResponse):
                self._fail(error_of(message))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(Unreachable(f"the leader closed a connection: {exc or 'end of stream'}"))


def _fail(future: asyncio.Future[None], error: LedgerError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # nobody may await it any more when another connection failed first


C = TypeVar("C", bound=RawConnection)


@asynccontextmanager
async def leader_connections(
    make: Callable[[], C], count: int, group: RunningGroup
) -> AsyncIterator[list[C]]:
    """So many connections to the leader; all are open before the first is used."""
    leader = await group.leader_address()
    connections = await asyncio.gather(*(make().connect(leader) for _ in range(count)))
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


class RawWriter(RawConnection):
    """Appends the same body, one request at a time, from `start` until it `is_over` after an answer;
    `on_answer(sent_s)` for each. Any other answer than an AppendResponse ends the measurement."""

    def __init__(self, group: str, body: bytes) -> None:
        super().__init__(group)
        append = encode_frame(group, AppendRequest(request_id=1), EntryBatch.from_bodies([body]))
        self._append = b"".join(append)
        self._on_answer: Callable[[float], None]
        self._is_over: Callable[[], bool]
        self._sent_s = 0.0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(
        self, is_over: Callable[[], bool], on_answer: Callable[[float], None]
    ) -> asyncio.Future[None]:
        self._is_over = is_over
        self._on_answer = on_answer
        self._send()
        return self._done

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(self._append)

    def _answered(self, message: AnyFrameMessage) -> None:
        if isinstance(message, AppendResponse):
            self._on_answer(self._sent_s)
            if not self._is_over():
                self._send()
            elif not self._done.done():
                self._done.set_result(None)
        elif isinstance(message, ErrorResponse):
            self._fail(error_of(message))

    def _fail(self, error: LedgerError) -> None:
        super()._fail(error)
        _fail(self._done, error)
