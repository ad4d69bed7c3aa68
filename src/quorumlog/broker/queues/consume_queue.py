"""ConsumeQueue: the messages of one queue in order, 20 bytes each.

    offset  bytes  field (big-endian)
         0      8  position of the record in the commit log
         8      4  its size
        12      8  tagsCode: Java's hash of its tags; of a delayed message when it is due

Unit n lies at byte 20 n of the queue, whose files are named by their first byte.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quorumlog.broker.config import QUEUE_UNIT_BYTES
from quorumlog.broker.messages.record_columns import Int64Array
from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.segment import PAGE_BYTES
from quorumlog.store.segments import SegmentList

UNIT = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert UNIT.itemsize == QUEUE_UNIT_BYTES
Units = npt.NDArray[np.void]

FILLER_SIZE = 0x7FFFFFFF
"""Of units in front of the first message that there is, in a file that begins before it."""
RESERVE_STEP_BYTES = 1 << 20
_LOOK_UNITS = 1 << 12


def units_of(positions: npt.ArrayLike, sizes: npt.ArrayLike, tags_codes: npt.ArrayLike) -> Units:
    position_array = np.asarray(positions)
    units: Units = np.empty(len(position_array), UNIT)
    units["position"], units["size"], units["tags_code"] = position_array, sizes, tags_codes
    return units


class ConsumeQueue:
    """`append` from one thread; reads from any."""

    def __init__(self, disk: Disk, files: SegmentList) -> None:
        """Raises StoreFailure."""
        self._disk = disk
        self.files = files
        self.min_offset = files.first_position // QUEUE_UNIT_BYTES
        self.max_offset = self._find_end()
        self.flushed_offset = self.max_offset
        if self.max_offset > self.min_offset:
            self._skip_fillers()
        self.begin_is_known = self.max_offset > 0
        """Its first message has this number and no other."""

    def _find_end(self) -> int:
        """Behind the last unit that was written, file by file from the first on."""
        end = self.files.first_position // QUEUE_UNIT_BYTES
        last = self.files.end_position // QUEUE_UNIT_BYTES
        while end < last:  # a file of a queue has room for 300,000, and many have few
            data = self._units(end, min(end + _LOOK_UNITS, last))
            bad = np.flatnonzero((data["size"] <= 0) | (data["position"] < 0))
            if len(bad):
                return end + int(bad[0])
            end += len(data)
        return end

    def _skip_fillers(self) -> None:
        units = self._units(self.min_offset, self.max_offset)
        real = np.flatnonzero(units["size"] != FILLER_SIZE)
        self.min_offset += int(real[0]) if len(real) else len(units)

    # ---------------------------------------------------------------- reading

    def units(self, first: int, stop: int) -> Units:
        """Those that there are. Any thread."""
        first, stop = max(first, self.min_offset), min(stop, self.max_offset)
        return self._units(first, stop) if first < stop else np.empty(0, UNIT)

    def _units(self, first: int, stop: int) -> Units:
        size_bytes = (stop - first) * QUEUE_UNIT_BYTES
        try:
            data = self.files.pread(size_bytes, first * QUEUE_UNIT_BYTES).ljust(size_bytes, b"\0")
        except OSError as error:
            raise StoreFailure(refusal(self.files.directory, "read", error)) from error
        return np.frombuffer(data, UNIT)

    def names(
        self,
        first: int,
        positions: Int64Array,
        sizes: Int64Array,
        tags_codes: Int64Array | None = None,
    ) -> bool:
        """Its units from this number on are those of the records at these positions. `tags_codes`: None
        where they are of no matter."""
        held = self.units(first, first + len(positions))
        return (
            len(held) == len(positions)
            and bool((held["position"] == positions).all() and (held["size"] == sizes).all())
            and (tags_codes is None or bool((held["tags_code"] == tags_codes).all()))
        )

    @property
    def last_unit(self) -> tuple[int, int]:
        """Position and size of its last message; (-1, 0) of an empty queue."""
        last = self.units(self.max_offset - 1, self.max_offset)
        return (int(last["position"][0]), int(last["size"][0])) if len(last) else (-1, 0)

    @property
    def first_position(self) -> int:
        """Of the record of its first message; -1 of an empty queue."""
        first = self.units(self.min_offset, self.min_offset + 1)
        return int(first["position"][0]) if len(first) else -1

    @property
    def last_position(self) -> int:
        """Behind the record of its last message; -1 of an empty queue."""
        return sum(self.last_unit)

    # ---------------------------------------------------------------- writing

    def begin_at(self, offset: int) -> None:
        """An empty queue whose first message has this number: those before it are fillers, and a file
        stands for it though nothing follows. Raises DiskFull, StoreFailure."""
        assert self.max_offset == self.min_offset, (self.min_offset, self.max_offset)
        if offset == self.max_offset:
            self.begin_is_known = True
            return
        base = self.files.base_of(offset * QUEUE_UNIT_BYTES)
        if base != self.files.first_position:
            self._begin_files_at(base)
        first = base // QUEUE_UNIT_BYTES
        self.min_offset = self.max_offset = self.flushed_offset = first
        self.files.reserve(base + QUEUE_UNIT_BYTES, RESERVE_STEP_BYTES)
        if offset > first:
            fillers = units_of(np.zeros(offset - first), FILLER_SIZE, 0)
            self.append(fillers)
            self.min_offset = offset
        self.begin_is_known = True  # not before: another thread may note where it begins

    def restart(self) -> None:
        """Empty, and 0 is next. Raises StoreFailure."""
        self._begin_files_at(0)
        self.min_offset = self.max_offset = self.flushed_offset = 0

    def _begin_files_at(self, base: int) -> None:
        """Those of before would leave a gap in front of it."""
        paths = [file.path for file in self.files.files]
        self.files.close()
        try:
            for path in paths:
                self._disk.unlink(path)
        except OSError as error:
            raise StoreFailure(refusal(self.files.directory, "deleted", error)) from error
        self.files = SegmentList(self._disk, self.files.directory, self.files.segment_bytes, base)

    def append(self, units: Units) -> None:
        """Raises DiskFull, StoreFailure."""
        position = self.max_offset * QUEUE_UNIT_BYTES
        stop = position + len(units) * QUEUE_UNIT_BYTES
        self.files.reserve(stop, RESERVE_STEP_BYTES)
        self.files.write(units.tobytes(), position)
        self.max_offset += len(units)

    def flush(self, least_pages: int) -> None:
        """Raises StoreFailure."""
        end = self.max_offset
        first, stop = self.flushed_offset * QUEUE_UNIT_BYTES, end * QUEUE_UNIT_BYTES
        if first == stop or stop // PAGE_BYTES - first // PAGE_BYTES < least_pages:
            return
        for base in range(self.files.base_of(first), stop, self.files.segment_bytes):
            file = self.files.file_at(base)
            if file is not None and file.acquire():
                try:
                    file.sync()
                finally:
                    file.release()
        self.flushed_offset = max(self.flushed_offset, end)  # retention flushes, too

    def truncate_to_position(self, position: int, *, ends_in_zeros: bool = False) -> None:
        """Without the messages from this position of the commit log on; on disk when this returns.
        `ends_in_zeros`: its files do behind its end, on disk."""
        offset = self.offset_at(position)
        if offset < self.max_offset or not ends_in_zeros:
            self.truncate(offset)

    def truncate(self, offset: int) -> None:
        self.max_offset = max(offset, self.min_offset)
        stop = self.max_offset * QUEUE_UNIT_BYTES
        if stop < self.files.end_position:
            file = self.files.discard_from(stop, stop, stop)
            if file is not None:
                file.sync()
        self.flushed_offset = self.max_offset

    def show_from(self, position: int) -> None:
        """Messages below this position of the commit log are there no more."""
        self.min_offset = self.offset_at(position)

    def drop_before(self, position: int) -> list[str]:
        """Forget messages below this position of the commit log; returns the paths of files that may be
        deleted."""
        self.show_from(position)
        last_kept = min(self.min_offset, max(self.max_offset - 1, 0)) * QUEUE_UNIT_BYTES
        return self.files.drop_before(last_kept)

    def offset_at(self, position: int) -> int:
        """Of the first message from this position of the commit log on: positions rise within a
        queue. Any thread."""
        low, high = self.min_offset, self.max_offset
        if low < high and self._units(low, low + 1)["position"][0] >= position:
            return low
        while low < high:
            middle = (low + high) // 2
            if self._units(middle, middle + 1)["position"][0] < position:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        self.files.close()
