"""Where the log of one of our own directories ends.

Everything up to the durable point belongs to the log, bad or not; above it the log ends at the first
record that does not continue it, digests included (recovery.py does the same and then repairs).
"""

from __future__ import annotations

from quorumlog.store.disk import Disk
from quorumlog.store.durable_file import DURABLE_NAME, DurablePoint
from quorumlog.store.ledger_store import LOG_ORIGIN, LogPoint
from quorumlog.store.log_extent import (
    Damage,
    ExtentSearch,
    LogExtent,
    LogSegment,
    read_entry_header,
)
from quorumlog.store.mmap_file_list import DATA_NAME, segment_name
from quorumlog.store.segment_files import IndexUnits, SegmentFile


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
    search = ExtentSearch(disk, directory, files, segment_bytes, units)
    point = durable.point if durable is not None else _origin_of(search)
    known: list[SegmentFile] = []
    for file in files:
        expected = known[-1].position + segment_bytes if known else LOG_ORIGIN.position
        if file.position != expected:
            if expected >= point.position:
                break  # whatever lies behind a gap above the durable point is not the log
            missing = f"{DATA_NAME}/{segment_name(expected)}"
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


def _origin_of(search: ExtentSearch) -> LogPoint:
    """The point before the first entry, by that entry's own word."""
    if not search.files:
        return LOG_ORIGIN
    header = search.first_header(search.files[0])
    if header is None or header.index <= 0:
        return LogPoint(-1, -1, 0, search.files[0].position)
    return LogPoint(header.index - 1, -1, header.chain_before, search.files[0].position)


def _check_point_is_held(
    search: ExtentSearch, files: list[SegmentFile], segments: list[LogSegment], point: LogPoint
) -> None:
    """Damage unless the entry that the durable point names ends where the point says."""
    if not segments and point.position <= (files[0].position if files else 0):
        return  # nothing was durable yet
    file = next((f for f in files if 0 < point.position - f.position <= f.size_bytes), None)
    segment = segments[-1] if segments and file and segments[-1].name == file.name else None
    held: tuple[int, int, int] | None = None
    position = point.position
    if file is not None and segment is not None:
        unit = search.units.read(point.index, point.index + 1)
        offset = int(unit["position"][0]) - file.position
        header = None
        if offset >= 0 and offset + int(unit["size"][0]) == point.position - file.position:
            header = read_entry_header(search.disk, f"{search.directory}/{file.name}", offset)
            position = file.position + offset
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
        search.damage.append(Damage(name, position, point.index, problem))


def _scan_own_tail(
    search: ExtentSearch, files: list[SegmentFile], segments: list[LogSegment], point: LogPoint
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
