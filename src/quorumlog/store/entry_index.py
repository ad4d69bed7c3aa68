"""EntryIndex: where each entry lies, from memory for the last ones and from the index files for others.

A unit from a file can look right and name a wrong place, so the reader of the entry compares its header.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import HEADER_BYTES, Buffer, EntryHeader, unpack_header
from quorumlog.errors import DirectoryDamaged, IndexOutOfRange
from quorumlog.store.disk import Disk, reason_of
from quorumlog.store.log_points import LogPoint
from quorumlog.store.placement import Placement, RecentUnits, problem_of_units
from quorumlog.store.segment import Segment
from quorumlog.store.segment_view import read_pages
from quorumlog.store.segments import (
    INDEX_DTYPE,
    INDEX_UNIT_BYTES,
    IndexArray,
    SegmentList,
    index_units_of,
)


class LogEnds:
    """Written by the store's thread. Another thread reads `truncations` again before it trusts its
    result."""

    def __init__(self, begin: LogPoint, end: LogPoint) -> None:
        """Everything up to `end` is on disk."""
        self.begin = begin
        self.end = end
        self.durable = end
        self.truncations = 0


class _Unwritten(NamedTuple):
    position: int
    data: bytes

    @property
    def end_position(self) -> int:
        return self.position + len(self.data)


class IndexSegments(SegmentList):
    """The index files. Units up to the end of the log may be in memory only: rebuilt at a start, without
    disk space to write them. They override the files, and are written before the next append that has
    reserved space. A no-op on a disk that is still full joins them: a group whose disks are full must be
    able to elect a leader."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int, first_position: int) -> None:
        super().__init__(disk, directory, segment_bytes, first_position)
        self._unwritten: _Unwritten | None = None
        self.lacks_reserve = False
        """Less is reserved than the no-ops need for which the data has a reserve."""
        self._unwritten_lock = threading.Lock()
        """Held for a change of it, which a repair may make in another thread."""

    @property
    def has_unwritten(self) -> bool:
        return self._unwritten is not None

    def hold(self, units: IndexArray) -> None:
        """For a start: keep in memory the units without space, to the end of the log; zeros where an
        entry is damaged."""
        position = int(units["index"][0]) * INDEX_UNIT_BYTES
        self._unwritten = _Unwritten(position, units.tobytes())
        self.reserved_position = position

    def hold_behind(self, position: int) -> None:
        """Units from here on have no space, and stay in memory until they have."""
        self._unwritten = _Unwritten(position, b"")

    def stop_of_files(self, position: int) -> int:
        """This position, or where the units begin that are in memory only."""
        held = self._unwritten
        return position if held is None else min(position, held.position)

    def pread(self, size_bytes: int, position: int) -> bytes:
        held, stop = self._unwritten, position + size_bytes
        if held is None or stop <= held.position:
            return super().pread(size_bytes, position)
        size_bytes = max(held.position - position, 0)
        data = super().pread(size_bytes, position)
        if len(data) < size_bytes:
            return data
        return data + held.data[max(position - held.position, 0) : stop - held.position]

    def write(self, data: Buffer, position: int) -> list[Segment]:
        held = self._unwritten
        if held is None or position + len(data) <= held.position:
            return super().write(data, position)
        with self._unwritten_lock:
            held = self._unwritten or _Unwritten(position, b"")
            if position + len(data) > max(held.end_position, self.reserved_position):
                assert position == held.end_position, (position, held.end_position)
                self._unwritten = _Unwritten(held.position, held.data + bytes(data))
                return []
            if position + len(data) > held.end_position:
                written = super().write(held.data, held.position) + super().write(data, position)
                self._unwritten = None  # who reads meanwhile finds them here
                return written
            in_files = max(held.position - position, 0)
            first = position + in_files - held.position
            again = bytes(data[in_files:])
            whole = held.data[:first] + again + held.data[first + len(again) :]
            self._unwritten = _Unwritten(held.position, whole)
            return super().write(data[:in_files], position)

    def make_writable(self, position: int, size_bytes: int) -> None:
        size_bytes = self.stop_of_files(position + size_bytes) - position
        if size_bytes > 0:
            super().make_writable(position, size_bytes)

    def drop_after(self, position: int, reserve_stop: int = 0) -> list[Segment]:
        with self._unwritten_lock:
            held = self._unwritten
            if held is not None:
                # Still there when it is empty: what lies behind has no space.
                left = held.data[: max(position + 1 - held.position, 0)]
                self._unwritten = _Unwritten(held.position, left)
        return super().drop_after(position, reserve_stop)

    def drop_before(self, position: int) -> list[str]:
        first = self.base_of(position)
        with self._unwritten_lock:
            held = self._unwritten
            if held is not None and held.position < first:
                self._unwritten = _Unwritten(first, held.data[first - held.position :])
        return super().drop_before(position)

    def zero_in_segment(self, first_position: int, stop_position: int) -> None:
        super().zero_in_segment(first_position, self.stop_of_files(stop_position))
        with self._unwritten_lock:
            held = self._unwritten
            if held is not None and not held.data:
                # All of it was cut off. What comes may find space now, and then what comes after it
                # may find none.
                self._unwritten = held._replace(position=first_position)
                self.lacks_reserve = True


class EntryIndex:
    def __init__(self, directory: str, files: IndexSegments, data: SegmentList, ends: LogEnds) -> None:
        self.files = files
        self.recent = RecentUnits(ends.end.index + 1)
        self._directory = directory
        self._data = data
        self._ends = ends

    def append(self, batch: EntryBatch, placement: Placement) -> list[Segment]:
        """Write the units of a batch; returns the files written. Raises StoreFailure."""
        first_index = self.recent.stop_index
        if batch.count == 1:
            header = batch.first_header
            data = self.recent.add_one(header, placement.end_position - header.size)
        else:
            headers = batch.headers()
            units = index_units_of(headers, placement.positions)
            self.recent.add(units, headers["chain_crc"].astype(np.uint32))
            data = units.tobytes()
        position = first_index * INDEX_UNIT_BYTES
        reserved = self.files.reserved_position
        has_space = position + len(data) <= reserved
        assert has_space or self.files.has_unwritten, (position, len(data), reserved)
        return self.files.write(data, position)

    def check_held(self, index: int) -> None:
        begin_index, end_index = self._ends.begin.index, self._ends.end.index
        if not begin_index < index <= end_index:
            raise IndexOutOfRange(
                f"entry {index} is not held: the log is {begin_index + 1} .. {end_index}",
                ledger_begin_index=begin_index + 1,
            )

    def units(self, first_index: int, stop_index: int) -> IndexArray:
        """Shape (stop_index - first_index,); good until the next append. Raises IndexOutOfRange,
        DirectoryDamaged."""
        self.check_held(first_index)
        self.check_held(stop_index - 1)
        if first_index >= self.recent.first_index:
            return self.recent.units(first_index, stop_index)
        return self.units_on_disk(first_index, stop_index)

    def units_on_disk(self, first_index: int, stop_index: int) -> IndexArray:
        """Of entries that are held, from the files; any thread. Raises DirectoryDamaged."""
        units = self.file_units(first_index, stop_index)
        wrong, problem = problem_of_units(
            units, first_index, self._data.segment_bytes, self._ends.end.position
        )
        if len(units) < stop_index - first_index and wrong < 0:
            wrong, problem = len(units), "the index file ends before the log"
        if wrong >= 0:
            index = first_index + wrong
            position = index * INDEX_UNIT_BYTES
            raise self.damage(self.files.path_of(position), position, index, problem)
        return units

    def file_units(self, first_index: int, stop_index: int) -> IndexArray:
        """As the files have them, unchecked; fewer where they end. Any thread. Raises
        DirectoryDamaged."""
        position = first_index * INDEX_UNIT_BYTES
        size_bytes = (stop_index - first_index) * INDEX_UNIT_BYTES
        try:
            data = self.files.pread(size_bytes, position)
        except OSError as error:
            # The look that follows is at the entry that is named: it has to be one of that page.
            _, unreadable = read_pages(self.files, size_bytes, position)
            position = unreadable[0].position if unreadable else position
            path, problem = self.files.path_of(position), f"cannot be read: {reason_of(error)}"
            raise self.damage(path, position, position // INDEX_UNIT_BYTES, problem) from error
        return np.frombuffer(data, INDEX_DTYPE, len(data) // INDEX_UNIT_BYTES)

    def header_of(self, unit: IndexArray) -> EntryHeader:
        """Of the entry that a unit of shape (1,) names; header and unit must agree, its chain is not
        checked. Raises DirectoryDamaged."""
        index, position = int(unit["index"][0]), int(unit["position"][0])
        path = self._data.path_of(position)
        try:
            data = self._data.pread(HEADER_BYTES, position)
        except OSError as error:
            raise self.damage(path, position, index, f"cannot be read: {reason_of(error)}") from error
        if len(data) == HEADER_BYTES:
            header = unpack_header(data)
            fields = (header.magic, header.pos, header.size, header.index, header.term)
            if fields == unit[0].item():
                return header
        raise self.damage(path, position, index, "the header does not match the index")

    def damage(self, path: str, position: int, index: int, problem: str) -> DirectoryDamaged:
        return DirectoryDamaged(
            f"{path}: {problem} (position {position}, entry {index});"
            f" run: quorumlog verify {self._directory}",
            path=path,
            position=position,
            index=index,
        )
