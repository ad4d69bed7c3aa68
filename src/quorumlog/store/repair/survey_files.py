"""Which segment files a start would find in a directory of ours, and what it would make of each.

Below the durable point a file that is missing or short is made again as zeros; above it such a file is
what an unfinished creation or cut has left. The index can be made again from the data, so nothing about
its files is damage. Nothing is changed here: `segment_adoption.py` does that.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from quorumlog.config import StoreConfig
from quorumlog.entry_header import EntryHeader
from quorumlog.store.disk import Disk, is_folder
from quorumlog.store.files.durable_file import DURABLE_ORIGIN, DurablePoint, read_durable_point
from quorumlog.store.files.member_file import VERSION_WITH_START, MemberRecord
from quorumlog.store.files.start_file import START_NAME, unusable_start
from quorumlog.store.files.state_files import load_state
from quorumlog.store.ledger_store import LOG_ORIGIN, LogPoint, LogStart
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME, NAME_DIGITS, segment_name
from quorumlog.store.log.segment_scan import INDEX_UNIT_BYTES
from quorumlog.store.log.segment_view import IndexUnits, SegmentFile, SegmentView, header_at


class Fate(Enum):
    """What a start makes of a segment file."""

    KEPT = auto()
    """Part of the log; made as long as it should be if it is shorter."""
    LONG = auto()
    """The same, and what it has behind its end is cut off."""
    MADE_AGAIN = auto()
    """Missing, or too short for what lay in it: zeros take the place of what is lost."""
    ASIDE = auto()
    """No part of the log."""
    REMOVED = auto()
    """Without any bytes."""
    DROPPED = auto()
    """Below where the log begins, or of the log that this one took the place of: removed."""


_NO_PART = (Fate.ASIDE, Fate.REMOVED, Fate.DROPPED)


class SegmentFinding(NamedTuple):
    """One file, or the place of one."""

    path: str
    position: int
    size_bytes: int
    """-1: there is no such file."""
    fate: Fate
    line: str
    """What a start says of it, "" if nothing."""

    @property
    def problem(self) -> str:
        """What is damaged about it, "" if nothing is."""
        if self.size_bytes < 0:
            return "is missing"
        is_damaged = self.fate in (Fate.MADE_AGAIN, Fate.LONG)
        return f"is {self.size_bytes} bytes long" if is_damaged else ""


@dataclass(frozen=True)
class FileSurvey:
    config: StoreConfig
    known: DurablePoint
    """The durable point by which the files were judged; never below the begin."""
    begin: LogPoint
    data: tuple[SegmentFinding, ...]
    index: tuple[SegmentFinding, ...]
    strangers: tuple[tuple[str, str], ...]
    """(path, name to set it aside under) of what is no segment."""
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
    """Has the log lost its first entries, and nothing tells which? A log that never held any has lost
    none: `record` says that there may be a file `start` before there is space for it."""
    if record.version < VERSION_WITH_START or disk.exists(f"{directory}/{START_NAME}"):
        return False
    if disk.exists(f"{directory}/{begin_path(LOG_ORIGIN)}"):
        return False
    held = disk.list(f"{directory}/{DATA_NAME}")
    if _begins_below(disk, directory, held):
        return False
    return bool(held) or read_durable_point(disk, directory) != DURABLE_ORIGIN


def _begins_below(disk: Disk, directory: str, held: list[str]) -> bool:
    """The state in front of the first segment that is left goes when the log begins there: with it the
    log had entries below, which were not deleted but lost."""
    positions = [int(name) for name in held if len(name) == NAME_DIGITS and name.isdigit()]
    return bool(positions) and load_state(disk, directory, min(positions)) is not None


def survey_files(
    disk: Disk, directory: str, config: StoreConfig, known: DurablePoint, start: LogStart | None
) -> FileSurvey:
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
    data, lost_from = _survey_data(disk, directory, config, known.point.position, begin, low, strangers)
    index, trusted_stop_index = _survey_index(
        disk, directory, config, known.point, begin, index_low, strangers
    )
    found = (tuple(data), tuple(index), tuple(strangers))
    survey = FileSurvey(config, known, begin, *found, lost_from, trusted_stop_index)
    if start is not None and not start.replaces and survey.has_dropped:
        _check_own(disk, directory, start, recorded.point, survey)
    return survey


def _check_own(
    disk: Disk, directory: str, start: LogStart, durable: LogPoint, files: FileSurvey
) -> None:
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
            f"it says that the log begins behind entry {begin.index}, and the log {problem}: it is the"
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


def _survey_data(
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
            line = f"{path} is missing: made again, its entries are lost"
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
            fate, line = Fate.LONG, f"{path} has {length} bytes: what does not belong was cut off"
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


def _survey_index(
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
            fate, line = Fate.LONG, f"{path} has {length} bytes: what does not belong was cut off"
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
