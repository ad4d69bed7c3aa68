"""PageCache: how much of the data files the operating system keeps in memory.

The newest bytes stay (docs/architecture.md, memory of the operating system, says why not all). Older
ones are given back once they are on disk, and so is what is read only once, for a follower far behind or
by a scrub. What clients read stays until one of these passes there.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.config import MIB
from quorumlog.store.log.segment_list import SegmentList

STEP_BYTES = 4 * MIB
"""Given back in one go, at multiples in the file: of a larger piece of memory the kernel gives no part
back."""


class PageCache:
    def __init__(self, data: SegmentList, keep_bytes: int, end_position: int) -> None:
        """`end_position`: of the log. What of it an earlier process left in memory is the kernel's."""
        self._data = data
        self.keep_bytes = keep_bytes
        self._kept_position = max(data.first_position, end_position - keep_bytes)
        """What was written from here on has not been given back."""

    def outgrown(self, durable_position: int) -> Callable[[], None] | None:
        """Work for any thread that gives back what is too much below `durable_position`; None while that
        is not worth a call."""
        first = self._kept_position
        stop = self._step_below(durable_position - self.keep_bytes)
        if stop <= first:
            return None
        self._kept_position = stop
        return lambda: self._give_back(first, stop)

    def read_once(self, position: int, size_bytes: int) -> None:
        """Any thread."""
        # With what the piece before could not give back, because this one begins in the midst of it.
        stop = min(position + size_bytes, self._kept_position)
        self._give_back(self._step_below(position), stop)

    def truncate_to(self, end_position: int) -> None:
        self._kept_position = min(self._kept_position, end_position)

    def _step_below(self, position: int) -> int:
        base = self._data.base_of(position)
        return base + (position - base) // STEP_BYTES * STEP_BYTES

    def _give_back(self, first: int, stop: int) -> None:
        while first < stop:
            file = self._data.file_at(first)
            if file is None or not file.acquire():
                return  # cut off meanwhile
            piece_stop = min(stop, file.end_position)
            try:
                file.uncache(first, piece_stop)
            finally:
                file.release()
            first = piece_stop
