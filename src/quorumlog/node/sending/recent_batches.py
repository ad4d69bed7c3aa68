"""RecentBatches: the newest batches of the log in memory, so that hot pushes and reads touch no file.

Holds what was appended last, bounded in bytes of memory; always a contiguous range that ends at the log
end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import CHAIN_OFFSET

BATCH_BYTES = 1024
"""What a batch takes beside its entries: the objects around its buffer."""


class RecentRange(NamedTuple):
    batch: EntryBatch
    previous_chain: int
    """chain_crc of the entry before the first."""


class RecentBatches:
    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes`: of memory; the newest batch is held however large it is."""
        self._limit_bytes = limit_bytes
        self._firsts: list[int] = []
        """First index of each batch, ascending; parallel to `_ranges`."""
        self._ranges: list[RecentRange] = []
        self._bytes = 0
        self._taken: tuple[tuple[int, int, int], RecentRange] | None = None
        """What was taken last, with the arguments, until anything changes: followers and readers at the
        end of the log share one copy."""

    def add(self, batch: EntryBatch, previous_chain: int) -> None:
        first_index = batch.first_index
        assert not self._ranges or first_index == self.stop_index, (first_index, self.stop_index)
        self._taken = None
        self._firsts.append(first_index)
        self._ranges.append(RecentRange(batch, previous_chain))
        self._bytes += _held_bytes(batch)
        if self._bytes > self._limit_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        drop = 0
        while self._bytes > self._limit_bytes // 2 and drop < len(self._ranges) - 1:
            self._bytes -= _held_bytes(self._ranges[drop].batch)
            drop += 1
        del self._firsts[:drop], self._ranges[:drop]

    @property
    def stop_index(self) -> int:
        """One above the newest entry held; meaningless while empty."""
        return self._firsts[-1] + self._ranges[-1].batch.count

    def truncate_from(self, index: int) -> None:
        """Forget everything from `index` on; of the batch that holds it the front stays, because what
        comes next must continue what is held."""
        self._taken = None
        keep = bisect_left(self._firsts, index)
        self._bytes -= sum(_held_bytes(r.batch) for r in self._ranges[keep:])
        del self._firsts[keep:], self._ranges[keep:]
        if keep and index < self.stop_index:
            batch, previous_chain = self._ranges[-1]
            front = batch.slice(0, index - self._firsts[-1])
            self._bytes -= _held_bytes(batch) - _held_bytes(front)
            self._ranges[-1] = RecentRange(front, previous_chain)

    def take(self, first_index: int, stop_index: int, limit_bytes: int) -> RecentRange | None:
        """Entries from `first_index` on, below `stop_index`, within `limit_bytes` (at least one), in
        one buffer; None if `first_index` is not held. One batch is shared, several are copied: nobody
        may write to what this gives."""
        arguments = first_index, stop_index, limit_bytes
        if self._taken is not None and self._taken[0] == arguments:
            return self._taken[1]
        at = bisect_right(self._firsts, first_index) - 1
        if at < 0 or first_index >= self._firsts[at] + self._ranges[at].batch.count:
            return None
        parts: list[EntryBatch] = []
        previous_chain = self._previous_chain(at, first_index - self._firsts[at])
        left = limit_bytes
        while at < len(self._ranges) and first_index < stop_index:
            batch = self._ranges[at].batch
            skip = first_index - self._firsts[at]
            stop = min(batch.count, stop_index - self._firsts[at])
            part = batch if skip == 0 and stop == batch.count else batch.slice(skip, stop)
            if part.total_bytes > left and (parts or part.count > 1):
                fitting = int(np.searchsorted(part.starts + part.sizes, left, side="right"))
                fitting = max(fitting, 0 if parts else 1)
                if fitting:
                    parts.append(part.slice(0, fitting))
                break
            parts.append(part)
            left -= part.total_bytes
            first_index += part.count
            at += 1
        batch = parts[0] if len(parts) == 1 else EntryBatch.concatenate(parts)
        taken = RecentRange(batch, previous_chain)
        self._taken = arguments, taken
        return taken

    def _previous_chain(self, at: int, skip: int) -> int:
        if skip == 0:
            return self._ranges[at].previous_chain
        batch = self._ranges[at].batch
        start = int(batch.starts[skip - 1]) + CHAIN_OFFSET
        return int.from_bytes(batch.buffer[start : start + 4], "big")


def _held_bytes(batch: EntryBatch) -> int:
    return batch.total_bytes + BATCH_BYTES
