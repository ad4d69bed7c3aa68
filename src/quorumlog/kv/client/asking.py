"""Asking: requests to the members' stores, by the engine of all clients (`net/rpc`)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.config import parse_address
from quorumlog.errors import ConfigError, LedgerError, ProtocolViolation, Unreachable
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests import (
    GROUP,
    MAX_REQUEST_BYTES,
    AnswerResponse,
    CancelRequest,
    CommandRequest,
    Request,
    StatusAnswer,
    StoreStatusRequest,
    WatchRequest,
    read_answer,
    response_decoder,
    size_bytes_of,
)
from quorumlog.net.credentials import ClientUser
from quorumlog.net.frame import FrameDecoder
from quorumlog.net.hello import STORE, Hello, HelloResponse, client_hello
from quorumlog.net.io_loop import IoLoop
from quorumlog.net.rpc.calls import LEADER, LEADER_OR_ANY, Call, Link, RequestTarget, response_of
from quorumlog.net.rpc.product import Product
from quorumlog.net.rpc.protocol import RpcProtocol
from quorumlog.net.rpc.view import ServerView
from quorumlog.net.system import now_ms
from quorumlog.net.tls import ClientTls
from quorumlog.wire.client_message import ClientMessage

T = TypeVar("T")


class StoreProduct(Product):
    name = STORE
    group = GROUP
    probe = StoreStatusRequest()
    closed_error = Unreachable

    def decoder(self) -> FrameDecoder:
        return response_decoder()

    def hello(self, link: Link) -> Hello:
        return msgspec.structs.replace(client_hello(STORE), cluster_id=self.cluster_id)

    def greeting_of(self, link: Link, message: ClientMessage) -> HelloResponse:
        greeting = super().greeting_of(link, message)
        if greeting.code == 200 and self.cluster_id and not greeting.cluster_id:
            raise Unreachable("it belongs to no cluster yet")  # it may come to be one of another
        return greeting

    def ungreeted(self, link: Link) -> str:
        return " at this client's greeting, as by a member of an earlier release"

    def view_of(self, message: ClientMessage) -> ServerView | None:
        if not isinstance(message, AnswerResponse):
            return None
        try:
            _, status = read_answer(message.answer, StatusAnswer)
        except LedgerError:
            return None
        leads = status.role == "leader"
        return ServerView(status.member_id, status.role, status.term, leads, status.leader_id)

    def answered(
        self, link: Link, call: Call, message: ClientMessage, batch: EntryBatch | None
    ) -> ServerView | None:
        if not isinstance(message, AnswerResponse):
            raise ProtocolViolation(f"{type(message).__name__} as an answer")
        return None

    def refused(self, link: Link, call: Call, error: LedgerError) -> None:
        error.leader_address = None  # that of its log

    def cancel(self, request_id: int) -> CancelRequest:
        return CancelRequest(watch=request_id)


def addresses_of(servers: str) -> list[str]:
    """Raises ConfigError."""
    addresses = [part.strip() for part in servers.split(",") if part.strip()]
    if not addresses:
        raise ConfigError("servers is empty; give HOST:PORT,HOST:PORT,... of the key-value store")
    for address in addresses:
        parse_address(address)
    return addresses


class Asking:
    def __init__(
        self,
        servers: str,
        timeout_ms: float,
        cluster_id: str = "",
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """`cluster_id`: the expected one; another one raises ClusterChanged. Raises ConfigError."""
        self.addresses = addresses_of(servers)
        self.timeout_ms = timeout_ms
        self.seen_revision = 0
        """The highest revision in an answer so far."""
        self._product = StoreProduct(cluster_id)
        self._protocol = RpcProtocol(self.addresses, self._product, random=Random())
        self._io = IoLoop(self._protocol, tls=tls, user=user)

    @property
    def cluster_id(self) -> str:
        """Empty: no member has greeted yet."""
        return self._product.cluster_id

    @property
    def is_closed(self) -> bool:
        return self._protocol.is_closed

    async def close(self) -> None:
        await self._io.close()

    async def call(
        self,
        request: Request,
        answer: type[T],
        *,
        target: RequestTarget = LEADER,
        timeout_ms: float | None = None,
    ) -> tuple[int, T]:
        """(revision of the store, answer). Raises LedgerError."""
        size_bytes = size_bytes_of(request)
        if size_bytes > MAX_REQUEST_BYTES:
            raise InvalidRequest(f"a request of {size_bytes} bytes is above {MAX_REQUEST_BYTES}")
        changes = isinstance(request, CommandRequest)
        call = self._call(request, target, timeout_ms, changes=changes)
        self._io.submit((call,))
        await self._io.wait(call)
        found = read_answer(response_of(call, AnswerResponse).answer, answer)
        self.seen_revision = max(self.seen_revision, found[0])
        return found

    def _call(
        self, request: Request, target: RequestTarget, timeout_ms: float | None, *, changes: bool
    ) -> Call:
        now = now_ms()
        timeout_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        return Call(request, target, submitted_ms=now, deadline_ms=now + timeout_ms, changes=changes)

    def watch(
        self,
        request: WatchRequest,
        status: Callable[[ClientMessage], None],
        ended: Callable[[Call], None],
    ) -> Call:
        """Submit a watch. `ended` receives its call once that is done, also if no member answers in
        time."""
        call = self._call(request, LEADER_OR_ANY, None, changes=False)
        call.on_message, call.on_done = status, ended
        self._io.submit((call,))
        return call

    def cancel(self, watch: Call) -> None:
        if not watch.is_done:
            self._io.cancel((watch,))
