"""AsyncBrokerClient: for asyncio. Sends that begin in one turn of the loop leave as one batch."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Self

from quorumlog.broker.client.async_link import AsyncLinks
from quorumlog.broker.client.broker_results import PullResult, QueueInfo, SendReceipt, checked
from quorumlog.broker.client.broker_verbs import (
    DEFAULT_TIMEOUT_MS,
    TimeRange,
    UniqKeys,
    answer_of,
    encode_messages,
    milliseconds,
    pulled_of,
    queue_among,
    queue_counts,
    queues_of,
    receipt_of,
    time_range,
)
from quorumlog.broker.errors import UnknownTopic
from quorumlog.broker.message import Message, StoredMessage, physical_offset_of
from quorumlog.broker.wire import (
    FailoverRequest,
    FailoverResponse,
    OffsetAtRequest,
    OffsetResponse,
    PullRequest,
    QueryRequest,
    QueuesRequest,
    ReplicaRequest,
    ReplicaResponse,
    SendRequest,
    StatusRequest,
    StatusResponse,
    ViewRequest,
    records_of,
)
from quorumlog.errors import BadRequest, BodyTooLarge

_JOIN_BYTES = 1 << 20
_TURNS = 1 << 16


class AsyncBrokerClient:
    """Of one event loop. Raises what the broker refuses with, Unreachable, OutcomeUnknown.

    `server`: HOST:PORT; several with commas between are brokers that replicate each other, of which the
    master is asked, whoever that is by then. A send whose outcome is unknown is never repeated."""

    def __init__(self, server: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        self.server = server
        self._links = AsyncLinks(server, timeout_ms)
        self._keys = UniqKeys()
        # As of RocketMQ's producers: many short lives must not all send to the first queue.
        self._turn = itertools.count(secrets.randbelow(_TURNS))
        self._counts: dict[str, int] = {}
        self._joining: dict[
            tuple[str, int, bool], tuple[list[Message], list[asyncio.Future[SendReceipt]]]
        ] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._links.connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """What was given to it is sent first. May be repeated."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._links.close()

    # ---------------------------------------------------------------- sending

    async def send(self, message: Message, *, queue_id: int | None = None) -> SendReceipt:
        """See `BrokerClient.send`. What tasks begin to send in one turn leaves together; each has its
        own receipt."""
        if queue_id is None:
            queue_id = next(self._turn) % await self.queue_count(message.topic)
        key = (message.topic, queue_id, message.wait)
        joined = self._joining.get(key)
        if joined is None:
            if not self._joining:
                asyncio.get_running_loop().call_soon(self._send_joined)
            joined = self._joining[key] = ([], [])
        receipt: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        joined[0].append(message)
        joined[1].append(receipt)
        return await receipt

    def _send_joined(self) -> None:
        joining, self._joining = self._joining, {}
        for (_, queue_id, _), (messages, receipts) in joining.items():
            begin, size = 0, 0
            for at, message in enumerate(messages):
                size += len(message.body)
                if size >= _JOIN_BYTES or at + 1 == len(messages):
                    self._start(
                        self._send_part(messages[begin : at + 1], receipts[begin : at + 1], queue_id)
                    )
                    begin, size = at + 1, 0

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_part(
        self, messages: list[Message], receipts: list[asyncio.Future[SendReceipt]], queue_id: int
    ) -> None:
        try:
            encoded = encode_messages(messages, queue_id, self._keys, self._links.own_host)
            whole = receipt_of(
                await self._links.call(SendRequest(waits=encoded.waits), encoded), encoded
            )
        except Exception as error:
            if len(messages) > 1 and isinstance(error, BadRequest | BodyTooLarge):
                # One of them is too large or makes no sense: it harms nobody else.
                for message, receipt in zip(messages, receipts, strict=True):
                    await self._send_part([message], [receipt], queue_id)
                return
            if isinstance(error, UnknownTopic):
                self._counts.pop(messages[0].topic, None)  # it may be there again with fewer queues
            for receipt in receipts:
                if not receipt.done():
                    receipt.set_exception(error)
            return
        for receipt, single in zip(receipts, whole.singles(encoded.sizes), strict=True):
            if not receipt.done():
                receipt.set_result(single)

    async def send_batch(
        self, messages: Sequence[Message], *, queue_id: int | None = None
    ) -> SendReceipt:
        """See `BrokerClient.send_batch`."""
        if queue_id is None:
            queue_id = next(self._turn) % await self.queue_count(messages[0].topic) if messages else 0
        await self._links.connected()
        encoded = encode_messages(messages, queue_id, self._keys, self._links.own_host)
        try:
            return receipt_of(await self._links.call(SendRequest(waits=encoded.waits), encoded), encoded)
        except UnknownTopic:
            self._counts.pop(encoded.topic, None)
            raise

    async def queue_count(self, topic: str) -> int:
        """See `BrokerClient.queue_count`."""
        count = self._counts.get(topic, 0)
        if not count:
            self._counts |= queue_counts(await self.queues(topic))
            count = self._counts.get(topic, 0)
            if not count:
                raise UnknownTopic(f"the broker has no topic {topic}")
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
        """See `BrokerClient.pull`."""
        request = PullRequest(
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            most_messages=most_messages,
            most_bytes=most_bytes,
            wait_ms=wait_ms,
        )
        return pulled_of(await self._links.call(request, wait_ms=wait_ms))

    async def query(
        self, topic: str, key: str, *, time: TimeRange | None = None, most_messages: int = 64
    ) -> list[StoredMessage]:
        """See `BrokerClient.query`."""
        begin_ms, end_ms = time_range(time)
        request = QueryRequest(
            topic=topic, key=key, begin_ms=begin_ms, end_ms=end_ms, most_messages=most_messages
        )
        return await self._messages(request)

    async def message(self, message_id: str) -> StoredMessage:
        """See `BrokerClient.message`."""
        return (await self._messages(ViewRequest(physical_offset=physical_offset_of(message_id))))[0]

    async def _messages(self, request: QueryRequest | ViewRequest) -> list[StoredMessage]:
        frame = await self._links.call(request)
        answer_of(frame)
        return checked(records_of(frame)).messages()

    async def queues(self, topic: str = "") -> list[QueueInfo]:
        """See `BrokerClient.queues`."""
        return queues_of(await self._links.call(QueuesRequest(topic=topic)))

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """See `BrokerClient.min_offset`."""
        return (await self._queue(topic, queue_id)).min_offset

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """See `BrokerClient.max_offset`."""
        return (await self._queue(topic, queue_id)).max_offset

    async def _queue(self, topic: str, queue_id: int) -> QueueInfo:
        return queue_among(await self.queues(topic), topic, queue_id)

    async def offset_at(self, topic: str, queue_id: int, time: float | datetime) -> int:
        """See `BrokerClient.offset_at`."""
        request = OffsetAtRequest(topic=topic, queue_id=queue_id, time_ms=milliseconds(time, 0))
        answer = answer_of(await self._links.call(request))
        assert isinstance(answer, OffsetResponse), answer
        return answer.offset

    async def status(self) -> StatusResponse:
        """See `BrokerClient.status`."""
        answer = answer_of(await self._links.call(StatusRequest()))
        assert isinstance(answer, StatusResponse), answer
        return answer

    async def replica(self, request: ReplicaRequest | None = None) -> ReplicaResponse:
        """See `BrokerClient.replica`."""
        asked = ReplicaRequest() if request is None else request
        answer = answer_of(await self._links.call(asked))
        assert isinstance(answer, ReplicaResponse), answer
        return answer

    async def failover(self, *, resigns: bool = False) -> FailoverResponse:
        """See `BrokerClient.failover`."""
        asked = FailoverRequest(verb="resign" if resigns else "")
        answer = answer_of(await self._links.call(asked))
        assert isinstance(answer, FailoverResponse), answer
        return answer


def connect_async(server: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> AsyncBrokerClient:
    """A client of the broker at `host:port`, which connects when it is first used."""
    return AsyncBrokerClient(server, timeout_ms=timeout_ms)
