"""The file `start`: where the log begins that no longer has its first entries. Absent: at index 0.

    payload of a slot (slot_file.py, here of 128 KiB, or so many times that as the record needs)
    offset  bytes  field
         0      4  size    of what follows, big-endian
         4   size  MessagePack: [[index, term, chain, position], record, replaces, owed_index]

It is on disk, in both slots, before the first segment below it goes; what a crash leaves there, the next
start of the process removes.
"""

from __future__ import annotations

import struct
from contextlib import closing, suppress

import msgspec

from quorumlog.errors import DirectoryDamaged, DiskFull, StoreFailure
from quorumlog.figures import now
from quorumlog.store.disk import Disk, is_no_damage, reason_of, refusal, was_lack_of_space
from quorumlog.store.files.slot_file import (
    SlotFile,
    payload_bytes_of,
    read_payload,
    read_slots,
    unreadable_slots,
)
from quorumlog.store.ledger_store import LOG_ORIGIN, LogStart

START_NAME = "start"
START_MAGIC = b"qlstrt 1"
START_SECTOR_BYTES = 128 << 10
"""Reserved when the file is made, so that a full disk can be made emptier."""
_MOST_TIMES = 256
MOST_START_BYTES = _MOST_TIMES * START_SECTOR_BYTES
"""A start that is longer is none: 32 MiB, which a member that is given one has in memory. With
100,000 sessions that all have full receipts it is about 10 MB (log_state.py)."""

_SIZE = struct.Struct(">I")


def encode_start(start: LogStart) -> bytes:
    data = msgspec.msgpack.encode(start)
    return _SIZE.pack(len(data)) + data


def decode_start(payload: bytes) -> LogStart:
    """Raises ValueError saying what is wrong."""
    (size,) = _SIZE.unpack_from(payload)
    start = msgspec.msgpack.decode(payload[_SIZE.size : _SIZE.size + size], type=LogStart)
    point = start.point
    # An installed log may begin at index 0, and one that took over what was there before at a position.
    is_origin = point.index == LOG_ORIGIN.index and point.position >= 0
    if not is_origin and min(point.index, point.term, point.chain, point.position) < 0:
        raise ValueError(f"no entry can be {point}")
    return start


def sector_bytes_for(payload: bytes) -> int:
    """The length of a slot that it fits into. Raises DiskFull."""
    times = 1
    while payload_bytes_of(START_SECTOR_BYTES * times) < len(payload):
        times *= 2
    if times > _MOST_TIMES:
        raise DiskFull(
            f"a start is too long{now(f'{len(payload)} bytes')}; end readers or sessions of the log"
        )
    return START_SECTOR_BYTES * times


def sector_bytes_of(disk: Disk, path: str) -> int:
    """The length of the slots of a file; what it says about itself is its size. Raises OSError."""
    times, rest = divmod(disk.size_of(path), 2 * START_SECTOR_BYTES)
    is_made_so = not rest and 0 < times <= _MOST_TIMES and not times & (times - 1)
    return START_SECTOR_BYTES * (times if is_made_so else 1)


def good_start_slots(disk: Disk, directory: str) -> int:
    """How many of the two are good. Raises OSError."""
    path = f"{directory}/{START_NAME}"
    with closing(disk.open(path, writable=False)) as file:
        return len(read_slots(file, START_MAGIC, sector_bytes_of(disk, path)))


def unreadable_start_slots(disk: Disk, directory: str) -> list[tuple[int, str]]:
    """(position, problem) of those that the disk cannot read. Raises OSError."""
    path = f"{directory}/{START_NAME}"
    return unreadable_slots(disk, path, sector_bytes_of(disk, path)) if disk.exists(path) else []


WITHOUT_START = (
    "Put back a copy of this file, or move the whole directory away: the member then starts as a new one"
    " and is fed by the others; the only one of a group begins anew from a backup (quorumlog restore)"
)


def unusable_start(path: str, problem: str) -> DirectoryDamaged:
    """`path`: of the file."""
    return DirectoryDamaged(
        f"{path} cannot be used: {problem} (position 0). {WITHOUT_START}",
        path=path,
        position=0,
    )


def load_start(disk: Disk, directory: str) -> LogStart | None:
    """None if there is no such file. Raises DirectoryDamaged if neither slot is good: nothing else tells
    where the log begins; StoreFailure."""
    path = f"{directory}/{START_NAME}"
    try:
        payload = read_payload(disk, path, START_MAGIC, sector_bytes_of(disk, path))
        if payload is None:
            raise ValueError("neither slot is good")
        return decode_start(payload)
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_no_damage(error):
            raise StoreFailure(refusal(path, "opened", error)) from error
        raise unusable_start(path, reason_of(error)) from error
    except ValueError as error:
        raise unusable_start(path, str(error)) from error


def save_start(disk: Disk, directory: str, start: LogStart) -> None:
    """On disk, in both slots and under its name, when this returns. Any thread, one at a time.

    Raises DiskFull: it is the old start, on disk as well. Raises StoreFailure: nobody knows which of the
    two it is, and whoever goes on could acknowledge what the next start of the process deletes.
    """
    path = f"{directory}/{START_NAME}"
    payload = encode_start(start)
    sector_bytes = sector_bytes_for(payload)
    try:
        held_bytes = sector_bytes_of(disk, path) if disk.exists(path) else 0
        if sector_bytes > held_bytes:
            _replace(disk, path, payload, sector_bytes)
        else:
            # The name may be in the cache only: a start that was killed before it had synced it.
            _sync_directory(disk, directory)
            _overwrite(disk, path, payload, held_bytes)
            return
    except OSError as error:
        raise StoreFailure(refusal(path, "written", error)) from error
    _sync_directory(disk, directory)


def _overwrite(disk: Disk, path: str, payload: bytes, sector_bytes: int) -> None:
    with closing(SlotFile.open(disk, path, START_MAGIC, sector_bytes)) as slots:
        old = slots.payload
        try:
            slots.write_both_synced(payload)
        except StoreFailure as failure:
            if old is None or not was_lack_of_space(failure):
                raise
            # A slot that could not be synced may count all the same: taken back, or the member stops.
            slots.write_both_synced(old)
            raise DiskFull(f"no space to drop the first entries: {failure}") from failure


def _replace(disk: Disk, path: str, payload: bytes, sector_bytes: int) -> None:
    """Where there is no file yet, or one with shorter slots."""
    temporary = f"{path}.tmp"
    try:
        SlotFile.create(disk, temporary, START_MAGIC, payload, sector_bytes).close()
        disk.rename(temporary, path)
    except (StoreFailure, OSError) as failure:
        with suppress(OSError):
            disk.unlink(temporary)
        if was_lack_of_space(failure):
            raise DiskFull(f"no space to drop the first entries: {failure}") from failure
        raise


def _sync_directory(disk: Disk, directory: str) -> None:
    try:
        disk.sync_directory(directory)
    except OSError as error:
        raise StoreFailure(refusal(directory, "synced", error)) from error
