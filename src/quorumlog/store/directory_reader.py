"""A stopped directory, read without being changed."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import count, pairwise
from typing import NamedTuple, Self

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB, StoreConfig
from quorumlog.entry import EntryId, EntryKind, Formation, HardState
from quorumlog.entry_header import HEADER_BYTES, EntryHeader, unpack_header
from quorumlog.errors import (
    ConfigError,
    DirectoryDamaged,
    IndexOutOfRange,
    ProtocolViolation,
    StoreFailure,
)
from quorumlog.header_array import TERM, field_of, first_wrong
from quorumlog.log_state.log_state import (
    EMPTY,
    LogState,
    Reset,
    Resets,
    decode_state,
    said_ms,
    with_reset,
)
from quorumlog.store.directory_kind import DirectoryKind, refuse_other_kinds
from quorumlog.store.disk import Disk, disk_work, is_no_damage, not_allowed, reason_of, refusal
from quorumlog.store.durable_file import (
    DURABLE_NAME,
    DURABLE_ORIGIN,
    DurablePoint,
    read_durable_owner,
    read_durable_point,
)
from quorumlog.store.log_points import LOG_ORIGIN, DamagedRange, LogPoint, LogStart
from quorumlog.store.placement import problem_of_units, range_length
from quorumlog.store.recovery_scan import (
    FileScan,
    LogScan,
    begin_path,
    lacks_start,
    scan_files,
    scan_log,
)
from quorumlog.store.segment_view import (
    MAX_INDEX,
    MAX_POSITION,
    WINDOW_BYTES,
    IndexUnits,
    SegmentFile,
    SegmentView,
    header_at,
    list_segment_files,
    read_pages,
    scan_at,
)
from quorumlog.store.segments import BLANK_BYTES, BLANK_MAGIC, DATA_NAME, INDEX_NAME
from quorumlog.store.slot_file import unreadable_slots
from quorumlog.store.state_files import (
    CHECKPOINT_NAME,
    CURRTERM_NAME,
    DAMAGED_NAME,
    FORMER_DAMAGED_NAME,
    HARD_STATE_NAME,
    MEMBER_NAME,
    START_NAME,
    STATES_NAME,
    Checkpoint,
    MemberRecord,
    good_start_slots,
    load_checkpoint,
    load_damaged,
    load_member,
    load_start,
    load_state,
    read_hard_state,
    read_readable,
    saved_positions,
    state_name,
    unreadable_start_slots,
)
from quorumlog.store.time_marks import MarkedLog, mark_at_index, mark_at_time

# ---------------------------------------------------------------- LogExtent
# What a directory holds, ours or Java's, as the tools show it.


class Damage(msgspec.Struct, frozen=True):
    """One thing that is wrong. `path` is relative to the directory."""

    path: str = msgspec.field(name="file")
    position: int
    """Byte position in the log; in a small file, in that file."""
    index: int
    """The first entry that is affected; -1: not known."""
    problem: str
    stop_index: int = -1
    """After the last one; -1: not known."""

    @property
    def place(self) -> str:
        if self.index < 0:
            return f"position {self.position}"
        more = f" .. {self.stop_index - 1}" if self.stop_index > self.index + 1 else ""
        return f"position {self.position}, index {self.index}{more}"


class LogSegment(NamedTuple):
    """A data segment that holds entries of the log."""

    name: str
    position: int
    size_bytes: int
    """As all segments of the directory; the file itself may be shorter after a crash."""
    first_index: int
    first_term: int
    first_position: int
    """Of its first entry: after a prefix blank, else where the segment begins."""


class LogExtent(NamedTuple):
    segments: tuple[LogSegment, ...]
    end: LogPoint
    damage: tuple[Damage, ...]
    tail: str
    """Bytes after the end, cut by the next start; "" if none."""


class SegmentSearch:
    """With which entry each segment begins; collects damage on the way."""

    def __init__(self, data: SegmentView, units: IndexUnits) -> None:
        self.data = data
        self.units = units
        self.damage: list[Damage] = []

    def segment_of(
        self, file: SegmentFile, first_position: int, low_index: int, high_index: int
    ) -> LogSegment | None:
        """A segment, taken as it is; if its first header is bad, the index supplies it."""
        header = header_at(self.data, first_position)
        if header is not None and not low_index <= header.index <= high_index:
            problem = f"its first entry has index {header.index}, below {low_index} of the file before"
            if header.index > high_index:
                problem = f"its first entry has index {header.index}, above {high_index}"
            self.damage.append(Damage(file.name, first_position, header.index, problem))
            header = None
        elif header is not None:
            unit = self.units.read(header.index, header.index + 1)[0]
            if int(unit["position"]) == first_position:
                return self.log_segment(file, first_position, header.index, header.term)
        found = self.unit_at(first_position, low_index, high_index)
        if header is not None and found in (None, (header.index, header.term)):
            # Nothing says otherwise, or a running member has written the unit since it was read above.
            return self.log_segment(file, first_position, header.index, header.term)
        index, term = found or (-1, -1)
        if not self.damage or self.damage[-1].path != file.name:
            problem = "its first record is not the entry that begins here"
            self.damage.append(Damage(file.name, first_position, index, problem))
        return self.log_segment(file, first_position, index, term) if found else None

    def log_segment(self, file: SegmentFile, first_position: int, index: int, term: int) -> LogSegment:
        return LogSegment(file.name, file.position, self.data.segment_bytes, index, term, first_position)

    def unit_at(self, position: int, low_index: int, high_index: int) -> tuple[int, int] | None:
        """(index, term) of the unit for the entry at `position`; positions rise with the index."""
        low_index = max(low_index, self.units.begin_index)
        high_index = min(high_index, self.units.stop_index - 1)
        while low_index <= high_index:
            middle = (low_index + high_index) // 2
            unit = self.units.read(middle, middle + 1)
            if int(unit["index"][0]) != middle or int(unit["size"][0]) <= 0:
                high_index = middle - 1  # after the last unit
                continue
            found = int(unit["position"][0])
            if found == position:
                return middle, int(unit["term"][0])
            if found < position:
                low_index = middle + 1
            else:
                high_index = middle - 1
        return None


# ----------------------------------------------------------------
# The small files of a directory, as far as the disk can read them.


def damage_of_small_files(disk: Disk, path: str) -> list[Damage]:
    """Unreadable pages, and a file that keeps a start; contents are checked elsewhere. Raises
    OSError."""
    damage = []
    if disk.exists(f"{path}/{FORMER_DAMAGED_NAME}"):
        problem = f"is of an early release: a start refuses until it is renamed to {DAMAGED_NAME}"
        damage.append(Damage(FORMER_DAMAGED_NAME, 0, -1, problem))
    _, problem = read_readable(disk, f"{path}/{CHECKPOINT_NAME}")
    if problem:
        damage.append(Damage(CHECKPOINT_NAME, 0, -1, f"{problem}; a start continues without it"))
    slots = {name: unreadable_slots(disk, f"{path}/{name}") for name in (HARD_STATE_NAME, DURABLE_NAME)}
    slots[START_NAME] = unreadable_start_slots(disk, path)
    for name, found in slots.items():
        damage += [Damage(name, position, -1, problem) for position, problem in found]
    return damage


# ----------------------------------------------------------------
# Where a log of ours begins, and the states that are saved at its boundaries, as a look finds them.

HeaderAt = Callable[[int], EntryHeader]


class StartRow(msgspec.Struct, frozen=True):
    """The file `start`."""

    before_index: int
    """Of the entry before the first that exists."""
    term: int
    position: int
    """Of the first segment."""
    record_bytes: int
    """Of the state of the log up to there."""
    replaces: bool
    """The next start of the process removes the segments of another log."""
    good_slots: int
    """Of two."""


class StateRow(msgspec.Struct, frozen=True):
    file: str
    """Relative to the directory."""
    first_index: int
    """Of the segment after it; -1 if that is not known."""
    problem: str
    """Why it is not used, "" if it is. A start of the process continues without it."""


def start_row(disk: Disk, path: str, start: LogStart | None) -> StartRow | None:
    """Raises OSError."""
    if start is None:
        return None
    point, good_slots = start.point, good_start_slots(disk, path)
    return StartRow(
        point.index, point.term, point.position, len(start.record), start.replaces, good_slots
    )


def state_rows(disk: Disk, path: str, header_at: HeaderAt) -> tuple[StateRow, ...]:
    """In order. `header_at`: of an entry of this log; raises IndexOutOfRange, DirectoryDamaged."""
    try:
        positions = saved_positions(disk, path)
    except OSError as error:
        return (StateRow(STATES_NAME, -1, f"cannot be read: {reason_of(error)}"),)
    return tuple(_state_row(disk, path, header_at, position) for position in positions)


def newest_boundary(disk: Disk, path: str, header_at: HeaderAt) -> int:
    """Of those whose state is saved, and so is known to be committed; -1 if there is none."""
    try:
        positions = saved_positions(disk, path)
    except OSError:
        return -1
    rows = (_state_row(disk, path, header_at, position) for position in reversed(positions))
    return next((row.first_index - 1 for row in rows if not row.problem), -1)


def _state_row(disk: Disk, path: str, header_at: HeaderAt, position: int) -> StateRow:
    name = f"{STATES_NAME}/{state_name(position)}"
    try:
        state = load_state(disk, path, position)
    except OSError as error:
        return StateRow(name, -1, f"cannot be read: {reason_of(error)}")
    if state is None:
        return StateRow(name, -1, "is damaged")
    index = state.point.index + 1
    try:
        header = header_at(index)
    except IndexOutOfRange:
        return StateRow(name, index, "is of entries that this log does not have")
    except DirectoryDamaged:
        return StateRow(name, index, f"entry {index} after it is damaged")
    is_own = (header.pos, header.chain_before) == (position, state.point.chain)
    return StateRow(name, index, "" if is_own else "is of another log")


# ----------------------------------------------------------------
# The report of the recovery scan of a log of ours (recovery_scan.py): damage by file, position and
# entries.


def scan_own(
    disk: Disk,
    directory: str,
    record: MemberRecord,
    known: DurablePoint,
    damaged: Sequence[DamagedRange] | None,
    start: LogStart | None,
    scanned_index: int = -1,
) -> tuple[LogExtent, SegmentView, IndexUnits]:
    """`known`: the durable point. `damaged`: of the file `damaged`, None if it is unreadable.
    `scanned_index`: see `scan_log`."""
    config = StoreConfig(
        segment_bytes=record.segment_bytes, index_segment_bytes=record.index_segment_bytes
    )
    files = scan_files(disk, directory, config, known, start)
    known = files.known
    folder = f"{directory}/{DATA_NAME}"
    data = SegmentView(disk, folder, files.data_files, record.segment_bytes)
    folder = f"{directory}/{INDEX_NAME}"
    index = SegmentView(disk, folder, files.index_files, record.index_segment_bytes)
    log = scan_log(
        data,
        index,
        files,
        damaged,
        lambda scan, tail_bytes: None,
        must_be_bounded=False,
        scanned_index=scanned_index,
    )
    search = SegmentSearch(data, IndexUnits(index))
    segments = _segments(search, files, log)
    damage = _damage_of_log(data, index, files, known, log)
    damage += [
        each
        for each in search.damage
        if not any(r.before.position <= each.position < r.last.position for r in log.ranges)
    ]
    tail = ""
    if log.cut_pieces:
        where = data.name_of(log.cut_pieces[0][0])
        tail = f"{where}: {log.tail or 'bytes after the end of the log'}"
    return LogExtent(segments, log.end, tuple(damage), tail), data, search.units


def _segments(search: SegmentSearch, files: FileScan, log: LogScan) -> tuple[LogSegment, ...]:
    segments: list[LogSegment] = []
    for file in files.data_files:
        if file.position < log.end.position:
            low_index = segments[-1].first_index + 1 if segments else files.begin.index + 1
            segment = search.segment_of(file, file.position, low_index, log.end.index)
            if segment is not None:
                segments.append(segment)
    return tuple(segments)


def _damage_of_log(
    data: SegmentView, index: SegmentView, files: FileScan, known: DurablePoint, log: LogScan
) -> list[Damage]:
    lost = {data.name_of(each.position): each for each in files.data if each.problem}
    named = [each.path for each in log.ranges]  # they say the same of the file
    damage = [
        Damage(name, file.position, -1, file.problem) for name, file in lost.items() if name not in named
    ]
    damage += [
        Damage(
            each.path,
            each.before.position,
            each.first_index,
            lost[each.path].problem if each.path in lost else each.problem,
            each.stop_index,
        )
        for each in log.found
    ]
    if log.contradiction is not None:
        wrong = log.contradiction
        problem = f"the entries do not lead to the durable entry {known.point.index}"
        damage.append(Damage(data.name_of(wrong.position - 1), wrong.position, wrong.index, problem))
    for segments, pages in ((data, log.unreadable), (index, log.unreadable_units)):
        for page in pages:
            problem = f"{page.problem}; it lies after the end of the log, and a start writes it again"
            damage.append(Damage(segments.name_of(page.position), page.position, -1, problem))
    return damage


# ---------------------------------------------------------------- Committed entries that are gone
# What `checkpoint` or the index names after the end of a log.


def missing_entries(
    data: SegmentView,
    units: IndexUnits,
    extent: LogExtent,
    checkpoint: Checkpoint | None,
    durable: DurablePoint | None,
) -> Damage | None:
    """The entries between the end of the log and the last one that any of them names; None if there are
    none. `durable`: of a Java member, or unreadable: None.

    Above a durable point units prove nothing, so the index is not asked then; nor where a checkpoint
    says that the log ended just here, since a Java member leaves old units in place when it cuts.
    """
    end = extent.end
    first_index, by_units = end.index + 1, -1
    named = [(-1, "")]
    if checkpoint is not None:
        named.append((checkpoint.committed_index, f"{CHECKPOINT_NAME} names entry {{}} as committed"))
    if durable is not None:
        named.append((durable.point.index, f"{DURABLE_NAME} names entry {{}}"))
    elif checkpoint is None or checkpoint.end_index != end.index:
        first_index, by_units = _named_by_units(data, units, extent)
        named.append((by_units, f"the {INDEX_NAME} names entry {{}}"))
    last_index, words = max(named, key=lambda each: each[0])
    if last_index <= end.index:
        return None
    entries = f"entry {first_index} is missing"
    if last_index > first_index:
        entries = f"entries {first_index} .. {last_index} are missing"
    path = INDEX_NAME if last_index == by_units else CHECKPOINT_NAME
    if data.bases:
        path = data.name_of(end.position)
    why = f" ({extent.tail})" if extent.tail else ""
    problem = f"{entries}: {words.format(last_index)}, and the log ends here{why}"
    return Damage(path, end.position, first_index, problem, last_index + 1)


def _named_by_units(data: SegmentView, units: IndexUnits, extent: LogExtent) -> tuple[int, int]:
    """(first, last) of the entries that the index has after the end, each linked to the one before; the
    last is -1 if there are none. A lower term is of a unit that a cut has left in place."""
    first_index, term, position = extent.end.index + 1, extent.end.term, extent.end.position
    if not extent.segments:
        first_index = units.begin_index
    last_index = -1
    for index, chunk, is_named in units.chunks(first_index, units.stop_index):
        if data.bases:
            wrong, _ = problem_of_units(chunk, index, data.segment_bytes, MAX_POSITION)
        else:  # nothing says how long a segment is
            is_wrong = ~is_named | (chunk["size"] <= 0)
            wrong = int(is_wrong.argmax()) if is_wrong.any() else -1
        count = len(chunk) if wrong < 0 else wrong
        if not count or int(chunk["term"][0]) < term:
            break
        next_segment = data.base_of(position - 1) + data.segment_bytes
        is_linked = int(chunk["position"][0]) in (position, next_segment)
        if extent.segments and not is_linked:
            break
        last_index = index + count - 1
        last = chunk[count - 1]
        term, position = int(last["term"]), int(last["position"]) + int(last["size"])
        if wrong >= 0:
            break
    return first_index, last_index


# ---------------------------------------------------------------- StoredEntries
# Entries out of segment files, a batch at a time, each linked to the one before. Index units say how
# long they are, so that they are read in bulk; where the units are wrong, the data decides.

_WINDOW_UNITS = 32_768
_LEAST_WINDOW_BYTES = 64 << 10
_MAGIC_OF_BLANK = BLANK_MAGIC.to_bytes(4, "big", signed=True)


class ReadPlace(NamedTuple):
    """Where reading has got to; the two last fields are of the entry before."""

    next_index: int
    position: int
    previous_term: int
    previous_chain: int


class ReadStop(NamedTuple):
    """Why the next entry cannot be read."""

    problem: str
    """"" where the log ends: at zeros, or at a blank record."""
    is_blank: bool
    """A record of magic -1 is here, of any length."""


class StoredEntries:
    def __init__(self, data: SegmentView, units: IndexUnits, *, checked: bool) -> None:
        """`checked`: every entry carries both digests."""
        self._data = data
        self._units = units
        self._checked = checked
        self._entry_bytes = HEADER_BYTES
        """On average, of the last that were read: so many units are looked at."""

    def next_batch(
        self, place: ReadPlace, stop_index: int, batch_bytes: int, *, check_bodies: bool
    ) -> EntryBatch | ReadStop:
        """The next entries of the segment at `place`, at least one, in memory of their own, up to one
        that cannot be read or whose body is bad."""
        assert place.next_index < stop_index, (place, stop_index)
        got = self._by_units(place, stop_index, batch_bytes) or self._by_walk(
            place, stop_index, batch_bytes
        )
        if isinstance(got, ReadStop) or not check_bodies:
            return got
        good = self._good_bodies(got)
        return got.slice(0, good) if good else ReadStop("body_crc does not match", is_blank=False)

    def behind(self, batch: EntryBatch, place: ReadPlace) -> ReadPlace:
        words = batch.words()
        return ReadPlace(
            place.next_index + batch.count,
            place.position + batch.total_bytes,
            int(words[TERM][-1]),
            int(field_of(words, "chain_crc")[-1]),
        )

    def _by_units(self, place: ReadPlace, stop_index: int, batch_bytes: int) -> EntryBatch | None:
        """None where units and data do not agree, or the disk cannot read all of it."""
        count = min(batch_bytes // self._entry_bytes + 1, _WINDOW_UNITS, stop_index - place.next_index)
        units = self._units.read(place.next_index, place.next_index + count)
        segment_bytes = self._data.segment_bytes
        wrong, _ = problem_of_units(units, place.next_index, segment_bytes, MAX_POSITION)
        if wrong >= 0:
            units = units[:wrong]
        if not len(units) or int(units["position"][0]) != place.position:
            return None
        count, _ = range_length(units, segment_bytes, batch_bytes)
        sizes = units["size"][:count].astype(np.int64)
        total_bytes = int(sizes.sum())
        self._entry_bytes = total_bytes // count
        data, unreadable = read_pages(self._data, total_bytes, place.position)
        if unreadable:
            return None
        batch = EntryBatch(data, sizes)
        return batch if self._continues(batch, place) else None

    def _continues(self, batch: EntryBatch, place: ReadPlace) -> bool:
        positions = batch.starts + place.position
        if not self._checked:
            headers, term = batch.headers(), place.previous_term
            good, _ = first_wrong(headers, batch.sizes, positions, place.next_index, term, None)
            return good == batch.count
        try:
            batch.check_encoding()
            batch.check_sequence(place.next_index, place.previous_chain)
        except ProtocolViolation:
            return False
        return batch.lies_at(positions) and int(batch.words()[TERM][0]) >= place.previous_term

    def _by_walk(self, place: ReadPlace, stop_index: int, batch_bytes: int) -> EntryBatch | ReadStop:
        """By the data alone: the good entries, or what is wrong with the first."""
        scan, data = scan_at(
            self._data,
            place.position,
            expected_index=place.next_index,
            previous_term=place.previous_term,
            previous_chain=place.previous_chain if self._checked else None,
            window_bytes=max(batch_bytes, _LEAST_WINDOW_BYTES),
        )
        sizes = scan.sizes[: stop_index - place.next_index]
        if not len(sizes):
            return ReadStop(scan.problem, data[:4] == _MAGIC_OF_BLANK)
        count = max(int(np.searchsorted(np.cumsum(sizes), batch_bytes, side="right")), 1)
        return EntryBatch(data[: int(sizes[:count].sum())], sizes[:count])

    def _good_bodies(self, batch: EntryBatch) -> int:
        if batch.bodies_surely_match():
            return batch.count
        words = batch.words()
        expected = field_of(words, "body_crc")
        wrong = batch.body_crcs() != expected
        if not self._checked:
            # DLedger writes no digests: both fields 0 means unchecked. Entries that it copied from
            # software that does carry them.
            wrong &= (expected | field_of(words, "chain_crc")) != 0
        return int(wrong.argmax()) if bool(wrong.any()) else batch.count


# ----------------------------------------------------------------
# The recovery scan of a Java DLedger member's directory, by DLedger's rules (docs/formats.md, recovery).
#
# The scan begins at most three files before the last one and ends at the first record that does not
# continue the log by structure, since there is nothing else to go by. What lies before is taken as it
# is. Old bytes behind the end, left there by a truncation, are not part of the log.

JAVA_SCANNED_FILES = 3


def scan_java(
    data: SegmentView, units: IndexUnits, files: list[SegmentFile], committed_index: int
) -> LogExtent:
    """By DLedger's own rules, except that a log begins neither where the index contradicts nor after
    committed entries. Elsewhere the index only speeds up the scan."""
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
    """Where the first entry lies. DLedger 0.4 puts a blank record over what lies before the new
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
        problem = f"its first entry has index {first_index}, not above {segments[-1].first_index}"
        search.damage.append(Damage(files[0].name, position, first_index, problem))
        return LogPoint(segments[-1].first_index, segments[-1].first_term, 0, position), problem
    place = ReadPlace(first_index, position, -1, 0)
    end = LogPoint(-1, -1, 0, position)
    if segments:
        end = LogPoint(first_index - 1, segments[-1].first_term, 0, position)
    for file in files:
        if place.position < file.position:
            place = place._replace(position=file.position)
        header, first = header_at(search.data, place.position), place
        got: EntryBatch | ReadStop
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


# ---------------------------------------------------------------- DirectoryReader
# A member's directory, ours or a Java DLedger member's, opened only to look.
#
# Opening is the recovery scan of a start (recovery_scan.py; `scan_java` for Java's rules): it reads one
# header per segment and the tail. Entries are checked when they are read, a batch at a time: index
# units say where they should lie; where the units are wrong, the data decides.

MAX_LOOKS = 4
"""At a log that looks damaged while its member moves the durable point."""


class DirectoryReader:
    """Read-only; a context manager, for one thread. Indices name entries (-1: none); `ledger_end_index`:
    the end after a start."""

    is_java: bool
    """Entries need not carry digests, and no file names the owner."""
    checked: bool
    """Every entry carries both digests."""
    in_use: bool
    """A running member holds the directory: its log may grow, or be cut, while it is read here."""

    def __init__(self, disk: Disk, path: str, *, scanned_index: int = -1) -> None:
        """Raises ConfigError if there is no such directory or it holds no log, StoreFailure if its file
        `member` is damaged. Other damage is listed in `damage`, except damage up to `scanned_index` that
        another reader has reported; entries are still checked when they are read."""
        self.path = path = path.rstrip("/") or "/"
        self._disk = disk
        self._scanned_index = scanned_index
        self.damage: list[Damage] = []
        self.durable_index = -1
        self.index_synced_position = 0
        self.begin = LOG_ORIGIN  # of a Java directory, which does not tell
        self.start: LogStart | None = None
        self.damaged: tuple[DamagedRange, ...] = ()
        """Ranges recorded as damaged: in order, none above the durable point."""
        try:
            record = load_member(disk, path)
            # In this order: what a running member adds meanwhile then lies after what these promise.
            self._checkpoint = load_checkpoint(disk, path)
            self._durable = read_durable_point(disk, path)
            self._look_at_small_files(disk.list(path), record)
            self.in_use = disk.is_locked(f"{path}/lock")
            self.is_java = record is None
            self.checked = record is not None and record.checked
            self.group = record.group if record else ""
            self.member_id = record.member_id if record else ""
            self.directory_id = record.directory_id if record else ""
            self.formation = record.formation if record else Formation()
            self.hard_state: HardState | None = read_hard_state(disk, path)
            extent = self._java_extent() if record is None else self._own_extent(record)
        except NotADirectoryError as error:
            raise ConfigError(
                f"{path} holds no log: a part of the path {error.filename} is a file, not a directory;"
                " name the data directory of a member"
            ) from error
        except PermissionError as error:
            raise ConfigError(not_allowed(path, error)) from error
        except OSError as error:
            failure = ConfigError if is_no_damage(error) else StoreFailure
            raise failure(refusal(path, "read", error)) from error
        self.damage += extent.damage
        self.segments: tuple[LogSegment, ...] = extent.segments
        self.end: LogPoint = extent.end
        self.tail: str = extent.tail
        """Bytes the next start will cut; "" if none."""
        self._first_indices = [segment.first_index for segment in self.segments]
        self._entries = StoredEntries(self._data, self.units, checked=self.checked)
        self._structure = StoredEntries(self._data, self.units, checked=False)
        self._walked = ReadPlace(-1, 0, -1, 0)
        is_replaced = self.start is not None and self.start.replaces
        self.missing = missing_entries(
            self._data, self.units, extent, self._checkpoint, None if is_replaced else self._durable
        )
        """Committed entries that should lie after the end and do not; None if there are none."""
        self.damage += [] if self.missing is None else [self.missing]
        self.committed_index = -1
        boundary = -1 if self.is_java else newest_boundary(disk, path, self.header_at)
        self.committed_index, self.readable_index = (max(i, boundary) for i in self._judge_checkpoint())
        """As a start takes it from the checkpoint, or a saved state; and the last entry at or below the
        one that either names, where nothing shows that it is of another log."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.units.segments.close()
        self._data.close()

    # ---------------------------------------------------------------- opening

    def _look_at_small_files(self, names: list[str], record: MemberRecord | None) -> None:
        has_segments = bool(list_segment_files(self._disk, self.path, DATA_NAME))
        if record is None and not has_segments:
            refuse_other_kinds(self._disk, self.path, DirectoryKind.MEMBER, DirectoryKind.JAVA_LOG)
        if record is None and not has_segments and not {CURRTERM_NAME, CHECKPOINT_NAME} & set(names):
            raise ConfigError(
                f"{self.path} holds no log: no file '{MEMBER_NAME}' and nothing in"
                f" {self.path}/{DATA_NAME}"
            )
        self.damage += damage_of_small_files(self._disk, self.path)

    def _java_extent(self) -> LogExtent:
        files = list_segment_files(self._disk, self.path, DATA_NAME)
        index_files = list_segment_files(self._disk, self.path, INDEX_NAME)
        sizes = Counter(file.size_bytes for file in files if file.size_bytes)
        distances = {later.position - file.position for file, later in pairwise(files)}
        # Files that are too few to outvote a damaged one: what their names say, else the longest.
        self.segment_bytes = max(
            sizes, key=lambda size: (sizes[size], size in distances, size), default=0
        )
        self.index_segment_bytes = index_files[0].size_bytes if index_files else 0
        self.hard_state = self.hard_state or HardState(0, None)
        self._data = SegmentView(self._disk, f"{self.path}/{DATA_NAME}", files, self.segment_bytes)
        index = SegmentView(
            self._disk, f"{self.path}/{INDEX_NAME}", index_files, self.index_segment_bytes
        )
        self.units = IndexUnits(index)
        committed_index = MAX_INDEX if self._checkpoint is None else self._checkpoint.committed_index
        return scan_java(self._data, self.units, files, committed_index)

    def _own_extent(self, record: MemberRecord) -> LogExtent:
        self.segment_bytes = record.segment_bytes
        self.index_segment_bytes = record.index_segment_bytes
        start = load_start(self._disk, self.path)
        for look in count(1):
            extent = self._own_extent_from(start, record)
            newer_start, newer = load_start(self._disk, self.path), self._durable
            if extent.damage and look < MAX_LOOKS:
                newer = read_durable_point(self._disk, self.path)
            if (newer_start, newer) == (start, self._durable):
                break
            self.close()  # a running member has dropped entries meanwhile, or may have cut the log
            start, self._durable = newer_start, newer
        # Without the file it was read from Java's `currterm`, which no start of ours trusts.
        has_hard_state = self._disk.exists(f"{self.path}/{HARD_STATE_NAME}")
        for name, is_lost in (
            (HARD_STATE_NAME, self.hard_state is None or not has_hard_state),
            (DURABLE_NAME, self._durable is None),
        ):
            if is_lost:
                self.damage.append(Damage(name, 0, -1, "is missing or unreadable"))
        # A backup gets its term when it is complete, a directory that is recovered at its next start.
        is_promised = bool(record.member_id) and record.recovery is None
        owner = read_durable_owner(self._disk, self.path)
        if is_promised and owner not in ("", record.directory_id):
            problem = (
                f"is of directory {record.directory_id} of {record.member_id}, and {DURABLE_NAME} of"
                f" directory {owner}: one of them is another member's, or an older copy"
            )
            self.damage.append(Damage(MEMBER_NAME, 0, -1, problem))
        if is_promised and self._lacks_promise(extent.end.term):
            problem = (
                f"is of term {self.hard_state.term if self.hard_state else 0}, and the log has entries"
                f" of term {extent.end.term}: this file is an older copy, or the last segment is of"
                " another member"
            )
            self.damage.append(Damage(HARD_STATE_NAME, 0, -1, problem))
        if lacks_start(self._disk, self.path, record):
            problem = "is missing: the begin of the log is unknown"
            self.damage.append(Damage(START_NAME, 0, -1, problem))
        return extent

    def _lacks_promise(self, term: int) -> bool:
        """Has the log entries of a term that `hardstate` has never seen? It is written first."""
        if self.hard_state is not None and self.hard_state.term < term:
            self.hard_state = read_hard_state(self._disk, self.path)  # a running member may have written
        return self.hard_state is not None and self.hard_state.term < term

    def _own_extent_from(self, start: LogStart | None, record: MemberRecord) -> LogExtent:
        known = self._durable or DURABLE_ORIGIN
        self.durable_index = known.point.index
        self.index_synced_position = known.index_synced_position
        self.start, self.begin = start, LOG_ORIGIN if start is None else start.point
        if start is not None and start.replaces:
            self._checkpoint, self.durable_index = None, self.begin.index  # they are of another log
        damaged = load_damaged(self._disk, self.path, known.point, start, begin_path(self.begin))
        self.damaged = damaged or ()
        extent, self._data, self.units = scan_own(
            self._disk, self.path, record, known, damaged, start, self._scanned_index
        )
        if damaged is None:
            problem = "is unreadable: the next start checks every entry instead"
            unreadable = Damage(DAMAGED_NAME, 0, -1, problem)
            extent = extent._replace(damage=(unreadable, *extent.damage))
        return extent

    def _judge_checkpoint(self) -> tuple[int, int]:
        """(committed index, readable index). Of our own directories only what the log holds exactly is
        committed; where its entry is damaged or gone nothing contradicts it. DLedger caps it at the
        end."""
        checkpoint = self._checkpoint
        proven = self.begin.index  # what was dropped was committed
        if checkpoint is None or self.entry_count == 0:
            return proven, proven
        index = checkpoint.committed_index
        last_index = min(index, self.end.index)
        if self.is_java:
            return last_index, last_index
        if not proven < index <= self.end.index:
            return proven, max(proven, last_index)
        committed = (checkpoint.committed_term, checkpoint.committed_chain)
        known = (self.end, *(each.last for each in self.damaged))
        point = next(((each.term, each.chain) for each in known if each.index == index), None)
        if point is None:
            try:
                header = self.header_at(index)
                point = (header.term, header.chain_crc)
                if point != committed and not self._continues(header):
                    return proven, last_index
            except DirectoryDamaged:
                return proven, last_index
        return (index, index) if point == committed else (proven, proven)

    def _continues(self, header: EntryHeader) -> bool:
        """The entry before, as its header says. Else one of the two is damaged."""
        before = header.index - 1
        chain = self.begin.chain if before == self.begin.index else self.header_at(before).chain_crc
        return header.chain_before == chain

    # ---------------------------------------------------------------- what there is

    @property
    def ledger_begin_index(self) -> int:
        """-1 if the log never held an entry. Our own begin at 0 or where the file `start` says, also
        where the first files are gone."""
        if not self.is_java:
            return self.begin.index + 1 if self.end.index >= 0 else -1
        return self._first_indices[0] if self.segments else -1

    @property
    def ledger_end_index(self) -> int:
        return self.end.index

    @property
    def ledger_end_term(self) -> int:
        return self.end.term

    @property
    def named_stop_index(self) -> int:
        """After the last entry that the log has, or should have."""
        return self.missing.stop_index if self.missing is not None else self.end.index + 1

    @property
    def entry_count(self) -> int:
        return self.end.index - self.ledger_begin_index + 1 if self.ledger_begin_index >= 0 else 0

    def last_index_of(self, number: int) -> int:
        """Last index of segment `segments[number]`."""
        following = number + 1 < len(self.segments)
        return self._first_indices[number + 1] - 1 if following else self.end.index

    def last_header_of(self, number: int) -> EntryHeader | None:
        """None if that entry cannot be read, or lies in a segment that is not listed."""
        segment, index = self.segments[number], self.last_index_of(number)
        try:
            header = self.header_at(index) if index >= segment.first_index else None
        except DirectoryDamaged:
            return None
        stop = segment.position + segment.size_bytes
        return header if header is not None and segment.position <= header.pos < stop else None

    def id_at(self, index: int) -> EntryId:
        return EntryId(index, self.header_at(index).term)

    def header_at(self, index: int) -> EntryHeader:
        """Raises IndexOutOfRange, or DirectoryDamaged if the entry is not where it should be."""
        self._check_range(index, index + 1)
        return self._header_by_unit(index) or self._header_by_walk(index)

    def unreadable_units(self) -> list[Damage]:
        index = self.units.segments
        return [
            Damage(index.name_of(page.position), page.position, -1, page.problem)
            for page in self.units.unreadable.values()
        ]

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        """Raw bytes of the log; zeros where the disk cannot read them."""
        return read_pages(self._data, size_bytes, position)[0]

    # ---------------------------------------------------------------- reading

    def batches(
        self,
        first_index: int,
        stop_index: int,
        *,
        batch_bytes: int = 2 * MIB,
        check_bodies: bool = True,
        link_first: bool = True,
    ) -> Iterator[EntryBatch]:
        """Entries `first_index` .. `stop_index - 1` in batches of about `batch_bytes`, at least one
        entry each, in memory of their own. Structure, order and chain are always checked, the link to
        the entry before the first unless `link_first` is False.

        Raises IndexOutOfRange, DirectoryDamaged at the first entry that is not as it was written.
        """
        if first_index >= stop_index:
            return
        self._check_range(first_index, stop_index)
        place = self._place_before(first_index, link_first)
        while place.next_index < stop_index:
            got = self._entries.next_batch(place, stop_index, batch_bytes, check_bodies=check_bodies)
            if isinstance(got, ReadStop):
                place = self._in_next_segment(place, got)
            else:
                place = self._entries.behind(got, place)
                yield got

    def pieces(self, first_index: int, stop_index: int) -> Iterator[EntryBatch | Damage]:
        """As `batches`, continuing after damage where the index leads past it: each gap is a Damage,
        whose `stop_index` is where reading continues."""
        if not self.segments and self.missing is not None:
            yield self.missing
            return
        is_linked = True
        while first_index < stop_index:
            try:
                for batch in self.batches(first_index, stop_index, link_first=is_linked):
                    yield batch
                    first_index, is_linked = batch.last_index + 1, True
            except DirectoryDamaged as error:
                if error.index >= first_index:
                    # `path: text (position P, index I)` says the place twice; the fields are enough.
                    text = str(error).removeprefix(f"{self.path}/{error.path}: ").partition(" (pos")[0]
                    next_index = self._next_readable(error.index + 1, stop_index)
                    yield Damage(error.path, error.position, error.index, text, next_index)
                    first_index = next_index
                is_linked = False

    def _next_readable(self, first_index: int, stop_index: int) -> int:
        """The first entry that lies where its unit says, or begins a segment; else `stop_index`."""
        at = bisect_right(self._first_indices, first_index - 1)
        if at < len(self.segments):
            stop_index = min(stop_index, self._first_indices[at])
        units_stop = min(stop_index, self.units.stop_index)
        for first, _, is_named in self.units.chunks(first_index, units_stop):
            for index in (first + np.flatnonzero(is_named)).tolist():
                if self._header_by_unit(index) is not None:
                    return int(index)
        return stop_index

    def _place_before(self, index: int, link_first: bool) -> ReadPlace:
        header = self.header_at(index)
        if link_first and not self.is_java and index == self.begin.index + 1:
            return ReadPlace(index, header.pos, self.begin.term, self.begin.chain)
        if link_first and index > self.ledger_begin_index:
            previous = self.header_at(index - 1)
            return ReadPlace(index, header.pos, previous.term, previous.chain_crc)
        return ReadPlace(index, header.pos, -1, header.chain_before if index else 0)

    def _in_next_segment(self, place: ReadPlace, stop: ReadStop) -> ReadPlace:
        """Where the log goes on if its segment ends at `place`. A blank record that is not there,
        between two entries that are linked, loses none of them. Raises DirectoryDamaged."""
        next_base = self._data.base_of(place.position) + self._data.segment_bytes
        header = header_at(self._data, next_base)
        is_next = header is not None and header.index == place.next_index
        if header is not None and self.checked:
            is_next &= header.chain_before == place.previous_chain
        if not is_next:
            raise self._nothing_at(place, place.next_index, stop)
        return place._replace(position=next_base)

    def _header_by_unit(self, index: int) -> EntryHeader | None:
        unit = self.units.read(index, index + 1)[0]
        position = int(unit["position"])
        if int(unit["index"]) != index or not 0 <= position < MAX_POSITION:
            return None
        header = header_at(self._data, position)
        return header if header is not None and header.index == index else None

    def _header_by_walk(self, index: int) -> EntryHeader:
        """By structure alone, from the begin of the segment or where the last such walk ended. Raises
        DirectoryDamaged."""
        if not self.segments or index < self._first_indices[0]:
            raise self._damaged(self.begin.position, index, "no file holds the begin of the log")
        segment = self.segments[max(bisect_right(self._first_indices, index) - 1, 0)]
        place = ReadPlace(segment.first_index, segment.first_position, -1, 0)
        if segment.first_index <= self._walked.next_index <= index:
            place = self._walked
        while True:
            got = self._structure.next_batch(place, index + 1, 2 * MIB, check_bodies=False)
            if isinstance(got, ReadStop):
                raise self._nothing_at(place, index, got)
            if got.last_index == index:
                offset = int(got.starts[-1])
                self._walked = ReadPlace(index, place.position + offset, -1, 0)
                return unpack_header(got.buffer, offset)
            place = self._structure.behind(got, place)

    # ---------------------------------------------------------------- helpers

    def _check_range(self, first_index: int, stop_index: int) -> None:
        if (
            self.ledger_begin_index < 0
            or first_index < self.ledger_begin_index
            or stop_index > self.named_stop_index
        ):
            raise IndexOutOfRange(
                f"{self.path} holds entries {self.ledger_begin_index} to {self.end.index}, not"
                f" {first_index} to {stop_index - 1}",
                ledger_begin_index=self.ledger_begin_index,
                committed_index=self.committed_index,
            )

    def refusal(self, damage: Damage) -> DirectoryDamaged:
        return DirectoryDamaged(
            f"{self.path}/{damage.path}: {damage.problem} ({damage.place})",
            path=damage.path,
            position=damage.position,
            index=damage.index,
        )

    def _nothing_at(self, place: ReadPlace, index: int, stop: ReadStop) -> DirectoryDamaged:
        """After a good blank record it is the next segment that should go on with the entry."""
        position = place.position
        if stop.is_blank and not stop.problem:
            position = self._data.base_of(position) + self._data.segment_bytes
        return self._damaged(position, index, stop.problem)

    def _damaged(self, position: int, index: int, problem: str) -> DirectoryDamaged:
        problem = problem or f"the log has no entry {index} at {position}, where it should be"
        return self.refusal(Damage(self._data.name_of(position), position, index, problem))


# ----------------------------------------------------------------
# The time marks of a directory that is only looked at.


class StoredMarks(MarkedLog):
    def __init__(self, disk: Disk, reader: DirectoryReader) -> None:
        self._disk = disk
        self._reader = reader

    @cached_property
    def clock_resets(self) -> Resets:
        """Those that the newest state knows, and after it those that the index names."""
        state, first_index = self.newest_state(self._reader.readable_index)
        resets = state.clock_resets
        for batch in self.control_batches(first_index, self._reader.readable_index + 1):
            time_ms = said_ms(batch.first_header.magic, batch.body(0))
            if time_ms is not None and batch.first_header.magic == EntryKind.CLOCK:
                resets = with_reset(resets, Reset(batch.first_index, time_ms))
        return resets

    def newest_state(self, last_index: int) -> tuple[LogState, int]:
        """Of those that are saved, up to an entry not after this one; and the index after that entry."""
        for index, record in self.states():
            state = decode_state(record)
            if isinstance(state, LogState) and index <= last_index:
                return state, index + 1
        return EMPTY, self.begin_index + 1

    def time_ms_at(self, index: int) -> int:
        """When this entry counts as appended; -1: no mark at or before it. Raises StoreFailure."""
        mark = mark_at_index(self, index)
        return -1 if mark is None else mark.time_ms

    def index_at(self, time_ms: int, stop_index: int) -> int:
        """That of the last mark before `stop_index` that says this time or an earlier one, or the
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
        with disk_work(f"{path}/{STATES_NAME}", "read"):
            for position in reversed(saved_positions(self._disk, path)):
                state = load_state(self._disk, path, position)
                if state is not None and self._holds(state.point):
                    yield state.point.index, state.record
            start = load_start(self._disk, path)
        if start is not None and start.point == self._reader.begin:
            yield start.point.index, start.record

    def control_batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
        """By the kinds in the index; where it lacks the entries, by the entries. Damaged ones are left
        out: their times are unknown."""
        for first, units, is_named in self._reader.units.chunks(first_index, stop_index):
            if bool(is_named.all()):
                for at in np.flatnonzero(units["magic"] > EntryKind.NOOP).tolist():
                    yield from self._controls_of(first + at, first + at + 1)
            else:
                yield from self._controls_of(first, first + len(units))

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
