"""PutQueue: sends that arrive in one turn of the loop are put as one batch; answers come from the flush
thread, and leave together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from quorumlog.broker.message_log import MessageLog, PutOutcome, PutRequest
from quorumlog.broker.messages.record_batch import RecordBatch
from quorumlog.errors import OutcomeUnknown, PendingFull

Answer = Callable[[PutOutcome], None]

MAX_PENDING_BYTES = 64 << 20
REQUEST_BYTES = 1 << 10
"""What a request takes beside its records, about."""
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
        self._answered: deque[tuple[Answer, PutOutcome, int]] = deque()
        self._is_drain_scheduled = False

    def add(self, records: RecordBatch, waits: bool, answer: Answer) -> None:
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
            self._answered.append((answer, outcome, size_bytes))
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

    def _drain(self) -> None:
        # Lowered first: what is answered from here on is seen below, or schedules the next one.
        self._is_drain_scheduled = False
        while self._answered:
            answer, outcome, size_bytes = self._answered.popleft()
            self._pending_bytes -= size_bytes
            answer(outcome)
