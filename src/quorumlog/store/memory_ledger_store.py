"""MemoryLedgerStore: the log in this process's memory, for members that keep nothing and for tests.

Positions are as if it had segments of `config.segment_bytes`, so that a group may hold members of
both kinds. "Durable" means here that a flush was asked for and reported.
"""

from __future__ import annotations

import numpy as np

from quorumlog.batch import EntryBatch, Int64Array, term_runs_of
from quorumlog.config import StoreConfig
from quorumlog.entry import EntryId
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import IndexOutOfRange, ProtocolViolation
from quorumlog.store.ledger_store import (
    LOG_ORIGIN,
    Examination,
    LedgerStore,
    LogPoint,
    LogRange,
    QuarantinedRange,
    SetAsideCount,
    SyncTask,
)
from quorumlog.store.placement import Placement, check_continues, place, range_length
from quorumlog.store.segment_scan import INDEX_DTYPE, blank_record, index_units_of


class MemoryFlush:
    """A `SyncTask` with nothing to do; what it reports may have been truncated meanwhile."""

    def __init__(self, end: LogPoint) -> None:
        self.end = end
        self.cut = end
        self.done = False

    def run(self) -> None:
        self.done = True


class MemoryLedgerStore(LedgerStore):
    """Segments as growing byte arrays, index units and chains as growing arrays."""

    def __init__(self, config: StoreConfig, begin: LogPoint = LOG_ORIGIN) -> None:
        self._config = config
        self._begin = begin
        self._end = begin
        self._durable = begin
        self._segments: dict[int, bytearray] = {}
        self._units = np.zeros(1024, INDEX_DTYPE)
        self._chains = np.zeros(1024, np.uint32)
        self._plan: Placement | None = None
        self._flush: MemoryFlush | None = None

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
        count = self._slot(self._end.index + 1)
        return term_runs_of(self._units[:count]) if count else ()

    def plan(self, sizes: Int64Array, *, control: bool = False) -> Int64Array:
        config = self._config
        self._plan = place(sizes, self._end.position, config.segment_bytes, config.entry_limit_bytes)
        return self._plan.positions

    def append(self, batch: EntryBatch) -> None:
        if batch.count == 0:
            return
        placement = self._plan
        assert placement is not None, "append without a plan"
        self._plan = None
        new_end = check_continues(batch, self._end, placement)
        for number, (start, stop, position) in enumerate(placement.pieces):
            piece = batch.slice(start, stop)
            segment = self._segment(position)
            offset = position - self._base_of(position)
            assert len(segment) == offset, (len(segment), offset)
            segment += piece.buffer
            if number + 1 < len(placement.pieces):
                rest_bytes = placement.pieces[number + 1][2] - position - piece.total_bytes
                segment += blank_record(rest_bytes)
        headers = batch.headers()
        first, stop = self._slot(self._end.index + 1), self._slot(new_end.index + 1)
        while stop > len(self._units):
            self._units = np.concatenate([self._units, np.zeros_like(self._units)])
            self._chains = np.concatenate([self._chains, np.zeros_like(self._chains)])
        self._units[first:stop] = index_units_of(headers, placement.positions)
        self._chains[first:stop] = headers["chain_crc"]
        self._end = new_end

    def truncate_from(self, index: int, end: LogPoint | None = None) -> None:
        assert self._begin.index < index <= self._end.index + 1, (index, self._begin, self._end)
        if index == self._end.index + 1:
            return
        last = index - 1
        cut = self._begin
        if last != self._begin.index:
            unit = self._units[self._slot(last)]
            position = int(unit["position"]) + int(unit["size"])
            cut = LogPoint(last, int(unit["term"]), self.chain_at(last), position)
        self._plan = None
        self._end = cut
        self._durable = min(self._durable, cut)
        if self._flush is not None:
            self._flush.cut = min(self._flush.cut, cut)
        base = self._base_of(cut.position)
        for later in [key for key in self._segments if key > base]:
            del self._segments[later]
        segment = self._segment(cut.position)
        # Replaced, not shortened: a reader in another thread may hold the old one.
        self._segments[base] = segment[: cut.position - base]

    def begin_sync(self) -> SyncTask | None:
        assert self._flush is None, "a flush is still under way"
        if self._durable == self._end:
            return None
        self._flush = MemoryFlush(self._end)
        return self._flush

    def finish_sync(self, task: SyncTask) -> None:
        flush = self._flush
        assert flush is not None, task
        assert task is flush, (task, flush)
        assert flush.done, "run() has not returned"
        self._flush = None
        self._durable = max(self._durable, flush.cut)

    def space_ahead(self) -> None:
        return None

    def outgrown_cache(self) -> None:
        return None

    def id_at(self, index: int) -> EntryId:
        if index == self._begin.index:
            return self._begin.entry_id
        self._check_held(index)
        return EntryId(index, int(self._units[self._slot(index)]["term"]))

    def chain_at(self, index: int) -> int:
        if index == self._begin.index:
            return self._begin.chain
        self._check_held(index)
        return int(self._chains[self._slot(index)])

    def point_in_memory(self, index: int) -> LogPoint | None:
        return self.point_on_disk(index)

    def point_on_disk(self, index: int) -> LogPoint:
        if index in (self._begin.index, self._end.index):
            return self._end if index == self._end.index else self._begin
        self._check_held(index)
        unit = self._units[self._slot(index)]
        end_position = int(unit["position"]) + int(unit["size"])
        return LogPoint(index, int(unit["term"]), int(self._chains[self._slot(index)]), end_position)

    @property
    def truncations(self) -> int:
        return 0  # nobody has to know

    def remember(self, point: LogPoint, truncations: int) -> None:
        """Everything is in memory."""

    def read_from(
        self, first_index: int, stop_index: int, limit_bytes: int, *, once: bool = False
    ) -> tuple[LogRange, EntryBatch]:
        log_range = self.range_of(first_index, stop_index, limit_bytes)
        return log_range, self.read(log_range)

    def range_of(self, first_index: int, stop_index: int, limit_bytes: int) -> LogRange:
        self._check_held(first_index)
        most = limit_bytes // HEADER_BYTES + 1  # no more entries fit, however small they are
        stop_index = min(stop_index, self._end.index + 1, first_index + most)
        assert first_index < stop_index, (first_index, stop_index)
        units = self._units[self._slot(first_index) : self._slot(stop_index)]
        count, _ = range_length(units, self._config.segment_bytes, limit_bytes)
        units = units[:count]
        sizes = units["size"].astype(np.int64)
        position = int(units["position"][0])
        previous = self.id_at(first_index - 1)
        return LogRange(
            first_index,
            sizes,
            self._base_of(position),
            position,
            int(sizes.sum()),
            LogPoint(previous.index, previous.term, self.chain_at(first_index - 1), position),
            term_runs_of(units),
        )

    def read(self, log_range: LogRange) -> EntryBatch:
        segment = self._segments.get(log_range.segment_position, bytearray())
        offset = log_range.position - log_range.segment_position
        data = segment[offset : offset + log_range.size_bytes]
        if log_range.stop_index - 1 > self._end.index or len(data) < log_range.size_bytes:
            raise self._cut_meanwhile(log_range)
        batch = EntryBatch(data, log_range.sizes)
        try:
            batch.check_encoding()
            batch.check_sequence(log_range.first_index, log_range.previous.chain)
        except ProtocolViolation as error:
            raise self._cut_meanwhile(log_range) from error  # other entries are there now
        if batch.term_runs() != log_range.term_runs:
            raise self._cut_meanwhile(log_range)
        return batch

    def _cut_meanwhile(self, log_range: LogRange) -> IndexOutOfRange:
        return IndexOutOfRange(
            f"entries {log_range.first_index} .. {log_range.stop_index - 1} were truncated meanwhile",
            ledger_begin_index=self._begin.index + 1,
        )

    # ---------------------------------------------------------------- memory is not damaged

    @property
    def quarantined(self) -> tuple[QuarantinedRange, ...]:
        return ()

    def examine(self, first_index: int, stop_index: int) -> Examination:
        return Examination((), (), (), stop_index, 0, 0)

    def settle(self, examination: Examination) -> tuple[QuarantinedRange, ...] | None:
        return ()

    def save_quarantine(self) -> bool:
        return True  # there is nothing to save

    @property
    def quarantine_problem(self) -> str:
        return ""

    @property
    def set_aside(self) -> SetAsideCount:
        return SetAsideCount(0, 0)

    def look_at_set_aside(self) -> None:
        """There is nothing."""

    def check_piece(self, quarantined: QuarantinedRange, batch: EntryBatch) -> LogPoint:
        raise AssertionError(quarantined)

    def write_piece(self, quarantined: QuarantinedRange, before: LogPoint, batch: EntryBatch) -> None:
        raise AssertionError(quarantined)

    def configure(self, config: StoreConfig) -> None:
        self._config = config

    def close(self) -> None:
        """Nothing to release; what was held stays readable."""

    # ---------------------------------------------------------------- inside

    def _slot(self, index: int) -> int:
        return index - self._begin.index - 1

    def _base_of(self, position: int) -> int:
        return position // self._config.segment_bytes * self._config.segment_bytes

    def _segment(self, position: int) -> bytearray:
        return self._segments.setdefault(self._base_of(position), bytearray())

    def _check_held(self, index: int) -> None:
        if not self._begin.index < index <= self._end.index:
            raise IndexOutOfRange(
                f"entry {index} is not held: the log is {self._begin.index + 1} .. {self._end.index}",
                ledger_begin_index=self._begin.index + 1,
            )
