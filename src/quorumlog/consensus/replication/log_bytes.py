"""LogBytes: how many bytes of the leader's log lie behind an index, as far as that matters.

The core knows of entries only index and term. Who hands over wants to know how long a member would take
to get what it lacks, and that is a matter of bytes: a thousand entries may be 48 KB or 4 GB.
"""

from __future__ import annotations

from collections import deque

_STEPS = 64
"""Batches are added up to steps of such a part of the limit, so that many small ones take no memory."""


class LogBytes:
    """Of the entries that this leader has appended in its term; older ones have no size here."""

    def __init__(self, limit_bytes: int) -> None:
        """What lies more than `limit_bytes` behind the end is forgotten."""
        self._limit_bytes = limit_bytes
        self._step_bytes = limit_bytes // _STEPS
        self._total_bytes = 0
        self._ends: deque[tuple[int, int]] = deque()
        """(last index, bytes of the term up to and with it), of some batches, ascending."""

    def begin(self, end_index: int) -> None:
        self._total_bytes = 0
        self._ends.clear()
        self._ends.append((end_index, 0))

    def append(self, end_index: int, size_bytes: int) -> None:
        self._total_bytes = total_bytes = self._total_bytes + size_bytes
        ends = self._ends
        if len(ends) > 1 and total_bytes - ends[-2][1] <= self._step_bytes:
            ends[-1] = (end_index, total_bytes)
            return
        ends.append((end_index, total_bytes))
        while total_bytes - ends[1][1] > self._limit_bytes:
            ends.popleft()

    def behind(self, index: int) -> int | None:
        """Bytes behind entry `index`, or up to a step more; None if they are more than the limit, or if
        entries of older terms are among them."""
        for end_index, end_bytes in reversed(self._ends):
            if end_index <= index:
                lag_bytes = self._total_bytes - end_bytes
                return lag_bytes if lag_bytes <= self._limit_bytes else None
        return None
