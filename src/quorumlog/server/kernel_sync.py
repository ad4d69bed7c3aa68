"""KernelSync: fdatasync by a worker of the kernel (Linux AIO), whose end wakes the event loop.

A thread of ours that syncs changes hands with the loop four times for each sync, and waits for the
interpreter lock each time; a worker of the kernel knows nothing of it. That is 13 to 21 % less processor
time for each append. Where the kernel or a container does not allow it, FlushService uses its thread.
"""

from __future__ import annotations

import asyncio
import errno
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Self

try:
    from caio.linux_aio import Context, Operation
except ImportError:  # another system, or a wheel without the C part
    Context = Operation = None  # type: ignore[assignment, misc]

MOST_IN_FLIGHT = 64
"""Of all groups of a process; more than that go to the thread."""
_WORD = 1 << 64


class KernelSync:
    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._context = context
        self._ended: list[tuple[Callable[[int], None], int]] = []
        self.in_flight = 0
        loop.add_reader(context.fileno, self._wake)

    @classmethod
    def open(cls, loop: asyncio.AbstractEventLoop) -> Self | None:
        """None where there is no such thing."""
        if Context is None:
            return None
        try:
            return cls(loop, Context(MOST_IN_FLIGHT))
        except (OSError, SystemError):  # forbidden, or the system's fs.aio-max-nr is used up
            return None

    def submit(self, descriptor: int, ended: Callable[[int], None]) -> bool:
        """Begin to sync; `ended(errno)` on the loop, 0 if all is well. False: the kernel refuses to."""
        operation = Operation.fdsync(descriptor)
        operation.set_callback(functools.partial(self._take, ended))
        try:
            taken = self._context.submit(operation)
        except (OSError, OverflowError, SystemError, ValueError):
            return False
        self.in_flight += taken
        return taken == 1

    def drain(self) -> None:
        """Wait for all that was submitted; blocks."""
        while self.in_flight:
            self._collect(least=1)

    def _take(self, ended: Callable[[int], None], result: int) -> None:
        """Called inside `process_events`, which swallows whatever is raised here. The library hands a
        negative result on as an unsigned word."""
        number = 0 if result == 0 else _WORD - result if result > _WORD // 2 else errno.EIO
        self._ended.append((ended, number))

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # one count stands for several that have ended
            self._context.poll()
        self._collect(least=0)

    def _collect(self, least: int) -> None:
        self._context.process_events(MOST_IN_FLIGHT, least, -1 if least else 0)
        ended, self._ended = self._ended, []
        self.in_flight -= len(ended)
        for end, number in ended:
            end(number)
