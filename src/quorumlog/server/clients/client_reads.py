"""ClientReads: entries for one client, one answer after the other."""

from __future__ import annotations

import functools
import math
from collections import deque
from typing import NamedTuple

from quorumlog.errors import ConnectionFull, IndexOutOfRange, LedgerError
from quorumlog.net.connection import Connection
from quorumlog.net.errors import error_response
from quorumlog.server.clients.append_streams import RETRY_FULL_MS
from quorumlog.server.clients.read_promises import ReadPromises, age_of
from quorumlog.server.node_driver import NodeDriver
from quorumlog.server.waiting_reads import ReadOutcome
from quorumlog.wire.client_messages import ReadRequest, ReadResponse

READ_LIMIT_BYTES = 8 << 20
"""Most bytes of one answer to a read, whatever the request asks."""
WAIT_LIMIT_MS = 60_000
WAITING_READS_LIMIT = 1000


class _Read(NamedTuple):
    driver: NodeDriver
    request: ReadRequest
    since_ms: float = -math.inf
    """It was granted as a linearizable one that was asked for then."""


class ClientReads:
    def __init__(self, connection: Connection, promises: ReadPromises) -> None:
        self._connection = connection
        self._promises = promises
        self._reads: deque[_Read] = deque()
        """Reads that wait for the one before them, and for the client to take what it was sent."""
        self._is_reading = False
        self._is_starting_reads = False
        """Inside `next_read`: an answer from memory comes at once, and must not call it again."""
        self._waiting_reads = 0

    def lost(self) -> None:
        self._reads.clear()

    def ask(self, driver: NodeDriver, request: ReadRequest) -> None:
        refusal: LedgerError | None = None
        if request.promise is not None:
            if self._may_wait_longer(driver, request):
                kept = functools.partial(self._promised, driver, request)
                self._promises.wait(driver, request.promise, kept)
            return
        refusal = driver.node.refusal_unless_leading() if request.from_leader else None
        if refusal is not None:
            self._answer(_Read(driver, request), refusal)
            return
        is_above = request.first_index > driver.node.committed_index
        may_wait = is_above and request.wait_ms > 0
        if not may_wait and not (request.from_leader and (is_above or request.to_end)):
            self._queue(_Read(driver, request))
            return
        if not self._may_wait_longer(driver, request):
            return
        if may_wait:
            self._wait(_Read(driver, request))
        else:
            # Where the log ends only a leader knows: is it one still?
            confirmed = functools.partial(self._promised, driver, request, -math.inf)
            driver.node.confirm_leadership(confirmed, self._connection)

    def _may_wait_longer(self, driver: NodeDriver, request: ReadRequest) -> bool:
        if self._waiting_reads >= WAITING_READS_LIMIT:
            error = ConnectionFull(
                f"{WAITING_READS_LIMIT} reads wait on this connection", retry_after_ms=RETRY_FULL_MS
            )
            self._answer(_Read(driver, request), error)
            return False
        self._waiting_reads += 1
        return True

    def _wait(self, read: _Read) -> None:
        if read.driver.reads.refusal is not None:
            self._woken(read)
            return
        wait_ms = min(read.request.wait_ms, WAIT_LIMIT_MS)
        woken = functools.partial(self._woken, read)
        read.driver.reads.wait_for(read.request.first_index, wait_ms, woken)

    def _woken(self, read: _Read) -> None:
        self._waiting_reads -= 1
        if read.request.first_index > read.driver.node.committed_index:
            self._answer(read, read.driver.reads.refusal)
        else:
            self._queue(read)

    def _promised(
        self, driver: NodeDriver, request: ReadRequest, since_ms: float, refusal: LedgerError | None
    ) -> None:
        """The member leads, or is as fresh as it has to be."""
        read = _Read(driver, request, since_ms)
        is_above = request.first_index > driver.node.committed_index
        if refusal is None and request.promise is not None and is_above and request.wait_ms > 0:
            self._wait(read)
            return
        self._waiting_reads -= 1
        if refusal is not None:
            self._answer(read, refusal)
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
        self._answer(read, outcome)
        self.next_read()

    def _answer(self, read: _Read, outcome: ReadOutcome) -> None:
        driver, request, asked_ms = read
        node = driver.node
        since_ms = max(asked_ms, node.raft.reads.fresh_since_ms())
        if request.promise is not None and (
            not isinstance(outcome, LedgerError) or isinstance(outcome, IndexOutOfRange)
        ):
            refusal = self._promises.refusal_of_age(driver, request.promise, since_ms)
            outcome = refusal or outcome
        if isinstance(outcome, LedgerError):
            if isinstance(outcome, IndexOutOfRange):
                outcome.age_ms = age_of(driver, since_ms)
            self._connection.send(driver.config.group, error_response(request.request_id, outcome))
            return
        self._connection.send(
            driver.config.group,
            ReadResponse(
                request_id=request.request_id,
                first_index=request.first_index,
                count=outcome.count if outcome is not None else 0,
                ledger_begin_index=node.store.begin.index + 1,
                committed_index=node.committed_index,
                age_ms=age_of(driver, since_ms),
                heads=request.heads and outcome is not None,
            ),
            outcome.heads() if request.heads and outcome is not None else outcome,
        )
