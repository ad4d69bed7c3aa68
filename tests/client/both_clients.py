"""One set of scenarios, two clients: the asyncio client behind the blocking client's verbs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from quorumlog.client import AppendStream, LedgerClient
from quorumlog.client.async_client import AsyncAppendStream, AsyncLedgerClient
from quorumlog.client.protocol.appending import StreamProgress

T = TypeVar("T")
WAIT_S = 20.0


class Blocked:
    """An `AsyncLedgerClient` on a loop in a thread, called from outside of it."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop], servers: str, **options: Any):
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client = AsyncLedgerClient(servers, **options)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._client, name)
        if asyncio.iscoroutinefunction(verb):
            return lambda *args, **options: self._run(verb(*args, **options))

        def start(*args: Any, **options: Any) -> Any:
            result = verb(*args, **options)
            if isinstance(result, AsyncAppendStream):
                return BlockedStream(self, result)
            return self._iterate(result)

        return start

    def _iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        async def step() -> tuple[bool, T | None]:
            try:
                return True, await anext(source)
            except StopAsyncIteration:
                return False, None

        while True:
            found, item = self._run(step())
            if not found:
                return
            yield item  # type: ignore[misc]

    def close(self) -> None:
        if not self._loop.is_closed():
            self._run(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WAIT_S)
            self._loop.close()


class BlockedStream:
    def __init__(self, client: Blocked, stream: AsyncAppendStream) -> None:
        self._client = client
        self._stream = stream

    @property
    def progress(self) -> StreamProgress:
        return self._stream.progress

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._client._iterate(self._stream))

    def close(self) -> None:
        self._client._run(self._stream.close())


def asyncio_client_of(client: Client) -> AsyncLedgerClient:
    return client._made if isinstance(client, LedgerClient) else client._client


Client = LedgerClient | Blocked
Stream = AppendStream | BlockedStream
