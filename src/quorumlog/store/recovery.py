"""Recovery: from files as a crash left them to a log whose every byte is known to be on disk.

    below the durable point    trusted, except that index units which were not synced are written again;
                               what is bad is kept as a range in quarantine (quarantine.py), its ends
                               known, until another member's copy takes its place
    above it                   whole entries with good digests are kept, the rest is a torn tail: kept
                               aside in `quarantine/` and cut

Nothing is believed because a read shows it. After a SIGKILL the tail is only page cache, and after a
failed `fdatasync` the cache shows bytes, marked clean, that the disk does not have. So the names are
synced, what is kept above the durable point is written again, and what lies behind the end is
discarded and synced, all before any of it counts.

Entries below the position up to which the index was synced are not looked at, so the time of a start
does not grow with the log; a segment file that is missing or short is noticed all the same, and made
again at full length (segment_adoption.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from isal.isal_zlib import crc32

from quorumlog.config import StoreConfig
from quorumlog.entry_header import HEADER_BYTES, unpack_header
from quorumlog.errors import DirectoryDamaged, DiskFull, StoreFailure
from quorumlog.store.damage_search import AnchorDamaged, DamageSearch, end_of
from quorumlog.store.disk import Disk
from quorumlog.store.durable_file import DurableFile, DurablePoint
from quorumlog.store.ledger_space import control_reserve
from quorumlog.store.ledger_store import LogPoint, QuarantinedRange
from quorumlog.store.mmap_file import MmapFile
from quorumlog.store.mmap_file_list import MmapFileList
from quorumlog.store.placement import problem_of_units
from quorumlog.store.quarantine import (
    HEALING_NAME,
    Quarantine,
    load_quarantine,
)
from quorumlog.store.segment_adoption import SegmentAdoption
from quorumlog.store.segment_scan import (
    BLANK_BYTES,
    INDEX_DTYPE,
    INDEX_UNIT_BYTES,
    IndexArray,
    SegmentScan,
    blank_record,
    index_units_of,
)

_ZERO_CHECK_BYTES = 256 << 10
_TAIL_GAP_BYTES = 64 << 20
"""As many bytes as a leader may have uncommitted: unsynced appends leave no longer gap of zeros."""


class RecoveryReport(NamedTuple):
    """What a start found and did."""

    lines: tuple[str, ...]
    """For people; empty after a clean stop."""
    cut_bytes: int
    """From the end of the log to the last byte behind it that was not zero."""
    cut_entries: int
    """Whole entries recognised behind the tear; they are in the quarantine folder."""
    quarantined: str
    """Where the cut bytes were kept; "" if there were none, or no space for them."""
    rebuilt_index_from: int
    """First entry at or below the durable point whose index unit was wrong; -1: none."""


class RecoveredLog(NamedTuple):
    data_files: MmapFileList
    index_files: MmapFileList
    end: LogPoint
    report: RecoveryReport
    quarantine: Quarantine


def verify_hint(directory: str) -> str:
    return f"run: quorumlog verify {directory}"


def recover_log(
    disk: Disk, directory: str, config: StoreConfig, durable_file: DurableFile, begin: LogPoint
) -> RecoveredLog:
    """Make the log in `directory` good for appends; it begins behind `begin`.

    Raises DirectoryDamaged with file, position and index where damage at or below the durable point
    cannot be bounded; StoreFailure where the disk refuses.
    """
    known = durable_file.load()
    if known is None:
        raise StoreFailure(f"{directory}/durable has no readable slot")
    recovery = _Recovery(disk, directory, config, durable_file, known, begin)
    try:
        log = recovery.run()
    except OSError as error:
        raise StoreFailure(f"{directory} cannot be recovered: {error}") from error
    except DiskFull as error:
        raise StoreFailure(f"{directory}: no space to make files whole again: {error}") from error
    durable_file.record_both_synced(DurablePoint(log.end, log.end.position))
    return log


class _Recovery:
    """One start. The methods stand in the order in which `run` calls them."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: StoreConfig,
        durable_file: DurableFile,
        known: DurablePoint,
        begin: LogPoint,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._durable = known.point
        self._begin = begin
        self._index_synced_position = known.index_synced_position
        self._cut_bytes = 0
        self._cut_entries = 0
        self._rebuilt_index_from = -1
        self._written: list[MmapFile] = []
        """Files with bytes that are not synced yet."""
        self._known: tuple[QuarantinedRange, ...] = ()
        self._verifies_bodies = False
        assert begin.index <= self._durable.index, (begin, known)
        self._adoption = SegmentAdoption(disk, directory, config, durable_file, known, begin)
        self._data = self._adoption.data
        self._index = self._adoption.index
        self._lines = self._adoption.lines

    def run(self) -> RecoveredLog:
        for path in (self._data.directory, self._index.directory):
            self._disk.make_directory(path)
            self._disk.sync_directory(path)
        self._disk.sync_directory(self._directory)
        try:
            self._adoption.adopt()
            self._verifies_bodies = self._adoption.verifies_bodies
            ranges = self._walk_durable(self._first_index_to_walk_from())
            if ranges:
                # Both slots first, as at run time: what was read of them may be in the page cache only,
                # and a range above the durable point would count as what a cut has left.
                self._adoption.record_known()
            # From here on no later start takes a segment that was made again for a healthy one.
            quarantine = Quarantine(self._disk, self._directory, ranges)
            quarantine.save()
            point = self._durable
            damaged, file = quarantine.ending_at(point.index), self._data.file_at(point.position)
            if damaged is not None and file is not None:
                file.make_writable(point.position, damaged.before.position, file.end_position)
            end, problem = self._walk_tail(point)
            self._keep_tail_aside(end, problem)
            self._cut(end)
        except BaseException:
            self._data.close()
            self._index.close()
            raise
        report = RecoveryReport(
            tuple(self._lines),
            self._cut_bytes,
            self._cut_entries,
            ", ".join(self._adoption.kept_aside),
            self._rebuilt_index_from,
        )
        return RecoveredLog(self._data, self._index, end, report, quarantine)

    # ---------------------------------------------------------------- below the durable point

    def _first_index_to_walk_from(self) -> int:
        """The last entry whose index unit was synced, or the last one in front of what no file holds;
        that before the log's begin if the index cannot say.

        Units below `index_synced_position` are in order and those above it are newer or zeros, so
        "is unit i there and does its entry end below that position" changes once along the index.
        """
        known = load_quarantine(self._disk, self._directory, self._durable)
        if known is None:
            self._lines.append(f"{self._directory}/{HEALING_NAME} is unreadable: the log is verified")
            self._verifies_bodies = True
            return self._begin.index
        self._known = known
        stop_position = min(self._index_synced_position, self._adoption.lost_from)
        low, high = self._begin.index + 1, self._adoption.trusted_stop_index
        while low < high:
            middle = (low + high) // 2
            if self._synced_unit(middle, stop_position) is not None:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _point_at(self, index: int) -> LogPoint | None:
        """None if index and data do not agree about an entry below the durable point."""
        if index <= self._begin.index:
            return self._begin
        inside = next((each for each in self._known if each.holds(index)), None)
        if inside is not None:
            return inside.before
        unit = self._synced_unit(index, self._durable.position)
        if unit is None:
            return None
        position, size = int(unit["position"][0]), int(unit["size"][0])
        try:
            header_bytes = self._data.pread(HEADER_BYTES, position)
        except OSError:
            return None
        if len(header_bytes) < HEADER_BYTES:
            return None
        header = unpack_header(header_bytes)
        fields = (header.magic, header.pos, header.size, header.index, header.term)
        if fields != unit[0].item():
            return None
        return LogPoint(index, header.term, header.chain_crc, position + size)

    def _synced_unit(self, index: int, stop_position: int) -> IndexArray | None:
        """Shape (1,); None if the unit cannot be true, or its entry does not end below a position."""
        try:
            data = self._index.pread(INDEX_UNIT_BYTES, index * INDEX_UNIT_BYTES)
        except OSError:
            return None
        units = np.frombuffer(data, INDEX_DTYPE, len(data) // INDEX_UNIT_BYTES)
        if not len(units):
            return None
        wrong, _ = problem_of_units(units, index, self._config.segment_bytes, stop_position)
        return units if wrong < 0 else None

    def _walk_durable(self, first_index: int) -> list[QuarantinedRange]:
        """From an entry to the durable point: every header must be there and link to the next. Returns
        what is not, with what was known before."""
        durable = self._durable
        index, back = first_index, 1
        while True:
            point = self._point_at(index)
            if point is None:
                self._lines.append(f"the index unit of entry {index} disagrees with the data")
            else:
                self._index.reserved_position = (point.index + 1) * INDEX_UNIT_BYTES
                search = self._search(lambda scan: self._restore_units(scan, durable=True))
                try:
                    search.walk(point, durable, durable.index, check_bodies=self._verifies_bodies)
                    break
                except AnchorDamaged as problem:
                    if point == self._begin:
                        where = max(durable.position - 1, self._begin.position)
                        raise self._damage(
                            self._data.path_of(where), durable.position, durable.index, str(problem)
                        ) from problem
            index, back = max(first_index - back, self._begin.index), back * 2
        for position, rest_bytes in search.bad_blanks:
            self._write_blank(position, rest_bytes)
        for found in search.ranges:
            self._lines.append(f"{found}; in quarantine until another member has sent the entries")
        ranges = [*self._known, *search.ranges]
        return sorted(ranges, key=lambda each: each.first_index)

    def _search(self, on_entries: Callable[[SegmentScan], None]) -> DamageSearch:
        return DamageSearch(self._data, self._index, self._config, self._begin, self._known, on_entries)

    def _write_blank(self, position: int, rest_bytes: int) -> None:
        file = self._data.file_at(position)
        assert file is not None, position
        self._lines.append(f"{file.path}: the blank record at {position} was bad, written again")
        file.make_writable(position, position, file.end_position)
        file.write([blank_record(rest_bytes)], position)
        self._written.append(file)

    def _restore_units(self, scan: SegmentScan, *, durable: bool) -> None:
        """Write the index units of good entries, whatever is there; not synced yet."""
        units = index_units_of(scan.headers, scan.positions)
        first_index = int(units["index"][0])
        position = first_index * INDEX_UNIT_BYTES
        if durable and self._rebuilt_index_from < 0:
            try:
                before = self._index.pread(units.nbytes, position)
            except OSError:
                before = b""
            found = np.frombuffer(before, INDEX_DTYPE, len(before) // INDEX_UNIT_BYTES)
            differs = found != units[: len(found)]
            wrong = int(differs.argmax()) if differs.any() else len(found)
            if wrong < len(units):
                self._rebuilt_index_from = first_index + wrong
                self._lines.append(f"the index was made again from entry {first_index + wrong} on")
        self._index.reserve(position + units.nbytes, 0)
        self._index.make_writable(position, units.nbytes)
        self._written += self._index.write(units.tobytes(), position)

    # ---------------------------------------------------------------- above the durable point

    def _walk_tail(self, point: LogPoint) -> tuple[LogPoint, str]:
        """Keep whole entries that continue the log; returns the last and why the walk stopped.

        What is kept is written again: it may be in the cache and not on the disk.
        """
        at = point.position
        search = self._search(lambda scan: None)
        while True:
            file = self._data.file_at(at)
            if file is None:
                return point, ""
            scan, data = search.scan(at, point, check_bodies=True, stop_position=None)
            if len(scan.sizes):
                file.write([memoryview(data)[: scan.end_position - at]], at)
                self._written.append(file)
                self._restore_units(scan, durable=False)
                point = end_of(scan)
            at = scan.end_position
            if scan.stop == "blank":
                # The blank counts only once an entry behind it does; it is written again then.
                next_position = file.end_position
                if self._continues_at(search, next_position, point):
                    file.write([blank_record(next_position - at)], at)
                    file.discard_from(at + BLANK_BYTES)
                    file.sync()
                    at = next_position
                    continue
                return point, ""
            if scan.stop != "full":
                return point, scan.problem

    def _continues_at(self, search: DamageSearch, position: int, point: LogPoint) -> bool:
        """Does the segment at `position` begin with the next good entry?"""
        if self._data.file_at(position) is None:
            return False
        scan, _ = search.scan(position, point, check_bodies=True, stop_position=None)
        return len(scan.sizes) >= 1

    # ---------------------------------------------------------------- the cut

    def _keep_tail_aside(self, end: LogPoint, problem: str) -> None:
        for file in self._data.files:
            first = max(file.base_position, end.position)
            if first >= file.end_position:
                continue
            stop = self._last_byte(file, first)
            if stop - first <= BLANK_BYTES:
                blank = blank_record(file.end_position - first)
                if file.pread(stop - first, first) == blank[: stop - first]:
                    continue  # nothing, or the blank of a segment that nothing follows
            self._cut_bytes += stop - first
            self._cut_entries += self._count_entries(file, first)
            self._adoption.copy_aside(file, first, stop)
        if self._cut_bytes:
            at = f"at {end.position}, behind entry {end.index}"
            self._lines.append(
                f"torn tail {at}: {problem or 'bytes behind the end of the log'};"
                f" {self._cut_bytes} bytes with {self._cut_entries} whole entries were cut"
            )

    def _last_byte(self, file: MmapFile, first: int) -> int:
        """Just behind the last byte from `first` on that is not zero; `first` if all are.

        Holes are not read, or a hundred empty segments would take seconds. Given up behind a long gap:
        reading a gigabyte of reserved space would fill as much cache. It decides only what is kept
        aside, since all of it is discarded anyway.
        """
        # One small buffer, which stays in the CPU's cache.
        buffer, zeros = bytearray(_ZERO_CHECK_BYTES), bytes(_ZERO_CHECK_BYTES)
        last = start = first
        while (start := file.next_data(start)) < file.end_position and start - last <= _TAIL_GAP_BYTES:
            if file.end_position - start < len(buffer):
                buffer, zeros = buffer[: file.end_position - start], zeros[: file.end_position - start]
            done = file.pread_into(memoryview(buffer), start)
            assert done == len(buffer), (file.path, start, done)
            if buffer != zeros:
                last = start + len(buffer.rstrip(b"\0"))
            start += len(buffer)
        return last

    def _count_entries(self, file: MmapFile, position: int) -> int:
        """Whole entries, hopping over ones whose header is good and whose body is not."""
        whole = 0
        while position + HEADER_BYTES <= file.end_position:
            header = unpack_header(file.pread(HEADER_BYTES, position))
            stop = position + header.size
            good = header.pos == position and header.size == header.body_len + HEADER_BYTES
            if not good or header.body_len < 0 or stop > file.end_position:
                return whole
            whole += crc32(file.pread(header.body_len, position + HEADER_BYTES)) == header.body_crc
            position = stop
        return whole

    def _cut(self, end: LogPoint) -> None:
        """Zeros behind the end, on disk, with everything that was written again in front of it."""
        units_position = (end.index + 1) * INDEX_UNIT_BYTES
        data_stop, index_stop = control_reserve(self._config, end.position, end.index + 1)
        for files, position, reserve_stop in (
            (self._data, end.position, data_stop),
            (self._index, units_position, index_stop),
        ):
            file = files.discard_from(position, reserve_stop)
            if file is not None:
                self._written.append(file)
        for written in dict.fromkeys(self._written):
            written.sync()

    def _damage(self, path: str, position: int, index: int, problem: str) -> DirectoryDamaged:
        return DirectoryDamaged(
            f"{path}: {problem} (position {position}, entry {index}), at or below the durable point"
            f" (entry {self._durable.index}, position {self._durable.position});"
            f" {verify_hint(self._directory)}",
            path=path,
            position=position,
            index=index,
        )
