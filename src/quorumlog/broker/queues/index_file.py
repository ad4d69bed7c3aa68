"""IndexFile: messages by key and time.

    header     40  beginTimestamp 8, endTimestamp 8, beginPhyOffset 8, endPhyOffset 8,
                   hashSlotCount 4, indexCount 4 (one more than there are)
    slots   4 * s  number of the newest entry of the slot, 0 without
    entries 20 * n keyHash 4, position 8, seconds since beginTimestamp 4, number of the entry before it
                   in its slot 4; entry k at 40 + 4 s + 20 k

All big-endian. The file has its full length (420 MB by default) from the start and is sparse. The slots
are kept in memory while the file is written, and reach it by the page when it is flushed.
"""

from __future__ import annotations

import struct
import threading

import numpy as np
import numpy.typing as npt

from quorumlog.broker.config import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES
from quorumlog.broker.messages.record_columns import Int64Array
from quorumlog.errors import DiskFull, StoreFailure
from quorumlog.store.disk import Disk, DiskFile, is_lack_of_space, refusal

_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")
ENTRY = np.dtype([("key_hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
assert ENTRY.itemsize == INDEX_ENTRY_BYTES
_PAGE_SLOTS = 1024
_MEND_ENTRIES = 1 << 20
_INT_MAX = 0x7FFFFFFF


class IndexFile:
    """Written by one thread; `find` from any."""

    def __init__(
        self,
        path: str,
        file: DiskFile,
        slot_count: int,
        entry_count: int,
        *,
        slots_are_good: bool = True,
    ) -> None:
        """`slots_are_good`: False after an unclean stop: a slot may name an entry that the header does
        not count yet, and then no longer those before it. Slots are made of the entries then. Raises
        OSError."""
        self.path = path
        self._file = file
        self.slot_count = slot_count
        self.entry_count = entry_count
        self._entries_at = INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES
        header = file.pread(_HEADER.size, 0).ljust(_HEADER.size, b"\0")
        begin_time, end_time, begin, end, slots_used, count = _HEADER.unpack(header)
        self.begin_time_ms: int = begin_time
        self.end_time_ms: int = end_time
        self.begin_position: int = begin
        self.end_position: int = end
        """Of the last record in it: its first byte."""
        self.slots_used: int = slots_used
        self.count: int = max(count, 1)
        self._slots: npt.NDArray[np.uint32] | None = None
        self._dirty_pages: set[int] = set()
        self._is_dirty = False
        self._slots_are_good = slots_are_good
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        disk: Disk,
        path: str,
        slot_count: int,
        entry_count: int,
        *,
        end_position: int = 0,
        end_time_ms: int = 0,
    ) -> IndexFile:
        """`end_position`, `end_time_ms`: of the file before it. Java goes on from there if it finds this
        one empty after a kill. Raises DiskFull, StoreFailure."""
        size = INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES + entry_count * INDEX_ENTRY_BYTES
        try:
            file = disk.open(path, create=True)
            file.set_size(size)
            if end_position:
                ends = end_time_ms, end_time_ms, end_position, end_position
                file.pwritev([_HEADER.pack(*ends, 0, 1)], 0)
            file.sync()
            disk.sync_directory(path.rpartition("/")[0])
        except OSError as error:
            if is_lack_of_space(error):
                raise DiskFull(f"no space to create {path}") from error
            raise StoreFailure(refusal(path, "created", error)) from error
        return cls(path, file, slot_count, entry_count)

    @property
    def is_full(self) -> bool:
        return self.count >= self.entry_count

    @property
    def room(self) -> int:
        return self.entry_count - self.count

    # ---------------------------------------------------------------- writing

    def _slot_table(self) -> npt.NDArray[np.uint32]:
        """The whole of it, from the disk once."""
        if self._slots is None:
            slots = np.zeros(self.slot_count, np.uint32)
            position, stop = INDEX_HEADER_BYTES, self._entries_at
            while position < stop:
                position = max(self._file.next_data(position), position)
                position -= (position - INDEX_HEADER_BYTES) % INDEX_SLOT_BYTES
                if position >= stop:
                    break
                data = self._file.pread(min(1 << 20, stop - position), position)
                first = (position - INDEX_HEADER_BYTES) // INDEX_SLOT_BYTES
                slots[first : first + len(data) // 4] = np.frombuffer(data[: len(data) // 4 * 4], ">u4")
                if not data:
                    break
                position += len(data)
            self._slots = slots if self._slots_are_good else self._mended(slots)
            self._slots_are_good = True
        return self._slots

    def _mended(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """As the entries that the header counts have it; what differs is written when it is flushed."""
        mended = np.zeros_like(slots)
        number = 1
        while number < self.count:
            stop = min(number + _MEND_ENTRIES, self.count)
            size = (stop - number) * INDEX_ENTRY_BYTES
            data = self._file.pread(size, self._entries_at + number * INDEX_ENTRY_BYTES)
            entries = np.frombuffer(data, ENTRY)
            hashes = entries["key_hash"].astype(np.int64)
            mended[hashes % self.slot_count] = np.arange(number, number + len(entries))
            number = stop
        self._dirty_pages.update(np.unique(np.flatnonzero(mended != slots) // _PAGE_SLOTS).tolist())
        self._is_dirty = bool(self._dirty_pages)
        return mended

    def mend(self) -> None:
        """Before anybody looks for something, where slots are not known to be good. Raises OSError."""
        if not self._slots_are_good:
            self._slot_table()

    def put(self, hashes: Int64Array, positions: Int64Array, times_ms: Int64Array) -> None:
        """As many as there is `room`; not flushed. Raises DiskFull, StoreFailure."""
        count = len(hashes)
        assert 0 < count <= self.room, (count, self.room)
        slots = self._slot_table()
        if self.count == 1:
            self.begin_time_ms, self.begin_position = int(times_ms[0]), int(positions[0])
        slot_of = hashes % self.slot_count
        numbers = np.arange(self.count, self.count + count, dtype=np.int64)
        order = np.argsort(slot_of, kind="stable")
        in_order = slot_of[order]
        first = np.ones(count, bool)
        first[1:] = in_order[1:] != in_order[:-1]
        previous = np.empty(count, np.int64)
        before = np.empty(count, np.int64)
        before[1:] = numbers[order][:-1]
        before[:1] = 0
        table = slots[in_order].astype(np.int64)
        # RocketMQ takes a slot that names more entries than there are for an empty one.
        table[table >= self.count] = 0
        previous[order] = np.where(first, table, before)
        self.slots_used += int((first & (table == 0)).sum())
        entries = np.empty(count, ENTRY)
        entries["key_hash"], entries["position"], entries["previous"] = hashes, positions, previous
        entries["seconds"] = np.clip((times_ms - self.begin_time_ms) // 1000, 0, _INT_MAX)
        try:
            self._file.pwritev([entries.tobytes()], self._entries_at + self.count * INDEX_ENTRY_BYTES)
        except OSError as error:
            if is_lack_of_space(error):
                raise DiskFull(f"no space in {self.path}") from error
            raise StoreFailure(refusal(self.path, "written", error)) from error
        with self._lock:
            slots[slot_of] = numbers  # the last one of each slot stays
            self._dirty_pages.update((slot_of // _PAGE_SLOTS).tolist())
            self.count += count
            self.end_time_ms, self.end_position = int(times_ms[-1]), int(positions[-1])
            self._is_dirty = True

    def flush(self) -> None:
        """Entries and slots, synced; then the header that counts them, synced. Raises StoreFailure."""
        with self._lock:
            if not self._is_dirty:
                return
            assert self._slots is not None
            pages = sorted(self._dirty_pages)
            contents = [
                (
                    page,
                    self._slots[page * _PAGE_SLOTS : (page + 1) * _PAGE_SLOTS].astype(">u4").tobytes(),
                )
                for page in pages
            ]
            header = _HEADER.pack(
                self.begin_time_ms,
                self.end_time_ms,
                self.begin_position,
                self.end_position,
                self.slots_used,
                self.count,
            )
            self._dirty_pages.clear()
            self._is_dirty = False
        try:
            for page, data in contents:
                self._file.pwritev([data], INDEX_HEADER_BYTES + page * _PAGE_SLOTS * INDEX_SLOT_BYTES)
            self._file.sync()
            self._file.pwritev([header], 0)
            self._file.sync()
        except OSError as error:
            raise StoreFailure(refusal(self.path, "written", error)) from error

    # ---------------------------------------------------------------- finding

    def keys(self, first: int, stop: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Hashes, positions and times (by the second) of entries `first` .. `stop - 1`, the first being
        1. Raises OSError."""
        data = self._file.pread(
            (stop - first) * INDEX_ENTRY_BYTES, self._entries_at + first * INDEX_ENTRY_BYTES
        )
        entries = np.frombuffer(data, ENTRY)
        times = entries["seconds"].astype(np.int64) * 1000 + self.begin_time_ms
        return entries["key_hash"].astype(np.int64), entries["position"].astype(np.int64), times

    def find(self, key_hash: int, most: int, begin_ms: int, end_ms: int) -> list[int]:
        """Positions of records that may have the key, the newest first. Raises OSError."""
        slot = key_hash % self.slot_count
        with self._lock:
            count = self.count
            if self._slots is not None:
                number = int(self._slots[slot])
            else:
                data = self._file.pread(4, INDEX_HEADER_BYTES + slot * INDEX_SLOT_BYTES)
                number = int.from_bytes(data, "big")
        found: list[int] = []
        while 0 < number < count and len(found) < most:
            at = self._entries_at + number * INDEX_ENTRY_BYTES
            data = self._file.pread(INDEX_ENTRY_BYTES, at)
            if len(data) < INDEX_ENTRY_BYTES:
                break
            hashed, position, seconds, previous = _ENTRY.unpack(data)
            time_ms = self.begin_time_ms + seconds * 1000
            # Times are kept in whole seconds.
            if hashed == key_hash and begin_ms - 1000 < time_ms <= end_ms:
                found.append(position)
            if time_ms + 1000 < begin_ms or previous >= number:
                break
            number = previous
        return found

    def close(self) -> None:
        self._file.close()
