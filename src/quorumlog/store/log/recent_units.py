"""RecentUnits: index units and chains of the last entries, in memory. What is asked for is nearly always
the end of the log. A ring: entry i is in slot `i % CAPACITY`."""

from __future__ import annotations

import struct

import numpy as np

from quorumlog.entry_header import EntryHeader
from quorumlog.header_array import UInt32Array
from quorumlog.store.log.segment_scan import INDEX_DTYPE, INDEX_UNIT_BYTES, IndexArray

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
