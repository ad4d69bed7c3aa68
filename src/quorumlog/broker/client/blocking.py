"""Clients of a broker for programs without asyncio. Any thread may call.

Written by harness/blocking_clients.py: do not edit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from quorumlog.broker import group_commands as commands
from quorumlog.broker import wire
from quorumlog.broker.client.async_broker_admin import ALL_PERMISSIONS, AsyncBrokerAdmin, QueueLag
from quorumlog.broker.client.async_broker_client import AsyncBrokerClient
from quorumlog.broker.client.async_consumer import AsyncConsumer
from quorumlog.broker.client.async_producer import AsyncProducer, Selector
from quorumlog.broker.client.blocking_shells import ONE_MEMBER, BlockingRun, ConnectingShell
from quorumlog.broker.client.broker_calls import (
    DEFAULT_TIMEOUT_MS,
    EARLIEST,
    PullResult,
    QueueInfo,
    SendReceipt,
    StartPoint,
    TimeRange,
)
from quorumlog.broker.group_commands import MOST_RETRIES, QueueRow
from quorumlog.broker.message import Message, StoredMessage
from quorumlog.errors import BadRequest
from quorumlog.log_state.users import UserOrder
from quorumlog.net.credentials import ClientUser
from quorumlog.net.loop_thread import ONE_SESSION, ClientShell
from quorumlog.net.tls import ClientTls
from quorumlog.wire.client_messages import UsersResponse


class BrokerClient(ConnectingShell):
    """Raises the broker's refusals, Unreachable, OutcomeUnknown.

    `server`: HOST:PORT; several, separated by commas, are brokers that replicate each other: the client
    finds the present master. A send whose outcome is unknown is never repeated."""

    @property
    def server(self) -> str:
        return self._it.server

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
        super().__init__(
            lambda: AsyncBrokerClient(
                server, timeout_ms=timeout_ms, tls=tls, user=user, only_looks=only_looks
            ),
            lambda: BadRequest("the client is closed: create a new one"),
            end=AsyncBrokerClient._end,
        )
        self._connect()

    def send(self, message: Message, *, queue_id: int | None = None) -> SendReceipt:
        """Store a message in a queue, round-robin unless one is named. Returns when the broker
        acknowledges it. Raises UnknownTopic, TopicNotPermitted, BodyTooLarge, BadRequest;
        OutcomeUnknown, whose FlushDiskTimeout and FlushSlaveTimeout mean that it is written, but not
        yet as durable as requested."""
        return self._thread.run(self._it.send(message, queue_id=queue_id))

    def send_batch(self, messages: Sequence[Message], *, queue_id: int | None = None) -> SendReceipt:
        """Messages of one topic, into one queue, round-robin unless one is named. All or none are
        stored."""
        return self._thread.run(self._it.send_batch(messages, queue_id=queue_id))

    def queue_count(self, topic: str) -> int:
        """Number of queues of a topic. Raises UnknownTopic."""
        return self._thread.run(self._it.queue_count(topic))

    def pull(
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
        return self._thread.run(
            self._it.pull(
                topic,
                queue_id,
                offset,
                most_messages=most_messages,
                most_bytes=most_bytes,
                wait_ms=wait_ms,
            )
        )

    def query(
        self, topic: str, key: str, *, time: TimeRange | None = None, most_messages: int = 64
    ) -> list[StoredMessage]:
        """Messages with this key, the newest first; `time`: stored from .. to, milliseconds since 1970
        or datetimes, None: without a bound. Raises BadRequest where the broker keeps no index,
        MessageDamaged."""
        return self._thread.run(self._it.query(topic, key, time=time, most_messages=most_messages))

    def message(self, message_id: str) -> StoredMessage:
        """The message with this id, as in its receipt. Raises NoSuchMessage; BadRequest for an invalid
        id."""
        return self._thread.run(self._it.message(message_id))

    def queues(self, topic: str = "") -> list[QueueInfo]:
        """Of all topics, or of this one: oldest offset and next offset of each queue."""
        return self._thread.run(self._it.queues(topic))

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Of the oldest message; of an empty queue the next offset. Raises UnknownTopic."""
        return self._thread.run(self._it.min_offset(topic, queue_id))

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Of the next message. Raises UnknownTopic."""
        return self._thread.run(self._it.max_offset(topic, queue_id))

    def offset_at(self, topic: str, queue_id: int, time: float | datetime) -> int:
        """Of the first message of the queue that was stored at this time (a datetime, or milliseconds
        since 1970) or later; that of the next message if there is none. Raises UnknownTopic."""
        return self._thread.run(self._it.offset_at(topic, queue_id, time))

    def status(self) -> wire.BrokerStatusResponse:
        """State of the broker: role, offsets in bytes, queues, problems."""
        return self._thread.run(self._it.status())

    def old_log(self, position: int = 0, size_bytes: int = 0) -> wire.OldLogResponse:
        """Bytes of the classic store that the broker's group has taken over: `size_bytes` from
        `position` on; without a size its record (`taken-over`)."""
        return self._thread.run(self._it.old_log(position, size_bytes))

    def replica(self, request: wire.ReplicaRequest | None = None) -> wire.ReplicaResponse:
        """State of a master or a slave, after the requested change. Raises NotReplicated."""
        return self._thread.run(self._it.replica(request))

    def failover(self, *, resigns: bool = False) -> wire.FailoverResponse:
        """State of the broker towards its coordinator; `resigns`: after it has given up leadership.
        Raises NotReplicated."""
        return self._thread.run(self._it.failover(resigns=resigns))


class Producer(ClientShell[AsyncProducer]):
    """Raises the broker's refusals, Unreachable, OutcomeUnknown.

    `idempotent`: every message is stored once, through any failure. `producer_id`: the same across
    restarts of the program; fences an earlier client with that id (ProducerFenced)."""

    @property
    def producer_id(self) -> str:
        return self._it.producer_id

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
        super().__init__(
            lambda: AsyncProducer(
                servers,
                idempotent=idempotent,
                producer_id=producer_id,
                timeout_ms=timeout_ms,
                tls=tls,
                user=user,
            ),
            lambda: BadRequest("the client is closed: create a new one"),
            end=AsyncProducer._end,
            stays_with_parent=ONE_SESSION if producer_id else "",
        )

    def send(
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
        return self._thread.run(
            self._it.send(
                message,
                queue_id=queue_id,
                order_key=order_key,
                selector=selector,
                delay_level=delay_level,
            )
        )

    def send_batch(
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
        return self._thread.run(
            self._it.send_batch(
                messages,
                queue_id=queue_id,
                order_key=order_key,
                selector=selector,
                delay_level=delay_level,
            )
        )

    def queue_count(self, topic: str) -> int:
        """Number of queues of a topic. Raises UnknownTopic."""
        return self._thread.run(self._it.queue_count(topic))

    def last_sequence(self) -> int:
        """Sequence number of the newest message of this producer in the log, from 0; -1: none.
        Connects, which fences an earlier client with the id."""
        return self._thread.run(self._it.last_sequence())


class Consumer(BlockingRun):
    """A member of a consumer group.

    `begin`: where to start a queue without a committed offset: "earliest", "latest", or a time. `name`:
    of this member, unique in its group. `orderly`: no other member reads a queue while this one handles
    a message of it, even if the queue is reassigned meanwhile: the other waits until this member has
    finished it, or has been silent for too long."""

    @property
    def name(self) -> str:
        return self._it.name

    def __init__(
        self,
        servers: str,
        group: str,
        topics: Mapping[str, str] | str,
        *,
        begin: StartPoint = EARLIEST,
        name: str = "",
        most_retries: int = MOST_RETRIES,
        orderly: bool = False,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """`topics`: tags by topic, as in `{"orders": "food || drink"}`; or one topic, all of it. Raises
        ConfigError, BadRequest."""
        super().__init__(
            lambda: AsyncConsumer(
                servers,
                group,
                topics,
                begin=begin,
                name=name,
                most_retries=most_retries,
                orderly=orderly,
                timeout_ms=timeout_ms,
                tls=tls,
                user=user,
            ),
            lambda: BadRequest("the client is closed: create a new one"),
            stays_with_parent=ONE_MEMBER,
        )

    def commit(self) -> list[QueueRow]:
        """Commit the offsets of all `poll`ed messages; returns once that is replicated. Returns the
        queues (topic, number) that were lost meanwhile: reassigned, or reset; their uncommitted
        messages are delivered again to the present owner. Raises StaleGeneration if this member has
        lost all its queues, because it was silent for too long."""
        return self._thread.run(self._it.commit())

    def retry(self, message: StoredMessage, *, delay_level: int = 0, cause: str = "") -> SendReceipt:
        """Deliver it to the group again after a delay that grows with each attempt, or that of
        `delay_level` (1 to 18); after 16 attempts it goes to the group's %DLQ% topic, with `cause`. A
        message whose properties leave no room for those of a retry (an old log may have some) goes
        there at once. Raises the errors of a producer's `send`."""
        return self._thread.run(self._it.retry(message, delay_level=delay_level, cause=cause))


class BrokerAdmin(ClientShell[AsyncBrokerAdmin]):
    """Raises the broker's refusals, Unreachable, RequestTimeout; a change may raise
    OutcomeUnknown: check whether it was made. A change is never repeated automatically."""

    def __init__(
        self,
        servers: str,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """Raises ConfigError."""
        super().__init__(
            lambda: AsyncBrokerAdmin(servers, timeout_ms=timeout_ms, tls=tls, user=user),
            lambda: BadRequest("the client is closed: create a new one"),
        )

    def route(self) -> wire.RoleResponse:
        """The master, and the addresses of the other brokers."""
        return self._thread.run(self._it.route())

    def change_users(self, order: UserOrder) -> int:
        """Of classic brokers; those on a replicated log have its users. Returns the number of the
        change among the broker's commands. Raises BadRequest for an invalid change, Forbidden,
        SwitchRefused where a slave is of an earlier release."""
        return self._thread.run(self._it.change_users(order))

    def users(self) -> UsersResponse:
        """The users, and the grants of each role."""
        return self._thread.run(self._it.users())

    def create_topic(
        self, topic: str, queues: int = 4, *, perm: int = ALL_PERMISSIONS, retention_ms: int = 0
    ) -> None:
        """`perm`: 4 read, 2 send, 6 both. `retention_ms`: how long messages are shown, 0: as long as
        the log has them. Raises TopicExists if the topic exists with other settings, TooManyNames,
        BadRequest for an invalid name."""
        self._thread.run(self._it.create_topic(topic, queues, perm=perm, retention_ms=retention_ms))

    def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        perm: int | None = None,
        retention_ms: int | None = None,
    ) -> None:
        """None: unchanged; queues cannot be reduced. Raises UnknownTopic, BadRequest."""
        self._thread.run(
            self._it.update_topic(topic, queues=queues, perm=perm, retention_ms=retention_ms)
        )

    def delete_topic(self, topic: str) -> None:
        """Its messages are no longer shown, even if a topic of the name is created again. No effect if
        there is none. Raises BadRequest for a topic of the broker's own."""
        self._thread.run(self._it.delete_topic(topic))

    def topics(self, topic: str = "", *, system: bool = False) -> list[commands.TopicRow]:
        """All topics, or this one, by name, with their settings; `system`: including the broker's own.
        Raises UnknownTopic."""
        return self._thread.run(self._it.topics(topic, system=system))

    def queues(self, topic: str = "") -> list[QueueInfo]:
        """Of all topics, or of this one: oldest offset and next offset of each queue."""
        return self._thread.run(self._it.queues(topic))

    def groups(self, group: str = "") -> list[commands.GroupRow]:
        """All groups, or this one: members, their queues, committed offsets. Raises
        UnknownConsumerGroup."""
        return self._thread.run(self._it.groups(group))

    def create_group(self, group: str) -> None:
        """No effect if it exists. Raises TooManyNames."""
        self._thread.run(self._it.create_group(group))

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """(topic, queue) -> offset of the next message, for a group without members, whose messages
        another program reads. Offsets never decrease. Raises UnknownConsumerGroup, UnknownGroupMember.
        """
        self._thread.run(self._it.commit(group, offsets))

    def delete_group(self, group: str) -> None:
        """With its offsets, and its topics for retries. Raises GroupInUse while members read in it,
        UnknownConsumerGroup."""
        self._thread.run(self._it.delete_group(group))

    def dead_letters(
        self, group: str, offset: int = 0, *, most_messages: int = 100
    ) -> list[StoredMessage]:
        """Messages of the group that exceeded their retries, from this offset of its %DLQ% topic on:
        their properties DLQ_CAUSE and DLQ_ATTEMPT have the cause and the number of attempts. Raises
        UnknownConsumerGroup."""
        return self._thread.run(self._it.dead_letters(group, offset, most_messages=most_messages))

    def resend(self, group: str, offsets: Sequence[int]) -> int:
        """Send dead letters, by offset, to their group again, as if for the first time; other groups do
        not see them. They stay in the %DLQ% topic: the caller keeps track. Returns their number. Raises
        BadRequest, UnknownConsumerGroup, OutcomeUnknown."""
        return self._thread.run(self._it.resend(group, offsets))

    def lag(self, group: str) -> list[QueueLag]:
        """Of every queue that the group reads, or has committed an offset of. Raises
        UnknownConsumerGroup."""
        return self._thread.run(self._it.lag(group))

    def reset(
        self, group: str, to: str | float | datetime, topics: Sequence[str] = ()
    ) -> dict[tuple[str, int], int]:
        """Set the group's offsets to "earliest", "latest" or a time (a datetime, or milliseconds since
        1970), for these topics or all that it reads. Returns the offsets by (topic, queue). Commits of
        messages in progress are ignored. Raises UnknownConsumerGroup, UnknownTopic, and BadRequest if
        there is nothing to reset."""
        return self._thread.run(self._it.reset(group, to, topics))


def connect(
    server: str,
    *,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    tls: ClientTls | None = None,
    user: ClientUser | None = None,
) -> BrokerClient:
    """A client of the broker at `host:port`. Raises Unreachable, ConfigError."""
    return BrokerClient(server, timeout_ms=timeout_ms, tls=tls, user=user)
