"""WaitingPulls: pulls at the end of a queue that wait for something new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from quorumlog.broker.messages.record_batch import QueueKey

MOST_WAITING = 10_000
MOST_WAIT_MS = 60_000


class WaitingPulls:
    """On the loop's thread but for `grown`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[QueueKey, dict[int, tuple[Callable[[], None], asyncio.TimerHandle]]] = {}
        self._number = 0
        self._count = 0

    def add(self, key: QueueKey, wait_ms: int, again: Callable[[], None]) -> bool:
        """`again` is called when the queue has grown or the time is over. False: too many wait."""
        if self._count >= MOST_WAITING:
            return False
        self._number += 1
        number = self._number
        delay_s = min(wait_ms, MOST_WAIT_MS) / 1000
        timer = self._loop.call_later(delay_s, self._over, key, number)
        self._waiting.setdefault(key, {})[number] = (again, timer)
        self._count += 1
        return True

    def grown(self, keys: list[QueueKey]) -> None:
        """Any thread."""
        if self._count:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake, keys)

    def _wake(self, keys: list[QueueKey]) -> None:
        for key in keys:
            for again, timer in self._waiting.pop(key, {}).values():
                timer.cancel()
                self._count -= 1
                again()

    def _over(self, key: QueueKey, number: int) -> None:
        waiting = self._waiting.get(key, {})
        if number in waiting:
            again, _ = waiting.pop(number)
            self._count -= 1
            if not waiting:
                del self._waiting[key]
            again()
