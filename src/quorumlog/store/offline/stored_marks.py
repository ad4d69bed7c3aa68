"""The time marks of a directory that is only looked at."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind
from quorumlog.errors import DirectoryDamaged, IndexOutOfRange, StoreFailure
from quorumlog.log_state.log_state import LogState, Reset, Resets, decode_state, said_ms, with_reset
from quorumlog.store.begin.marked_log import MarkedLog, mark_at_index, mark_at_time
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.files.start_file import load_start
from quorumlog.store.files.state_files import STATES_NAME, load_state, saved_positions
from quorumlog.store.ledger_store import LogPoint
from quorumlog.store.log.segment_view import UNIT_CHUNK
from quorumlog.store.offline.directory_reader import DirectoryReader


class StoredMarks(MarkedLog):
    def __init__(self, disk: Disk, reader: DirectoryReader) -> None:
        self._disk = disk
        self._reader = reader
        self._clock_resets: Resets | None = None

    @property
    def clock_resets(self) -> Resets:
        if self._clock_resets is None:
            self._clock_resets = self._read_resets()
        return self._clock_resets

    def _read_resets(self) -> Resets:
        """Those that the newest state knows, and behind it those that the index names."""
        resets: Resets = ()
        first_index = self.begin_index + 1
        for index, record in self.states():
            state = decode_state(record)
            if isinstance(state, LogState) and index <= self._reader.readable_index:
                resets, first_index = state.clock_resets, index + 1
                break
        for batch in self.control_batches(first_index, self._reader.readable_index + 1):
            time_ms = said_ms(batch.first_header.magic, batch.body(0))
            if time_ms is not None and batch.first_header.magic == EntryKind.CLOCK:
                resets = with_reset(resets, Reset(batch.first_index, time_ms))
        return resets

    def time_ms_at(self, index: int) -> int:
        """When this entry counts as appended; -1: no mark stands at or in front of it. Raises
        StoreFailure."""
        mark = mark_at_index(self, index)
        return -1 if mark is None else mark.time_ms

    def index_at(self, time_ms: int, stop_index: int) -> int:
        """That of the last mark in front of `stop_index` that says this time or an earlier one, or the
        first index. Raises StoreFailure."""
        mark = mark_at_time(self, time_ms, stop_index)
        return max(self.begin_index + 1, -1 if mark is None else mark.index)

    @property
    def begin_index(self) -> int:
        return max(self._reader.ledger_begin_index, 0) - 1

    def states(self) -> Iterator[tuple[int, bytes]]:
        path = self._reader.path
        if self._reader.is_java:
            return
        try:
            for position in reversed(saved_positions(self._disk, path)):
                state = load_state(self._disk, path, position)
                if state is not None and self._holds(state.point):
                    yield state.point.index, state.record
            start = load_start(self._disk, path)
        except OSError as error:
            raise StoreFailure(refusal(f"{path}/{STATES_NAME}", "read", error)) from error
        if start is not None and start.point == self._reader.begin:
            yield start.point.index, start.record

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        """By the kinds that the index names; where it does not know the entries, by the entries. What is
        damaged is left out: the time that it may have told is not known."""
        while first_index < stop_index:
            chunk_stop = min(first_index + UNIT_CHUNK, stop_index)
            units = self._reader.index_units(first_index, chunk_stop)
            if bool((units["index"] == np.arange(first_index, chunk_stop)).all()):
                for at in np.flatnonzero(units["magic"] > EntryKind.NOOP).tolist():
                    yield from self._controls_of(first_index + at, first_index + at + 1)
            else:
                yield from self._controls_of(first_index, chunk_stop)
            first_index = chunk_stop

    def _controls_of(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        for piece in self._reader.pieces(first_index, stop_index):
            if isinstance(piece, EntryBatch):
                for at in piece.log_state_positions():
                    yield piece.slice(at, at + 1)

    def _holds(self, point: LogPoint) -> bool:
        try:
            header = self._reader.header_at(point.index)
        except (IndexOutOfRange, DirectoryDamaged):
            return False
        return (header.term, header.chain_crc) == (point.term, point.chain)
