"""World: virtual time, clocks that do not run alike, and ways between brokers and the coordinator."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

from quorumlog.testing.operations import Trace

COORDINATOR = "coordinator"
MOST_CLOCK_ERROR = 0.02
"""Two clocks differ by twice as much at most, which is below `clock_drift_percent`."""


class Clock:
    """Of one machine."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rate = world.random.uniform(1 - MOST_CLOCK_ERROR, 1 + MOST_CLOCK_ERROR)
        self._offset_ms = world.random.uniform(0, 1e6)

    @property
    def now_ms(self) -> float:
        return self._offset_ms + self.rate * self._world.now_ms

    def true_ms(self, local_ms: float) -> float:
        """How long that takes in truth."""
        return local_ms / self.rate


class World:
    """Same seed, same run. Times are in milliseconds."""

    def __init__(self, seed: int, tell: Callable[[str], None] | None = None) -> None:
        self.random = Random(seed)
        self.now_ms = 0.0
        self.trace = Trace(tell)
        self.cut: set[tuple[str, str]] = set()
        """(from, to): nothing goes through."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, delay_ms: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._numbers), act))

    def run_until(self, stop_ms: float) -> None:
        while self._events and self._events[0][0] <= stop_ms:
            self.now_ms, _, act = heapq.heappop(self._events)
            act()
        self.now_ms = stop_ms

    def note(self, who: str, what: str, detail: str = "") -> None:
        self.trace.note(self.now_ms, who, what, detail)
        self.trace.count(what)

    def latency_ms(self) -> float:
        """Most messages are fast; one in thirty is not."""
        if self.random.random() < 1 / 30:
            return self.random.uniform(20.0, 2_500.0)
        return self.random.uniform(0.1, 8.0)

    def send(self, sender: str, receiver: str, act: Callable[[], None]) -> None:
        """`act` at the receiver, unless the way is cut now or then."""

        def arrive() -> None:
            if (sender, receiver) not in self.cut:
                act()

        if (sender, receiver) not in self.cut:
            self.at(self.latency_ms(), arrive)
