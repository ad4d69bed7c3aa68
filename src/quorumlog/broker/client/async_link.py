"""AsyncLinks: the connection of an asyncio client to the broker, and from there to the next master."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import cast

import msgspec

from quorumlog.broker.client.broker_verbs import (
    Encoded,
    answer_of,
    check_hello,
    frame_of,
    hello,
    lost_outcome,
    own_host,
)
from quorumlog.broker.client.master_route import (
    PROBE_S,
    RETRY_S,
    SLAVE,
    MasterRoute,
    role_request,
)
from quorumlog.broker.wire.broker_framing import broker_decoder, message_of
from quorumlog.broker.wire.broker_messages import AnyBrokerMessage, RoleNotice, SendRequest
from quorumlog.config import parse_address
from quorumlog.entry_header import Buffer
from quorumlog.errors import LedgerError, OutcomeUnknown, ProtocolViolation, Unreachable
from quorumlog.wire.framing import Frame

_Waiting = dict[int, tuple["asyncio.Future[Frame]", bool]]
_ROLE_ID = -1


class Link(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.waiting: _Waiting = {}
        """Answers that are owed, and whether they are those of sends."""
        self.closed = False
        self.is_demoted = False
        """The broker is master no more: what is owed may come, and nothing new is asked for here."""
        self.transport: asyncio.Transport | None = None
        self._decoder = broker_decoder()
        self._out: list[Buffer] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._decoder.buffer_updated(nbytes)
        except ProtocolViolation as violation:
            self.fail(str(violation))
            return
        for frame in frames:
            message = message_of(frame)
            if isinstance(message, RoleNotice):
                self.is_demoted = self.is_demoted or message.role == SLAVE
                continue
            answer, _ = self.waiting.pop(message.request_id, (None, False))
            if answer is not None and not answer.done():
                answer.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail("the broker closed the connection" if exc is None else f"the broker is lost: {exc}")

    def fail(self, what: str) -> None:
        self.closed = True
        waiting, self.waiting = self.waiting, {}
        for answer, is_send in waiting.values():
            if not answer.done():
                answer.set_exception(lost_outcome(what, is_send=is_send))
        if self.transport is not None:
            self.transport.abort()

    def write(self, buffers: list[Buffer]) -> None:
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out += buffers

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(out)

    async def ask(self, request_id: int, buffers: list[Buffer], *, is_send: bool = False) -> Frame:
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.waiting[request_id] = (answer, is_send)
        self.write(buffers)
        try:
            return await answer
        finally:
            self.waiting.pop(request_id, None)


class AsyncLinks:
    def __init__(self, servers: str, timeout_s: float) -> None:
        """Raises ConfigError."""
        self._route = MasterRoute(servers)
        self._timeout_s = timeout_s
        self._link: Link | None = None
        self._dial_lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._probe: asyncio.Task[None] | None = None
        self.own_host = bytes(8)

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
        if self._link is not None and self._link.transport is not None:
            self._link.transport.close()
        await asyncio.sleep(0)

    def _usable(self) -> Link | None:
        link = self._link
        return None if link is None or link.closed or link.is_demoted else link

    async def connected(self) -> Link:
        """Raises Unreachable."""
        return self._usable() or await self._dial(time.monotonic() + self._timeout_s)

    async def _dial(self, deadline_s: float) -> Link:
        async with self._dial_lock:
            while True:
                link = self._usable()
                if link is not None:
                    return link
                left_s = deadline_s - time.monotonic()
                try:
                    link = await self._open(self._route.address, max(left_s, 0.001))
                    if not self._route.follows:
                        self._link = link
                        return link
                    if self._route.is_master(await self._asked(link, left_s)):
                        self._link = link
                        return link
                    link.fail("it is no master")
                    refused: Exception = Unreachable("none of the brokers is master")
                except (Unreachable, OutcomeUnknown) as error:
                    refused = error
                    self._route.failed()
                if not self._route.follows or time.monotonic() >= deadline_s:
                    raise refused
                await asyncio.sleep(RETRY_S)

    async def _open(self, address: str, timeout_s: float) -> Link:
        host, port = parse_address(address)
        most_s = min(timeout_s, PROBE_S) if self._route.follows else timeout_s
        try:
            async with asyncio.timeout(most_s):
                _, link = await asyncio.get_running_loop().create_connection(Link, host, port)
                try:
                    check_hello(message_of(await link.ask(0, hello())))
                except BaseException:
                    link.fail("it does not greet")
                    raise
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or "it does not answer"
            raise Unreachable(f"no broker at {address}: {reason}") from None
        assert link.transport is not None
        self.own_host = own_host(link.transport.get_extra_info("sockname"))
        return link

    async def _asked(self, link: Link, timeout_s: float) -> Frame:
        try:
            async with asyncio.timeout(min(timeout_s, PROBE_S)):
                return await link.ask(_ROLE_ID, role_request(_ROLE_ID))
        except TimeoutError:
            link.fail("it does not say its role")
            raise Unreachable("a broker does not say its role") from None

    async def call(
        self, message: AnyBrokerMessage, encoded: Encoded | None = None, wait_ms: int = 0
    ) -> Frame:
        """The answer; refusals that are certain are tried again on the next master, as long as there is
        time. Raises what the broker refuses with, OutcomeUnknown of a send, Unreachable."""
        deadline_s = time.monotonic() + self._timeout_s + wait_ms / 1000
        is_send = isinstance(message, SendRequest)
        while True:
            link = self._usable() or await self._dial(deadline_s)
            request_id = next(self._numbers)
            asked = msgspec.structs.replace(message, request_id=request_id)
            try:
                buffers = frame_of(asked, encoded)
                frame = await self._answer(link, request_id, buffers, is_send, deadline_s)
                if not self._route.follows:
                    return frame
                answer_of(frame)
                return frame
            except Unreachable:
                if not self._route.follows or time.monotonic() >= deadline_s:
                    raise
            except OutcomeUnknown:
                raise
            except LedgerError as error:
                pause_s = self._route.pause_s(error)
                if pause_s is None or time.monotonic() + pause_s >= deadline_s:
                    raise
                link.is_demoted = True
                await asyncio.sleep(pause_s)

    async def _answer(
        self, link: Link, request_id: int, buffers: list[Buffer], is_send: bool, deadline_s: float
    ) -> Frame:
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        link.waiting[request_id] = (answer, is_send)
        link.write(buffers)
        try:
            while True:
                left_s = deadline_s - time.monotonic()
                most_s = min(left_s, PROBE_S) if self._route.follows else left_s
                done, _ = await asyncio.wait([answer], timeout=max(most_s, 0.0))
                if done:
                    return answer.result()
                if time.monotonic() >= deadline_s:
                    raise OutcomeUnknown("the broker did not answer in time")
                if self._probe is None or self._probe.done():
                    loop = asyncio.get_running_loop()
                    self._probe = loop.create_task(self._look_for_another(link))
        finally:
            link.waiting.pop(request_id, None)

    async def _look_for_another(self, silent: Link) -> None:
        """A master that was stopped cannot say that it is none any more."""
        for address in self._route.others:
            try:
                link = await self._open(address, PROBE_S)
            except (LedgerError, ProtocolViolation):
                continue
            try:
                message = answer_of(await self._asked(link, PROBE_S))
            except (LedgerError, ProtocolViolation):
                continue
            finally:
                link.fail("it was asked for its role")
            if self._route.is_newer_master(message):
                self._route.turn(address)
                silent.fail("another broker is master by now")
                return
