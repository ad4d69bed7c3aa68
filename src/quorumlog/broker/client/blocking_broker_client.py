"""BrokerClient: blocks until the answer is there.

Written by harness/blocking_clients.py: do not edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from quorumlog.broker.client.async_broker_client import AsyncBrokerClient
from quorumlog.broker.client.broker_results import PullResult, QueueInfo, SendReceipt
from quorumlog.broker.client.broker_verbs import DEFAULT_TIMEOUT_MS, TimeRange
from quorumlog.broker.client.connected import Connected
from quorumlog.broker.message import Message, StoredMessage
from quorumlog.broker.wire import (
    FailoverResponse,
    OldLogResponse,
    ReplicaRequest,
    ReplicaResponse,
    StatusResponse,
)
from quorumlog.errors import BadRequest
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls


class BrokerClient(Connected):
    """Of one event loop. Raises what the broker refuses with, Unreachable, OutcomeUnknown.

    `server`: HOST:PORT; several with commas between are brokers that replicate each other, of which the
    master is asked, whoever that is by then. A send whose outcome is unknown is never repeated."""

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
            lambda: BadRequest("the client is closed: make another one"),
            end=AsyncBrokerClient._end,
        )
        self._connect()

    def send(self, message: Message, *, queue_id: int | None = None) -> SendReceipt:
        """Store a message in a queue; the queues take turns unless one is named. Returns when the broker
        has it as it promises. Raises UnknownTopic, TopicNotPermitted, BodyTooLarge, BadRequest;
        OutcomeUnknown, of which FlushDiskTimeout and FlushSlaveTimeout say that it is written, and not
        yet as safe as asked."""
        return self._thread.run(self._it.send(message, queue_id=queue_id))

    def send_batch(self, messages: Sequence[Message], *, queue_id: int | None = None) -> SendReceipt:
        """All of one topic, into one queue; the queues take turns unless one is named. All or nothing
        is stored."""
        return self._thread.run(self._it.send_batch(messages, queue_id=queue_id))

    def queue_count(self, topic: str) -> int:
        """How many queues a topic has: 0 to this, exclusive. Raises UnknownTopic."""
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
        """The one of this id, as a receipt has it. Raises NoSuchMessage, BadRequest for what is no
        id."""
        return self._thread.run(self._it.message(message_id))

    def queues(self, topic: str = "") -> list[QueueInfo]:
        """Of all topics, or of this one: from which offset on there are messages, and the offset of the
        next."""
        return self._thread.run(self._it.queues(topic))

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Of the oldest message that is there; of an empty queue that of the next. Raises
        UnknownTopic."""
        return self._thread.run(self._it.min_offset(topic, queue_id))

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Of the next message. Raises UnknownTopic."""
        return self._thread.run(self._it.max_offset(topic, queue_id))

    def offset_at(self, topic: str, queue_id: int, time: float | datetime) -> int:
        """Of the first message of the queue that was stored at this time (a datetime, or milliseconds
        since 1970) or later; that of the next message if there is none. Raises UnknownTopic."""
        return self._thread.run(self._it.offset_at(topic, queue_id, time))

    def status(self) -> StatusResponse:
        """What the broker is and holds: its role, offsets in bytes, queues, problems."""
        return self._thread.run(self._it.status())

    def old_log(self, position: int = 0, size_bytes: int = 0) -> OldLogResponse:
        """Of the classic store that the broker's group has taken over: `size_bytes` from `position` on;
        without a size what it was."""
        return self._thread.run(self._it.old_log(position, size_bytes))

    def replica(self, request: ReplicaRequest | None = None) -> ReplicaResponse:
        """What the broker is as master or slave, after it has done what is asked. Raises
        NotReplicated."""
        return self._thread.run(self._it.replica(request))

    def failover(self, *, resigns: bool = False) -> FailoverResponse:
        """What the broker knows of its coordinator's word; `resigns`: after it has given up to lead.
        Raises NotReplicated."""
        return self._thread.run(self._it.failover(resigns=resigns))


def connect(
    server: str,
    *,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    tls: ClientTls | None = None,
    user: ClientUser | None = None,
) -> BrokerClient:
    """A client of the broker at `host:port`. Raises Unreachable, ConfigError."""
    return BrokerClient(server, timeout_ms=timeout_ms, tls=tls, user=user)
