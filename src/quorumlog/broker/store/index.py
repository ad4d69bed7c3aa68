"""The index: messages by key and time."""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from quorumlog.broker.config import (
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    MessageStoreConfig,
)
from quorumlog.broker.record_batch import Int64Array, RecordBatch, key_hash_of
from quorumlog.broker.store.flush import StoreCheckpoint
from quorumlog.broker.store.log_files import delete_files, is_file_name
from quorumlog.errors import DiskFull, StoreFailure
from quorumlog.store.disk import Disk, DiskFile, disk_work, is_lack_of_space, refusal
from quorumlog.store.recovery import SetAside

# ---------------------------------------------------------------- IndexFile: messages by key and time
#     header     40  beginTimestamp 8, endTimestamp 8, beginPhyOffset 8, endPhyOffset 8,
#                    hashSlotCount 4, indexCount 4 (one more than there are)
#     slots   4 * s  number of the newest entry of the slot, 0 without
#     entries 20 * n keyHash 4, position 8, seconds since beginTimestamp 4, number of the entry before it
#                    in its slot 4; entry k at 40 + 4 s + 20 k
#
# All big-endian. The file has its full length (420 MB by default) from the start and is sparse. The
# slots are kept in memory while the file is written, and reach it by the page when it is flushed.

_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")
ENTRY = np.dtype([("key_hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
assert ENTRY.itemsize == INDEX_ENTRY_BYTES
_PAGE_SLOTS = 1024
_FEW_KEYS = 4
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
        """`end_position`, `end_time_ms`: of the file before it. Java continues from there if it finds
        this one empty after a kill. Raises DiskFull, StoreFailure."""
        size = INDEX_HEADER_BYTES + slot_count * INDEX_SLOT_BYTES + entry_count * INDEX_ENTRY_BYTES
        with disk_work(path, "created", f"no space to create {path}"):
            file = disk.open(path, create=True)
            file.set_size(size)
            if end_position:
                ends = end_time_ms, end_time_ms, end_position, end_position
                file.pwritev([_HEADER.pack(*ends, 0, 1)], 0)
            file.sync()
            disk.sync_directory(path.rpartition("/")[0])
        return cls(path, file, slot_count, entry_count)

    @property
    def room(self) -> int:
        return self.entry_count - self.count

    def has_room(self, keys: int) -> bool:
        """And all that `put` needs is in memory."""
        return self._slots is not None and keys <= self.room

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
        """Call before a lookup if slots are not known to be good. Raises OSError."""
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
        encoded = self._few_entries if count <= _FEW_KEYS else self._entries
        data = encoded(slots, slot_of, numbers, hashes, positions, times_ms)
        try:
            self._file.pwritev([data], self._entries_at + self.count * INDEX_ENTRY_BYTES)
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

    def _few_entries(self, slots: npt.NDArray[np.uint32], *columns: Int64Array) -> bytes:
        """As `_entries`: arrays cost more than so few."""
        newest: dict[int, int] = {}
        entries = []
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for slot, number, hashed, position, time_ms in rows:
            previous = newest.get(slot)
            if previous is None and (previous := int(slots[slot])) >= self.count:
                previous = 0
            self.slots_used += not previous
            newest[slot] = number
            seconds = min(max((time_ms - self.begin_time_ms) // 1000, 0), _INT_MAX)
            entries.append(_ENTRY.pack(hashed, position, seconds, previous))
        return b"".join(entries)

    def _entries(
        self,
        slots: npt.NDArray[np.uint32],
        slot_of: Int64Array,
        numbers: Int64Array,
        hashes: Int64Array,
        positions: Int64Array,
        times_ms: Int64Array,
    ) -> bytes:
        """As they are written; counts the slots that are used from now on."""
        count = len(hashes)
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
        return entries.tobytes()

    def flush(self) -> None:
        """Entries and slots, synced; then the header that counts them, synced. Raises StoreFailure."""
        with self._lock:
            if not self._is_dirty:
                return
            assert self._slots is not None
            pages = sorted(self._dirty_pages)
            parts = [self._slots[page * _PAGE_SLOTS :][:_PAGE_SLOTS] for page in pages]
            contents = [part.astype(">u4").tobytes() for part in parts]
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
        with disk_work(self.path, "written"):
            for page, data in zip(pages, contents, strict=True):
                self._file.pwritev([data], INDEX_HEADER_BYTES + page * _PAGE_SLOTS * INDEX_SLOT_BYTES)
            self._file.sync()
            self._file.pwritev([header], 0)
            self._file.sync()

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


# ---------------------------------------------------------------- IndexService
# `ROOT/index/`, one file after the other; only the last is written.

log = logging.getLogger("quorumlog.broker")

INDEX_FOLDER_NAME = "index"
_NAME_DIGITS = 17
_LOOK_KEYS = 1024
_LAST_MS = 253_402_300_799_000
"""The last second of the year 9999."""


def index_file_name(time_ms: float) -> str:
    """yyyyMMddHHmmssSSS, as RocketMQ names them (there in local time)."""
    # Of a message that has one that is no date, too.
    moment = datetime.fromtimestamp(min(max(time_ms, 0), _LAST_MS) / 1000, UTC)
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"


class IndexService:
    def __init__(
        self,
        disk: Disk,
        root: str,
        config: MessageStoreConfig,
        checkpoint: StoreCheckpoint,
        wall_clock: Callable[[], float],
        set_aside: SetAside | None,
        *,
        is_clean: bool,
    ) -> None:
        """After an unclean stop a file with more than the checkpoint vouches for is deleted, and derived
        anew. Raises StoreFailure."""
        self.path = f"{root}/{INDEX_FOLDER_NAME}"
        self._disk = disk
        self._config = config
        self._checkpoint = checkpoint
        self._wall_clock = wall_clock
        self.files: list[IndexFile] = []
        for name in disk.list(self.path):
            path = f"{self.path}/{name}"
            if not is_file_name(name, _NAME_DIGITS) or disk.size_of(path) != config.index_file_bytes:
                if set_aside is not None:
                    kept = set_aside.take(path, f"index-{name}")
                    log.warning("%s does not belong there: moved to %s", path, kept)
                continue
            with disk_work(path, "opened"):
                file = IndexFile(
                    path,
                    disk.open(path),
                    config.max_hash_slot_num,
                    config.max_index_num,
                    slots_are_good=is_clean,
                )
            if not is_clean and file.end_time_ms > checkpoint.index_msg_timestamp:
                self._delete([file])
                continue
            file.mend()
            self.files.append(file)

    @property
    def end_position(self) -> int:
        """Of the last record in it; -1 of an empty index."""
        return max((file.end_position for file in self.files if file.count > 1), default=-1)

    def has_room(self, keys: int, since_ms: int) -> bool:
        """`put` of so many makes no file and reads none: the last one has grown since then."""
        last = self.files[-1] if self.files else None
        return not keys or (last is not None and last.end_time_ms >= since_ms and last.has_room(keys))

    def put(self, records: RecordBatch, record_positions: Int64Array) -> None:
        """Keys of records, each at its position in the log. Raises DiskFull, StoreFailure."""
        keys = records.index_keys
        if not len(keys.rows):
            return
        positions = record_positions[keys.rows]
        if records.lone is None:
            times = records.columns.store_times_ms[keys.rows]
        else:
            times = np.full(len(positions), records.store_time_ms(0))
        self.put_keys(keys.hashes, positions, times, self._held_of(positions))

    def _held_of(self, positions: Int64Array) -> int:
        """Records that are dispatched again after a crash may be in it already; of the last one some
        keys only, where the next ones were to go into a new file."""
        end = self.end_position
        if positions[0] > end:
            return 0
        below = int((positions < end).sum())
        if below == len(positions) or positions[below] != end:
            return below
        of_record, held = int((positions == end).sum()), 0
        for file in reversed(self.files):
            stop = file.count
            while stop > 1:
                first = max(1, stop - _LOOK_KEYS)
                of_end = file.keys(first, stop)[1] == end
                held += int(of_end.sum())
                if not of_end.all():
                    return below + min(held, of_record)
                stop = first
        return below + min(held, of_record)

    def put_keys(
        self, hashes: Int64Array, positions: Int64Array, times: Int64Array, first: int = 0
    ) -> None:
        """From the key number `first` on. Raises DiskFull, StoreFailure."""
        while first < len(positions):
            file = self._writable_file()
            stop = min(len(positions), first + file.room)
            file.put(hashes[first:stop], positions[first:stop], times[first:stop])
            first = stop

    def _writable_file(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and last.room > 0:
            return last
        name = index_file_name(self._wall_clock())
        if last is not None:
            self.flush()
            # The one before may be named by a clock that is hours ahead: a Java broker's by local time.
            # Names are sorted and never read as times.
            after = int(last.path.rpartition("/")[2]) + 1
            name = max(name, f"{after:0{_NAME_DIGITS}d}")
        file = IndexFile.create(
            self._disk,
            f"{self.path}/{name}",
            self._config.max_hash_slot_num,
            self._config.max_index_num,
            end_position=0 if last is None else last.end_position,
            end_time_ms=0 if last is None else last.end_time_ms,
        )
        self.files.append(file)
        return file

    def flush(self) -> None:
        """The checkpoint advances after it."""
        if not self.files:
            return
        file = self.files[-1]
        time_ms = file.end_time_ms
        file.flush()
        self._checkpoint.index_msg_timestamp = max(self._checkpoint.index_msg_timestamp, time_ms)

    def find(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> list[int]:
        """Positions of records that may have the key, the newest first. Any thread. Raises OSError."""
        hashed = key_hash_of(topic, key)
        found: list[int] = []
        for file in reversed(self.files.copy()):
            if file.count > 1 and file.begin_time_ms <= end_ms and file.end_time_ms >= begin_ms:
                found += file.find(hashed, most - len(found), begin_ms, end_ms)
            if len(found) >= most:
                break
        return found

    def clear(self) -> None:
        """To be derived anew. Raises StoreFailure."""
        deleted, self.files = self.files, []
        self._delete(deleted)

    def truncate_to_position(self, position: int) -> bool:
        """Files that know of records from there on are deleted. True: there were some. Raises
        StoreFailure."""
        deleted = [file for file in self.files if file.end_position >= position]
        self.files = [file for file in self.files if file not in deleted]
        self._delete(deleted)
        return bool(deleted)

    def _delete(self, files: list[IndexFile]) -> None:
        """A file that came back with a loss of power would seem to hold what has come since."""
        with disk_work(self.path, "deleted"):
            for file in files:
                file.close()
        delete_files(self._disk, self.path, [file.path.rpartition("/")[2] for file in files])

    def drop_before(self, position: int) -> None:
        """Files whose last record lies below are deleted; not the last one."""
        while len(self.files) > 1 and self.files[0].end_position < position:
            file = self.files.pop(0)
            self._disk.unlink(file.path)

    def close(self) -> None:
        for file in self.files:
            file.close()
