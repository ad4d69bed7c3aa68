"""LedgerStore: DLedger's data and index segments as one log (docs/formats.md, sections 1.2-1.4).

A store knows no roles; terms are numbers that never fall along the log. All calls are synchronous and
come from one thread, except those documented as "any thread", which include all reads, since they may
wait for the disk.

    append    data bytes, then index units: one `pwritev` and one `pwrite` unless a segment ends
    sync      begin_sync (store's thread) -> Flush.run (any thread) -> finish_sync (store's thread)
    truncate  durable point, later segments, index units, data: each step on disk before the next
    drop      the file `start` (the caller), in memory, then the segments below it, oldest first

An entry counts as durable, and is recorded so in the file `durable`, once its bytes, the reservation
under them and the name of its file have been synced. Index units are synced now and then; a start makes
up for the rest (`recovery.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Self

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.entry import EntryId
from quorumlog.errors import DirectoryDamaged
from quorumlog.header_array import Int64Array
from quorumlog.store.disk import Disk
from quorumlog.store.durable_file import DurableFile
from quorumlog.store.entry_index import EntryIndex, LogEnds
from quorumlog.store.flush import DurableRecord, Flush
from quorumlog.store.ledger_space import LedgerSpace, control_reserve
from quorumlog.store.log_begin import Drops, SegmentBoundaries, search_term_runs
from quorumlog.store.log_points import (
    LOG_ORIGIN,
    DamagedRange,
    Examination,
    LogPoint,
    LogRange,
    LogStart,
    SpaceTaken,
)
from quorumlog.store.log_reader import LogReader, PageCache
from quorumlog.store.placement import Placement, check_continues, place
from quorumlog.store.recovery import RecoveredLog, RecoveryReport, recover_log
from quorumlog.store.rewriting import Rewriting
from quorumlog.store.segment import Segment
from quorumlog.store.segments import INDEX_UNIT_BYTES, blank_record

_MOST_REPAIRS = 100
"""Each names another place; more of them, or the same again, is a disk that takes no repair."""


class LedgerStore:
    """The log of one member: entries `begin.index + 1` .. `end.index`. Made by `recover`, also for a new
    directory."""

    def __init__(
        self, disk: Disk, directory: str, config: StoreConfig, durable: DurableFile, log: RecoveredLog
    ) -> None:
        """Everything up to the end of `log` is on disk and recorded so."""
        data, index, damaged, end = log.data_files, log.index_files, log.damaged, log.end
        begin = LOG_ORIGIN if log.start is None else log.start.point
        self._config, self._entry_limit_bytes = config, config.entry_limit_bytes
        self._durable_record = DurableRecord(durable)
        self._data = data
        self._ends = LogEnds(begin, end)
        self._index = EntryIndex(directory, index, data, self._ends)
        self._space = LedgerSpace(disk, directory, config, data, index)
        self._damaged = damaged
        self._reader = LogReader(self._ends, data, self._index, damaged)
        self._page_cache = PageCache(data, config.page_cache_bytes, end.position)
        self._rewriting = Rewriting(
            disk, directory, config, data, self._index, damaged, self._page_cache
        )
        self.set_aside = self._rewriting.set_aside
        self.boundaries = SegmentBoundaries(disk, directory, data, self._reader, self._ends)
        self._drops = Drops(disk, log.start, data, index, damaged)
        self._index_synced_position = log.index_synced_position
        self._plan: Placement | None = None
        self._dirty_data: dict[int, Segment] = {}
        self._dirty_index: dict[int, Segment] = {}
        self._sealed_since_flush = False
        self._flush: Flush | None = None

    @classmethod
    def recover(
        cls, disk: Disk, directory: str, config: StoreConfig, durable: DurableFile
    ) -> tuple[Self, RecoveryReport]:
        """Open the log in `directory`/data and /index for writing; findings are in the report.

        Both flush modes start the same way: in neither may a log begin on bytes that are page cache
        only. `durable` is the store's from here on, unless this raises: DirectoryDamaged for damage that
        cannot be bounded, StoreFailure.
        """
        log = recover_log(disk, directory, config, durable)
        store = cls(disk, directory, config, durable, log)
        try:
            store._limit_trust()
            store.set_aside.tidy()
            store.boundaries.keep_between(store.begin.position, log.end.position)
            store._space.restore_control_reserve(log.end.position, log.end.index + 1)
        except BaseException:
            store.close()
            raise
        return store, log.report

    # ---------------------------------------------------------------- points

    @property
    def begin(self) -> LogPoint:
        """The point before the first entry that is held."""
        return self._ends.begin

    @property
    def start(self) -> LogStart | None:
        """Where the log begins once its first entries are gone; None: at index 0."""
        return self._drops.start

    @property
    def end(self) -> LogPoint:
        """The last entry that is held, durable or not."""
        return self._ends.end

    @property
    def durable(self) -> LogPoint:
        """The last entry of which this store knows that it is on disk."""
        return self._ends.durable

    def term_runs(self) -> tuple[tuple[int, int], ...]:
        """((first_index, term), ...) of the whole log, in order, by binary search over the units. Called
        once, at a start. Damage on the way is settled; raises DirectoryDamaged if it cannot be."""

        def term_of(index: int, compare_with_data: bool) -> int:
            damaged = self._damaged.at(index)
            if damaged is not None:
                return damaged.term_at(index)
            unit = self._index.units(index, index + 1)
            if compare_with_data:
                self._index.header_of(unit)
            return int(unit["term"][0])

        for _ in range(_MOST_REPAIRS):
            try:
                return search_term_runs(self.begin.index + 1, self.end.index, term_of)
            except DirectoryDamaged as damage:
                if not self.settle_now(damage):
                    raise
        return search_term_runs(self.begin.index + 1, self.end.index, term_of)

    def settle_now(self, damage: DirectoryDamaged) -> bool:
        """For a start, which has no other check: False if nothing was found at that entry, or there is
        no space for it."""
        found = self.examine(damage.index, damage.index + 1)
        self.settle(found)
        self.save_damaged()
        return bool(found.ranges or found.units) and self.unsettled is None

    # ---------------------------------------------------------------- append

    def plan(self, sizes: Int64Array, *, control: bool = False, sparing: bool = False) -> Int64Array:
        """Reserve space for a batch; returns where each entry will lie, shape (count,).

        The append of the same sizes cannot run out of space then. `control` entries may use the reserve
        that data may not; half of it is left, for no-ops, if `sparing`. Raises DiskFull, BodyTooLarge;
        nothing has changed then.
        """
        end, limit_bytes = self._ends.end, self._entry_limit_bytes
        placement = place(sizes, end.position, self._data.segment_bytes, limit_bytes)
        first, stop = end.index + 1, end.index + 1 + len(sizes)
        self._space.reserve(placement.end_position, first, stop, control=control, sparing=sparing)
        self._plan = placement
        return placement.positions

    def append(self, batch: EntryBatch) -> None:
        """Write a stamped batch where it was planned; that it continues the log is asserted. It is not
        durable yet. Raises StoreFailure."""
        if batch.count == 0:
            return
        placement = self._plan
        assert placement is not None, "append without a plan"
        self._plan = None
        new_end = check_continues(batch, self._ends.end, placement)
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
        for file in self._index.append(batch, placement):
            self._dirty_index[file.base_position] = file
        self._ends.end = new_end

    def _write_data(self, buffers: list[memoryview], position: int) -> None:
        file = self._data.file_at(position)
        assert file is not None, (position, self._data.end_position)
        stop = position + sum(map(len, buffers))
        assert stop <= self._data.reserved_position, (stop, self._data.reserved_position)
        file.write(buffers, position)
        self._dirty_data[file.base_position] = file

    # ---------------------------------------------------------------- sync

    def begin_sync(self) -> Flush | None:
        """The flush of everything dirty, or None if nothing is. One task at a time."""
        assert self._flush is None, (self._flush.end, "is still under way") if self._flush else ""
        end = self._ends.end
        if not self._dirty_data and self._ends.durable == end:
            return None
        unsynced_index_bytes = end.position - self._index_synced_position
        is_due = self._sealed_since_flush or unsynced_index_bytes >= self._config.index_sync_bytes
        with_index = is_due and not self._index.files.has_unwritten
        flush = Flush(
            end,
            end.position if with_index else self._index_synced_position,
            list(self._dirty_data.values()),
            list(self._dirty_index.values()) if with_index else [],
            self._durable_record,
            seals=self._sealed_since_flush,
        )
        self._dirty_data.clear()
        if with_index:
            self._dirty_index.clear()
        self._sealed_since_flush = False
        self._flush = flush
        return flush

    def finish_sync(self, task: Flush) -> None:
        """`task.run()` has returned: adopt its durable point. Called on the store's own thread."""
        assert task is self._flush, (task, self._flush)
        assert task.done, "run() has not returned"
        self._flush = None
        ends, point = self._ends, task.point
        if point.index > ends.durable.index:
            ends.durable = point
        self._index_synced_position = max(self._index_synced_position, task.index_synced_position)
        assert ends.durable.index <= ends.end.index, (ends.durable, ends.end)

    def space_ahead(self) -> Callable[[], None] | None:
        """Work for any thread that reserves space the log will need soon; None while there is enough.
        Lack of space is left to the append that needs it. Raises StoreFailure."""
        end = self._ends.end
        return self._space.ahead(end.position, end.index + 1)

    def space_taken(self) -> SpaceTaken:
        """Touches no disk. Raises StoreFailure."""
        data, index = self._data.space_taken(), self._index.files.space_taken()
        return SpaceTaken(data.disk_bytes + index.disk_bytes, data.apparent_bytes + index.apparent_bytes)

    def outgrown_cache(self) -> Callable[[], None] | None:
        """Asked after a sync: work for any thread that gives older pages back to the system, or None."""
        return self._page_cache.outgrown(self._ends.durable.position)

    # ---------------------------------------------------------------- truncate

    def truncate_from(self, index: int, end: LogPoint | None = None) -> None:
        """Drop entries from `index` on; on disk when this returns, and no old byte can reappear.

        `end`: the entry before, as the leader has it; needed where it is damaged here. Raises
        StoreFailure; DirectoryDamaged if the entry before turns out to be damaged, and nothing has
        changed then.

        Order of the steps, each on disk before the next: the durable point falls, later segments go
        from the last backwards or, where they hold the reserve of no-ops, become zeros; index units from
        the cut become zeros, then the data does.

        A crash between two steps leaves entries above the durable point: whole ones are still the log as
        it was, and the rest is a tail that recovery cuts. After the last step a shorter new history can
        run into no old byte.
        """
        assert self.begin.index < index <= self.end.index + 1, (index, self.begin, self.end)
        if index == self.end.index + 1:
            return
        with self._damaged.lock:  # no piece of a repaired range may be written after the cut
            damaged = self._damaged.at(index - 1)
            if damaged is None:
                end = self._reader.point_at(index - 1)
            else:
                self._rewriting.look_around(damaged, self._ends)
                if not self._damaged.is_saved:
                    self.save_damaged()  # before the durable point names an end only it knows
            assert end is not None, f"the entry before {index} is damaged, and its end is not known"
            assert end.index == index - 1, (end, index)
            if damaged is not None and end.index == damaged.last.index:
                # Either may be the end of the segment in place of where the entry ends.
                end = min(end, msgspec.structs.replace(end, position=damaged.last.position))
            file = self._data.file_at(end.position)
            if damaged is not None and file is not None:
                before, _ = self._damaged.run_around(damaged)
                file.make_writable(end.position, before.position, file.end_position)
            self._truncate_to(end)

    def _truncate_to(self, cut: LogPoint) -> None:
        index = cut.index + 1
        old_stop_index = self.end.index + 1
        written_end = self._reader.written_end(cut)
        self._plan = None
        # In this order: a count from here on already sees the new end and durable point.
        self._ends.end = cut
        if self.durable.index >= cut.index:
            self._ends.durable = cut
        self._ends.truncations += 1
        self._index.recent.truncate_from(index)
        self._page_cache.truncate_to(cut.position)

        self.boundaries.keep_between(self.begin.position, cut.position)
        self._index_synced_position = min(self._index_synced_position, cut.position)
        self._durable_record.lower(cut, self._flush)
        data_stop, index_stop = control_reserve(self._config, cut.position, index)
        for file in self._data.drop_after(cut.position, data_stop):
            self._dirty_data.pop(file.base_position, None)
        units_position = index * INDEX_UNIT_BYTES
        for file in self._index.files.drop_after(units_position - 1, index_stop):
            self._dirty_index.pop(file.base_position, None)
        if self._index.files.file_at(units_position) is not None:
            self._index.files.make_writable(units_position, INDEX_UNIT_BYTES)
        self._index.files.zero_in_segment(units_position, old_stop_index * INDEX_UNIT_BYTES)
        self._data.zero_in_segment(cut.position, written_end)
        if self._damaged.truncate_to(cut):
            self._damaged.save()  # before other entries take the place of those
            self._limit_trust()
        self._space.restore_control_reserve(cut.position, index)

    # ---------------------------------------------------------------- the first entries go

    def drop_before(self, start: LogStart) -> Callable[[], None]:
        """Make the log begin after `start`, which `MemberDirectory.save_start` has brought to disk: at a
        segment whose first entry is durable. Returns work for any thread, one at a time: deleting
        earlier segments, oldest first. Files that a full disk keeps from being deleted are left to the
        next such work, or to a start. The work raises StoreFailure."""
        with self._damaged.lock:  # no piece of a repaired range may be written where nothing is left
            self._drops.drop_before(start, self._ends)
            first, first_unit = self._data.first_position, self._index.files.first_position
            self._dirty_data = {at: f for at, f in self._dirty_data.items() if at >= first}
            self._dirty_index = {at: f for at, f in self._dirty_index.items() if at >= first_unit}
        return self._delete_dropped

    def left_to_delete(self) -> Callable[[], None] | None:
        """The same work again, if a full disk has kept dropped files from being deleted."""
        return self._delete_dropped if self._drops.undeleted else None

    def _delete_dropped(self) -> None:
        if not self._damaged.is_saved:
            self.save_damaged()
        self._drops.delete()
        self.boundaries.keep_between(self.begin.position, sys.maxsize)

    # ---------------------------------------------------------------- read

    def id_at(self, index: int) -> EntryId:
        """Index and term of a held entry, or of the point before the begin; may read the index."""
        return self._reader.id_at(index)

    def chain_at(self, index: int) -> int:
        """chain_crc of a held entry, or of the point before the begin; may read the entry."""
        return self._reader.chain_at(index)

    def point_in_memory(self, index: int) -> LogPoint | None:
        """The known data of a held entry, or of the point before the begin, without file access."""
        return self._reader.point_in_memory(index)

    def point_on_disk(self, index: int) -> LogPoint:
        """The same from the files; any thread. Raises IndexOutOfRange, RangeDamaged,
        DirectoryDamaged."""
        return self._reader.point_on_disk(index)

    @property
    def truncations(self) -> int:
        """How often the log was cut at either end since the start; any thread."""
        return self._ends.truncations

    def remember(self, point: LogPoint, truncations: int) -> None:
        """`point_in_memory` knows this point until the next one comes or the log is cut. `truncations`:
        from before it was read."""
        self._reader.remember(point, truncations)

    def read_from(
        self, first_index: int, stop_index: int, limit_bytes: int, *, once: bool = False
    ) -> tuple[LogRange, EntryBatch]:
        """`range_of` and `read` in one; any thread. `once`: the entries are not kept in memory. A
        DirectoryDamaged says in `index` and `stop_index` where it may lie."""
        log_range, batch = self._reader.read_from(first_index, stop_index, limit_bytes)
        if once:
            self._page_cache.read_once(log_range.position, log_range.size_bytes)
        return log_range, batch

    def range_of(self, first_index: int, stop_index: int, limit_bytes: int) -> LogRange:
        """The longest run of whole entries from `first_index` on in one segment, below `stop_index` and
        within `limit_bytes`, at least one; any thread. Raises IndexOutOfRange or RangeDamaged for
        `first_index`."""
        return self._reader.range_of(first_index, stop_index, limit_bytes)

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        """As they lie in the data files, unchecked, headers and blanks included; shorter where these end
        or were dropped. Any thread. Raises OSError."""
        return self._data.pread(size_bytes, position)

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        """All control entries among these, each by itself, as the files have them: reads all that lies
        there. Any thread. Raises
        IndexOutOfRange if the log was cut meanwhile, RangeDamaged where it cannot be known whether there
        are some, DirectoryDamaged."""
        return self._reader.control_batches(first_index, stop_index)

    def kinds(self, first_index: int, stop_index: int) -> Int64Array:
        """`EntryKind` of each of these, from the index, in which one flipped bit can hide an entry: for
        display, or to find a place to look. Any thread. Raises as `control_batches` does."""
        return self._reader.kinds(first_index, stop_index)

    def read(self, log_range: LogRange) -> EntryBatch:
        """The bytes of a range in memory of their own; any thread. Header fields and chain are checked,
        bodies are not: the receiver does that.

        Raises IndexOutOfRange if the range was truncated meanwhile, DirectoryDamaged.
        """
        return self._reader.read(log_range)

    # ---------------------------------------------------------------- damage

    @property
    def damaged(self) -> tuple[DamagedRange, ...]:
        """In order; `range_of` refuses their entries with RangeDamaged."""
        return self._damaged.ranges

    def damaged_at(self, index: int) -> DamagedRange | None:
        """The damaged range that has this entry."""
        return self._damaged.at(index)

    def examine(self, first_index: int, stop_index: int) -> Examination:
        """Compare data, index and bodies below the durable point, at least from `first_index` to below
        `stop_index`; any thread. Raises DirectoryDamaged if the terms of a damaged range cannot be
        known."""
        truncations = self._ends.truncations
        try:
            return self._rewriting.examine(
                first_index, stop_index, self.begin, self.durable, truncations
            )
        except DirectoryDamaged:
            if truncations == self._ends.truncations:
                raise
            return Examination((), (), (), first_index, 0, truncations)

    def settle(self, examination: Examination) -> tuple[DamagedRange, ...] | None:
        """Record damage and rewrite the bytes that the data itself determines; returns the ranges that
        are new or larger. None: the log was cut since the look began, and nothing is done."""
        if examination.truncations != self._ends.truncations:
            return None
        ranges, written = self._rewriting.settle(examination)
        for file in written:
            is_index = self._index.files.file_at(file.base_position) is file
            dirty = self._dirty_index if is_index else self._dirty_data
            dirty[file.base_position] = file
        return ranges

    @property
    def unsettled(self) -> Examination | None:
        """Data that the newest `settle` had no space to rewrite, to be settled once there is some."""
        return self._rewriting.unsettled

    @property
    def damaged_problem(self) -> str:
        """Why the newest attempt to save them found no space; "" otherwise."""
        return self._damaged.problem

    def save_damaged(self) -> bool:
        """On disk when this returns; any thread. False: there is no space for it yet; the ranges stay in
        memory, and a start would have to look for them. Raises StoreFailure."""
        # A range above the durable point would count as cut off, so both slots say that it is not.
        self._durable_record.bring_to_both_slots()
        is_saved = self._damaged.save()
        self._limit_trust()
        return is_saved

    def _limit_trust(self) -> None:
        """While there is no space for the list of ranges, a start has to find them by itself."""
        ranges = self._damaged.ranges if self._damaged.problem else ()
        self._durable_record.limit_index(min([r.before.position for r in ranges], default=sys.maxsize))

    def check_piece(self, damaged: DamagedRange, batch: EntryBatch) -> LogPoint:
        """Show that these entries of another member can be those of a range, or a part of it; returns
        the point before them. Raises ProtocolViolation. Any thread.

        A piece that ends the range is proven by the chain there. Any other must be followed by an entry
        whose chain the caller knows.
        """
        return self._rewriting.check(damaged, batch)[0]

    def write_piece(self, damaged: DamagedRange, before: LogPoint, batch: EntryBatch) -> None:
        """Write and sync a piece that `check_piece` has accepted, with the point it returned; any
        thread. The damaged bytes are first set aside, space permitting.

        Raises IndexOutOfRange if the range was cut meanwhile, StoreFailure; DiskFull, and nothing is
        overwritten.
        """
        self._rewriting.look_around(damaged, self._ends)
        if not self._damaged.is_saved:  # what is written over has to be known as damaged first
            self.save_damaged()
        self._rewriting.write(damaged, before, batch, self.end)
        self._limit_trust()

    def configure(self, config: StoreConfig) -> None:
        """Change the options that a running member may reload (`config.RELOADABLE`)."""
        self._config, self._entry_limit_bytes = config, config.entry_limit_bytes
        self._space.configure(config)
        self._page_cache.keep_bytes = config.page_cache_bytes

    def make_no_space(self, is_so: bool) -> None:
        """The disk hangs, or does no longer. While it does, `plan` raises DiskFull where space would
        have to be made first, unless for no-ops alone: that waits for the disk."""
        self._space.makes_none = is_so

    def park_files(self) -> int:
        """Descriptors have run out: give back some of files that are read only, which are opened for
        each read from now on. Returns how many."""
        with self._damaged.lock:  # a repair writes into old segments
            return self._data.park(self._dirty_data) + self._index.files.park(self._dirty_index)

    def close(self) -> None:
        """Release files without syncing; a clean stop syncs first."""
        self._data.close()
        self._index.files.close()
        self._durable_record.file.close()
