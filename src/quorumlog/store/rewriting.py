"""Rewriting: finding the damaged parts of a log and overwriting them with another member's copy, piece
by piece (`LedgerStore`: examine, settle, check_piece, write_piece).
"""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.errors import DirectoryDamaged, DiskFull, IndexOutOfRange, ProtocolViolation, StoreFailure
from quorumlog.store.disk import Disk, is_lack_of_space, refusal
from quorumlog.store.entry_index import EntryIndex, LogEnds
from quorumlog.store.log_points import DamagedRange, Examination, LogPoint
from quorumlog.store.log_reader import PageCache
from quorumlog.store.placement import Placement, place
from quorumlog.store.recovery import SetAside
from quorumlog.store.recovery_scan import AnchorDamaged, DamageSearch
from quorumlog.store.segment import PAGE_BYTES, Segment
from quorumlog.store.segment_view import IndexUnits, read_pages
from quorumlog.store.segments import (
    BLANK_BYTES,
    INDEX_UNIT_BYTES,
    SegmentList,
    SegmentScan,
    blank_record,
    index_units_of,
    segment_name,
)
from quorumlog.store.state_files import DamagedRanges

_WINDOW_BYTES = 256 << 10
"""Looked at in one go, while the interpreter is kept from clients."""


class Rewriting:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: StoreConfig,
        data: SegmentList,
        index: EntryIndex,
        damaged: DamagedRanges,
        page_cache: PageCache,
    ) -> None:
        self._config = config
        self._data = data
        self._index = index
        self._damaged = damaged
        self._page_cache = page_cache
        self.set_aside = SetAside(disk, directory, config)
        self.unsettled: Examination | None = None
        """Rewrites that the newest `settle` had no space for."""
        self._aside = ("", 0)
        """Where the damaged bytes go, "" once there was no space, and the position of the first."""
        self._aside_stop = -1
        """Up to here they were copied; a piece that continues there goes into the same file."""

    # ---------------------------------------------------------------- looking

    def examine(
        self,
        first_index: int,
        stop_index: int,
        begin: LogPoint,
        durable: LogPoint,
        truncations: int,
    ) -> Examination:
        """Walk from a good entry before `first_index` to one after the range. Any thread. Raises
        DirectoryDamaged if the terms of a damaged range cannot be known."""
        stop_index = min(stop_index, durable.index + 1)
        back = 1
        while True:
            index = max(first_index - back, begin.index)
            back *= 2
            anchor = begin if index == begin.index else self._point_at(index, durable)
            if anchor is None:
                continue
            units: list[tuple[int, bytes]] = []
            search = DamageSearch(
                self._data,
                self._index.files,
                begin,
                self._damaged.ranges,
                partial(self._note_wrong_units, units),
                _WINDOW_BYTES,
            )
            try:
                reached = search.walk(anchor, durable, stop_index - 1, check_bodies=True)
            except AnchorDamaged as problem:
                if anchor != begin:
                    continue
                path = self._data.directory
                raise DirectoryDamaged(
                    f"{path}: {problem}", path=path, position=durable.position
                ) from problem
            size_bytes = reached.position - anchor.position
            if not (search.ranges or units or search.bad_blanks):  # else `settle` writes there
                self._page_cache.read_once(anchor.position, size_bytes)
            ranges, blanks = tuple(search.ranges), tuple(search.bad_blanks)
            stop_index = reached.index + 1
            return Examination(ranges, tuple(units), blanks, stop_index, size_bytes, truncations)

    def _point_at(self, index: int, durable: LogPoint) -> LogPoint | None:
        """None if unit and header of an entry do not agree."""
        known = self._damaged.at(index)
        if known is not None:
            return known.before
        return IndexUnits(self._index.files).point_at(self._data, index, durable.position)

    def _note_wrong_units(self, wrong: list[tuple[int, bytes]], scan: SegmentScan) -> None:
        units = index_units_of(scan.headers, scan.positions)
        first_index = int(units["index"][0])
        held = IndexUnits(self._index.files).read(first_index, first_index + len(units))
        if bool((held != units).any()):
            wrong.append((first_index * INDEX_UNIT_BYTES, units.tobytes()))

    # ---------------------------------------------------------------- writing again

    def settle(self, examination: Examination) -> tuple[tuple[DamagedRange, ...], list[Segment]]:
        """The ranges that are new or larger, and the files in which units and blank records were
        written again. Those that have no space are left in `unsettled`."""
        written, units, blanks = [], [], []
        for position, data in examination.units:
            try:
                stop = self._index.files.stop_of_files(position + len(data))
                self._take_space(self._index.files, position, stop)
            except DiskFull:
                units.append((position, data))
                continue
            self._index.files.make_writable(position, len(data))
            written += self._index.files.write(data, position)
        for position, rest_bytes in examination.blanks:
            file = self._data.file_at(position)
            assert file is not None, position
            try:
                self._take_space(self._data, position, position + BLANK_BYTES)
            except DiskFull:
                blanks.append((position, rest_bytes))
                continue
            file.make_writable(position, position, file.end_position)
            file.write([blank_record(rest_bytes)], position)
            written.append(file)
        self.unsettled = None
        if units or blanks:
            self.unsettled = examination._replace(ranges=(), units=tuple(units), blanks=tuple(blanks))
        return self._damaged.add(examination.ranges), written

    def look_around(self, damaged: DamagedRange, ends: LogEnds) -> None:
        """Entries beside a run of ranges whose last page there cannot be read are damaged as well: to
        write into that page is to write all of it."""
        with self._damaged.lock:
            before, last = self._damaged.run_around(damaged)
            if self._is_page_lost(before.position) or self._is_page_lost(last.position):
                with suppress(DirectoryDamaged):  # then that page is left alone
                    found = self.examine(before.index, last.index + 2, ends.begin, ends.durable, 0)
                    self._damaged.add(found.ranges)

    def _is_page_lost(self, position: int) -> bool:
        """Can the page not be read that begins before a position and goes on after it?"""
        file, offset = self._data.file_at(position), position % PAGE_BYTES
        try:
            return offset > 0 and file is not None and not file.pread(1, position)
        except OSError:
            return True

    def check(self, damaged: DamagedRange, batch: EntryBatch) -> tuple[LogPoint, LogPoint]:
        """The points before the entries and after them."""
        last = damaged.last
        batch.check_encoding()
        first = batch.first_header
        before = damaged.before
        if before.index + 1 < first.index <= last.index and before.position < first.pos:
            term = damaged.term_at(first.index - 1)
            before = LogPoint(first.index - 1, term, first.chain_before, first.pos)
        batch.check_sequence(before.index + 1, before.chain)
        batch.check_bodies()
        if batch.last_index > last.index:
            raise ProtocolViolation(f"entries up to {batch.last_index} for a range up to {last.index}")
        headers = batch.headers()
        terms = np.array([first for first, _ in damaged.term_runs])
        expected = np.array([term for _, term in damaged.term_runs])[
            np.searchsorted(terms, headers["index"].astype(np.int64), side="right") - 1
        ]
        if not bool((headers["term"] == expected).all()):
            raise ProtocolViolation(f"entries from {batch.first_index} on are of other terms than here")
        if int(batch.sizes.max()) > self._config.entry_limit_bytes:
            raise ProtocolViolation("an entry longer than any can be")
        placement = self._place(before, batch)
        if not batch.lies_at(placement.positions) or placement.end_position > last.position:
            raise ProtocolViolation(f"entries from {batch.first_index} on lie elsewhere here")
        point = _end_of(batch, placement)
        if point.index == last.index and (
            point.chain != last.chain
            or last.position not in (point.position, self._data.stop_of(point.position))
        ):
            raise ProtocolViolation(
                f"the chain of entries {damaged.first_index} .. {last.index} ends with"
                f" {point.chain:#x} at {point.position}; here the next entry continues {last.chain:#x}"
                f" at {last.position}"
            )
        return before, point

    def write(self, damaged: DamagedRange, before: LogPoint, batch: EntryBatch, end: LogPoint) -> None:
        """`end`: of the log. Raises DiskFull, and nothing is written."""
        with self._damaged.lock:
            if damaged not in self._damaged.ranges:
                raise IndexOutOfRange(f"{damaged}: is no longer damaged")
            placement = self._place(before, batch)
            is_last = batch.last_index == damaged.last.index
            stop_position = damaged.last.position if is_last else placement.end_position
            units_position = batch.first_index * INDEX_UNIT_BYTES
            units_stop = self._index.files.stop_of_files(units_position + batch.count * INDEX_UNIT_BYTES)
            self._take_space(self._data, before.position, stop_position)
            self._take_space(self._index.files, units_position, units_stop)
            self._keep_aside(before.position, stop_position)
            run_before, run_last = self._damaged.run_around(damaged)
            low, high = run_before.position, run_last.position
            if end.index <= run_last.index:
                high = self._data.stop_of(high)  # nothing lies after
            written: list[Segment] = []
            for number, (start, stop, position) in enumerate(placement.pieces):
                piece = batch.slice(start, stop)
                behind = position + piece.total_bytes
                file = self._data.file_at(position)
                assert file is not None, position
                for place in (position, min(behind, file.end_position - 1)):
                    file.make_writable(place, low, high)
                if piece.count:
                    file.write([piece.buffer], position)
                if number + 1 < len(placement.pieces) or (is_last and behind < stop_position):
                    file.write([blank_record(file.end_position - behind)], behind)
                    file.zero(behind + BLANK_BYTES, file.end_position)
                written.append(file)
            units = index_units_of(batch.headers(), placement.positions)
            self._index.files.make_writable(units_position, units.nbytes)
            written += self._index.files.write(units.tobytes(), units_position)
            for file in dict.fromkeys(written):
                file.sync()
            left = [damaged.up_to(before)] if damaged.holds(before.index) else []
            if not is_last:
                point = _end_of(batch, placement)
                left.append(damaged.behind(point, self._data.name_of(point.position)))
            self._damaged.replace(damaged, left)
            self._damaged.save()

    @staticmethod
    def _take_space(files: SegmentList, position: int, stop_position: int) -> None:
        """A segment that a start has made again may have none. Raises DiskFull."""
        while position < stop_position:
            file = files.file_at(position)
            assert file is not None, position
            stop = min(stop_position, file.end_position)
            if file.reserve_what_fits(position, stop) < stop:
                raise DiskFull(f"no space to write entries again at {position} in {file.path}")
            position = stop

    def _place(self, reached: LogPoint, batch: EntryBatch) -> Placement:
        return place(
            batch.sizes, reached.position, self._config.segment_bytes, self._config.entry_limit_bytes
        )

    # ---------------------------------------------------------------- keeping aside

    def _keep_aside(self, position: int, stop_position: int) -> None:
        """Copy the bytes that are about to be overwritten; without space, go on without."""
        is_new, self._aside_stop = self._aside_stop != position, stop_position
        path, first_position = ("", position) if is_new else self._aside
        try:
            if is_new:
                path = self.set_aside.new_name(f"damaged-{segment_name(position)}")
            data, _ = read_pages(self._data, stop_position - position, position)
            if path and data.strip(b"\0"):
                self.set_aside.write(path, [data], position - first_position)
        except OSError as error:
            if not (is_lack_of_space(error) or error.errno == errno.EROFS):
                raise StoreFailure(refusal(self.set_aside.path, "written", error)) from error
            path = ""
        self._aside = (path, first_position)


def _end_of(batch: EntryBatch, placement: Placement) -> LogPoint:
    last = batch.headers()[-1]
    return LogPoint(batch.last_index, int(last["term"]), int(last["chain_crc"]), placement.end_position)
