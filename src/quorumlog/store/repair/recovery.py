"""Recovery: a start applies the survey of its log (survey.py), until every byte is known to be on disk.

    below the durable point    index units that were not synced are written again; what is bad is kept as
                               a damaged range (damaged_ranges.py)
    above it                   whole entries with good digests are written again, the rest is a torn
                               tail: kept aside in `set-aside/` and cut

Nothing is believed because a read shows it: after a SIGKILL the tail is only page cache, and after a
failed `fdatasync` the cache shows bytes, marked clean, that the disk does not have. So names are synced,
what is kept above the durable point is written again, and what lies behind the end is discarded, before
any of it counts.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from quorumlog.config import StoreConfig
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import DiskFull, StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.files.checkpoint_file import CHECKPOINT_NAME
from quorumlog.store.files.damaged_ranges import DAMAGED_NAME, DamagedRanges, load_damaged
from quorumlog.store.files.durable_file import DurableFile, DurablePoint
from quorumlog.store.files.start_file import START_NAME, good_start_slots, load_start, save_start
from quorumlog.store.ledger_store import LogPoint, LogStart
from quorumlog.store.log.entry_index import IndexSegments
from quorumlog.store.log.ledger_space import control_reserve
from quorumlog.store.log.segment import PAGE_BYTES, Segment
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME, SegmentList
from quorumlog.store.log.segment_scan import (
    BLANK_BYTES,
    INDEX_DTYPE,
    INDEX_UNIT_BYTES,
    IndexArray,
    SegmentScan,
    blank_record,
    index_units_of,
)
from quorumlog.store.repair.leftovers import remove_leftovers
from quorumlog.store.repair.segment_adoption import SegmentAdoption
from quorumlog.store.repair.survey import LogSurvey, survey_log
from quorumlog.store.repair.survey_files import FileSurvey, begin_path, survey_files

MOST_UNWRITTEN = 1 << 21
"""Index units that are kept in memory for lack of space, 64 MiB; with more a start is refused."""


class RecoveryReport(NamedTuple):
    lines: tuple[str, ...]
    """For people; empty after a clean stop."""
    cut_bytes: int
    """From the end of the log to the last byte behind it that was not zero."""
    cut_entries: int
    """Whole entries recognised behind the tear; they are in `set-aside/`."""
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
    durable point cannot be bounded, or nobody knows where the log begins; StoreFailure."""
    start = load_start(disk, directory)
    known = durable_file.load()
    if known is None:
        raise StoreFailure(f"{directory}/durable has no readable slot")
    try:
        for path in (f"{directory}/{DATA_NAME}", f"{directory}/{INDEX_NAME}"):
            disk.make_directory(path)
            disk.sync_directory(path)
        disk.sync_directory(directory)
        files = survey_files(disk, directory, config, known, start)
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
    try:
        if disk.exists(f"{directory}/{CHECKPOINT_NAME}"):
            disk.unlink(f"{directory}/{CHECKPOINT_NAME}")
            disk.sync_directory(directory)
        start = msgspec.structs.replace(start, replaces=False)
        save_start(disk, directory, start)
    except OSError as error:
        raise StoreFailure(refusal(directory, "recovered", error)) from error
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
        files: FileSurvey,
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
        """Index units for which there is no space, in order, and all behind them."""
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
            found = survey_log(
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
                self._lines.append(f"the index was made again from entry {first_index + wrong} on")
        if self._has_index_space(first_index, position, units):
            self._index.make_writable(position, units.nbytes)
            self._written += self._index.write(units.tobytes(), position)
        else:
            self._unwritten.append(units)

    def _has_index_space(self, first_index: int, position: int, units: IndexArray) -> bool:
        """False behind the first units that have none. Raises DiskFull for more than memory may hold."""
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

    def _write_blanks(self, found: LogSurvey) -> None:
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

    def _keep_tail_aside(self, found: LogSurvey) -> None:
        end = found.end
        for first, stop in found.cut_pieces:
            self._adoption.copy_aside(self._data, first, stop)
        if found.cut_pieces:
            at = f"at {end.position}, behind entry {end.index}"
            self._lines.append(
                f"torn tail {at}: {found.tail or 'bytes behind the end of the log'};"
                f" {found.cut_bytes} bytes with {found.cut_entries} whole entries were cut"
            )

    def _write_pages(self, found: LogSurvey) -> tuple[str, ...]:
        """Zeros over the pages behind the end that the disk cannot read: the next write there may be of
        a part only. Returns what is said of it."""
        rewritten = []
        for files, pages in ((self._data, found.unreadable), (self._index, found.unreadable_units)):
            for page in pages:
                file = files.file_at(page.position)
                assert file is not None, page
                file.zero(page.position, min(page.position + PAGE_BYTES, file.end_position))
                rewritten.append(
                    f"{file.path}: the page at {page.position}, behind the end of the log (entry"
                    f" {found.end.index}), {page.problem}; written again"
                )
        self._lines += rewritten
        return tuple(rewritten)

    def _cut(self, end: LogPoint, ranges: DamagedRanges) -> None:
        """Zeros behind the end, on disk, with everything that was written again in front of it."""
        damaged = ranges.ending_at(end.index)
        low = end.position if damaged is None else ranges.run_around(damaged)[0].position
        units_position = (end.index + 1) * INDEX_UNIT_BYTES
        data_stop, index_stop = control_reserve(self._files.config, end.position, end.index + 1)
        if self._unwritten:
            # Whole pages, which then need no space; what stands in front of them does not count.
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
