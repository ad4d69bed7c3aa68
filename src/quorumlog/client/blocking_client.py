"""`LedgerClient`: the log for code that blocks. Thread-safe; all threads share its connections.

    with quorumlog.connect("10.0.0.1:20911,10.0.0.2:20911,10.0.0.3:20911") as log:
        receipt = log.append(b"hello")
        for entry in log.read(receipt.first_index):
            ...

`AsyncLedgerClient` has the same verbs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from quorumlog.batch import Entry, EntryBatch
from quorumlog.client.io_thread import IoThread
from quorumlog.client.ledger_client_base import (
    LedgerClientBase,
    checked_limit,
    entry_of,
    now_ms,
)
from quorumlog.client.protocol.append_joiner import body_of
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
from quorumlog.client.protocol.client_requests import Request, receipt_of
from quorumlog.client.protocol.client_timings import ClientTimings
from quorumlog.client.protocol.read_plan import DEFAULT_BATCH_BYTES as READ_BATCH_BYTES
from quorumlog.client.protocol.read_plan import DEFAULT_PREFETCH, ReadPlan
from quorumlog.client.protocol.status_survey import STATUS_TIMEOUT_MS, StatusSurvey
from quorumlog.client.thread_joiner import ThreadJoiner
from quorumlog.config import DEFAULT_GROUP
from quorumlog.entry import AppendReceipt
from quorumlog.wire.client_messages import TransferResponse

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerClient(LedgerClientBase):
    """Blocking verbs on one group. Every one may raise the errors of `quorumlog.errors.LedgerError`.

    Outcomes of an append are exactly three: a receipt (committed), a `Refused` (certainly not written)
    or `OutcomeUnknown` (perhaps written, and never repeated by the client). Refusals that pass by
    themselves, such as a change of leader, are retried for `timeout_ms`.
    """

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
        self._io = IoThread(self._protocol)
        self._joiner = ThreadJoiner(self._io)

    # ---------------------------------------------------------------- append

    def append(self, body: bytes, *, timeout_ms: int | None = None) -> AppendReceipt:
        """Append one entry; returns when it is committed.

        Appends of threads that share the client travel together
        (`quorumlog.client.protocol.append_joiner`); each has its own receipt or error.

        Raises a Refused if it certainly was not written (BodyTooLarge, Unreachable, NotLeader after the
        deadline, ...) and OutcomeUnknown if nobody can tell.
        """
        body = body_of(body)
        outcome, frame = self._joiner.append(body, self._patience_ms(timeout_ms))
        if isinstance(outcome, AppendReceipt):
            return outcome
        if outcome is None:
            return receipt_of(self._call(self._alone_request(body, frame)))
        raise outcome

    def append_batch(
        self, bodies: Sequence[bytes] | EntryBatch, *, timeout_ms: int | None = None
    ) -> AppendReceipt:
        """Append entries that follow each other in the log; one call, one batch. Errors as `append`.

        Raises BodyTooLarge for a batch above the server's frame limit and BadRequest for an empty one.
        """
        return receipt_of(
            self._call(self._append_request(batch_of(bodies), self._patience_ms(timeout_ms)))
        )

    def append_stream(
        self,
        items: Iterable[Item],
        *,
        batch_records: int = DEFAULT_BATCH_RECORDS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        window: int = DEFAULT_WINDOW,
        timeout_ms: int | None = None,
    ) -> AppendStream:
        """Append many bodies (or batches) in order, `window` batches in flight; iterate the receipts.

        `timeout_ms` counts for each batch from when it is taken from `items`.
        """
        patience_ms = self._patience_ms(timeout_ms)
        return AppendStream(self, items, batch_records, batch_bytes, window, patience_ms)

    # ---------------------------------------------------------------- read

    def get(self, index: int, *, from_member: str | None = None) -> Entry:
        """The entry at `index`. Raises IndexOutOfRange outside of the log and for a no-op."""
        plan = self._get_plan(index, from_member)
        while True:
            (request,) = plan.wanted()
            self._call(request)
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
    ) -> Iterator[Entry]:
        """Entries of [first_index, stop_index), no-ops left out, at most `limit`.

        Without `stop_index`: up to what is committed when the read begins. The leader, which is asked
        unless `from_member` names "any" or one member by id, has a majority confirm it: nothing is
        missing that any client was told before. Others give what they know to be committed.
        Raises IndexOutOfRange if the range reaches outside of the log.
        """
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
    ) -> Iterator[EntryBatch]:
        """The same as stored batches (no-ops included), checked, of about `batch_bytes` each."""
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
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches: `index` and `term` (int64) and `body` (binary), a row an
        entry, no-ops left out; `quorumlog.arrow.ENTRY_SCHEMA`.

        Raises ModuleNotFoundError at once where pyarrow (extra `arrow`) is not installed.
        """
        from quorumlog.arrow import record_batch_of

        plan = self._read_plan(
            first_index, stop_index, from_member, batch_bytes=batch_bytes, prefetch=prefetch
        )
        return self._record_batches(plan, record_batch_of)

    def tail(self, first_index: int = 0, *, from_member: str | None = None) -> Iterator[Entry]:
        """Entries from `first_index` on, without end: at the end of the log it waits for the next.

        Goes over a change of leader; raises if no server answers for `timeout_ms`.
        """
        return self._entries(self._read_plan(first_index, None, from_member, follow=True), None)

    # ---------------------------------------------------------------- the group

    def status(self, *, timeout_ms: float = STATUS_TIMEOUT_MS) -> list[dict[str, Any]]:
        """A row a member, also of those that are down (`reachable` false); never raises for that."""
        survey = StatusSurvey(self._protocol, self._patience_ms(timeout_ms))
        while requests := survey.next_requests(now_ms()):
            for request in requests:
                request.context = self._new_waiter()
            self._io.submit(requests)
            for request in requests:
                self._io.wait(request)
        return survey.rows()

    def transfer(self, to: str, *, timeout_ms: int | None = None) -> str:
        """Hand leadership to member `to`; returns the id of the leader then.

        Raises TransferFailed with the reason if it stays where it was.
        """
        request = self._call(self._transfer_request(to, timeout_ms))
        if request.error is not None:
            raise request.error
        assert isinstance(request.response, TransferResponse), request.response
        return request.response.leader_id

    def close(self) -> None:
        """End the connections. An append that another thread waits for ends as OutcomeUnknown."""
        self._io.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---------------------------------------------------------------- waiting

    def _new_waiter(self) -> Any:
        waiter = threading.Lock()
        waiter.acquire()
        return waiter

    def _call(self, request: Request) -> Request:
        self._io.submit((request,))
        self._io.wait(request)
        return request

    def _batches(self, plan: ReadPlan) -> Iterator[EntryBatch]:
        try:
            while True:
                wanted = plan.wanted()
                if wanted:
                    self._io.submit(wanted)
                head = plan.head
                if head is None:
                    return
                self._io.wait(head)
                batch = plan.take()
                if batch is not None:
                    yield batch
        finally:
            self._io.cancel(plan.open_requests)

    def _record_batches(
        self, plan: ReadPlan, encode: Callable[[EntryBatch], pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        for batch in self._batches(plan):
            rows = encode(batch)
            if rows.num_rows:
                yield rows

    def _entries(self, plan: ReadPlan, limit: int | None) -> Iterator[Entry]:
        left = limit
        if left == 0:
            return
        for batch in self._batches(plan):
            for entry in batch.entries():
                yield entry
                if left is not None:
                    left -= 1
                    if left == 0:
                        return


class AppendStream:
    """Receipts of one `append_stream`, in order; one a batch.

    Nothing is sent before the first receipt is asked for. On an error the iteration ends with it:
    `StreamOutcomeUnknown` if some batch's outcome is unknown, else the `Refused` that stopped the
    stream. `progress` says at any time how many records are committed, unknown and not written.
    """

    def __init__(
        self,
        client: LedgerClient,
        items: Iterable[Item],
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

    def __iter__(self) -> Iterator[AppendReceipt]:
        return self

    def __next__(self) -> AppendReceipt:
        io = self._client._io
        while not self._is_exhausted and not self._window.is_full:
            batch = next(self._batches, None)
            if batch is None:
                self._is_exhausted = True
                break
            request = self._client._append_request(batch, self._timeout_ms, self._stream)
            self._window.add(request)
            io.submit((request,))
            head = self._window.head
            assert head is not None
            if head.is_done:
                # A slow source must not keep a receipt back that is already here.
                break
        head = self._window.head
        if head is None:
            raise StopIteration
        io.wait(head)
        receipt = self._window.take()
        if receipt is None:
            self._is_exhausted = True
            for request in self._window.open_requests[1:]:
                io.wait(request)
            self._window.raise_failure()
        assert receipt is not None
        return receipt

    def close(self) -> None:
        """Send nothing more; `progress` then counts what is in flight as unknown."""
        self._is_exhausted = True
        self._client._io.cancel(self._window.open_requests)


def _gathered(items: Iterable[Item], gatherer: BatchGatherer) -> Iterator[EntryBatch]:
    for item in items:
        yield from gatherer.add(item)
    yield from gatherer.rest()


def connect(
    servers: str | Sequence[str], *, group: str = DEFAULT_GROUP, timeout_ms: int = 30_000
) -> LedgerClient:
    """A blocking client of the group that the listed servers (`host:port,host:port`) belong to.

    One reachable server of the list is enough; the others are learned from it.
    """
    return LedgerClient(servers, group=group, timeout_ms=timeout_ms)
