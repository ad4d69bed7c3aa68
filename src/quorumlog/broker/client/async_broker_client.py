"""AsyncBrokerClient: for asyncio. Sends that begin in one turn of the loop leave as one batch."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Self

from quorumlog.broker import wire
from quorumlog.broker.client.broker_calls import (
    DEFAULT_TIMEOUT_MS,
    BrokerCalls,
    PullResult,
    QueueInfo,
    SendReceipt,
    TimeRange,
    UniqKeys,
    checked,
    encode_messages,
    frame_of_answer,
    milliseconds,
    pulled_of,
    receipt_of,
    time_range,
)
from quorumlog.broker.errors import UnknownTopic
from quorumlog.broker.message import Message, StoredMessage, physical_offset_of
from quorumlog.broker.wire import records_of
from quorumlog.errors import BadRequest, BodyTooLarge
from quorumlog.net.credentials import ClientUser
from quorumlog.net.rpc.calls import Call
from quorumlog.net.tls import ClientTls

_JOIN_BYTES = 1 << 20
_TURNS = 1 << 16


class AsyncBrokerClient:
    """Raises the broker's refusals, Unreachable, OutcomeUnknown.

    `server`: HOST:PORT; several, separated by commas, are brokers that replicate each other: the client
    finds the present master. A send whose outcome is unknown is never repeated."""

    def __init__(
        self,
        server: str,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
        only_looks: bool = False,
    ) -> None:
        """`only_looks`: at how a broker is, for a few seconds: also where it refuses connections."""
        self.server = server
        self._calls = BrokerCalls(server, timeout_ms, only_looks=only_looks, tls=tls, user=user)
        self._keys = UniqKeys()
        # As of RocketMQ's producers: many short lives must not all send to the first queue.
        self._turn = itertools.count(secrets.randbelow(_TURNS))
        self._counts: dict[str, int] = {}
        self._joining: dict[
            tuple[str, int, bool], tuple[list[Message], list[asyncio.Future[SendReceipt]]]
        ] = {}
        self._sending: set[Call] = set()
        self._all_sent: asyncio.Future[None] | None = None
        """Of a `close` that waits for them."""

    async def __aenter__(self) -> Self:
        await self._calls.connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Pending sends are sent first. May be repeated."""
        await asyncio.sleep(0)  # what this turn has begun
        if self._sending:
            if self._all_sent is None or self._all_sent.done():
                self._all_sent = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._all_sent)  # others may wait for it, too
        await self._end()

    async def _end(self) -> None:
        await self._calls.close()

    # ---------------------------------------------------------------- sending

    async def send(self, message: Message, *, queue_id: int | None = None) -> SendReceipt:
        """Store a message in a queue, round-robin unless one is named. Returns when the broker
        acknowledges it. Raises UnknownTopic, TopicNotPermitted, BodyTooLarge, BadRequest;
        OutcomeUnknown, whose FlushDiskTimeout and FlushSlaveTimeout mean that it is written, but not
        yet as durable as requested."""
        if queue_id is None:
            queue_id = next(self._turn) % await self.queue_count(message.topic)
        key = (message.topic, queue_id, message.wait)
        loop = self._calls.running_loop()
        joined = self._joining.get(key)
        if joined is None:
            if not self._joining:
                loop.call_soon(self._send_joined)
            joined = self._joining[key] = ([], [])
        receipt: asyncio.Future[SendReceipt] = loop.create_future()
        joined[0].append(message)
        joined[1].append(receipt)
        return await receipt

    def _send_joined(self) -> None:
        joining, self._joining = self._joining, {}
        calls: list[Call] = []
        for (_, queue_id, _), (messages, receipts) in joining.items():
            begin, size = 0, 0
            for at, message in enumerate(messages):
                size += len(message.body)
                if size >= _JOIN_BYTES or at + 1 == len(messages):
                    part = slice(begin, at + 1)
                    calls += self._sends(messages[part], receipts[part], queue_id)
                    begin, size = at + 1, 0
        self._calls.submit_at_end(calls)

    def _sends(
        self, messages: list[Message], receipts: list[asyncio.Future[SendReceipt]], queue_id: int
    ) -> list[Call]:
        """One call, as a rule; the receipts are set when it is done."""
        try:
            encoded = encode_messages(messages, queue_id, self._keys, self._calls.own_host)
        except Exception as error:
            return self._singly(messages, receipts, queue_id, error)
        call = self._calls.made(wire.SendRequest(waits=encoded.waits), encoded)
        self._sending.add(call)

        def sent(call: Call) -> None:
            try:
                sizes = zip(itertools.repeat(1), encoded.sizes, strict=False)
                singles = receipt_of(frame_of_answer(call), encoded).split(sizes)
            except Exception as error:
                again = self._singly(messages, receipts, queue_id, error)
                if again:
                    asyncio.get_running_loop().call_soon(self._calls.submit_at_end, again)
            else:
                for receipt, single in zip(receipts, singles, strict=True):
                    if not receipt.done():
                        receipt.set_result(single)
            self._sending.discard(call)
            if self._all_sent is not None and not self._sending and not self._all_sent.done():
                self._all_sent.set_result(None)

        call.on_done = sent
        return [call]

    def _singly(
        self,
        messages: list[Message],
        receipts: list[asyncio.Future[SendReceipt]],
        queue_id: int,
        error: Exception,
    ) -> list[Call]:
        """Of several one may be too large or make no sense: it harms nobody else."""
        if len(messages) > 1 and isinstance(error, BadRequest | BodyTooLarge):
            parts = zip(messages, receipts, strict=True)
            return [call for each, its in parts for call in self._sends([each], [its], queue_id)]
        if isinstance(error, UnknownTopic):
            self._counts.pop(messages[0].topic, None)  # it may be there again with fewer queues
        for receipt in receipts:
            if not receipt.done():
                receipt.set_exception(error)
        return []

    async def send_batch(
        self, messages: Sequence[Message], *, queue_id: int | None = None
    ) -> SendReceipt:
        """Messages of one topic, into one queue, round-robin unless one is named. All or none are
        stored."""
        if queue_id is None:
            queue_id = next(self._turn) % await self.queue_count(messages[0].topic) if messages else 0
        await self._calls.connected()
        encoded = encode_messages(messages, queue_id, self._keys, self._calls.own_host)
        try:
            return receipt_of(
                await self._calls.call(wire.SendRequest(waits=encoded.waits), encoded), encoded
            )
        except UnknownTopic:
            self._counts.pop(encoded.topic, None)
            raise

    async def queue_count(self, topic: str) -> int:
        """Number of queues of a topic. Raises UnknownTopic."""
        count = self._counts.get(topic, 0)
        if not count:
            count = 1 + max((queue.queue_id for queue in await self.queues(topic)), default=-1)
            if not count:
                raise UnknownTopic(f"the broker has no topic {topic}")
            self._counts[topic] = count
        return count

    # ---------------------------------------------------------------- reading

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        most_messages: int = 1024,
        most_bytes: int = 1 << 20,
        wait_ms: int = 0,
    ) -> PullResult:
        """Messages of a queue from the one of this number on, at most so many and about `most_bytes`; at
        the end of the queue after `wait_ms`, or none. Raises UnknownTopic, TopicNotPermitted,
        QueueOffsetOutOfRange, MessageDamaged."""
        request = wire.PullRequest(
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            most_messages=most_messages,
            most_bytes=most_bytes,
            wait_ms=wait_ms,
        )
        return pulled_of(await self._calls.call(request, wait_ms=wait_ms))

    async def query(
        self, topic: str, key: str, *, time: TimeRange | None = None, most_messages: int = 64
    ) -> list[StoredMessage]:
        """Messages with this key, the newest first; `time`: stored from .. to, milliseconds since 1970
        or datetimes, None: without a bound. Raises BadRequest where the broker keeps no index,
        MessageDamaged."""
        begin_ms, end_ms = time_range(time)
        request = wire.QueryRequest(
            topic=topic, key=key, begin_ms=begin_ms, end_ms=end_ms, most_messages=most_messages
        )
        return await self._messages(request)

    async def message(self, message_id: str) -> StoredMessage:
        """The message with this id, as in its receipt. Raises NoSuchMessage; BadRequest for an invalid
        id."""
        return (await self._messages(wire.ViewRequest(physical_offset=physical_offset_of(message_id))))[
            0
        ]

    async def _messages(self, request: wire.QueryRequest | wire.ViewRequest) -> list[StoredMessage]:
        return checked(records_of(await self._calls.call(request))).messages()

    async def queues(self, topic: str = "") -> list[QueueInfo]:
        """Of all topics, or of this one: oldest offset and next offset of each queue."""
        return await self._calls.queues(topic)

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Of the oldest message; of an empty queue the next offset. Raises UnknownTopic."""
        return (await self._queue(topic, queue_id)).min_offset

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Of the next message. Raises UnknownTopic."""
        return (await self._queue(topic, queue_id)).max_offset

    async def _queue(self, topic: str, queue_id: int) -> QueueInfo:
        queues = await self.queues(topic)
        for queue in queues:
            if queue.queue_id == queue_id:
                return queue
        if queues:
            raise UnknownTopic(f"topic {topic} has no queue {queue_id}: it has {len(queues)}")
        raise UnknownTopic(f"the broker has no topic {topic}; quorumlog broker status lists its topics")

    async def offset_at(self, topic: str, queue_id: int, time: float | datetime) -> int:
        """Of the first message of the queue that was stored at this time (a datetime, or milliseconds
        since 1970) or later; that of the next message if there is none. Raises UnknownTopic."""
        request = wire.OffsetAtRequest(topic=topic, queue_id=queue_id, time_ms=milliseconds(time, 0))
        return (await self._calls.ask(request, wire.OffsetResponse)).offset

    async def status(self) -> wire.BrokerStatusResponse:
        """State of the broker: role, offsets in bytes, queues, problems."""
        return await self._calls.ask(wire.BrokerStatusRequest(), wire.BrokerStatusResponse)

    async def old_log(self, position: int = 0, size_bytes: int = 0) -> wire.OldLogResponse:
        """Bytes of the classic store that the broker's group has taken over: `size_bytes` from
        `position` on; without a size its record (`taken-over`)."""
        request = wire.OldLogRequest(position=position, size_bytes=size_bytes)
        return await self._calls.ask(request, wire.OldLogResponse)

    async def replica(self, request: wire.ReplicaRequest | None = None) -> wire.ReplicaResponse:
        """State of a master or a slave, after the requested change. Raises NotReplicated."""
        return await self._calls.ask(request or wire.ReplicaRequest(), wire.ReplicaResponse)

    async def failover(self, *, resigns: bool = False) -> wire.FailoverResponse:
        """State of the broker towards its coordinator; `resigns`: after it has given up leadership.
        Raises NotReplicated."""
        request = wire.FailoverRequest(verb="resign" if resigns else "")
        return await self._calls.ask(request, wire.FailoverResponse)


def connect_async(
    server: str,
    *,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    tls: ClientTls | None = None,
    user: ClientUser | None = None,
) -> AsyncBrokerClient:
    """A client of the broker at `host:port`, which connects when it is first used."""
    return AsyncBrokerClient(server, timeout_ms=timeout_ms, tls=tls, user=user)
