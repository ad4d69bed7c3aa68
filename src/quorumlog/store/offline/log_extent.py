"""LogExtent: what a directory holds, ours or Java's, as the tools show it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from quorumlog.store.ledger_store import LogPoint
from quorumlog.store.log.segment_view import IndexUnits, SegmentFile, SegmentView, header_at


class Damage(msgspec.Struct, frozen=True):
    """One thing that is wrong. `path` is relative to the directory."""

    path: str
    position: int
    """Byte position in the log; in a small file, in that file."""
    index: int
    """The first entry that is affected; -1: not known."""
    problem: str
    stop_index: int = -1
    """Behind the last one; -1: not known."""

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
    """Of its first entry: behind a prefix blank, else where the segment begins."""


class LogExtent(NamedTuple):
    segments: tuple[LogSegment, ...]
    end: LogPoint
    damage: tuple[Damage, ...]
    tail: str
    """What lies behind the end and will be cut by the next start; "" if nothing does."""


class SegmentSearch:
    """With which entry each segment begins; collects damage on the way."""

    def __init__(self, data: SegmentView, units: IndexUnits) -> None:
        self.data = data
        self.units = units
        self.damage: list[Damage] = []

    def segment_of(
        self, file: SegmentFile, first_position: int, low_index: int, high_index: int
    ) -> LogSegment | None:
        """A segment that is taken as it is; if its first header is bad, the index says what it was."""
        header = header_at(self.data, first_position)
        if header is not None and not low_index <= header.index <= high_index:
            problem = f"its first entry says index {header.index}, below {low_index} of the file before"
            if header.index > high_index:
                problem = f"its first entry says index {header.index}, above {high_index}"
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
                high_index = middle - 1  # behind the last unit
                continue
            found = int(unit["position"][0])
            if found == position:
                return middle, int(unit["term"][0])
            if found < position:
                low_index = middle + 1
            else:
                high_index = middle - 1
        return None
