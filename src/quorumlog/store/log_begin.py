"""The begin of a log: dropped entries, and what is known of the entries before it."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.errors import DirectoryDamaged, DiskFull, IndexOutOfRange, RangeDamaged, StoreFailure
from quorumlog.log_state.log_state import LogState, Resets, StateTime, counted_ms, decode_time, said_ms
from quorumlog.store.disk import Disk, disk_work
from quorumlog.store.entry_index import IndexSegments, LogEnds
from quorumlog.store.ledger_store import Boundaries, LedgerStore, LogPoint, LogStart
from quorumlog.store.log_reader import LogReader
from quorumlog.store.segment_view import header_at
from quorumlog.store.segments import INDEX_UNIT_BYTES, SegmentList
from quorumlog.store.state_files import (
    STATES_NAME,
    DamagedRanges,
    delete_states,
    forget_staged,
    load_state,
    place_state,
    saved_positions,
    stage_state,
)

# ----------------------------------------------------------------
# Runs of equal terms in a log of any length, by binary search: a start must not read the log.

TermOf = Callable[[int, bool], int]
"""(index, compare_with_data) -> term. True asks that the index unit is compared with the entry."""


def search_term_runs(first_index: int, last_index: int, term_of: TermOf) -> tuple[tuple[int, int], ...]:
    """((first_index, term), ...) of entries `first_index` .. `last_index`; terms never fall.

    Both sides of every edge, and both ends of the log, are compared with the data: a wrong unit would
    move an edge, and the core decides elections by edges.
    """
    if last_index < first_index:
        return ()
    runs: list[tuple[int, int]] = []
    last_term = term_of(last_index, True)
    start = first_index
    while True:
        term = term_of(start, True)
        assert not runs or term > runs[-1][1], (start, term, runs[-1])
        assert term <= last_term, (start, term, last_term)
        runs.append((start, term))
        if term == last_term:
            return tuple(runs)
        inside, step = start, 1
        while inside + step < last_index and term_of(inside + step, False) == term:
            inside += step
            step *= 2
        unsure = range(inside + 1, min(inside + step, last_index))
        inside += bisect_left(unsure, True, key=lambda index: term_of(index, False) != term)
        term_of(inside, True)
        start = inside + 1


# ---------------------------------------------------------------- Boundaries
# The entries before which a segment of the log begins, and the states that are saved there.


class SegmentBoundaries(Boundaries):
    def __init__(
        self, disk: Disk, directory: str, data: SegmentList, reader: LogReader, ends: LogEnds
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._data = data
        self._reader = reader
        self._ends = ends
        self._lock = threading.Lock()
        """Held while names come or go, and never while a disk syncs: a cut waits for it on the store's
        thread."""
        self._path = f"{directory}/{STATES_NAME}"

    def newest(self, last_index: int) -> LogPoint | None:
        # Damage may hide it.
        for base in reversed(self._data.bases):
            if base <= self._ends.begin.position:
                return None
            header = header_at(self._data, base)
            if header is None or header.index > min(last_index, self._ends.durable.index) + 1:
                continue
            return self._boundary(base, header.index - 1)
        return None

    def above(self, index: int) -> list[LogPoint]:
        found = []
        for base in self._data.bases:
            header = header_at(self._data, base) if base > self._ends.begin.position else None
            point = (
                self._boundary(base, header.index - 1) if header and header.index > index + 1 else None
            )
            if point is not None:
                found.append(point)
        return found

    def crossed(self, previous: LogPoint, batch: EntryBatch) -> list[LogPoint]:
        segment_bytes = self._data.segment_bytes
        if previous.position // segment_bytes == self._ends.end.position // segment_bytes:
            return []
        headers = batch.headers()
        bases = headers["pos"].astype(np.int64) // segment_bytes * segment_bytes
        before = np.concatenate([[self._data.base_of(previous.position)], bases[:-1]])
        found = []
        for at in np.flatnonzero(bases != before).tolist():
            index, term, chain = previous.index, previous.term, previous.chain
            if at:
                last = headers[at - 1]
                index, term, chain = int(last["index"]), int(last["term"]), int(last["chain_crc"])
            found.append(LogPoint(index, term, chain, int(bases[at])))
        return found

    def save(self, state: LogStart) -> bool:
        point = state.point
        full = f"no space for a state of the log in {self._path}"
        try:
            with disk_work(self._path, "written", full):
                while True:
                    truncations = self._ends.truncations
                    if self._boundary(point.position, point.index) != point:
                        forget_staged(self._disk, self._directory, point.position)
                        return False
                    stage_state(self._disk, self._directory, state)
                    with self._lock:
                        if truncations == self._ends.truncations:
                            place_state(self._disk, self._directory, point.position)
                            break
                self._disk.sync_directory(self._path)
        except (DiskFull, StoreFailure):
            forget_staged(self._disk, self._directory, point.position)
            raise
        return True

    def saved(self) -> Iterator[LogStart]:
        for position in reversed(self._positions()):
            state = self._loaded(position)
            if state is not None and self._boundary(position, state.point.index) == state.point:
                yield state

    def saved_at(self, point: LogPoint) -> LogStart | None:
        state = self._loaded(point.position)
        return state if state is not None and state.point == point else None

    def keep_between(self, begin_position: int, end_position: int) -> None:
        """Delete those of boundaries at or below the begin of the log, and at or after its end: where
        the next entry lies depends on how long it is. Raises StoreFailure."""
        # What a full disk leaves there counts for no other log.
        with suppress(DiskFull), disk_work(self._path, "made shorter", "no space to delete"):
            with self._lock:
                positions = self._positions()
                gone = [each for each in positions if not begin_position < each < end_position]
                delete_states(self._disk, self._directory, gone)
            if gone:
                self._disk.sync_directory(self._path)

    def _positions(self) -> list[int]:
        with disk_work(self._path, "read"):
            return saved_positions(self._disk, self._directory)

    def _loaded(self, position: int) -> LogStart | None:
        with disk_work(self._path, "read"):
            return load_state(self._disk, self._directory, position)

    def _boundary(self, position: int, index: int) -> LogPoint | None:
        """As this log has it, durable; None if no segment begins there after that entry."""
        if not self._ends.begin.index < index < self._ends.durable.index:
            return None
        header = header_at(self._data, position)
        if header is None or header.index != index + 1 or self._data.base_of(position) != position:
            return None
        try:
            point = self._reader.point_on_disk(index)
        except (DirectoryDamaged, IndexOutOfRange, RangeDamaged):
            return None
        if header.chain_before != point.chain:
            return None
        return msgspec.structs.replace(point, position=position)


# ---------------------------------------------------------------- Drops
# The first segments of a log go. In memory at once, on the store's thread; the files are deleted in
# another, after the file `start` says that they are no part of the log any more.


class Drops:
    def __init__(
        self,
        disk: Disk,
        start: LogStart | None,
        data: SegmentList,
        index: IndexSegments,
        damaged: DamagedRanges,
    ) -> None:
        self.start = start
        self._disk = disk
        self._data = data
        self._index = index
        self._damaged = damaged
        self._undeleted: list[str] = []
        """Oldest first."""

    @property
    def are_deleted(self) -> bool:
        """Is nothing left to be deleted? Any thread."""
        return not self._undeleted

    def drop_before(self, start: LogStart, ends: LogEnds) -> None:
        begin = start.point
        assert ends.begin.index < begin.index < ends.durable.index, (ends.begin, begin, ends.durable)
        assert begin.position % self._data.segment_bytes == 0, (begin, self._data.segment_bytes)
        assert not start.replaces, start
        assert self._data.file_at(begin.position) is not None, (begin, self._data.bases)
        # In this order: a reader that misses a segment already sees the log begin after it.
        ends.begin, self.start = begin, start
        ends.truncations += 1
        self._damaged.drop_before(begin, self._data.name_of(begin.position))
        self._undeleted += self._data.drop_before(begin.position)
        self._undeleted += self._index.drop_before((begin.index + 1) * INDEX_UNIT_BYTES)

    def delete(self) -> None:
        """Any thread, one at a time. Files that a full disk keeps stay for the next time. Raises
        StoreFailure."""
        # A file system that writes elsewhere needs space to delete.
        with suppress(DiskFull), disk_work(self._data.directory, "made shorter", "no space to delete"):
            for path in tuple(self._undeleted):
                with suppress(FileNotFoundError):  # somebody made space by hand
                    self._disk.unlink(path)
                self._undeleted.remove(path)
            for folder in (self._data.directory, self._index.directory):
                self._disk.sync_directory(folder)


# ----------------------------------------------------------------
# Which time mark holds at an index, and which one held at a time; of a log on disk, without reading it.
# A reset of the log's clock is a mark, too, and each says the time that counts (`counted_ms`).
#
# The states that are saved before segments say between which two boundaries the mark lies. In the
# one segment that is left, marks rise with their indices, so halving finds it: each look goes backwards
# from a place to the last mark before it, by the kinds of entries alone.

LOOK_ENTRIES = 4096
"""How many entries are looked at first; then ever more."""
MOST_LOOK_ENTRIES = 1 << 18


class Mark(msgspec.Struct, frozen=True):
    index: int
    """Of the TIME or CLOCK entry, which may be before the log's begin."""
    time_ms: int
    """Append time of the entries after it."""


class MarkedLog(Protocol):
    @property
    def begin_index(self) -> int:
        """Of the entry before the first that is held."""

    @property
    def clock_resets(self) -> Resets:
        """Of the whole log, as far as it is committed."""

    def states(self) -> Iterator[tuple[int, bytes]]:
        """(index, record of the log's state up to there), the newest first; that of the begin last, if
        there is one. Some may be missing."""

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        """See `LedgerStore.control_batches`."""


class StoredLog(MarkedLog):
    def __init__(self, store: LedgerStore, clock_resets: Resets) -> None:
        self._store = store
        self._clock_resets = clock_resets

    @property
    def clock_resets(self) -> Resets:
        return self._clock_resets

    @property
    def begin_index(self) -> int:
        return self._store.begin.index

    def states(self) -> Iterator[tuple[int, bytes]]:
        for saved in self._store.boundaries.saved():
            yield saved.point.index, saved.record
        start = self._store.start
        if start is not None:
            yield start.point.index, start.record

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        return self._store.control_batches(first_index, stop_index)


def mark_at_index(log: MarkedLog, index: int) -> Mark | None:
    """The last one at or before this entry, which is committed. Raises as `control_batches` does."""
    first_index, mark = log.begin_index + 1, None
    for boundary, state in _known(log):
        if boundary <= index:
            first_index, mark = boundary + 1, _counted(log, mark_of(state))
            break
    return _last_in(log, first_index, index + 1) or mark


def mark_at_time(log: MarkedLog, time_ms: int, stop_index: int) -> Mark | None:
    """The last one with this time or an earlier one, before `stop_index`. Raises as `control_batches`
    does."""
    first_index, mark = log.begin_index + 1, None
    for boundary, state in _known(log):
        known = _counted(log, mark_of(state))
        if known is None or known.time_ms <= time_ms:
            if boundary < stop_index:
                first_index, mark = boundary + 1, known
                break
        else:
            stop_index = min(stop_index, boundary + 1)
    while first_index < stop_index:
        middle = (first_index + stop_index) // 2
        found = _last_in(log, first_index, middle + 1)
        if found is not None and found.time_ms > time_ms:
            stop_index = found.index
        else:
            first_index, mark = middle + 1, found or mark
    return mark


def mark_of(state: LogState | StateTime) -> Mark | None:
    """The last time mark, as it is written."""
    return None if state.time_ms is None else Mark(state.time_index, state.time_ms)


def _counted(log: MarkedLog, mark: Mark | None) -> Mark | None:
    if mark is None:
        return None
    return Mark(mark.index, counted_ms(mark.index, mark.time_ms, log.clock_resets))


def _known(log: MarkedLog) -> Iterator[tuple[int, StateTime]]:
    for index, record in log.states():
        state = decode_time(record)
        if isinstance(state, StateTime):
            yield index, state


def _last_in(log: MarkedLog, first_index: int, stop_index: int) -> Mark | None:
    entries = LOOK_ENTRIES
    while first_index < stop_index:
        look_index = max(first_index, stop_index - entries)
        for batch in reversed(list(log.control_batches(look_index, stop_index))):
            mark_ms = said_ms(batch.first_header.magic, batch.body(0))
            if mark_ms is not None:
                return _counted(log, Mark(batch.first_index, mark_ms))
        stop_index, entries = look_index, min(4 * entries, MOST_LOOK_ENTRIES)
    return None
