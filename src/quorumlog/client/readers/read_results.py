"""What a read gives, one by one, and how it is broken off."""

from __future__ import annotations

import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from typing import Self, TypeVar

from quorumlog.client.reading.read_choice import Freshness
from quorumlog.client.reading.read_requests import freshness_of
from quorumlog.client.result_streams import Reading, settled
from quorumlog.errors import BadRequest
from quorumlog.net.loop_thread import LoopThread, Shell

T = TypeVar("T")


class AsyncResults(AsyncIterator[T]):
    """What a read brings, one by one: iterate with `async for`. Whoever breaks off should close it, with
    `async with` or `contextlib.aclosing`; a task that waits for the next result then finds the end."""

    def __init__(
        self,
        reading: Reading[T],
        next_part: Callable[[], Coroutine[None, None, Iterable[T] | None]],
        stop: Callable[[], None],
        described: str,
    ) -> None:
        self._reading = reading
        self._next_part = next_part
        self._stop = stop
        self._described = described
        self._results = self._all()

    async def _all(self) -> AsyncGenerator[T]:
        try:
            while (part := await self._next_part()) is not None:
                for result in part:
                    yield result
        finally:
            self._stop()

    @property
    def freshness(self) -> Freshness | None:
        """Of the newest answer; None before the first has come."""
        return None if self._reading.told is None else freshness_of(*self._reading.told)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._described}>"

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


class Results(Shell[AsyncResults[T]], Iterator[T]):
    """What a read brings, one by one. Whoever breaks off should `close` it, from whatever thread; a
    thread that waits for the next result then finds the end. `with`, or `contextlib.closing`, does it.
    """

    def __init__(self, thread: LoopThread, made: AsyncResults[T]) -> None:
        super().__init__(thread, made)
        self._results = self._all()

    def _all(self) -> Generator[T]:
        try:
            while (part := self._next_part()) is not None:
                yield from part
        finally:
            if not self._is_left:
                self._thread.start(self._made.aclose())

    def _next_part(self) -> Iterable[T] | None:
        try:
            return self._step(self._made._next_part)
        except BadRequest:
            if not self._thread.has_ended():
                raise
        return settled(self._made._reading.next_part())  # a tail is at its end

    @property
    def freshness(self) -> Freshness | None:
        """See `AsyncResults.freshness`."""
        return self._made.freshness

    def __repr__(self) -> str:
        return f"<Results of {self._made._described}>"

    def __iter__(self) -> Iterator[T]:
        return self._results  # the loop that is entered runs without a call of Python's a result

    def __next__(self) -> T:
        return next(self._results)

    def close(self) -> None:
        """Ask for nothing more. May be called twice, and while another thread waits."""
        if not self._is_left:
            self._thread.run(self._made.aclose())
        with contextlib.suppress(ValueError):  # another thread is inside, and on its way out
            self._results.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
