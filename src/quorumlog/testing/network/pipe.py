"""Pipe: what one member sends another on its data connection, while the way there is a poor one.

Bytes wait in a queue and leave it in order: so many a millisecond, or in bursts. A frame that is too
large for the way never leaves it, nor does what is behind it; heartbeats pass beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster

OPEN_SHARE = 0.2
"""Of the time, a way that is open in bursts lets frames through."""

Item = tuple[int, Callable[[], bool], Callable[[], None], bool]
"""(bytes, whether its connection still stands, what happens when it has passed, is it a push)."""


class Pipe:
    def __init__(self, cluster: SimCluster, on_stuck: Callable[[], None]) -> None:
        """`on_stuck`: a frame is at its front that will not pass as long as the way is as it is."""
        self._cluster = cluster
        self._on_stuck = on_stuck
        self._queue: deque[Item] = deque()
        self._queued_bytes = 0
        self._turn = 0
        """Counts what the front waits for; an older event is none of its."""
        self.limits(None)

    def limits(
        self,
        bytes_per_ms: float | None,
        *,
        burst_ms: float = 0.0,
        largest_bytes: int | None = None,
        room_bytes: int | None = None,
    ) -> None:
        """From now on; None is no limit. `burst_ms`: the way is open only as each such time begins.
        `room_bytes`: what may wait before a sender is told that its connection is full."""
        self._bytes_per_ms = bytes_per_ms
        self._burst_ms = burst_ms
        self._largest_bytes = largest_bytes
        self._room_bytes = room_bytes
        self.advance()

    @property
    def is_limited(self) -> bool:
        limits = self._bytes_per_ms, self._burst_ms or None, self._largest_bytes
        return bool(self._queue) or any(limit is not None for limit in limits)

    @property
    def has_room(self) -> bool:
        return self._room_bytes is None or self._queued_bytes <= self._room_bytes

    @property
    def is_stuck(self) -> bool:
        largest_bytes = self._largest_bytes
        return bool(self._queue) and largest_bytes is not None and self._queue[0][0] > largest_bytes

    @property
    def is_moving(self) -> bool:
        """As long as a push is in it."""
        return any(is_push for *_, is_push in self._queue) and not self.is_stuck

    def put(
        self,
        size_bytes: int,
        stands: Callable[[], bool],
        passed: Callable[[], None],
        *,
        is_push: bool,
    ) -> None:
        self._queue.append((size_bytes, stands, passed, is_push))
        self._queued_bytes += size_bytes
        if len(self._queue) == 1:
            self.advance()

    def advance(self) -> None:
        """Look at the front anew: what was sent on a lost connection leaves the queue."""
        self._turn += 1
        while self._queue and not self._queue[0][1]():
            self._take()
        if not self._queue:
            return
        if self.is_stuck:
            self._on_stuck()
            return
        after_ms = self._queue[0][0] / self._bytes_per_ms if self._bytes_per_ms is not None else 0.0
        if self._burst_ms:
            phase_ms = self._cluster.now_ms % self._burst_ms
            if phase_ms > OPEN_SHARE * self._burst_ms:
                after_ms += self._burst_ms - phase_ms
        turn = self._turn

        def leave() -> None:
            if self._turn == turn:
                _, stands, passed, _ = self._take()
                if stands():
                    passed()
                self.advance()

        self._cluster.at(after_ms, leave)

    def _take(self) -> Item:
        item = self._queue.popleft()
        self._queued_bytes -= item[0]
        return item
