"""Housekeeping: the work of a member that no append waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

PAUSE_MS = 20.0
"""Short beside a heartbeat, long beside the turns of an append."""


class Housekeeping:
    def __init__(self) -> None:
        self._ticks: Sequence[Callable[[float], None]] = ()
        self._wakeups: Sequence[Callable[[], float]] = ()
        self._due_ms = 0.0
        self._has_missed = False
        """A turn went by since they were asked: when they are due by themselves may have changed."""

    def take_over(
        self, ticks: Sequence[Callable[[float], None]], wakeups: Sequence[Callable[[], float]]
    ) -> None:
        """`ticks` do the work that is due, in this order; `wakeups` give its time, by the clock."""
        self._ticks, self._wakeups = ticks, wakeups

    def stir(self) -> None:
        self._due_ms = 0.0

    def tick(self, now_ms: float) -> bool:
        """At the end of each turn; True if the parts were asked."""
        if now_ms < self._due_ms:
            self._has_missed = True
            return False
        self._due_ms = now_ms + PAUSE_MS
        self._has_missed = False
        for tick in self._ticks:
            tick(now_ms)
        # What they have to do by the clock keeps its time: a scrub has its pace.
        self._due_ms = min(self._due_ms, self._next_by_clock_ms())
        return True

    def next_wakeup_ms(self) -> float:
        if self._has_missed:
            return self._due_ms
        return self._next_by_clock_ms()

    def _next_by_clock_ms(self) -> float:
        return min([wakeup() for wakeup in self._wakeups])
