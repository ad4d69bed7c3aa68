"""A broker's port for clients, classic or on a replicated log."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any, Protocol

from quorumlog.broker import wire
from quorumlog.broker.errors import FlushDiskTimeout, FlushSlaveTimeout, InSyncReplicasNotEnough
from quorumlog.broker.message import PutMessageResult, PutStatus
from quorumlog.broker.needs import (
    ADMINISTRATIVE,
    BY_OLD_USERS,
    STATUS,
    WITH_RECORDS,
    asks_blank,
    key_of,
    needs_of,
    needs_of_records,
    needs_to_send,
    plain_topics,
    words_of,
)
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.log_files import MessageLog, PutOutcome, PutRequest
from quorumlog.broker.store.queues import ConsumeQueue
from quorumlog.broker.store.store_reader import Pulled, StoreReader
from quorumlog.broker.wire import (
    GROUP,
    MOST_FRAME_RECORDS_BYTES,
    batch_of,
    broker_request_decoder,
    records_of,
)
from quorumlog.config import parse_address
from quorumlog.errors import (
    BadRequest,
    ConnectionFull,
    LedgerError,
    OutcomeUnknown,
    Overloaded,
    PendingFull,
    ProtocolViolation,
    StoreFailure,
)
from quorumlog.measures import Requests
from quorumlog.net.access import EVERYBODY, Access, Caller, audit
from quorumlog.net.connection import Connection, LoopTurn, call_soon
from quorumlog.net.errors import ErrorResponse, error_response
from quorumlog.net.frame import Frame
from quorumlog.net.hello import BROKER, Hello, HelloResponse, refusal_of_other
from quorumlog.net.listener import Listener
from quorumlog.net.tls import Tls
from quorumlog.server.disk_thread import DiskThread

# ---------------------------------------------------------------- BrokerService
# What a connection needs of the broker behind it, classic or on a replicated log.

TICK_MS = 50.0


class Puts(Protocol):
    def add(self, records: RecordBatch, waits: bool, answer: Callable[[PutOutcome], None]) -> None: ...


class ReadPool(Protocol):
    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """`work` may wait for the disk; `done` gets its result, a LedgerError or a StoreFailure."""


class QueueTable(Protocol):
    def get(self, key: QueueKey) -> ConsumeQueue | None: ...

    def items(self) -> Collection[tuple[QueueKey, ConsumeQueue]]: ...


class ServedStore(Protocol):
    @property
    def reader(self) -> StoreReader: ...

    @property
    def queues(self) -> QueueTable: ...

    @property
    def shown_topics(self) -> Mapping[str, int] | None:
        """Numbers of queues by name, beside the queues that there are."""

    def begin_of(self, key: QueueKey) -> int | None:
        """Of a queue that there is: nothing below is shown; None: nothing of it."""

    def on_failure(self, failure: StoreFailure) -> None: ...


class BrokerService(Protocol):
    @property
    def store(self) -> ServedStore: ...

    @property
    def puts(self) -> Puts: ...

    @property
    def reads(self) -> ReadPool: ...

    @property
    def waiting(self) -> WaitingPulls: ...

    @property
    def store_host(self) -> bytes:
        """As records name it."""

    @property
    def requests(self) -> Requests: ...

    @property
    def cluster_id(self) -> str:
        """Of the group whose log it is; empty: of none, or not known yet."""

    def status(self, request_id: int) -> wire.BrokerStatusResponse: ...

    def request(self, session: BrokerSession, message: wire.AnyBrokerMessage, frame: Frame) -> bool:
        """Of a kind that not every broker knows; False: neither does this one. Raises the LedgerError
        that refuses it."""

    def lost(self, session: BrokerSession) -> None:
        """Its connection has ended."""


# ---------------------------------------------------------------- WaitingPulls
# Pulls at the end of a queue that wait for something new.

MOST_WAITING = 10_000
MOST_WAIT_MS = 60_000


class WaitingPulls:
    """On the loop's thread but for `grown`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()
        self._waiting: dict[QueueKey, dict[int, tuple[Callable[[], None], asyncio.TimerHandle]]] = {}
        self._number = 0
        self._count = 0

    def add(self, key: QueueKey, wait_ms: int, again: Callable[[], None]) -> bool:
        """`again` is called when the queue has grown or the time is over. False: too many wait."""
        if self._count >= MOST_WAITING:
            return False
        self._number += 1
        number = self._number
        delay_s = min(wait_ms, MOST_WAIT_MS) / 1000
        timer = self._loop.call_later(delay_s, self._over, key, number)
        self._waiting.setdefault(key, {})[number] = (again, timer)
        self._count += 1
        return True

    def grown(self, keys: list[QueueKey]) -> None:
        """Any thread."""
        if self._count:
            with suppress(RuntimeError):  # the loop is closed
                call_soon(self._loop, self._thread, self._wake, keys)

    def _wake(self, keys: list[QueueKey]) -> None:
        for key in keys:
            for again, timer in self._waiting.pop(key, {}).values():
                timer.cancel()
                self._count -= 1
                again()

    def wake_all(self) -> None:
        """Some may not read any more."""
        self._wake(list(self._waiting))

    def _over(self, key: QueueKey, number: int) -> None:
        waiting = self._waiting.get(key, {})
        if number in waiting:
            again, _ = waiting.pop(number)
            self._count -= 1
            if not waiting:
                del self._waiting[key]
            again()


class ReadQueue:
    """A `ReadPool` of which only so many reads are under way, each begun while there `is_room`. On the
    loop."""

    def __init__(self, pool: ReadPool, most: int, is_room: Callable[[], bool] = lambda: True) -> None:
        self._pool = pool
        self._most = most
        self._is_room = is_room
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._under_way = 0

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._waiting.append((work, done))
        self.begin()

    def begin(self) -> None:
        """Those that may: there may be room again."""
        while self._waiting and self._under_way < self._most and self._is_room():
            work, done = self._waiting.popleft()
            self._under_way += 1
            self._pool.submit(work, partial(self._done, done))

    def _done(self, done: Callable[[Any], None], outcome: Any) -> None:
        self._under_way -= 1
        try:
            done(outcome)
        finally:
            self.begin()

    def clear(self) -> None:
        self._waiting.clear()


# ---------------------------------------------------------------- BrokerSession
# One connection of a client.

Response = Callable[[int, Any], tuple[wire.AnyBrokerMessage, RecordBatch | None]]
"""(request id, outcome) to the answer and its records."""
MOST_OPEN = 1_000
"""Pulls that wait and requests that are to be read for, of one connection."""
RETRY_FULL_MS = 100
MOST_MESSAGES = 100_000
"""Of one answer: as many as fit in it, about."""
MOST_READING = 2
"""Requests of one client that are read for at a time: nobody knows how much each is answered with."""


def refusal_of_put(outcome: PutOutcome) -> LedgerError | None:
    """None: it is acknowledged. Of one that was written no status says that it is not there."""
    if isinstance(outcome, LedgerError):
        return outcome
    if outcome.status is PutStatus.PUT_OK:
        return None
    if outcome.status is PutStatus.FLUSH_DISK_TIMEOUT:
        return FlushDiskTimeout("FLUSH_DISK_TIMEOUT: written, and not known to be on disk")
    if outcome.status is PutStatus.FLUSH_SLAVE_TIMEOUT:
        return FlushSlaveTimeout("FLUSH_SLAVE_TIMEOUT: written, and too few slaves acknowledged it")
    if outcome.status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
        return InSyncReplicasNotEnough("too few slaves are in sync")
    return OutcomeUnknown("the disk failed while this was being written: the broker stops")


class BrokerSession:
    def __init__(
        self, server: BrokerService, connection: Connection, access: Access = EVERYBODY
    ) -> None:
        self._server = server
        self._connection = connection
        self._access = access
        self._caller = Caller(access, connection)
        self._reads = ReadQueue(server.reads, MOST_READING, lambda: not connection.is_full)
        self._pending: dict[int, tuple[type, float]] = {}
        """Of requests that are not answered: what is asked, and since when."""
        self._open = 0
        """Of which there are `MOST_OPEN` at most."""

    # ---------------------------------------------------------------- as a Session

    def frame(self, frame: Frame) -> None:
        message: Any = frame.message
        self._pending[message.request_id] = type(message), time.monotonic()
        if self._caller.open_in != self._access.generation:
            refusal = self._refusal(message, frame)
            if refusal is not None:
                self.refuse(message.request_id, refusal)
                return
            if type(message) in ADMINISTRATIVE and self._caller.is_checked:
                audit.warning("user %s at %s: %s", *self._caller.who, words_of(message))
        if isinstance(message, wire.SendRequest):
            self._send(message, frame)
        elif isinstance(message, wire.PullRequest):
            if self._opens(message.request_id):
                self._pull(message, message.wait_ms)
        elif isinstance(message, wire.QueryRequest):
            self._query(message)
        elif isinstance(message, wire.ViewRequest):
            position = message.physical_offset
            self.later(message, lambda: self._server.store.reader.at_position(position), self._records)
        elif isinstance(message, wire.OffsetAtRequest):
            key, time_ms = QueueKey(message.topic, message.queue_id), message.time_ms
            self.later(
                message,
                lambda: self._server.store.reader.offset_at(key, time_ms),
                lambda request_id, offset: (
                    wire.OffsetResponse(request_id=request_id, offset=offset),
                    None,
                ),
            )
        elif isinstance(message, wire.QueuesRequest):
            self.answer(wire.QueuesResponse(request_id=message.request_id, queues=self._queues(message)))
        elif isinstance(message, wire.BrokerStatusRequest):
            self.answer(self._server.status(message.request_id))
        else:
            self.proceed(message.request_id, lambda: self._request(message, frame))

    def lost(self) -> None:
        self._reads.clear()
        self._server.lost(self)

    def writable(self) -> None:
        self._reads.begin()

    def violate(self, violation: ProtocolViolation) -> None:
        """See `client_guard`."""
        self._connection.violate(violation)

    def _refusal(self, message: wire.AnyBrokerMessage, frame: Frame | None) -> LedgerError | None:
        """Of this user, as its rights are by now."""
        caller, access = self._caller, self._access
        key = key_of(message)
        if key is not None and caller.passes(key):
            return None
        if not caller.is_checked:
            return None
        if access.users is None and (
            isinstance(message, STATUS) or (asks_blank(message) and access.is_blank())
        ):
            return None
        if not caller.is_user:
            return caller.stranger()  # before anything of it is looked at
        if frame is None or type(message) not in WITH_RECORDS:
            needs = needs_of(message)
            return caller.refusal(key or needs, needs, may_be_old=isinstance(message, BY_OLD_USERS))
        topics = None if frame.batch is None else plain_topics(frame.batch)
        if topics is None:
            needs = needs_of_records(records_of(frame))
            return caller.refusal(needs, needs)
        for topic in topics:
            if not caller.passes(topic):
                refusal = caller.refusal(topic, needs_to_send(topic))
                if refusal is not None:
                    return refusal
        return None

    def _still(self, message: wire.AnyBrokerMessage, outcome: Any) -> Any:
        """The outcome of a read, or that this user may not have it any more."""
        is_open = self._caller.open_in == self._access.generation
        return outcome if is_open else self._refusal(message, None) or outcome

    # ---------------------------------------------------------------- requests

    def _request(self, message: wire.AnyBrokerMessage, frame: Frame) -> None:
        if not self._server.request(self, message, frame):
            raise ProtocolViolation(f"a client does not send {type(message).__name__}")

    def _send(self, message: wire.SendRequest, frame: Frame) -> None:
        records = records_of(frame)
        request_id = message.request_id
        if not len(records):
            self.refuse(request_id, BadRequest("a send has one message at least"))
            return

        def answer(outcome: PutOutcome) -> None:
            if (refusal := refusal_of_put(outcome)) is not None:
                self.refuse(request_id, refusal)
                return
            assert isinstance(outcome, PutMessageResult), outcome
            positions = outcome.positions
            self.answer(
                wire.SendResponse(
                    request_id=request_id,
                    queue_offset=outcome.queue_offset,
                    physical_offset=outcome.physical_offset,
                    message_count=outcome.message_count,
                    store_time_ms=outcome.store_time_ms,
                    store_host=self._server.store_host,
                    positions=b"" if positions is None else positions.astype(">i8").tobytes(),
                )
            )

        self._server.puts.add(records, message.waits, answer)

    def _pull(self, message: wire.PullRequest, wait_ms: int) -> None:
        key = QueueKey(message.topic, message.queue_id)
        store = self._server.store
        most_messages = min(message.most_messages, MOST_MESSAGES)
        most_bytes = min(message.most_bytes, MOST_FRAME_RECORDS_BYTES)

        def pull() -> Pulled:
            return store.reader.pull(key, message.offset, most_messages, most_bytes)

        def answer(request_id: int, pulled: Pulled) -> tuple[wire.AnyBrokerMessage, RecordBatch | None]:
            response = wire.PullResponse(
                request_id=request_id,
                next_offset=pulled.next_offset,
                min_offset=pulled.min_offset,
                max_offset=pulled.max_offset,
            )
            return response, pulled.records

        def done(outcome: Any) -> None:
            outcome = self._still(message, outcome)
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
            self._reads.submit(pull, done)

    def _query(self, message: wire.QueryRequest) -> None:
        def query() -> RecordBatch:
            return self._server.store.reader.query(
                *(message.topic, message.key, message.begin_ms, message.end_ms),
                min(message.most_messages, MOST_MESSAGES),
                MOST_FRAME_RECORDS_BYTES,
            )

        self.later(message, query, self._records)

    @staticmethod
    def _records(
        request_id: int, records: RecordBatch
    ) -> tuple[wire.AnyBrokerMessage, RecordBatch | None]:
        return wire.RecordsResponse(request_id=request_id), records

    def _queues(self, message: wire.QueuesRequest) -> list[wire.QueueRow]:
        store = self._server.store
        rows = {
            key: wire.QueueRow(
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
                    wire.QueueRow(topic=topic, queue_id=queue_id, min_offset=0, max_offset=0),
                )
        return [row for _, row in sorted(rows.items())]

    # ---------------------------------------------------------------- answers

    def later(
        self,
        message: wire.AnyBrokerMessage,
        work: Callable[[], Any],
        answer: Response,
    ) -> None:
        """Work that may wait for the disk."""
        if self._opens(message.request_id):
            self._reads.submit(
                work,
                lambda outcome: self._respond(message.request_id, self._still(message, outcome), answer),
            )

    def _opens(self, request_id: int) -> bool:
        """Another one, or it is refused."""
        if self._open >= MOST_OPEN:
            full = f"{MOST_OPEN} requests of this connection wait for their answers"
            self.refuse(request_id, ConnectionFull(full, retry_after_ms=RETRY_FULL_MS))
            return False
        self._open += 1
        return True

    def _respond(self, request_id: int, outcome: Any, answer: Response) -> None:
        self._open -= 1
        if isinstance(outcome, StoreFailure):
            self._server.store.on_failure(outcome)
            outcome = OutcomeUnknown(str(outcome))
        if isinstance(outcome, LedgerError):
            self.refuse(request_id, outcome)
        else:
            self.answer(*answer(request_id, outcome))

    def proceed(self, request_id: int, step: Callable[[], None]) -> None:
        """A LedgerError that `step` raises refuses the request."""
        try:
            step()
        except LedgerError as error:
            self.refuse(request_id, error)

    def settle(self, outcome: Any, response: wire.AnyBrokerMessage) -> None:
        """`response`, unless `outcome` is a LedgerError."""
        if isinstance(outcome, LedgerError):
            self.refuse(response.request_id, outcome)
        else:
            self.answer(response)

    def refuse(self, request_id: int, error: LedgerError) -> None:
        self.answer(error_response(request_id, error))

    def answer(self, message: wire.AnyBrokerMessage, records: RecordBatch | None = None) -> None:
        pending = self._pending.pop(message.request_id, None)
        if pending is not None:
            code = message.code if isinstance(message, ErrorResponse) else 0
            self._server.requests.answered(pending[0], code, time.monotonic() - pending[1])
        batch = None if records is None else batch_of(records)
        self._connection.send(GROUP, message, batch)


class RoleWatchers:
    """Clients that a broker notifies of a new master. On the loop."""

    def __init__(self, response: Callable[[int], wire.RoleResponse]) -> None:
        self._response = response
        self._watchers: dict[BrokerSession, int] = {}

    def take(self, session: BrokerSession, request: wire.RoleRequest) -> None:
        if request.watches:
            self._watchers[session] = request.request_id
        session.answer(self._response(request.request_id))

    def lost(self, session: BrokerSession) -> None:
        self._watchers.pop(session, None)

    def changed(self) -> None:
        """The role, the master or the epoch."""
        state = self._response(0)
        for session, request_id in list(self._watchers.items()):
            session.answer(
                wire.RoleNotice(
                    request_id=request_id,
                    role=state.role,
                    broker_id=state.broker_id,
                    term=state.term,
                    master=state.master,
                )
            )


# ---------------------------------------------------------------- PutQueue
# Sends that arrive in one turn of the loop are put as one batch. Answers that come from the flush thread
# leave together; those that a member gives leave with its turn.

PutCallback = Callable[[PutOutcome], None]

MAX_PENDING_BYTES = 64 << 20
REQUEST_BYTES = 1 << 10
"""Approximate size of a request without its records."""
EXPIRY_INTERVAL_S = 0.1


class PutQueue:
    """On the loop's thread."""

    def __init__(self, commit_log: MessageLog, loop: asyncio.AbstractEventLoop) -> None:
        self.put_messages = 0
        self.put_bytes = 0
        self._commit_log = commit_log
        self._loop = loop
        self._requests: list[PutRequest] = []
        self._pending_bytes = 0
        """Taken, and not answered yet."""
        self._completed: deque[tuple[PutCallback, PutOutcome, int]] = deque()
        self._is_drain_scheduled = False
        self._thread = get_ident()

    def add(self, records: RecordBatch, waits: bool, answer: PutCallback) -> None:
        size_bytes = len(records.buffer) + REQUEST_BYTES
        if self._pending_bytes + size_bytes > MAX_PENDING_BYTES and self._pending_bytes:
            answer(PendingFull("the broker has as much unanswered as it takes", retry_after_ms=20))
            return
        self._pending_bytes += size_bytes
        self.put_messages += len(records)
        self.put_bytes += len(records.buffer)

        is_done = False

        def done(outcome: PutOutcome) -> None:
            nonlocal is_done
            if is_done:
                return
            is_done = True
            if get_ident() == self._thread:
                self._pending_bytes -= size_bytes
                self._answer(answer, outcome)
                return
            self._completed.append((answer, outcome, size_bytes))
            if not self._is_drain_scheduled:
                self._is_drain_scheduled = True
                with suppress(RuntimeError):  # the loop is closed, and with it every connection
                    self._loop.call_soon_threadsafe(self._drain)

        if not self._requests:
            self._loop.call_soon(self._put)
        self._requests.append(PutRequest(records, waits, done))

    def _put(self) -> None:
        requests, self._requests = self._requests, []
        try:
            self._commit_log.put(requests)
        except Exception as error:
            unknown = OutcomeUnknown(f"the store has failed: {type(error).__name__}: {error}")
            for each in requests:
                each.done(unknown)
            raise

    def _answer(self, answer: PutCallback, outcome: PutOutcome) -> None:
        """The caller is no client, and goes on."""
        try:
            answer(outcome)
        except Exception as error:
            words = f"a send cannot be answered: {type(error).__name__}: {error}"
            self._loop.call_exception_handler({"message": words, "exception": error})

    def _drain(self) -> None:
        # Lowered first: what is answered from here on is seen below, or schedules the next one.
        self._is_drain_scheduled = False
        turn = LoopTurn.of(self._loop)
        turn.is_begun = True
        try:
            while self._completed:
                answer, outcome, size_bytes = self._completed.popleft()
                self._pending_bytes -= size_bytes
                self._answer(answer, outcome)
        finally:
            turn.flush()


def greet(
    service: BrokerService,
    connection: Connection,
    frame: Frame,
    ports: Mapping[str, str],
    access: Access = EVERYBODY,
) -> None:
    """A connection begins. Raises ProtocolViolation."""
    hello = frame.message
    if isinstance(hello, wire.EarlierHello):
        connection.send(GROUP, wire.EarlierHelloResponse(request_id=hello.request_id))
        connection.close()
        return
    if not isinstance(hello, Hello):
        raise ProtocolViolation(f"a connection begins with {type(hello).__name__} instead of Hello")
    refusal = refusal_of_other(hello, BROKER, ports)
    if refusal is None:
        connection.session = BrokerSession(service, connection, access)
        welcome = HelloResponse(
            request_id=hello.request_id, product=BROKER, cluster_id=service.cluster_id
        )
        connection.send(GROUP, welcome)
    else:
        connection.send(frame.group, refusal)
        connection.close()


# ---------------------------------------------------------------- BrokerPort
# Where clients reach a broker, classic or on a replicated log; and what every broker has beside it: a
# thread that reads, pulls that wait, and ticks.

MOST_READS = 4
"""Of all clients at a time: what was read is in memory until the loop has sent it."""


class BrokerPort:
    """Of the loop that runs."""

    def __init__(
        self,
        service: BrokerService,
        listen: str,
        tick: Callable[[], None],
        ports: Mapping[str, str],
        tls: Tls | None = None,
        access: Access = EVERYBODY,
    ) -> None:
        """`tls`: None: it is plain. `tick`: called every `TICK_MS`. `ports`: see `refusal_of_other`.
        `access`: authorization."""
        self._service = service
        self._listen = parse_address(listen)
        self._tick_service = tick
        self._ports = ports
        self._loop = asyncio.get_running_loop()
        self.listener = Listener(
            "the broker",
            self._connect,
            decoder=broker_request_decoder,
            option="the broker's address",
            tls=tls,
            second="broker_listen",
            access=access,
        )
        self._access = access
        self._timer: asyncio.TimerHandle | None = None
        self._thread = DiskThread("broker-reads", self._loop)
        self.reads = ReadQueue(self._thread, MOST_READS)
        self.waiting = WaitingPulls(self._loop)
        access.moved.append(self.waiting.wake_all)

    async def open(self) -> None:
        """Raises ConfigError, after which nothing is left of it."""
        try:
            await self.listener.open(*self._listen)
        except BaseException:
            self.ended()
            raise

    def close(self) -> None:
        """Connected clients stay."""
        self.listener.close()
        if self.waiting.wake_all in self._access.moved:
            self._access.moved.remove(self.waiting.wake_all)
        if self._timer is not None:
            self._timer.cancel()

    async def close_connections(self) -> None:
        await asyncio.sleep(0)  # what was answered last leaves
        self.listener.close_connections()

    def ended(self) -> None:
        """Nothing more is read."""
        self._thread.close()

    def tick(self) -> None:
        """Now, and from now on."""
        self._timer = self._loop.call_later(TICK_MS / 1000, self.tick)
        self._tick_service()

    def _connect(self, connection: Connection) -> None:
        connection.on_frame = self._greet

    def _greet(self, connection: Connection, frame: Frame) -> None:
        greet(self._service, connection, frame, self._ports, self._access)
