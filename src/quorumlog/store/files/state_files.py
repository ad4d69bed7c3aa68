"""The files `states/POSITION`: the state of the log in front of each segment, so that a start need not
read the log to know it.

    b"QLBS", CRC-32 of what follows (4 bytes, big-endian)
    MessagePack: [[index, term, chain, position], record]

`position` is that of the segment, and the file's name. What is there is a help: it counts only where
this log holds the very entry that it names, and may be missing.
"""

from __future__ import annotations

import struct
from contextlib import closing, suppress

import msgspec
from isal.isal_zlib import crc32

from quorumlog.store.disk import Disk
from quorumlog.store.files.replaced_file import read_readable
from quorumlog.store.ledger_store import LogStart

STATES_NAME = "states"
STATE_MAGIC = b"QLBS"
_NAME_DIGITS = 20
_CRC = struct.Struct(">I")
_HEAD_BYTES = len(STATE_MAGIC) + _CRC.size


def encode_state(state: LogStart) -> bytes:
    data = msgspec.msgpack.encode((state.point, state.record))
    return STATE_MAGIC + _CRC.pack(crc32(data)) + data


def decode_state(data: bytes) -> LogStart | None:
    """None if it is not a whole good one."""
    body = data[_HEAD_BYTES:]
    if data[:_HEAD_BYTES] != STATE_MAGIC + _CRC.pack(crc32(body)):
        return None
    try:
        return msgspec.msgpack.decode(body, type=LogStart)
    except msgspec.MsgspecError:
        return None


def state_name(position: int) -> str:
    return f"{position:0{_NAME_DIGITS}d}"


def _path(directory: str, position: int) -> str:
    return f"{directory}/{STATES_NAME}/{state_name(position)}"


def _temporary(directory: str, position: int) -> str:
    return f"{_path(directory, position)}.tmp"


def saved_positions(disk: Disk, directory: str) -> list[int]:
    """In order. Raises OSError."""
    names = disk.list(f"{directory}/{STATES_NAME}")
    return sorted(int(n) for n in names if len(n) == _NAME_DIGITS and n.isascii() and n.isdigit())


def stage_state(disk: Disk, directory: str, state: LogStart) -> None:
    """On disk when this returns, under a name that nobody reads. Raises OSError."""
    folder = f"{directory}/{STATES_NAME}"
    if not disk.exists(folder):
        disk.make_directory(folder)
        disk.sync_directory(directory)
    temporary = _temporary(directory, state.point.position)
    if disk.exists(temporary):
        disk.unlink(temporary)
    with closing(disk.open(temporary, create=True)) as file:
        file.pwritev([encode_state(state)], 0)
        file.sync()


def place_state(disk: Disk, directory: str, position: int) -> None:
    """What was staged counts from now on; the name is not synced. Raises OSError."""
    disk.rename(_temporary(directory, position), _path(directory, position))


def forget_staged(disk: Disk, directory: str, position: int) -> None:
    with suppress(OSError):
        disk.unlink(_temporary(directory, position))


def save_state(disk: Disk, directory: str, state: LogStart) -> None:
    """On disk when this returns. Raises OSError."""
    stage_state(disk, directory, state)
    place_state(disk, directory, state.point.position)
    disk.sync_directory(f"{directory}/{STATES_NAME}")


def load_state(disk: Disk, directory: str, position: int) -> LogStart | None:
    """None if it cannot be used."""
    data, _ = read_readable(disk, _path(directory, position))
    state = None if data is None else decode_state(data)
    return state if state is not None and state.point.position == position else None


def delete_states(disk: Disk, directory: str, positions: list[int]) -> None:
    """Their names are not synced. Raises OSError."""
    for position in positions:
        with suppress(IsADirectoryError):  # it is no state, and the next start sets it aside
            disk.unlink(_path(directory, position))
