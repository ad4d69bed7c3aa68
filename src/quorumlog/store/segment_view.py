"""Read access to segments that may be damaged, at a start or for inspection.

Nothing here writes or locks. A page that the disk cannot read is zeros and reported as unreadable; bytes
missing from the files read as zeros.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quorumlog.entry import ENTRY_KINDS
from quorumlog.entry_header import HEADER_BYTES, EntryHeader, unpack_header
from quorumlog.errors import ConfigError
from quorumlog.store.disk import Disk, is_no_damage, not_allowed, reason_of, refusal
from quorumlog.store.log_points import LogPoint
from quorumlog.store.placement import problem_of_units
from quorumlog.store.segment import PAGE_BYTES, Segment
from quorumlog.store.segments import (
    BLANK_BYTES,
    INDEX_DTYPE,
    INDEX_UNIT_BYTES,
    NAME_DIGITS,
    IndexArray,
    SegmentList,
    SegmentScan,
    scan_segment,
    segment_name,
)

WINDOW_BYTES = 16 << 20
MAX_OPEN_FILES = 64
UNIT_CHUNK = 65_536
"""Index units that are read at once."""

MAX_INDEX = 1 << 58
"""No log gets that far, and the byte position of its index unit still fits into 64 bits."""

MAX_POSITION = 1 << 62
"""Limit of positions: higher ones in a file's name or a unit are invalid."""


class SegmentFile(NamedTuple):
    name: str
    """Relative to the directory, such as `data/00000000000000000000`."""
    position: int
    size_bytes: int


def list_segment_files(disk: Disk, directory: str, folder: str) -> list[SegmentFile]:
    """In order of position; names that are no position are not segments and left out."""
    files = []
    for name in disk.list(f"{directory}/{folder}"):
        if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() and int(name) < MAX_POSITION:
            try:
                size_bytes = disk.size_of(f"{directory}/{folder}/{name}")
            except FileNotFoundError:
                continue  # a running member has just cut it off
            files.append(SegmentFile(f"{folder}/{name}", int(name), size_bytes))
    return files


class SegmentView(SegmentList):
    """Files of another process, which may write, cut or delete them: opened when needed, for reading.
    Not thread-safe."""

    def __init__(
        self, disk: Disk, directory: str, files: Sequence[SegmentFile], segment_bytes: int
    ) -> None:
        """`directory`: of the segments, which may have gaps between them."""
        super().__init__(disk, directory, max(segment_bytes, 1), 0)
        self._bases = [file.position for file in files]

    @property
    def bases(self) -> list[int]:
        return self._bases

    def base_of(self, position: int) -> int:
        """A file begins at the byte in its name, of any alignment."""
        number = self._number_of(position)
        return self._bases[number] if number >= 0 else super().base_of(position)

    def stop_of(self, position: int) -> int:
        """Or where the next file begins, if none holds it: a damaged length may be a few bytes."""
        number = self._number_of(position)
        if number >= 0:
            return self._bases[number] + self.segment_bytes
        return next(iter(self._bases[bisect_right(self._bases, position) :]), sys.maxsize)

    def file_at(self, position: int) -> Segment | None:
        """None also if a running member has deleted it. Raises OSError, and ConfigError where it
        cannot be opened and that is no damage."""
        number = self._number_of(position)
        if number < 0:
            return None
        base = self._bases[number]
        if base not in self._files:
            path = f"{self.directory}/{segment_name(base)}"
            try:
                file = Segment.open(self._disk, path, base, self.segment_bytes, writable=False)
            except FileNotFoundError:
                return None
            except PermissionError as error:
                raise ConfigError(not_allowed(path, error)) from error
            except OSError as error:
                if is_no_damage(error):
                    raise ConfigError(refusal(path, "read", error)) from error
                raise
            if len(self._files) >= MAX_OPEN_FILES:
                self._files.pop(next(iter(self._files))).release()
            self._files[base] = file
        return self._files[base]

    def next_data(self, position: int) -> int:
        """Where the disk cannot report holes, all is data."""
        try:
            return super().next_data(position)
        except OSError:
            return position

    def _number_of(self, position: int) -> int:
        """Of the file that a byte belongs to, -1 if there is none."""
        number = bisect_right(self._bases, position) - 1
        return number if number >= 0 and position < self._bases[number] + self.segment_bytes else -1


class UnreadablePage(NamedTuple):
    """The first page of a read that the disk refuses."""

    position: int
    problem: str


def read_pages(
    segments: SegmentList, size_bytes: int, position: int
) -> tuple[bytes, tuple[UnreadablePage, ...]]:
    """Bytes, with zeros where no file has them and for unreadable pages, and these pages."""
    pieces: list[bytes] = []
    unreadable: list[UnreadablePage] = []
    stop, by_page = position + size_bytes, False
    while position < stop:
        base = segments.base_of(position)
        size = min(stop, segments.stop_of(position)) - position
        if by_page:
            size = min(size, PAGE_BYTES - (position - base) % PAGE_BYTES)
        try:
            piece = segments.pread(size, position)
        except OSError as error:
            if not by_page:
                by_page = True
                continue
            piece = b""
            unreadable.append(UnreadablePage(position, f"cannot be read: {reason_of(error)}"))
        pieces.append(piece.ljust(size, b"\0"))
        position += size
    return pieces[0] if len(pieces) == 1 else b"".join(pieces), tuple(unreadable)


def scan_at(
    segments: SegmentList,
    position: int,
    *,
    expected_index: int,
    previous_term: int,
    previous_chain: int | None,
    check_bodies: bool = False,
    stop_position: int | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> tuple[SegmentScan, bytes]:
    """`scan_segment` of the next window of a segment, and the bytes of that window. A longer entry is
    read whole; one that touches a page which the disk cannot read is bad."""
    segment_end = segments.base_of(position) + segments.segment_bytes
    room_bytes = segment_end - position
    size_bytes = min(window_bytes, room_bytes)
    while True:
        data, unreadable = read_pages(segments, size_bytes, position)
        if unreadable:
            data = data[: unreadable[0].position - position]
        scan = scan_segment(
            memoryview(data),
            position,
            position,
            expected_index=expected_index,
            previous_term=previous_term,
            previous_chain=previous_chain,
            check_bodies=check_bodies,
            stop_position=stop_position,
            segment_bytes=room_bytes,
        )
        if unreadable and scan.stop == "full" and scan.end_position < (stop_position or segment_end):
            scan = scan._replace(stop="bad", problem=unreadable[0].problem)
        if scan.stop != "full" or scan.end_position > position or len(data) < size_bytes:
            return scan, data
        if len(data) < HEADER_BYTES:
            return scan, data
        header = unpack_header(data)
        if header.pos != position or header.size != header.body_len + HEADER_BYTES:
            problem = f"a header at {position} that no entry of more than {size_bytes} bytes has"
            return scan._replace(stop="bad", problem=problem), data  # before its body is in memory
        longest = header.size + BLANK_BYTES
        if size_bytes >= min(longest, room_bytes):
            return scan, data
        size_bytes = min(longest, room_bytes)


def header_at(segments: SegmentList, position: int) -> EntryHeader | None:
    """Of an entry that says that it lies there; None if there is none, or the disk cannot read it."""
    data, unreadable = read_pages(segments, HEADER_BYTES, position)
    header = unpack_header(data)
    is_entry = (
        header.magic in ENTRY_KINDS and header.size == header.body_len + HEADER_BYTES >= HEADER_BYTES
    )
    is_here = header.pos == position and 0 <= header.index < MAX_INDEX
    return header if is_entry and is_here and not unreadable else None


class IndexUnits:
    """Index units by index. One that is not there, or that the disk cannot read, reads as zeros."""

    def __init__(self, segments: SegmentList) -> None:
        self.segments = segments
        self.unreadable: dict[int, UnreadablePage] = {}

    @property
    def stop_index(self) -> int:
        """After the last index that has room for a unit."""
        bases = self.segments.bases
        return (bases[-1] + self.segments.segment_bytes) // INDEX_UNIT_BYTES if bases else 0

    @cached_property
    def begin_index(self) -> int:
        """The first index whose unit names it, in the first file; else that file's stop."""
        if not self.segments.bases:
            return 0
        index = self.segments.bases[0] // INDEX_UNIT_BYTES
        file_stop = index + self.segments.segment_bytes // INDEX_UNIT_BYTES
        for first, units, is_named in self.chunks(index, file_stop):
            is_unit = is_named & (units["size"] > 0)
            if is_unit.any():
                return first + int(is_unit.argmax())
        return file_stop

    def chunks(
        self, first_index: int, stop_index: int
    ) -> Iterator[tuple[int, IndexArray, npt.NDArray[np.bool_]]]:
        """(index of the first, units, whether each has the index of its place), piece by piece."""
        for first in range(first_index, stop_index, UNIT_CHUNK):
            units = self.read(first, min(first + UNIT_CHUNK, stop_index))
            yield first, units, units["index"] == np.arange(first, first + len(units))

    def read(self, first_index: int, stop_index: int) -> IndexArray:
        """Shape (stop_index - first_index,), `INDEX_DTYPE`."""
        assert 0 <= first_index <= stop_index, (first_index, stop_index)
        size_bytes = (stop_index - first_index) * INDEX_UNIT_BYTES
        data, unreadable = read_pages(self.segments, size_bytes, first_index * INDEX_UNIT_BYTES)
        self.unreadable.update((page.position // PAGE_BYTES, page) for page in unreadable)
        return np.frombuffer(data, INDEX_DTYPE)

    def unit_at(self, data: SegmentList, index: int, stop_position: int) -> IndexArray | None:
        """Shape (1,); None if it cannot be true, or its entry does not end below a position."""
        unit = self.read(index, index + 1)
        wrong, _ = problem_of_units(unit, index, data.segment_bytes, stop_position)
        return unit if wrong < 0 else None

    def point_at(self, data: SegmentList, index: int, stop_position: int) -> LogPoint | None:
        """Of an entry that ends below a position; None if unit and header do not agree about it."""
        unit = self.unit_at(data, index, stop_position)
        header = header_at(data, int(unit["position"][0])) if unit is not None else None
        if unit is None or header is None:
            return None
        fields = (header.magic, header.pos, header.size, header.index, header.term)
        if fields != unit[0].item():
            return None
        return LogPoint(index, header.term, header.chain_crc, header.pos + header.size)
