"""DiskQueue: one disk thread of a simulated member."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from quorumlog.errors import LedgerError, StoreFailure

Job = tuple[Callable[[], Any], Callable[[Any], None]]


class DiskQueue:
    """Jobs in order, one at a time, each done at the beginning or at the end of the time that it takes
    (`draw_ms`)."""

    def __init__(
        self,
        random: Random,
        draw_ms: Callable[[], float],
        later: Callable[[float, Callable[[], None]], None],
        enter: Callable[[Callable[[], None]], None],
    ) -> None:
        """`later` does something after so many milliseconds, unless the process has ended; `enter` tells
        the member's loop that a job is done."""
        self._random = random
        self._draw_ms = draw_ms
        self._later = later
        self._enter = enter
        self._jobs: deque[Job] = deque()
        self._has_worked = False
        """The first job is carried out, and its end is still to be told."""
        self._hangs = False
        self._next: Callable[[], None] | None = None
        """What is due for the first job once the disk does not hang any more."""

    def hang(self, hangs: bool) -> None:
        """Neither begins nor ends any job meanwhile."""
        self._hangs = hangs
        if not hangs and self._next is not None:
            due, self._next = self._next, None
            self._later(0.0, due)

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._jobs.append((work, done))
        if len(self._jobs) == 1:
            self._begin()

    def _begin(self) -> None:
        takes_ms = self._draw_ms()
        if self._random.random() < 0.5:
            self._later(0.0, lambda: self._work(takes_ms))
        else:
            self._later(takes_ms, lambda: self._work(0.0))

    def _work(self, rest_ms: float) -> None:
        if self._hangs:
            self._next = lambda: self._work(rest_ms)
            return
        self._has_worked = True
        result = self.run(self._jobs[0][0])
        self._later(rest_ms, lambda: self._end(result))

    def _end(self, result: Any) -> None:
        if self._hangs:
            self._next = lambda: self._end(result)
            return
        _, done = self._jobs.popleft()
        self._has_worked = False
        self._enter(lambda: done(result))
        if self._jobs:
            self._begin()

    @staticmethod
    def run(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (StoreFailure, LedgerError) as error:
            return error

    def drain(self) -> None:
        """All that was submitted is carried out now; nobody is told."""
        if self._has_worked:
            self._jobs.popleft()
        while self._jobs:
            self.run(self._jobs.popleft()[0])
