"""AsyncAppendStream: the receipts of one `append_stream`, for tasks."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Self

from quorumlog.batch import EntryBatch
from quorumlog.client.appending.async_source import AsyncSource
from quorumlog.client.protocol.append_window import Item, StreamProgress
from quorumlog.client.result_streams import Appending
from quorumlog.entry import AppendReceipt

if TYPE_CHECKING:
    from quorumlog.client.async_client import AsyncLedgerClient


class AsyncAppendStream:
    """Receipts of one `append_stream`, in order; one a batch. Iterate with `async for`.

    Nothing is sent before the first receipt is asked for. On an error the iteration ends with it:
    `StreamOutcomeUnknown` if some batch's outcome is unknown, else the `Refused` that stopped the
    stream. `progress` says at any time how many records are committed, unknown and not written.
    """

    def __init__(
        self,
        client: AsyncLedgerClient,
        items: Iterable[Item] | AsyncIterable[Item],
        appending: Appending,
    ) -> None:
        self._appending = appending
        self._is_begun = False
        self._client = client
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
                self._client._submit(self._appending.add_batch(self._appending.next_of(self._source)))
        receipt = await self._client._run(self._appending.next_receipt())
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
            self._client._submit(appending.add_batch(batch))

    async def close(self) -> None:
        """Send nothing more; `progress` then counts what is in flight as unknown."""
        self._is_begun = True
        await self.__aexit__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._client._io.cancel(self._appending.stop())
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
