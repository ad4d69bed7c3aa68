"""A thread that runs disk work in order, so that the event loop never waits for a disk.

One of them flushes (`node/writing.py` asks), another reads cold ranges: a read never waits for a
sync.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from quorumlog.errors import LedgerError, StoreFailure

DiskWork = tuple[Callable[[], Any], Callable[[Any], None]]


class DiskThread:
    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: SimpleQueue[DiskWork | None] = SimpleQueue()
        self._worker = threading.Thread(target=self._run, name=name, daemon=True)
        self._worker.start()

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """As `Host.flush_later`."""
        self._queue.put((work, done))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            result: Any
            try:
                result = work()
            except (StoreFailure, LedgerError) as error:
                result = error
            except BaseException as error:  # a bug or the disk: either way the member must stop
                result = StoreFailure("".join(traceback.format_exception(error)))
            try:
                self._loop.call_soon_threadsafe(done, result)
            except RuntimeError:
                return  # the loop is closed: the member was abandoned

    def close(self) -> None:
        """Finish submitted work and end the thread; blocks until then."""
        self._queue.put(None)
        self._worker.join()
