"""Methods of blocking clients that are not generated from the asyncio ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from quorumlog.broker.client.async_broker_client import AsyncBrokerClient
from quorumlog.broker.client.async_consumer import MOST_AT_ONCE, AsyncConsumer
from quorumlog.broker.message import StoredMessage
from quorumlog.net.loop_thread import ClientShell

# ---------------------------------------------------------------- Connected
# A client that connects when it is made, so that a slip in the address is told at once.


class ConnectingShell(ClientShell[AsyncBrokerClient]):
    def _connect(self) -> None:
        try:
            self._thread.run(self._it.__aenter__())
        except BaseException:
            self.close()
            raise


# ---------------------------------------------------------------- BlockingRun
# A consumer whose handlers are called on threads.

ONE_MEMBER = (
    "a consumer is a member of its group with the process that has forked: make another one in this one"
)


class BlockingRun(ClientShell[AsyncConsumer]):
    """It joins its group when it is entered."""

    def __enter__(self) -> Self:
        try:
            self._thread.run(self._it.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def poll(self, *, most_messages: int = 100, wait_ms: int = 1_000) -> list[StoredMessage]:
        """See `AsyncConsumer.poll`. Messages found during an interrupt are not committed, and
        redelivered once this member has left."""
        return self._it._given(self._thread.run(self._it._found(most_messages, wait_ms)))

    def run(
        self,
        handler: Callable[[StoredMessage], object],
        *,
        threads: int = 0,
        max_processing_time_ms: int = 0,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """As `AsyncConsumer.run`; `handler` is called on other threads, several at a time if there are
        several queues, at most `threads`. A call of it cannot be interrupted: one that takes longer than
        `max_processing_time_ms` keeps its thread until it returns."""
        with ThreadPoolExecutor(threads or MOST_AT_ONCE, "quorumlog-consumer") as executor:

            async def handle(message: StoredMessage) -> None:
                call = executor.submit(handler, message)
                try:
                    await asyncio.wrap_future(call)
                except asyncio.CancelledError:
                    # The caller of close, which may be a handler, does not wait for handlers.
                    if not call.cancelled() and not self._thread.is_closed:
                        await asyncio.wait([asyncio.wrap_future(call)])
                    raise

            running = self._it.run(
                handle,
                threads=threads,
                max_processing_time_ms=max_processing_time_ms,
                until=until,
            )
            self._thread.run(running)
