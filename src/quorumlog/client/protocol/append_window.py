"""`append_stream`: bodies in, batches out, and an account of what became of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.client_requests import Request, receipt_of
from quorumlog.entry import AppendReceipt
from quorumlog.errors import AlreadyCommitted, BadRequest, OutcomeUnknown
from quorumlog.net.rpc.calls import CallState

DEFAULT_BATCH_RECORDS = 256
DEFAULT_BATCH_BYTES = 1024 * 1024
DEFAULT_WINDOW = 8
SLOW_ITEM_MS = 50
"""A source that takes longer than this for an item is waited for; the batch leaves with that item."""

Item = bytes | bytearray | memoryview | Sequence[bytes] | EntryBatch
"""Of a stream: single bodies, which are gathered, or batches, which stay as they are."""


class StreamProgress(NamedTuple):
    """Records of a stream by what is known of them. What was not taken from the source is in none."""

    committed_records: int
    unknown_records: int
    """Sent, without an answer that decides: each may be in the log or not."""
    unwritten_records: int
    """Taken from the source and certainly not in the log."""

    @property
    def described(self) -> str:
        return (
            f"records committed: {self.committed_records}, unknown: {self.unknown_records}, certainly"
            f" not written: {self.unwritten_records}"
        )


class StreamOutcomeUnknown(OutcomeUnknown):
    """An OutcomeUnknown that says how far its stream had come."""

    def __init__(self, message: str, progress: StreamProgress) -> None:
        super().__init__(message)
        self.progress = progress


class BatchGatherer:
    """Gathers single bodies until a batch is full, by records or by bytes."""

    def __init__(self, batch_records: int, batch_bytes: int, now_ms: Callable[[], float]) -> None:
        self._batch_records = batch_records
        self._batch_bytes = batch_bytes
        self._bodies: list[bytes] = []
        self._bytes = 0
        self._now_ms = now_ms
        self.taken_records = 0
        """From the source, sent or not."""

    def all_of(self, items: Iterable[Item]) -> Iterator[EntryBatch]:
        """Whether the next item is there cannot be seen, only how long it took to come."""
        asked_ms = self._now_ms()
        for item in items:
            is_slow = self._now_ms() - asked_ms > SLOW_ITEM_MS
            yield from self.add(item)
            if is_slow:
                yield from self.rest()
            asked_ms = self._now_ms()
        yield from self.rest()

    def add(self, item: Item) -> Iterator[EntryBatch]:
        """The batches that this item completes."""
        if isinstance(item, (bytes, bytearray, memoryview)):
            self._bodies.append(bytes(item))
            self._bytes += len(item)
            self.taken_records += 1
            if len(self._bodies) >= self._batch_records or self._bytes >= self._batch_bytes:
                yield from self.rest()
            return
        _check_item(item)
        batch = batch_of(item)
        self.taken_records += batch.count
        yield from self.rest()
        yield batch

    def rest(self) -> Iterator[EntryBatch]:
        if self._bodies:
            bodies, self._bodies, self._bytes = self._bodies, [], 0
            yield EntryBatch.from_bodies(bodies)


def _check_item(item: object) -> None:
    if isinstance(item, str) or not isinstance(item, (Iterable, EntryBatch)):
        hint = ": encode it first, item.encode()" if isinstance(item, str) else ""
        kind = type(item).__name__
        raise BadRequest(f"an item of a stream must be bytes or a list of them, not {kind}{hint}")


def batch_of(bodies: Sequence[bytes] | EntryBatch) -> EntryBatch:
    """Encode the bodies of one append; raises BadRequest if there are none."""
    if isinstance(bodies, EntryBatch):
        count = bodies.count
    elif isinstance(bodies, (str, bytes, bytearray, memoryview)) or not isinstance(bodies, Iterable):
        raise BadRequest(f"a batch is a list of bodies, not {type(bodies).__name__}")
    else:
        bodies = list(bodies)
        count = len(bodies)
    if count == 0:
        raise BadRequest("a batch needs at least one body")
    return bodies if isinstance(bodies, EntryBatch) else EntryBatch.from_bodies(bodies)


class AppendWindow:
    """The requests of one stream in their order, until each one's outcome was handed out."""

    def __init__(self, window: int, gatherer: BatchGatherer) -> None:
        self.window = window
        self.gatherer = gatherer
        self.source_failure: Exception | None = None
        """What the source raised. What was gathered before and not sent stays unwritten."""
        self._requests: deque[Request] = deque()
        self._added = 0
        self._committed = 0
        self._last_index = -1

    @property
    def is_full(self) -> bool:
        return len(self._requests) >= self.window

    @property
    def head(self) -> Request | None:
        return self._requests[0] if self._requests else None

    @property
    def open_requests(self) -> list[Request]:
        return list(self._requests)

    def next_of(self, batches: Iterator[EntryBatch]) -> EntryBatch | None:
        """None: the source has no more, or has raised."""
        try:
            return next(batches, None)
        except Exception as failure:  # the caller's source may raise anything; the stream tells of it
            self.source_failure = failure
            return None

    def add(self, request: Request) -> None:
        assert not self.is_full, (len(self._requests), self.window)
        self._requests.append(request)
        self._added += request.record_count

    def take(self) -> AppendReceipt | None:
        """The receipt of the finished head; None if it has none, and then the stream is at its end."""
        assert self._requests
        if self._requests[0].error is not None:
            return None
        request = self._requests.popleft()
        receipt = receipt_of(request)
        self._committed += receipt.count
        self._last_index = receipt.last_index
        return receipt

    @property
    def progress(self) -> StreamProgress:
        """As of now; exact once nothing is in flight."""
        committed, unknown = self._committed, 0
        unwritten = self.gatherer.taken_records - self._added
        for request in self._requests:
            if request.state is CallState.DONE and request.error is None:
                committed += request.record_count
            elif isinstance(request.error, AlreadyCommitted):
                held = request.error.last_sequence + 1 - request.sequence
                held = min(max(held, 0), request.record_count)
                committed += held
                unwritten += request.record_count - held
            elif (
                request.state is CallState.SENT
                or isinstance(request.error, OutcomeUnknown)
                or (request.may_be_done and not request.is_done)
            ):
                unknown += request.record_count
            else:
                unwritten += request.record_count
        return StreamProgress(committed, unknown, unwritten)

    def raise_failure(self) -> None:
        """Raise why the finished head failed, with what is known of the others; all are finished."""
        head = self.head
        assert head is not None
        assert head.error is not None
        progress = self.progress
        unknown = next((r.error for r in self._requests if isinstance(r.error, OutcomeUnknown)), None)
        if unknown is None:
            raise head.error
        raise StreamOutcomeUnknown(
            f"{unknown} ({progress.described}; last index in order: {self._last_index})",
            progress,
        ) from unknown
