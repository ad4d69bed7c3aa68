"""Segment files: which there are, and how they are scanned."""

from __future__ import annotations

import struct
import threading
from collections.abc import Collection
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.entry import ENTRY_KINDS
from quorumlog.entry_header import HEADER_BYTES, Buffer
from quorumlog.errors import DiskFull
from quorumlog.header_array import HEADER_DTYPE, HeaderArray, Int64Array, first_wrong
from quorumlog.store.disk import Disk, disk_work
from quorumlog.store.log_points import SpaceTaken
from quorumlog.store.segment import PAGE_BYTES, Segment

# ----------------------------------------------------------------
# Reading a data segment record by record, and the index units that belong to it.
#
# A data segment is a run of entries (layout in `quorumlog.batch`), then either zeros (the log ends
# here) or one blank record that fills the rest of the file (the log goes on in the next one):
#
#     entry  entry  entry  FF FF FF FF | length of the rest (4) | zeros ...
#
# An index unit, for entry i at byte `i * 32` of the index (docs/formats.md, index file; big-endian):
#
#     offset  bytes  field
#          0      4  magic
#          4      8  position   of the entry's first byte in the log
#         12      4  size       header and body
#         16      8  index
#         24      8  term
#
# This is the cold path: a start, `inspect`, `verify`, `read --path`. Only the hop from one size to the
# next is Python; all that can be checked in bulk is checked in bulk afterwards.

INDEX_DTYPE = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
INDEX_UNIT_BYTES = 32
assert INDEX_DTYPE.itemsize == INDEX_UNIT_BYTES

IndexArray = npt.NDArray[Any]

BLANK_MAGIC = -1
BLANK_BYTES = 8
"""Bytes that every segment keeps free after its last entry, so that a blank record always fits."""

_SHAPE = struct.Struct(">ii")
_MOST_PARKED = 16


class SegmentScan(NamedTuple):
    """The good entries that a scan found, and why it stopped after them."""

    sizes: Int64Array
    positions: Int64Array
    """Byte position of each entry in the log."""
    headers: HeaderArray
    """A copy, `HEADER_DTYPE`."""
    end_position: int
    """Just after the last good entry; where the next record was looked for."""
    stop: Literal["zero", "blank", "full", "bad"]
    """`zero`: the log ends here. `blank`: it continues in the next segment. `full`: `stop_position` or
    the end of the data was reached. `bad`: other bytes are here, see `problem`."""
    problem: str


def blank_record(rest_bytes: int) -> bytes:
    """The 8 bytes that end a segment with `rest_bytes` left (docs/formats.md, blank)."""
    assert rest_bytes >= BLANK_BYTES, rest_bytes
    return _SHAPE.pack(BLANK_MAGIC, rest_bytes)


def index_units_of(headers: HeaderArray, positions: npt.ArrayLike) -> IndexArray:
    """Shape (count,), `INDEX_DTYPE`: the unit of each entry; `positions` are physical."""
    units = np.empty(len(headers), INDEX_DTYPE)
    units["magic"] = headers["magic"]
    units["position"] = positions
    units["size"] = headers["size"]
    units["index"] = headers["index"]
    units["term"] = headers["term"]
    return units


def gather_headers(data: memoryview, offsets: Int64Array) -> HeaderArray:
    """Copies of the 48 bytes at each offset; every offset + 48 must lie inside `data`."""
    if len(offsets) == 0:
        return np.empty(0, HEADER_DTYPE)
    assert int(offsets.min()) >= 0, int(offsets.min())
    assert int(offsets.max()) + HEADER_BYTES <= len(data), (int(offsets.max()), len(data))
    window = np.ndarray((len(data) - HEADER_BYTES + 1,), f"V{HEADER_BYTES}", data, 0, (1,))
    gathered: HeaderArray = window[offsets].view(HEADER_DTYPE)
    return gathered


def scan_segment(
    data: memoryview,
    base_position: int,
    start_position: int,
    *,
    expected_index: int,
    previous_term: int,
    previous_chain: int | None,
    check_bodies: bool,
    stop_position: int | None = None,
    segment_bytes: int | None = None,
) -> SegmentScan:
    """Walk entries from `start_position` on; stop at the first thing that is not the next good one.

    `data` begins at byte `base_position` of the log and is a segment, or a prefix of one of
    `segment_bytes`. `previous_chain` None: digests are not looked at. An entry at or after
    `stop_position` is not examined.
    """
    positions, stop, problem, end_position = _walk(
        data,
        base_position,
        start_position,
        base_position + (len(data) if segment_bytes is None else segment_bytes),
        stop_position,
    )
    offsets = np.array(positions, np.int64) - base_position
    headers = gather_headers(data, offsets)
    good, why = first_wrong(
        headers, headers["size"], offsets + base_position, expected_index, previous_term, previous_chain
    )
    if check_bodies and previous_chain is not None:
        wrong_body = _first_wrong_body(data, offsets[:good], headers)
        if wrong_body < good:
            good, why = wrong_body, "body_crc does not match"
    if good < len(headers):
        end_position = int(offsets[good]) + base_position
        stop, problem = "bad", f"{why} at {end_position} (index {expected_index + good})"
    return SegmentScan(
        headers["size"][:good].astype(np.int64),
        offsets[:good] + base_position,
        headers[:good],
        end_position,
        stop,
        problem,
    )


def _walk(
    data: memoryview, base: int, start: int, segment_end: int, stop_position: int | None
) -> tuple[list[int], Literal["zero", "blank", "full", "bad"], str, int]:
    """Hop from size to size: (positions of records shaped like entries, stop, problem, end)."""
    data_end = base + len(data)
    assert base <= start <= data_end <= segment_end, (base, start, data_end, segment_end)
    limit = data_end if stop_position is None else min(stop_position, data_end)
    unpack_from = _SHAPE.unpack_from
    positions: list[int] = []
    position = start
    while position < limit:
        if position + BLANK_BYTES > data_end:
            return positions, "full", "", position
        magic, size = unpack_from(data, position - base)
        if magic in ENTRY_KINDS:
            if size < HEADER_BYTES:
                return positions, "bad", f"an entry of {size} bytes at {position}", position
            # The rolling rule leaves room for a blank after every entry.
            if position + size + BLANK_BYTES > segment_end:
                return positions, "bad", f"an entry at {position} is longer than its segment", position
            if position + size > data_end:
                return positions, "full", "", position
            positions.append(position)
            position += size
        elif magic == 0 and size == 0:
            return positions, "zero", "", position
        elif magic == BLANK_MAGIC:
            if position + size == segment_end:
                return positions, "blank", "", position
            problem = f"a blank record at {position} covers {size} bytes of {segment_end - position}"
            return positions, "bad", problem, position
        else:
            return positions, "bad", f"no record at {position}: magic {magic}, size {size}", position
    return positions, "full", "", position


def _first_wrong_body(data: memoryview, offsets: Int64Array, headers: HeaderArray) -> int:
    starts = (offsets + HEADER_BYTES).tolist()
    stops = (offsets + headers["size"][: len(offsets)].astype(np.int64)).tolist()
    expected = headers["body_crc"][: len(offsets)].tolist()
    for i, (start, stop, body_crc) in enumerate(zip(starts, stops, expected, strict=True)):
        if crc32(data[start:stop]) != body_crc:
            return i
    return len(offsets)


# ---------------------------------------------------------------- SegmentList
# Equal segments, named by their first byte, one after the other as one address space. What lies in
# them is not its concern.

DATA_NAME = "data"
INDEX_NAME = "index"
"""The folders of a directory that hold segments."""

NAME_DIGITS = 20


def segment_name(base_position: int) -> str:
    return f"{base_position:0{NAME_DIGITS}d}"


class SegmentList:
    """Only `file_at`, `pread` and `reserve_ahead` may be called off the store's own thread, and `write`
    under a lock that truncation takes as well (rewriting.py)."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int, first_position: int) -> None:
        """An empty list whose first segment will begin at `first_position`."""
        assert first_position % segment_bytes == 0, (first_position, segment_bytes)
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.first_position = first_position
        self.end_position = first_position
        """Just after the last segment."""
        self.reserved_position = first_position
        """Up to here writes cannot run out of space; never after `end_position`."""
        self._disk = disk
        self._files: dict[int, Segment] = {}
        self._growth_lock = threading.Lock()
        """Held while segments come or go and while space is reserved. Who reserves ahead in another
        thread only adds a segment when it is whole, and raises `reserved_position` after that: what the
        store's thread has seen stays as it was, so it reads without the lock."""
        self._is_closed = False

    # ---------------------------------------------------------------- segments

    @property
    def files(self) -> list[Segment]:
        return [self._files[base] for base in sorted(self._files)]

    @property
    def bases(self) -> list[int]:
        return sorted(self._files)

    def base_of(self, position: int) -> int:
        return position // self.segment_bytes * self.segment_bytes

    def stop_of(self, position: int) -> int:
        """End position of the segment that has this byte."""
        return self.base_of(position) + self.segment_bytes

    def file_at(self, position: int) -> Segment | None:
        """The segment that holds a byte, None if there is none (any more). Any thread."""
        return self._files.get(self.base_of(position))

    def path_of(self, position: int) -> str:
        return f"{self.directory}/{segment_name(self.base_of(position))}"

    def name_of(self, position: int) -> str:
        """Path of the segment, relative to the data directory."""
        return "/".join(self.path_of(position).rsplit("/", 2)[1:])

    def adopt(self, file: Segment) -> None:
        assert file.base_position == self.end_position, (file.base_position, self.end_position)
        assert file.size_bytes == self.segment_bytes, (file.size_bytes, self.segment_bytes)
        self._files[file.base_position] = file
        self.end_position = file.end_position

    def create_next(self) -> None:
        """A new last segment without space, its name on disk: for a start. Raises DiskFull,
        StoreFailure."""
        file = self._create_file()
        self.sync_names()
        self.adopt(file)

    def _create_file(self) -> Segment:
        path = self.path_of(self.end_position)
        return Segment.create(self._disk, path, self.end_position, self.segment_bytes)

    def drop_after(self, position: int, reserve_stop: int = 0) -> list[Segment]:
        """Delete the segments after the one that holds `position`, and return them. Segments below
        `reserve_stop` become zeros instead, and keep the space that they have or can get: one that was
        made again may have none. Each step, from the last backwards, is on disk before the next: after a
        crash the files are contiguous."""
        dropped = []
        with self._growth_lock:
            reserve_stop = min(reserve_stop, self.reserved_position)
            behind = self.base_of(position) + self.segment_bytes
            for file in reversed([file for file in self.files if file.base_position >= behind]):
                if file.base_position < reserve_stop:
                    stop = min(reserve_stop, file.end_position)
                    fits = file.reserve_what_fits(file.base_position, stop)
                    if fits < stop:
                        reserve_stop = fits
                    self.reserved_position = reserve_stop
                    file.discard_from(file.base_position, fits)
                    file.sync()
                    continue
                del self._files[file.base_position]
                self.end_position = file.base_position
                self.reserved_position = min(self.reserved_position, self.end_position)
                self._unlink(file)
                self.sync_names()
                file.release()
                dropped.append(file)
        return dropped

    def drop_before(self, position: int) -> list[str]:
        """Let go of the segments below the one that holds `position`; returns their paths, oldest first.
        Readers may continue; deleting them is left to the caller."""
        with self._growth_lock:
            first_position = self.base_of(position)
            below = [file for file in self.files if file.base_position < first_position]
            self.first_position = first_position
            # Index units that are in memory only may lie after all files.
            self.end_position = max(self.end_position, first_position)
            self.reserved_position = max(self.reserved_position, first_position)
            for file in below:
                del self._files[file.base_position]
                file.release()
        return [file.path for file in below]

    def discard_from(self, position: int, reserve_stop: int, low: int) -> Segment | None:
        """Zeros from `position` on, for a start; returns the segment that holds it, which is not synced.
        Space up to `reserve_stop` that the segments have is theirs all the while. `low`: see
        `Segment`."""
        self.reserved_position = position
        for file in self.files:
            if file.end_position > position and file.base_position <= self.reserved_position:
                first, stop = max(file.base_position, position), min(file.end_position, reserve_stop)
                if first < stop:
                    self.reserved_position = file.reserve_what_fits(first, stop)
        # The end may be the very first byte of the list; its segment is kept all the same.
        self.drop_after(max(position, self.first_position), reserve_stop)
        file_at_end = self.file_at(position)
        if file_at_end is not None:
            stop = min(self.reserved_position, file_at_end.end_position)
            file_at_end.discard_from(position, stop, low)
        return file_at_end

    def park(self, dirty: Collection[int] = ()) -> int:
        """Give back descriptors of some of the oldest segments, but of the last two and those whose
        bases are `dirty`; returns how many. Without concurrent writes."""
        parked = 0
        for base in self.bases[:-2]:
            if parked < _MOST_PARKED and base not in dirty and self._files[base].park(self._disk):
                parked += 1
        return parked

    def close(self) -> None:
        with self._growth_lock:
            self._is_closed = True
        for file in self._files.values():
            file.release()
        self._files.clear()

    def _unlink(self, file: Segment) -> None:
        with disk_work(file.path, "deleted"):
            self._disk.unlink(file.path)

    def sync_names(self) -> None:
        """Also of files that a process has made that was killed before it could."""
        with disk_work(self.directory, "synced"):
            self._disk.sync_directory(self.directory)

    # ---------------------------------------------------------------- space

    def space_taken(self) -> SpaceTaken:
        """Raises StoreFailure."""
        files = self.files
        with disk_work(self.directory, "measured"):
            disk_bytes = sum(file.space_bytes() for file in files)
        return SpaceTaken(disk_bytes, len(files) * self.segment_bytes)

    def reserve(self, stop_position: int, step_bytes: int) -> None:
        """Have space up to `stop_position`, synced, creating segments as needed, in steps of
        `step_bytes` that end with their segment. Raises DiskFull: space reserved until then stays, and
        no segment without space is left."""
        if self.reserved_position >= stop_position:
            return  # without the lock: who holds it may be waiting for the disk
        with self._growth_lock:
            while self.reserved_position < stop_position:
                self._reserve_more(stop_position, step_bytes)

    def reserve_ahead(self, reserved_position: int, step_bytes: int) -> None:
        """One more step, unless more or less is reserved by now than `reserved_position`. Any thread.
        Raises as `reserve`."""
        with self._growth_lock:
            if self.reserved_position == reserved_position and not self._is_closed:
                self._reserve_more(reserved_position + step_bytes, 0)

    def _reserve_more(self, stop_position: int, step_bytes: int) -> None:
        """In one segment, and a new one if none is left."""
        first = self.reserved_position
        is_new = first == self.end_position
        file = self._create_file() if is_new else self.file_at(first)
        assert file is not None, (first, self.end_position)
        wanted = min(stop_position, file.end_position)
        reserved = min(max(wanted, first + step_bytes), file.end_position)
        try:
            try:
                file.reserve(first, reserved)
            except DiskFull:
                if reserved == wanted:
                    raise
                reserved = wanted  # the step did not fit; this may
                file.reserve(first, reserved)
            if is_new:
                self.sync_names()
        except BaseException as error:
            if is_new:
                file.release()
                if isinstance(error, DiskFull):
                    self._unlink(file)
            raise
        if is_new:
            self.adopt(file)
        self.reserved_position = reserved

    # ---------------------------------------------------------------- bytes

    def write(self, data: Buffer, position: int) -> list[Segment]:
        """Bytes that may run over segment ends (index units do); returns the files written."""
        view = memoryview(data).cast("B")
        files = []
        while len(view):
            file = self.file_at(position)
            assert file is not None, (position, self.end_position)
            piece = view[: file.end_position - position]
            file.write([piece], position)
            files.append(file)
            view = view[len(piece) :]
            position += len(piece)
        return files

    def zero_in_segment(self, first_position: int, stop_position: int) -> None:
        """Zero the segment that holds `first_position`, if there is one, from there on; synced. To the
        end of the last written page: an unreadable page can only be written as a whole."""
        file = self.file_at(first_position)
        if file is None or stop_position <= first_position:
            # A cut began with its segment, which is gone; or the log ends with that segment although
            # nothing was ever written so far, because a damaged range does.
            return
        stop_position += -(stop_position - file.base_position) % PAGE_BYTES
        stop_position = min(stop_position, file.end_position)
        fits = file.reserve_what_fits(first_position, stop_position)
        if fits == stop_position:
            file.zero(first_position, stop_position)
        else:  # made again by a start that had no space for it
            with self._growth_lock:
                self.reserved_position = min(self.reserved_position, fits)
                file.discard_from(first_position, fits)
        file.sync()

    def make_writable(self, position: int, size_bytes: int) -> None:
        """See `Segment.make_writable`; here no bytes count that cannot be made again."""
        for place in (position, position + size_bytes - 1):
            file = self.file_at(place)
            assert file is not None, (place, self.end_position)
            file.make_writable(place, file.base_position, file.end_position)

    def next_data(self, position: int) -> int:
        """The first position from here on that lies in no hole, or where its segment ends."""
        file = self.file_at(position)
        return self.base_of(position) + self.segment_bytes if file is None else file.next_data(position)

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes`, over segment ends; shorter where the list ends. Any thread. Raises
        OSError."""
        pieces = []
        while size_bytes:
            file = self.file_at(position)
            if file is None or not file.acquire():
                break
            try:
                piece = file.pread(min(size_bytes, file.end_position - position), position)
            except FileNotFoundError:
                break  # it is parked, and was deleted meanwhile
            finally:
                file.release()
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
            size_bytes -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
