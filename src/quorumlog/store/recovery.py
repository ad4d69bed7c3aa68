"""Recovery at a start: the files are scanned, cut and repaired before anything is served."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import NamedTuple

import msgspec
import numpy as np

from quorumlog.config import StoreConfig
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import DiskFull, StoreFailure
from quorumlog.store.disk import (
    Disk,
    disk_work,
    is_folder,
    is_lack_of_space,
    kept_descriptors,
    reason_of,
    refusal,
)
from quorumlog.store.durable_file import DurableFile, DurablePoint
from quorumlog.store.entry_index import IndexSegments
from quorumlog.store.ledger_space import control_reserve
from quorumlog.store.log_points import LogPoint, LogStart, SetAsideCount
from quorumlog.store.recovery_scan import (
    Fate,
    FileScan,
    LogScan,
    SegmentFinding,
    begin_path,
    scan_files,
    scan_log,
)
from quorumlog.store.segment import PAGE_BYTES, Segment
from quorumlog.store.segment_view import SegmentFile, SegmentView, read_pages
from quorumlog.store.segments import (
    BLANK_BYTES,
    DATA_NAME,
    INDEX_DTYPE,
    INDEX_NAME,
    INDEX_UNIT_BYTES,
    NAME_DIGITS,
    IndexArray,
    SegmentList,
    SegmentScan,
    blank_record,
    index_units_of,
    segment_name,
)
from quorumlog.store.state_files import (
    CHECKPOINT_NAME,
    DAMAGED_NAME,
    START_NAME,
    STATES_NAME,
    DamagedRanges,
    good_start_slots,
    load_damaged,
    load_start,
    save_start,
)

# ---------------------------------------------------------------- What a crash has left beside the log
# Files that were not given their name, and what is in the way.


def remove_leftovers(disk: Disk, directory: str, config: StoreConfig) -> list[str]:
    """For a start of the process; returns its actions, in sentences. Nothing depends on it."""
    lines: list[str] = []
    folder = f"{directory}/{STATES_NAME}"
    left = [f"{directory}/{START_NAME}.tmp"]
    set_aside = SetAside(disk, directory, config)
    try:
        names = disk.list(folder)
    except NotADirectoryError:
        names = []
        set_aside.take(folder, STATES_NAME)
        lines.append(f"{folder} is not a directory, set aside")
    for name in names:
        path = f"{folder}/{name}"
        if is_folder(disk, path):
            set_aside.take(path, f"{STATES_NAME}-{name}")
            lines.append(f"{path} is a directory, set aside")
        elif name.endswith(".tmp"):
            left.append(path)
    for path in left:
        if disk.exists(path):
            with suppress(OSError):  # a folder, or a full disk
                disk.unlink(path)
    return lines


# ---------------------------------------------------------------- SetAside
# `DIR/set-aside`, where bytes and files are kept for people to look at.
#
#     damaged-00000000000000004096.7   what a repair has overwritten, from that position of the data on
#     00000000000000012288.8           what a start has cut off after the log
#     data-..., index-...              files and bytes that do not belong there
#
# The last number counts what came. Above `max_set_aside_bytes` the oldest goes, but never the newest of
# each segment, or of each file that is none.

log = logging.getLogger("quorumlog.store")

SET_ASIDE_NAME = "set-aside"
_POSITION = re.compile(rf"([0-9]{{{NAME_DIGITS}}})(-[0-9]+)?$")
"""The rest was the number of a copy in earlier releases."""


class _Kept(NamedTuple):
    number: int
    name: str
    origin: tuple[str, int]
    """The file that it is of."""
    size_bytes: int


class SetAside:
    def __init__(self, disk: Disk, directory: str, config: StoreConfig) -> None:
        self.count = SetAsideCount(0, 0)
        self._disk = disk
        self._directory = directory
        self._config = config
        self.path = f"{directory}/{SET_ASIDE_NAME}"

    def new_name(self, name: str) -> str:
        """A path in the folder, which exists then and whose name is on disk. Raises OSError."""
        self._disk.make_directory(self.path)
        self._disk.sync_directory(self._directory)
        number = max((_numbered(held)[1] for held in self._disk.list(self.path)), default=0) + 1
        return f"{self.path}/{name}.{number}"

    def take(self, path: str, name: str) -> str:
        """Move a file or folder here; returns its new path. Raises OSError."""
        target = self.new_name(name)
        self._disk.rename(path, target)
        self.came()
        self._disk.sync_directory(path.rpartition("/")[0])
        return target

    def write(self, target: str, pieces: Iterable[bytes], offset: int = 0) -> None:
        """Into a file of the folder, new or not; on disk when this returns. Raises OSError."""
        with closing(self._disk.open(target, create=not self._disk.exists(target))) as copy:
            for piece in pieces:
                copy.pwritev([piece], offset)
                offset += len(piece)
            copy.sync()
        self.came()

    def came(self) -> None:
        """A file was added: sync its name, delete old ones beyond the limit. Raises OSError."""
        self._disk.sync_directory(self.path)
        self.tidy()

    def tidy(self) -> None:
        """As far as that is possible. Any thread."""
        kept, limit_bytes = self._look(), self._config.max_set_aside_bytes
        newest = {each.origin: each for each in kept}
        left = sum(each.size_bytes for each in kept)
        for each in kept:
            if left > limit_bytes and newest[each.origin] is not each:
                with suppress(OSError):  # a folder, or people were faster
                    path = f"{self.path}/{each.name}"
                    self._disk.unlink(path)
                    left -= each.size_bytes
                    log.info(
                        "deleted %s (%d bytes): more than max_set_aside_bytes (%d) were set aside",
                        path,
                        each.size_bytes,
                        limit_bytes,
                    )
        self.look()

    def look(self) -> None:
        """Count the files here. Any thread."""
        kept = self._look()
        self.count = SetAsideCount(len(kept), sum(each.size_bytes for each in kept))

    def _look(self) -> list[_Kept]:
        """From the oldest file on."""
        kept = []
        with suppress(OSError):
            for name in self._disk.list(self.path):
                stem, number = _numbered(name)
                with suppress(OSError):
                    size_bytes = self._disk.size_of(f"{self.path}/{name}")
                    kept.append(_Kept(number, name, self._origin(stem), size_bytes))
        return sorted(kept)

    def _origin(self, stem: str) -> tuple[str, int]:
        found = _POSITION.search(stem)
        if found is None:
            return stem, 0
        if stem.startswith(INDEX_NAME):
            return INDEX_NAME, int(found[1]) // self._config.index_segment_bytes
        return DATA_NAME, int(found[1]) // self._config.segment_bytes


def _numbered(name: str) -> tuple[str, int]:
    """The name as it was asked for, and its number; 0 for what an earlier release has kept."""
    stem, _, number = name.rpartition(".")
    return (stem, int(number)) if stem and number.isascii() and number.isdigit() else (name, 0)


# ---------------------------------------------------------------- SegmentAdoption
# A start does to the segment files what their scan says (`scan_files`). What does not belong
# to the log is set aside; the others become lists of files of full length.

_CHUNK_BYTES = 4 << 20

_CANNOT_BE_MOVED = (errno.EXDEV, errno.EBUSY, errno.ENAMETOOLONG)
"""A mount, or a name that has no room for what a name set aside begins with."""


class SegmentAdoption:
    """The files of one start; the caller closes `data` and `index`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        durable_file: DurableFile,
        found: FileScan,
    ) -> None:
        self.lines: list[str] = []
        self.kept_aside: list[str] = []
        """Where foreign files and cut bytes were moved."""
        self._disk = disk
        self._durable_file = durable_file
        self._found = found
        config = found.config
        self._set_aside = SetAside(disk, directory, config)
        first_unit_position = (found.begin.index + 1) * INDEX_UNIT_BYTES
        index_bytes = config.index_segment_bytes
        self.data = SegmentList(
            disk, f"{directory}/{DATA_NAME}", config.segment_bytes, found.begin.position
        )
        self.index = IndexSegments(
            disk,
            f"{directory}/{INDEX_NAME}",
            index_bytes,
            first_unit_position // index_bytes * index_bytes,
        )

    def adopt(self) -> None:
        """Raises OSError, DiskFull."""
        for path, name in self._found.strangers:
            try:
                self.kept_aside.append(self._set_aside.take(path, name))
                self.lines.append(f"{path} is not a segment, set aside")
            except OSError as error:
                if not (is_lack_of_space(error) or error.errno in _CANNOT_BE_MOVED):
                    raise
                self.lines.append(f"{path} is not a segment and stays where it is: {reason_of(error)}")
        if self._found.lost_from < self._found.known.point.position or self._is_index_lost:
            # Should this start not come to its end, the next one finds files of full length: it has to
            # look for entries in them, and for all the units that they should have.
            self.record_known()
        for files, findings in ((self.data, self._found.data), (self.index, self._found.index)):
            dropped = [each for each in findings if each.fate is Fate.DROPPED]
            for finding in dropped:
                self._disk.unlink(finding.path)
            if dropped:
                self._disk.sync_directory(files.directory)
                names = [segment_name(each.position) for each in (dropped[0], dropped[-1])]
                self.lines.append(
                    f"{files.directory}: {len(dropped)} segments ({names[0]} .. {names[1]}) are no"
                    " longer part of the log, removed"
                )
            with kept_descriptors.parking(lambda: self.data.park() + self.index.park()):
                for finding in findings:
                    if finding.fate is not Fate.DROPPED:
                        self._adopt(files, finding)

    @property
    def _is_index_lost(self) -> bool:
        """Of entries up to the durable point."""
        return self._found.trusted_stop_index <= self._found.known.point.index

    def record_known(self) -> None:
        """The durable point that was found, in both slots and synced."""
        point, synced_position = self._found.known
        if self._is_index_lost:
            synced_position = self._found.begin.position
        synced_position = min(synced_position, self._found.lost_from)
        self._durable_file.record_both_synced(DurablePoint(point, synced_position))

    def _adopt(self, files: SegmentList, finding: SegmentFinding) -> None:
        if finding.line:
            self.lines.append(finding.line)
        if finding.fate is Fate.ASIDE:
            folder = files.directory.rpartition("/")[2]
            name = f"{folder}-{segment_name(finding.position)}"
            self.kept_aside.append(self._set_aside.take(finding.path, name))
            return
        if finding.fate is Fate.REMOVED:
            self._disk.unlink(finding.path)
            self._disk.sync_directory(files.directory)
            return
        if finding.size_bytes < 0:
            files.create_next()
        else:
            size_bytes = finding.size_bytes
            if finding.fate is Fate.LONG:
                self._cut_off(files, finding)
                size_bytes = files.segment_bytes
            file = Segment.open(self._disk, finding.path, finding.position, files.segment_bytes)
            if size_bytes != files.segment_bytes:
                low = finding.position if files is self.index else None  # units can be made again
                file.discard_from(finding.position + size_bytes, low=low)
                file.sync()
            files.adopt(file)
        if finding.fate is Fate.MADE_AGAIN and files is self.data:
            # Best now; else each piece of the repair asks for its own.
            file = files.files[-1]
            with suppress(DiskFull):
                file.reserve(file.base_position, file.end_position)

    def _cut_off(self, files: SegmentList, finding: SegmentFinding) -> None:
        end = finding.position + files.segment_bytes
        held = SegmentFile("", finding.position, finding.size_bytes)
        whole_file = SegmentView(self._disk, files.directory, [held], finding.size_bytes)
        prefix = "" if files is self.data else f"{INDEX_NAME}-"
        self.copy_aside(whole_file, end, finding.position + finding.size_bytes, prefix)
        whole_file.close()
        file = Segment.open(self._disk, finding.path, finding.position, files.segment_bytes)
        file.discard_from(end)
        file.sync()
        file.release()

    def copy_aside(self, segments: SegmentList, first: int, stop: int, prefix: str = "") -> None:
        """Lack of space for the copy is ignored: the bytes cut were never acknowledged. Unreadable pages
        are zeros in it."""
        path, target = segments.path_of(first), ""
        try:
            target = self._set_aside.new_name(prefix + segment_name(first))
            pieces = (
                read_pages(segments, min(_CHUNK_BYTES, stop - start), start)[0]
                for start in range(first, stop, _CHUNK_BYTES)
            )
            self._set_aside.write(target, pieces)
        except OSError as error:
            if not is_lack_of_space(error):
                raise
            if target and self._disk.exists(target):
                self._disk.unlink(target)
            self.lines.append(f"no space to keep {stop - first} cut bytes of {path} aside")
            return
        self.kept_aside.append(target)


# ---------------------------------------------------------------- Recovery
# A start applies the recovery scan of its log (recovery_scan.py), until every byte is known to be on
# disk.
#
#   below the durable point    index units that were not synced are written again; what is bad is kept as
#                              a damaged range (state_files.py)
#   above it                   whole entries with good digests are written again, the rest is a torn
#                              tail: kept aside in `set-aside/` and cut
#
# Nothing is believed because a read shows it: after a SIGKILL the tail is only page cache, and after a
# failed `fdatasync` the cache shows bytes, marked clean, that the disk does not have. So names are
# synced, what is kept above the durable point is written again, and what lies after the end is
# discarded, before any of it counts.

MOST_UNWRITTEN = 1 << 21
"""Index units that are kept in memory for lack of space, 64 MiB; with more a start is refused."""


class RecoveryReport(NamedTuple):
    lines: tuple[str, ...]
    """For people; empty after a clean stop."""
    cut_bytes: int
    """From the end of the log to the last non-zero byte after it."""
    cut_entries: int
    """Whole entries recognised after the tear; they are in `set-aside/`."""
    set_aside: str
    """Where the cut bytes, and files that do not belong there, are kept; "" if there were none, or no
    space for them."""
    rewritten: tuple[str, ...] = ()
    """Places that the disk could not read and that did not count: written again."""


class RecoveredLog(NamedTuple):
    start: LogStart | None
    data_files: SegmentList
    index_files: IndexSegments
    end: LogPoint
    report: RecoveryReport
    damaged: DamagedRanges
    index_synced_position: int
    """From here on the next start looks at every entry again."""


def recover_log(
    disk: Disk, directory: str, config: StoreConfig, durable_file: DurableFile
) -> RecoveredLog:
    """Make the log in `directory` good for appends. Raises DirectoryDamaged where damage at or below the
    durable point cannot be bounded, or the log's begin is unknown; StoreFailure."""
    start = load_start(disk, directory)
    known = durable_file.load()
    if known is None:
        raise StoreFailure(f"{directory}/durable has no readable slot")
    try:
        for path in (f"{directory}/{DATA_NAME}", f"{directory}/{INDEX_NAME}"):
            disk.make_directory(path)
            disk.sync_directory(path)
        disk.sync_directory(directory)
        files = scan_files(disk, directory, config, known, start)
        lines = remove_leftovers(disk, directory, config)
        if start is not None:
            if good_start_slots(disk, directory) < 2:
                lines.append(f"{directory}/{START_NAME}: one of two slots was not good, written again")
            # It may be in the page cache only, and what it leaves no use for goes now. Or the
            # other slot, which comes back without power, still says that all of this log goes.
            save_start(disk, directory, start)
        log = _Recovery(disk, directory, durable_file, files, start, lines).run()
    except OSError as error:
        raise StoreFailure(refusal(directory, "recovered", error)) from error
    except DiskFull as error:
        raise StoreFailure(f"{directory}: no space to make files whole again: {error}") from error
    durable_file.record_both_synced(DurablePoint(log.end, log.index_synced_position))
    if start is not None and start.replaces:
        start = _end_replacing(disk, directory, start)
    return log._replace(start=start)


def _end_replacing(disk: Disk, directory: str, start: LogStart) -> LogStart:
    """Nothing is left of the log that was replaced, on disk; from now on a start of the process keeps
    what it finds."""
    with disk_work(directory, "recovered"):
        if disk.exists(f"{directory}/{CHECKPOINT_NAME}"):
            disk.unlink(f"{directory}/{CHECKPOINT_NAME}")
            disk.sync_directory(directory)
    start = msgspec.structs.replace(start, replaces=False)
    try:
        save_start(disk, directory, start)
    except DiskFull as error:
        raise StoreFailure(f"{directory} cannot be recovered: {error}") from error
    return start


class _Recovery:
    """One start. The methods stand in the order in which `run` calls them."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        durable_file: DurableFile,
        files: FileScan,
        start: LogStart | None,
        lines: list[str],
    ) -> None:
        self._start = start
        self._disk = disk
        self._directory = directory
        self._files = files
        self._is_index_rebuilt = False
        self._has_restored = False
        self._unwritten: list[IndexArray] = []
        """Index units for which there is no space, in order, and all after them."""
        self._written: list[Segment] = []
        """Files with bytes that are not synced yet."""
        self._adoption = SegmentAdoption(disk, directory, durable_file, files)
        self._data = self._adoption.data
        self._index = self._adoption.index
        self._lines = self._adoption.lines
        self._lines += lines

    def run(self) -> RecoveredLog:
        try:
            self._adoption.adopt()
            known_ranges = load_damaged(
                self._disk,
                self._directory,
                self._files.known.point,
                self._start,
                begin_path(self._files.begin),
            )
            if known_ranges is None:
                self._lines.append(
                    f"{self._directory}/{DAMAGED_NAME} is unreadable: the log is verified"
                )
            found = scan_log(
                self._data,
                self._index,
                self._files,
                known_ranges,
                self._write_again,
                must_be_bounded=True,
            )
            self._lines += found.lines
            if found.ranges:
                # Both slots first, as at run time: what was read of them may be in the page cache only,
                # and a range above the durable point would count as what a cut has left.
                self._adoption.record_known()
            # From here on no later start takes a segment that was made again for a healthy one.
            damaged = DamagedRanges(self._disk, self._directory, found.ranges)
            damaged.save()
            self._write_blanks(found)
            self._keep_tail_aside(found)
            rewritten = self._write_pages(found)
            self._cut(found.end, damaged)
        except BaseException:
            self._data.close()
            self._index.close()
            raise
        report = RecoveryReport(
            tuple(self._lines),
            found.cut_bytes,
            found.cut_entries,
            ", ".join(self._adoption.kept_aside),
            rewritten,
        )
        unsaved = damaged.ranges if damaged.problem else ()
        synced_positions = [found.end.position, *(each.before.position for each in unsaved)]
        if self._unwritten:
            synced_positions.append(int(self._unwritten[0]["position"][0]))
        return RecoveredLog(
            self._start, self._data, self._index, found.end, report, damaged, min(synced_positions)
        )

    # ---------------------------------------------------------------- what is good

    def _write_again(self, scan: SegmentScan, tail_bytes: bytes) -> None:
        """The index units of good entries, whatever is there, and the entries of the tail, which may be
        in the cache and not on the disk. Not synced yet."""
        if tail_bytes:
            position = int(scan.positions[0])
            file = self._data.file_at(position)
            assert file is not None, position
            file.write([tail_bytes], position)
            self._written.append(file)
        units = index_units_of(scan.headers, scan.positions)
        first_index = int(units["index"][0])
        position = first_index * INDEX_UNIT_BYTES
        if not tail_bytes and not self._is_index_rebuilt:
            try:
                before = self._index.pread(units.nbytes, position)
            except OSError:
                before = b""
            found = np.frombuffer(before, INDEX_DTYPE, len(before) // INDEX_UNIT_BYTES)
            differs = found != units[: len(found)]
            wrong = int(differs.argmax()) if differs.any() else len(found)
            if wrong < len(units):
                self._is_index_rebuilt = True
                self._lines.append(f"the index was rebuilt from entry {first_index + wrong} on")
        if self._has_index_space(first_index, position, units):
            self._index.make_writable(position, units.nbytes)
            self._written += self._index.write(units.tobytes(), position)
        else:
            self._unwritten.append(units)

    def _has_index_space(self, first_index: int, position: int, units: IndexArray) -> bool:
        """False after the first units that have none. Raises DiskFull for more than memory may hold."""
        if self._unwritten and first_index <= self._unwritten[0]["index"][0]:
            self._unwritten.clear()  # the walk has begun again, further back
        if self._unwritten:
            kept = first_index + len(units) - int(self._unwritten[0]["index"][0])
            if kept > MOST_UNWRITTEN:
                raise DiskFull(f"the index of {kept} entries has none in {self._index.directory}")
            return False
        if not self._has_restored or position < self._index.reserved_position:
            self._has_restored, self._index.reserved_position = True, position
        try:
            self._index.reserve(position + units.nbytes, 0)
        except DiskFull:
            self._lines.append(
                f"no space for the index from entry {first_index} on: it is kept in memory until an"
                " append finds some"
            )
            return False
        return True

    def _unwritten_units(self, stop_index: int) -> IndexArray:
        first_index = int(self._unwritten[0]["index"][0])
        units = np.zeros(stop_index - first_index, INDEX_DTYPE)
        for piece in self._unwritten:
            offset = int(piece["index"][0]) - first_index
            units[offset : offset + len(piece)] = piece
        return units

    def _write_blanks(self, found: LogScan) -> None:
        for position, rest_bytes in (*found.bad_blanks, *found.tail_blanks):
            file = self._data.file_at(position)
            assert file is not None, position
            if (position, rest_bytes) in found.bad_blanks:
                self._lines.append(f"{file.path}: the blank record at {position} was bad, written again")
                file.make_writable(position, position, file.end_position)
                file.write([blank_record(rest_bytes)], position)
            else:
                file.write([blank_record(rest_bytes)], position)
                # Space that it has stays: on a full disk a truncation writes zeros there.
                behind = position + BLANK_BYTES
                file.discard_from(behind, file.reserve_what_fits(behind, file.end_position))
            self._written.append(file)

    # ---------------------------------------------------------------- the cut

    def _keep_tail_aside(self, found: LogScan) -> None:
        end = found.end
        for first, stop in found.cut_pieces:
            self._adoption.copy_aside(self._data, first, stop)
        if found.cut_pieces:
            at = f"at {end.position}, after entry {end.index}"
            self._lines.append(
                f"torn tail {at}: {found.tail or 'bytes after the end of the log'};"
                f" {found.cut_bytes} bytes with {found.cut_entries} whole entries were cut"
            )

    def _write_pages(self, found: LogScan) -> tuple[str, ...]:
        """Zeros over the pages after the end that the disk cannot read: the next write there may be of
        a part only. Returns what is said of it."""
        rewritten = []
        for files, pages in ((self._data, found.unreadable), (self._index, found.unreadable_units)):
            for page in pages:
                file = files.file_at(page.position)
                assert file is not None, page
                file.zero(page.position, min(page.position + PAGE_BYTES, file.end_position))
                rewritten.append(
                    f"{file.path}: the page at {page.position}, after the end of the log (entry"
                    f" {found.end.index}), {page.problem}; written again"
                )
        self._lines += rewritten
        return tuple(rewritten)

    def _cut(self, end: LogPoint, ranges: DamagedRanges) -> None:
        """Zeros after the end, on disk, with everything that was written again before it."""
        damaged = ranges.ending_at(end.index)
        low = end.position if damaged is None else ranges.run_around(damaged)[0].position
        units_position = (end.index + 1) * INDEX_UNIT_BYTES
        data_stop, index_stop = control_reserve(self._files.config, end.position, end.index + 1)
        if self._unwritten:
            # Whole pages, which then need no space; what stands before them does not count.
            first_position = int(self._unwritten[0]["index"][0]) * INDEX_UNIT_BYTES
            base = self._index.base_of(first_position)
            units_position = index_stop = min(
                first_position + -(first_position - base) % PAGE_BYTES, base + self._index.segment_bytes
            )
        for files, position, reserve_stop, free_from in (
            (self._data, end.position, data_stop, low),
            (self._index, units_position, index_stop, 0),  # units can be made again
        ):
            file = files.discard_from(position, reserve_stop, free_from)
            if file is not None:
                self._written.append(file)
        if self._unwritten:
            self._index.hold(self._unwritten_units(end.index + 1))
        elif (
            self._is_index_rebuilt
            or self._adoption.kept_aside
            or self._index.reserved_position <= units_position  # with a file that held no unit yet
        ):
            self._match_reserve(end, min(data_stop, self._data.reserved_position))
        self._sync_written()

    def _match_reserve(self, end: LogPoint, data_stop: int) -> None:
        """A lost file has taken its part of the index' reserve along, and a neighbour may have it. The
        index follows from the log and can wait in memory; the no-op of an election cannot."""
        room = (data_stop - end.position) // HEADER_BYTES
        stop_index = end.index + 1
        try:
            self._index.reserve((stop_index + room) * INDEX_UNIT_BYTES, 0)
        except DiskFull:
            self._index.lacks_reserve = True

    def _sync_written(self) -> None:
        held = {*self._data.files, *self._index.files}
        for written in dict.fromkeys(self._written):
            if written in held:  # a file of the index may have made way for what is in memory
                written.sync()
