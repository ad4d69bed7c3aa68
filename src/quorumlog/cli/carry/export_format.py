"""The file of an export (docs/formats.md, "Export file"), and its contents when read through.

Big-endian, as everything on disk: a head, the records, an end mark; every part has a CRC-32 of all its
bytes but the CRC itself.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

import msgspec
from isal.isal_zlib import crc32

from quorumlog.config import FRAME_LIMIT_BYTES, MAX_NAME_BYTES
from quorumlog.entry import Entry


class Record(msgspec.Struct, frozen=True, gc=False):
    """An entry of the log that was exported, and where in the file its record ends."""

    index: int
    term: int
    body: bytes
    stop_position: int


class Ending(NamedTuple):
    """The end of the file, after the last record."""

    records: int
    last_index: int
    """The export holds every entry up to here; above the last record's index if no-ops follow it."""


class FileBroken(Exception):
    """A file that is not whole: `problem` at `position`, after `records` whole records."""

    def __init__(self, problem: str, position: int, records: int) -> None:
        super().__init__(f"{problem}, at position {position} after {records} complete records")
        self.position = position


class FileDamaged(FileBroken):
    """The bytes there were not written by an export."""


class FileTorn(FileBroken):
    """It ends too early: a record or the end is missing, the rest is good."""


MAGIC = b"QLEX"
VERSION = 1
END_MARK = -1
"""In the place of `body_bytes`."""

_HEAD = struct.Struct(">4siqiI")
_RECORD = struct.Struct(">iIqq")
_CHECKED_HEAD = struct.Struct(">4siqi")
_CHECKED_RECORD = struct.Struct(">iqq")


def head(group: str, first_index: int) -> bytes:
    name = group.encode()
    fields = (MAGIC, VERSION, first_index, len(name))
    return _HEAD.pack(*fields, crc32(name, crc32(_CHECKED_HEAD.pack(*fields)))) + name


def encoded(entries: Iterable[Entry]) -> bytes:
    parts: list[bytes] = []
    for index, term, body in map(msgspec.structs.astuple, entries):
        crc = crc32(body, crc32(_CHECKED_RECORD.pack(len(body), index, term)))
        parts += _RECORD.pack(len(body), crc, index, term), body
    return b"".join(parts)


def tail(ending: Ending) -> bytes:
    fields = (ending.last_index, ending.records)
    return _RECORD.pack(END_MARK, crc32(_CHECKED_RECORD.pack(END_MARK, *fields)), *fields)


class ExportReader:
    def __init__(self, file: BinaryIO) -> None:
        """Raises FileDamaged and FileTorn, and `records` does, where the damage is."""
        self._file = file
        self.ending: Ending | None = None
        """Once every record was given."""
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise FileTorn("the head is cut off", 0, 0)
        magic, version, first_index, name_bytes, crc = _HEAD.unpack(head)
        if magic != MAGIC:
            raise FileDamaged("this is not an export file", 0, 0)
        if version != VERSION:
            raise FileDamaged(f"format version {version} is not supported, only {VERSION}", 4, 0)
        if not 0 <= name_bytes <= MAX_NAME_BYTES:
            raise FileDamaged("the CRC of the head is wrong", 0, 0)
        name = file.read(name_bytes)
        if len(name) < name_bytes:
            raise FileTorn("the head is cut off", 0, 0)
        if crc32(name, crc32(head[: _CHECKED_HEAD.size])) != crc:
            raise FileDamaged("the CRC of the head is wrong", 0, 0)
        self.group = name.decode()
        self.first_index = first_index
        self.head_bytes = _HEAD.size + name_bytes

    def records(self) -> Iterator[Record]:
        read, last_index, position, count = self._file.read, self.first_index - 1, self.head_bytes, 0
        while head := read(_RECORD.size):
            if len(head) < _RECORD.size:
                raise FileTorn("a record is cut off", position, count)
            body_bytes, crc, index, term = _RECORD.unpack(head)
            if body_bytes == END_MARK:
                self._end(Ending(term, index), crc, Ending(count, last_index), position)
                return
            # A length that damage has made is not asked for.
            if not 0 <= body_bytes <= FRAME_LIMIT_BYTES:
                raise FileDamaged(f"a record cannot have {body_bytes} bytes", position, count)
            body = read(body_bytes)
            if len(body) < body_bytes:
                raise FileTorn("a record is cut off", position, count)
            if crc32(body, crc32(_CHECKED_RECORD.pack(body_bytes, index, term))) != crc:
                raise FileDamaged("the CRC of a record is wrong", position, count)
            if index <= last_index:
                raise FileDamaged(f"index {index} follows index {last_index}", position, count)
            position += _RECORD.size + body_bytes
            count += 1
            last_index = index
            yield Record(index, term, body, position)
        raise FileTorn("the end mark is missing", position, count)

    def _end(self, ending: Ending, crc: int, found: Ending, position: int) -> None:
        if crc32(_CHECKED_RECORD.pack(END_MARK, ending.last_index, ending.records)) != crc:
            raise FileDamaged("the CRC of the end mark is wrong", position, found.records)
        if ending.records != found.records or ending.last_index < found.last_index:
            raise FileDamaged(
                f"the end mark counts {ending.records} records up to index {ending.last_index}, and the"
                f" last one is index {found.last_index}",
                position,
                found.records,
            )
        if self._file.read(1):
            raise FileDamaged("bytes follow the end mark", position + _RECORD.size, found.records)
        self.ending = ending


_SHOWN_EVERY = 4096


class Extent(NamedTuple):
    """Of a file whose every record is good."""

    group: str
    first_index: int
    records: int
    last: Record | None
    stop_position: int
    """After the last record."""
    ending: Ending | None
    """None: the file is torn."""
    torn: FileTorn | None

    @property
    def last_index(self) -> int:
        """Every entry up to here is in the file."""
        if self.ending is not None:
            return self.ending.last_index
        if self.last is not None:
            return self.last.index
        return self.first_index - 1


def is_export(file: BinaryIO) -> bool:
    file.seek(0)
    return file.read(len(MAGIC)) == MAGIC


def scan_export(
    file: BinaryIO,
    report: Callable[[int, int], None],
    see: Callable[[Record], None] = lambda record: None,
) -> Extent:
    """Reads the file through; `report` is called with (position, size of the file) now and then, `see`
    with every record. Raises FileDamaged, and FileTorn where not even the head is whole."""
    size_bytes = os.fstat(file.fileno()).st_size
    file.seek(0)
    reader = ExportReader(file)
    last: Record | None = None
    count = 0
    torn: FileTorn | None = None
    try:
        for record in reader.records():
            see(record)
            last = record
            count += 1
            if count % _SHOWN_EVERY == 0:
                report(record.stop_position, size_bytes)
    except FileTorn as error:
        torn = error
    stop_position = reader.head_bytes if last is None else last.stop_position
    return Extent(reader.group, reader.first_index, count, last, stop_position, reader.ending, torn)
