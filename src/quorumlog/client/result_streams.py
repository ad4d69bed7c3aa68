"""Calls with many results: `next_part` or `next_receipt` returns the next one, and None at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from math import isinf
from typing import Generic, TypeVar

from quorumlog.append_times import AppendTimes
from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.append_order import MOST_UNANSWERED
from quorumlog.client.protocol.appending import AppendWindow, BatchGatherer
from quorumlog.client.protocol.client_requests import Request
from quorumlog.client.protocol.read_plan import ReadPlan
from quorumlog.client.sending import Sender, request_of
from quorumlog.entry import AppendReceipt
from quorumlog.errors import IndexOutOfRange, LedgerError
from quorumlog.net.rpc.calls import LEADER
from quorumlog.net.system import now_ms
from quorumlog.wire.client_messages import AppendRequest, ReadResponse

TAIL_WAIT_MS = 1000
"""How long one request of a tail waits at the server; also how soon a silent server is noticed."""

T = TypeVar("T")


class Reading(Generic[T]):
    """One read under way: `next_part` returns the results of each batch, in order, and None at the
    end."""

    def __init__(
        self,
        sender: Sender,
        plan: ReadPlan | None,
        part_of: Callable[[EntryBatch], Iterable[T]],
        limit: int | None = None,
    ) -> None:
        self.sender = sender
        self._plan = plan
        self._part_of = part_of
        self._left = limit
        """Results still to come at most; None: all."""
        self._is_stopped = False

    @property
    def end_source(self) -> tuple[Request, ReadResponse | IndexOutOfRange] | None:
        """The newest answer with the log's end."""
        return None if self._plan is None else self._plan.end_source

    def stop(self) -> None:
        """The reader has stopped: a waiter for a part gets None."""
        self._is_stopped = True
        if self._plan is not None:
            self.sender.cancel(self._plan.open_requests)

    async def next_part(self) -> Iterable[T] | None:
        plan = self._plan
        assert plan is not None
        while self._left != 0 and not self._is_over():
            new = plan.wanted()
            head = plan.head
            if head is None:
                break
            self.sender.submit(new)
            head.is_kept = True  # a caller that is cancelled meanwhile may ask for the next part again
            await self.sender.wait(head)
            if self._is_over():
                break
            batch = plan.take()
            if batch is not None:
                return self._limited(self._part_of(batch))
            await self._nothing_came(plan)
            if self._gives_up():
                break
        return None

    async def _nothing_came(self, plan: ReadPlan) -> None:
        pass

    def _is_over(self) -> bool:
        return self._is_stopped

    def _gives_up(self) -> bool:
        """Asked when nothing came."""
        return False

    def _limited(self, part: Iterable[T]) -> Iterable[T]:
        if self._left is None:
            return part
        allowed = list(islice(part, self._left))
        self._left -= len(allowed)
        return allowed


class Tailing(Reading[T]):
    """A read without an end, but for that of the client and of its patience."""

    def __init__(
        self,
        sender: Sender,
        opening: Callable[[], Awaitable[ReadPlan]],
        end_index: Callable[[float | None], Awaitable[int]],
        patience_ms: float,
        part_of: Callable[[EntryBatch], Iterable[T]],
    ) -> None:
        super().__init__(sender, None, part_of)
        self._opening = opening
        self._end_index = end_index
        self._patience_ms = patience_ms
        """For so long it waits for the next entry."""

    async def next_part(self) -> Iterable[T] | None:
        if self._plan is None:
            self._plan = await self._opening()
        self._until_ms = now_ms() + self._patience_ms
        self._gives_up()
        return await super().next_part()

    def _is_over(self) -> bool:
        return self._is_stopped or self.sender.protocol.is_closed

    async def _nothing_came(self, plan: ReadPlan) -> None:
        """Raises IndexOutOfRange if the log ends before what it has brought already: it would
        wait, and pass over whatever comes in the place of that."""
        if not plan.knows_less:
            return
        try:
            patience_ms = max(TAIL_WAIT_MS, self._until_ms - now_ms())
            end_index = await self._end_index(None if isinf(patience_ms) else patience_ms)
        except LedgerError:
            return  # nobody can say so yet
        if end_index < plan.read_index:
            raise IndexOutOfRange(
                f"entry {plan.read_index} was read, but the log now ends at {end_index}: the group has"
                " lost committed entries and continues without them (were older copies of directories"
                f" restored?); to continue without them, read from {end_index + 1}",
                committed_index=end_index,
            )

    def _gives_up(self) -> bool:
        assert self._plan is not None
        left_ms = self._until_ms - now_ms()
        self._plan.wait_ms = int(max(1.0, min(left_ms, TAIL_WAIT_MS)))
        return left_ms <= 0


class TimedReading(Reading[T]):
    """The results of each batch, with the times of its entries: the time at the first one is requested
    once, the others follow from the marks among the entries."""

    def __init__(
        self,
        batches: Reading[EntryBatch],
        times_from: Callable[[int], Awaitable[AppendTimes]],
        part_of: Callable[[AppendTimes, EntryBatch], Iterable[T]],
        limit: int | None,
    ) -> None:
        super().__init__(batches.sender, None, lambda batch: part_of(self._times, batch), limit)
        self._batches = batches
        self._times_from = times_from
        self._times = AppendTimes(-1)
        self._is_begun = False
        self._untimed: EntryBatch | None = None
        """Taken, while the times are asked for."""

    @property
    def end_source(self) -> tuple[Request, ReadResponse | IndexOutOfRange] | None:
        return self._batches.end_source

    def stop(self) -> None:
        super().stop()
        self._batches.stop()

    async def next_part(self) -> Iterable[T] | None:
        if self._untimed is None:
            part = None if self._left == 0 else await self._batches.next_part()
            if part is None:
                return None
            (self._untimed,) = part
        batch = self._untimed
        if not self._is_begun and not self._is_over():
            self._times = await self._times_from(batch.first_index)
            self._is_begun = True
        self._untimed = None
        return None if self._is_over() else self._limited(self._part_of(batch))


class Appending(AppendWindow):
    """One `append_stream` under way. Batches are added while it `wants_batch`; then `next_receipt`
    returns the oldest outcome."""

    def __init__(self, sender: Sender, gatherer: BatchGatherer, window: int, timeout_ms: float) -> None:
        self._in_session = sender.protocol.producer is not None
        super().__init__(min(window, MOST_UNANSWERED) if self._in_session else window, gatherer)
        self.sender = sender
        self._stream = sender.protocol.new_stream()
        self._timeout_ms = timeout_ms
        self._is_exhausted = False
        self._has_added = False
        """Since the last receipt."""

    @property
    def wants_batch(self) -> bool:
        """There is room. After the first one a receipt that is already here goes before: a slow source
        must not keep it back."""
        if self._is_exhausted or self.is_full:
            return False
        head = self.head
        return head is None or not (self._has_added and head.is_done)

    def add_batch(self, batch: EntryBatch | None) -> Sequence[Request]:
        """Returns the request to submit; None: the source is exhausted."""
        if batch is None:
            self._is_exhausted = True
            return ()
        request = request_of(
            AppendRequest(),
            LEADER,
            self._timeout_ms,
            batch=batch,
            stream=self._stream,
            in_session=self._in_session,
        )
        self.add(request)
        self._has_added = True
        return (request,)

    async def next_receipt(self) -> AppendReceipt | None:
        """None: the stream is at its end. Raises its error, or that of its source, once all outcomes are
        known."""
        self._has_added = False
        head = self.head
        if head is None:
            if self.source_failure is not None:
                raise self.source_failure
            return None
        await self.sender.wait(head)
        receipt = self.take()
        if receipt is None:
            self._is_exhausted = True
            for request in self.open_requests[1:]:
                await self.sender.wait(request)
            self.raise_failure()
        return receipt

    def stop(self) -> None:
        """Take nothing more, and cancel what waits."""
        self._is_exhausted = True
        self.sender.cancel(self.open_requests)
