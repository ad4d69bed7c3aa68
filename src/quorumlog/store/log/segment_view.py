"""SegmentView: the segment files of a folder as one address space, only to be looked at.

Nothing here writes or locks, and nothing is mapped: a page that the disk cannot read is an error instead
of a signal, and so is one of a file that a running member cuts meanwhile. What no file holds reads as
zeros, as it would once a start had made the file again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from quorumlog.entry_header import HEADER_BYTES, unpack_header
from quorumlog.errors import ConfigError
from quorumlog.store.disk import Disk, DiskFile
from quorumlog.store.log.segment import PAGE_BYTES
from quorumlog.store.log.segment_list import NAME_DIGITS, segment_name
from quorumlog.store.log.segment_scan import (
    BLANK_BYTES,
    INDEX_DTYPE,
    INDEX_UNIT_BYTES,
    IndexArray,
    SegmentScan,
    scan_segment,
)

WINDOW_BYTES = 16 << 20
MAX_OPEN_FILES = 64
UNIT_CHUNK = 65_536
"""Index units that are read at once."""

MAX_INDEX = 1 << 58
"""No log gets that far, and the byte position of its index unit still fits into 64 bits."""


class Segments(Protocol):
    """What a walk over a log needs of its segments: `SegmentView`, or `SegmentList` of a member."""

    directory: str
    segment_bytes: int

    @property
    def bases(self) -> Sequence[int]:
        """Positions of the first bytes of the segments, in order."""

    def base_of(self, position: int) -> int: ...

    def path_of(self, position: int) -> str: ...

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Raises OSError."""

    def next_data(self, position: int) -> int:
        """The first position from here on that lies in no hole, or where the segment ends."""


class SegmentFile(NamedTuple):
    """A file named by the position of its first byte."""

    name: str
    """Relative to the directory, such as `data/00000000000000000000`."""
    position: int
    size_bytes: int


def list_segment_files(disk: Disk, directory: str, folder: str) -> list[SegmentFile]:
    """In order of position; names that are no position are not segments and left out."""
    files = []
    for name in disk.list(f"{directory}/{folder}"):
        if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() and int(name) < 1 << 62:
            try:
                size_bytes = disk.size_of(f"{directory}/{folder}/{name}")
            except FileNotFoundError:
                continue  # a running member has just cut it off
            files.append(SegmentFile(f"{folder}/{name}", int(name), size_bytes))
    return files


class SegmentView:
    """`Segments` of files that somebody else may write, cut or delete. Not thread-safe."""

    def __init__(
        self, disk: Disk, directory: str, files: Sequence[SegmentFile], segment_bytes: int
    ) -> None:
        """`directory`: of the segments. Files without bytes hold nothing."""
        self.directory = directory
        self.segment_bytes = max(segment_bytes, 1)
        self.bases = [file.position for file in files]
        self._sizes = [min(file.size_bytes, segment_bytes) for file in files]
        self._disk = disk
        self._open: dict[int, DiskFile] = {}

    def base_of(self, position: int) -> int:
        number = self._number_of(position)
        return self.bases[number] if number >= 0 else position // self.segment_bytes * self.segment_bytes

    def path_of(self, position: int) -> str:
        return f"{self.directory}/{segment_name(self.base_of(position))}"

    def name_of(self, position: int) -> str:
        """Relative to the data directory."""
        return "/".join(self.path_of(position).rsplit("/", 2)[1:])

    def pread(self, size_bytes: int, position: int) -> bytes:
        """All of them, zeros where there are none. Raises OSError, ConfigError without permission."""
        pieces = []
        stop = position + size_bytes
        while position < stop:
            number = self._number_of(position)
            piece = b""
            if number < 0:
                behind = bisect_right(self.bases, position)
                piece_stop = min([stop, *self.bases[behind : behind + 1]])
            else:
                offset = position - self.bases[number]
                piece_stop = min(stop, self.bases[number] + self.segment_bytes)
                held = min(piece_stop - position, self._sizes[number] - offset)
                file = self._file(number) if held > 0 else None
                piece = file.pread(held, offset) if file is not None else b""
            pieces.append(piece.ljust(piece_stop - position, b"\0"))
            position = piece_stop
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def next_data(self, position: int) -> int:
        number = self._number_of(position)
        end = self.base_of(position) + self.segment_bytes
        file = self._file(number) if number >= 0 else None
        if file is None:
            return end
        offset = file.next_data(position - self.bases[number])
        return min(self.bases[number] + offset, end) if offset < self._sizes[number] else end

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _number_of(self, position: int) -> int:
        """Of the file that a byte belongs to, -1 if there is none."""
        number = bisect_right(self.bases, position) - 1
        return number if number >= 0 and position < self.bases[number] + self.segment_bytes else -1

    def _file(self, number: int) -> DiskFile | None:
        """None if a running member has deleted it."""
        file = self._open.get(number)
        if file is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            path = f"{self.directory}/{segment_name(self.bases[number])}"
            try:
                file = self._open[number] = self._disk.open(path, writable=False)
            except FileNotFoundError:
                return None
            except PermissionError as error:
                raise ConfigError(f"{path} cannot be read: {error}") from error
        return file


class Unreadable(NamedTuple):
    """The first page of a read that the disk refuses."""

    position: int
    problem: str


def read_pages(
    segments: Segments, size_bytes: int, position: int
) -> tuple[bytes, tuple[Unreadable, ...]]:
    """Bytes, with zeros for the pages that the disk cannot read, and which these are."""
    try:
        return segments.pread(size_bytes, position), ()
    except OSError:
        pass
    pieces, unreadable = [], []
    stop = position + size_bytes
    while position < stop:
        base = segments.base_of(position)
        page_bytes = PAGE_BYTES - (position - base) % PAGE_BYTES
        size = min(page_bytes, base + segments.segment_bytes - position, stop - position)
        try:
            pieces.append(segments.pread(size, position))
        except OSError as error:
            pieces.append(bytes(size))
            unreadable.append(Unreadable(position, f"cannot be read: {error}"))
        position += size
    return b"".join(pieces), tuple(unreadable)


def scan_at(
    segments: Segments,
    position: int,
    *,
    expected_index: int,
    previous_term: int,
    previous_chain: int | None,
    check_bodies: bool = False,
    stop_position: int | None = None,
    window_bytes: int = WINDOW_BYTES,
) -> tuple[SegmentScan, bytes]:
    """`scan_segment` of the next window of a segment, and the bytes of that window.

    An entry longer than `window_bytes` is read whole, whatever fits into a frame by now.
    An entry that touches a page which the disk cannot read is bad.
    """
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


class IndexUnits:
    """Index units by index. One that is not there, or that the disk cannot read, reads as zeros."""

    def __init__(self, segments: SegmentView) -> None:
        self.segments = segments
        self.unreadable: dict[int, Unreadable] = {}
        """Met so far, by position."""

    @property
    def stop_index(self) -> int:
        """Behind the last index that has room for a unit."""
        bases = self.segments.bases
        return (bases[-1] + self.segments.segment_bytes) // INDEX_UNIT_BYTES if bases else 0

    @cached_property
    def begin_index(self) -> int:
        """The first index whose unit names it: what lies in front was trimmed. Looked for in the first
        file; where it has none, that file's stop."""
        if not self.segments.bases:
            return 0
        index = self.segments.bases[0] // INDEX_UNIT_BYTES
        file_stop = index + self.segments.segment_bytes // INDEX_UNIT_BYTES
        while index < file_stop:
            stop = min(index + UNIT_CHUNK, file_stop)
            units = self.read(index, stop)
            is_unit = (units["index"] == np.arange(index, stop)) & (units["size"] > 0)
            if is_unit.any():
                return index + int(is_unit.argmax())
            index = stop
        return file_stop

    def read(self, first_index: int, stop_index: int) -> IndexArray:
        """Shape (stop_index - first_index,), `INDEX_DTYPE`."""
        assert 0 <= first_index <= stop_index, (first_index, stop_index)
        size_bytes = (stop_index - first_index) * INDEX_UNIT_BYTES
        data, unreadable = read_pages(self.segments, size_bytes, first_index * INDEX_UNIT_BYTES)
        self.unreadable.update((page.position // PAGE_BYTES, page) for page in unreadable)
        return np.frombuffer(data, INDEX_DTYPE)
