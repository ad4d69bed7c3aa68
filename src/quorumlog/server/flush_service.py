"""FlushService: what brings bytes to the disk beside the loop, for all groups of a server.

A sync for an acknowledgement goes to the kernel where that is all that its flush has left to do. The
rest (a segment's end, space reserved ahead, the index, the durable point) is more than one system call,
and runs in a thread. Only one of the two is at work at a time, in the order in which work was given:
what the thread does may hold locks while a disk hangs, and the loop must not wait for those.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from quorumlog.errors import StoreFailure
from quorumlog.server.disk_thread import DiskThread, Work
from quorumlog.server.kernel_sync import KernelSync
from quorumlog.store.ledger_store import SyncTask


class FlushService:
    def __init__(self, loop: asyncio.AbstractEventLoop, kernel: KernelSync | None) -> None:
        self._kernel = kernel
        self._thread = DiskThread("quorumlog-flush", loop)
        self._in_thread = 0
        """Given to the thread, and its `done` not called yet."""
        self._behind: deque[Work] = deque()
        """For the thread, as soon as the kernel has ended what it is at."""

    def sync(self, task: SyncTask, done: Callable[[StoreFailure | None], None]) -> None:
        """Carry out `task`, by the kernel or in the thread; `done` on the loop."""
        if not self._by_kernel(task, done):
            self.submit(task.run, done)

    def _by_kernel(self, task: SyncTask, done: Callable[[StoreFailure | None], None]) -> bool:
        if self._kernel is None or self._in_thread or self._behind:
            return False
        descriptor = task.descriptor()
        return descriptor >= 0 and self._kernel.submit(
            descriptor, functools.partial(self._synced, task, done)
        )

    def _synced(
        self, task: SyncTask, done: Callable[[StoreFailure | None], None], error_number: int
    ) -> None:
        outcome = None
        try:
            task.synced(error_number)
        except StoreFailure as failure:
            outcome = failure
        self._let_the_thread_work()
        done(outcome)

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` in the thread after all that was given before; see `DiskThread.submit`."""
        self._behind.append((work, done))
        self._let_the_thread_work()

    def _let_the_thread_work(self) -> None:
        if self._kernel is not None and self._kernel.in_flight:
            return
        while self._behind:
            work, done = self._behind.popleft()
            self._in_thread += 1
            self._thread.submit(work, functools.partial(self._left_the_thread, done))

    def _left_the_thread(self, done: Callable[[Any], None], result: Any) -> None:
        self._in_thread -= 1
        done(result)

    def close(self) -> None:
        """Finish all that was given and end the thread; blocks until then."""
        if self._kernel is not None:
            self._kernel.drain()
        self._thread.close()
