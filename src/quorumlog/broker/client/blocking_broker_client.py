"""BrokerClient: blocks until the answer is there. Each thread has a connection of its own."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Self

from quorumlog.broker.client.blocking_link import BlockingLink
from quorumlog.broker.client.broker_results import PullResult, QueueInfo, SendReceipt, checked
from quorumlog.broker.client.broker_verbs import (
    DEFAULT_TIMEOUT_MS,
    Encoded,
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
from quorumlog.broker.client.master_route import PROBE_S, RETRY_S, MasterRoute
from quorumlog.broker.errors import UnknownTopic
from quorumlog.broker.message import Message, StoredMessage, physical_offset_of
from quorumlog.broker.wire import (
    AnyBrokerMessage,
    FailoverRequest,
    FailoverResponse,
    OffsetAtRequest,
    OffsetResponse,
    OldLogRequest,
    OldLogResponse,
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
from quorumlog.errors import BadRequest, LedgerError, OutcomeUnknown, ProtocolViolation, Unreachable
from quorumlog.net.frame import Frame

_TURNS = 1 << 16


class BrokerClient:
    """Any thread. Raises what the broker refuses with (`quorumlog.broker.errors`), Unreachable,
    OutcomeUnknown.

    `server`: as of `AsyncBrokerClient`.
    """

    def __init__(self, server: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        self.server = server
        self._route = MasterRoute(server)
        self._timeout_s = timeout_ms / 1000
        self._local = threading.local()
        self._links: list[BlockingLink] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._keys = UniqKeys()
        # As of RocketMQ's producers: many short lives must not all send to the first queue.
        self._turn = itertools.count(secrets.randbelow(_TURNS))
        self._counts: dict[str, int] = {}
        self._link()  # a slip in the address is told at once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections of all threads. May be repeated."""
        self._is_closed = True
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.close()

    def _link(self, deadline_s: float | None = None) -> BlockingLink:
        """To the master, where there are several brokers. Raises Unreachable, BadRequest."""
        if self._is_closed:
            raise BadRequest("the client is closed: make another one")
        link: BlockingLink | None = getattr(self._local, "link", None)
        if link is not None and not link.is_demoted:
            return link
        deadline_s = time.monotonic() + self._timeout_s if deadline_s is None else deadline_s
        while True:
            try:
                found = self._open()
            except (Unreachable, OutcomeUnknown) as error:
                if not self._route.follows and isinstance(error, Unreachable):
                    raise
                self._route.failed(error)
                if not self._route.follows or time.monotonic() >= deadline_s:
                    raise self._route.unreachable(error) from None
                found = None
            if found is not None:
                self._local.link = found
                with self._lock:
                    self._links.append(found)
                return found
            if time.monotonic() >= deadline_s:
                raise Unreachable("none of the brokers is master")
            time.sleep(RETRY_S)

    def _open(self) -> BlockingLink | None:
        """None: it is no master. Raises Unreachable, OutcomeUnknown."""
        if not self._route.follows:
            return BlockingLink(self._route.address, self._timeout_s)
        link = BlockingLink(self._route.address, PROBE_S)
        try:
            if self._route.is_master(link.ask_role(PROBE_S)):
                link.is_superseded = partial(self._is_superseded, link.address)
                return link
        except BaseException:
            link.close()
            raise
        link.close()
        return None

    def _is_superseded(self, address: str) -> bool:
        """Another broker is master by now than the one there, which owes an answer or has refused."""
        for other in [each for each in self._route.addresses if each != address]:
            with suppress(Unreachable, OutcomeUnknown, ProtocolViolation):
                link = BlockingLink(other, PROBE_S)
                try:
                    answer = answer_of(link.ask_role(PROBE_S))
                finally:
                    link.close()
                master = self._route.newer_master(other, answer, address)
                if master:
                    self._route.turn(master)
                    return True
        return False

    def _call(
        self, message: AnyBrokerMessage, encoded: Encoded | None = None, wait_ms: int = 0
    ) -> Frame:
        """The answer, which may take `wait_ms` where a broker has taken the request."""
        deadline_s, may_wait_s = time.monotonic() + self._timeout_s, wait_ms / 1000
        while True:
            link = self._link(deadline_s)
            asked_s = time.monotonic()
            try:
                try:
                    frame = link.call(message, encoded, deadline_s + may_wait_s)
                finally:
                    waited_s = min(time.monotonic() - asked_s, may_wait_s)
                    deadline_s, may_wait_s = deadline_s + waited_s, may_wait_s - waited_s
                if self._route.follows:
                    answer_of(frame)
                return frame
            except (Unreachable, OutcomeUnknown, ProtocolViolation) as error:
                link.close()
                self._local.link = None
                is_over = time.monotonic() >= deadline_s
                if not (self._route.follows and isinstance(error, Unreachable)) or is_over:
                    raise
            except LedgerError as error:
                pause_s = self._route.pause_s(error)
                if pause_s is None or time.monotonic() + pause_s >= deadline_s:
                    raise
                if self._route.asks_others(error):
                    self._is_superseded(link.address)
                link.close()
                self._local.link = None
                time.sleep(pause_s)

    # ---------------------------------------------------------------- sending

    def send(self, message: Message, *, queue_id: int | None = None) -> SendReceipt:
        """Store a message in a queue; the queues take turns unless one is named. Returns when the broker
        has it as it promises. Raises UnknownTopic, TopicNotPermitted, BodyTooLarge, BadRequest;
        OutcomeUnknown, of which FlushDiskTimeout and FlushSlaveTimeout say that it is written, and not
        yet as safe as asked."""
        return self.send_batch([message], queue_id=queue_id)

    def send_batch(self, messages: Sequence[Message], *, queue_id: int | None = None) -> SendReceipt:
        """All of one topic, into one queue; the queues take turns unless one is named. All or nothing
        is stored."""
        if queue_id is None:
            queue_id = next(self._turn) % self.queue_count(messages[0].topic) if messages else 0
        encoded = encode_messages(messages, queue_id, self._keys, self._link().host)
        try:
            return receipt_of(self._call(SendRequest(waits=encoded.waits), encoded), encoded)
        except UnknownTopic:
            self._counts.pop(encoded.topic, None)  # it may be there again with fewer queues
            raise

    def queue_count(self, topic: str) -> int:
        """How many queues a topic has: 0 to this, exclusive. Raises UnknownTopic."""
        count = self._counts.get(topic, 0)
        if not count:
            self._counts |= queue_counts(self.queues(topic))
            count = self._counts.get(topic, 0)
            if not count:
                raise UnknownTopic(f"the broker has no topic {topic}")
        return count

    # ---------------------------------------------------------------- reading

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
        request = PullRequest(
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            most_messages=most_messages,
            most_bytes=most_bytes,
            wait_ms=wait_ms,
        )
        return pulled_of(self._call(request, wait_ms=wait_ms))

    def query(
        self, topic: str, key: str, *, time: TimeRange | None = None, most_messages: int = 64
    ) -> list[StoredMessage]:
        """Messages with this key, the newest first; `time`: stored from .. to, milliseconds since 1970
        or datetimes, None: without a bound. Raises BadRequest where the broker keeps no index,
        MessageDamaged."""
        begin_ms, end_ms = time_range(time)
        request = QueryRequest(
            topic=topic, key=key, begin_ms=begin_ms, end_ms=end_ms, most_messages=most_messages
        )
        return self._messages(request)

    def message(self, message_id: str) -> StoredMessage:
        """The one of this id, as a receipt has it. Raises NoSuchMessage, BadRequest for what is no
        id."""
        return self._messages(ViewRequest(physical_offset=physical_offset_of(message_id)))[0]

    def _messages(self, request: QueryRequest | ViewRequest) -> list[StoredMessage]:
        frame = self._call(request)
        answer_of(frame)
        return checked(records_of(frame)).messages()

    def queues(self, topic: str = "") -> list[QueueInfo]:
        """Of all topics, or of this one: from which offset on there are messages, and the offset of the
        next."""
        return queues_of(self._call(QueuesRequest(topic=topic)))

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Of the oldest message that is there; of an empty queue that of the next. Raises
        UnknownTopic."""
        return self._queue(topic, queue_id).min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Of the next message. Raises UnknownTopic."""
        return self._queue(topic, queue_id).max_offset

    def _queue(self, topic: str, queue_id: int) -> QueueInfo:
        return queue_among(self.queues(topic), topic, queue_id)

    def offset_at(self, topic: str, queue_id: int, time: float | datetime) -> int:
        """Of the first message of the queue that was stored at this time (a datetime, or milliseconds
        since 1970) or later; that of the next message if there is none. Raises UnknownTopic."""
        time_ms = milliseconds(time, 0)
        request = OffsetAtRequest(topic=topic, queue_id=queue_id, time_ms=time_ms)
        answer = answer_of(self._call(request))
        assert isinstance(answer, OffsetResponse), answer
        return answer.offset

    def status(self) -> StatusResponse:
        """What the broker is and holds: its role, offsets in bytes, queues, problems."""
        answer = answer_of(self._call(StatusRequest()))
        assert isinstance(answer, StatusResponse), answer
        return answer

    def old_log(self, position: int = 0, size_bytes: int = 0) -> OldLogResponse:
        """Of the classic store that the broker's group has taken over: `size_bytes` from `position` on;
        without a size what it was."""
        answer = answer_of(self._call(OldLogRequest(position=position, size_bytes=size_bytes)))
        assert isinstance(answer, OldLogResponse), answer
        return answer

    def replica(self, request: ReplicaRequest | None = None) -> ReplicaResponse:
        """What the broker is as master or slave, after it has done what is asked. Raises
        NotReplicated."""
        answer = answer_of(self._call(ReplicaRequest() if request is None else request))
        assert isinstance(answer, ReplicaResponse), answer
        return answer

    def failover(self, *, resigns: bool = False) -> FailoverResponse:
        """What the broker knows of its coordinator's word; `resigns`: after it has given up to lead.
        Raises NotReplicated."""
        answer = answer_of(self._call(FailoverRequest(verb="resign" if resigns else "")))
        assert isinstance(answer, FailoverResponse), answer
        return answer


def connect(server: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> BrokerClient:
    """A client of the broker at `host:port`. Raises Unreachable, ConfigError."""
    return BrokerClient(server, timeout_ms=timeout_ms)
