"""BrokerCalls: the engine of all clients (`net/rpc`), as a broker's asyncio clients have it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker.client.broker_verbs import Encoded, own_host
from quorumlog.broker.wire import (
    GROUP,
    RESPONSE_OF,
    AnyBrokerMessage,
    CommitRequest,
    EarlierHello,
    EarlierHelloResponse,
    FailoverRequest,
    GroupCommandRequest,
    ReplicaRequest,
    RoleNotice,
    RoleRequest,
    RoleResponse,
    SendRequest,
    SessionSendRequest,
    broker_decoder,
)
from quorumlog.config import parse_address
from quorumlog.entry_header import Buffer
from quorumlog.errors import ConfigError, ProtocolViolation, Unreachable, WrongPort
from quorumlog.net.credentials import ClientUser
from quorumlog.net.frame import AnyFrameMessage, Frame, FrameDecoder
from quorumlog.net.hello import BROKER, HelloResponse
from quorumlog.net.io_loop import IoLoop
from quorumlog.net.rpc.calls import LEADER, Call, Link, RequestTarget, TargetKind
from quorumlog.net.rpc.product import Product
from quorumlog.net.rpc.protocol import RpcProtocol
from quorumlog.net.rpc.view import Standing
from quorumlog.net.system import now_ms
from quorumlog.net.tls import ClientTls
from quorumlog.wire.client_message import ClientMessage

SLAVE = "SLAVE"


class BrokerProduct(Product):
    name = BROKER
    group = GROUP
    probe = RoleRequest(watches=True)

    closed_error = Unreachable

    def __init__(self, only_looks: bool = False) -> None:
        super().__init__()
        self._only_looks = only_looks
        self.own_host = b""
        """Of this client, as the broker that greeted last sees it; empty: none has."""
        self._silent: set[str] = set()
        """Addresses that have closed the connection at a greeting: one of an earlier release is next."""

    def decoder(self) -> FrameDecoder:
        return broker_decoder()

    def looks(self, message: ClientMessage) -> bool:
        return self._only_looks

    def hello(self, link: Link) -> ClientMessage:
        return EarlierHello() if link.address in self._silent else super().hello(link)

    def greeting_of(self, link: Link, message: ClientMessage) -> HelloResponse:
        if isinstance(message, EarlierHelloResponse):
            if message.protocol != EarlierHello().protocol:
                self._silent.discard(link.address)
                link.is_greeted_again = True
                raise Unreachable("it ended a connection at a greeting")  # as it was stopped
            version = message.version or "an earlier release"
            raise WrongPort(f"the broker at {link.address} is {version}: use a client of its release")
        greeting = super().greeting_of(link, message)
        name = None if link.context is None else link.context.get_extra_info("sockname")
        self.own_host = own_host(name)
        return greeting

    def ungreeted(self, link: Link) -> str:
        link.is_greeted_again = link.address not in self._silent
        self._silent ^= {link.address}
        return super().ungreeted(link)

    def standing_of(self, message: ClientMessage) -> Standing | None:
        if not isinstance(message, RoleResponse):
            return None
        members = {name: address for name, _, address in message.brokers if address}
        master = next((name for name, address in members.items() if address == message.master), "")
        leads = message.role != SLAVE
        return Standing(
            message.member_id, message.role, message.term, leads, master, message.master, members
        )

    def notice_of(self, message: ClientMessage) -> Standing | None:
        if not isinstance(message, RoleNotice):
            return None
        leads = message.role != SLAVE
        return Standing("it", message.role, message.term, leads, "", message.master)

    def encode(self, link: Link, call: Any, request_id: int, now_ms: float) -> list[Buffer]:
        # Only a broker that was asked may take the time to wait for something.
        call.deadline_ms += call.wait_ms * (not call.attempts)
        return super().encode(link, call, request_id, now_ms)

    def answered(
        self, link: Link, call: Any, message: ClientMessage, batch: EntryBatch | None
    ) -> Standing | None:
        if type(message) is not RESPONSE_OF[type(call.message)]:
            asked = type(call.message).__name__
            raise ProtocolViolation(f"{type(message).__name__} as the answer to {asked}")
        return self.standing_of(message)


def changes(message: AnyBrokerMessage) -> bool:
    """Carried out again, perhaps behind what somebody else has done since, it would be another effect:
    a topic that was made anew is deleted, a reset is undone, a new master resigns."""
    if isinstance(message, ReplicaRequest):
        return message.verb not in ("", "drain", "slave")  # a drain ends by itself, an epoch is checked
    if isinstance(message, FailoverRequest):
        return bool(message.verb)
    if isinstance(message, CommitRequest):
        return message.generation < 0  # a reset begins another one
    return isinstance(message, SendRequest | SessionSendRequest | GroupCommandRequest)


def call_of(
    message: AnyBrokerMessage,
    target: RequestTarget,
    now_ms: float,
    timeout_ms: float,
    *,
    batch: EntryBatch | None = None,
    wait_ms: int = 0,
) -> Call:
    return Call(
        message,
        target,
        submitted_ms=now_ms,
        deadline_ms=now_ms + timeout_ms,
        batch=batch,
        changes=changes(message),
        is_numbered=isinstance(message, SessionSendRequest),
        is_once=target is not LEADER,
        wait_ms=wait_ms,
    )


class BrokerCalls:
    """Of one event loop."""

    def __init__(
        self,
        servers: str,
        timeout_ms: float,
        *,
        must_follow: bool = False,
        only_looks: bool = False,
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """`servers`: HOST:PORT, which is asked whatever it is; of several with commas between the master
        is, and with `must_follow` that of one, too. `only_looks`: sends nothing; see `Product.looks`.
        Raises ConfigError."""
        addresses = [part.strip() for part in servers.split(",") if part.strip()]
        if not addresses:
            raise ConfigError("the address of the broker is empty; write HOST:PORT")
        for address in addresses:
            parse_address(address)
        follows = must_follow or len(addresses) > 1
        self._target = LEADER if follows else RequestTarget(TargetKind.ADDRESS, addresses[0])
        self._timeout_ms = timeout_ms
        self._product = BrokerProduct(only_looks)
        self._io = IoLoop(RpcProtocol(addresses, self._product, random=Random()), tls=tls, user=user)

    @property
    def own_host(self) -> bytes:
        return self._product.own_host or bytes(8)

    async def close(self) -> None:
        """What waits is ended."""
        await self._io.close()

    async def connected(self) -> None:
        """Raises Unreachable."""
        if not self._product.own_host:
            await self.call(RoleRequest(watches=True))

    def made(self, message: AnyBrokerMessage, encoded: Encoded | None = None, wait_ms: int = 0) -> Call:
        """A broker may take `wait_ms` longer than others."""
        batch = None if encoded is None else EntryBatch(encoded.buffer, np.array(encoded.sizes))
        return call_of(message, self._target, now_ms(), self._timeout_ms, batch=batch, wait_ms=wait_ms)

    def submit_at_end(self, calls: list[Call]) -> None:
        """At the end of a turn of the loop."""
        self._io.submit_at_end(calls)

    def running_loop(self) -> asyncio.AbstractEventLoop:
        """Raises RuntimeError if it is another than before."""
        return self._io.own_loop.running()

    async def call(
        self, message: AnyBrokerMessage, encoded: Encoded | None = None, wait_ms: int = 0
    ) -> Frame:
        """The answer. Raises what the broker refuses with, Unreachable, RequestTimeout, OutcomeUnknown:
        see `quorumlog.net.rpc`."""
        call = self.made(message, encoded, wait_ms)
        self._io.submit((call,))
        await self._io.wait(call)
        return frame_of_answer(call)


def frame_of_answer(call: Call) -> Frame:
    """Raises the error of a call that has none."""
    if call.error is not None:
        error, name = call.error, call.target.name
        if name and type(error) is Unreachable and str(error).startswith(name):
            error = Unreachable(f"no broker at {error}")
        raise error
    if call.response is None:
        raise ProtocolViolation("a call without an answer")
    return Frame(GROUP, cast(AnyFrameMessage, call.response), call.response_batch)
