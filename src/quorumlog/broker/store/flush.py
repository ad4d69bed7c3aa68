"""Syncs of the store, their waiters, and the checkpoint."""

from __future__ import annotations

import struct
import threading
import traceback
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.message import PutStatus
from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, DiskFile, disk_work

if TYPE_CHECKING:
    from quorumlog.broker.store.commit_log import CommitLog

# ----------------------------------------------------------------
# GroupCommitService (SYNC_FLUSH) and FlushRealTimeService (ASYNC_FLUSH): when the commit log is synced,
# and who is told.
#
# Neither has a thread of its own: `ServiceThread` calls `run_once`, and so does a simulation.

FlushDone = Callable[[PutStatus], None]


class GroupCommitRequest:
    """Waits until everything below `next_offset` is on disk."""

    def __init__(self, next_offset: int, deadline_ms: float, done: FlushDone) -> None:
        self.next_offset = next_offset
        self.deadline_ms = deadline_ms
        self._done: FlushDone | None = done
        self._lock = threading.Lock()

    def complete(self, status: PutStatus) -> bool:
        """Once; later calls are ignored."""
        with self._lock:
            done, self._done = self._done, None
        if done is not None:
            done(status)
        return done is not None


class FlushService:
    """With SYNC_FLUSH it is RocketMQ's GroupCommitService: requests are taken in one list while those of
    another are being synced, so one flush answers all that waited when it began. With ASYNC_FLUSH it is
    FlushRealTimeService, and requests do not wait. `ServiceThread` or a simulation calls `run_once`."""

    def __init__(self, log: CommitLog, config: MessageStoreConfig) -> None:
        self.interval_ms = 10 if config.is_sync_flush else config.flush_interval_commit_log
        self._log = log
        self._config = config
        self._is_sync = config.is_sync_flush
        self._lock = threading.Lock()
        self._requests_write: list[GroupCommitRequest] = []
        self._requests_read: list[GroupCommitRequest] = []
        self._failed = False
        self._last_thorough_ms = 0.0
        self.wants_wakeup = False
        """A put has something for it to do now."""
        self.since_ms: float | None = None
        """When the flush that is under way began; None: there is none."""

    def submit(self, next_offset: int, now_ms: float, done: FlushDone | None) -> None:
        """Something was written. `done`: called when it is on disk, or at once without a wait."""
        self.wants_wakeup = self._is_sync or not self._config.flush_commit_log_timed
        if done is None:
            return
        if not self._is_sync:
            done(PutStatus.PUT_OK)
            return
        request = GroupCommitRequest(next_offset, now_ms + self._config.sync_flush_timeout, done)
        with self._lock:
            failed = self._failed
            if not failed:
                self._requests_write.append(request)
        if failed:
            request.complete(PutStatus.SERVICE_NOT_AVAILABLE)

    def run_once(self, now_ms: float) -> None:
        """Raises StoreFailure."""
        config, least_pages = self._config, 0
        with self._lock:
            assert not self._requests_read, "one thread flushes"
            self._requests_read, self._requests_write = self._requests_write, []
            self.wants_wakeup = False
        if not self._is_sync:
            if now_ms >= self._last_thorough_ms + config.flush_commit_log_thorough_interval:
                self._last_thorough_ms = now_ms
            else:
                least_pages = config.flush_commit_log_least_pages
        self.since_ms = now_ms
        self._log.flush(least_pages)
        self.since_ms = None
        flushed = self._log.flushed_offset
        for request in self._requests_read:
            # The log of a master that follows another one now may be cut before what waits.
            is_there = flushed >= request.next_offset
            request.complete(PutStatus.PUT_OK if is_there else PutStatus.FLUSH_DISK_TIMEOUT)
        with self._lock:
            self._requests_read = []
        self._log.reserve_ahead()

    def expire(self, now_ms: float) -> None:
        """Time out requests that have waited too long; their records may still reach the disk."""
        with self._lock:
            waiting = [*self._requests_read, *self._requests_write]
        for request in waiting:
            if request.deadline_ms <= now_ms:
                request.complete(PutStatus.FLUSH_DISK_TIMEOUT)

    def fail(self) -> None:
        with self._lock:
            self._failed = True
            waiting = [*self._requests_read, *self._requests_write]
            self._requests_write = []
        for request in waiting:
            request.complete(PutStatus.SERVICE_NOT_AVAILABLE)


class ServiceThread:
    """Calls a service again and again, when its interval is over or when it is woken."""

    def __init__(
        self,
        name: str,
        run_once: Callable[[], None],
        interval_ms: float,
        failed: Callable[[StoreFailure], None],
    ) -> None:
        self._run_once = run_once
        self._interval_s = interval_ms / 1000
        self._failed = failed
        self._event = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wakeup(self) -> None:
        if not self._event.is_set():
            self._event.set()

    def _run(self) -> None:
        while not self._stopping:
            self._event.wait(self._interval_s)
            self._event.clear()
            if self._stopping:
                return
            try:
                self._run_once()
            except StoreFailure as failure:
                self._failed(failure)
                return
            except Exception as error:  # a bug or the disk: either way the store must stop
                self._failed(StoreFailure("".join(traceback.format_exception(error))))
                return

    def stop(self) -> None:
        """Blocks until it has ended; idempotent."""
        self._stopping = True
        self._event.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()


# ---------------------------------------------------------------- StoreCheckpoint
# Up to which store time commit log, queues and index are on disk (`ROOT/checkpoint`).
#
#     offset  bytes  field (big-endian, of a file of 4096 bytes; RocketMQ's)
#          0      8  physicMsgTimestamp
#          8      8  logicsMsgTimestamp
#         16      8  indexMsgTimestamp
#         24      8  masterFlushedOffset
#         32      8  confirmPhyOffset
#
# Each is raised only after the flush that it describes, and never before.

CHECKPOINT_NAME = "checkpoint"
CHECKPOINT_BYTES = 4096
_CHECKPOINT = struct.Struct(">qqqqq")
MARGIN_MS = 3000
"""Recovery goes back so much further than the checkpoint, as in RocketMQ."""


class StoreCheckpoint:
    """Fields may be set by any thread; `flush` brings them to the disk."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        data = file.pread(_CHECKPOINT.size, 0).ljust(_CHECKPOINT.size, b"\0")
        physic, logics, index, master, confirm = _CHECKPOINT.unpack(data)
        self.physic_msg_timestamp: int = physic
        self.logics_msg_timestamp: int = logics
        self.index_msg_timestamp: int = index
        self.master_flushed_offset: int = master
        self.confirm_phy_offset: int = confirm

    @classmethod
    def open(cls, disk: Disk, root: str) -> StoreCheckpoint:
        """Made at full length if it is not there. Raises StoreFailure."""
        path = f"{root}/{CHECKPOINT_NAME}"
        with disk_work(path, "opened"):
            if not disk.exists(path):
                file = disk.open(path, create=True)
                file.pwritev([bytes(CHECKPOINT_BYTES)], 0)
                file.sync()
                disk.sync_directory(root)
                return cls(file)
            file = disk.open(path)
            if file.size() < CHECKPOINT_BYTES:
                file.set_size(CHECKPOINT_BYTES)
            return cls(file)

    @classmethod
    def peek(cls, disk: Disk, root: str) -> int:
        """physicMsgTimestamp of the file as it is; 0 without one. Raises StoreFailure."""
        path = f"{root}/{CHECKPOINT_NAME}"
        with disk_work(path, "read"):
            if not disk.exists(path):
                return 0
            with closing(disk.open(path, writable=False)) as file:
                return cls(file).physic_msg_timestamp

    @property
    def min_timestamp(self) -> int:
        """Queues have every message that was stored at this time or before."""
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - MARGIN_MS, 0)

    def forget_queues(self) -> None:
        """They and the index are about to be deleted: a start that finds them half derived begins with
        all of the log. On disk when this returns. Raises StoreFailure."""
        self.logics_msg_timestamp = self.index_msg_timestamp = 0
        self.flush()

    def flush(self) -> None:
        """Raises StoreFailure."""
        with self._lock:
            data = _CHECKPOINT.pack(
                self.physic_msg_timestamp,
                self.logics_msg_timestamp,
                self.index_msg_timestamp,
                self.master_flushed_offset,
                self.confirm_phy_offset,
            )
            with disk_work(self._file.path, "written"):
                self._file.pwritev([data], 0)
                self._file.sync()

    def close(self) -> None:
        self._file.close()
