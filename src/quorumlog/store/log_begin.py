"""The begin of a log: dropped entries, and what is known of the entries before it."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.errors import DirectoryDamaged, DiskFull, IndexOutOfRange, RangeDamaged, StoreFailure
from quorumlog.store.disk import Disk, disk_work
from quorumlog.store.entry_index import IndexSegments, LogEnds
from quorumlog.store.log_points import LogPoint, LogStart
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


class SegmentBoundaries:
    """The entries before the log's segments, after which it may begin one day; any thread."""

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
        """The last boundary above the begin whose entry is at or below `last_index`, and which durable
        entries follow; its `position` is that of the segment. None if there is none, or damage hides
        it."""
        for base in reversed(self._data.bases):
            if base <= self._ends.begin.position:
                return None
            header = header_at(self._data, base)
            if header is None or header.index > min(last_index, self._ends.durable.index) + 1:
                continue
            return self._boundary(base, header.index - 1)
        return None

    def above(self, index: int) -> list[LogPoint]:
        """Those above the begin and this index that durable entries follow, in order; each as `newest`
        gives it. Damage hides some."""
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
        """Those before and among entries that were just appended after this point. Touches no
        file; the store's own thread."""
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
        """The state at a boundary that is committed; on disk when this returns. False: that was cut off
        or dropped meanwhile, or is damaged. Raises DiskFull, StoreFailure."""
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
        """The newest first; only those of this very log. Raises StoreFailure."""
        for position in reversed(self._positions()):
            state = self._loaded(position)
            if state is not None and self._boundary(position, state.point.index) == state.point:
                yield state

    def saved_at(self, point: LogPoint) -> LogStart | None:
        """The state at this boundary, as `newest` gives it; None: it is not saved. Raises
        StoreFailure."""
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
        self.undeleted: list[str] = []
        """Oldest first; any thread."""

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
        self.undeleted += self._data.drop_before(begin.position)
        self.undeleted += self._index.drop_before((begin.index + 1) * INDEX_UNIT_BYTES)

    def delete(self) -> None:
        """Any thread, one at a time. Files that a full disk keeps stay for the next time. Raises
        StoreFailure."""
        # A file system that writes elsewhere needs space to delete.
        with suppress(DiskFull), disk_work(self._data.directory, "made shorter", "no space to delete"):
            for path in tuple(self.undeleted):
                with suppress(FileNotFoundError):  # somebody made space by hand
                    self._disk.unlink(path)
                self.undeleted.remove(path)
            for folder in (self._data.directory, self._index.directory):
                self._disk.sync_directory(folder)
