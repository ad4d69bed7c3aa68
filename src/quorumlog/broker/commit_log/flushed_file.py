"""FlushedFile: up to where the commit log is known to be on disk (`ROOT/flushed`, a file of ours).

    payload of a slot (slot_file.py), big-endian
    offset  bytes  field
         0      8  position behind the last record that is known to be on disk
         8      8  bytes of a file of the commit log
        16      8  bytes of a file of a queue

What is bad above is the torn end of a crash and may be cut; what is bad below is damage and may not.
RocketMQ has no such file, and cuts a log at the first bad record wherever it lies.
"""

from __future__ import annotations

import struct
import threading

from quorumlog.errors import ConfigError
from quorumlog.store.disk import Disk
from quorumlog.store.slot_file import SlotFile

FLUSHED_NAME = "flushed"
FLUSHED_MAGIC = b"qlflsh 1"
_PAYLOAD = struct.Struct(">qqq")


def flushed_of(payload: bytes) -> tuple[int, int, int]:
    """The position, and the two sizes."""
    position, file_bytes, queue_bytes = _PAYLOAD.unpack_from(payload)
    return position, file_bytes, queue_bytes


class FlushedFile:
    """Any thread."""

    def __init__(self, slots: SlotFile, file_bytes: int, queue_bytes: int) -> None:
        self._slots = slots
        self._file_bytes = file_bytes
        self._queue_bytes = queue_bytes
        self._lock = threading.Lock()

    @classmethod
    def open(cls, disk: Disk, root: str, file_bytes: int, queue_bytes: int) -> FlushedFile:
        """Made if it is not there, with 0. Raises ConfigError where it was made for other sizes."""
        path = f"{root}/{FLUSHED_NAME}"
        try:
            slots = SlotFile.open(disk, path, FLUSHED_MAGIC)
        except FileNotFoundError:
            payload = _PAYLOAD.pack(0, file_bytes, queue_bytes)
            slots = SlotFile.create(disk, path, FLUSHED_MAGIC, payload)
            disk.sync_directory(root)
        opened = cls(slots, file_bytes, queue_bytes)
        if slots.payload is not None:
            _, *sizes = flushed_of(slots.payload)
            for option, held, asked in (
                ("mapped_file_size_commit_log", sizes[0], file_bytes),
                ("mapped_file_size_consume_queue", sizes[1], queue_bytes),
            ):
                if held != asked:
                    opened.close()
                    raise ConfigError(f"{root} was made with {option} = {held}, not {asked}: set it so")
        return opened

    def load(self) -> int:
        """0 if no slot is good: then nothing is known."""
        with self._lock:
            payload = self._slots.payload
        return 0 if payload is None else flushed_of(payload)[0]

    def record(self, position: int) -> None:
        """Not synced: a killed process loses nothing of it."""
        with self._lock:
            self._slots.write(_PAYLOAD.pack(position, self._file_bytes, self._queue_bytes))

    def record_synced(self, position: int) -> None:
        """Lower, too."""
        with self._lock:
            self._slots.write_both_synced(_PAYLOAD.pack(position, self._file_bytes, self._queue_bytes))

    def close(self) -> None:
        with self._lock:
            self._slots.close()
