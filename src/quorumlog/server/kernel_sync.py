"""KernelSync: fdatasync by a worker of the kernel (Linux AIO), whose end wakes the event loop.

A thread of ours that syncs changes hands with the loop four times for each sync, and waits for the
interpreter lock each time; a worker of the kernel knows nothing of it. A lone append needs a sixth less
processor time so. Where the kernel or a container does not allow it, FlushService uses its thread.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from quorumlog.errors import StoreFailure

try:
    from caio.linux_aio import Context, Operation
except ImportError:  # another system, or a wheel without the C part
    Context = Operation = None  # type: ignore[assignment, misc]

MOST_IN_FLIGHT = 64
"""Of all groups of a process; more than that go to the thread."""
_TRIAL_S = 1
_WORD = 1 << 64


class KernelSync:
    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self._loop = loop
        self._context = context
        self._ended: deque[tuple[Callable[[int], None], int]] = deque()
        """Told by the kernel, and nobody told of it yet."""
        self._in_flight = 0
        loop.add_reader(context.fileno, self._wake)

    @classmethod
    def open(cls, loop: asyncio.AbstractEventLoop) -> Self | None:
        """None where there is no such thing, or it does not work."""
        if Context is None:
            return None
        try:
            context = Context(MOST_IN_FLIGHT)
            return cls(loop, context) if _syncs(context) else None
        except (OSError, OverflowError, SystemError, ValueError):
            return None  # forbidden, or the system's fs.aio-max-nr is used up

    def submit(self, descriptor: int, ended: Callable[[int], None]) -> bool:
        """Begin to sync; `ended(errno)` on the loop, 0 if all is well. False: the kernel refuses to."""
        if self._in_flight >= MOST_IN_FLIGHT:
            return False  # more might end at once than one look takes, and nothing would wake us again
        operation = Operation.fdsync(descriptor)
        operation.set_callback(functools.partial(self._take, ended))
        try:
            taken = self._context.submit(operation)
        except (OSError, OverflowError, SystemError, ValueError):
            return False
        self._in_flight += taken
        return taken == 1

    def close(self) -> None:
        """Wait for all that was submitted; blocks until then. Nothing may be submitted any more."""
        while self._in_flight:
            self._collect(least=1)
        self._loop.remove_reader(self._context.fileno)
        del self._context

    def _take(self, ended: Callable[[int], None], result: int) -> None:
        """Called inside `process_events`, which swallows whatever is raised here."""
        self._ended.append((ended, _errno_of(result)))

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # one count stands for several that have ended
            self._context.poll()
        try:
            self._collect(least=0)
        except SystemError as error:
            raise StoreFailure(f"what the kernel has synced cannot be asked for: {error}") from error

    def _collect(self, least: int) -> None:
        if not self._ended:
            _look(self._context, least, -1 if least else 0)
        while self._ended:
            ended, number = self._ended.popleft()
            self._in_flight -= 1
            ended(number)


def _look(context: Context, least: int, timeout_s: int) -> None:
    while True:
        try:
            context.process_events(MOST_IN_FLIGHT, least, timeout_s)
        except SystemError as error:
            if error.args[:1] == (errno.EINTR,):
                continue  # a signal, which does not wake us again
            raise
        return


def _errno_of(result: int) -> int:
    """The library hands a negative result on as an unsigned word."""
    return 0 if result == 0 else _WORD - result if result > _WORD // 2 else errno.EIO


def _syncs(context: Context) -> bool:
    """A trial: a filter of system calls may let it be asked for and not be answered."""
    results: list[int] = []
    descriptor = os.memfd_create("quorumlog-trial")
    try:
        operation = Operation.fdsync(descriptor)
        operation.set_callback(results.append)
        context.submit(operation)
        _look(context, 1, _TRIAL_S)
        with suppress(BlockingIOError):
            context.poll()
    finally:
        os.close(descriptor)
    return results == [0]
