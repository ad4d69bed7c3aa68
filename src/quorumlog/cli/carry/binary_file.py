"""The binary format of an export (docs/formats.md, "Export file"): big-endian, as everything on disk.

A head, the records, an end mark. Every part has a CRC-32 of all its bytes but the CRC itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec
from isal.isal_zlib import crc32

from quorumlog.cli.carry.records import Ending, FileDamaged, FileTorn, Record, check_order
from quorumlog.config import FRAME_LIMIT_BYTES, MAX_NAME_BYTES
from quorumlog.entry import Entry

MAGIC = b"QLEX"
VERSION = 1
END_MARK = -1
"""In the place of `body_bytes`."""

_HEAD = struct.Struct(">4siqiI")
_RECORD = struct.Struct(">iIqq")
_CHECKED_HEAD = struct.Struct(">4siqi")
_CHECKED_RECORD = struct.Struct(">iqq")


class BinaryFormat:
    name = "binary"
    opening = MAGIC

    def open(self, file: BinaryIO) -> BinaryReader:
        return BinaryReader(file)

    def head(self, group: str, first_index: int) -> bytes:
        name = group.encode()
        fields = (MAGIC, VERSION, first_index, len(name))
        return _HEAD.pack(*fields, crc32(name, crc32(_CHECKED_HEAD.pack(*fields)))) + name

    def encoded(self, entries: Iterable[Entry]) -> bytes:
        parts: list[bytes] = []
        for index, term, body in map(msgspec.structs.astuple, entries):
            crc = crc32(body, crc32(_CHECKED_RECORD.pack(len(body), index, term)))
            parts += _RECORD.pack(len(body), crc, index, term), body
        return b"".join(parts)

    def tail(self, ending: Ending) -> bytes:
        fields = (ending.last_index, ending.records)
        return _RECORD.pack(END_MARK, crc32(_CHECKED_RECORD.pack(END_MARK, *fields)), *fields)


class BinaryReader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.ending: Ending | None = None
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise FileTorn("the head is cut off", 0, 0)
        magic, version, first_index, name_bytes, crc = _HEAD.unpack(head)
        if magic != MAGIC:
            raise FileDamaged("this is no export", 0, 0)
        if version != VERSION:
            raise FileDamaged(f"version {version} of the format is not known, only {VERSION}", 4, 0)
        if not 0 <= name_bytes <= MAX_NAME_BYTES:
            raise FileDamaged("the CRC of the head is wrong", 0, 0)
        name = file.read(name_bytes)
        if len(name) < name_bytes:
            raise FileTorn("the head is cut off", 0, 0)
        if crc32(name, crc32(head[: _CHECKED_HEAD.size])) != crc:
            raise FileDamaged("the CRC of the head is wrong", 0, 0)
        self.group: str | None = name.decode()
        self.first_index: int | None = first_index
        self.head_bytes = _HEAD.size + name_bytes

    def records(self) -> Iterator[Record]:
        assert self.first_index is not None
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
                raise FileDamaged(f"a record of {body_bytes} bytes is none", position, count)
            body = read(body_bytes)
            if len(body) < body_bytes:
                raise FileTorn("a record is cut off", position, count)
            if crc32(body, crc32(_CHECKED_RECORD.pack(body_bytes, index, term))) != crc:
                raise FileDamaged("the CRC of a record is wrong", position, count)
            check_order(index, last_index, position, count)
            position += _RECORD.size + body_bytes
            count += 1
            last_index = index
            yield Record(index, term, body, position)
        raise FileTorn("the end mark is missing", position, count)

    def _end(self, said: Ending, crc: int, found: Ending, position: int) -> None:
        if crc32(_CHECKED_RECORD.pack(END_MARK, said.last_index, said.records)) != crc:
            raise FileDamaged("the CRC of the end mark is wrong", position, found.records)
        if said.records != found.records or said.last_index < found.last_index:
            raise FileDamaged(
                f"the end mark tells of {said.records} records up to index {said.last_index}, and the"
                f" last one is index {found.last_index}",
                position,
                found.records,
            )
        if self._file.read(1):
            raise FileDamaged("more stands behind the end mark", position + _RECORD.size, found.records)
        self.ending = said
