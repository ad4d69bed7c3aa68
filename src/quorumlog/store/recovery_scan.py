"""Scan of a directory's files, damage included."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from quorumlog.config import StoreConfig
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES, EntryHeader
from quorumlog.errors import DirectoryDamaged
from quorumlog.header_array import term_runs_of
from quorumlog.store.disk import Disk, is_folder
from quorumlog.store.durable_file import DURABLE_ORIGIN, DurablePoint, read_durable_point
from quorumlog.store.log_points import LOG_ORIGIN, DamagedRange, LogPoint, LogStart
from quorumlog.store.placement import place, problem_of_units
from quorumlog.store.segment import PAGE_BYTES
from quorumlog.store.segment_view import (
    WINDOW_BYTES,
    IndexUnits,
    SegmentFile,
    SegmentView,
    UnreadablePage,
    header_at,
    read_pages,
    scan_at,
)
from quorumlog.store.segments import (
    BLANK_BYTES,
    DATA_NAME,
    INDEX_NAME,
    INDEX_UNIT_BYTES,
    NAME_DIGITS,
    SegmentList,
    SegmentScan,
    blank_record,
    gather_headers,
    segment_name,
)
from quorumlog.store.state_files import (
    START_NAME,
    VERSION_WITH_START,
    MemberRecord,
    load_state,
    unusable_start,
)

# ----------------------------------------------------------------
# Which segment files a start would find in a directory of ours, and what it would make of each.
#
# Below the durable point a file that is missing or short is made again as zeros; above it such a file
# is what an unfinished creation or cut has left. The index can be made again from the data, so nothing
# about its files is damage. Nothing is changed here: `recovery.py` does that.


class Fate(Enum):
    """The treatment of a segment file at a start."""

    KEPT = auto()
    """Part of the log; made as long as it should be if it is shorter."""
    LONG = auto()
    """The same, and bytes after its end are cut off."""
    MADE_AGAIN = auto()
    """Missing, or too short for its entries: zeros replace the lost bytes."""
    ASIDE = auto()
    """No part of the log."""
    REMOVED = auto()
    """Without any bytes."""
    DROPPED = auto()
    """Below where the log begins, or of the log that this one took the place of: removed."""


_NO_PART = (Fate.ASIDE, Fate.REMOVED, Fate.DROPPED)


class SegmentFinding(NamedTuple):
    """A segment file, or the place of a missing one."""

    path: str
    position: int
    size_bytes: int
    """-1: there is no such file."""
    fate: Fate
    line: str
    """A start's report of it, "" if none."""

    @property
    def problem(self) -> str:
        """Damage in words; "" if there is none."""
        if self.size_bytes < 0:
            return "is missing"
        is_damaged = self.fate in (Fate.MADE_AGAIN, Fate.LONG)
        return f"is {self.size_bytes} bytes long" if is_damaged else ""


@dataclass(frozen=True)
class FileScan:
    config: StoreConfig
    known: DurablePoint
    """The durable point by which the files were judged; never below the begin."""
    begin: LogPoint
    data: tuple[SegmentFinding, ...]
    index: tuple[SegmentFinding, ...]
    strangers: tuple[tuple[str, str], ...]
    """(path, name to set it aside under) of files that are no segments."""
    lost_from: int
    """First byte below the durable point that no file holds any more; the point if all is held."""
    trusted_stop_index: int
    """From here on index units read as zeros, because their file is short."""

    @property
    def has_dropped(self) -> bool:
        return any(each.fate is Fate.DROPPED for each in (*self.data, *self.index))

    @property
    def data_files(self) -> list[SegmentFile]:
        return _kept(self.data)

    @property
    def index_files(self) -> list[SegmentFile]:
        return _kept(self.index)


def _kept(findings: tuple[SegmentFinding, ...]) -> list[SegmentFile]:
    return [
        SegmentFile("/".join(each.path.rsplit("/", 2)[1:]), each.position, each.size_bytes)
        for each in findings
        if each.size_bytes >= 0 and each.fate not in _NO_PART
    ]


def begin_path(begin: LogPoint) -> str:
    """Of the first data segment, relative to the directory."""
    return f"{DATA_NAME}/{segment_name(begin.position)}"


def lacks_start(disk: Disk, directory: str, record: MemberRecord) -> bool:
    """Has the log lost its first entries, without a record of which? A log that never held any has lost
    none: `record` notes a file `start` before there is space for it."""
    if record.version < VERSION_WITH_START or disk.exists(f"{directory}/{START_NAME}"):
        return False
    if disk.exists(f"{directory}/{begin_path(LOG_ORIGIN)}"):
        return False
    held = disk.list(f"{directory}/{DATA_NAME}")
    if _begins_below(disk, directory, held):
        return False
    return bool(held) or read_durable_point(disk, directory) != DURABLE_ORIGIN


def _begins_below(disk: Disk, directory: str, held: list[str]) -> bool:
    """The state before the first segment that is left goes when the log begins there: with it the
    log had entries below, which were not deleted but lost."""
    positions = [int(name) for name in held if len(name) == NAME_DIGITS and name.isdigit()]
    return bool(positions) and load_state(disk, directory, min(positions)) is not None


def scan_files(
    disk: Disk, directory: str, config: StoreConfig, known: DurablePoint, start: LogStart | None
) -> FileScan:
    """Raises OSError; DirectoryDamaged if `start` is not of this log."""
    strangers: list[tuple[str, str]] = []
    begin = LOG_ORIGIN if start is None else start.point
    if begin.position % config.segment_bytes:
        problem = f"no segment of {config.segment_bytes} bytes begins at {begin.position}"
        raise unusable_start(f"{directory}/{START_NAME}", problem)
    recorded = known
    if known.point.index <= begin.index or (start is not None and start.replaces):
        # The file was lost, or is of the log that was replaced: what lies above the begin is a tail.
        known = DurablePoint(begin, begin.position)
    # Below these positions nothing is part of the log.
    low = begin.position
    index_bytes = config.index_segment_bytes
    index_low = (begin.index + 1) * INDEX_UNIT_BYTES // index_bytes * index_bytes
    if start is not None and start.replaces:
        low = index_low = sys.maxsize
    data, lost_from = _scan_data(disk, directory, config, known.point.position, begin, low, strangers)
    index, trusted_stop_index = _scan_index(
        disk, directory, config, known.point, begin, index_low, strangers
    )
    found = (tuple(data), tuple(index), tuple(strangers))
    file_scan = FileScan(config, known, begin, *found, lost_from, trusted_stop_index)
    if start is not None and not start.replaces and file_scan.has_dropped:
        _check_own(disk, directory, start, recorded.point, file_scan)
    return file_scan


def _check_own(disk: Disk, directory: str, start: LogStart, durable: LogPoint, files: FileScan) -> None:
    """While segments below the start are left, the log itself tells whether it is of this directory.
    Raises DirectoryDamaged if it is not."""
    begin, config = start.point, files.config
    data_files, index_files = (
        [SegmentFile("", each.position, each.size_bytes) for each in found if each.size_bytes >= 0]
        for found in (files.data, files.index)
    )
    data = SegmentView(disk, f"{directory}/{DATA_NAME}", data_files, config.segment_bytes)
    index = SegmentView(disk, f"{directory}/{INDEX_NAME}", index_files, config.index_segment_bytes)
    held = _linked_entry(data, IndexUnits(index), begin)
    index.close()
    data.close()
    # A log has entries behind its start before the start is saved.
    reaches = durable.index >= begin.index or any(
        each.size_bytes >= 0 and each.position >= begin.position for each in files.data
    )
    problem = ""
    if held is not None and (held.term, held.chain_crc) != (begin.term, begin.chain):
        problem = f"holds another entry {begin.index}"
    elif not reaches:
        problem = f"ends before (entry {durable.index} is the last known to be on disk)"
    if problem:
        raise unusable_start(
            f"{directory}/{START_NAME}",
            f"it has the log begin after entry {begin.index}, and the log {problem}: it is the"
            " file of another directory",
        )


def _linked_entry(data: SegmentView, units: IndexUnits, begin: LogPoint) -> EntryHeader | None:
    """The entry before the begin, if index and data agree about it, and it continues the one before."""
    entry = units.point_at(data, begin.index, begin.position)
    before = units.point_at(data, begin.index - 1, begin.position) if begin.index else LOG_ORIGIN
    unit = units.unit_at(data, begin.index, begin.position)
    header = header_at(data, int(unit["position"][0])) if unit is not None else None
    if entry is None or before is None or header is None or header.chain_before != before.chain:
        return None
    return header


def _scan_data(
    disk: Disk,
    directory: str,
    config: StoreConfig,
    durable_position: int,
    begin: LogPoint,
    low: int,
    strangers: list[tuple[str, str]],
) -> tuple[list[SegmentFinding], int]:
    folder, segment_bytes = f"{directory}/{DATA_NAME}", config.segment_bytes
    found: list[SegmentFinding] = []
    end, lost_from = begin.position, durable_position

    def make_again_up_to(position: int) -> None:
        nonlocal end, lost_from
        while end < position:
            path = f"{folder}/{segment_name(end)}"
            line = f"{path} is missing: recreated, its entries are lost"
            found.append(SegmentFinding(path, end, -1, Fate.MADE_AGAIN, line))
            lost_from = min(lost_from, end)
            end += segment_bytes

    for base, path, length in _segments(disk, folder, segment_bytes, strangers):
        if base < low:
            found.append(SegmentFinding(path, base, length, Fate.DROPPED, ""))
            continue
        make_again_up_to(min(base, durable_position))
        fate, line = Fate.KEPT, ""
        if base != end:
            fate, line = Fate.ASIDE, f"{path} has no segment before it and is above the durable point"
        elif length > segment_bytes and base < durable_position:
            fate, line = Fate.LONG, f"{path} has {length} bytes: the surplus was cut off"
        elif length > segment_bytes:
            fate, line = Fate.ASIDE, f"{path} has {length} bytes and is above the durable point"
        elif base + length < min(end + segment_bytes, durable_position):
            fate = Fate.MADE_AGAIN
            line = f"{path} has {length} bytes: made whole again, its entries are lost"
            lost_from = min(lost_from, base + length)
        elif length == 0:
            fate, line = Fate.REMOVED, f"{path} has no bytes: an unfinished creation, removed"
        elif length < segment_bytes:
            # A start that was interrupted between the two steps of a cut. What is left of the file may
            # be whole entries: in `flush = async` they count after a process crash.
            line = f"{path} has {length} bytes: an unfinished cut, made whole again"
        found.append(SegmentFinding(path, base, length, fate, line))
        if fate not in _NO_PART:
            end += segment_bytes
    make_again_up_to(durable_position)
    return found, lost_from


def _scan_index(
    disk: Disk,
    directory: str,
    config: StoreConfig,
    durable: LogPoint,
    begin: LogPoint,
    low: int,
    strangers: list[tuple[str, str]],
) -> tuple[list[SegmentFinding], int]:
    folder, segment_bytes = f"{directory}/{INDEX_NAME}", config.index_segment_bytes
    found: list[SegmentFinding] = []
    end = (begin.index + 1) * INDEX_UNIT_BYTES // segment_bytes * segment_bytes
    durable_position = (durable.index + 1) * INDEX_UNIT_BYTES
    trusted_stop_index = durable.index + 1

    def make_again_up_to(position: int) -> None:
        nonlocal end, trusted_stop_index
        while end < min(position, durable_position):
            trusted_stop_index = min(trusted_stop_index, end // INDEX_UNIT_BYTES)
            path = f"{folder}/{segment_name(end)}"
            found.append(SegmentFinding(path, end, -1, Fate.MADE_AGAIN, ""))
            end += segment_bytes

    for base, path, length in _segments(disk, folder, segment_bytes, strangers):
        if base < low:
            found.append(SegmentFinding(path, base, length, Fate.DROPPED, ""))
            continue
        # What is left of the index says where entries lie, should the data not.
        make_again_up_to(base)
        fate, line = Fate.KEPT, ""
        if base != end:
            fate, line = Fate.ASIDE, f"{path} ({length} bytes) does not continue the index, set aside"
        elif length > segment_bytes:
            fate, line = Fate.LONG, f"{path} has {length} bytes: the surplus was cut off"
        elif length < segment_bytes:
            trusted_stop_index = min(trusted_stop_index, (base + length) // INDEX_UNIT_BYTES)
        found.append(SegmentFinding(path, base, length, fate, line))
        if fate is not Fate.ASIDE:
            end += segment_bytes
    make_again_up_to(durable_position)
    return found, trusted_stop_index


def _segments(
    disk: Disk, folder: str, segment_bytes: int, strangers: list[tuple[str, str]]
) -> list[tuple[int, str, int]]:
    """(position, path, length) of segments; any other name is a stranger, and so is a folder."""
    found = []
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        is_segment = len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
        if not is_segment or int(name) % segment_bytes or is_folder(disk, path):
            strangers.append((path, f"{folder.rpartition('/')[2]}-{name}"))
            continue
        try:
            found.append((int(name), path, disk.size_of(path)))
        except FileNotFoundError:
            continue  # a running member has just cut it off
    return found


# ---------------------------------------------------------------- The recovery scan of a log of ours
# Where it ends, what of it is damaged, what lies after its end.
#
#   below the durable point    every header must be there and link to the next; what is not is a damaged
#                              range, and the walk goes round it
#   above it                   whole entries with good digests that continue the log are kept; the first
#                              record that does not, and all after it, is a torn tail
#
# A start applies what is found (recovery.py), the tools print it (directory_reader.py); nothing is
# changed here. Entries whose index units were synced are not looked at: the time does not grow with the
# log.

_ZERO_CHECK_BYTES = 256 << 10
_TAIL_GAP_BYTES = 64 << 20
"""As many bytes as a leader may have uncommitted: unsynced appends leave no longer gap of zeros."""

OnEntries = Callable[[SegmentScan, bytes], None]
"""Called with each run of good entries, in order, and with their bytes if they lie above the durable
point."""


class LogScan(NamedTuple):
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
    """(first, stop) positions of non-zero bytes after the end, one a segment."""
    cut_entries: int
    """Whole entries among them."""
    unreadable: tuple[UnreadablePage, ...]
    """Pages of the data after the end that the disk cannot read."""
    unreadable_units: tuple[UnreadablePage, ...]
    """The same of the index."""
    lines: tuple[str, ...]

    @property
    def cut_bytes(self) -> int:
        return sum(stop - first for first, stop in self.cut_pieces)


def scan_log(
    data: SegmentList,
    index: SegmentList,
    files: FileScan,
    known_ranges: Sequence[DamagedRange] | None,
    on_entries: OnEntries,
    *,
    must_be_bounded: bool,
    scanned_index: int = -1,
) -> LogScan:
    """`known_ranges`: of the file `damaged`, None if it is unreadable: then the whole log is scanned.
    `scanned_index`: up to here damage is known already, and if the log ends there, all after it. Raises
    DirectoryDamaged if `must_be_bounded` and damage cannot be."""
    return _LogScanner(data, index, files, known_ranges, on_entries).run(must_be_bounded, scanned_index)


class _LogScanner:
    """The methods stand in the order in which `run` calls them."""

    def __init__(
        self,
        data: SegmentList,
        index: SegmentList,
        files: FileScan,
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

    def run(self, must_be_bounded: bool, scanned_index: int) -> LogScan:
        is_all = self._is_list_lost or not self._begins_as_recorded()
        first_index = self._begin.index if is_all else self._first_index_to_walk_from()
        if not is_all:
            first_index = max(first_index, min(scanned_index, self._durable.index))
        search = self._walk_durable(first_index, must_be_bounded)
        end, tail = self._walk_tail(search)
        is_known = -1 < end.index <= scanned_index
        pieces, unreadable = ((), ()) if is_known else self._look_behind(end)
        units_position = (end.index + 1) * INDEX_UNIT_BYTES
        return LogScan(
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

    def _begins_as_recorded(self) -> bool:
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
        """The last entry whose index unit was synced, or the last one before what no file holds;
        that before the log's begin if the index cannot say. Units are in order up to there and newer or
        zeros after, so that "is unit i there and does its entry end below that position" changes
        once."""
        stop_position = min(self._files.known.index_synced_position, self._files.lost_from)
        indices = range(self._begin.index + 1, self._files.trusted_stop_index)
        return self._begin.index + bisect_left(
            indices, True, key=lambda i: self._units.unit_at(self._data, i, stop_position) is None
        )

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
                # The blank counts only once an entry after it does.
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

    # ---------------------------------------------------------------- after the end

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
        """Just after the last byte from `first` on that is not zero; `first` if all are.

        Holes are not read: a hundred empty segments would take seconds. Given up after a long gap,
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
            header = header_at(self._data, position)
            if header is None or position + header.size > self._data.stop_of(position):
                return whole
            body, _ = read_pages(self._data, header.body_len, position + HEADER_BYTES)
            whole += crc32(body) == header.body_crc
            position += header.size
        return whole


# ---------------------------------------------------------------- DamageSearch
# A walk over entries that must be there, going round those that are not.
#
# It leads from a point that is good to one that is known. Where an entry does not continue the log, the
# next good one is looked for: where the index says, else wherever eight bytes are the position at which
# they lie. What is between is a damaged range: its place, its number of entries and the chain at both
# ends are known from its neighbours, its terms too unless a term ends inside it, which then the index
# must say.

_SEARCH_BYTES = 1 << 20


class AnchorDamaged(Exception):
    """The walk began at an entry that nothing proves to be good: begin at an earlier one."""


class DamageSearch:
    """One walk; `ranges` and `bad_blanks` are its findings."""

    def __init__(
        self,
        data: SegmentList,
        index: SegmentList,
        begin: LogPoint,
        known: Sequence[DamagedRange],
        on_entries: Callable[[SegmentScan], None],
        window_bytes: int = WINDOW_BYTES,
        *,
        must_know_terms: bool = True,
    ) -> None:
        """`begin`: of the log, which needs no proof. `known`: damaged ranges already, in order, which
        are stepped over. `window_bytes`: read at a time, where no entry is longer. `must_know_terms`
        False: a range with unknown terms has no `term_runs`."""
        self._data = data
        self._units = IndexUnits(index)
        self._begin = begin
        self._known = known
        self._anchor: LogPoint | None = None
        """Where the walk began, as long as nothing has been linked to it."""
        self._on_entries = on_entries
        self._window_bytes = window_bytes
        self._must_know_terms = must_know_terms
        self.ranges: list[DamagedRange] = []
        self.bad_blanks: list[tuple[int, int]] = []

    def walk(self, point: LogPoint, stop: LogPoint, until_index: int, *, check_bodies: bool) -> LogPoint:
        """From `point` to entry `until_index` at least, not after `stop`. Raises AnchorDamaged;
        DirectoryDamaged where the terms of a range cannot be known."""
        self._anchor = None if point == self._begin else point
        for known in self._known:
            if known.first_index > point.index and known.first_index <= until_index:
                self._walk_to(point, known.before, until_index, check_bodies)
            if known.last.index > point.index and known.first_index <= until_index:
                point = known.last
        return self._walk_to(point, stop, until_index, check_bodies)

    def _walk_to(
        self, point: LogPoint, stop: LogPoint, until_index: int, check_bodies: bool
    ) -> LogPoint:
        at = point.position
        while point.index < min(until_index, stop.index):
            scan, _ = self.scan(at, point, check_bodies=check_bodies, stop_position=stop.position)
            if len(scan.sizes):
                self._on_entries(scan)
                self._anchor = None
                point = end_of(scan)
            stuck = scan.stop == "full" and not len(scan.sizes)
            at = scan.end_position
            if scan.stop == "blank":
                at = self._data.base_of(at) + self._data.segment_bytes
            elif point.index < stop.index and (scan.stop != "full" or stuck or at >= stop.position):
                point = self._go_round(point, at, stop, scan.problem or "zeros in the place of an entry")
                at = point.position
        same_entry = (point.index, point.term, point.chain) == (stop.index, stop.term, stop.chain)
        if point.index >= stop.index and not same_entry:
            raise AnchorDamaged(f"the entries lead to {point}, not to {stop}")
        return point

    def scan(
        self, at: int, point: LogPoint, *, check_bodies: bool, stop_position: int | None
    ) -> tuple[SegmentScan, bytes]:
        """The entries of the next window, and its bytes. `stop_position` None: none has to be there."""
        scan, data = scan_at(
            self._data,
            at,
            expected_index=point.index + 1,
            previous_term=point.term,
            previous_chain=point.chain,
            check_bodies=check_bodies,
            stop_position=stop_position,
            window_bytes=self._window_bytes,
        )
        if scan.stop == "full" and scan.end_position == at and stop_position is None:
            scan = scan._replace(stop="bad", problem="an entry is longer than any can be")
        return scan, data

    # ---------------------------------------------------------------- round the damage

    def _go_round(self, point: LogPoint, at: int, stop: LogPoint, problem: str) -> LogPoint:
        """The damage begins at `at`, behind `point`; returns the point before the next good
        entry, or `stop`."""
        if point is self._anchor:
            raise AnchorDamaged(f"nothing is linked to {point}, so its chain is not proven")
        found = self._next_good(point, at, stop)
        if found is None:
            last, highest_term = stop, stop.term
        else:
            last = LogPoint(found.index - 1, point.term, found.chain_before, found.pos)
            # A term opens with a no-op, so what stands before one is of an older term.
            highest_term = found.term - (found.magic == EntryKind.NOOP)
        if last.index == point.index:
            # Only the blank record between two good entries is bad.
            self.bad_blanks.append((at, last.position - at))
            return LogPoint(point.index, point.term, point.chain, last.position)
        path = self._data.name_of(at)
        runs = self._term_runs(point, last, highest_term, exact=found is None)
        if runs is None and not self._must_know_terms:
            problem += "; a term ends in it, at an index unknown, so a start cannot skip it"
            runs = ()
        if runs is None:
            directory = self._data.directory.rpartition("/")[0]
            raise DirectoryDamaged(
                f"{self._data.path_of(at)}: {problem} (position {at}, entry {point.index + 1}), at or"
                f" below the durable point; a term ends between entry {point.index + 1} and entry"
                f" {last.index}, and the index does not show where, so the member could not vote; run:"
                f" quorumlog verify {directory}. In a group of several move the directory away: the"
                " member then starts as a new one and is fed the log by the others",
                path=self._data.path_of(at),
                position=at,
                index=point.index + 1,
            )
        if runs:
            last = LogPoint(last.index, runs[-1][1], last.chain, last.position)
        self.ranges.append(DamagedRange(point, last, runs, path, problem))
        return last

    def _next_good(self, point: LogPoint, at: int, stop: LogPoint) -> EntryHeader | None:
        """The first entry behind `at` that is whole and linked to the one after it.

        That link proves the chain of the first, whose other fields have to be proven otherwise: by where
        it lies, by its body, and its term by those of its neighbours, since a term changes at a no-op
        only.
        """
        found = self._first_whole(self._by_units(point, at, stop), point, at, stop)
        if found is not None:
            chunks = self._units.chunks(point.index + 2, found.index)
            if all(is_named.all() for _, _, is_named in chunks):
                return found
        # Entries before it whose units are gone as well are found by their own word.
        stop_position = stop.position if found is None else found.pos
        return self._first_whole(self._by_positions(at, stop_position), point, at, stop) or found

    def _first_whole(
        self, positions: Iterator[int], point: LogPoint, at: int, stop: LogPoint
    ) -> EntryHeader | None:
        before: EntryHeader | None = None
        for position in positions:
            header = self._whole_entry(position, point, at, stop)
            if header is None:
                continue
            # What a header says of its channel is proven by the entry in front alone.
            is_linked = before is not None and header.chain_before == before.chain_crc
            if header.channel == 0 or header.index == point.index + 1 or is_linked:
                return header
            before = header
        return None

    def _whole_entry(
        self, position: int, point: LogPoint, at: int, stop: LogPoint
    ) -> EntryHeader | None:
        header = header_at(self._data, position)
        if (
            header is None
            or not point.index < header.index <= stop.index
            or not point.term <= header.term <= stop.term
            or position + header.size > stop.position
        ):
            return None
        next_segment = self._data.base_of(at) + self._data.segment_bytes
        if header.index == point.index + 1 and position not in (at, next_segment):
            return None
        body, unreadable = read_pages(self._data, header.body_len, position + HEADER_BYTES)
        if unreadable or crc32(body) != header.body_crc:
            return None
        if header.index == point.index + 1 and header.chain_before != point.chain:
            return None
        if header.index == stop.index:
            good = header.chain_crc == stop.chain and header.term == stop.term
            return header if good else None
        behind = position + header.size
        after = header_at(self._data, behind)
        if after is None:
            after = header_at(self._data, self._data.base_of(behind) + self._data.segment_bytes)
        linked = (
            after is not None
            and after.index == header.index + 1
            and header.term == (point.term if after.magic == EntryKind.NOOP else after.term)
            and after.chain_before == header.chain_crc
        )
        return header if linked else None

    def _by_units(self, point: LogPoint, at: int, stop: LogPoint) -> Iterator[int]:
        """Positions where the index has an entry and the data a header that says the same."""
        for _, units, is_named in self._units.chunks(point.index + 1, stop.index + 1):
            positions = units["position"].astype(np.int64)
            possible = is_named & (positions > at) & (positions + HEADER_BYTES <= stop.position)
            units, positions = units[possible], positions[possible]
            windows = positions // _SEARCH_BYTES
            for window in np.unique(windows).tolist():
                inside = windows == window
                base = window * _SEARCH_BYTES
                size = int(positions[inside].max()) + HEADER_BYTES - base
                data, _ = read_pages(self._data, size, base)
                offsets = positions[inside] - base
                headers = gather_headers(memoryview(data), offsets)
                named = units[inside]
                equal = (headers["index"] == named["index"]) & (headers["pos"] == named["position"])
                yield from (offsets[equal] + base).tolist()

    def _by_positions(self, at: int, stop_position: int) -> Iterator[int]:
        """Positions where the field `pos` of a header would be true."""
        position = at + 1
        while position + HEADER_BYTES <= stop_position:
            size = min(_SEARCH_BYTES + HEADER_BYTES, stop_position - position)
            data, _ = read_pages(self._data, size, position)
            count = len(data) - HEADER_BYTES + 1
            positions = np.ndarray((count,), ">i8", data, 24, (1,))
            hits = np.flatnonzero(positions == np.arange(position, position + count))
            yield from (hits + position).tolist()
            position += count

    def _term_runs(
        self, point: LogPoint, last: LogPoint, highest_term: int, *, exact: bool
    ) -> tuple[tuple[int, int], ...] | None:
        """The terms of the entries behind `point` up to `last`, None if they cannot be known.
        `exact`: the last of them is of the highest term."""
        first_index = point.index + 1
        if point.term == highest_term or (exact and first_index == last.index):
            return ((first_index, highest_term),)
        units = self._units.read(first_index, last.index + 1)
        segment_bytes = self._data.segment_bytes
        wrong, _ = problem_of_units(units, first_index, segment_bytes, last.position)
        sizes = units["size"].astype(np.int64)
        limit_bytes = segment_bytes - BLANK_BYTES
        if wrong >= 0 or int(sizes.max()) > limit_bytes:
            return None
        placement = place(sizes, point.position, segment_bytes, limit_bytes)
        low, high = int(units["term"][0]), int(units["term"][-1])
        fits = (
            bool((placement.positions == units["position"]).all())
            and placement.end_position <= last.position <= placement.end_position + segment_bytes
            and point.term <= low <= high <= highest_term
            and (not exact or high == highest_term)
        )
        return term_runs_of(units) if fits else None


def end_of(scan: SegmentScan) -> LogPoint:
    last = scan.headers[-1]
    return LogPoint(int(last["index"]), int(last["term"]), int(last["chain_crc"]), scan.end_position)
