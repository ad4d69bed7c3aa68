"""PropertyColumns: the properties of many records at once: where each name and value lies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quorumlog.broker.messages.java_strings import gather
from quorumlog.broker.messages.record_columns import Bytes, Int64Array, RecordColumns

_NAME_END, VALUE_END = 1, 2
_MOST_DIGITS = 9


class Found(NamedTuple):
    """Values of one property, in `PropertyColumns.data`."""

    rows: Int64Array
    """Which records have it, in order."""
    starts: Int64Array
    sizes: Int64Array


class PropertyColumns:
    def __init__(self, columns: RecordColumns) -> None:
        """`columns` have the shape of records."""
        # An end that may be missing behind the last value is always added, and then seen twice.
        sizes = columns.property_sizes + 1
        stops = np.cumsum(sizes)
        index = np.repeat(columns.property_starts - stops + sizes, sizes)
        index += np.arange(len(index))
        index[stops - 1] = 0
        self.data: Bytes = columns.data[index]
        self.data[stops - 1] = VALUE_END
        value_ends = np.flatnonzero(self.data == VALUE_END)
        self.property_rows: Int64Array = np.searchsorted(stops, value_ends, side="right")
        starts = np.empty_like(value_ends)
        starts[:1] = 0
        starts[1:] = value_ends[:-1] + 1
        # The first 0x01 behind where a property begins ends its name; a property without is none.
        name_ends = np.append(np.flatnonzero(self.data == _NAME_END), len(self.data))
        name_stops = name_ends[np.searchsorted(name_ends, starts)]
        is_pair = name_stops < value_ends
        self.property_rows = self.property_rows[is_pair]
        self.name_starts: Int64Array = starts[is_pair]
        self.name_sizes: Int64Array = name_stops[is_pair] - self.name_starts
        self.value_starts: Int64Array = name_stops[is_pair] + 1
        self.value_sizes: Int64Array = value_ends[is_pair] - self.value_starts
        assert not len(stops) or stops[-1] == len(self.data)

    def find(self, name: str) -> Found:
        """If a record has it twice, both are found; Java keeps the last one."""
        wanted = np.frombuffer(name.encode(), np.uint8)
        at = np.flatnonzero(self.name_sizes == len(wanted))
        if len(at):
            names = self.data[self.name_starts[at, None] + np.arange(len(wanted))]
            at = at[(names == wanted).all(axis=1)]
        return Found(self.property_rows[at], self.value_starts[at], self.value_sizes[at])

    def texts(self, name: str, count: int) -> npt.NDArray[np.bytes_]:
        """The value of this property of each of `count` records, the last one if there are two; empty
        without. A value has no zero bytes at its end."""
        found = self.find(name)
        width = int(found.sizes.max(initial=0)) + 1
        within = np.arange(width) < found.sizes[:, None]
        at = np.where(within, found.starts[:, None] + np.arange(width), 0)
        texts = np.zeros((count, width), np.uint8)
        if len(found.rows):
            texts[found.rows] = np.where(within, self.data[at], 0)
        values: npt.NDArray[np.bytes_] = texts.view(f"S{width}")[:, 0]
        return values

    def numbers(self, found: Found) -> Int64Array:
        """Values as numbers; -1 of what is none: anything but one to nine digits."""
        numbers = np.full(len(found.rows), -1, np.int64)
        some = np.flatnonzero((found.sizes > 0) & (found.sizes <= _MOST_DIGITS))
        if not len(some):
            return numbers
        sizes = found.sizes[some]
        pieces, begins = gather(self.data, found.starts[some], sizes)
        digits = pieces - np.uint8(ord("0"))  # what lies below "0" wraps around
        exponents = np.repeat(begins + sizes - 1, sizes) - np.arange(len(pieces))
        sums = np.add.reduceat(digits * 10**exponents, begins)
        numbers[some] = np.where(np.logical_and.reduceat(digits <= 9, begins), sums, -1)
        return numbers

    def split_words(self, found: Found) -> Found:
        """Each word of values that have words, parted by spaces."""
        if not len(found.rows):
            return found
        pieces, begins = gather(self.data, found.starts, found.sizes)
        is_space: npt.NDArray[np.bool_] = pieces == ord(" ")
        is_first = np.zeros(len(pieces) + 1, bool)
        is_first[begins] = True
        before = np.empty(len(pieces), bool)
        before[:1] = True
        before[1:] = is_space[:-1]
        before |= is_first[:-1]
        starts = np.flatnonzero(before & ~is_space)
        after = np.empty(len(pieces), bool)
        after[-1:] = True
        after[:-1] = is_space[1:]
        after |= is_first[1:]
        stops = np.flatnonzero(after & ~is_space) + 1
        owner = np.repeat(np.arange(len(found.rows)), found.sizes)[starts]
        shift = (found.starts - begins)[owner]
        return Found(found.rows[owner], starts + shift, stops - starts)
