"""WallClock: the time of day of a member's machine."""

from __future__ import annotations

import math

BEGINNING_MS = 1_700_000_000_000
"""The true time of day when a run begins."""


class WallClock:
    def __init__(self) -> None:
        self.is_right = True
        self.was_ahead = False
        """For a while, with the others; its reports of then may still count."""
        self._base_ms: float = BEGINNING_MS
        self._set_at_ms = 0.0
        self._rate = 1.0

    def read_ms(self, now_ms: float) -> int:
        return math.floor(self._base_ms + (now_ms - self._set_at_ms) * self._rate)

    def set(self, now_ms: float, *, jump_ms: float, rate: float = 1.0) -> None:
        self._base_ms = self.read_ms(now_ms) + jump_ms
        self._set_at_ms, self._rate = now_ms, rate
