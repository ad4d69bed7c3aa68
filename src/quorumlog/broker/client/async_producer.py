"""AsyncProducer: messages to topics of a replicated broker, in order, through failovers.

Messages sent while a batch of the same queue is in flight form the next batch. An idempotent producer
has one such lane for all queues, in a session of the log: batches with unknown outcomes are sent again,
and stored once.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from quorumlog.broker import wire
from quorumlog.broker.client.broker_calls import (
    DEFAULT_TIMEOUT_MS,
    BrokerCalls,
    Encoded,
    SendReceipt,
    UniqKeys,
    encode_messages,
    receipt_of,
)
from quorumlog.broker.errors import UnknownTopic
from quorumlog.broker.group_commands import LEVELS, REAL_QUEUE, REAL_TOPIC, SYSTEM_PREFIX
from quorumlog.broker.message import DELAY, SCHEDULE_TOPIC, Message
from quorumlog.broker.record_batch import java_hash
from quorumlog.errors import (
    BadRequest,
    ConfigError,
    OutcomeUnknown,
    ProducerExpired,
    ProducerFenced,
    Refused,
)
from quorumlog.log_state.control_entries import ANONYMOUS
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls

BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 1024
ROUTE_INTERVAL_S = 30.0
"""Queues that a topic gets are used so late at most, as by RocketMQ's clients."""
MOST_WAITING = 100_000
Selector = Callable[[Message, int], int]
"""(message, number of queues) to the queue it goes to."""


class _Part(NamedTuple):
    """Of one call: messages of one queue, stored together."""

    encoded: Encoded
    done: asyncio.Future[SendReceipt]


class _Lane:
    def __init__(self) -> None:
        self.waiting: list[_Part] = []
        self.task: asyncio.Task[None] | None = None


class AsyncProducer:
    """Raises the broker's refusals, Unreachable, OutcomeUnknown.

    `idempotent`: every message is stored once, through any failure. `producer_id`: the same across
    restarts of the program; fences an earlier client with that id (ProducerFenced)."""

    def __init__(
        self,
        servers: str,
        *,
        idempotent: bool = False,
        producer_id: str = "",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """Raises ConfigError."""
        self._link = BrokerCalls(servers, timeout_ms, must_follow=True, tls=tls, user=user)
        self._keys = UniqKeys()
        self._turn = itertools.count()
        self._queues: dict[str, tuple[int, float]] = {}
        """topic -> how many, and until when that is taken for true, by the loop's clock."""
        self._lanes: dict[tuple[str, int, bool], _Lane] = {}
        if producer_id.startswith((ANONYMOUS, SYSTEM_PREFIX)):
            raise ConfigError(
                f"a producer's id cannot begin with {producer_id[0]!r}: choose another one"
            )
        self._is_session = idempotent or bool(producer_id)
        self._is_anonymous = not producer_id
        self.producer_id = producer_id or ANONYMOUS + os.urandom(16).hex()
        self._epoch: tuple[int, int] | None = None
        """The last one that was opened."""
        self._must_open = True
        self._token = b""
        """Of the epoch that is to begin next; empty: not drawn yet."""
        self._sequence = 0
        self._waiting = 0
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Pending sends are sent first; later ones raise BadRequest."""
        self._is_closed = True
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._end()

    async def _end(self) -> None:
        self._is_closed = True
        await self._link.close()

    # ---------------------------------------------------------------- sending

    async def send(
        self,
        message: Message,
        *,
        queue_id: int | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
        delay_level: int = 0,
    ) -> SendReceipt:
        """Store a message; returns when the broker acknowledges it. It goes to `queue_id`; or to the
        queue that `selector` returns; or to one queue for all messages with the same `order_key`, in
        the order of the calls; else round-robin. `delay_level`: 1 to 18; consumers get it after that
        level's delay. Raises UnknownTopic (also for a missing queue), TopicNotPermitted, BodyTooLarge,
        BadRequest for an invalid message, and while 100,000 messages wait."""
        return await self.send_batch(
            [message],
            queue_id=queue_id,
            order_key=order_key,
            selector=selector,
            delay_level=delay_level,
        )

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue_id: int | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
        delay_level: int = 0,
    ) -> SendReceipt:
        """Messages of one topic, consecutively into one queue, which the first one selects as in
        `send`. All or none are stored; the receipt has the place of the first."""
        if self._is_closed:
            raise BadRequest("the producer is closed")
        if not messages:
            raise BadRequest("a batch has one message at least")
        if not 0 <= delay_level <= LEVELS:
            raise BadRequest(f"a delay level is 1 to {LEVELS}, or 0 for none; not {delay_level}")
        if self._waiting + len(messages) > MOST_WAITING:
            raise BadRequest(f"{self._waiting} messages wait to be sent: await some of them first")
        topic = messages[0].topic
        count, until_s = self._queues.get(topic, (0, 0.0))
        if not count or asyncio.get_running_loop().time() >= until_s:
            count = await self.queue_count(topic)
        if selector is not None:
            queue_id = selector(messages[0], count)
        elif order_key is not None:
            queue_id = abs(java_hash(order_key)) % count
        elif queue_id is None:
            queue_id = next(self._turn) % count
        if not 0 <= queue_id < count:
            raise UnknownTopic(f"topic {topic} has no queue {queue_id}: it has {count}")
        if delay_level:
            messages = [_delayed(each, queue_id, delay_level) for each in messages]
            queue_id = delay_level - 1
        encoded = encode_messages(messages, queue_id, self._keys, self._link.own_host)
        try:
            return await self.send_encoded(encoded)
        except UnknownTopic:
            self._queues.pop(topic, None)  # it was deleted, and may be there again with fewer queues
            raise

    async def send_encoded(self, encoded: Encoded) -> SendReceipt:
        """Send encoded records. Raises the errors of `send`."""
        key = ("", 0, True) if self._is_session else (encoded.topic, encoded.queue_id, encoded.waits)
        lane = self._lanes.setdefault(key, _Lane())
        loop = asyncio.get_running_loop()
        part = _Part(encoded, loop.create_future())
        lane.waiting.append(part)
        self._waiting += len(encoded.sizes)
        if lane.task is None or lane.task.done():
            lane.task = loop.create_task(self._work(lane))
        try:
            return await part.done
        finally:
            self._waiting -= len(encoded.sizes)

    async def queue_count(self, topic: str) -> int:
        """Number of queues of a topic. Raises UnknownTopic."""
        answer = await self._link.ask(wire.TopicRouteRequest(topic=topic), wire.TopicRouteResponse)
        until_s = asyncio.get_running_loop().time() + ROUTE_INTERVAL_S
        self._queues[topic] = answer.queues, until_s
        return answer.queues

    async def _work(self, lane: _Lane) -> None:
        await asyncio.sleep(0)  # what the other tasks of this turn send
        while lane.waiting:
            size = taken = count = 0
            for part in lane.waiting:
                size += len(part.encoded.buffer)
                count += len(part.encoded.sizes)
                if taken and (size > BATCH_BYTES or count > BATCH_MESSAGES):
                    break
                taken += 1
            parts = lane.waiting[:taken]
            del lane.waiting[:taken]
            await self._store(parts)

    async def _store(self, parts: list[_Part]) -> None:
        first = parts[0].encoded
        whole = first
        if len(parts) > 1:
            buffer = bytearray().join([part.encoded.buffer for part in parts])
            sizes = [size for part in parts for size in part.encoded.sizes]
            whole = first._replace(buffer=buffer, sizes=sizes)
        try:
            if self._is_session:
                receipts = await self._store_in_session(parts, whole)
            else:
                frame = await self._link.call(wire.SendRequest(waits=whole.waits), whole)
                shares = [(len(each.encoded.sizes), len(each.encoded.buffer)) for each in parts]
                receipts = list(receipt_of(frame, whole).split(shares))
        except Exception as error:  # whatever it is, its callers hear it, and what waits goes on
            if len(parts) > 1 and isinstance(error, Refused) and not error.retriable:
                for part in parts:  # one of them makes no sense: it harms nobody else
                    await self._store([part])
                return
            for part in parts:
                if not part.done.done():
                    part.done.set_exception(error)
            return
        for part, receipt in zip(parts, receipts, strict=True):
            if not part.done.done():
                part.done.set_result(receipt)

    # ---------------------------------------------------------------- sessions

    async def last_sequence(self) -> int:
        """Sequence number of the newest message of this producer in the log, from 0; -1: none.
        Connects, which fences an earlier client with the id."""
        if self._must_open:
            await self._open()
        return self._sequence - 1

    async def _open(self) -> None:
        """An epoch begins; after a first one it ends that, or raises ProducerFenced."""
        self._token = self._token or os.urandom(16)
        ends = self._epoch
        for _ in range(16):
            request = wire.OpenSessionRequest(producer=self.producer_id, token=self._token, ends=ends)
            try:
                answer = await self._link.ask(request, wire.OpenSessionResponse)
            except ProducerExpired:
                is_named = self._epoch is not None and not self._is_anonymous
                self._epoch = ends = None
                if is_named:
                    raise
                continue
            if answer.opened:
                self._epoch, self._sequence = answer.epoch, answer.last_sequence + 1
                self._token, self._must_open = b"", False
                return
            if self._epoch is not None:
                raise ProducerFenced(
                    f"another client has connected as producer {self.producer_id!r} since"
                )
            ends = answer.epoch
        raise OutcomeUnknown(f"other clients connect as producer {self.producer_id!r} all the time")

    async def _store_in_session(self, parts: list[_Part], whole: Encoded) -> list[SendReceipt]:
        if self._must_open:
            await self._open()
        assert self._epoch is not None
        request = wire.SessionSendRequest(
            producer=self.producer_id, epoch=self._epoch, sequence=self._sequence
        )
        try:
            answer = await self._link.ask(request, wire.SessionSendResponse, whole)
        except ProducerExpired:
            self._epoch, self._must_open = None, True
            if not self._is_anonymous:
                raise
            # It was silent for so long that others have its place; nothing of this is stored.
            return await self._store_in_session(parts, whole)
        except Refused:
            raise  # nothing was stored, and the number is free
        except BaseException:
            self._must_open = True  # a late copy must not come in under a number that means another one
            raise
        self._sequence += len(whole.sizes)
        return _of_session(answer, parts)


def _of_session(answer: wire.SessionSendResponse, parts: Sequence[_Part]) -> list[SendReceipt]:
    offsets = np.frombuffer(answer.queue_offsets, ">i8").tolist()
    positions = np.frombuffer(answer.positions, ">i8").tolist()
    receipts, at = [], 0
    for part in parts:
        count = len(part.encoded.sizes)
        receipts.append(
            SendReceipt(
                part.encoded.topic,
                part.encoded.queue_id,
                offsets[at] if offsets else -1,
                positions[at] if positions else -1,
                count,
                answer.store_time_ms,
                answer.store_host,
            )
        )
        at += count
    return receipts


def _delayed(message: Message, queue_id: int, level: int) -> Message:
    added = {DELAY: str(level), REAL_TOPIC: message.topic, REAL_QUEUE: str(queue_id)}
    return replace(message, topic=SCHEDULE_TOPIC, properties={**message.properties, **added})
