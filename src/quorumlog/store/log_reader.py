"""Reads of the log as it is written: from memory, the page cache or the disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB
from quorumlog.entry import ENTRY_KINDS, EntryId, EntryKind
from quorumlog.entry_header import HEADER_BYTES, EntryHeader
from quorumlog.errors import DirectoryDamaged, IndexOutOfRange, ProtocolViolation, RangeDamaged
from quorumlog.header_array import Int64Array, term_runs_of
from quorumlog.store.disk import reason_of
from quorumlog.store.entry_index import EntryIndex, LogEnds
from quorumlog.store.log_points import LogPoint, LogRange
from quorumlog.store.placement import range_length
from quorumlog.store.segments import BLANK_BYTES, IndexArray, SegmentList
from quorumlog.store.state_files import DamagedRanges

# ---------------------------------------------------------------- PageCache
# How much of the data files the operating system keeps in memory.
#
# The newest bytes stay (DESIGN.md, memory of the operating system, says why not all). Older
# ones are given back once they are on disk, and so is what is read only once, for a follower far behind
# or by a scrub. What clients read stays until one of these passes there.

STEP_BYTES = 4 * MIB
"""Given back in one go, at multiples in the file: of a larger piece of memory the kernel gives no part
back."""


class PageCache:
    def __init__(self, data: SegmentList, keep_bytes: int, end_position: int) -> None:
        """`end_position`: of the log. Pages cached by an earlier process are left to the kernel."""
        self._data = data
        self.keep_bytes = keep_bytes
        self._kept_position = max(data.first_position, end_position - keep_bytes)
        """What was written from here on has not been given back."""

    def outgrown(self, durable_position: int) -> Callable[[], None] | None:
        """Work for any thread that releases excess pages below `durable_position`; None while that is
        not worth a call."""
        first = self._kept_position
        stop = self._step_below(durable_position - self.keep_bytes)
        if stop <= first:
            return None
        self._kept_position = stop
        return lambda: self._give_back(first, stop)

    def read_once(self, position: int, size_bytes: int) -> None:
        """Any thread."""
        # With what the piece before could not give back, because this one begins in the midst of it.
        stop = min(position + size_bytes, self._kept_position)
        self._give_back(self._step_below(position), stop)

    def truncate_to(self, end_position: int) -> None:
        self._kept_position = min(self._kept_position, end_position)

    def _step_below(self, position: int) -> int:
        base = self._data.base_of(position)
        return base + (position - base) // STEP_BYTES * STEP_BYTES

    def _give_back(self, first: int, stop: int) -> None:
        while first < stop:
            file = self._data.file_at(first)
            if file is None or not file.acquire():
                return  # cut off meanwhile
            piece_stop = min(stop, file.end_position)
            try:
                file.uncache(first, piece_stop)
            finally:
                file.release()
            first = piece_stop


# ---------------------------------------------------------------- LogReader
# Entries of a log out of its segments, checked before anybody sees them.
#
# Where a truncation comes in between, IndexOutOfRange is raised; only what contradicts the index
# without one is damage. `point_in_memory` is for the store's thread, the rest for any: nothing else
# asks the units in memory, which change with every append.

_UNIT_CHUNK = 65536
_MAGIC_BYTES = 4
"""Of a header, which begins with it."""
_LOOK_BYTES = 1 << 20
"""Entries that are looked at together."""


class LogReader:
    def __init__(
        self, ends: LogEnds, data: SegmentList, index: EntryIndex, damaged: DamagedRanges
    ) -> None:
        self._ends = ends
        self._data = data
        self._index = index
        self._damaged = damaged
        self._remembered: tuple[int, LogPoint] | None = None
        """What was read of an entry that will be asked for soon, and how often the log had been cut."""

    # ---------------------------------------------------------------- one entry

    def point_in_memory(self, index: int) -> LogPoint | None:
        for known in (self._ends.end, self._ends.durable, self._ends.begin):
            if index == known.index:
                return known
        if self._remembered is not None:
            truncations, point = self._remembered
            is_good = truncations == self._ends.truncations and self._damaged.at(index) is None
            if index == point.index and is_good:
                return point
        if self._index.recent.holds(index):
            unit = self._index.recent.units(index, index + 1)
            return _point_of(unit, self._index.recent.chain(index))
        damaged = self._damaged.ending_at(index)
        return None if damaged is None else damaged.last

    def point_on_disk(self, index: int) -> LogPoint:
        for known in (self._ends.durable, self._ends.begin):
            if index == known.index:
                return known
        self._index.check_held(index)
        damaged = self._damaged.at(index)
        if damaged is not None:
            if index == damaged.last.index:
                return damaged.last
            raise RangeDamaged(str(damaged))
        truncations = self._ends.truncations
        try:
            point, header = self._point_and_header(index)
            if header.chain_before != self._believed_point(index - 1).chain:
                path = self._data.path_of(header.pos)
                raise self._index.damage(path, header.pos, index, "the chain does not lead there")
            return point
        except DirectoryDamaged:
            if truncations == self._ends.truncations:
                raise
        raise self._may_be_cut(index)

    def _believed_point(self, index: int) -> LogPoint:
        """Of the entry before one that is held, by its own word: for who compares it with the next."""
        for known in (self._ends.durable, self._ends.begin):
            if index == known.index:
                return known
        damaged = self._damaged.at(index)
        return damaged.last if damaged is not None else self._point_and_header(index)[0]

    def _point_and_header(self, index: int) -> tuple[LogPoint, EntryHeader]:
        unit = self._index.units_on_disk(index, index + 1)
        header = self._index.header_of(unit)
        return _point_of(unit, header.chain_crc), header

    def remember(self, point: LogPoint, truncations: int) -> None:
        self._remembered = (truncations, point)

    def id_at(self, index: int) -> EntryId:
        if index == self._ends.begin.index:
            return self._ends.begin.entry_id
        if index == self._ends.end.index:
            return self._ends.end.entry_id  # its unit may be damaged
        damaged = self._damaged.at(index)
        if damaged is not None:
            return EntryId(index, damaged.term_at(index))
        return EntryId(index, int(self._index.units(index, index + 1)["term"][0]))

    def chain_at(self, index: int) -> int:
        return self.point_at(index).chain

    def point_at(self, index: int) -> LogPoint:
        return self.point_in_memory(index) or self.point_on_disk(index)

    def written_end(self, cut: LogPoint) -> int:
        """Just after the last byte written in the segment that holds the cut: where the log ended, or
        the blank record before the next segment."""
        segment_end = self._data.base_of(cut.position) + self._data.segment_bytes
        if self._ends.end.position <= segment_end:
            return self._ends.end.position
        if self._damaged.ranges:
            return segment_end
        unsure = range(cut.index + 1, self._ends.end.index)
        try:
            inside = bisect_right(unsure, segment_end, key=lambda index: self.point_at(index).position)
            return self.point_at(cut.index + inside).position + BLANK_BYTES
        except DirectoryDamaged:
            return segment_end  # the whole of it, then

    # ---------------------------------------------------------------- many

    def range_of(self, first_index: int, stop_index: int, limit_bytes: int) -> LogRange:
        begin, end = self._ends.begin, self._ends.end
        stop_index = min(stop_index, end.index + 1)
        self._index.check_held(first_index)
        if first_index >= stop_index:
            raise IndexOutOfRange(f"entry {first_index} was truncated meanwhile")
        damaged = self._damaged.at(first_index)
        if damaged is not None:
            raise RangeDamaged(str(damaged))
        stop_index = self._damaged.stop_before(first_index, stop_index)
        # Start with as many units as entries of average size need; go on while they fall short.
        average_bytes = (end.position - begin.position) // (end.index - begin.index)
        fetch = min(limit_bytes // max(average_bytes, HEADER_BYTES) + 16, _UNIT_CHUNK)
        units = self._index.units_on_disk(first_index, min(first_index + fetch, stop_index))
        count, ended = range_length(units, self._data.segment_bytes, limit_bytes)
        while not ended and first_index + len(units) < stop_index:
            at = first_index + len(units)
            more = self._index.units_on_disk(at, min(at + _UNIT_CHUNK, stop_index))
            units = np.concatenate([units, more])
            count, ended = range_length(units, self._data.segment_bytes, limit_bytes)
        units = units[:count]
        sizes = units["size"].astype(np.int64)
        position = int(units["position"][0])
        previous = self._believed_point(first_index - 1)  # `read` compares
        return LogRange(
            first_index,
            sizes,
            self._data.base_of(position),
            position,
            int(sizes.sum()),
            LogPoint(previous.index, previous.term, previous.chain, position),
            term_runs_of(units),
        )

    def read_from(
        self, first_index: int, stop_index: int, limit_bytes: int
    ) -> tuple[LogRange, EntryBatch]:
        truncations = self._ends.truncations
        try:
            log_range = self.range_of(first_index, stop_index, limit_bytes)
        except DirectoryDamaged as damage:
            if truncations == self._ends.truncations:
                raise
            raise self._may_be_cut(first_index) from damage
        try:
            return log_range, self.read(log_range)
        except DirectoryDamaged as damage:
            damage.stop_index = log_range.stop_index
            raise

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        """By the headers of the entries, whose chain is checked: a unit of the index has no digest, and
        one bit of it can hide an entry. For damaged ones an intact index, unless the rest of their
        headers contradicts it, shows that none is a control entry, except no-ops, which are intact
        anyway."""
        while first_index < stop_index:
            damaged = self._damaged.at(first_index)
            if damaged is not None:
                chunk_stop = min(damaged.stop_index, stop_index, first_index + _UNIT_CHUNK)
                units = self._units(first_index, chunk_stop)
                kinds = units["magic"].astype(np.int64)
                if bool((kinds > EntryKind.NOOP).any()) or self._contradicts(units):
                    raise RangeDamaged(str(damaged))
                for at in np.flatnonzero(kinds == EntryKind.NOOP).tolist():
                    one = EntryBatch.noop()  # all that it says is where it stands
                    one.stamp(first_index + at, damaged.term_at(first_index + at), [0], 0)
                    yield one
                first_index = chunk_stop
                continue
            log_range, batch = self.read_from(first_index, stop_index, _LOOK_BYTES)
            for at in batch.control_positions():
                one = batch.slice(at, at + 1)
                try:
                    one.check_bodies()
                except ProtocolViolation as error:
                    position = one.first_header.pos
                    path = self._data.path_of(position)
                    raise self._index.damage(path, position, first_index + at, str(error)) from error
                yield one
            first_index = log_range.stop_index

    def kinds(self, first_index: int, stop_index: int) -> Int64Array:
        """By the index alone, which is not checked against the entries."""
        found = [np.empty(0, np.int64)]
        for first in range(first_index, stop_index, _UNIT_CHUNK):
            units = self._units(first, min(first + _UNIT_CHUNK, stop_index))
            found.append(units["magic"].astype(np.int64))
        return np.concatenate(found)

    def _contradicts(self, units: IndexArray) -> bool:
        """Whether what the data of damaged entries still says of their kinds is something else. What is
        no kind at all, as zeros, says nothing."""
        for position, magic in zip(units["position"].tolist(), units["magic"].tolist(), strict=True):
            try:
                found_magic = int.from_bytes(self._data.pread(_MAGIC_BYTES, position), "big")
            except OSError:
                continue  # the page cannot be read
            if found_magic in ENTRY_KINDS and found_magic != magic:
                return True
        return False

    def _units(self, first_index: int, stop_index: int) -> IndexArray:
        truncations = self._ends.truncations
        try:
            return self._index.units_on_disk(first_index, stop_index)
        except DirectoryDamaged as damage:
            if truncations != self._ends.truncations:
                raise self._may_be_cut(first_index) from damage
            damaged = self._damaged.at(damage.index)
            if damaged is None:
                raise
            raise RangeDamaged(str(damaged)) from damage

    def read(self, log_range: LogRange) -> EntryBatch:
        truncations = self._ends.truncations
        self._check_not_cut(log_range)
        file = self._data.file_at(log_range.position)
        if file is None or not file.acquire():
            raise self._cut_meanwhile(log_range)
        buffer = np.empty(log_range.size_bytes, np.uint8).data  # not zeroed first, as a bytearray is
        try:
            done = file.pread_into(buffer, log_range.position)
        except FileNotFoundError:  # it is parked, and was deleted meanwhile
            raise self._cut_meanwhile(log_range) from None
        except OSError as error:
            problem = f"cannot be read: {reason_of(error)}"
            raise self._index.damage(
                file.path, log_range.position, log_range.first_index, problem
            ) from error
        finally:
            file.release()
        batch = EntryBatch(buffer, log_range.sizes)
        problem = f"{done} of {len(buffer)} bytes are there" if done < len(buffer) else ""
        try:
            batch.check_encoding()
            batch.check_sequence(log_range.first_index, log_range.previous.chain)
            if not batch.lies_at(log_range.position + batch.starts):
                problem = problem or "pos of an entry is not where it lies"
        except ProtocolViolation as error:
            problem = problem or str(error)
        # Zeros or newer entries may have come under the read: look again before calling it damage.
        if truncations != self._ends.truncations:
            self._check_not_cut(log_range)
        if not problem and batch.term_runs() == log_range.term_runs:
            return batch
        if truncations != self._ends.truncations or self._is_rewritten(log_range):
            raise self._cut_meanwhile(log_range)
        raise self._index.damage(
            file.path,
            log_range.position,
            log_range.first_index,
            problem or f"terms are {batch.term_runs()}, by the index {log_range.term_runs}",
        )

    def _is_rewritten(self, log_range: LogRange) -> bool:
        """Does the index say something else now than when the range was taken?"""
        count = len(log_range.sizes)
        now = self._index.file_units(log_range.first_index, log_range.stop_index)
        return (
            len(now) < count
            or int(now["position"][0]) != log_range.position
            or not bool((now["size"] == log_range.sizes).all())
            or term_runs_of(now) != log_range.term_runs
        )

    def _check_not_cut(self, log_range: LogRange) -> None:
        if log_range.stop_index - 1 > self._ends.end.index:
            raise self._cut_meanwhile(log_range)

    def _may_be_cut(self, index: int) -> IndexOutOfRange:
        return IndexOutOfRange(
            f"entry {index} may have been truncated meanwhile",
            ledger_begin_index=self._ends.begin.index + 1,
        )

    def _cut_meanwhile(self, log_range: LogRange) -> IndexOutOfRange:
        return IndexOutOfRange(
            f"entries {log_range.first_index} .. {log_range.stop_index - 1} were truncated meanwhile",
            ledger_begin_index=self._ends.begin.index + 1,
        )


def _point_of(unit: IndexArray, chain: int) -> LogPoint:
    """`unit`: shape (1,)."""
    end_position = int(unit["position"][0]) + int(unit["size"][0])
    return LogPoint(int(unit["index"][0]), int(unit["term"][0]), chain, end_position)
