"""AsyncLinks: the connection of an asyncio client to the broker, and from there to the next master."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import cast

import msgspec

from quorumlog.broker.client.broker_verbs import (
    Encoded,
    answer_of,
    check_hello,
    earlier_hello,
    frame_of,
    hello,
    lost_outcome,
    own_host,
    ungreeted,
)
from quorumlog.broker.client.master_route import (
    PROBE_S,
    RETRY_S,
    SLAVE,
    MasterRoute,
    role_request,
)
from quorumlog.broker.errors import NotMaster, StaleEpoch
from quorumlog.broker.wire import (
    AnyBrokerMessage,
    RoleNotice,
    RoleResponse,
    SendRequest,
    broker_decoder,
    message_of,
)
from quorumlog.config import parse_address
from quorumlog.entry_header import Buffer
from quorumlog.errors import (
    AlreadyCommitted,
    LeaderNotReady,
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    ProtocolViolation,
    Unreachable,
    WrongPort,
)
from quorumlog.net.frame import Frame

ALIVE_S = 1.0
"""A broker that was not heard of for so long, while answers are owed that may take their time, is asked
whether it is there."""
_Waiting = dict[int, tuple["asyncio.Future[Frame]", bool]]
_ROLE_ID = -1


class Link(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.waiting: _Waiting = {}
        """Answers that are owed, and whether they are those of sends."""
        self.closed = False
        self.heard_s = time.monotonic()
        self.is_demoted = False
        """The broker is master no more: what is owed may come, and nothing new is asked for here."""
        self.transport: asyncio.Transport | None = None
        self.violation: ProtocolViolation | None = None
        self._decoder = broker_decoder()
        self._out: list[Buffer] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_s = time.monotonic()
        try:
            frames = self._decoder.buffer_updated(nbytes)
        except ProtocolViolation as violation:
            self.violation = violation
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


def told(problem: LedgerError, may_be_stored: bool) -> LedgerError:
    """What a caller hears. Of a send, an earlier copy of which may be stored, no refusal is certain: its
    number in the session is not free."""
    if may_be_stored and not isinstance(problem, OutcomeUnknown | AlreadyCommitted):
        return OutcomeUnknown(f"it may or may not be stored: {problem}")
    return problem


class AsyncLinks:
    def __init__(self, servers: str, timeout_ms: int, *, must_follow: bool = False) -> None:
        """Of one event loop. `must_follow`: see `MasterRoute`. Raises ConfigError."""
        self._route = MasterRoute(servers, must_follow=must_follow)
        self._timeout_s = timeout_ms / 1000
        self._link: Link | None = None
        self._left: list[Link] = []
        """Of earlier masters, which may owe answers still."""
        self._dial_lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._probe: asyncio.Task[None] | None = None
        self.own_host = bytes(8)

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
        for link in (self._link, *self._left):
            if link is not None and link.transport is not None:
                link.transport.close()
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
                    if not self._route.follows or await self._is_master(link, left_s):
                        self._take(link)
                        return link
                    link.fail("it is no master")
                    refused: LedgerError = Unreachable("none of the brokers is master")
                except (Unreachable, OutcomeUnknown) as error:
                    if not self._route.follows:
                        raise
                    refused = error
                    self._route.failed(error)
                if time.monotonic() >= deadline_s:
                    raise self._route.unreachable(refused)
                await asyncio.sleep(RETRY_S)

    async def _open(self, address: str, timeout_s: float) -> Link:
        most_s = min(timeout_s, PROBE_S) if self._route.follows else timeout_s
        try:
            async with asyncio.timeout(most_s):
                link = await self._greeted(address, hello())
                link = link or await self._greeted(address, earlier_hello())
        except (OSError, TimeoutError) as error:
            reason = "it does not answer"
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                # What asyncio says of a refused connection is a sentence for programmers.
                number = error.errno or 0
                reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            raise Unreachable(f"no broker at {address}: {reason}") from None
        if link is None:
            raise ungreeted(address)
        assert link.transport is not None
        self.own_host = own_host(link.transport.get_extra_info("sockname"))
        return link

    async def _greeted(self, address: str, greeting: list[Buffer]) -> Link | None:
        """None: it closes the connection without a word."""
        host, port = parse_address(address)
        _, link = await asyncio.get_running_loop().create_connection(Link, host, port)
        try:
            check_hello(await link.ask(0, greeting), address)
        except BaseException as error:
            link.fail("it does not greet")
            if violation := link.violation or (isinstance(error, ProtocolViolation) and error):
                raise ungreeted(address, violation) from None
            if type(error) is not Unreachable:
                raise
            return None
        return link

    async def _is_master(self, link: Link, timeout_s: float) -> bool:
        try:
            return self._route.is_master(await self._asked(link, timeout_s))
        except BaseException:
            link.fail("it does not say its role")
            raise

    def _take(self, link: Link) -> None:
        if self._link is not None and not self._link.closed:
            self._left.append(self._link)
        self._link = link
        for left in [each for each in self._left if not each.waiting]:
            left.fail("another broker is asked by now")
        self._left = [each for each in self._left if each.waiting]

    async def _asked(self, link: Link, timeout_s: float) -> Frame:
        try:
            async with asyncio.timeout(min(timeout_s, PROBE_S)):
                return await link.ask(_ROLE_ID, role_request(_ROLE_ID))
        except TimeoutError:
            raise Unreachable("a broker does not say its role") from None

    async def call(
        self, message: AnyBrokerMessage, encoded: Encoded | None = None, wait_ms: int = 0
    ) -> Frame:
        """The answer, which may take `wait_ms`. What was certainly not done is asked for again, of the
        next master, as long as there is time; so is what may have been done, but for a plain send.
        Raises what the broker refuses with, Unreachable, OutcomeUnknown: also of a send in a session
        that is refused after an earlier copy of it may have been stored."""
        deadline_s, may_wait_s = time.monotonic() + self._timeout_s, wait_ms / 1000
        is_send, may_repeat = encoded is not None, not isinstance(message, SendRequest)
        may_be_stored = False
        while True:
            pause_s: float | None = RETRY_S
            try:
                link = self._usable() or await self._dial(deadline_s)
                request_id = next(self._numbers)
                buffers = frame_of(msgspec.structs.replace(message, request_id=request_id), encoded)
                asked_s = time.monotonic()
                try:
                    answer_by_s = deadline_s + may_wait_s
                    frame = await self._answer(link, request_id, buffers, is_send, answer_by_s, wait_ms)
                finally:  # only a broker that was asked may take that time
                    waited_s = min(time.monotonic() - asked_s, may_wait_s)
                    deadline_s, may_wait_s = deadline_s + waited_s, may_wait_s - waited_s
                if self._route.follows:
                    answer_of(frame)
                return frame
            except OutcomeUnknown as error:
                may_be_stored |= is_send
                problem: LedgerError = error
                if not may_repeat:
                    raise
            except Unreachable as error:
                problem = error
                if not self._route.follows or isinstance(error, WrongPort):
                    pause_s = None
            except LedgerError as error:
                problem, pause_s = error, self._route.pause_s(error)
                if isinstance(error, NotLeader | LeaderNotReady | NotMaster | StaleEpoch):
                    link.is_demoted = True
                elif self._route.asks_others(error):
                    await self._look_for_another(link)
            if pause_s is None or time.monotonic() + pause_s >= deadline_s:
                raise told(problem, may_be_stored)
            await asyncio.sleep(pause_s)

    async def _answer(
        self,
        link: Link,
        request_id: int,
        buffers: list[Buffer],
        is_send: bool,
        deadline_s: float,
        wait_ms: int,
    ) -> Frame:
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        link.waiting[request_id] = (answer, is_send)
        link.write(buffers)
        owed_s = time.monotonic() + wait_ms / 1000
        try:
            while True:
                left_s = deadline_s - time.monotonic()
                most_s = min(left_s, PROBE_S) if self._route.follows else left_s
                done, _ = await asyncio.wait([answer], timeout=max(most_s, 0.0))
                if done:
                    return answer.result()
                now_s = time.monotonic()
                if now_s >= deadline_s:
                    raise OutcomeUnknown("the broker did not answer in time")
                if self._probe is None or self._probe.done():
                    look = self._look_for_another if now_s >= owed_s else self._look_after
                    self._probe = asyncio.get_running_loop().create_task(look(link))
        finally:
            link.waiting.pop(request_id, None)

    async def _look_after(self, link: Link) -> None:
        """Requests wait there for something to come: is it there at all?"""
        if time.monotonic() - link.heard_s < ALIVE_S:
            return
        try:
            message = answer_of(await self._asked(link, PROBE_S))
        except (LedgerError, ProtocolViolation):
            await self._look_for_another(link)
            return
        link.is_demoted |= isinstance(message, RoleResponse) and message.role == SLAVE

    async def _look_for_another(self, silent: Link) -> None:
        """A master that was stopped, or has heard of no switch, cannot say that it is none any more."""
        asked = self._route.address
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
            master = self._route.newer_master(address, message, asked)
            if master:
                self._route.turn(master)
                silent.fail("another broker is master by now")
                return
