"""RawWriter: one connection that appends the same body again and again, one request at a time.

Hundreds of full clients in one Python process would measure that process. This is what is left of a
client when nothing goes wrong: real frames over a socket of its own, encoded once, no retries, no
routing. Whatever is not an AppendResponse ends the measurement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from quorumlog.batch import EntryBatch
from quorumlog.config import parse_address
from quorumlog.errors import LedgerError, Unreachable
from quorumlog.wire.client_messages import (
    AppendRequest,
    AppendResponse,
    ErrorResponse,
    Hello,
    HelloResponse,
    error_of,
)
from quorumlog.wire.framing import FrameDecoder, encode_frame


class RawWriter(asyncio.BufferedProtocol):
    """Appends from `start` until `ends_s` of `perf_counter`; `on_answer(sent_s)` for each answer."""

    def __init__(self, group: str, body: bytes) -> None:
        self._hello = b"".join(encode_frame(group, Hello(role="client")))
        append = encode_frame(group, AppendRequest(request_id=1), EntryBatch.from_bodies([body]))
        self._append = b"".join(append)
        self._decoder = FrameDecoder()
        self.get_buffer = self._decoder.get_buffer  # type: ignore[method-assign]
        self._transport: asyncio.Transport
        self._on_answer: Callable[[float], None]
        self._ends_s = 0.0
        self._sent_s = 0.0
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def dial(cls, address: str, group: str, body: bytes) -> RawWriter:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        _, writer = await loop.create_connection(lambda: cls(group, body), host, port)
        await writer.greeted
        return writer

    def start(self, ends_s: float, on_answer: Callable[[float], None]) -> None:
        self._ends_s = ends_s
        self._on_answer = on_answer
        self._send()

    def close(self) -> None:
        self._transport.close()

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self._transport.write(self._append)

    # ---------------------------------------------------------------- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._hello)

    def buffer_updated(self, nbytes: int) -> None:
        for _, message, _ in self._decoder.buffer_updated(nbytes):
            if isinstance(message, AppendResponse):
                self._on_answer(self._sent_s)
                if time.perf_counter() < self._ends_s:
                    self._send()
                elif not self.done.done():
                    self.done.set_result(None)
            elif isinstance(message, HelloResponse) and not self.greeted.done():
                self.greeted.set_result(None)
            elif isinstance(message, ErrorResponse):
                self._fail(error_of(message))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(Unreachable(f"the leader closed a connection: {exc or 'end of stream'}"))

    def _fail(self, error: LedgerError) -> None:
        for future in (self.greeted, self.done):
            if not future.done():
                future.set_exception(error)
                future.exception()  # `done` may never be awaited if greeting failed
