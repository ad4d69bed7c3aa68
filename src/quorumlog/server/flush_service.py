"""FlushService: what brings the bytes of one group to the disk, beside the loop.

A sync for an acknowledgement goes to the kernel where that is all that its flush has left to do. The
rest (a segment's end, space reserved ahead, the index, the durable point, a heal) is more than one call
of the system, and runs in a thread. Of one group only one of the two is at work at a time, in the order
in which work was given: what the thread does may hold locks while a disk hangs, and the loop, which ends
what the kernel has done, must not wait for those.
"""

from __future__ import annotations

import functools
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from quorumlog.errors import StoreFailure
from quorumlog.server.disk_thread import DiskThread, Work
from quorumlog.server.kernel_sync import KernelSync
from quorumlog.store.ledger_store import SyncTask


class FlushService:
    def __init__(self, thread: DiskThread, kernel: KernelSync | None) -> None:
        """Both are shared with other groups. `kernel` None: the thread does it all."""
        self._thread = thread
        self._kernel = kernel
        self._at_kernel = 0
        """Submitted there, and not ended. As the next, of this group."""
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
        ended = functools.partial(self._synced, task, done)
        if descriptor < 0 or not self._kernel.submit(descriptor, ended):
            return False
        self._at_kernel += 1
        return True

    def _synced(
        self, task: SyncTask, done: Callable[[StoreFailure | None], None], error_number: int
    ) -> None:
        self._at_kernel -= 1
        outcome = None
        try:
            task.synced(error_number)
        except StoreFailure as failure:
            outcome = failure
        except Exception as error:  # a bug or the disk: either way the member must hear of it and stop
            outcome = StoreFailure("".join(traceback.format_exception(error)))
        self._let_the_thread_work()
        done(outcome)

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` in the thread after all that was given before; see `DiskThread.submit`."""
        self._behind.append((work, done))
        self._let_the_thread_work()

    def _let_the_thread_work(self) -> None:
        while self._behind and not self._at_kernel:
            work, done = self._behind.popleft()
            self._in_thread += 1
            self._thread.submit(work, functools.partial(self._left_the_thread, done))

    def _left_the_thread(self, done: Callable[[Any], None], result: Any) -> None:
        self._in_thread -= 1
        done(result)
