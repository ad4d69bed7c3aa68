"""BrokerSession: one connection of a client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from quorumlog.broker.errors import (
    FlushDiskTimeout,
    FlushSlaveTimeout,
    InSyncReplicasNotEnough,
)
from quorumlog.broker.message_log import PutOutcome
from quorumlog.broker.messages.message import PutResult, PutStatus
from quorumlog.broker.messages.record_batch import QueueKey, RecordBatch
from quorumlog.broker.serving.broker_service import BrokerService
from quorumlog.broker.serving.waiting_pulls import MOST_WAITING
from quorumlog.broker.store_reader import Pulled
from quorumlog.broker.wire.broker_framing import (
    GROUP,
    MOST_FRAME_RECORDS_BYTES,
    batch_of,
    message_of,
    records_of,
)
from quorumlog.broker.wire.broker_messages import (
    AnyBrokerMessage,
    OffsetAtRequest,
    OffsetResponse,
    PullRequest,
    PullResponse,
    QueryRequest,
    QueueRow,
    QueuesRequest,
    QueuesResponse,
    RecordsResponse,
    SendRequest,
    SendResponse,
    StatusRequest,
    ViewRequest,
)
from quorumlog.errors import (
    BadRequest,
    ConnectionFull,
    LedgerError,
    OutcomeUnknown,
    Overloaded,
    ProtocolViolation,
    StoreFailure,
)
from quorumlog.net.connection import Connection
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame

Answered = Callable[[Any], None]
MOST_OPEN = 1_000
"""Pulls that wait and requests that are to be read for, of one connection."""
RETRY_FULL_MS = 100
MOST_MESSAGES = 100_000
"""Of one answer: as many as fit in it, about."""
MOST_READING = 2
"""Requests of one client that are read for at a time: nobody knows how much each is answered with."""


def error_of_status(status: PutStatus) -> LedgerError:
    """Of a put that was written: none of these says that it is not there."""
    if status is PutStatus.FLUSH_DISK_TIMEOUT:
        return FlushDiskTimeout("FLUSH_DISK_TIMEOUT: written, and not known to be on disk")
    if status is PutStatus.FLUSH_SLAVE_TIMEOUT:
        return FlushSlaveTimeout("FLUSH_SLAVE_TIMEOUT: written, and too few slaves acknowledged it")
    if status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
        return InSyncReplicasNotEnough("too few slaves are in sync")
    return OutcomeUnknown("the disk failed while this was being written: the broker stops")


class BrokerSession:
    def __init__(self, server: BrokerService, connection: Connection) -> None:
        self._server = server
        self._connection = connection
        self._to_read: deque[tuple[Callable[[], Any], Answered]] = deque()
        self._reading = 0
        self._open = 0
        """Of which there are `MOST_OPEN` at most."""

    # ---------------------------------------------------------------- as a Session

    def frame(self, frame: Frame) -> None:
        message = message_of(frame)
        if isinstance(message, SendRequest):
            self._send(message, frame)
        elif isinstance(message, PullRequest):
            if self._opens(message.request_id):
                self._pull(message, message.wait_ms)
        elif isinstance(message, QueryRequest):
            self._query(message)
        elif isinstance(message, ViewRequest):
            position = message.physical_offset
            self.later(message, lambda: self._server.store.reader.at_position(position), self._records)
        elif isinstance(message, OffsetAtRequest):
            key, time_ms = QueueKey(message.topic, message.queue_id), message.time_ms
            self.later(
                message,
                lambda: self._server.store.reader.offset_at(key, time_ms),
                lambda request_id, offset: (OffsetResponse(request_id=request_id, offset=offset), None),
            )
        elif isinstance(message, QueuesRequest):
            self.answer(QueuesResponse(request_id=message.request_id, queues=self._queues(message)))
        elif isinstance(message, StatusRequest):
            self.answer(self._server.status(message.request_id))
        elif not self._server.request(self, message, frame):
            raise ProtocolViolation(f"a client does not send {type(message).__name__}")

    def lost(self) -> None:
        self._to_read.clear()
        self._server.lost(self)

    def writable(self) -> None:
        self._read_on()

    def violate(self, violation: ProtocolViolation) -> None:
        """See `client_guard`."""
        self._connection.violate(violation)

    # ---------------------------------------------------------------- requests

    def _send(self, message: SendRequest, frame: Frame) -> None:
        records = records_of(frame)
        request_id = message.request_id
        if not len(records):
            self.refuse(request_id, BadRequest("a send has one message at least"))
            return

        def answer(outcome: PutOutcome) -> None:
            if isinstance(outcome, PutResult) and outcome.status is PutStatus.PUT_OK:
                self.answer(
                    SendResponse(
                        request_id=request_id,
                        queue_offset=outcome.queue_offset,
                        physical_offset=outcome.physical_offset,
                        message_count=outcome.message_count,
                        store_time_ms=outcome.store_time_ms,
                        store_host=self._server.store_host,
                        positions=(
                            b""
                            if outcome.positions is None
                            else outcome.positions.astype(">i8").tobytes()
                        ),
                    )
                )
            elif isinstance(outcome, PutResult):
                self.refuse(request_id, error_of_status(outcome.status))
            else:
                self.refuse(request_id, outcome)

        self._server.puts.add(records, message.waits, answer)

    def _pull(self, message: PullRequest, wait_ms: int) -> None:
        key = QueueKey(message.topic, message.queue_id)
        store = self._server.store
        most_messages = min(message.most_messages, MOST_MESSAGES)
        most_bytes = min(message.most_bytes, MOST_FRAME_RECORDS_BYTES)

        def pull() -> Pulled:
            return store.reader.pull(key, message.offset, most_messages, most_bytes)

        def answer(request_id: int, pulled: Pulled) -> tuple[AnyBrokerMessage, RecordBatch | None]:
            response = PullResponse(
                request_id=request_id,
                next_offset=pulled.next_offset,
                min_offset=pulled.min_offset,
                max_offset=pulled.max_offset,
            )
            return response, pulled.records

        def done(outcome: Any) -> None:
            if isinstance(outcome, Pulled) and not len(outcome.records) and wait_ms > 0:
                queue = store.queues.get(key)
                if queue is not None and queue.max_offset > message.offset:
                    self._pull(message, 0)
                    return
                if self._server.waiting.add(key, wait_ms, lambda: self._pull(message, 0)):
                    return
                outcome = Overloaded(
                    f"{MOST_WAITING} pulls wait at this broker", retry_after_ms=RETRY_FULL_MS
                )
            self._respond(message.request_id, outcome, answer)

        if not self._connection.closed:
            self._read(pull, done)

    def _query(self, message: QueryRequest) -> None:
        def query() -> RecordBatch:
            return self._server.store.reader.query(
                *(message.topic, message.key, message.begin_ms, message.end_ms),
                min(message.most_messages, MOST_MESSAGES),
                MOST_FRAME_RECORDS_BYTES,
            )

        self.later(message, query, self._records)

    @staticmethod
    def _records(request_id: int, records: RecordBatch) -> tuple[AnyBrokerMessage, RecordBatch | None]:
        return RecordsResponse(request_id=request_id), records

    def _queues(self, message: QueuesRequest) -> list[QueueRow]:
        store = self._server.store
        rows = {
            key: QueueRow(
                topic=key.topic,
                queue_id=key.queue_id,
                min_offset=max(queue.min_offset, begin),
                max_offset=max(queue.max_offset, begin),
            )
            for key, queue in store.queues.items()
            if message.topic in ("", key.topic) and (begin := store.begin_of(key)) is not None
        }
        for topic, count in (store.shown_topics or {}).items():
            for queue_id in range(count if message.topic in ("", topic) else 0):
                rows.setdefault(
                    QueueKey(topic, queue_id),
                    QueueRow(topic=topic, queue_id=queue_id, min_offset=0, max_offset=0),
                )
        return [row for _, row in sorted(rows.items())]

    # ---------------------------------------------------------------- answers

    def later(
        self,
        message: AnyBrokerMessage,
        work: Callable[[], Any],
        answer: Callable[[int, Any], tuple[AnyBrokerMessage, RecordBatch | None]],
    ) -> None:
        """Work that may wait for the disk."""
        if self._opens(message.request_id):
            self._read(work, lambda outcome: self._respond(message.request_id, outcome, answer))

    def _opens(self, request_id: int) -> bool:
        """Another one, or it is refused."""
        if self._open >= MOST_OPEN:
            full = f"{MOST_OPEN} requests of this connection wait for their answers"
            self.refuse(request_id, ConnectionFull(full, retry_after_ms=RETRY_FULL_MS))
            return False
        self._open += 1
        return True

    def _read(self, work: Callable[[], Any], done: Answered) -> None:
        self._to_read.append((work, done))
        self._read_on()

    def _read_on(self) -> None:
        while self._to_read and self._reading < MOST_READING and not self._connection.is_full:
            work, done = self._to_read.popleft()
            self._reading += 1
            self._server.reads.submit(work, partial(self._was_read, done))

    def _was_read(self, done: Answered, outcome: Any) -> None:
        self._reading -= 1
        done(outcome)
        self._read_on()

    def _respond(
        self,
        request_id: int,
        outcome: Any,
        answer: Callable[[int, Any], tuple[AnyBrokerMessage, RecordBatch | None]],
    ) -> None:
        self._open -= 1
        if isinstance(outcome, StoreFailure):
            self._server.store.on_failure(outcome)
            outcome = OutcomeUnknown(str(outcome))
        if isinstance(outcome, LedgerError):
            self.refuse(request_id, outcome)
        else:
            self.answer(*answer(request_id, outcome))

    def refuse(self, request_id: int, error: LedgerError) -> None:
        self.answer(error_response(request_id, error))

    def answer(self, message: AnyBrokerMessage, records: RecordBatch | None = None) -> None:
        batch = None if records is None else batch_of(records)
        self._connection.send(GROUP, message, batch)
