from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from quorumlog.spark.sources.directory_source import prefetched


class Counter:
    """Yields 0, 1, 2, ...; knows how far it got, in which thread, and whether it was closed."""

    def __init__(self, stop: int, *, fails: bool = False) -> None:
        self.stop = stop
        self.fails = fails
        self.made = threading.Semaphore(0)
        self.last = -1
        self.threads: set[int] = set()
        self.closed = False

    def items(self) -> Generator[int]:
        try:
            for number in range(self.stop):
                self.last = number
                self.threads.add(threading.get_ident())
                self.made.release()
                yield number
            if self.fails:
                raise ValueError("the source failed")
        finally:
            self.closed = True


@pytest.mark.parametrize("depth", [0, 1, 2, 64])
def test_the_items_are_the_same_in_the_same_order(depth: int) -> None:
    counter = Counter(200)
    assert list(prefetched(counter.items(), depth)) == list(range(200))
    assert counter.closed


@pytest.mark.parametrize("depth", [0, 3])
def test_an_error_of_the_source_arrives_behind_its_items(depth: int) -> None:
    items = prefetched(Counter(5, fails=True).items(), depth)
    assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="the source failed"):
        next(items)


def test_a_thread_runs_ahead_but_no_further_than_the_queue() -> None:
    counter = Counter(100)
    items = prefetched(counter.items(), 3)
    assert next(items) == 0
    for _ in range(5):  # one taken, three in the queue, one in the thread's hands
        assert counter.made.acquire(timeout=60)
    assert counter.last == 4
    assert counter.threads != {threading.get_ident()}
    items.close()
    assert counter.last <= 5


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_closing_early_closes_the_source_and_leaves_no_thread(depth: int) -> None:
    counter = Counter(10**9)
    items = prefetched(counter.items(), depth)
    assert next(items) == 0
    items.close()
    assert counter.closed
    assert not [thread for thread in threading.enumerate() if thread.name == "quorumlog-prefetch"]


def test_a_source_that_was_never_started_is_left_alone() -> None:
    counter = Counter(3)
    prefetched(counter.items(), 2).close()
    assert counter.last == -1
