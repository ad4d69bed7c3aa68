"""Shared by a broker's clients: requests as messages, answers as results, the engine of `net/rpc`."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker import wire
from quorumlog.broker.errors import MessageDamaged
from quorumlog.broker.message import Message, StoredMessage, encode_records, host_bytes, message_id_of
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.wire import GROUP, RESPONSE_OF, broker_decoder, records_of
from quorumlog.config import parse_address
from quorumlog.entry_header import Buffer
from quorumlog.errors import BadRequest, ConfigError, ProtocolViolation, Unreachable, WrongPort
from quorumlog.net.credentials import ClientUser
from quorumlog.net.frame import AnyFrameMessage, Frame, FrameDecoder
from quorumlog.net.hello import BROKER, HelloResponse
from quorumlog.net.io_loop import IoLoop
from quorumlog.net.rpc.calls import LEADER, Call, Link, RequestTarget, TargetKind
from quorumlog.net.rpc.product import Product
from quorumlog.net.rpc.protocol import RpcProtocol
from quorumlog.net.rpc.view import ServerView
from quorumlog.net.system import now_ms
from quorumlog.net.tls import ClientTls
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import ChangeUsersRequest

# ---------------------------------------------------------------- What a broker's clients give back


class SendReceipt(NamedTuple):
    """Acknowledged messages; those of a batch are consecutive."""

    topic: str
    queue_id: int
    queue_offset: int
    """Of the first message. After a fail-over an idempotent producer may get -1 here, and in
    `physical_offset` and `store_time_ms`: the messages are stored once, but the new master no longer
    has their place in memory."""
    physical_offset: int
    message_count: int
    store_time_ms: int
    store_host: bytes
    positions: bytes = b""
    """Physical offset of each, 8 bytes big-endian; empty: they lie one right after the other."""

    def split(self, parts: Iterable[tuple[int, int]]) -> Iterator[SendReceipt]:
        """One for each part, in order: its messages, and the bytes of their records."""
        at, position = 0, self.physical_offset
        for count, size_bytes in parts:
            positions = self.positions[8 * at : 8 * (at + count)]
            if positions:
                position = int.from_bytes(positions[:8], "big")
            yield self._replace(
                queue_offset=self.queue_offset + at,
                physical_offset=position,
                message_count=count,
                positions=positions if count > 1 else b"",
            )
            at += count
            position += size_bytes

    @property
    def message_id(self) -> str:
        """Of the first message; empty if `physical_offset` is unknown."""
        if self.physical_offset < 0:
            return ""
        return message_id_of(self.store_host, self.physical_offset)


class PullResult(NamedTuple):
    records: RecordBatch
    """As they came; their columns are numpy arrays."""
    next_offset: int
    min_offset: int
    max_offset: int

    @property
    def messages(self) -> list[StoredMessage]:
        return self.records.messages()


class QueueInfo(NamedTuple):
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


def checked(records: RecordBatch) -> RecordBatch:
    """Checks shape and CRCs. Raises MessageDamaged."""
    if len(records) and not (records.columns.good.all() and records.bodies_good().all()):
        raise MessageDamaged("a message is damaged on the broker's disk: quorumlog broker verify DIR")
    return records


# ---------------------------------------------------------------- What both clients share
# Requests as messages, and answers as results.

DEFAULT_TIMEOUT_MS = 10_000
TimeRange = tuple[float | int | datetime | None, float | int | datetime | None]
EARLIEST, LATEST = "earliest", "latest"
StartPoint = str | float | datetime
"""EARLIEST, LATEST, or a time: a datetime, or milliseconds since 1970."""
_Answer = TypeVar("_Answer", bound=ClientMessage)


class Encoded(NamedTuple):
    buffer: bytearray
    sizes: list[int]
    queue_id: int
    topic: str
    waits: bool


class UniqKeys:
    """32 hexadecimal digits each: client and number, as RocketMQ's clients set them."""

    def __init__(self) -> None:
        self._prefix = os.urandom(12).hex().upper()
        self._numbers = itertools.count(int.from_bytes(os.urandom(2), "big"))

    def take(self, count: int) -> list[str]:
        prefix, numbers = self._prefix, self._numbers
        return [f"{prefix}{next(numbers) & 0xFFFFFFFF:08X}" for _ in range(count)]


def encode_messages(messages: Sequence[Message], queue_id: int, keys: UniqKeys, host: bytes) -> Encoded:
    """Raises BadRequest, BodyTooLarge."""
    born_ms, uniq_keys = int(time.time() * 1000), keys.take(len(messages))
    buffer, sizes = encode_records(messages, queue_id, born_ms, uniq_keys, host)
    waits = any(message.wait for message in messages)
    if waits and not all(message.wait for message in messages):
        raise BadRequest("a batch waits as a whole or not at all: give all its messages the same `wait`")
    return Encoded(buffer, sizes, queue_id, messages[0].topic, waits)


def milliseconds(moment: float | datetime | None, default: int) -> int:
    """Since 1970, of a datetime or a number of milliseconds."""
    if moment is None:
        return default
    if isinstance(moment, datetime):
        return int(moment.astimezone(UTC).timestamp() * 1000)
    return int(moment)


def time_range(time_: TimeRange | None) -> tuple[int, int]:
    begin, end = (None, None) if time_ is None else time_
    return milliseconds(begin, 0), milliseconds(end, sys.maxsize)


def receipt_of(frame: Frame, encoded: Encoded) -> SendReceipt:
    answer = frame.message
    assert isinstance(answer, wire.SendResponse), answer
    return SendReceipt(
        encoded.topic,
        encoded.queue_id,
        answer.queue_offset,
        answer.physical_offset,
        answer.message_count,
        answer.store_time_ms,
        answer.store_host,
        answer.positions,
    )


def pulled_of(frame: Frame) -> PullResult:
    answer = frame.message
    assert isinstance(answer, wire.PullResponse), answer
    records = checked(records_of(frame))
    return PullResult(records, answer.next_offset, answer.min_offset, answer.max_offset)


# ---------------------------------------------------------------- BrokerCalls
# The engine of all clients (`net/rpc`), as a broker's asyncio clients have it.

SLAVE = "SLAVE"


class BrokerProduct(Product):
    name = BROKER
    group = GROUP
    probe = wire.RoleRequest(watches=True)

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
        return wire.EarlierHello() if link.address in self._silent else super().hello(link)

    def greeting_of(self, link: Link, message: ClientMessage) -> HelloResponse:
        if isinstance(message, wire.EarlierHelloResponse):
            if message.protocol != wire.EarlierHello().protocol:
                self._silent.discard(link.address)
                link.is_greeted_again = True
                raise Unreachable("it ended a connection at a greeting")  # as it was stopped
            version = message.version or "an earlier release"
            raise WrongPort(f"the broker at {link.address} is {version}: use a client of its release")
        greeting = super().greeting_of(link, message)
        name = None if link.context is None else link.context.get_extra_info("sockname")
        self.own_host = host_bytes(*name[:2]) if isinstance(name, tuple) else bytes(8)
        return greeting

    def ungreeted(self, link: Link) -> str:
        link.is_greeted_again = link.address not in self._silent
        self._silent ^= {link.address}
        return super().ungreeted(link)

    def view_of(self, message: ClientMessage) -> ServerView | None:
        if not isinstance(message, wire.RoleResponse):
            return None
        members = {name: address for name, _, address in message.brokers if address}
        master = next((name for name, address in members.items() if address == message.master), "")
        leads = message.role != SLAVE
        return ServerView(
            message.member_id, message.role, message.term, leads, master, message.master, members
        )

    def notice_of(self, message: ClientMessage) -> ServerView | None:
        if not isinstance(message, wire.RoleNotice):
            return None
        leads = message.role != SLAVE
        return ServerView("it", message.role, message.term, leads, "", message.master)

    def encode(self, link: Link, call: Any, request_id: int, now_ms: float) -> list[Buffer]:
        # Only a broker that was asked may take the time to wait for something.
        call.deadline_ms += call.wait_ms * (not call.attempts)
        return super().encode(link, call, request_id, now_ms)

    def answered(
        self, link: Link, call: Any, message: ClientMessage, batch: EntryBatch | None
    ) -> ServerView | None:
        if type(message) is not RESPONSE_OF[type(call.message)]:
            request_type = type(call.message).__name__
            raise ProtocolViolation(f"{type(message).__name__} as the answer to {request_type}")
        return self.view_of(message)


_ONCE = wire.SendRequest | wire.SessionSendRequest | wire.GroupCommandRequest | ChangeUsersRequest


def changes(message: wire.AnyBrokerMessage) -> bool:
    """True if a repetition could have another effect, after another client's change: deleting a
    recreated topic, undoing a reset, demoting a new master."""
    if isinstance(message, wire.ReplicaRequest):
        return message.verb not in ("", "drain", "slave")  # a drain ends by itself, an epoch is checked
    if isinstance(message, wire.FailoverRequest):
        return bool(message.verb)
    if isinstance(message, wire.CommitRequest):
        return message.generation < 0  # a reset begins another one
    return isinstance(message, _ONCE)


def call_of(
    message: wire.AnyBrokerMessage,
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
        is_numbered=isinstance(message, wire.SessionSendRequest),
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
        """`servers`: one HOST:PORT, asked in any role; of several with commas between, the master is
        asked, with `must_follow` that of one, too. `only_looks`: for status requests only; see
        `Product.looks`. Raises ConfigError."""
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
        """Ends waiting calls."""
        await self._io.close()

    async def connected(self) -> None:
        """Raises Unreachable."""
        if not self._product.own_host:
            await self.call(wire.RoleRequest(watches=True))

    def made(
        self, message: wire.AnyBrokerMessage, encoded: Encoded | None = None, wait_ms: int = 0
    ) -> Call:
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
        self, message: wire.AnyBrokerMessage, encoded: Encoded | None = None, wait_ms: int = 0
    ) -> Frame:
        """The answer. Raises the broker's refusal, Unreachable, RequestTimeout, OutcomeUnknown: see
        `quorumlog.net.rpc`."""
        call = self.made(message, encoded, wait_ms)
        self._io.submit((call,))
        await self._io.wait(call)
        return frame_of_answer(call)

    async def ask(
        self,
        message: wire.AnyBrokerMessage,
        kind: type[_Answer],
        encoded: Encoded | None = None,
        wait_ms: int = 0,
    ) -> _Answer:
        """An answer without records; `kind`: the one of `RESPONSE_OF`. Raises as `call`."""
        answer = (await self.call(message, encoded, wait_ms)).message
        assert isinstance(answer, kind), answer
        return answer

    async def queues(self, topic: str) -> list[QueueInfo]:
        """Of this topic; empty: of all."""
        answer = await self.ask(wire.QueuesRequest(topic=topic), wire.QueuesResponse)
        return [
            QueueInfo(row.topic, row.queue_id, row.min_offset, row.max_offset) for row in answer.queues
        ]

    async def offset_for(self, queue: QueueInfo, at: StartPoint) -> int:
        """Of the first message there is at or after `at`."""
        if at == EARLIEST:
            return queue.min_offset
        if at == LATEST:
            return queue.max_offset
        assert not isinstance(at, str)
        request = wire.OffsetAtRequest(
            topic=queue.topic, queue_id=queue.queue_id, time_ms=milliseconds(at, 0)
        )
        return max((await self.ask(request, wire.OffsetResponse)).offset, queue.min_offset)


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
