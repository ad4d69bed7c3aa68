"""DamageSearch: a walk over entries that must be there, going round those that are not.

It leads from a point that is good to one that is known. Where an entry does not continue the log, the
next good one is looked for: where the index says, else wherever eight bytes are the position at which
they lie. What is between is a damaged range: its place, its number of entries and the chain at both ends
are known from its neighbours, its terms too unless a term ends inside it, which then the index must say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from isal.isal_zlib import crc32

from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES, EntryHeader
from quorumlog.errors import DirectoryDamaged
from quorumlog.header_array import term_runs_of
from quorumlog.store.ledger_store import DamagedRange, LogPoint
from quorumlog.store.log.placement import place, problem_of_units
from quorumlog.store.log.segment_list import SegmentList
from quorumlog.store.log.segment_scan import (
    BLANK_BYTES,
    SegmentScan,
    gather_headers,
)
from quorumlog.store.log.segment_view import WINDOW_BYTES, IndexUnits, header_at, read_pages, scan_at

_SEARCH_BYTES = 1 << 20
_UNIT_CHUNK = 65536


class AnchorDamaged(Exception):
    """The walk began at an entry that nothing proves to be good: begin at an earlier one."""


class DamageSearch:
    """One walk; `ranges` and `bad_blanks` are what it found."""

    def __init__(
        self,
        data: SegmentList,
        index: SegmentList,
        begin: LogPoint,
        known: Sequence[DamagedRange],
        on_entries: Callable[[SegmentScan], None],
        window_bytes: int = WINDOW_BYTES,
        *,
        must_know_terms: bool = True,
    ) -> None:
        """`begin`: of the log, which needs no proof. `known`: damaged ranges already, in order,
        which are stepped over. `window_bytes`: read at a time, where no entry is longer.
        `must_know_terms` False: a range whose terms nobody knows is one with no `term_runs`."""
        self._data = data
        self._units = IndexUnits(index)
        self._begin = begin
        self._known = known
        self._anchor: LogPoint | None = None
        """Where the walk began, as long as nothing has been linked to it."""
        self._on_entries = on_entries
        self._window_bytes = window_bytes
        self._must_know_terms = must_know_terms
        self.ranges: list[DamagedRange] = []
        self.bad_blanks: list[tuple[int, int]] = []

    def walk(self, point: LogPoint, stop: LogPoint, until_index: int, *, check_bodies: bool) -> LogPoint:
        """From `point` to entry `until_index` at least, not behind `stop`. Raises AnchorDamaged;
        DirectoryDamaged where the terms of a range cannot be known."""
        self._anchor = None if point == self._begin else point
        for known in self._known:
            if known.first_index > point.index and known.first_index <= until_index:
                self._walk_to(point, known.before, until_index, check_bodies)
            if known.last.index > point.index and known.first_index <= until_index:
                point = known.last
        return self._walk_to(point, stop, until_index, check_bodies)

    def _walk_to(
        self, point: LogPoint, stop: LogPoint, until_index: int, check_bodies: bool
    ) -> LogPoint:
        at = point.position
        while point.index < min(until_index, stop.index):
            scan, _ = self.scan(at, point, check_bodies=check_bodies, stop_position=stop.position)
            if len(scan.sizes):
                self._on_entries(scan)
                self._anchor = None
                point = end_of(scan)
            stuck = scan.stop == "full" and not len(scan.sizes)
            at = scan.end_position
            if scan.stop == "blank":
                at = self._data.base_of(at) + self._data.segment_bytes
            elif point.index < stop.index and (scan.stop != "full" or stuck or at >= stop.position):
                point = self._go_round(point, at, stop, scan.problem or "zeros where an entry has to be")
                at = point.position
        same_entry = (point.index, point.term, point.chain) == (stop.index, stop.term, stop.chain)
        if point.index >= stop.index and not same_entry:
            raise AnchorDamaged(f"the entries lead to {point}, not to {stop}")
        return point

    def scan(
        self, at: int, point: LogPoint, *, check_bodies: bool, stop_position: int | None
    ) -> tuple[SegmentScan, bytes]:
        """The entries of the next window, and its bytes. `stop_position` None: none has to be there."""
        scan, data = scan_at(
            self._data,
            at,
            expected_index=point.index + 1,
            previous_term=point.term,
            previous_chain=point.chain,
            check_bodies=check_bodies,
            stop_position=stop_position,
            window_bytes=self._window_bytes,
        )
        if scan.stop == "full" and scan.end_position == at and stop_position is None:
            scan = scan._replace(stop="bad", problem="an entry is longer than any can be")
        return scan, data

    # ---------------------------------------------------------------- round the damage

    def _go_round(self, point: LogPoint, at: int, stop: LogPoint, problem: str) -> LogPoint:
        """The damage begins at `at`, behind `point`; returns the point in front of the next good
        entry, or `stop`."""
        if point is self._anchor:
            raise AnchorDamaged(f"nothing is linked to {point}, so its chain is not proven")
        found = self._next_good(point, at, stop)
        if found is None:
            last, highest_term = stop, stop.term
        else:
            last = LogPoint(found.index - 1, point.term, found.chain_before, found.pos)
            # A term opens with a no-op, so what stands before one is of an older term.
            highest_term = found.term - (found.magic == EntryKind.NOOP)
        if last.index == point.index:
            # Only the blank record between two good entries is bad.
            self.bad_blanks.append((at, last.position - at))
            return LogPoint(point.index, point.term, point.chain, last.position)
        path = self._data.name_of(at)
        runs = self._term_runs(point, last, highest_term, exact=found is None)
        if runs is None and not self._must_know_terms:
            problem += "; a term ends in it, and the index cannot say where, so no start goes round it"
            runs = ()
        if runs is None:
            directory = self._data.directory.rpartition("/")[0]
            raise DirectoryDamaged(
                f"{self._data.path_of(at)}: {problem} (position {at}, entry {point.index + 1}), at or"
                f" below the durable point; a term ends between entry {point.index + 1} and entry"
                f" {last.index}, and the index cannot say where, so the member could not vote; run:"
                f" quorumlog verify {directory}. In a group of several move the directory away: the"
                " member then starts as a new one and is fed the log by the others",
                path=self._data.path_of(at),
                position=at,
                index=point.index + 1,
            )
        if runs:
            last = LogPoint(last.index, runs[-1][1], last.chain, last.position)
        self.ranges.append(DamagedRange(point, last, runs, path, problem))
        return last

    def _next_good(self, point: LogPoint, at: int, stop: LogPoint) -> EntryHeader | None:
        """The first entry behind `at` that is whole and linked to the one after it.

        That link proves the chain of the first, whose other fields have to be proven otherwise: by where
        it lies, by its body, and its term by those of its neighbours, since a term changes at a no-op
        only.
        """
        found = self._first_whole(self._by_units(point, at, stop), point, at, stop)
        if found is not None and not self._lacks_units(point.index + 2, found.index):
            return found
        # Entries in front of it whose units are gone as well are found by their own word.
        stop_position = stop.position if found is None else found.pos
        return self._first_whole(self._by_positions(at, stop_position), point, at, stop) or found

    def _first_whole(
        self, positions: Iterator[int], point: LogPoint, at: int, stop: LogPoint
    ) -> EntryHeader | None:
        before: EntryHeader | None = None
        for position in positions:
            header = self._whole_entry(position, point, at, stop)
            if header is None:
                continue
            # What a header says of its channel is proven by the entry in front alone.
            is_linked = before is not None and header.chain_before == before.chain_crc
            if header.channel == 0 or header.index == point.index + 1 or is_linked:
                return header
            before = header
        return None

    def _lacks_units(self, first_index: int, stop_index: int) -> bool:
        for first in range(first_index, stop_index, _UNIT_CHUNK):
            units = self._units.read(first, min(first + _UNIT_CHUNK, stop_index))
            expected = np.arange(first, min(first + _UNIT_CHUNK, stop_index))
            if (units["index"] != expected).any():
                return True
        return False

    def _whole_entry(
        self, position: int, point: LogPoint, at: int, stop: LogPoint
    ) -> EntryHeader | None:
        header = header_at(self._data, position)
        if (
            header is None
            or not point.index < header.index <= stop.index
            or not point.term <= header.term <= stop.term
            or position + header.size > stop.position
        ):
            return None
        next_segment = self._data.base_of(at) + self._data.segment_bytes
        if header.index == point.index + 1 and position not in (at, next_segment):
            return None
        body, unreadable = read_pages(self._data, header.body_len, position + HEADER_BYTES)
        if unreadable or crc32(body) != header.body_crc:
            return None
        if header.index == point.index + 1 and header.chain_before != point.chain:
            return None
        if header.index == stop.index:
            good = header.chain_crc == stop.chain and header.term == stop.term
            return header if good else None
        behind = position + header.size
        after = header_at(self._data, behind)
        if after is None:
            after = header_at(self._data, self._data.base_of(behind) + self._data.segment_bytes)
        linked = (
            after is not None
            and after.index == header.index + 1
            and header.term == (point.term if after.magic == EntryKind.NOOP else after.term)
            and after.chain_before == header.chain_crc
        )
        return header if linked else None

    def _by_units(self, point: LogPoint, at: int, stop: LogPoint) -> Iterator[int]:
        """Positions where the index has an entry and the data a header that says the same."""
        for first in range(point.index + 1, stop.index + 1, _UNIT_CHUNK):
            units = self._units.read(first, min(first + _UNIT_CHUNK, stop.index + 1))
            positions = units["position"].astype(np.int64)
            possible = (
                (units["index"] == np.arange(first, first + len(units)))
                & (positions > at)
                & (positions + HEADER_BYTES <= stop.position)
            )
            units, positions = units[possible], positions[possible]
            windows = positions // _SEARCH_BYTES
            for window in np.unique(windows).tolist():
                inside = windows == window
                base = window * _SEARCH_BYTES
                size = int(positions[inside].max()) + HEADER_BYTES - base
                data, _ = read_pages(self._data, size, base)
                offsets = positions[inside] - base
                headers = gather_headers(memoryview(data), offsets)
                named = units[inside]
                equal = (headers["index"] == named["index"]) & (headers["pos"] == named["position"])
                yield from (offsets[equal] + base).tolist()

    def _by_positions(self, at: int, stop_position: int) -> Iterator[int]:
        """Positions where the field `pos` of a header would be true."""
        position = at + 1
        while position + HEADER_BYTES <= stop_position:
            size = min(_SEARCH_BYTES + HEADER_BYTES, stop_position - position)
            data, _ = read_pages(self._data, size, position)
            count = len(data) - HEADER_BYTES + 1
            said = np.ndarray((count,), ">i8", data, 24, (1,))
            hits = np.flatnonzero(said == np.arange(position, position + count))
            yield from (hits + position).tolist()
            position += count

    def _term_runs(
        self, point: LogPoint, last: LogPoint, highest_term: int, *, exact: bool
    ) -> tuple[tuple[int, int], ...] | None:
        """The terms of the entries behind `point` up to `last`, None if they cannot be known.
        `exact`: the last of them is of the highest term."""
        first_index = point.index + 1
        if point.term == highest_term or (exact and first_index == last.index):
            return ((first_index, highest_term),)
        units = self._units.read(first_index, last.index + 1)
        segment_bytes = self._data.segment_bytes
        wrong, _ = problem_of_units(units, first_index, segment_bytes, last.position)
        sizes = units["size"].astype(np.int64)
        limit_bytes = segment_bytes - BLANK_BYTES
        if wrong >= 0 or int(sizes.max()) > limit_bytes:
            return None
        placement = place(sizes, point.position, segment_bytes, limit_bytes)
        low, high = int(units["term"][0]), int(units["term"][-1])
        fits = (
            bool((placement.positions == units["position"]).all())
            and placement.end_position <= last.position <= placement.end_position + segment_bytes
            and point.term <= low <= high <= highest_term
            and (not exact or high == highest_term)
        )
        return term_runs_of(units) if fits else None


def end_of(scan: SegmentScan) -> LogPoint:
    last = scan.headers[-1]
    return LogPoint(int(last["index"]), int(last["term"]), int(last["chain_crc"]), scan.end_position)
