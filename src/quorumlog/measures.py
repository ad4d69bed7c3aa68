"""Counters of the data path: plain attributes, and histograms whose buckets are powers of two."""

from __future__ import annotations

from typing import NamedTuple

BUCKETS = 28
"""The last has all larger values."""


class Taken(NamedTuple):
    """Of a histogram, at one moment."""

    counts: tuple[int, ...]
    """In bucket n: of values with n binary digits."""
    total: int
    """Of all values."""


class Histogram:
    """Of whole numbers: microseconds, records. One thread adds, any looks."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0

    def add(self, value: int, times: int = 1) -> None:
        self.counts[min(value.bit_length(), BUCKETS - 1)] += times
        self.total += value * times

    def taken(self) -> Taken:
        return Taken(tuple(self.counts), self.total)


class Requests:
    """Of the clients of a port, by operation and the code of the answer; 0: it was no refusal."""

    def __init__(self) -> None:
        self.of: dict[tuple[type, int], Histogram] = {}
        """How long they took, in microseconds."""

    def answered(self, operation: type, code: int, took_s: float) -> None:
        histogram = self.of.get((operation, code))
        if histogram is None:
            histogram = self.of[operation, code] = Histogram()
        histogram.add(int(1e6 * took_s))
