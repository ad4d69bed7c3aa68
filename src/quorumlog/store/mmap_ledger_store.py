"""MmapLedgerStore: DLedger's data and index segments as one log (docs/formats.md, sections 1.2-1.4).

    append    data bytes, then index units: one `pwritev` and one `pwrite` unless a segment ends
    sync      begin_sync (store's thread) -> Flush.run (any thread) -> finish_sync (store's thread)
    read      range_of (index, store's thread) -> read (data, any thread)
    truncate  durable point, later segments, index units, data: each step on disk before the next

What is on disk when: an entry counts as durable when its bytes, the reservation under them and the
name of its file have been synced, and only then is it recorded in the file `durable`. Index units are
synced now and then; a start makes up for the rest (`recovery.py`).
"""

from __future__ import annotations

import threading
from typing import Self

import numpy as np

from quorumlog.batch import HEADER_BYTES, EntryBatch, Int64Array, term_runs_of
from quorumlog.config import StoreConfig
from quorumlog.entry import EntryId
from quorumlog.errors import (
    DirectoryDamaged,
    DiskFull,
    IndexOutOfRange,
    ProtocolViolation,
    StoreFailure,
)
from quorumlog.store.disk import Disk
from quorumlog.store.durable_file import DurableFile, DurablePoint
from quorumlog.store.entry_header import unpack_header
from quorumlog.store.ledger_store import LOG_ORIGIN, LedgerStore, LogPoint, LogRange, SyncTask
from quorumlog.store.mmap_file import MmapFile
from quorumlog.store.mmap_file_list import MmapFileList
from quorumlog.store.placement import Placement, check_continues, place, problem_of_units, range_length
from quorumlog.store.recent_units import RecentUnits
from quorumlog.store.recovery import RecoveryReport, recover_log, verify_hint
from quorumlog.store.segment_scan import (
    BLANK_BYTES,
    INDEX_DTYPE,
    INDEX_UNIT_BYTES,
    IndexArray,
    blank_record,
    index_units_of,
)
from quorumlog.store.term_run_search import search_term_runs

__all__ = ["Flush", "MmapLedgerStore", "RecoveryReport"]

CONTROL_RESERVE_BYTES = 1 << 20
"""What no-ops and control entries may use and data may not: this, or one segment if that is less."""

_UNIT_CHUNK = 65536


class Flush:
    """One `SyncTask`: what was dirty when it began. Only `run` may be called off the store's thread."""

    def __init__(
        self,
        end: LogPoint,
        index_synced_position: int,
        data_files: list[MmapFile],
        index_files: list[MmapFile],
        store: MmapLedgerStore,
        *,
        seals: bool,
        reserve: list[tuple[MmapFile, int, int]],
    ) -> None:
        self.end = end
        self.index_synced_position = index_synced_position
        self.cut: LogPoint | None = None
        """The lowest truncation issued since the flush began; it must not record anything above."""
        self.done = False
        self.reserved: list[tuple[MmapFile, int]] = []
        self.data_files = data_files
        self.index_files = index_files
        self._reserve = reserve
        self._seals = seals
        self._store = store

    def run(self) -> None:
        """fdatasync every file touched, then record the durable point.

        A file that was truncated away meanwhile is held open until here, so syncing it is harmless.
        """
        try:
            self._reserve_ahead()
            for file in (*self.index_files, *self.data_files):
                file.sync()
        finally:
            for file in (*self.index_files, *self.data_files):
                file.release()
        self._store._record_flushed(self)
        if self._seals:
            self._store._durable_file.sync()

    def _reserve_ahead(self) -> None:
        """Reserve the next step here, where the sync that makes it count happens anyway.

        Lack of space is no error yet: an append that needs the space will find out for itself.
        """
        for file, first_position, stop_position in self._reserve:
            if self._store._is_above_watermark():
                return
            try:
                file.allocate(first_position, stop_position)
            except DiskFull:
                return
            self.reserved.append((file, stop_position))

    @property
    def point(self) -> LogPoint:
        """What may be recorded: never above a truncation that was issued meanwhile."""
        return self.end if self.cut is None else min(self.end, self.cut)

    @property
    def index_point_position(self) -> int:
        return min(self.index_synced_position, self.point.position)


class MmapLedgerStore(LedgerStore):
    """The log of one member in a directory. Made by `recover`, also for a new directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: StoreConfig,
        durable_file: DurableFile,
        data: MmapFileList,
        index: MmapFileList,
        begin: LogPoint,
        end: LogPoint,
    ) -> None:
        """Everything up to `end` is on disk and recorded so, index included."""
        self._disk = disk
        self._directory = directory
        self._config = config
        self._durable_file = durable_file
        self._data = data
        self._index = index
        self._begin = begin
        self._end = end
        self._durable = end
        self._index_synced_position = end.position
        self._recent = RecentUnits(end.index + 1)
        self._plan: Placement | None = None
        self._dirty_data: dict[int, MmapFile] = {}
        self._dirty_index: dict[int, MmapFile] = {}
        self._sealed_since_flush = False
        self._flush: Flush | None = None
        # Guards the durable file against a flush that ends while a truncation is issued.
        self._durable_lock = threading.Lock()
        self._truncations = 0
        self._segment_bytes = config.segment_bytes
        self._control_reserve_bytes = min(CONTROL_RESERVE_BYTES, config.segment_bytes)
        # As many units as the smallest entries in the reserve could need.
        units = -(-self._control_reserve_bytes // HEADER_BYTES)
        self._control_reserve_index_bytes = units * INDEX_UNIT_BYTES
        self._index_step_bytes = max(config.reserve_step_bytes // 16, INDEX_UNIT_BYTES)

    @classmethod
    def recover(
        cls,
        disk: Disk,
        directory: str,
        config: StoreConfig,
        durable: DurableFile,
        *,
        checked: bool = True,
        sync: bool = True,
        begin: LogPoint = LOG_ORIGIN,
    ) -> tuple[Self, RecoveryReport]:
        """Open the log in `directory`/data and /index for writing; what was found is in the report.

        `checked`: entries carry digests; a directory without them is only ever read
        (`directory_reader.py`), so False is refused. `sync`: the flush mode of the member. It changes
        nothing here: in neither mode may a log begin on bytes that are page cache only.
        Raises DirectoryDamaged for damage at or below the durable point, StoreFailure.
        """
        if not checked:
            raise StoreFailure(f"{directory} can only be read: its entries carry no digests")
        log = recover_log(disk, directory, config, durable, begin)
        store = cls(disk, directory, config, durable, log.data_files, log.index_files, begin, log.end)
        store._restore_reserve()
        return store, log.report

    # ---------------------------------------------------------------- points

    @property
    def begin(self) -> LogPoint:
        return self._begin

    @property
    def end(self) -> LogPoint:
        return self._end

    @property
    def durable(self) -> LogPoint:
        return self._durable

    def term_runs(self) -> tuple[tuple[int, int], ...]:
        """Found by binary search over the units, each edge compared with the data at both sides."""
        return search_term_runs(self._begin.index + 1, self._end.index, self._checked_id)

    # ---------------------------------------------------------------- space

    def plan(self, sizes: Int64Array, *, control: bool = False) -> Int64Array:
        placement = place(sizes, self._end.position, self._segment_bytes, self._config.entry_limit_bytes)
        index_end = (self._end.index + 1 + len(sizes)) * INDEX_UNIT_BYTES
        self._reserve_for(placement.end_position, index_end, control=control)
        self._plan = placement
        return placement.positions

    def _reserve_for(self, data_end: int, index_end: int, *, control: bool) -> None:
        if control:
            # Only what it needs itself: the reserve was made before the data that lies in front.
            self._data.reserve(data_end, 0)
            self._index.reserve(index_end, 0)
            return
        data_stop, index_stop = self._with_control_reserve(data_end, index_end)
        if self._data.reserved_position >= data_stop and self._index.reserved_position >= index_stop:
            return
        if self._is_above_watermark():
            raise DiskFull(
                f"more than {self._config.disk_full_ratio:.0%} of the file system of"
                f" {self._directory} is in use (disk_full_ratio)"
            )
        self._data.reserve(data_stop, self._config.reserve_step_bytes)
        self._index.reserve(index_stop, self._index_step_bytes)

    def _with_control_reserve(self, data_end: int, index_end: int) -> tuple[int, int]:
        """Up to where space must be reserved so that control entries still fit behind data that ends
        here. Near the end of a segment the reserve is a whole one in the next segment, because a
        control entry that does not fit in front of the border goes there."""
        data_stop = data_end + self._control_reserve_bytes
        segment_end = self._data.base_of(data_end) + self._segment_bytes
        if data_stop > segment_end:
            data_stop = segment_end + self._control_reserve_bytes
        return data_stop, index_end + self._control_reserve_index_bytes

    def _restore_reserve(self) -> None:
        """The control reserve behind the end, if there is space; data finds out when it comes."""
        data_stop, index_stop = self._with_control_reserve(
            self._end.position, (self._end.index + 1) * INDEX_UNIT_BYTES
        )
        try:
            self._data.reserve(data_stop, 0)
            self._index.reserve(index_stop, 0)
        except DiskFull:
            return

    def _is_above_watermark(self) -> bool:
        try:
            usage = self._disk.usage(self._directory)
        except OSError as error:
            raise StoreFailure(f"{self._directory}: its file system gives no usage: {error}") from error
        return usage.used_ratio > self._config.disk_full_ratio

    # ---------------------------------------------------------------- append

    def append(self, batch: EntryBatch) -> None:
        if batch.count == 0:
            return
        placement = self._plan
        assert placement is not None, "append without a plan"
        self._plan = None
        new_end = check_continues(batch, self._end, placement)
        pieces = placement.pieces
        for number, (start, stop, position) in enumerate(pieces):
            if number + 1 == len(pieces):
                piece = batch if start == 0 else batch.slice(start, stop)
                self._write_data([piece.buffer], position)
                break
            piece = batch.slice(start, stop)
            blank_position = position + piece.total_bytes
            blank = blank_record(pieces[number + 1][2] - blank_position)
            self._write_data([piece.buffer, memoryview(blank)], position)
            self._sealed_since_flush = True
        if batch.count == 1:
            unit = self._recent.add_one(unpack_header(batch.buffer), pieces[-1][2])
        else:
            headers = batch.headers()
            units = index_units_of(headers, placement.positions)
            self._recent.add(units, headers["chain_crc"].astype(np.uint32))
            unit = units.tobytes()
        self._write_index(unit, self._end.index + 1)
        self._end = new_end

    def _write_data(self, buffers: list[memoryview], position: int) -> None:
        file = self._data.file_at(position)
        assert file is not None, (position, self._data.end_position)
        stop = position + sum(map(len, buffers))
        assert stop <= self._data.reserved_position, (stop, self._data.reserved_position)
        file.write(buffers, position)
        self._dirty_data[file.base_position] = file

    def _write_index(self, units: bytes, first_index: int) -> None:
        position = first_index * INDEX_UNIT_BYTES
        assert position + len(units) <= self._index.reserved_position, (
            position,
            len(units),
            self._index.reserved_position,
        )
        for file in self._index.write(units, position):
            self._dirty_index[file.base_position] = file

    # ---------------------------------------------------------------- sync

    def begin_sync(self) -> SyncTask | None:
        assert self._flush is None, (self._flush.end, "is still under way") if self._flush else ""
        if not self._dirty_data and self._durable == self._end:
            return None
        unsynced_index_bytes = self._end.position - self._index_synced_position
        with_index = self._sealed_since_flush or unsynced_index_bytes >= self._config.index_sync_bytes
        index_files = list(self._dirty_index.values()) if with_index else []
        data_files = list(self._dirty_data.values())
        for file in (*index_files, *data_files):
            taken = file.acquire()
            assert taken, file.path
        flush = Flush(
            self._end,
            self._end.position if with_index else self._index_synced_position,
            data_files,
            index_files,
            self,
            seals=self._sealed_since_flush,
            reserve=self._reservations_ahead(data_files),
        )
        self._dirty_data.clear()
        if with_index:
            self._dirty_index.clear()
        self._sealed_since_flush = False
        self._flush = flush
        return flush

    def _reservations_ahead(self, data_files: list[MmapFile]) -> list[tuple[MmapFile, int, int]]:
        """The next step of data space, once less than half of one is left and if its file is synced
        by this flush anyway."""
        step = self._config.reserve_step_bytes
        reserved = self._data.reserved_position
        file = self._data.file_at(reserved)
        if file is None or file not in data_files or reserved - self._end.position > step // 2:
            return []
        return [(file, reserved, min(reserved + step, file.end_position))]

    def _record_flushed(self, flush: Flush) -> None:
        """Called by `Flush.run`, in its thread, once everything it holds is on disk."""
        with self._durable_lock:
            point = flush.point
            self._durable_file.record(DurablePoint(point, flush.index_point_position))
            flush.done = True

    def finish_sync(self, task: SyncTask) -> None:
        flush = self._flush
        assert task is flush, (task, flush)
        assert isinstance(flush, Flush)
        assert flush.done, "run() has not returned"
        self._flush = None
        if flush.point.index > self._durable.index:
            self._durable = flush.point
        self._index_synced_position = max(self._index_synced_position, flush.index_point_position)
        for file, stop_position in flush.reserved:
            # A truncation may have dropped the file, or lowered what counts as reserved in it.
            if self._data.file_at(file.base_position) is file and (
                file.base_position <= self._data.reserved_position < stop_position
            ):
                self._data.reserved_position = stop_position
        assert self._durable.index <= self._end.index, (self._durable, self._end)

    # ---------------------------------------------------------------- truncate

    def truncate_from(self, index: int) -> None:
        """Order of the steps, each on disk before the next: the durable point falls, later segments
        go from the last backwards, index units from the cut become zeros, then the data does.

        A crash between two steps leaves entries above the durable point: whole ones are still the
        log as it was, and the rest is a tail that recovery cuts. After the last step no byte of the
        dropped entries is left, so a shorter new history can never run into an old one.
        """
        assert self._begin.index < index <= self._end.index + 1, (index, self._begin, self._end)
        if index == self._end.index + 1:
            return
        cut = self._point_at(index - 1)
        old_end = self._end
        self._plan = None
        # In this order: a read that counts from here on already sees the new end.
        self._end = cut
        self._truncations += 1
        self._recent.truncate_from(index)

        with self._durable_lock:
            self._index_synced_position = min(self._index_synced_position, cut.position)
            if self._flush is not None:
                lowest = self._flush.cut or cut
                self._flush.cut = min(lowest, cut)
            recorded = self._durable_file.load()
            assert recorded is not None, "the durable file has no point"
            if recorded.point.index > cut.index:
                synced = min(recorded.index_synced_position, cut.position)
                self._durable_file.record_both_synced(DurablePoint(cut, synced))
        if self._durable.index > cut.index:
            self._durable = cut

        data_stop = self._written_end(cut, old_end)
        for file in self._data.drop_after(cut.position):
            self._dirty_data.pop(file.base_position, None)
        units_position = index * INDEX_UNIT_BYTES
        for file in self._index.drop_after(units_position - 1):
            self._dirty_index.pop(file.base_position, None)
        self._zero(self._index, units_position, (old_end.index + 1) * INDEX_UNIT_BYTES)
        self._zero(self._data, cut.position, data_stop)
        self._restore_reserve()

    def _written_end(self, cut: LogPoint, old_end: LogPoint) -> int:
        """Just behind the last byte written in the segment that holds the cut: where the log ended,
        or the blank record by which it went on to the next segment."""
        segment_end = self._data.base_of(cut.position) + self._segment_bytes
        if old_end.position <= segment_end:
            return old_end.position
        low, high = cut.index, old_end.index + 1  # the last entry in front of the border lies between
        while high - low > 1:
            middle = (low + high) // 2
            if int(self._old_unit(middle)["position"][0]) < segment_end:
                low = middle
            else:
                high = middle
        if low == cut.index:
            return cut.position + BLANK_BYTES
        unit = self._old_unit(low)
        return int(unit["position"][0]) + int(unit["size"][0]) + BLANK_BYTES

    def _old_unit(self, index: int) -> IndexArray:
        """The unit of an entry that was cut a moment ago and is still in its file."""
        units = self._file_units(index, index + 1)
        end_position = self._data.end_position
        wrong, problem = 0, "the index file ends before the log"
        if len(units):
            wrong, problem = problem_of_units(units, index, self._segment_bytes, end_position)
        if wrong >= 0:
            position = index * INDEX_UNIT_BYTES
            raise self._damage(self._index.path_of(position), position, index, problem)
        return units

    def _zero(self, files: MmapFileList, first_position: int, stop_position: int) -> None:
        """Zero what lies in the one segment that is left of the range, synced."""
        file = files.file_at(first_position)
        if file is None:
            return  # the range began with its segment, which is gone
        file.zero(first_position, min(stop_position, file.end_position))
        file.sync()

    def _point_at(self, index: int) -> LogPoint:
        if index == self._begin.index:
            return self._begin
        unit = self._units(index, index + 1)
        end_position = int(unit["position"][0]) + int(unit["size"][0])
        return LogPoint(index, int(unit["term"][0]), self.chain_at(index), end_position)

    # ---------------------------------------------------------------- read

    def id_at(self, index: int) -> EntryId:
        if index == self._begin.index:
            return self._begin.entry_id
        return EntryId(index, int(self._units(index, index + 1)["term"][0]))

    def chain_at(self, index: int) -> int:
        if index == self._begin.index:
            return self._begin.chain
        if index == self._end.index:
            return self._end.chain
        if self._recent.holds(index):
            return self._recent.chain(index)
        return self._header_chain(self._units(index, index + 1))

    def range_of(self, first_index: int, stop_index: int, limit_bytes: int) -> LogRange:
        stop_index = min(stop_index, self._end.index + 1)
        self._check_held(first_index)
        assert first_index < stop_index, (first_index, stop_index)
        # Start with as many units as entries of average size need; go on while they fall short.
        held_bytes = self._end.position - self._begin.position
        average_bytes = held_bytes // (self._end.index - self._begin.index)
        fetch = min(limit_bytes // max(average_bytes, HEADER_BYTES) + 16, _UNIT_CHUNK)
        units = self._units(first_index, min(first_index + fetch, stop_index))
        count, ended = range_length(units, self._segment_bytes, limit_bytes)
        while not ended and first_index + len(units) < stop_index:
            at = first_index + len(units)
            units = np.concatenate([units, self._units(at, min(at + _UNIT_CHUNK, stop_index))])
            count, ended = range_length(units, self._segment_bytes, limit_bytes)
        units = units[:count]
        sizes = units["size"].astype(np.int64)
        position = int(units["position"][0])
        previous_id = self.id_at(first_index - 1)
        return LogRange(
            first_index,
            sizes,
            self._data.base_of(position),
            position,
            int(sizes.sum()),
            LogPoint(previous_id.index, previous_id.term, self.chain_at(first_index - 1), position),
            term_runs_of(units),
        )

    def read(self, log_range: LogRange) -> EntryBatch:
        truncations = self._truncations
        self._check_not_cut(log_range)
        file = self._data.file_at(log_range.position)
        if file is None or not file.acquire():
            raise self._cut_meanwhile(log_range)
        buffer = bytearray(log_range.size_bytes)
        try:
            done = file.pread_into(memoryview(buffer), log_range.position)
        except OSError as error:
            problem = f"cannot be read: {error}"
            raise self._damage(file.path, log_range.position, log_range.first_index, problem) from error
        finally:
            file.release()
        batch = EntryBatch(buffer, log_range.sizes)
        problem = f"{done} of {len(buffer)} bytes are there" if done < len(buffer) else ""
        try:
            batch.check_encoding()
            batch.check_sequence(log_range.first_index, log_range.previous.chain)
        except ProtocolViolation as error:
            problem = problem or str(error)
        # Zeros or newer entries may have come under the read: look again before calling it damage.
        if truncations != self._truncations:
            self._check_not_cut(log_range)
        if not problem and batch.term_runs() == log_range.term_runs:
            return batch
        if truncations != self._truncations or self._is_rewritten(log_range):
            raise self._cut_meanwhile(log_range)
        raise self._damage(
            file.path,
            log_range.position,
            log_range.first_index,
            problem or f"terms are {batch.term_runs()}, by the index {log_range.term_runs}",
        )

    def _is_rewritten(self, log_range: LogRange) -> bool:
        """Does the index say something else now than when the range was taken?"""
        count = len(log_range.sizes)
        now = self._file_units(log_range.first_index, log_range.stop_index)
        return (
            len(now) < count
            or int(now["position"][0]) != log_range.position
            or not bool((now["size"] == log_range.sizes).all())
            or term_runs_of(now) != log_range.term_runs
        )

    def _check_not_cut(self, log_range: LogRange) -> None:
        if log_range.stop_index - 1 > self._end.index:
            raise self._cut_meanwhile(log_range)

    def _cut_meanwhile(self, log_range: LogRange) -> IndexOutOfRange:
        return IndexOutOfRange(
            f"entries {log_range.first_index} .. {log_range.stop_index - 1} were truncated meanwhile",
            ledger_begin_index=self._begin.index + 1,
        )

    # ---------------------------------------------------------------- units

    def _check_held(self, index: int) -> None:
        if not self._begin.index < index <= self._end.index:
            raise IndexOutOfRange(
                f"entry {index} is not held: the log is {self._begin.index + 1} .. {self._end.index}",
                ledger_begin_index=self._begin.index + 1,
            )

    def _units(self, first_index: int, stop_index: int) -> IndexArray:
        """Units of held entries, each checked if it comes from the file.

        Raises IndexOutOfRange, DirectoryDamaged.
        """
        self._check_held(first_index)
        self._check_held(stop_index - 1)
        if first_index >= self._recent.first_index:
            return self._recent.units(first_index, stop_index)
        units = self._file_units(first_index, stop_index)
        wrong, problem = problem_of_units(units, first_index, self._segment_bytes, self._end.position)
        if len(units) < stop_index - first_index and wrong < 0:
            wrong, problem = len(units), "the index file ends before the log"
        if wrong >= 0:
            position = (first_index + wrong) * INDEX_UNIT_BYTES
            raise self._damage(self._index.path_of(position), position, first_index + wrong, problem)
        return units

    def _file_units(self, first_index: int, stop_index: int) -> IndexArray:
        size_bytes = (stop_index - first_index) * INDEX_UNIT_BYTES
        try:
            data = self._index.pread(size_bytes, first_index * INDEX_UNIT_BYTES)
        except OSError as error:
            position = first_index * INDEX_UNIT_BYTES
            path, problem = self._index.path_of(position), f"cannot be read: {error}"
            raise self._damage(path, position, first_index, problem) from error
        return np.frombuffer(data, INDEX_DTYPE, len(data) // INDEX_UNIT_BYTES)

    def _checked_id(self, index: int, compare_with_data: bool) -> int:
        unit = self._units(index, index + 1)
        if compare_with_data:
            self._header_chain(unit)
        return int(unit["term"][0])

    def _header_chain(self, unit: IndexArray) -> int:
        """chain_crc from the data header that a unit names; the two must agree."""
        index, position = int(unit["index"][0]), int(unit["position"][0])
        file = self._data.file_at(position)
        if file is None:
            path = self._data.path_of(position)
            raise self._damage(path, position, index, "the index names a segment that is not there")
        try:
            data = file.pread(HEADER_BYTES, position)
        except OSError as error:
            raise self._damage(file.path, position, index, f"cannot be read: {error}") from error
        if len(data) == HEADER_BYTES:
            header = unpack_header(data)
            fields = (header.magic, header.pos, header.size, header.index, header.term)
            if fields == unit[0].item():
                return header.chain_crc
        raise self._damage(file.path, position, index, "the header is not what the index says")

    def _damage(self, path: str, position: int, index: int, problem: str) -> DirectoryDamaged:
        return DirectoryDamaged(
            f"{path}: {problem} (position {position}, entry {index}); {verify_hint(self._directory)}",
            path=path,
            position=position,
            index=index,
        )

    def close(self) -> None:
        self._data.close()
        self._index.close()
