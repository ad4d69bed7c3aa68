"""What a read gives, one by one, and how it is broken off."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Self, TypeVar

from quorumlog.client.reading.read_choice import Freshness
from quorumlog.client.reading.read_requests import freshness_of
from quorumlog.client.result_streams import Reading

T = TypeVar("T")


class Results(Iterator[T]):
    """What a read brings, one by one. Whoever breaks off should `close` it, from whatever thread; a
    thread that waits for the next result then finds the end. `with`, or `contextlib.closing`, does it.
    """

    def __init__(
        self, results: Generator[T], stop: Callable[[], None], described: str, reading: Reading[T]
    ) -> None:
        self._results = results
        self._stop = stop
        self._described = described
        self._reading = reading

    @property
    def freshness(self) -> Freshness | None:
        """Of the newest answer; None before the first has come."""
        return None if self._reading.told is None else freshness_of(*self._reading.told)

    def __repr__(self) -> str:
        return f"<Results of {self._described}>"

    def __iter__(self) -> Iterator[T]:
        return self._results  # the loop that is entered runs without a call of Python's a result

    def __next__(self) -> T:
        return next(self._results)

    def close(self) -> None:
        """Ask for nothing more. May be called twice, and while another thread waits."""
        self._stop()
        with contextlib.suppress(ValueError):  # another thread is inside, and on its way out
            self._results.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncResults(AsyncIterator[T]):
    """See `Results`; iterate with `async for`, close with `async with` or `contextlib.aclosing`."""

    def __init__(
        self, results: AsyncGenerator[T], stop: Callable[[], None], described: str, reading: Reading[T]
    ) -> None:
        self._results = results
        self._stop = stop
        self._described = described
        self._reading = reading

    @property
    def freshness(self) -> Freshness | None:
        """See `Results.freshness`."""
        return None if self._reading.told is None else freshness_of(*self._reading.told)

    def __repr__(self) -> str:
        return f"<AsyncResults of {self._described}>"

    def __aiter__(self) -> AsyncIterator[T]:
        return self._results

    def __anext__(self) -> Awaitable[T]:
        return anext(self._results)

    async def aclose(self) -> None:
        """Ask for nothing more. May be called twice, and while another task waits."""
        self._stop()
        with contextlib.suppress(RuntimeError):  # another task is inside, and on its way out
            await self._results.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
