"""`AsyncLedgerClient`: the log for asyncio (and uvloop). The same verbs as `LedgerClient`.

    async with quorumlog.connect_async("10.0.0.1:20911,10.0.0.2:20911") as log:
        receipt = await log.append(b"hello")
        async for entry in log.read(receipt.first_index):
            ...

Single appends that tasks start in one turn of the loop leave at its end, in one frame and one write
(`quorumlog.client.protocol.append_joiner`). A client belongs to the loop that it was first used in.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from quorumlog.batch import Entry, EntryBatch
from quorumlog.client.ledger_client_base import (
    LedgerClientBase,
    checked_limit,
    entry_of,
    now_ms,
    reason_of,
)
from quorumlog.client.protocol.append_joiner import AppendFrame, AppendJoiner, Outcome, body_of
from quorumlog.client.protocol.append_window import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BATCH_RECORDS,
    DEFAULT_WINDOW,
    AppendWindow,
    BatchGatherer,
    Item,
    StreamProgress,
    batch_of,
)
from quorumlog.client.protocol.client_requests import Link, LinkState, Request, receipt_of
from quorumlog.client.protocol.client_timings import ClientTimings
from quorumlog.client.protocol.read_plan import DEFAULT_BATCH_BYTES as READ_BATCH_BYTES
from quorumlog.client.protocol.read_plan import DEFAULT_PREFETCH, ReadPlan
from quorumlog.client.protocol.status_survey import STATUS_TIMEOUT_MS, StatusSurvey
from quorumlog.config import DEFAULT_GROUP, parse_address
from quorumlog.entry import AppendReceipt
from quorumlog.errors import ProtocolViolation
from quorumlog.wire.client_messages import TransferResponse

if TYPE_CHECKING:
    import pyarrow as pa


class _LinkProtocol(asyncio.BufferedProtocol):
    """Bytes of one link between asyncio and the frame decoder."""

    def __init__(self, client: AsyncLedgerClient, link: Link) -> None:
        self._client = client
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transports are no subclass of asyncio's.
        self._client._connected(self._link, cast(asyncio.Transport, transport))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._link.decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._link.decoder.buffer_updated(nbytes)
        except ProtocolViolation as violation:
            self._client._lost(self._link, f"protocol violation: {violation}")
            return
        if frames:
            self._client._protocol.frames_received(self._link, frames, now_ms())
            self._client._carry_out()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = reason_of(exc) if isinstance(exc, OSError) else "closed by the server"
        self._client._lost(self._link, reason)


class AsyncLedgerClient(LedgerClientBase):
    """See `LedgerClient` for outcomes and errors; they are the same, from the same code."""

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        group: str = DEFAULT_GROUP,
        timeout_ms: int = 30_000,
        timings: ClientTimings | None = None,
    ) -> None:
        """Connects with the first call. Raises ConfigError for a list that cannot be read."""
        super().__init__(servers, group=group, timeout_ms=timeout_ms, timings=timings)
        self._joiner = AppendJoiner()
        self._is_join_scheduled = False
        self._links_to_write: dict[Link, None] = {}
        self._is_write_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = float("inf")
        self._dials: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        """Of the first call; connections, timer and waiters are that loop's."""

    # ---------------------------------------------------------------- append

    async def append(self, body: bytes, *, timeout_ms: int | None = None) -> AppendReceipt:
        """See `LedgerClient.append`. If the task is cancelled the outcome is unknown to it: once a body
        shares a frame with others it stays there."""
        if type(body) is not bytes:
            body = body_of(body)
        patience_ms = self._patience_ms(timeout_ms)
        loop = self._own_loop()
        waiter: asyncio.Future[Outcome] = loop.create_future()
        if not self._is_join_scheduled:
            self._is_join_scheduled = True
            loop.call_soon(self._join)
        frame = self._joiner.add(body, patience_ms, waiter, now_ms())
        try:
            outcome = await waiter
        except asyncio.CancelledError:
            if frame.leave(waiter) and frame.request is not None:
                self._cancel((frame.request,))
            raise
        if isinstance(outcome, AppendReceipt):
            return outcome
        if outcome is None:
            return receipt_of(await self._call(self._alone_request(body, frame)))
        raise outcome

    async def append_batch(
        self, bodies: Sequence[bytes] | EntryBatch, *, timeout_ms: int | None = None
    ) -> AppendReceipt:
        """See `LedgerClient.append_batch`."""
        return receipt_of(
            await self._call(self._append_request(batch_of(bodies), self._patience_ms(timeout_ms)))
        )

    def append_stream(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        *,
        batch_records: int = DEFAULT_BATCH_RECORDS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        window: int = DEFAULT_WINDOW,
        timeout_ms: int | None = None,
    ) -> AsyncAppendStream:
        """See `LedgerClient.append_stream`; iterate with `async for`."""
        patience_ms = self._patience_ms(timeout_ms)
        return AsyncAppendStream(self, items, batch_records, batch_bytes, window, patience_ms)

    # ---------------------------------------------------------------- read

    async def get(self, index: int, *, from_member: str | None = None) -> Entry:
        """See `LedgerClient.get`."""
        plan = self._get_plan(index, from_member)
        while True:
            (request,) = plan.wanted()
            await self._call(request)
            batch = plan.take()
            if batch is not None:
                return entry_of(request, batch, index)

    def read(
        self,
        first_index: int,
        stop_index: int | None = None,
        *,
        limit: int | None = None,
        from_member: str | None = None,
    ) -> AsyncIterator[Entry]:
        """See `LedgerClient.read`."""
        limit = checked_limit(limit)
        plan = self._read_plan(first_index, stop_index, from_member, entries_hint=limit)
        return self._entries(plan, limit)

    def read_batches(
        self,
        first_index: int,
        stop_index: int | None = None,
        *,
        from_member: str | None = None,
        batch_bytes: int = READ_BATCH_BYTES,
        prefetch: int = DEFAULT_PREFETCH,
    ) -> AsyncIterator[EntryBatch]:
        """See `LedgerClient.read_batches`."""
        plan = self._read_plan(
            first_index, stop_index, from_member, batch_bytes=batch_bytes, prefetch=prefetch
        )
        return self._batches(plan)

    def read_arrow(
        self,
        first_index: int,
        stop_index: int | None = None,
        *,
        from_member: str | None = None,
        batch_bytes: int = READ_BATCH_BYTES,
        prefetch: int = DEFAULT_PREFETCH,
    ) -> AsyncIterator[pa.RecordBatch]:
        """See `LedgerClient.read_arrow`."""
        from quorumlog.arrow import record_batch_of

        plan = self._read_plan(
            first_index, stop_index, from_member, batch_bytes=batch_bytes, prefetch=prefetch
        )
        return self._record_batches(plan, record_batch_of)

    def tail(self, first_index: int = 0, *, from_member: str | None = None) -> AsyncIterator[Entry]:
        """See `LedgerClient.tail`."""
        return self._entries(self._read_plan(first_index, None, from_member, follow=True), None)

    # ---------------------------------------------------------------- the group

    async def status(self, *, timeout_ms: float = STATUS_TIMEOUT_MS) -> list[dict[str, Any]]:
        """See `LedgerClient.status`."""
        survey = StatusSurvey(self._protocol, self._patience_ms(timeout_ms))
        while requests := survey.next_requests(now_ms()):
            for request in requests:
                request.context = self._new_waiter()
            self._submit(requests)
            for request in requests:
                await self._wait(request)
        return survey.rows()

    async def transfer(self, to: str, *, timeout_ms: int | None = None) -> str:
        """See `LedgerClient.transfer`."""
        request = await self._call(self._transfer_request(to, timeout_ms))
        if request.error is not None:
            raise request.error
        assert isinstance(request.response, TransferResponse), request.response
        return request.response.leader_id

    async def close(self) -> None:
        """End the connections. An append that another task waits for ends as OutcomeUnknown."""
        self._protocol.close(now_ms())
        if self._loop is not None and self._loop.is_closed():
            # Nobody waits any more, and no transport can be told: forgotten, they close their sockets.
            for link in self._protocol.take_work().close:
                link.context = None
            return
        self._submit_joined()
        self._carry_out()
        if self._timer is not None:
            self._timer.cancel()
        dials = list(self._dials)
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)

    def __await__(self) -> Generator[Any, None, Self]:
        """`await connect_async(...)` and `async with connect_async(...)` both give the client."""
        yield from ()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # ---------------------------------------------------------------- waiting

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None:
                # An answer would wake a loop that does not run: the caller would wait for ever.
                raise RuntimeError(
                    "this client belongs to the event loop that it was first used in; call"
                    " connect_async() again in the loop of each asyncio.run()"
                )
            self._loop = loop
        return loop

    def _new_waiter(self) -> asyncio.Future[None]:
        return self._own_loop().create_future()

    async def _call(self, request: Request) -> Request:
        self._submit((request,))
        await self._wait(request)
        return request

    async def _wait(self, request: Request) -> None:
        if request.is_done:
            return
        try:
            await request.context
        except asyncio.CancelledError:
            self._cancel((request,))
            raise

    async def _batches(self, plan: ReadPlan) -> AsyncIterator[EntryBatch]:
        try:
            while True:
                self._submit(plan.wanted())
                head = plan.head
                if head is None:
                    return
                await self._wait(head)
                batch = plan.take()
                if batch is not None:
                    yield batch
        finally:
            self._cancel(plan.open_requests)

    async def _record_batches(
        self, plan: ReadPlan, encode: Callable[[EntryBatch], pa.RecordBatch]
    ) -> AsyncIterator[pa.RecordBatch]:
        async for batch in self._batches(plan):
            rows = encode(batch)
            if rows.num_rows:
                yield rows

    async def _entries(self, plan: ReadPlan, limit: int | None) -> AsyncIterator[Entry]:
        left = limit
        if left == 0:
            return
        async for batch in self._batches(plan):
            for entry in batch.entries():
                yield entry
                if left is not None:
                    left -= 1
                    if left == 0:
                        return

    # ---------------------------------------------------------------- the protocol's work

    def _join(self) -> None:
        """At the end of a loop turn: the appends that its tasks began, written at once."""
        self._is_join_scheduled = False
        # The write of this link is here: another turn would only be waiting.
        self._is_write_scheduled = True
        try:
            self._submit_joined()
            self._carry_out()
        finally:
            self._write()

    def _submit_joined(self) -> None:
        # A task that was cancelled in this turn runs, and leaves its frame, only in the next one.
        for frame in self._joiner.take(asyncio.Future.cancelled):
            request = frame.try_to_make_request(asyncio.Future.set_result)
            if request is not None:
                self._protocol.submit(request, now_ms())

    def _submit(self, requests: Iterable[Request]) -> None:
        now = now_ms()
        for request in requests:
            if request.payload is not None:
                # Among appends, what was begun first is written first.
                self._submit_joined()
            self._protocol.submit(request, now)
        self._carry_out()

    def _cancel(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._protocol.cancel(request, now_ms())
        self._carry_out()

    def _carry_out(self) -> None:
        work = self._protocol.take_work()
        for request in work.completed:
            waiter = request.context
            # Done: whoever waited was cancelled. None: a probe of the protocol's own.
            if isinstance(waiter, AppendFrame):
                for each, outcome in zip(waiter.waiters, waiter.outcomes(), strict=True):
                    if not each.done():
                        each.set_result(outcome)
            elif waiter is not None and not waiter.done():
                waiter.set_result(None)
        for link in work.close:
            if link.context is not None:
                link.context.abort()
        for link in work.dial:
            dial = asyncio.get_running_loop().create_task(self._dial(link))
            self._dials.add(dial)
            dial.add_done_callback(self._dials.discard)
        if work.write:
            self._links_to_write.update(dict.fromkeys(work.write))
            if not self._is_write_scheduled:
                self._is_write_scheduled = True
                asyncio.get_running_loop().call_soon(self._write)
        wake_at = self._protocol.next_wakeup_ms()
        if wake_at < self._timer_at_ms:
            self._set_timer(wake_at)

    def _write(self) -> None:
        """At the end of a loop turn: everything that its tasks put into the outboxes."""
        self._is_write_scheduled = False
        links, self._links_to_write = self._links_to_write, {}
        for link in links:
            # One that was lost in this turn is closed by now: uvloop would raise, and skip the rest.
            if link.context is not None and link.outbox and not link.context.is_closing():
                buffers, link.outbox = link.outbox, []
                link.context.writelines(buffers)

    def _set_timer(self, wake_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = wake_at
        delay_s = max(0.0, (wake_at - now_ms()) / 1000.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at_ms = float("inf")
        self._protocol.advance(now_ms())
        self._carry_out()

    async def _dial(self, link: Link) -> None:
        host, port = parse_address(link.address)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: _LinkProtocol(self, link), host, port
            )
        except (OSError, UnicodeError) as failure:
            self._lost(link, reason_of(failure))

    def _connected(self, link: Link, transport: asyncio.Transport) -> None:
        if link.state is LinkState.CLOSED:
            transport.abort()
            return
        link.context = transport
        self._protocol.link_connected(link, now_ms())
        self._carry_out()

    def _lost(self, link: Link, reason: str) -> None:
        if link.state is not LinkState.CLOSED:
            self._protocol.link_lost(link, reason, now_ms())
            self._carry_out()


class AsyncAppendStream:
    """See `AppendStream`; iterate with `async for`."""

    def __init__(
        self,
        client: AsyncLedgerClient,
        items: Iterable[Item] | AsyncIterable[Item],
        batch_records: int,
        batch_bytes: int,
        window: int,
        timeout_ms: float,
    ) -> None:
        self._client = client
        self._window = AppendWindow(window)
        self._batches = _gathered(items, BatchGatherer(batch_records, batch_bytes))
        self._stream = client._protocol.new_stream()
        self._timeout_ms = timeout_ms
        self._is_exhausted = False

    @property
    def progress(self) -> StreamProgress:
        return self._window.progress

    def __aiter__(self) -> AsyncIterator[AppendReceipt]:
        return self

    async def __anext__(self) -> AppendReceipt:
        client = self._client
        while not self._is_exhausted and not self._window.is_full:
            batch = await anext(self._batches, None)
            if batch is None:
                self._is_exhausted = True
                break
            request = client._append_request(batch, self._timeout_ms, self._stream)
            self._window.add(request)
            client._submit((request,))
            head = self._window.head
            assert head is not None
            if head.is_done:
                break
        head = self._window.head
        if head is None:
            raise StopAsyncIteration
        await _done(head)
        receipt = self._window.take()
        if receipt is None:
            self._is_exhausted = True
            for request in self._window.open_requests[1:]:
                await _done(request)
            self._window.raise_failure()
        assert receipt is not None
        return receipt

    async def close(self) -> None:
        """Send nothing more; `progress` then counts what is in flight as unknown."""
        self._is_exhausted = True
        self._client._cancel(self._window.open_requests)


async def _done(request: Request) -> None:
    """Wait for a request of a stream, which goes on if whoever waits is cancelled."""
    if not request.is_done:
        await asyncio.shield(request.context)


async def _gathered(
    items: Iterable[Item] | AsyncIterable[Item], gatherer: BatchGatherer
) -> AsyncIterator[EntryBatch]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            for batch in gatherer.add(item):
                yield batch
    else:
        for item in items:
            for batch in gatherer.add(item):
                yield batch
    rest: Iterator[EntryBatch] = gatherer.rest()
    for batch in rest:
        yield batch


def connect_async(
    servers: str | Sequence[str], *, group: str = DEFAULT_GROUP, timeout_ms: int = 30_000
) -> AsyncLedgerClient:
    """An asyncio client: `await connect_async(...)` or `async with connect_async(...) as client`."""
    return AsyncLedgerClient(servers, group=group, timeout_ms=timeout_ms)
