"""DamagedIndices: which entries of its log a member cannot show, and what it may not say meanwhile.

The terms of these entries are known, so the member compares and votes as if whole. It must not
*acknowledge* them, because they are not on its disk. Where the group has committed them without it, its
word is not needed and nothing is withheld.
"""

from __future__ import annotations

from collections.abc import Sequence


class DamagedIndices:
    """Disjoint ranges (first_index, stop_index), in order; few."""

    def __init__(self, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self.ranges = sorted(ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def add(self, first_index: int, stop_index: int) -> None:
        """One that overlaps others becomes one with them."""
        assert first_index < stop_index, (first_index, stop_index)
        apart = []
        for first, stop in self.ranges:
            if first < stop_index and first_index < stop:
                first_index, stop_index = min(first, first_index), max(stop, stop_index)
            else:
                apart.append((first, stop))
        self.ranges = sorted([*apart, (first_index, stop_index)])

    def replace(self, ranges: Sequence[tuple[int, int]]) -> None:
        """These are all: what the store has left after a repair, cuts included."""
        self.ranges = sorted(ranges)

    def truncate_from(self, index: int) -> None:
        self.ranges = [(first, min(stop, index)) for first, stop in self.ranges if first < index]

    def drop_before(self, index: int) -> None:
        """`index`: of the first entry that stays."""
        self.ranges = [(max(first, index), stop) for first, stop in self.ranges if stop > index]

    def first_unproven(self, committed_index: int) -> int | None:
        """The lowest index that is damaged and not known to be committed."""
        for first, stop in self.ranges:
            if stop - 1 > committed_index:
                return max(first, committed_index + 1)
        return None

    def holds(self, index: int) -> bool:
        return any(first <= index < stop for first, stop in self.ranges)
