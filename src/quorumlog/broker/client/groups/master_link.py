"""MasterLink: requests to whoever is master, found by asking any member, through failovers."""

from __future__ import annotations

import asyncio
import itertools

import msgspec

from quorumlog.broker.client.async_link import Link
from quorumlog.broker.client.broker_verbs import (
    DEFAULT_TIMEOUT_MS,
    Encoded,
    answer_of,
    check_hello,
    frame_of,
    hello,
    own_host,
)
from quorumlog.broker.errors import NeedsReplicatedRole
from quorumlog.broker.wire.broker_framing import message_of
from quorumlog.broker.wire.broker_messages import AnyBrokerMessage, RoleRequest, RoleResponse
from quorumlog.config import parse_address
from quorumlog.errors import (
    ConfigError,
    LeaderNotReady,
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    ProtocolViolation,
    Unreachable,
)
from quorumlog.wire.framing import Frame

RETRY_S = 0.02
ATTEMPT_S = 1.0
"""A broker that does not answer in that time is passed over, where the request may be repeated."""
MASTER = "SYNC_MASTER"


def parse_servers(servers: str) -> list[str]:
    """Raises ConfigError."""
    found = [part.strip() for part in servers.split(",") if part.strip()]
    for each in found:
        parse_address(each)
    if not found:
        raise ConfigError("no broker is named: write HOST:PORT,HOST:PORT,...")
    return found


class MasterLink:
    """Of one event loop."""

    def __init__(self, servers: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        self.timeout_s = timeout_ms / 1000
        self.own_host = bytes(8)
        self._known = parse_servers(servers)
        self._links: dict[str, Link] = {}
        self._dialing: dict[str, asyncio.Lock] = {}
        self._master: str | None = None
        self._finding: asyncio.Task[str] | None = None
        self._numbers = itertools.count(1)

    async def close(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
        for link in self._links.values():
            if link.transport is not None:
                link.transport.close()
        await asyncio.sleep(0)

    # ---------------------------------------------------------------- requests

    async def call(
        self,
        message: AnyBrokerMessage,
        encoded: Encoded | None = None,
        *,
        may_repeat: bool = True,
        wait_ms: int = 0,
    ) -> Frame:
        """The master's answer. What was certainly not done is asked for again until `timeout_ms` are
        over; so is what may have been done, if it `may_repeat`. Raises what the master refuses with,
        OutcomeUnknown, Unreachable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_s + wait_ms / 1000
        while True:
            left_s = deadline - loop.time()
            attempt_s = min(ATTEMPT_S + wait_ms / 1000, left_s) if may_repeat else left_s
            pause_s = RETRY_S
            try:
                master = self._master
                if master is None:
                    master = await asyncio.wait_for(self._find(), left_s)
                frame = await self._ask(master, message, encoded, attempt_s)
                answer_of(frame)
                return frame
            except NotLeader as error:
                problem: LedgerError = error
                is_other = error.leader_address not in ("", None, self._master)
                self._master = error.leader_address if is_other else None
            except OutcomeUnknown as error:
                if not may_repeat:
                    raise
                problem, self._master = error, None
            except TimeoutError:
                problem, self._master = Unreachable("no broker says who is master"), None
            except LedgerError as error:
                if not error.retriable and not isinstance(error, Unreachable):
                    raise
                problem = error
                pause_s = max(pause_s, error.retry_after_ms / 1000)
                if isinstance(error, Unreachable | LeaderNotReady):
                    self._master = None
            if loop.time() + pause_s >= deadline:
                raise problem
            await asyncio.sleep(pause_s)

    async def route(self) -> RoleResponse:
        """Who is master, as whoever knows it best says. Raises Unreachable, NeedsReplicatedRole."""
        asked = [self._role_of(address) for address in self._known]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [each for each in answers if isinstance(each, RoleResponse)]
        for each in answers:
            if isinstance(each, NeedsReplicatedRole):
                raise each
        if not found:
            raise Unreachable(f"no broker answers at {', '.join(self._known)}")
        # Of two that say they are master, the later one is.
        best = max(found, key=lambda role: (role.term, role.role == MASTER, bool(role.master)))
        self._known += [row[2] for row in best.brokers if row[2] and row[2] not in self._known]
        return best

    async def _role_of(self, address: str) -> RoleResponse:
        frame = await self._ask(address, RoleRequest(), None, ATTEMPT_S)
        answer = answer_of(frame)
        if not isinstance(answer, RoleResponse):
            raise ProtocolViolation(f"{type(answer).__name__} is no answer to a request for the role")
        return answer

    async def _find(self) -> str:
        """What many requests need is asked once."""
        if self._finding is None or self._finding.done():
            self._finding = asyncio.get_running_loop().create_task(self._look())
        return await asyncio.shield(self._finding)

    async def _look(self) -> str:
        role = await self.route()
        if not role.master:
            raise LeaderNotReady("no broker is master at the moment", retry_after_ms=20)
        self._master = role.master
        return role.master

    # ---------------------------------------------------------------- connections

    async def _ask(
        self, address: str, message: AnyBrokerMessage, encoded: Encoded | None, limit_s: float
    ) -> Frame:
        link = await self._connected(address, min(limit_s, ATTEMPT_S))
        request_id = next(self._numbers)
        message = msgspec.structs.replace(message, request_id=request_id)
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        link.waiting[request_id] = (answer, encoded is not None)
        link.write(frame_of(message, encoded))
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            raise OutcomeUnknown(f"the broker at {address} did not answer in time") from None
        finally:
            link.waiting.pop(request_id, None)

    async def _connected(self, address: str, limit_s: float) -> Link:
        async with self._dialing.setdefault(address, asyncio.Lock()):
            link = self._links.get(address)
            if link is not None and not link.closed:
                return link
            loop = asyncio.get_running_loop()
            host, port = parse_address(address)
            made: Link | None = None
            try:
                async with asyncio.timeout(limit_s):
                    _, made = await loop.create_connection(Link, host, port)
                    answer: asyncio.Future[Frame] = loop.create_future()
                    made.waiting[0] = (answer, False)
                    made.write(hello())
                    check_hello(message_of(await answer))
            except (OSError, TimeoutError) as error:
                if made is not None and made.transport is not None:
                    made.transport.abort()
                reason = getattr(error, "strerror", None) or "it does not answer"
                raise Unreachable(f"no broker at {address}: {reason}") from None
            assert made.transport is not None
            self.own_host = own_host(made.transport.get_extra_info("sockname"))
            self._links[address] = made
            return made
