"""Where entries lie in a file, and the units of the newest ones in memory."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import HEADER_BYTES, EntryHeader, unpack_header
from quorumlog.errors import BodyTooLarge
from quorumlog.header_array import Int64Array, UInt32Array
from quorumlog.store.log_points import LogPoint
from quorumlog.store.segments import BLANK_BYTES, INDEX_DTYPE, INDEX_UNIT_BYTES, IndexArray

# ---------------------------------------------------------------- Where entries lie
# The rolling rule, and the longest range that one segment gives. Pure functions.


class Placement(NamedTuple):
    positions: Int64Array
    """Shape (count,): byte position of each entry in the log."""
    pieces: tuple[tuple[int, int, int], ...]
    """(first, stop, position) of each segment's share, in entries of the batch; the first may be
    empty: then only a blank record goes into the segment where the log ends."""
    end_position: int


def place(sizes: Int64Array, position: int, segment_bytes: int, entry_limit_bytes: int) -> Placement:
    """Place entries after `position`; one that leaves no room for a blank after it opens the next
    segment (docs/formats.md, rolling rule). Raises BodyTooLarge for an entry above
    `entry_limit_bytes`."""
    count = len(sizes)
    if count == 0:
        return Placement(np.empty(0, np.int64), (), position)
    largest = int(sizes[0]) if count == 1 else int(sizes.max())
    if largest > entry_limit_bytes:
        raise BodyTooLarge(
            f"an entry of {largest} bytes with its header is above the limit of"
            f" {entry_limit_bytes} bytes (segment_bytes, and the size of a frame)"
        )
    segment_end = position // segment_bytes * segment_bytes + segment_bytes
    if count == 1:
        if position + largest + BLANK_BYTES <= segment_end:
            return Placement(np.array([position]), ((0, 1, position),), position + largest)
        pieces = ((0, 0, position), (0, 1, segment_end))
        return Placement(np.array([segment_end]), pieces, segment_end + largest)
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    positions = ends - sizes
    if position + total + BLANK_BYTES <= segment_end:
        positions += position
        return Placement(positions, ((0, count, position),), position + total)

    shares: list[tuple[int, int, int]] = []
    first, placed = 0, 0
    while True:
        room = segment_end - BLANK_BYTES - position
        stop = int(np.searchsorted(ends, placed + room, side="right"))
        positions[first:stop] += position - placed
        shares.append((first, stop, position))
        if stop > first:
            position += int(ends[stop - 1]) - placed
            placed = int(ends[stop - 1])
        if stop == count:
            return Placement(positions, tuple(shares), position)
        assert stop > first or len(shares) == 1, (first, stop, shares)
        first, position = stop, segment_end
        segment_end += segment_bytes


def check_continues(batch: EntryBatch, end: LogPoint, placement: Placement) -> LogPoint:
    """Assert that a stamped batch continues the log at `end` where it was planned; returns its end.
    The maker or receiver of the batch has checked the links inside."""
    assert len(placement.positions) == batch.count, (len(placement.positions), batch.count)
    first = batch.first_header
    assert first.index == end.index + 1, (first.index, end.index)
    assert first.pos == placement.positions[0], (first.pos, placement.positions[0])
    assert first.size == batch.sizes[0], (first.size, batch.sizes[0])
    assert first.term >= end.term, (first.term, end.term)
    assert batch.chain_before == end.chain, (first, end)
    if batch.count == 1:
        return LogPoint(first.index, first.term, first.chain_crc, placement.end_position)
    last = unpack_header(batch.buffer, int(batch.starts[-1]))
    assert last.index == first.index + batch.count - 1, (last.index, first.index, batch.count)
    assert batch.lies_at(placement.positions), (first.index, placement.positions)
    return LogPoint(last.index, last.term, last.chain_crc, placement.end_position)


def range_length(units: IndexArray, segment_bytes: int, limit_bytes: int) -> tuple[int, bool]:
    """(count, ended): how many units, from the first on, lie in its segment within `limit_bytes`; at
    least one. `ended`: the range ends there, so more units would not lengthen it."""
    ends = np.cumsum(units["size"], dtype=np.int64)
    count = max(1, int(np.searchsorted(ends, limit_bytes, side="right")))
    first_position = int(units["position"][0])
    segment_end = first_position // segment_bytes * segment_bytes + segment_bytes
    inside = int(np.searchsorted(units["position"].astype(np.int64), segment_end, side="left"))
    return min(count, inside), min(count, inside) < len(units)


def problem_of_units(
    units: IndexArray, first_index: int, segment_bytes: int, stop_position: int
) -> tuple[int, str]:
    """(position in `units` of the first that cannot be true, why); (-1, "") if there is none.

    A unit is compared with its neighbour and `stop_position` here, with its entry where that is read.
    """
    count = len(units)
    positions = units["position"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    segment_ends = positions // segment_bytes * segment_bytes + segment_bytes
    wrong = (
        (units["index"] != np.arange(first_index, first_index + count))
        | (sizes < HEADER_BYTES)
        | (positions < 0)
        | (positions + sizes > stop_position)
        | (positions + sizes + BLANK_BYTES > segment_ends)
    )
    if count > 1:
        follows = (positions[1:] == positions[:-1] + sizes[:-1]) | (positions[1:] == segment_ends[:-1])
        wrong[1:] |= ~follows | (units["term"][1:] < units["term"][:-1])
    at = int(wrong.argmax()) if count else 0
    if not count or not wrong[at]:
        return -1, ""
    return at, f"the index unit of entry {first_index + at} reads {units[at].item()}"


# ---------------------------------------------------------------- RecentUnits
# Index units and chains of the last entries, in memory. What is asked for is nearly always the end of
# the log. A ring: entry i is in slot `i % CAPACITY`.

CAPACITY = 65536
"""2 MiB of units and 256 KiB of chains."""

_UNIT = struct.Struct(">iqiqq")
assert _UNIT.size == INDEX_UNIT_BYTES


class RecentUnits:
    """Entries `first_index` .. `stop_index - 1`; older ones fall out as new ones come."""

    def __init__(self, next_index: int) -> None:
        self.first_index = next_index
        self.stop_index = next_index
        self._units = np.zeros(CAPACITY, INDEX_DTYPE)
        self._bytes = self._units.view(np.uint8).data
        self._chains = np.zeros(CAPACITY, np.uint32)

    def add_one(self, header: EntryHeader, position: int) -> bytes:
        """Take the next entry in; returns its unit as on disk."""
        assert header.index == self.stop_index, (header.index, self.stop_index)
        slot = header.index % CAPACITY
        unit = _UNIT.pack(header.magic, position, header.size, header.index, header.term)
        self._bytes[slot * INDEX_UNIT_BYTES : (slot + 1) * INDEX_UNIT_BYTES] = unit
        self._chains[slot] = header.chain_crc
        self._advance(1)
        return unit

    def add(self, units: IndexArray, chains: UInt32Array) -> None:
        count = len(units)
        assert int(units["index"][0]) == self.stop_index, (units["index"][0], self.stop_index)
        kept = min(count, CAPACITY)
        slot = (self.stop_index + count - kept) % CAPACITY
        head = min(kept, CAPACITY - slot)
        tail = kept - head
        ring, taken = (each.view(f"V{INDEX_UNIT_BYTES}") for each in (self._units, units))
        ring[slot : slot + head] = taken[count - kept : count - tail]  # else copied field by field
        ring[:tail] = taken[count - tail :]
        self._chains[slot : slot + head] = chains[count - kept : count - tail]
        self._chains[:tail] = chains[count - tail :]
        self._advance(count)

    def _advance(self, count: int) -> None:
        self.stop_index += count
        self.first_index = max(self.first_index, self.stop_index - CAPACITY)

    def truncate_from(self, index: int) -> None:
        assert index <= self.stop_index, (index, self.stop_index)
        self.stop_index = index
        self.first_index = min(self.first_index, index)

    def holds(self, index: int) -> bool:
        return self.first_index <= index < self.stop_index

    def units(self, first_index: int, stop_index: int) -> IndexArray:
        """A copy, or a view that is good until the next call that changes the ring."""
        assert self.first_index <= first_index <= stop_index <= self.stop_index, (
            first_index,
            stop_index,
            self.first_index,
            self.stop_index,
        )
        slot = first_index % CAPACITY
        count = stop_index - first_index
        head = self._units[slot : slot + count]
        if len(head) == count:
            return head
        return np.concatenate([head, self._units[: count - len(head)]])

    def chain(self, index: int) -> int:
        assert self.holds(index), (index, self.first_index, self.stop_index)
        return int(self._chains[index % CAPACITY])
