"""A stream of appends, iterated by receipt."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import Self

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.appending import BatchGatherer, Item, StreamProgress
from quorumlog.client.protocol.client_requests import Request
from quorumlog.client.result_streams import Appending
from quorumlog.client.sending import at_once
from quorumlog.entry import AppendReceipt
from quorumlog.errors import BadRequest
from quorumlog.net.loop_thread import LoopThread, Shell


class AsyncSource:
    def __init__(self, items: AsyncIterable[Item], gatherer: BatchGatherer) -> None:
        self._items = items
        self._gatherer = gatherer
        self._batches: deque[EntryBatch] = deque()
        """Complete, and not taken yet. The task waits while there are any."""
        self._room = asyncio.Event()
        self._change = asyncio.Event()
        """There may be something to take, or nothing will come any more."""
        self._is_pause_looked_for = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self.failure: Exception | None = None
        """The source's exception; bodies gathered before are then not sent."""

    @property
    def is_ended(self) -> bool:
        """Nothing is left to take, and nothing will come."""
        return not self._batches and self._task is not None and self._task.done()

    def take(self) -> EntryBatch | None:
        """A complete batch, or else the bodies gathered before a pause."""
        if not self._batches and not self._is_pause_looked_for and self.failure is None:
            self._batches.extend(self._gatherer.rest())
        batch = self._batches.popleft() if self._batches else None
        if not self._batches:
            self._room.set()
        return batch

    async def changed(self, receipt: asyncio.Future[None] | None) -> None:
        """Wait until bodies may be available, or `receipt` is done; lets the source run first."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._run())
            self._task.add_done_callback(lambda task: self._change.set())
        self._change.clear()
        if receipt is None:
            await self._change.wait()
        elif receipt.done():
            await asyncio.sleep(0)
        else:
            change = asyncio.ensure_future(self._change.wait())
            try:
                await asyncio.wait((change, receipt), return_when=asyncio.FIRST_COMPLETED)
            finally:
                change.cancel()

    async def _run(self) -> None:
        try:
            async for item in self._items:
                self._batches.extend(self._gatherer.add(item))
                if self._batches:
                    self._room.clear()
                    self._change.set()
                    await self._room.wait()
                elif not self._is_pause_looked_for:
                    # It runs when the source lets the loop go on, however many items come before.
                    self._is_pause_looked_for = True
                    asyncio.get_running_loop().call_soon(self._paused)
            self._batches.extend(self._gatherer.rest())
        except Exception as failure:  # the caller's source may raise anything; the stream tells of it
            self.failure = failure

    def _paused(self) -> None:
        self._is_pause_looked_for = False
        self._change.set()

    def stop(self) -> None:
        """Take nothing more. Any thread."""
        if self._task is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def stopped(self) -> None:
        """Until the source is left."""
        self.stop()
        if self._task is not None:
            await asyncio.wait((self._task,))


class AsyncAppendStream:
    """Receipts of one `append_stream`, in order; one a batch. Iterate with `async for`.

    Nothing is sent before the first receipt is requested. On an error the iteration ends with it:
    `StreamOutcomeUnknown` if some batch's outcome is unknown, else the `Refused` that stopped the
    stream. `progress` counts the records committed, unknown and not written.
    """

    def __init__(self, items: Iterable[Item] | AsyncIterable[Item], appending: Appending) -> None:
        self._appending = appending
        self._is_begun = False
        self._source: AsyncSource | Iterator[EntryBatch]
        if isinstance(items, AsyncIterable):
            self._source = AsyncSource(items, appending.gatherer)
        else:
            self._source = appending.gatherer.all_of(items)

    @property
    def progress(self) -> StreamProgress:
        return self._appending.progress

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.progress.described}>"

    def __aiter__(self) -> AsyncIterator[AppendReceipt]:
        return self

    async def __anext__(self) -> AppendReceipt:
        self._is_begun = True
        if isinstance(self._source, AsyncSource):
            await self._fill_from(self._source)
        else:
            while self._appending.wants_batch:
                batch = self._appending.next_of(self._source)
                self._appending.sender.submit(self._appending.add_batch(batch))
        receipt = await self._appending.next_receipt()
        if receipt is None:
            raise StopAsyncIteration
        return receipt

    async def _fill_from(self, source: AsyncSource) -> None:
        """Returns when the window is full, the source at its end or a receipt here."""
        appending = self._appending
        while appending.wants_batch:
            batch = source.take()
            if batch is None and not source.is_ended:
                head = appending.head
                await source.changed(None if head is None else head.context)
                batch = source.take()
                if batch is None and not source.is_ended:
                    if head is not None and head.is_done:
                        return
                    continue
            if batch is None and source.failure is not None:
                appending.source_failure = source.failure
            appending.sender.submit(appending.add_batch(batch))

    async def close(self) -> None:
        """Send nothing more; `progress` then counts appends in flight as unknown."""
        self._is_begun = True
        await self.__aexit__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._appending.stop()
        if isinstance(self._source, AsyncSource):
            await self._source.stopped()

    def __del__(self) -> None:
        if not self._is_begun:
            warnings.warn(
                "a stream of appends was never iterated, so nothing of it was sent:"
                " iterate its receipts",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        source = getattr(self, "_source", None)
        if isinstance(source, AsyncSource):
            source.stop()


class AppendStream(Shell[AsyncAppendStream]):
    """See `AsyncAppendStream`. The iterating thread reads the source, which may block, and use the
    client."""

    def __init__(self, thread: LoopThread, made: AsyncAppendStream) -> None:
        super().__init__(thread, made)
        if isinstance(made._source, AsyncSource):
            made._is_begun = True
            raise BadRequest(
                "items is an asynchronous iterable, which needs a client of connect_async()"
            )
        self._batches = made._source

    @property
    def progress(self) -> StreamProgress:
        return self._made.progress

    def __repr__(self) -> str:
        return f"<AppendStream: {self.progress.described}>"

    def __iter__(self) -> Iterator[AppendReceipt]:
        return self

    def __next__(self) -> AppendReceipt:
        self._it._is_begun = True
        appending = self._made._appending
        while appending.wants_batch:
            requests = appending.add_batch(appending.next_of(self._batches))
            self._thread.start(self._submit(requests))
        head = appending.head
        if head is not None and head.is_done and head.error is None:
            receipt = at_once(appending.next_receipt())
            assert receipt is not None
            return receipt
        try:
            receipt = self._thread.run(appending.next_receipt())
        except BadRequest:
            if not self._thread.has_ended():
                raise
            appending.sender.end()
            # What has not left is refused.
            appending.sender.submit([each for each in appending.open_requests if not each.is_done])
            receipt = at_once(appending.next_receipt())
        if receipt is None:
            raise StopIteration
        return receipt

    async def _submit(self, requests: Sequence[Request]) -> None:
        self._made._appending.sender.submit(requests)

    def close(self) -> None:
        """Send nothing more; `progress` then counts appends in flight as unknown."""
        self._made._is_begun = True
        if not self._is_left:
            self._thread.run(self._made.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._is_left:
            self._thread.run(self._made.__aexit__())
