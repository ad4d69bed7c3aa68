"""The survey of a log of ours: where it ends, what of it is damaged, what lies behind its end.

    below the durable point    every header must be there and link to the next; what is not is a damaged
                               range, and the walk goes round it (damage_search.py)
    above it                   whole entries with good digests that continue the log are kept; the first
                               record that does not, and all behind it, is a torn tail

A start applies what is found (recovery.py), the tools print it (directory_reader.py); nothing is changed
here. Entries whose index units were synced are not looked at: the time does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from isal.isal_zlib import crc32

from quorumlog.entry_header import HEADER_BYTES, unpack_header
from quorumlog.errors import DirectoryDamaged
from quorumlog.store.ledger_store import DamagedRange, LogPoint
from quorumlog.store.log.segment import PAGE_BYTES
from quorumlog.store.log.segment_list import SegmentList
from quorumlog.store.log.segment_scan import (
    BLANK_BYTES,
    INDEX_UNIT_BYTES,
    SegmentScan,
    blank_record,
)
from quorumlog.store.log.segment_view import IndexUnits, UnreadablePage, header_at, read_pages
from quorumlog.store.repair.damage_search import AnchorDamaged, DamageSearch, end_of
from quorumlog.store.repair.survey_files import FileSurvey

_ZERO_CHECK_BYTES = 256 << 10
_TAIL_GAP_BYTES = 64 << 20
"""As many bytes as a leader may have uncommitted: unsynced appends leave no longer gap of zeros."""

OnEntries = Callable[[SegmentScan, bytes], None]
"""Called with each run of good entries, in order, and with their bytes if they lie above the durable
point."""


class LogSurvey(NamedTuple):
    end: LogPoint
    ranges: tuple[DamagedRange, ...]
    """All damaged ranges, those that were known before too, in order."""
    found: tuple[DamagedRange, ...]
    contradiction: DirectoryDamaged | None
    """The links are good and do not lead to the durable point: a start ends with this."""
    bad_blanks: tuple[tuple[int, int], ...]
    """(position, bytes to the end of the segment) of blank records that have to be there and are not."""
    tail_blanks: tuple[tuple[int, int], ...]
    """The same of those above the durable point, which are good and may be page cache only."""
    tail: str
    """Why the walk above the durable point ended, "" if at zeros."""
    cut_pieces: tuple[tuple[int, int], ...]
    """(first, stop) positions of bytes behind the end that are not zero, one a segment."""
    cut_entries: int
    """Whole entries among them."""
    unreadable: tuple[UnreadablePage, ...]
    """Pages of the data behind the end that the disk cannot read."""
    unreadable_units: tuple[UnreadablePage, ...]
    """The same of the index."""
    lines: tuple[str, ...]

    @property
    def cut_bytes(self) -> int:
        return sum(stop - first for first, stop in self.cut_pieces)


def survey_log(
    data: SegmentList,
    index: SegmentList,
    files: FileSurvey,
    known_ranges: Sequence[DamagedRange] | None,
    on_entries: OnEntries,
    *,
    must_be_bounded: bool,
    surveyed_index: int = -1,
) -> LogSurvey:
    """`known_ranges`: of the file `damaged`, None if it is unreadable: then all of the log is looked at.
    `surveyed_index`: up to here nobody needs to know again what is damaged, nor, if the log ends there,
    what lies behind. Raises DirectoryDamaged if `must_be_bounded` and damage cannot be."""
    return _Survey(data, index, files, known_ranges, on_entries).run(must_be_bounded, surveyed_index)


class _Survey:
    """The methods stand in the order in which `run` calls them."""

    def __init__(
        self,
        data: SegmentList,
        index: SegmentList,
        files: FileSurvey,
        known_ranges: Sequence[DamagedRange] | None,
        on_entries: OnEntries,
    ) -> None:
        assert files.begin.index <= files.known.point.index, (files.begin, files.known)
        self._data = data
        self._index = index
        self._units = IndexUnits(index)
        self._files = files
        self._durable = files.known.point
        self._begin = files.begin
        self._known = tuple(known_ranges or ())
        self._is_list_lost = known_ranges is None
        self._on_entries = on_entries
        self._lines: list[str] = []
        self._tail_blanks: list[tuple[int, int]] = []
        self._contradiction: DirectoryDamaged | None = None

    def run(self, must_be_bounded: bool, surveyed_index: int) -> LogSurvey:
        is_all = self._is_list_lost or not self._begins_as_told()
        first_index = self._begin.index if is_all else self._first_index_to_walk_from()
        if not is_all:
            first_index = max(first_index, min(surveyed_index, self._durable.index))
        search = self._walk_durable(first_index, must_be_bounded)
        end, tail = self._walk_tail(search)
        is_known = end.index <= surveyed_index
        pieces, unreadable = ((), ()) if is_known else self._look_behind(end)
        units_position = (end.index + 1) * INDEX_UNIT_BYTES
        return LogSurvey(
            end,
            tuple(sorted([*self._known, *search.ranges], key=lambda each: each.first_index)),
            tuple(search.ranges),
            self._contradiction,
            tuple(search.bad_blanks),
            tuple(self._tail_blanks),
            tail,
            pieces,
            sum(self._count_entries(*piece) for piece in pieces),
            unreadable,
            () if is_known else self._look_behind_units(units_position),
            tuple(self._lines),
        )

    # ---------------------------------------------------------------- below the durable point

    def _begins_as_told(self) -> bool:
        """Does the first entry continue the one before it, of which nothing but the file `start`
        tells?"""
        begin = self._begin
        if begin.index in (-1, self._durable.index) or any(
            each.holds(begin.index + 1) for each in self._known
        ):
            return True
        header = header_at(self._data, begin.position)
        return header is not None and (header.index, header.chain_before) == (
            begin.index + 1,
            begin.chain,
        )

    def _first_index_to_walk_from(self) -> int:
        """The last entry whose index unit was synced, or the last one in front of what no file holds;
        that before the log's begin if the index cannot say. Units are in order up to there and newer or
        zeros behind, so that "is unit i there and does its entry end below that position" changes
        once."""
        stop_position = min(self._files.known.index_synced_position, self._files.lost_from)
        low, high = self._begin.index + 1, self._files.trusted_stop_index
        while low < high:
            middle = (low + high) // 2
            if self._units.unit_at(self._data, middle, stop_position) is not None:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _point_at(self, index: int) -> LogPoint | None:
        """None if index and data do not agree about an entry, or the page in which it ends cannot be
        read."""
        if index <= self._begin.index:
            return self._begin
        inside = next((each for each in self._known if each.holds(index)), None)
        if inside is not None:
            before = inside.before
            is_begin = before.index <= self._begin.index
            return before if is_begin or not read_pages(self._data, 1, before.position - 1)[1] else None
        point = self._units.point_at(self._data, index, self._durable.position)
        return point if point and not read_pages(self._data, 1, point.position - 1)[1] else None

    def _walk_durable(self, first_index: int, must_be_bounded: bool) -> DamageSearch:
        durable = self._durable
        is_lost = self._is_list_lost or self._files.lost_from < durable.position
        index, back = first_index, 1
        while True:
            search = DamageSearch(
                self._data,
                self._index,
                self._begin,
                self._known,
                lambda scan: self._on_entries(scan, b""),
                must_know_terms=must_be_bounded,
            )
            point = self._point_at(index)
            if point is None:
                self._lines.append(f"the index unit of entry {index} disagrees with the data")
            else:
                try:
                    search.walk(point, durable, durable.index, check_bodies=is_lost)
                    break
                except AnchorDamaged as problem:
                    if point == self._begin:
                        self._contradiction = self._contradicted(str(problem))
                        if must_be_bounded:
                            raise self._contradiction from problem
                        break
            index, back = max(first_index - back, self._begin.index), back * 2
        self._lines += [f"{found}; it waits for another member's copy" for found in search.ranges]
        return search

    def _contradicted(self, problem: str) -> DirectoryDamaged:
        durable = self._durable
        path = self._data.path_of(max(durable.position - 1, self._begin.position))
        directory = self._data.directory.rpartition("/")[0]
        return DirectoryDamaged(
            f"{path}: {problem} (position {durable.position}, entry {durable.index}), at or below the"
            f" durable point (entry {durable.index}, position {durable.position}); run: quorumlog verify"
            f" {directory}",
            path=path,
            position=durable.position,
            index=durable.index,
        )

    # ---------------------------------------------------------------- above the durable point

    def _walk_tail(self, search: DamageSearch) -> tuple[LogPoint, str]:
        """Whole entries that continue the log; returns the last and why the walk stopped."""
        point = self._durable
        at = point.position
        bases = frozenset(self._data.bases)
        while self._data.base_of(at) in bases:
            scan, data = search.scan(at, point, check_bodies=True, stop_position=None)
            if len(scan.sizes):
                self._on_entries(scan, data[: scan.end_position - at])
                point = end_of(scan)
            at = scan.end_position
            if scan.stop == "blank":
                # The blank counts only once an entry behind it does.
                next_position = self._data.base_of(at) + self._data.segment_bytes
                if next_position not in bases:
                    return point, ""
                scan, _ = search.scan(next_position, point, check_bodies=True, stop_position=None)
                if not len(scan.sizes):
                    return point, scan.problem
                self._tail_blanks.append((at, next_position - at))
                at = next_position
            elif scan.stop != "full":
                return point, scan.problem
        return point, ""

    # ---------------------------------------------------------------- behind the end

    def _look_behind(
        self, end: LogPoint
    ) -> tuple[tuple[tuple[int, int], ...], tuple[UnreadablePage, ...]]:
        pieces: list[tuple[int, int]] = []
        unreadable: list[UnreadablePage] = []
        for base in self._data.bases:
            first, segment_end = max(base, end.position), base + self._data.segment_bytes
            if first >= segment_end:
                continue
            stop = self._last_byte(self._data, first, segment_end, unreadable)
            if stop - first <= BLANK_BYTES:
                blank = blank_record(segment_end - first)
                if read_pages(self._data, stop - first, first)[0] == blank[: stop - first]:
                    continue  # nothing, or the blank of a segment that nothing follows
            pieces.append((first, stop))
        return tuple(pieces), tuple(unreadable)

    def _look_behind_units(self, position: int) -> tuple[UnreadablePage, ...]:
        unreadable: list[UnreadablePage] = []
        for base in self._index.bases:
            first, segment_end = max(base, position), base + self._index.segment_bytes
            if first < segment_end:
                self._last_byte(self._index, first, segment_end, unreadable)
        return tuple(unreadable)

    def _last_byte(
        self, segments: SegmentList, first: int, segment_end: int, unreadable: list[UnreadablePage]
    ) -> int:
        """Just behind the last byte from `first` on that is not zero; `first` if all are.

        Holes are not read: a hundred empty segments would take seconds. Given up behind a long gap,
        since this decides only what is kept aside.
        """
        zeros = bytes(_ZERO_CHECK_BYTES)
        last = start = first
        while True:
            start = segments.next_data(start) if start < segment_end else segment_end
            if start >= segment_end or start - last > _TAIL_GAP_BYTES:
                return last
            size_bytes = min(segment_end - start, _ZERO_CHECK_BYTES)
            data, refused = read_pages(segments, size_bytes, start)
            # A page in which the log ends is one of the entries that end in it.
            base = segments.base_of(start)
            unreadable += [each for each in refused if not (each.position - base) % PAGE_BYTES]
            if data != zeros[: len(data)]:
                last = start + len(data.rstrip(b"\0"))
            start += size_bytes

    def _count_entries(self, position: int, stop_position: int) -> int:
        """Whole entries, hopping over ones whose header is good and whose body is not."""
        whole = 0
        while position + HEADER_BYTES <= stop_position:
            header = unpack_header(read_pages(self._data, HEADER_BYTES, position)[0])
            stop = position + header.size
            good = header.pos == position and header.size == header.body_len + HEADER_BYTES
            if (
                not good
                or header.body_len < 0
                or stop > self._data.base_of(position) + (self._data.segment_bytes)
            ):
                return whole
            body, _ = read_pages(self._data, header.body_len, position + HEADER_BYTES)
            whole += crc32(body) == header.body_crc
            position = stop
        return whole
