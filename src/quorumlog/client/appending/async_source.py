"""Where an asyncio stream of appends has its bodies from, if it has to wait for them.

A task of its own takes them, so that a slow source keeps back neither what it gave before nor a receipt.
What it gives without a pause goes into one batch; when it pauses, what has gathered may leave.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.append_window import BatchGatherer, Item


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
        """What the source raised; what was gathered before is then not sent."""

    @property
    def is_ended(self) -> bool:
        """Nothing is left to take, and nothing will come."""
        return not self._batches and self._task is not None and self._task.done()

    def take(self) -> EntryBatch | None:
        """A batch that is complete, or else what has gathered in front of a pause."""
        if not self._batches and not self._is_pause_looked_for and self.failure is None:
            self._batches.extend(self._gatherer.rest())
        batch = self._batches.popleft() if self._batches else None
        if not self._batches:
            self._room.set()
        return batch

    async def changed(self, receipt: asyncio.Future[None] | None) -> None:
        """Until there may be something to take, or `receipt` is here; lets the source run first."""
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
