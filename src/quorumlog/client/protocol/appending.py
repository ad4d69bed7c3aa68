"""Appends that are joined into frames, and a window of those on their way."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.client_requests import Request, receipt_of
from quorumlog.entry import AppendReceipt
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import (
    AlreadyCommitted,
    BadRequest,
    BodyTooLarge,
    CommandError,
    LedgerError,
    OutcomeUnknown,
    Refused,
)
from quorumlog.net.rpc.calls import LEADER, CallState
from quorumlog.wire.client_messages import AppendRequest

MAX_JOINED_BODY_BYTES = 64 * 1024
"""A larger body is a frame of its own: its bytes cost more than a frame does."""
MAX_JOINED_BYTES = 1024 * 1024
"""Of entries, headers included. A larger frame would hardly be cheaper a byte."""
MAX_JOINED_RECORDS = 1024
"""As for the bytes; and all of a frame share its outcome."""

JoinedOutcome = AppendReceipt | LedgerError | None
"""The outcome of one append of a frame. None: certainly not written, to be resent by itself."""


@dataclass(slots=True, eq=False)
class JoinedAppends:
    """Bodies that leave in one frame, and the waiter of each."""

    submitted_ms: float
    deadline_ms: float
    """Of its oldest append, so that none exceeds its time-out."""
    waiters: list[Any] = field(default_factory=list)
    """In the order of the entries; of a kind of the client's own."""
    bodies: list[bytes] = field(default_factory=list)
    machine: str = ""
    """Which takes all of them; empty: none."""
    room_bytes: int = MAX_JOINED_BYTES
    is_taken: bool = False
    """Somebody sends it: nothing is added any more."""
    request: Request | None = None
    """None until it is encoded."""
    in_session: bool = False
    left: int = 0
    """How many of the waiters wait no more."""

    def make_request(self) -> Request:
        """Encode the bodies, for the protocol."""
        assert self.is_taken, "the buffer could still grow"
        assert self.request is None, "a frame is sent once"
        self.request = Request(
            AppendRequest(machine=self.machine),
            LEADER,
            submitted_ms=self.submitted_ms,
            deadline_ms=self.deadline_ms,
            batch=EntryBatch.from_bodies(self.bodies),
            context=self,
            in_session=self.in_session,
        )
        self.bodies = []
        return self.request

    def try_to_make_request(self, refuse: Callable[[Any, Refused], None]) -> Request | None:
        """The same. If that fails, for want of memory, say, `refuse(waiter, error)` is called for each,
        since they would get no other answer."""
        try:
            return self.make_request()
        except Exception as failure:  # whatever it is: they wait
            for waiter in self.waiters:
                error = Refused(f"nothing was written, the append could not be encoded: {failure!r}")
                error.__cause__ = failure
                refuse(waiter, error)
            return None

    def leave(self, waiter: Any) -> bool:
        """`waiter` waits no more; its body is dropped, unless the frame was taken.

        True: the frame has no waiter any more, so its request may be cancelled.
        """
        if not self.is_taken:
            position = self.waiters.index(waiter)
            del self.waiters[position], self.bodies[position]
            return False
        self.left += waiter in self.waiters
        return self.left == len(self.waiters)

    def outcomes(self) -> list[JoinedOutcome]:
        """Of the finished request, in the order of the waiters."""
        assert self.request is not None
        assert self.request.is_done, self.request.state
        # Each holds the other: their bytes would stay until a garbage collection came by.
        self.request.context = None
        count = len(self.waiters)
        error = self.request.error
        if error is None:
            whole = receipt_of(self.request)
            assert whole.count == count, (whole, count)
            if whole.results:
                return _with_results(whole)
            return [AppendReceipt(term, at, 1, whole.durability) for at, term in _places(whole)]
        if count > 1 and isinstance(error, BodyTooLarge):
            return [None] * count
        # Each caller raises an object of its own: a shared one would collect the tracebacks of all.
        return [copy.copy(error) for _ in range(count)]


class AppendBatcher:
    """The appends not sent yet. Not thread-safe."""

    def __init__(self, *, in_session: bool = False) -> None:
        self._in_session = in_session
        self._joined: list[JoinedAppends] = []
        self._timeout_ms: float = -1
        """Of the last frame."""

    def add(
        self, body: bytes, timeout_ms: float, waiter: Any, now_ms: float, machine: str = ""
    ) -> JoinedAppends:
        """Returns the frame that the body will travel in. Only neighbours share one, so that frames
        keep the order of the calls."""
        entry_bytes = HEADER_BYTES + len(body)
        is_large = len(body) > MAX_JOINED_BODY_BYTES
        joined = self._joined[-1] if self._joined else None
        if (
            joined is None
            or is_large
            or joined.room_bytes < entry_bytes
            or timeout_ms != self._timeout_ms
            or machine != joined.machine
            or len(joined.waiters) == MAX_JOINED_RECORDS
        ):
            deadline_ms, in_session = now_ms + timeout_ms, self._in_session
            joined = JoinedAppends(now_ms, deadline_ms, in_session=in_session, machine=machine)
            self._joined.append(joined)
            self._timeout_ms = timeout_ms
        joined.bodies.append(body)
        joined.waiters.append(waiter)
        joined.room_bytes = 0 if is_large else joined.room_bytes - entry_bytes
        return joined

    def take(self, is_gone: Callable[[Any], bool] | None = None) -> list[JoinedAppends]:
        """All frames, in order, to be sent. `is_gone`: of a waiter that is yet to `leave`."""
        ready, self._joined = self._joined, []
        for joined in ready:
            if is_gone is not None:
                for waiter in filter(is_gone, list(joined.waiters)):
                    joined.leave(waiter)
            joined.is_taken = True
        return [joined for joined in ready if joined.waiters]


def _with_results(whole: AppendReceipt) -> list[JoinedOutcome]:
    """Each command's own: its result, or why the machine has refused it."""
    refused = {place: CommandError(why) for place, why in whole.failures}
    return [
        refused.get(place) or AppendReceipt(term, index, 1, whole.durability, results=(result,))
        for place, ((index, term), result) in enumerate(zip(_places(whole), whole.results, strict=True))
    ]


def _places(whole: AppendReceipt) -> list[tuple[int, int]]:
    """(index, term) of each entry."""
    return [(index, part.term) for part in whole.parts for index in part.indices]


def body_of(body: bytes | bytearray | memoryview) -> bytes:
    """The body of one append; a copy, unless it is `bytes`, since the caller may change it. Raises
    BadRequest if not bytes-like, before it joins others in a frame."""
    if type(body) is bytes:
        return body
    if isinstance(body, str):
        raise BadRequest("a body must be bytes, not str: encode it first, body.encode()")
    try:
        return bytes(memoryview(body))
    except TypeError:
        kind = type(body).__name__
        raise BadRequest(f"a body must be bytes, bytearray or memoryview, not {kind}") from None


# ----------------------------------------------------------------
# `append_stream`: bodies in, batches out, and an account of what became of each.

DEFAULT_BATCH_RECORDS = 256
DEFAULT_BATCH_BYTES = 1024 * 1024
DEFAULT_WINDOW = 8
SLOW_ITEM_MS = 50
"""A source that takes longer than this for an item is waited for; the batch leaves with that item."""

Item = bytes | bytearray | memoryview | Sequence[bytes] | EntryBatch
"""Of a stream: single bodies, which are gathered, or batches, which stay as they are."""


class StreamProgress(NamedTuple):
    """Records of a stream by outcome. Records not yet taken from the source are not counted."""

    committed_records: int
    unknown_records: int
    """Sent, without a decisive answer: each may be in the log or not."""
    unwritten_records: int
    """Taken from the source and certainly not in the log."""

    @property
    def described(self) -> str:
        return (
            f"records committed: {self.committed_records}, unknown: {self.unknown_records}, certainly"
            f" not written: {self.unwritten_records}"
        )


class StreamOutcomeUnknown(OutcomeUnknown):
    """An OutcomeUnknown with the progress of its stream."""

    def __init__(self, message: str, progress: StreamProgress) -> None:
        super().__init__(message)
        self.progress = progress

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker process raises it in its parent."""
        return type(self), (str(self), self.progress), self.__dict__


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
        """The source's exception. Bodies gathered before and not sent stay unwritten."""
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
        """Raise the error of the finished head, with the known outcomes of the others; all are
        finished."""
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
