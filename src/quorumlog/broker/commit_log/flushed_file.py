"""FlushedFile: up to where the commit log is known to be on disk (`ROOT/flushed`, a file of ours).

What is bad above is the torn end of a crash and may be cut; what is bad below is damage and may not.
RocketMQ has no such file, and cuts a log at the first bad record wherever it lies.
"""

from __future__ import annotations

import struct
import threading

from quorumlog.store.disk import Disk
from quorumlog.store.files.slot_file import SlotFile

FLUSHED_NAME = "flushed"
FLUSHED_MAGIC = b"qlflsh 1"
_PAYLOAD = struct.Struct(">q")


class FlushedFile:
    """Any thread."""

    def __init__(self, slots: SlotFile) -> None:
        self._slots = slots
        self._lock = threading.Lock()

    @classmethod
    def open(cls, disk: Disk, root: str) -> FlushedFile:
        """Made if it is not there, with 0."""
        path = f"{root}/{FLUSHED_NAME}"
        try:
            return cls(SlotFile.open(disk, path, FLUSHED_MAGIC))
        except FileNotFoundError:
            slots = SlotFile.create(disk, path, FLUSHED_MAGIC, _PAYLOAD.pack(0))
            disk.sync_directory(root)
            return cls(slots)

    def load(self) -> int:
        """0 if no slot is good: then nothing is known."""
        with self._lock:
            payload = self._slots.payload
        return 0 if payload is None else int(_PAYLOAD.unpack_from(payload)[0])

    def record(self, position: int) -> None:
        """Not synced: a killed process loses nothing of it."""
        with self._lock:
            self._slots.write(_PAYLOAD.pack(position))

    def record_synced(self, position: int) -> None:
        """Lower, too."""
        with self._lock:
            self._slots.write_both_synced(_PAYLOAD.pack(position))

    def close(self) -> None:
        with self._lock:
            self._slots.close()
