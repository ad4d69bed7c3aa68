"""prefetched(): a generator run ahead by a thread, so that fetching overlaps with decoding.

Spark ends a task early by closing its generator (a LIMIT does). Closing this one ends the thread and
waits for it: a source's generator must not be closed while it runs.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_PUT_RETRY_S = 0.1
"""After so long a thread with a full queue looks whether it is still wanted."""


class _End(NamedTuple):
    error: BaseException | None


def prefetched(items: Generator[T], depth: int) -> Generator[T]:
    """The same items; up to `depth` wait in a queue. `depth` 0: no thread."""
    if depth == 0:
        yield from items
        return
    ahead: queue.Queue[T | _End] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: T | _End) -> None:
        while not stopped.is_set():
            try:
                ahead.put(item, timeout=_PUT_RETRY_S)
            except queue.Full:
                continue
            return

    def run() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                put(item)
                if stopped.is_set():
                    break
        except BaseException as caught:
            # Not swallowed: raised again where the items are consumed.
            error = caught
        finally:
            items.close()
        put(_End(error))

    thread = threading.Thread(target=run, name="quorumlog-prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ahead.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:  # makes room, so that a waiting thread sees at once that it is done
                ahead.get_nowait()
        thread.join()
