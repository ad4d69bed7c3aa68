"""Points and ranges of a log, as its store names them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from quorumlog.entry import EntryId
from quorumlog.header_array import Int64Array


class LogPoint(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A place in the log: the entry that ends there."""

    index: int
    term: int
    chain: int
    """chain_crc of that entry."""
    position: int
    """Byte position just after it."""

    @property
    def entry_id(self) -> EntryId:
        return EntryId(self.index, self.term)


LOG_ORIGIN = LogPoint(-1, -1, 0, 0)


class LogStart(msgspec.Struct, frozen=True, array_like=True):
    """Where a log begins that no longer has its first entries: always with a segment."""

    point: LogPoint
    """The entry before the first that exists. Its `position` is where that one lies."""
    record: bytes
    """The state of the log up to there, which no entry records any more; opaque here."""
    replaces: bool = False
    """The log replaces another one: the segments here are of that one, until this is False again."""
    owed_index: int = -1
    """Of a log that was installed: the group had committed entries up to here then."""


class LogRange(NamedTuple):
    """Whole entries of one data segment, contiguous bytes; may be read in any thread."""

    first_index: int
    sizes: Int64Array
    segment_position: int
    """Name of the segment: its first byte's position in the log."""
    position: int
    size_bytes: int
    previous: LogPoint
    """The entry before the range; its `position` means nothing here."""
    term_runs: tuple[tuple[int, int], ...]

    @property
    def stop_index(self) -> int:
        return self.first_index + len(self.sizes)


class ColdRange(NamedTuple):
    """Entries that are not in memory, as a reader asks for them: `LedgerStore.read_from`."""

    first_index: int
    stop_index: int
    limit_bytes: int


class DamagedRange(msgspec.Struct, frozen=True, array_like=True):
    """Entries that the disk does not hold as they were written, between two points that are known."""

    before: LogPoint
    """The last good entry before them."""
    last: LogPoint
    """The last of them. Its `position` is where the next entry begins: maybe in the next segment."""
    term_runs: tuple[tuple[int, int], ...]
    path: str
    """The file in which the damage begins, relative to the directory."""
    problem: str

    @property
    def first_index(self) -> int:
        return self.before.index + 1

    @property
    def stop_index(self) -> int:
        return self.last.index + 1

    def holds(self, index: int) -> bool:
        return self.before.index < index <= self.last.index

    def term_at(self, index: int) -> int:
        assert self.holds(index), (index, self)
        return next(term for first, term in reversed(self.term_runs) if first <= index)

    def behind(self, point: LogPoint, path: str) -> DamagedRange:
        """The rest of it, in `path`, once its entries up to `point` are repaired or gone."""
        assert self.before.index <= point.index < self.last.index, (point, self)
        first = point.index + 1
        runs = tuple(run for run in self.term_runs if run[0] > first)
        runs = ((first, self.term_at(first)), *runs)
        return msgspec.structs.replace(self, before=point, term_runs=runs, path=path)

    def up_to(self, end: LogPoint) -> DamagedRange:
        """The rest of it in a log that ends with one of its entries."""
        assert self.holds(end.index), (end, self)
        assert self.before.position < end.position, (end, self)
        runs = tuple(run for run in self.term_runs if run[0] <= end.index)
        return msgspec.structs.replace(self, last=end, term_runs=runs)

    def overlaps(self, other: DamagedRange) -> bool:
        return self.first_index < other.stop_index and other.first_index < self.stop_index

    def joined(self, other: DamagedRange) -> DamagedRange:
        assert self.overlaps(other), (self, other)
        front, back = sorted((self, other), key=lambda each: each.first_index)
        if back.stop_index <= front.stop_index:
            return front
        behind = front.stop_index
        runs = [*front.term_runs]
        if back.term_at(behind) != runs[-1][1]:
            runs.append((behind, back.term_at(behind)))
        runs += [run for run in back.term_runs if run[0] > behind]
        return msgspec.structs.replace(front, last=back.last, term_runs=tuple(runs))

    def __str__(self) -> str:
        entries = f"entry {self.first_index}"
        if self.last.index > self.first_index:
            entries = f"entries {self.first_index} .. {self.last.index}"
        return f"{entries} in {self.path} (position {self.before.position}): {self.problem}"


class Examination(NamedTuple):
    """`LedgerStore.settle` acts on it."""

    ranges: tuple[DamagedRange, ...]
    units: tuple[tuple[int, bytes], ...]
    """(position in the index, bytes) of units that the data proves wrong."""
    blanks: tuple[tuple[int, int], ...]
    """(position, bytes to the end of the segment) of blank records that are not there."""
    stop_index: int
    """After the last entry that was looked at."""
    size_bytes: int
    truncations: int
    """Number of cuts when the check began: entries cut since are not damage."""


class SetAsideCount(NamedTuple):
    """Bytes that were cut off or overwritten, kept for people."""

    files: int
    size_bytes: int


class SpaceTaken(NamedTuple):
    """Bytes of the segments of data and index."""

    disk_bytes: int
    """Space reserved in them."""
    apparent_bytes: int
    """How long they are."""
