"""AppendStream: the receipts of one `append_stream`, for code that blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from quorumlog.client.appending.async_append_stream import AsyncAppendStream
from quorumlog.client.appending.async_source import AsyncSource
from quorumlog.client.protocol.append_window import StreamProgress
from quorumlog.client.protocol.client_requests import Request
from quorumlog.client.result_streams import settled
from quorumlog.entry import AppendReceipt
from quorumlog.errors import BadRequest
from quorumlog.net.loop_thread import LoopThread, Shell
from quorumlog.net.system import now_ms


class AppendStream(Shell[AsyncAppendStream]):
    """See `AsyncAppendStream`. The source is asked by the thread that iterates: it may wait, and use the
    client."""

    def __init__(self, thread: LoopThread, made: AsyncAppendStream) -> None:
        super().__init__(thread, made)
        if isinstance(made._source, AsyncSource):
            made._is_begun = True
            raise BadRequest(
                "items is an asynchronous source, which only a client of connect_async() can wait for"
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
        made = self._it
        made._is_begun = True
        while made._appending.wants_batch:
            requests = made._appending.add_batch(made._appending.next_of(self._batches))
            self._thread.start(self._submit(requests))
        head = made._appending.head
        if head is not None and head.is_done and head.error is None:
            receipt = settled(made._appending.next_receipt())
            assert receipt is not None
            return receipt
        try:
            receipt = self._thread.run(made._client._run(made._appending.next_receipt()))
        except BadRequest:
            if not self._thread.has_ended():
                raise
            for request in made._appending.open_requests:
                if not request.is_done:  # it has not left, and is refused
                    made._client._protocol.submit(request, now_ms())
            receipt = settled(made._appending.next_receipt())
        if receipt is None:
            raise StopIteration
        return receipt

    async def _submit(self, requests: Sequence[Request]) -> None:
        self._made._client._submit(requests)

    def close(self) -> None:
        """Send nothing more; `progress` then counts what is in flight as unknown."""
        self._made._is_begun = True
        if not self._is_left:
            self._thread.run(self._made.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._is_left:
            self._thread.run(self._made.__aexit__())
