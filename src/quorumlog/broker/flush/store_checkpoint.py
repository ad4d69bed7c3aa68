"""StoreCheckpoint: up to which store time commit log, queues and index are on disk (`ROOT/checkpoint`).

    offset  bytes  field (big-endian, of a file of 4096 bytes; RocketMQ's)
         0      8  physicMsgTimestamp
         8      8  logicsMsgTimestamp
        16      8  indexMsgTimestamp
        24      8  masterFlushedOffset
        32      8  confirmPhyOffset

Each is raised only after the flush that it describes, and never before.
"""

from __future__ import annotations

import struct
import threading
from contextlib import closing

from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, DiskFile, refusal

CHECKPOINT_NAME = "checkpoint"
CHECKPOINT_BYTES = 4096
_FIELDS = struct.Struct(">qqqqq")
MARGIN_MS = 3000
"""Recovery goes back so much further than the checkpoint, as in RocketMQ."""


class StoreCheckpoint:
    """Fields may be set by any thread; `flush` brings them to the disk."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        data = file.pread(_FIELDS.size, 0).ljust(_FIELDS.size, b"\0")
        physic, logics, index, master, confirm = _FIELDS.unpack(data)
        self.physic_msg_timestamp: int = physic
        self.logics_msg_timestamp: int = logics
        self.index_msg_timestamp: int = index
        self.master_flushed_offset: int = master
        self.confirm_phy_offset: int = confirm

    @classmethod
    def open(cls, disk: Disk, root: str) -> StoreCheckpoint:
        """Made at full length if it is not there. Raises StoreFailure."""
        path = f"{root}/{CHECKPOINT_NAME}"
        try:
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
        except OSError as error:
            raise StoreFailure(refusal(path, "opened", error)) from error

    @classmethod
    def peek(cls, disk: Disk, root: str) -> int:
        """physicMsgTimestamp of the file as it is; 0 without one. Raises StoreFailure."""
        path = f"{root}/{CHECKPOINT_NAME}"
        try:
            if not disk.exists(path):
                return 0
            with closing(disk.open(path, writable=False)) as file:
                return cls(file).physic_msg_timestamp
        except OSError as error:
            raise StoreFailure(refusal(path, "read", error)) from error

    @property
    def min_timestamp(self) -> int:
        """Queues have every message that was stored at this time or before."""
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - MARGIN_MS, 0)

    @property
    def min_timestamp_with_index(self) -> int:
        return max(min(self.min_timestamp, self.index_msg_timestamp), 0)

    def forget_queues(self) -> None:
        """They are about to be deleted: a start that finds them half derived begins with the whole log.
        On disk when this returns. Raises StoreFailure."""
        self.logics_msg_timestamp = 0
        self.flush()

    def flush(self) -> None:
        """Raises StoreFailure."""
        with self._lock:
            data = _FIELDS.pack(
                self.physic_msg_timestamp,
                self.logics_msg_timestamp,
                self.index_msg_timestamp,
                self.master_flushed_offset,
                self.confirm_phy_offset,
            )
            try:
                self._file.pwritev([data], 0)
                self._file.sync()
            except OSError as error:
                raise StoreFailure(refusal(self._file.path, "written", error)) from error

    def close(self) -> None:
        self._file.close()
