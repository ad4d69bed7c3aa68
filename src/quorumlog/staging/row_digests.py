"""RowDigest: by what rows a batch is recognised, in whatever order and in whatever parts they come."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.header_array import UInt64Array

_WORD = 2**64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


class RowDigest(NamedTuple):
    """Two sums over all rows, of numbers that look drawn at random: equal rows count as often as they
    come, which an exclusive or would not see."""

    low: int = 0
    high: int = 0

    def plus(self, other: RowDigest) -> RowDigest:
        return RowDigest((self.low + other.low) % _WORD, (self.high + other.high) % _WORD)

    @classmethod
    def of_hashes(cls, hashes: UInt64Array) -> Self:
        """Shape (rows,)."""
        low, high = mixed(hashes), mixed(hashes ^ _SECOND)
        return cls(int(np.add.reduce(low)), int(np.add.reduce(high)))

    @classmethod
    def of_entries(cls, batch: EntryBatch) -> Self:
        """Of rows that are an entry each."""
        crcs = batch.body_crcs().astype(np.uint64)
        return cls.of_hashes((crcs << np.uint64(32)) | batch.sizes.astype(np.uint64))


def mixed(numbers: UInt64Array) -> UInt64Array:
    """The finalizer of SplitMix64: every bit of a number reaches every bit of the result."""
    mixing = numbers + _GOLDEN
    mixing = (mixing ^ (mixing >> np.uint64(30))) * _FIRST
    mixing = (mixing ^ (mixing >> np.uint64(27))) * _SECOND
    return mixing ^ (mixing >> np.uint64(31))
