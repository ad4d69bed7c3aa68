"""Engines: where the works of a pipeline run. A pipeline is one definition for all of them:

    plan(place) -> works       in the calling process
    run(work) -> result        anywhere; pure, or writing under a name of its own attempt
    fold(results)              in the calling process, in the order of the works

So a work may be run twice, by two at once too, and its result depends on the log alone.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import msgspec

W = TypeVar("W", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)


class WorkEngine(Protocol):
    def map(self, run: Callable[[W], R], works: Sequence[W], result_bytes: int = 0) -> Iterator[R]:
        """The results, in the order of `works`. `run` is a function of a module, and names the type of
        its result, which takes `result_bytes` at most (0: little): so many are not held at once. Raises
        LedgerError, DirectoryDamaged, ConfigError as `run` does."""


class LocalEngine:
    """Threads of this process: checking, encoding and waiting for members let go of the interpreter."""

    def __init__(self, threads: int = 0) -> None:
        """`threads` 0: one a core."""
        self._threads = threads or os.cpu_count() or 1

    def map(self, run: Callable[[W], R], works: Sequence[W], result_bytes: int = 0) -> Iterator[R]:
        """See `WorkEngine.map`."""
        at_once = 2 * self._threads if result_bytes else len(works)
        with ThreadPoolExecutor(self._threads) as pool:
            waiting: deque[Future[R]] = deque()
            try:
                for work in works:
                    if len(waiting) >= at_once:
                        yield waiting.popleft().result()
                    waiting.append(pool.submit(run, work))
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
