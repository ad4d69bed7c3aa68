"""A connection's ordered requests: streams of appends, and reads."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.errors import ConnectionFull, IndexOutOfRange, LedgerError, OutOfSequence
from quorumlog.net.access import Caller
from quorumlog.net.connection import Connection
from quorumlog.server.clients.hidden_users import without_users
from quorumlog.server.clients.requests import age_of, refusal_of_age, wait_for_promise
from quorumlog.server.node_driver import NodeDriver
from quorumlog.server.waiting_reads import ReadOutcome
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import ReadRequest, ReadResponse

STREAMS_LIMIT = 1000
"""Of one connection; with more it would take memory for streams that nobody uses any more."""
RETRY_FULL_MS = 20
"""After so long many requests of a full connection are answered."""

Key = tuple[str, int]
"""(group, number of the stream)."""


class _Stream:
    __slots__ = ("expected", "unanswered")

    def __init__(self) -> None:
        self.expected = 1
        """The next number that is accepted."""
        self.unanswered = 0
        """Accepted requests without an answer."""


class AppendStreams:
    def __init__(self) -> None:
        self._streams: dict[Key, _Stream] = {}
        """The one used last stands last."""

    def accept(self, key: Key, number: int) -> LedgerError | None:
        """None if this request is accepted, and `answered` or `refused` follows; else why not."""
        stream = self._streams.pop(key, None)
        if stream is None:
            if number != 1:
                return OutOfSequence(
                    f"request {number} of a stream came where 1 was expected: it is new here, or more"
                    f" than {STREAMS_LIMIT} other streams were used on this connection since"
                )
            if len(self._streams) >= STREAMS_LIMIT and not self._forget_one():
                return ConnectionFull(
                    f"{STREAMS_LIMIT} streams have unanswered appends on this connection, which is as"
                    " many as it may have",
                    retry_after_ms=RETRY_FULL_MS,
                )
            stream = _Stream()
        self._streams[key] = stream
        if number != stream.expected:
            return OutOfSequence(
                f"request {number} of a stream came where {stream.expected} was expected"
            )
        stream.expected += 1
        stream.unanswered += 1
        return None

    def answered(self, key: Key) -> None:
        """With a receipt, or with an unknown outcome: the next number follows."""
        self._streams[key].unanswered -= 1

    def refused(self, key: Key, number: int) -> None:
        """It was accepted, and then nothing of it was written: it may come again."""
        stream = self._streams[key]
        stream.unanswered -= 1
        stream.expected = min(stream.expected, number)

    def _forget_one(self) -> bool:
        for key, stream in self._streams.items():
            if not stream.unanswered:
                del self._streams[key]
                return True
        return False


READ_LIMIT_BYTES = 8 << 20
"""Most bytes of one answer to a read, regardless of the request."""
WAIT_LIMIT_MS = 60_000
WAITING_READS_LIMIT = 1000

ReplyCallback = Callable[
    [NodeDriver, ClientMessage, ClientMessage | LedgerError, EntryBatch | None], None
]


class _Read(NamedTuple):
    driver: NodeDriver
    request: ReadRequest
    since_ms: float = -math.inf
    """It was granted as a linearizable one that was asked for then."""


class ClientReads:
    """Entries for one client, one answer after the other."""

    def __init__(
        self,
        connection: Connection,
        reply: ReplyCallback,
        refusal: Callable[[ReadRequest, str], LedgerError | None],
        caller: Caller,
    ) -> None:
        """`refusal`: of a client that lost its right to read."""
        self._caller = caller
        self._connection = connection
        self._reply = reply
        self._refusal = refusal
        self._reads: deque[_Read] = deque()
        """Reads that wait for the one before them, and for the client to take what it was sent."""
        self._is_reading = False
        self._is_starting_reads = False
        """Inside `next_read`: an answer from memory comes at once, and must not call it again."""
        self._waiting_reads = 0

    def lost(self) -> None:
        self._reads.clear()

    def ask(self, driver: NodeDriver, request: ReadRequest) -> None:
        read, node, promise = _Read(driver, request), driver.node, request.promise
        is_above = request.first_index > node.committed_index
        refusal: LedgerError | None = None
        if promise is None:
            refusal = node.refusal_unless_leading() if request.from_leader else None
            may_wait = is_above and request.wait_ms > 0
            asks_for_end = request.from_leader and (is_above or request.to_end)
            if refusal is None and not may_wait and not asks_for_end:
                self._queue(read)
                return
        if refusal is None and self._waiting_reads >= WAITING_READS_LIMIT:
            refusal = ConnectionFull(
                f"{WAITING_READS_LIMIT} reads wait on this connection", retry_after_ms=RETRY_FULL_MS
            )
        if refusal is not None:
            self._answer(read, refusal)
            return
        self._waiting_reads += 1
        granted = functools.partial(self._granted, driver, request)
        if promise is not None:
            wait_for_promise(driver, promise, granted, self._connection)
        elif may_wait:
            self._wait(read)
        else:
            # Where the log ends only a leader knows: is it one still?
            node.confirm_leadership(granted, self._connection)

    def _granted(
        self, driver: NodeDriver, request: ReadRequest, outcome: float | LedgerError | None
    ) -> None:
        """The member leads (None), or is as fresh as it has to be, as of when; or neither."""
        if isinstance(outcome, LedgerError):
            self._waiting_reads -= 1
            self._answer(_Read(driver, request), outcome)
            return
        read = _Read(driver, request, -math.inf if outcome is None else outcome)
        if outcome is not None and self._is_above(read) and request.wait_ms > 0:
            self._wait(read)
        else:
            self._waiting_reads -= 1
            self._queue(read)

    @staticmethod
    def _is_above(read: _Read) -> bool:
        return read.request.first_index > read.driver.node.committed_index

    def _wait(self, read: _Read) -> None:
        reads = read.driver.reads
        woken = functools.partial(self._woken, read)
        if reads.refusal is not None:
            woken()
        else:
            reads.wait_for(read.request.first_index, min(read.request.wait_ms, WAIT_LIMIT_MS), woken)

    def _woken(self, read: _Read) -> None:
        self._waiting_reads -= 1
        refusal = self._refusal(read.request, read.driver.config.group)
        if refusal is not None or self._is_above(read):
            self._answer(read, refusal or read.driver.reads.refusal)
        else:
            self._queue(read)

    def _queue(self, read: _Read) -> None:
        self._reads.append(read)
        self.next_read()

    def next_read(self) -> None:
        """One at a time, and none while the client has megabytes to take: a reader that asks for more
        than it reads must not fill this process with answers."""
        if self._is_starting_reads:
            return
        self._is_starting_reads = True
        while self._reads and not self._is_reading and not self._connection.closed:
            if self._connection.is_full:
                break  # `writable` goes on
            read = self._reads.popleft()
            self._is_reading = True
            read.driver.reads.read(
                read.request.first_index,
                read.request.stop_index,
                max(1, min(read.request.limit_bytes, READ_LIMIT_BYTES)),
                functools.partial(self._done, read),
            )
        self._is_starting_reads = False

    def _done(self, read: _Read, outcome: ReadOutcome) -> None:
        self._is_reading = False
        # It may have waited long: is it still to be answered?
        refusal = (
            self._refusal(read.request, read.driver.config.group) if self._caller.is_checked else None
        )
        self._answer(read, refusal or outcome)
        self.next_read()

    def _answer(self, read: _Read, outcome: ReadOutcome) -> None:
        driver, request, asked_ms = read
        node = driver.node
        since_ms = max(asked_ms, node.raft.reads.fresh_since_ms())
        if request.promise is not None and (
            not isinstance(outcome, LedgerError) or isinstance(outcome, IndexOutOfRange)
        ):
            outcome = refusal_of_age(driver, request.promise, since_ms) or outcome
        if isinstance(outcome, LedgerError):
            if isinstance(outcome, IndexOutOfRange):
                outcome.age_ms = age_of(driver, since_ms)
            self._reply(driver, request, outcome, None)
            return
        response = ReadResponse(
            request_id=request.request_id,
            first_index=request.first_index,
            count=outcome.count if outcome is not None else 0,
            ledger_begin_index=node.store.begin.index + 1,
            committed_index=node.committed_index,
            age_ms=age_of(driver, since_ms),
            heads=request.heads and outcome is not None,
        )
        if outcome is not None and self._caller.is_checked and not self._caller.is_admin:
            outcome = without_users(outcome)
        batch = outcome.heads() if request.heads and outcome is not None else outcome
        self._reply(driver, request, response, batch)
