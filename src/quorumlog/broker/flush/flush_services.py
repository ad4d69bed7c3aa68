"""GroupCommitService (SYNC_FLUSH) and FlushRealTimeService (ASYNC_FLUSH): when the commit log is synced,
and who is told.

Neither has a thread of its own: `ServiceThread` calls `run_once`, and so does a simulation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.messages.message import PutStatus

FlushDone = Callable[[PutStatus], None]


class FlushedLog(Protocol):
    """What a flush service needs of a commit log."""

    @property
    def flushed_offset(self) -> int: ...

    def flush(self, least_pages: int) -> None:
        """Raises StoreFailure, and then for ever."""

    def reserve_ahead(self) -> None: ...


class GroupCommitRequest:
    """Waits until everything below `next_offset` is on disk."""

    def __init__(self, next_offset: int, deadline_ms: float, done: FlushDone) -> None:
        self.next_offset = next_offset
        self.deadline_ms = deadline_ms
        self._done: FlushDone | None = done
        self._lock = threading.Lock()

    def complete(self, status: PutStatus) -> bool:
        """Once; what comes later is too late."""
        with self._lock:
            done, self._done = self._done, None
        if done is not None:
            done(status)
        return done is not None


class FlushService(Protocol):
    interval_ms: int

    def submit(self, next_offset: int, now_ms: float, done: FlushDone | None) -> None:
        """Something was written. `done`: called when it is on disk, if this service waits for that at
        all; otherwise at once."""

    def run_once(self, now_ms: float) -> None:
        """Raises StoreFailure."""

    def wants_wakeup(self) -> bool:
        """A put has something for it to do now."""

    def expire(self, now_ms: float) -> None: ...

    def fail(self) -> None: ...


class GroupCommitService:
    """Requests are taken in one list while those of another are being synced: one flush answers all that
    waited when it began."""

    interval_ms = 10

    def __init__(self, log: FlushedLog, config: MessageStoreConfig) -> None:
        self._log = log
        self._config = config
        self._lock = threading.Lock()
        self._requests_write: list[GroupCommitRequest] = []
        self._requests_read: list[GroupCommitRequest] = []
        self._failed = False
        self._wanted = False

    def submit(self, next_offset: int, now_ms: float, done: FlushDone | None) -> None:
        self._wanted = True
        if done is None:
            return
        request = GroupCommitRequest(next_offset, now_ms + self._config.sync_flush_timeout, done)
        with self._lock:
            failed = self._failed
            if not failed:
                self._requests_write.append(request)
        if failed:
            request.complete(PutStatus.SERVICE_NOT_AVAILABLE)

    def wants_wakeup(self) -> bool:
        return self._wanted

    def run_once(self, now_ms: float) -> None:
        with self._lock:
            assert not self._requests_read, "one thread flushes"
            self._requests_read, self._requests_write = self._requests_write, []
            self._wanted = False
        self._log.flush(0)
        flushed = self._log.flushed_offset
        for request in self._requests_read:
            # The log of a master that follows another one now may be cut in front of what waits.
            is_there = flushed >= request.next_offset
            request.complete(PutStatus.PUT_OK if is_there else PutStatus.FLUSH_DISK_TIMEOUT)
        with self._lock:
            self._requests_read = []
        self._log.reserve_ahead()

    def expire(self, now_ms: float) -> None:
        """Those that have waited too long are told so; what they wrote may still come to be on disk."""
        with self._lock:
            late = [
                request
                for request in (*self._requests_read, *self._requests_write)
                if request.deadline_ms <= now_ms
            ]
        for request in late:
            request.complete(PutStatus.FLUSH_DISK_TIMEOUT)

    def fail(self) -> None:
        with self._lock:
            self._failed = True
            waiting = [*self._requests_read, *self._requests_write]
            self._requests_write = []
        for request in waiting:
            request.complete(PutStatus.SERVICE_NOT_AVAILABLE)


class FlushRealTimeService:
    """Nobody waits for it."""

    def __init__(self, log: FlushedLog, config: MessageStoreConfig) -> None:
        self._log = log
        self._config = config
        self.interval_ms = config.flush_interval_commit_log
        self._last_thorough_ms = 0.0
        self._wanted = False

    def submit(self, next_offset: int, now_ms: float, done: FlushDone | None) -> None:
        self._wanted = not self._config.flush_commit_log_timed
        if done is not None:
            done(PutStatus.PUT_OK)

    def wants_wakeup(self) -> bool:
        return self._wanted

    def run_once(self, now_ms: float) -> None:
        self._wanted = False
        least_pages = self._config.flush_commit_log_least_pages
        if now_ms >= self._last_thorough_ms + self._config.flush_commit_log_thorough_interval:
            self._last_thorough_ms = now_ms
            least_pages = 0
        self._log.flush(least_pages)
        self._log.reserve_ahead()

    def expire(self, now_ms: float) -> None:
        pass

    def fail(self) -> None:
        pass


def flush_service_of(log: FlushedLog, config: MessageStoreConfig) -> FlushService:
    return (GroupCommitService if config.is_sync_flush else FlushRealTimeService)(log, config)
