"""Borders: the entries before which a segment of the log begins, and the states that are saved there."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.errors import DirectoryDamaged, DiskFull, IndexOutOfRange, RangeDamaged, StoreFailure
from quorumlog.store.disk import Disk, is_lack_of_space, refusal
from quorumlog.store.files.state_files import (
    STATES_NAME,
    delete_states,
    forget_staged,
    load_state,
    place_state,
    saved_positions,
    stage_state,
)
from quorumlog.store.ledger_store import Borders, LogPoint, LogStart
from quorumlog.store.log.entry_index import LogEnds
from quorumlog.store.log.log_reader import LogReader
from quorumlog.store.log.segment_list import SegmentList
from quorumlog.store.log.segment_view import header_at


class SegmentBorders(Borders):
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
            return self._border(base, header.index - 1)
        return None

    def above(self, index: int) -> list[LogPoint]:
        found = []
        for base in self._data.bases:
            header = header_at(self._data, base) if base > self._ends.begin.position else None
            point = self._border(base, header.index - 1) if header and header.index > index + 1 else None
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
        try:
            while True:
                truncations = self._ends.truncations
                if self._border(point.position, point.index) != point:
                    forget_staged(self._disk, self._directory, point.position)
                    return False
                stage_state(self._disk, self._directory, state)
                with self._lock:
                    if truncations == self._ends.truncations:
                        place_state(self._disk, self._directory, point.position)
                        break
            self._disk.sync_directory(self._path)
        except OSError as error:
            forget_staged(self._disk, self._directory, point.position)
            if is_lack_of_space(error):
                raise DiskFull(f"no space for a state of the log in {self._path}") from error
            raise StoreFailure(refusal(self._path, "written", error)) from error
        return True

    def saved(self) -> Iterator[LogStart]:
        for position in reversed(self._positions()):
            state = self._loaded(position)
            if state is not None and self._border(position, state.point.index) == state.point:
                yield state

    def saved_at(self, point: LogPoint) -> LogStart | None:
        state = self._loaded(point.position)
        return state if state is not None and state.point == point else None

    def keep_between(self, begin_position: int, end_position: int) -> None:
        """Delete those of borders at or below the begin of the log, and at or behind its end: where the
        next entry lies depends on how long it is. Raises StoreFailure."""
        with self._lock:
            gone = [
                position
                for position in self._positions()
                if not begin_position < position < end_position
            ]
            try:
                delete_states(self._disk, self._directory, gone)
            except OSError as error:
                self._refuse_unless_full(error)
        try:
            if gone:
                self._disk.sync_directory(self._path)
        except OSError as error:
            self._refuse_unless_full(error)

    def _refuse_unless_full(self, error: OSError) -> None:
        """What is left counts for no other log."""
        if not is_lack_of_space(error):
            raise StoreFailure(refusal(self._path, "made shorter", error)) from error

    def _positions(self) -> list[int]:
        try:
            return saved_positions(self._disk, self._directory)
        except OSError as error:
            raise StoreFailure(refusal(self._path, "read", error)) from error

    def _loaded(self, position: int) -> LogStart | None:
        try:
            return load_state(self._disk, self._directory, position)
        except OSError as error:
            raise StoreFailure(refusal(self._path, "read", error)) from error

    def _border(self, position: int, index: int) -> LogPoint | None:
        """As this log has it, durable; None if no segment begins there behind that entry."""
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
