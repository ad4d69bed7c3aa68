"""LogExtent: where the log in a directory begins and ends, found without changing anything.

Two rules for the end. Ours: everything up to the durable point belongs to the log, bad or not; above
it the first record that does not continue the log, digests included, is where the log ends. Java's:
the scan begins at most three files before the last one and ends at the first record that does not
continue the log by structure; old bytes behind that are not part of it (docs/formats.md, recovery).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from quorumlog.batch import HEADER_BYTES
from quorumlog.entry import EntryKind
from quorumlog.store.disk import Disk
from quorumlog.store.durable_file import DURABLE_NAME, DurablePoint
from quorumlog.store.entry_header import EntryHeader, unpack_header
from quorumlog.store.ledger_store import LOG_ORIGIN, LogPoint
from quorumlog.store.segment_files import IndexUnits, SegmentFile
from quorumlog.store.segment_scan import BLANK_BYTES, SegmentScan, gather_headers, scan_segment

JAVA_SCANNED_FILES = 3
_WINDOW_UNITS = 65_536


class Damage(msgspec.Struct, frozen=True):
    """One thing that is wrong. `path` is relative to the directory."""

    path: str
    position: int
    """Byte position in the log; in a small file, in that file."""
    index: int
    """-1: not known."""
    problem: str


class LogSegment(NamedTuple):
    """A data segment that holds entries of the log."""

    name: str
    position: int
    size_bytes: int
    """As all segments of the directory; the file itself may be shorter after a crash."""
    first_index: int
    first_term: int


class LogExtent(NamedTuple):
    segments: tuple[LogSegment, ...]
    end: LogPoint
    damage: tuple[Damage, ...]
    tail: str
    """What lies behind the end and will be cut by the next start; "" if nothing does."""


def chain_before(header: EntryHeader) -> int:
    """The chain that the entry with this header continues, by its own word."""
    return (header.chain_crc - header.digest) & 0xFFFFFFFF


def decode_entry_header(data: bytes) -> EntryHeader | None:
    """None if the bytes are not shaped like an entry (docs/formats.md, data entry)."""
    if len(data) < HEADER_BYTES:
        return None
    header = unpack_header(data)
    whole = header.size == header.body_len + HEADER_BYTES >= HEADER_BYTES
    return header if whole and header.magic in (EntryKind.NORMAL, EntryKind.NOOP) else None


def read_entry_header(disk: Disk, path: str, offset: int) -> EntryHeader | None:
    """What lies at a byte of a file if it is shaped like an entry, else None."""
    file = disk.open(path, writable=False)
    try:
        return decode_entry_header(file.pread(HEADER_BYTES, offset))
    finally:
        file.close()


class _Search:
    """One directory; collects damage on the way."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        files: list[SegmentFile],
        segment_bytes: int,
        units: IndexUnits,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.files = files
        self.segment_bytes = segment_bytes
        self.units = units
        self.damage: list[Damage] = []

    def first_header(self, file: SegmentFile) -> EntryHeader | None:
        header = read_entry_header(self.disk, f"{self.directory}/{file.name}", 0)
        return header if header is not None and header.pos == file.position else None

    def segment_of(self, file: SegmentFile, low_index: int, high_index: int) -> LogSegment | None:
        """A segment that is taken as it is; if its first header is bad, the index says what it was."""
        header = self.first_header(file)
        if header is not None:
            return self.log_segment(file, header.index, header.term)
        found = self._unit_at(file.position, low_index, high_index)
        index, term = found or (-1, -1)
        self.damage.append(
            Damage(file.name, file.position, index, "its first record is not the entry that begins here")
        )
        return self.log_segment(file, index, term) if found else None

    def log_segment(self, file: SegmentFile, first_index: int, first_term: int) -> LogSegment:
        return LogSegment(file.name, file.position, self.segment_bytes, first_index, first_term)

    def _unit_at(self, position: int, low_index: int, high_index: int) -> tuple[int, int] | None:
        """(index, term) of the unit for the entry at `position`; positions rise with the index."""
        while low_index <= high_index:
            middle = (low_index + high_index) // 2
            unit = self.units.read(middle, middle + 1)
            if int(unit["index"][0]) != middle:
                return None
            found = int(unit["position"][0])
            if found == position:
                return middle, int(unit["term"][0])
            if found < position:
                low_index = middle + 1
            else:
                high_index = middle - 1
        return None

    def scan(
        self,
        file: SegmentFile,
        start_position: int,
        expected_index: int,
        previous_term: int,
        previous_chain: int | None,
        stop_position: int | None = None,
    ) -> SegmentScan:
        opened = self.disk.open(f"{self.directory}/{file.name}", writable=False)
        try:
            return scan_segment(
                opened.map_read_only(),
                file.position,
                start_position,
                expected_index=expected_index,
                previous_term=previous_term,
                previous_chain=previous_chain,
                check_bodies=previous_chain is not None,
                stop_position=stop_position,
                segment_bytes=max(self.segment_bytes, file.size_bytes),
            )
        finally:
            opened.close()


# ---------------------------------------------------------------- our own directories


def find_own_extent(
    disk: Disk,
    directory: str,
    files: list[SegmentFile],
    segment_bytes: int,
    units: IndexUnits,
    durable: DurablePoint | None,
    *,
    verify_tail: bool,
) -> LogExtent:
    """`durable` None: nothing is taken as it is; `verify_tail` False: nothing above it is looked at."""
    search = _Search(disk, directory, files, segment_bytes, units)
    point = durable.point if durable is not None else _origin_of(search)
    known: list[SegmentFile] = []
    for file in files:
        expected = known[-1].position + segment_bytes if known else LOG_ORIGIN.position
        if file.position != expected:
            if expected >= point.position:
                break  # whatever lies behind a gap above the durable point is not the log
            missing = f"data/{expected:020d}"
            search.damage.append(Damage(missing, expected, -1, f"is missing; {file.name} comes next"))
        if file.size_bytes != segment_bytes and file.position >= point.position:
            break  # an unfinished creation, which the next start removes
        # A cut that did not finish leaves a short file, but never below the durable point.
        if file.size_bytes > segment_bytes or (
            file.size_bytes < segment_bytes and file.position + file.size_bytes < point.position
        ):
            wrong = f"is {file.size_bytes} bytes long, not {segment_bytes}"
            search.damage.append(Damage(file.name, file.position, -1, wrong))
        known.append(file)

    segments: list[LogSegment] = []
    for file in known:
        if file.position < point.position:
            low_index = segments[-1].first_index if segments else 0
            segment = search.segment_of(file, low_index, point.index)
            if segment is not None:
                segments.append(segment)
    _check_point_is_held(search, known, segments, point)
    tail = ""
    if verify_tail:
        point, tail = _scan_own_tail(search, known, segments, point)
    return LogExtent(tuple(segments), point, tuple(search.damage), tail)


def _origin_of(search: _Search) -> LogPoint:
    """The point before the first entry, by that entry's own word."""
    if not search.files:
        return LOG_ORIGIN
    header = search.first_header(search.files[0])
    if header is None or header.index <= 0:
        return LogPoint(-1, -1, 0, search.files[0].position)
    return LogPoint(header.index - 1, -1, chain_before(header), search.files[0].position)


def _check_point_is_held(
    search: _Search, files: list[SegmentFile], segments: list[LogSegment], point: LogPoint
) -> None:
    """Damage unless the entry that the durable point names ends where the point says."""
    if not segments and point.position <= (files[0].position if files else 0):
        return  # nothing was durable yet
    file = next((f for f in files if 0 < point.position - f.position <= f.size_bytes), None)
    segment = segments[-1] if segments and file and segments[-1].name == file.name else None
    held: tuple[int, int, int] | None = None
    if file is not None and segment is not None:
        unit = search.units.read(point.index, point.index + 1)
        offset = int(unit["position"][0]) - file.position
        header = None
        if offset >= 0 and offset + int(unit["size"][0]) == point.position - file.position:
            header = read_entry_header(search.disk, f"{search.directory}/{file.name}", offset)
        if header is not None:
            held = (header.index, header.term, header.chain_crc)
        else:
            scan = search.scan(
                file, file.position, segment.first_index, -1, None, stop_position=point.position
            )
            if len(scan.sizes) and scan.end_position == point.position:
                last = scan.headers[-1]
                held = (int(last["index"]), int(last["term"]), int(last["chain_crc"]))
    if held != (point.index, point.term, point.chain):
        name = file.name if file else DURABLE_NAME
        problem = f"the log does not hold the durable entry {point.index} of term {point.term}"
        search.damage.append(Damage(name, point.position, point.index, problem))


def _scan_own_tail(
    search: _Search, files: list[SegmentFile], segments: list[LogSegment], point: LogPoint
) -> tuple[LogPoint, str]:
    for file in files:
        if file.position + file.size_bytes <= point.position:
            continue
        start = max(file.position, point.position)
        scan = search.scan(file, start, point.index + 1, point.term, point.chain)
        if len(scan.sizes):
            if start == file.position:
                first_term = int(scan.headers["term"][0])
                segments.append(search.log_segment(file, point.index + 1, first_term))
            last = scan.headers[-1]
            point = LogPoint(
                int(last["index"]), int(last["term"]), int(last["chain_crc"]), scan.end_position
            )
        if scan.stop == "bad":
            return point, f"{file.name}: {scan.problem}"
        if scan.stop == "zero":
            break
    return point, ""


# ---------------------------------------------------------------- directories of Java members


def find_java_extent(
    disk: Disk, directory: str, files: list[SegmentFile], segment_bytes: int, units: IndexUnits
) -> LogExtent:
    """By DLedger's own rules, except that the index of what is scanned only speeds the scan up."""
    search = _Search(disk, directory, files, segment_bytes, units)
    for file, following in pairwise(files):
        if following.position != file.position + segment_bytes:
            wrong = f"is followed by {following.name}, not by position {file.position + segment_bytes}"
            search.damage.append(Damage(file.name, file.position, -1, wrong))
    for file in files:
        if file.size_bytes != segment_bytes:
            wrong = f"is {file.size_bytes} bytes long, not {segment_bytes}"
            search.damage.append(Damage(file.name, file.position, -1, wrong))
    if not files:
        return LogExtent((), LOG_ORIGIN, (), "")

    start = _java_start(search)
    segments: list[LogSegment] = []
    for file in files[:start]:
        low_index = segments[-1].first_index if segments else 0
        high_index = units.stop_index
        segment = search.segment_of(file, low_index, high_index)
        if segment is not None:
            segments.append(segment)
    end, tail = _scan_java(search, files[start:], segments)
    if files[-1].position > end.position + segment_bytes:
        problem = f"the log ends here, but {files[-1].name} lies further on: {tail or 'no entry'}"
        at = next((f for f in reversed(files) if f.position <= end.position), files[0])
        search.damage.append(Damage(at.name, end.position, end.index + 1, problem))
    return LogExtent(tuple(segments), end, tuple(search.damage), tail)


def _java_start(search: _Search) -> int:
    """Number of the file where the scan begins; what lies before is taken as it is."""
    for number in range(max(len(search.files) - JAVA_SCANNED_FILES, 0), -1, -1):
        file = search.files[number]
        header = search.first_header(file)
        if header is None or header.index < 0:
            continue
        unit = search.units.read(header.index, header.index + 1)[0].item()
        if unit == (header.magic, file.position, header.size, header.index, header.term):
            return number
    return 0


def _scan_java(
    search: _Search, files: list[SegmentFile], segments: list[LogSegment]
) -> tuple[LogPoint, str]:
    end = LogPoint(-1, -1, 0, files[0].position)
    for file in files:
        header = search.first_header(file)
        # Only the first entry scanned may have any index; from then on they must follow.
        expected_index = header.index if header is not None and end.index < 0 else end.index + 1
        begun = LogPoint(expected_index - 1, end.term, 0, file.position)
        if header is not None:
            begun = _advance_by_units(search, file, begun)
        scan = search.scan(file, begun.position, begun.index + 1, begun.term, None)
        point = begun
        if len(scan.sizes):
            last = scan.headers[-1]
            point = LogPoint(
                int(last["index"]), int(last["term"]), int(last["chain_crc"]), scan.end_position
            )
        if point.position > file.position:
            assert header is not None, (file, point)
            segments.append(search.log_segment(file, expected_index, header.term))
            end = point
        # DLedger takes any record of magic -1 for a blank, whatever length it names.
        if scan.stop == "zero":
            return end, ""
        if scan.stop == "bad" and not scan.problem.startswith("a blank record"):
            return end, f"{file.name}: {scan.problem}"
    return end, ""


def _advance_by_units(search: _Search, file: SegmentFile, point: LogPoint) -> LogPoint:
    """As far as index units and data agree and continue the log: what a walk would have found."""
    opened = search.disk.open(f"{search.directory}/{file.name}", writable=False)
    try:
        data = opened.map_read_only()
    finally:
        opened.close()
    room_stop = file.position + len(data) - BLANK_BYTES
    while True:
        units = search.units.read(point.index + 1, point.index + 1 + _WINDOW_UNITS)
        sizes = units["size"].astype(np.int64)
        positions = point.position + np.cumsum(sizes) - sizes
        fits = (
            (units["index"] == np.arange(point.index + 1, point.index + 1 + len(units)))
            & (units["position"] == positions)
            & (sizes >= HEADER_BYTES)
            & (positions + sizes <= room_stop)
        )
        count = len(units) if bool(fits.all()) else int(np.argmin(fits))
        headers = gather_headers(data, positions[:count] - file.position)
        terms = headers["term"].astype(np.int64)
        links = (
            (headers["index"] == units["index"][:count])
            & (headers["size"] == units["size"][:count])
            & (headers["body_len"] == headers["size"] - HEADER_BYTES)
            & (headers["pos"] == positions[:count])
            & ((headers["magic"] == EntryKind.NORMAL) | (headers["magic"] == EntryKind.NOOP))
            & (terms >= np.concatenate([np.array([point.term], np.int64), terms[:-1]])[:count])
        )
        good = count if bool(links.all()) else int(np.argmin(links))
        if good:
            last = headers[good - 1]
            stop = int(positions[good - 1] + sizes[good - 1])
            point = LogPoint(int(last["index"]), int(last["term"]), int(last["chain_crc"]), stop)
        if good < _WINDOW_UNITS:
            return point
