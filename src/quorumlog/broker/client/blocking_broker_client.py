"""BrokerClient: blocks until the answer is there. Each thread has a connection of its own."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Self

import msgspec

from quorumlog.broker.client.broker_results import PullResult, QueueInfo, SendReceipt, checked
from quorumlog.broker.client.broker_verbs import (
    DEFAULT_TIMEOUT_MS,
    Encoded,
    TimeRange,
    UniqKeys,
    answer_of,
    check_hello,
    encode_messages,
    frame_of,
    hello,
    lost_outcome,
    milliseconds,
    own_host,
    parse_server,
    pulled_of,
    queue_counts,
    queues_of,
    receipt_of,
    time_range,
)
from quorumlog.broker.errors import UnknownTopic
from quorumlog.broker.messages.message import Message, StoredMessage
from quorumlog.broker.messages.record import physical_offset_of
from quorumlog.broker.wire.broker_framing import broker_decoder, message_of, records_of
from quorumlog.broker.wire.broker_messages import (
    AnyBrokerMessage,
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
)
from quorumlog.entry_header import Buffer
from quorumlog.errors import OutcomeUnknown, ProtocolViolation, Unreachable
from quorumlog.wire.framing import Frame


class _Link:
    """One connection; one request at a time."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        """Raises Unreachable."""
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            reason = error.strerror or str(error)
            raise Unreachable(f"no broker at {host}:{port}: {reason}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = broker_decoder()
        self.host = own_host(self._socket.getsockname())
        self._numbers = itertools.count(1)
        check_hello(message_of(self._exchange(hello(), 0, is_send=False)))

    def call(self, message: AnyBrokerMessage, encoded: Encoded | None, timeout_s: float) -> Frame:
        request_id = next(self._numbers)
        message = msgspec.structs.replace(message, request_id=request_id)
        self._socket.settimeout(timeout_s)
        return self._exchange(
            frame_of(message, encoded), request_id, is_send=isinstance(message, SendRequest)
        )

    def _exchange(self, buffers: list[Buffer], request_id: int, *, is_send: bool) -> Frame:
        try:
            self._socket.sendall(b"".join(buffers))
            while True:
                into = self._decoder.get_buffer()
                count = self._socket.recv_into(into)
                if not count:
                    raise lost_outcome("the broker closed the connection", is_send=is_send)
                for frame in self._decoder.buffer_updated(count):
                    if message_of(frame).request_id == request_id:
                        return frame
        except TimeoutError:
            raise OutcomeUnknown("the broker did not answer in time") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise lost_outcome(f"the broker is lost: {reason}", is_send=is_send) from None

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


class BrokerClient:
    """Any thread. Raises what the broker refuses with (`quorumlog.broker.errors`), Unreachable,
    OutcomeUnknown."""

    def __init__(self, server: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
        self.server = server
        self._host, self._port = parse_server(server)
        self._timeout_s = timeout_ms / 1000
        self._local = threading.local()
        self._links: list[_Link] = []
        self._lock = threading.Lock()
        self._keys = UniqKeys()
        self._turn = itertools.count()
        self._counts: dict[str, int] = {}
        self._link()  # a slip in the address is told at once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.close()

    def _link(self) -> _Link:
        link: _Link | None = getattr(self._local, "link", None)
        if link is None:
            link = self._local.link = _Link(self._host, self._port, self._timeout_s)
            with self._lock:
                self._links.append(link)
        return link

    def _call(
        self, message: AnyBrokerMessage, encoded: Encoded | None = None, wait_ms: int = 0
    ) -> Frame:
        link = self._link()
        try:
            return link.call(message, encoded, self._timeout_s + wait_ms / 1000)
        except (Unreachable, OutcomeUnknown, ProtocolViolation):
            link.close()
            self._local.link = None
            raise

    # ---------------------------------------------------------------- sending

    def send(self, message: Message, *, queue_id: int | None = None) -> SendReceipt:
        return self.send_batch([message], queue_id=queue_id)

    def send_batch(self, messages: Sequence[Message], *, queue_id: int | None = None) -> SendReceipt:
        """All of one topic, into one queue; the queues take turns unless one is named. All or nothing
        is stored."""
        if queue_id is None:
            queue_id = next(self._turn) % self.queue_count(messages[0].topic) if messages else 0
        encoded = encode_messages(messages, queue_id, self._keys, self._link().host)
        return receipt_of(self._call(SendRequest(waits=encoded.waits), encoded), encoded)

    def queue_count(self, topic: str) -> int:
        """Raises UnknownTopic."""
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
        """Messages from this number on; at the end of the queue after `wait_ms`, or none."""
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
        """Messages with this key, the newest first; `time`: stored from .. to, milliseconds or
        datetimes."""
        begin_ms, end_ms = time_range(time)
        request = QueryRequest(
            topic=topic, key=key, begin_ms=begin_ms, end_ms=end_ms, most_messages=most_messages
        )
        return self._messages(request)

    def message(self, message_id: str) -> StoredMessage:
        """Raises NoSuchMessage."""
        return self._messages(ViewRequest(physical_offset=physical_offset_of(message_id)))[0]

    def _messages(self, request: QueryRequest | ViewRequest) -> list[StoredMessage]:
        frame = self._call(request)
        answer_of(frame)
        return checked(records_of(frame)).messages()

    def queues(self, topic: str = "") -> list[QueueInfo]:
        return queues_of(self._call(QueuesRequest(topic=topic)))

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._queue(topic, queue_id).min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Of the next message."""
        return self._queue(topic, queue_id).max_offset

    def _queue(self, topic: str, queue_id: int) -> QueueInfo:
        for queue in self.queues(topic):
            if queue.queue_id == queue_id:
                return queue
        raise UnknownTopic(f"the broker has no queue {queue_id} of topic {topic}")

    def offset_at(self, topic: str, queue_id: int, time: float | datetime) -> int:
        """Of the first message that was stored at this time or later."""
        time_ms = milliseconds(time, 0)
        request = OffsetAtRequest(topic=topic, queue_id=queue_id, time_ms=time_ms)
        answer = answer_of(self._call(request))
        assert isinstance(answer, OffsetResponse), answer
        return answer.offset

    def status(self) -> StatusResponse:
        answer = answer_of(self._call(StatusRequest()))
        assert isinstance(answer, StatusResponse), answer
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
