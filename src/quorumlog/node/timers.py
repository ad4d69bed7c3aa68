"""Timers: what a member does because time has passed, at the end of each turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quorumlog.node.pending_appends import PendingAppends

NEVER = float("inf")
EXPIRY_INTERVAL_MS = 100
SPACE_INTERVAL_MS = 1000
"""A full disk is asked so often whether it has space again."""


class Timed(Protocol):
    def tick(self, now_ms: float) -> None: ...

    def next_wakeup_ms(self) -> float:
        """May be infinite."""


class Disk(Protocol):
    """A `LogWriter`."""

    disk_full: str

    def look_for_space(self) -> None: ...


class Timers:
    def __init__(
        self, pending: PendingAppends, disk: Disk, parts: Sequence[Timed], now_ms: float
    ) -> None:
        self._pending = pending
        self._disk = disk
        self._parts = tuple(parts)
        self._next_expiry_ms = self._next_space_ms = now_ms

    def tick(self, now_ms: float) -> None:
        if self._disk.disk_full and now_ms >= self._next_space_ms:
            self._next_space_ms = now_ms + SPACE_INTERVAL_MS
            self._disk.look_for_space()
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + EXPIRY_INTERVAL_MS
            self._pending.expire(now_ms)
        for part in self._parts:
            part.tick(now_ms)

    def next_wakeup_ms(self) -> float:
        wakeup = min(part.next_wakeup_ms() for part in self._parts)
        if self._disk.disk_full:
            wakeup = min(wakeup, self._next_space_ms)
        if self._pending.has_any:
            wakeup = min(wakeup, self._next_expiry_ms)
        return wakeup
