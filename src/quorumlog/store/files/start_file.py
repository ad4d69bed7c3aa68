"""The file `start`: where the log begins that no longer has its first entries. Absent: at index 0.

    payload of a slot (slot_file.py, here of 128 KiB)
    offset  bytes  field
         0      4  size    of what follows, big-endian
         4   size  MessagePack: [[index, term, chain, position], record, replaces, owed_index]

It is on disk, in both slots, before the first segment below it goes; what a crash leaves there, the next
start of the process removes.
"""

from __future__ import annotations

import struct
from contextlib import closing

import msgspec

from quorumlog.errors import DirectoryDamaged, StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.files.slot_file import SlotFile, payload_bytes_of, read_payload
from quorumlog.store.ledger_store import LogStart

START_NAME = "start"
START_MAGIC = b"qlstrt 1"
START_SECTOR_BYTES = 128 << 10
"""Reserved when the file is made, so that a full disk can be made emptier."""

_SIZE = struct.Struct(">I")


def encode_start(start: LogStart) -> bytes:
    """Raises ValueError if the record is too long."""
    data = msgspec.msgpack.encode(start)
    payload = _SIZE.pack(len(data)) + data
    room_bytes = payload_bytes_of(START_SECTOR_BYTES)
    if len(payload) > room_bytes:
        raise ValueError(f"a start of {len(payload)} bytes does not fit into {room_bytes}")
    return payload


def decode_start(payload: bytes) -> LogStart:
    """Raises ValueError saying what is wrong."""
    (size,) = _SIZE.unpack_from(payload)
    return msgspec.msgpack.decode(payload[_SIZE.size : _SIZE.size + size], type=LogStart)


def load_start(disk: Disk, directory: str) -> LogStart | None:
    """None if there is no such file. Raises DirectoryDamaged if neither slot is good: nothing else tells
    where the log begins."""
    path = f"{directory}/{START_NAME}"
    try:
        payload = read_payload(disk, path, START_MAGIC, START_SECTOR_BYTES)
        if payload is None:
            raise ValueError("neither slot is good")
        return decode_start(payload)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DirectoryDamaged(
            f"{path} cannot be used: {error} (position 0). Put back a copy of this file, or move the"
            " whole directory away: the member then starts as a new one and is fed by the others",
            path=path,
            position=0,
        ) from error


def save_start(disk: Disk, directory: str, start: LogStart) -> None:
    """On disk, in both slots and under its name, when this returns. Any thread, one at a time. Raises
    StoreFailure; what a start of the process finds then is the old start or the new one."""
    path = f"{directory}/{START_NAME}"
    payload = encode_start(start)
    if disk.exists(path):
        # The name may be in the cache only: a start that was killed before it had synced it.
        _sync_directory(disk, directory)
        with closing(SlotFile.open(disk, path, START_MAGIC, START_SECTOR_BYTES)) as slots:
            slots.write_both_synced(payload)
        return
    temporary = f"{path}.tmp"
    SlotFile.create(disk, temporary, START_MAGIC, payload, START_SECTOR_BYTES).close()
    try:
        disk.rename(temporary, path)
    except OSError as error:
        raise StoreFailure(refusal(path, "written", error)) from error
    _sync_directory(disk, directory)


def _sync_directory(disk: Disk, directory: str) -> None:
    try:
        disk.sync_directory(directory)
    except OSError as error:
        raise StoreFailure(refusal(directory, "synced", error)) from error
