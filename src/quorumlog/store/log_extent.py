"""LogExtent: where the log in a directory begins and ends, found without changing anything.

The rules differ: own_extent.py for directories of this software, java_extent.py for DLedger's. Here is
what both work with.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES, EntryHeader, unpack_header
from quorumlog.store.disk import Disk
from quorumlog.store.ledger_store import LogPoint
from quorumlog.store.segment_files import IndexUnits, SegmentFile
from quorumlog.store.segment_scan import SegmentScan, scan_segment


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


class ExtentSearch:
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
        if header is not None and low_index <= header.index <= high_index:
            unit = self.units.read(header.index, header.index + 1)[0].item()
            if unit[1] == file.position:
                return self.log_segment(file, header.index, header.term)
        found = self._unit_at(file.position, low_index, high_index)
        if header is not None and found is None:
            return self.log_segment(file, header.index, header.term)  # nothing says otherwise
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
