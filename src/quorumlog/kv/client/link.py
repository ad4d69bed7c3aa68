"""Link: one connection to a member's store. What a turn of the loop sends leaves in one write."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

import msgspec

from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation, Unreachable
from quorumlog.kv.requests.messages import (
    GROUP,
    CancelRequest,
    Request,
    Response,
    response_decoder,
)
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import Challenge, Hello, HelloResponse

PING_S = 1.0
"""While something is waited for, so often it is asked whether anybody is there."""
GRACE_S = 0.1
Told = Callable[[Response], None]
Answer = Response | HelloResponse | Challenge
_GREETING = 0
"""In the place of the id of a request; another one of it asks whether anybody is there."""


class LinkLost(Exception):
    """The connection has ended: what was asked on it may have happened."""


class Link(asyncio.BufferedProtocol):
    def __init__(self, address: str) -> None:
        self.address = address
        self.member_id = ""
        self._decoder = response_decoder()
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._streams: dict[int, Told] = {}
        self._number = 0
        self._out: list[Buffer] = []
        self._unheard_s: float | None = None
        """Since when a ping is without an answer, or any other word."""
        self._pings: asyncio.TimerHandle | None = None
        self.unready_since_s: float | None = None
        """Since when this member has refused everything, since it knows no leader."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.violation: ProtocolViolation | None = None
        """What came in, and is said by no member."""

    @classmethod
    async def open(cls, host: str, port: int) -> Link:
        """Raises Unreachable."""
        loop = asyncio.get_running_loop()
        address = f"{host}:{port}"
        try:
            _, link = await loop.create_connection(lambda: cls(address), host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise Unreachable(f"no key-value store answers at {address}: {reason}") from None
        return link

    @property
    def is_up(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # ---------------------------------------------------------------- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._unheard_s = None
        try:
            for _, message, _ in self._decoder.buffer_updated(nbytes):
                self._received(cast(Answer, message))
        except ProtocolViolation as violation:
            self.violation = violation
            self.close()

    def _received(self, message: Answer) -> None:
        number = message.request_id
        asked = self._asked.pop(number, None)
        if asked is not None:
            if not asked.done():
                asked.set_result(message)
        elif number in self._streams and not isinstance(message, HelloResponse | Challenge):
            self._streams[number](message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._pings is not None:
            self._pings.cancel()
        asked, self._asked = self._asked, {}
        for each in asked.values():
            if not each.done():
                each.set_exception(LinkLost(self.address))
        self._streams.clear()
        if not self.lost.done():
            self.lost.set_result(None)

    # ---------------------------------------------------------------- asking

    def greet(self, hello: Hello) -> asyncio.Future[Answer]:
        """Raises LinkLost; its future, too."""
        return self._ask(msgspec.structs.replace(hello, request_id=_GREETING))

    def ask(self, request: Request) -> asyncio.Future[Answer]:
        """`request` gets its id here. Raises LinkLost; its future, too."""
        return self._ask(msgspec.structs.replace(request, request_id=self._next()))

    def _ask(self, request: Hello | Request) -> asyncio.Future[Answer]:
        if not self.is_up:
            raise LinkLost(self.address)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[request.request_id] = answered
        self._send(request)
        return answered

    def stream(self, request: Request, told: Told) -> int:
        """`told` gets whatever comes for it, until the link is lost or `forget` is called."""
        number = self._next()
        self._streams[number] = told
        self._send(msgspec.structs.replace(request, request_id=number))
        return number

    def forget(self, number: int) -> None:
        if self._streams.pop(number, None) is not None and self.is_up:
            self._send(CancelRequest(request_id=self._next(), watch=number))

    def _next(self) -> int:
        if not self.is_up:
            raise LinkLost(self.address)
        self._number += 1
        return self._number

    def _send(self, message: Hello | Request) -> None:
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += encode_frame(GROUP, message)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def keep_watch(self, hello: Hello, silence_s: float) -> None:
        """From now on: who waits here while nobody says a word for so long is told that it is lost. A
        machine that has gone, or stands still, closes nothing."""
        loop = asyncio.get_running_loop()

        def look(*, is_last: bool = False) -> None:
            now_s = loop.time()
            if self._unheard_s is not None and now_s - self._unheard_s >= silence_s:
                if not is_last:
                    # It may be this process that stood still: what has come meanwhile is read first.
                    self._pings = loop.call_later(GRACE_S, partial(look, is_last=True))
                elif self._transport is not None:
                    self._transport.abort()
                return
            if self._unheard_s is None and (self._asked or self._streams):
                self._unheard_s = now_s
                with suppress(LinkLost):
                    self.greet(hello).add_done_callback(_ignored)
            self._pings = loop.call_later(PING_S, look)

        self._pings = loop.call_later(PING_S, look)


def _ignored(answered: asyncio.Future[Answer]) -> None:
    """A loss is told to whoever waits for something."""
    if not answered.cancelled():
        answered.exception()
