"""StoredEntries: entries out of segment files, a batch at a time, each linked to the one before. Index
units say how long they are, so that they are read in bulk; where the units are wrong, the data
decides."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import ProtocolViolation
from quorumlog.header_array import TERM, field_of, first_wrong
from quorumlog.store.log.placement import problem_of_units, range_length
from quorumlog.store.log.segment_scan import BLANK_MAGIC
from quorumlog.store.log.segment_view import (
    MAX_POSITION,
    IndexUnits,
    SegmentView,
    read_pages,
    scan_at,
)

_WINDOW_UNITS = 32_768
_LEAST_WINDOW_BYTES = 64 << 10
_MAGIC_OF_BLANK = BLANK_MAGIC.to_bytes(4, "big", signed=True)


class Place(NamedTuple):
    """Where reading has got to; the two last fields are of the entry before."""

    next_index: int
    position: int
    previous_term: int
    previous_chain: int


class Stop(NamedTuple):
    """Why the next entry cannot be read."""

    problem: str
    """"" where the log ends: at zeros, or at a blank record."""
    is_blank: bool
    """A record of magic -1 lies here, whatever length it names."""


class StoredEntries:
    def __init__(self, data: SegmentView, units: IndexUnits, *, checked: bool) -> None:
        """`checked`: every entry carries both digests."""
        self._data = data
        self._units = units
        self._checked = checked
        self._entry_bytes = HEADER_BYTES
        """On average, of the last that were read: so many units are looked at."""

    def next_batch(
        self, place: Place, stop_index: int, batch_bytes: int, *, check_bodies: bool
    ) -> EntryBatch | Stop:
        """The next entries of the segment at `place`, at least one, in memory of their own: those in
        front of one that cannot be read, or whose body is bad, without it."""
        assert place.next_index < stop_index, (place, stop_index)
        got = self._by_units(place, stop_index, batch_bytes) or self._by_walk(
            place, stop_index, batch_bytes
        )
        if isinstance(got, Stop) or not check_bodies:
            return got
        good = self._good_bodies(got)
        return got.slice(0, good) if good else Stop("body_crc does not match", is_blank=False)

    def behind(self, batch: EntryBatch, place: Place) -> Place:
        words = batch.words()
        return Place(
            place.next_index + batch.count,
            place.position + batch.total_bytes,
            int(words[TERM][-1]),
            int(field_of(words, "chain_crc")[-1]),
        )

    def _by_units(self, place: Place, stop_index: int, batch_bytes: int) -> EntryBatch | None:
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

    def _continues(self, batch: EntryBatch, place: Place) -> bool:
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

    def _by_walk(self, place: Place, stop_index: int, batch_bytes: int) -> EntryBatch | Stop:
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
            return Stop(scan.problem, data[:4] == _MAGIC_OF_BLANK)
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
