"""Where the log of a Java DLedger member's directory ends: by its own rules (docs/formats.md, recovery).

The scan begins at most three files before the last one and ends at the first record that does not
continue the log by structure, since there is nothing else to go by. What lies before is taken as it
is. Old bytes behind the end, left there by a truncation, are not part of the log.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.store.disk import Disk
from quorumlog.store.ledger_store import LOG_ORIGIN, LogPoint
from quorumlog.store.log_extent import Damage, ExtentSearch, LogExtent, LogSegment
from quorumlog.store.segment_files import IndexUnits, SegmentFile
from quorumlog.store.segment_scan import BLANK_BYTES, gather_headers

JAVA_SCANNED_FILES = 3
_WINDOW_UNITS = 65_536


def find_java_extent(
    disk: Disk, directory: str, files: list[SegmentFile], segment_bytes: int, units: IndexUnits
) -> LogExtent:
    """By DLedger's own rules, except that the index of what is scanned only speeds the scan up."""
    search = ExtentSearch(disk, directory, files, segment_bytes, units)
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


def _java_start(search: ExtentSearch) -> int:
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
    search: ExtentSearch, files: list[SegmentFile], segments: list[LogSegment]
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


def _advance_by_units(search: ExtentSearch, file: SegmentFile, point: LogPoint) -> LogPoint:
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
