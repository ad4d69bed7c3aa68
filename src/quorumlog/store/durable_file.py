"""DurableFile: up to where the log is known to be on disk (the file `durable`).

    payload of a slot (slot_file.py), big-endian
    offset  bytes  field
         0      8  index        of the last entry known to be on disk; -1 none
         8      8  term         of that entry
        16      4  chain_crc    of that entry
        20      8  position     just after it
        28      8  index_synced_position: index units of entries below this position are on disk
        36      1  length d of the directory id; 0: of an earlier release, or not known yet
        37      d  id of the directory that holds it, UTF-8

The point is never ahead of the data, so a bad record above it is a torn tail and may be cut, and one
at or below it is damage and may not. It is written after every flush but synced only now and then:
a killed process loses nothing of it, a machine that loses power at most the last 200 ms, and then
the tail above an older point is verified instead of trusted.
"""

from __future__ import annotations

import struct
import threading
from typing import NamedTuple, Self

from quorumlog.store.disk import Disk
from quorumlog.store.log_points import LOG_ORIGIN, LogPoint
from quorumlog.store.slot_file import SlotFile, read_payload

DURABLE_NAME = "durable"
DURABLE_MAGIC = b"qldura 1"

_PAYLOAD = struct.Struct(">qqIqqB")


class DurablePoint(NamedTuple):
    point: LogPoint
    index_synced_position: int
    """Index units of entries that end at or below this byte position of the data are synced."""


DURABLE_ORIGIN = DurablePoint(LOG_ORIGIN, 0)


def encode_durable_point(durable: DurablePoint, directory_id: str = "") -> bytes:
    point, owner = durable.point, directory_id.encode()
    fields = (point.index, point.term, point.chain, point.position, durable.index_synced_position)
    return _PAYLOAD.pack(*fields, len(owner)) + owner


def decode_durable_point(payload: bytes) -> DurablePoint:
    index, term, chain, position, index_synced_position, _ = _PAYLOAD.unpack_from(payload)
    return DurablePoint(LogPoint(index, term, chain, position), index_synced_position)


def _read_payload(disk: Disk, directory: str) -> bytes | None:
    try:
        return read_payload(disk, f"{directory}/{DURABLE_NAME}", DURABLE_MAGIC)
    except FileNotFoundError:
        return None


def read_durable_owner(disk: Disk, directory: str) -> str:
    """Id of the directory whose member has written the file; "" if it does not say, or has no good
    slot."""
    payload = _read_payload(disk, directory)
    if payload is None:
        return ""
    size_bytes = _PAYLOAD.unpack_from(payload)[-1]
    return payload[_PAYLOAD.size : _PAYLOAD.size + size_bytes].decode(errors="replace")


def read_durable_point(disk: Disk, directory: str) -> DurablePoint | None:
    """None if the file is missing or has no good slot."""
    payload = _read_payload(disk, directory)
    return None if payload is None else decode_durable_point(payload)


class DurableFile:
    """All calls are thread-safe. A `record` that meets a `sync` waits for it: written meanwhile it would
    touch the second slot while the first is not on disk, or keep the first from ever being synced."""

    def __init__(self, slots: SlotFile) -> None:
        self._slots = slots
        self._lock = threading.Lock()
        self.directory_id = ""
        """Recorded with each value from now on."""

    @classmethod
    def create(cls, disk: Disk, directory: str) -> Self:
        """A new file at the origin of the log, synced; the caller syncs the directory."""
        path, payload = f"{directory}/{DURABLE_NAME}", encode_durable_point(DURABLE_ORIGIN)
        return cls(SlotFile.create(disk, path, DURABLE_MAGIC, payload))

    @classmethod
    def open(cls, disk: Disk, directory: str) -> Self:
        """Raises FileNotFoundError; a file without a good slot opens, and `load` says None."""
        return cls(SlotFile.open(disk, f"{directory}/{DURABLE_NAME}", DURABLE_MAGIC))

    def load(self) -> DurablePoint | None:
        """None if no slot is good."""
        with self._lock:
            payload = self._slots.payload
        return None if payload is None else decode_durable_point(payload)

    def record(self, durable: DurablePoint) -> None:
        """Into one slot, not synced (the first after a start goes into both, synced). Never lower than
        before: a truncation uses `record_both_synced`."""
        with self._lock:
            payload = self._slots.payload
            if payload is not None:
                before = decode_durable_point(payload)
                assert durable.point.index >= before.point.index, (durable, before)
            self._slots.write(encode_durable_point(durable, self.directory_id))

    def record_both_synced(self, durable: DurablePoint) -> None:
        """Into both slots, each synced: from now on no older point can reappear."""
        with self._lock:
            self._slots.write_both_synced(encode_durable_point(durable, self.directory_id))

    def sync(self) -> None:
        """Does nothing if nothing was recorded since."""
        with self._lock:
            self._slots.sync()

    def close(self) -> None:
        with self._lock:
            self._slots.close()
