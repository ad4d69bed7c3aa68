"""The survey of a Java DLedger member's directory, by DLedger's rules (docs/formats.md, recovery).

The scan begins at most three files before the last one and ends at the first record that does not
continue the log by structure, since there is nothing else to go by. What lies before is taken as it
is. Old bytes behind the end, left there by a truncation, are not part of the log.
"""

from __future__ import annotations

from itertools import pairwise

from quorumlog.batch import EntryBatch
from quorumlog.store.ledger_store import LOG_ORIGIN, LogPoint
from quorumlog.store.log.segment_scan import BLANK_BYTES, BLANK_MAGIC
from quorumlog.store.log.segment_view import (
    MAX_INDEX,
    WINDOW_BYTES,
    IndexUnits,
    SegmentFile,
    SegmentView,
    header_at,
    read_pages,
)
from quorumlog.store.offline.log_extent import Damage, LogExtent, LogSegment, SegmentSearch
from quorumlog.store.offline.stored_entries import Place, Stop, StoredEntries

JAVA_SCANNED_FILES = 3


def survey_java(
    data: SegmentView, units: IndexUnits, files: list[SegmentFile], committed_index: int
) -> LogExtent:
    """By DLedger's own rules, except that a log does not begin where the index contradicts, nor behind
    what was committed. Of the rest of what is scanned the index only speeds the scan up."""
    search = SegmentSearch(data, units)
    for file, following in pairwise(files):
        if following.position != file.position + data.segment_bytes:
            wrong = (
                f"is followed by {following.name}, not by position {file.position + data.segment_bytes}"
            )
            search.damage.append(Damage(file.name, file.position, -1, wrong))
    for file in files:
        if file.size_bytes != data.segment_bytes:
            wrong = f"is {file.size_bytes} bytes long, not {data.segment_bytes}"
            search.damage.append(Damage(file.name, file.position, -1, wrong))
    if not files:
        return LogExtent((), LOG_ORIGIN, (), "")
    begin_position = _behind_prefix_blank(search, files[0].position)
    if begin_position >= files[0].position + data.segment_bytes and len(files) > 1:
        files, begin_position = files[1:], files[1].position
    first_positions = [begin_position, *(file.position for file in files[1:])]

    start = _start_of_scan(search, files)
    segments: list[LogSegment] = []
    for file, first_position in zip(files[:start], first_positions, strict=False):
        low_index = segments[-1].first_index + 1 if segments else 0
        high_index = committed_index + 1 if file is files[0] else MAX_INDEX
        segment = search.segment_of(file, first_position, low_index, high_index)
        if segment is not None:
            segments.append(segment)
    end, tail = _scan(search, files[start:], first_positions[start], segments, committed_index + 1)
    if files[-1].position > end.position + data.segment_bytes:
        problem = f"the log ends here, but {files[-1].name} lies further on: {tail or 'no entry'}"
        at = next((f for f in reversed(files) if f.position <= end.position), files[0])
        search.damage.append(Damage(at.name, end.position, end.index + 1, problem))
    return LogExtent(tuple(segments), end, tuple(search.damage), tail)


def _behind_prefix_blank(search: SegmentSearch, position: int) -> int:
    """Where the first entry lies. DLedger 0.4 puts a blank record over what lies in front of the new
    begin of a log; where a whole file is blank the next one begins the log."""
    record, _ = read_pages(search.data, BLANK_BYTES, position)
    if int.from_bytes(record[:4], "big", signed=True) != BLANK_MAGIC:
        return position
    behind = position + int.from_bytes(record[4:], "big", signed=True)
    segment_end = position + search.data.segment_bytes
    is_begin = (
        position + BLANK_BYTES < behind < segment_end and header_at(search.data, behind) is not None
    )
    return behind if is_begin else segment_end


def _start_of_scan(search: SegmentSearch, files: list[SegmentFile]) -> int:
    """The number of a file."""
    for number in range(max(len(files) - JAVA_SCANNED_FILES, 0), 0, -1):
        header = header_at(search.data, files[number].position)
        if header is None:
            continue
        unit = search.units.read(header.index, header.index + 1)[0].item()
        if unit == (header.magic, files[number].position, header.size, header.index, header.term):
            return number
    return 0


def _scan(
    search: SegmentSearch,
    files: list[SegmentFile],
    position: int,
    segments: list[LogSegment],
    high_index: int,
) -> tuple[LogPoint, str]:
    """`high_index`: a log does not begin above it."""
    entries = StoredEntries(search.data, search.units, checked=False)
    header = header_at(search.data, position)
    first_index = header.index if header is not None else 0
    if not segments and (header is not None or search.unit_at(position, 0, high_index)):
        known = len(search.damage)
        segment = search.segment_of(files[0], position, 0, high_index)
        if len(search.damage) > known:  # the next index does not follow this header's
            segments += filter(None, [segment])
            first_index = segment.first_index if segment is not None else 0
            return LogPoint(first_index - 1, -1, 0, position), search.damage[known].problem
    if segments and first_index <= segments[-1].first_index:
        problem = f"its first entry says index {first_index}, not above {segments[-1].first_index}"
        search.damage.append(Damage(files[0].name, position, first_index, problem))
        return LogPoint(segments[-1].first_index, segments[-1].first_term, 0, position), problem
    place = Place(first_index, position, -1, 0)
    end = LogPoint(-1, -1, 0, position)
    if segments:
        end = LogPoint(first_index - 1, segments[-1].first_term, 0, position)
    for file in files:
        if place.position < file.position:
            place = place._replace(position=file.position)
        header, first = header_at(search.data, place.position), place
        got: EntryBatch | Stop
        while isinstance(
            got := entries.next_batch(place, MAX_INDEX + 1, WINDOW_BYTES, check_bodies=False), EntryBatch
        ):
            place = entries.behind(got, place)
            end = LogPoint(
                place.next_index - 1, place.previous_term, place.previous_chain, place.position
            )
        if header is not None and place.next_index > first.next_index:
            segments.append(search.log_segment(file, first.position, header.index, header.term))
        # DLedger takes any record of magic -1 for a blank, whatever length it names.
        if not got.is_blank:
            return end, f"{file.name}: {got.problem}" if got.problem else ""
    return end, ""
