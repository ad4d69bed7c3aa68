"""StoredEntries: entries out of segment files, a batch at a time, each linked to the one before.

Index units say how long the entries are, so that a batch is read and checked in bulk; where the units
are wrong, the data decides.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.header_array import Int64Array, first_wrong
from quorumlog.store.log.segment_scan import BLANK_BYTES, BLANK_MAGIC
from quorumlog.store.log.segment_view import IndexUnits, SegmentView, read_pages, scan_at

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

    def next_batch(
        self, place: Place, stop_index: int, batch_bytes: int, *, check_bodies: bool
    ) -> EntryBatch | Stop:
        """The next entries of the segment at `place`, at least one, in memory of their own."""
        assert place.next_index < stop_index, (place, stop_index)
        sizes = self._sizes_by_units(place, stop_index, batch_bytes)
        if len(sizes):
            batch = self._read(place, _cut(sizes, batch_bytes), check_bodies)
            if batch is not None:
                return batch
        # The units or the data are wrong here. A walk tells which: it finds the good entries by the data
        # alone, or what is wrong with the first.
        scan, data = scan_at(
            self._data,
            place.position,
            expected_index=place.next_index,
            previous_term=place.previous_term,
            previous_chain=place.previous_chain if self._checked else None,
            window_bytes=max(batch_bytes, _LEAST_WINDOW_BYTES),
        )
        sizes = _cut(scan.sizes[: stop_index - place.next_index], batch_bytes)
        if not len(sizes):
            return Stop(scan.problem, data[:4] == _MAGIC_OF_BLANK)
        batch = self._read(place, sizes, check_bodies)
        return batch or Stop("changes while it is read", is_blank=False)

    def behind(self, batch: EntryBatch, place: Place) -> Place:
        last = batch.headers()[-1]
        return Place(
            place.next_index + batch.count,
            place.position + batch.total_bytes,
            int(last["term"]),
            int(last["chain_crc"]),
        )

    def _sizes_by_units(self, place: Place, stop_index: int, batch_bytes: int) -> Int64Array:
        """Sizes of the next entries as far as the units make sense: empty if the first does not."""
        count = min(batch_bytes // HEADER_BYTES + 1, _WINDOW_UNITS, stop_index - place.next_index)
        units = self._units.read(place.next_index, place.next_index + count)
        sizes = units["size"].astype(np.int64)
        positions = place.position + np.cumsum(sizes) - sizes
        segment_end = self._data.base_of(place.position) + self._data.segment_bytes
        fits = (
            (units["index"] == np.arange(place.next_index, place.next_index + count))
            & (units["position"] == positions)
            & (sizes >= HEADER_BYTES)
            & (positions + sizes + BLANK_BYTES <= segment_end)
        )
        return sizes if bool(fits.all()) else sizes[: int(np.argmin(fits))]

    def _read(self, place: Place, sizes: Int64Array, check_bodies: bool) -> EntryBatch | Stop | None:
        """None if these bytes are not the next entries of these sizes. Entries in front of one that
        cannot be read, or whose body is bad, are returned without it."""
        data, unreadable = read_pages(self._data, int(sizes.sum()), place.position)
        if unreadable:
            readable_bytes = unreadable[0].position - place.position
            count = int(np.searchsorted(np.cumsum(sizes), readable_bytes, side="right"))
            if not count:
                return Stop(unreadable[0].problem, is_blank=False)
            sizes = sizes[:count]
            data = data[: int(sizes.sum())]
        batch = EntryBatch(data, sizes)
        headers = batch.headers()
        chain = place.previous_chain if self._checked else None
        positions = batch.starts + place.position
        good, _ = first_wrong(headers, sizes, positions, place.next_index, place.previous_term, chain)
        if good < batch.count:
            return None
        if check_bodies:
            wrong = batch.body_crcs() != headers["body_crc"]
            if not self._checked:
                # DLedger writes no digests: both fields 0 means unchecked. Entries that it copied from
                # software that does carry them.
                wrong &= (headers["body_crc"] | headers["chain_crc"]) != 0
            if bool(wrong.any()):
                good = int(wrong.argmax())
                return batch.slice(0, good) if good else Stop("body_crc does not match", is_blank=False)
        return batch


def _cut(sizes: Int64Array, batch_bytes: int) -> Int64Array:
    """The first entries, at most `batch_bytes` of them and at least one."""
    if not len(sizes):
        return sizes
    return sizes[: max(int(np.searchsorted(np.cumsum(sizes), batch_bytes, side="right")), 1)]
