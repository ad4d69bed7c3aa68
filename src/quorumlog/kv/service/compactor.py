"""Compactor: a leader lets history end that is older than `auto_compaction_ms`."""

from __future__ import annotations

from collections import deque

SAMPLES = 12
"""Of one period: history ends that much too late at most."""


class Compactor:
    def __init__(self, auto_compaction_ms: float) -> None:
        """0: never."""
        self._period_ms = auto_compaction_ms
        self._samples: deque[tuple[float, int]] = deque()
        """(when, newest revision then), while this member leads."""

    def tick(self, now_ms: float, revision: int, *, leads: bool) -> int | None:
        """The revision to compact to, if it is time."""
        if not leads or not self._period_ms:
            self._samples.clear()
            return None
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._period_ms / SAMPLES:
            samples.append((now_ms, revision))
        due = None
        while samples and now_ms - samples[0][0] >= self._period_ms:
            due = samples.popleft()[1]
        return due or None
