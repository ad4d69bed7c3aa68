"""The files `applying/NAME`: what a state machine was about to apply as its process ended.

    b"QLAPPLY1"
    size, CRC-32 of what follows (4 bytes each, big-endian), then so many bytes
        MessagePack: [first_index, stop_index, left_out]

Written in place, before and behind each piece that is applied. It is not synced then: the end of a
process leaves it as it is, and a loss of power may take it. So it is a help only, and where the disk
refuses it the machine goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated

import msgspec
from isal.isal_zlib import crc32
from msgspec import Meta

from quorumlog.log_state.control_entries import MOST_STEPPED_OVER
from quorumlog.store.disk import Disk, DiskFile
from quorumlog.store.files.replaced_file import read_readable
from quorumlog.store.files.snapshot_file import LeftOut

APPLYING_NAME = "applying"
APPLYING_MAGIC = b"QLAPPLY1"
_HEAD = struct.Struct(">8sII")


class Applying(msgspec.Struct, frozen=True, array_like=True):
    first_index: int
    stop_index: int
    """Entries of the machine below `first_index` are applied; of those from there up to `stop_index`
    (exclusive) nobody knows. Both are equal where none was under way."""
    left_out: Annotated[tuple[LeftOut, ...], Meta(max_length=MOST_STEPPED_OVER)] = ()
    """What the machine keeps itself holds nothing of these, ascending."""

    @property
    def is_under_way(self) -> bool:
        return self.first_index < self.stop_index

    def __str__(self) -> str:
        if self.stop_index - self.first_index == 1:
            return f"entry {self.first_index}"
        return f"entries {self.first_index} .. {self.stop_index - 1}"


NOTHING = Applying(0, 0)
_encode = msgspec.msgpack.Encoder().encode


class ApplyingFile:
    """Written on the thread that applies."""

    def __init__(
        self, disk: Disk, directory: str, name: str, opened: Callable[[DiskFile], None]
    ) -> None:
        """`opened` is told of the file, and closes it once nothing is applied any more."""
        self._disk = disk
        self._folder = f"{directory}/{APPLYING_NAME}"
        self._path = f"{self._folder}/{name}"
        self._file: DiskFile | None = None
        self._tell_opened = opened
        self.found = _read(disk, self._path)
        """As it was when this was made."""
        self._range = self.found.first_index, self.found.stop_index
        self.applied_index = self.found.first_index - 1
        """Up to there its entries were applied here, by this run or by the last one, also if it is being
        built anew; -1: not known."""
        self.left_out = self.found.left_out

    def begins(self, first_index: int, stop_index: int) -> None:
        self._range = first_index, stop_index
        self.applied_index = max(self.applied_index, first_index - 1)
        self._write()

    def ended(self, stop_index: int) -> None:
        """What was begun has its effects."""
        self._range = stop_index, stop_index
        self.applied_index = max(self.applied_index, stop_index - 1)
        self._write()

    def leaves_out(self, left_out: Iterable[LeftOut]) -> None:
        """What the machine keeps holds nothing of these from here on. On disk when this returns, unless
        the disk refuses it: then the machine is built anew at the next start."""
        ordered = tuple(sorted(left_out))
        if ordered != self.left_out:
            self.left_out = ordered
            self._write()
            with suppress(OSError):
                self._opened().sync()

    def _write(self) -> None:
        """Of each piece that is applied: a few microseconds."""
        data = _encode((*self._range, self.left_out))
        record = _HEAD.pack(APPLYING_MAGIC, len(data), crc32(data)) + data
        try:
            (self._file or self._opened()).pwritev([record], 0)
        except OSError:
            return  # it is a help only

    def _opened(self) -> DiskFile:
        if self._file is None:
            self._disk.make_directory(self._folder)
            self._file = self._disk.open(self._path, create=not self._disk.exists(self._path))
            self._tell_opened(self._file)
        return self._file


def _read(disk: Disk, path: str) -> Applying:
    """Nothing where it cannot be read."""
    with suppress(OSError, struct.error, msgspec.MsgspecError):
        content = read_readable(disk, path)[0] or b""
        magic, size_bytes, crc = _HEAD.unpack_from(content)
        data = content[_HEAD.size : _HEAD.size + size_bytes]
        if (magic, crc) == (APPLYING_MAGIC, crc32(data)):
            return msgspec.msgpack.decode(data, type=Applying)
    return NOTHING
