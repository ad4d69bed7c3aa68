"""Router: which member is asked, and what became of it.

Requests go to the leader. A refusal that is certain is tried again until the time is over; what may
change something is never sent twice once its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

import msgspec

from quorumlog.config import parse_address
from quorumlog.errors import (
    ConfigError,
    LeaderNotReady,
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    RequestTimeout,
    Unreachable,
    WrongPort,
)
from quorumlog.kv.client.link import Answer, Link, LinkLost
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests.answers import read_answer
from quorumlog.kv.requests.limits import MAX_REQUEST_BYTES
from quorumlog.kv.requests.messages import AnswerResponse, Request, size_bytes_of
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.hello import (
    STORE,
    WELCOME,
    Challenge,
    Hello,
    HelloResponse,
    check_product,
    client_hello,
)
from quorumlog.net.loop_thread import OwnLoop
from quorumlog.net.strangers import OtherSoftware

T = TypeVar("T")
RETRY_S = 0.02
CONNECT_TIMEOUT_S = 2.0
SILENCE_S, SILENT_ELECTIONS = 2.0, 2
"""A member that says nothing for so long, and so many election time-outs, is left for another one."""
LEAST_ELECTION_MS = 300
CLOSED = "the client is closed"
NO_GREETING = "none has greeted in time"
EARLIER = "closes the connection at this client's greeting, as a member of an earlier release does"


class Router:
    def __init__(self, servers: str, timeout_s: float, cluster_id: str = "") -> None:
        """`cluster_id`: as it was before; another one is ClusterChanged. Raises ConfigError."""
        self._servers = [part.strip() for part in servers.split(",") if part.strip()]
        if not self._servers:
            raise ConfigError("servers is empty; give HOST:PORT,HOST:PORT,... of the key-value store")
        self._addresses = [parse_address(server) for server in self._servers]
        self.timeout_s = timeout_s
        self.cluster_id = cluster_id
        self.election_timeout_ms = 0
        self._link: Link | None = None
        self._place = 0
        self._failed = NO_GREETING
        """What became of the last attempt that failed."""
        self._of_member: dict[str, tuple[str, int]] = {}
        self._connecting = asyncio.Lock()
        self._beside: dict[int, Router] = {}
        """By the place of the member that it leaves out."""
        self.is_closed = False
        self._own_loop = OwnLoop()

    async def close(self) -> None:
        self.is_closed = True
        for beside in self._beside.values():
            await beside.close()
        if self._link is not None:
            self._link.close()
            self._link = None
        await asyncio.sleep(0)

    # ---------------------------------------------------------------- connecting

    async def link(self, deadline_s: float) -> Link:
        """To the member that seems to lead. Raises Unreachable, ClusterChanged; WrongPort where no
        address is that of a store."""
        self._own_loop.running()
        if self._link is not None and self._link.is_up:
            return self._link
        try:
            # Over the lock, too: who holds it may have more patience, such as a watch.
            async with asyncio.timeout(deadline_s - time.monotonic()), self._connecting:
                return await self._connected()
        except TimeoutError:
            raise Unreachable(f"no member answers: {self._failed}") from None

    async def _connected(self) -> Link:
        """However long it takes."""
        if self._link is not None and self._link.is_up:
            return self._link
        if self._link is not None:  # it was lost: somebody else is likelier to answer
            self._next_place()
            self._link = None
        while not self.is_closed:
            wrong: list[WrongPort] = []
            for _ in self._addresses:
                try:
                    self._link = await self._open(self._addresses[self._place])
                except (Unreachable, TimeoutError) as error:
                    self._failed = str(error) or NO_GREETING
                    if isinstance(error, WrongPort):
                        wrong.append(error)
                    self._next_place()
                else:
                    return self._link
            if len(wrong) == len(self._addresses):
                raise wrong[0]
            await asyncio.sleep(RETRY_S)
        raise Unreachable(CLOSED)

    def _next_place(self) -> None:
        self._place = (self._place + 1) % len(self._addresses)

    async def _open(self, address: tuple[str, int]) -> Link:
        """Raises Unreachable, TimeoutError, ClusterChanged."""
        hello = msgspec.structs.replace(client_hello(STORE), cluster_id=self.cluster_id)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            link = await Link.open(*address)
            try:
                greeting = await greeting_of(link, hello)
                if self.cluster_id and not greeting.cluster_id:
                    # It may come to be one of another cluster.
                    raise Unreachable(f"{link.address} belongs to no cluster yet")
            except BaseException:
                link.close()
                raise
        self.cluster_id = self.cluster_id or greeting.cluster_id
        self.election_timeout_ms = greeting.election_timeout_ms
        link.member_id = greeting.member_id
        self._of_member[greeting.member_id] = address
        link.keep_watch(hello, max(SILENCE_S, SILENT_ELECTIONS * self.election_timeout_ms / 1000))
        return link

    def turn(self, link: Link, leader_id: str | None) -> None:
        """That member does not lead: to the one that it names, or to the next."""
        if self._link is not link:
            return
        known = self._of_member.get(leader_id or "")
        if known is not None and leader_id != link.member_id:
            self._place = self._addresses.index(known)
        else:
            self._next_place()
        link.close()  # whatever else was asked here is tried elsewhere
        self._link = None

    def beside(self) -> Router | None:
        """To all members but the one that is asked here, for what may be asked twice while that one says
        nothing; None: there is no other. What waits here goes on waiting."""
        others = [server for place, server in enumerate(self._servers) if place != self._place]
        if others and not self.is_closed and self._place not in self._beside:
            self._beside[self._place] = Router(",".join(others), self.timeout_s, self.cluster_id)
        return self._beside.get(self._place)

    # ---------------------------------------------------------------- asking

    async def call(
        self, request: Request, answer: type[T], *, changes: bool, timeout_s: float | None = None
    ) -> tuple[int, T]:
        """(revision, answer). `changes`: it may not be carried out twice. Raises LedgerError."""
        size_bytes = size_bytes_of(request)
        if size_bytes > MAX_REQUEST_BYTES:
            raise InvalidRequest(f"a request of {size_bytes} bytes is above {MAX_REQUEST_BYTES}")
        deadline_s = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        refusal: LedgerError | None = None
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise refusal or RequestTimeout("no member has answered in time")
            link = await self.link(deadline_s)
            try:
                # Not `wait_for`: that of Python 3.11 takes an answer that comes as the caller is
                # cancelled for all there is, and who gave up on a lock would wait for ever.
                async with asyncio.timeout(left_s):
                    answered = await link.ask(request)
            except (LinkLost, TimeoutError) as error:
                if changes:
                    what = "the connection was lost" if isinstance(error, LinkLost) else "time is over"
                    raise OutcomeUnknown(
                        f"{what} before {link.address} has answered: the change may be made"
                    ) from None
                continue
            if isinstance(answered, AnswerResponse):
                link.unready_since_s = None
                return read_answer(answered.answer, answer)
            assert isinstance(answered, ErrorResponse), answered
            refusal = error_of(answered)
            if not refusal.retriable:
                raise refusal
            if isinstance(refusal, NotLeader) or self._stays_unready(link, refusal):
                self.turn(link, refusal.leader_id)
            await asyncio.sleep(max(RETRY_S, refusal.retry_after_ms / 1000))

    def _stays_unready(self, link: Link, refusal: LedgerError) -> bool:
        """It has known no leader for longer than an election takes: it may be cut off from the others,
        and they may have one. A leader that was just elected is ready sooner, and what else was asked of
        it is not to be torn off."""
        if not isinstance(refusal, LeaderNotReady):
            return False
        now_s = time.monotonic()
        if link.unready_since_s is None:
            link.unready_since_s = now_s
        return now_s - link.unready_since_s >= max(self.election_timeout_ms, LEAST_ELECTION_MS) / 1000


async def greeting_of(link: Link, hello: Hello) -> HelloResponse:
    """Raises Unreachable, WrongPort, ClusterChanged."""
    try:
        greeting: Answer = await link.greet(hello)
    except LinkLost:
        if isinstance(link.violation, OtherSoftware):
            raise link.violation.at(link.address) from None
        raise Unreachable(f"{link.address} {EARLIER}") from None
    if isinstance(greeting, HelloResponse):
        check_product(greeting, STORE, link.address)
        if greeting.code == WELCOME:
            return greeting
        greeting = ErrorResponse(code=greeting.code, message=greeting.message)
    if isinstance(greeting, Challenge):
        asks = f"{link.address} asks who this is ({greeting.mechanism}), and this client cannot say"
        raise Unreachable(asks)
    if not isinstance(greeting, ErrorResponse):
        raise Unreachable(f"{link.address} does not greet")
    refusal = error_of(greeting)
    raise refusal if not refusal.retriable else Unreachable(f"{link.address}: {refusal}")
