"""Reads of one client: their requests, and what each is promised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec.structs import replace

from quorumlog.append_times import AppendTimes, time_of
from quorumlog.batch import EntryBatch
from quorumlog.client.arguments import (
    INDEX_LIMIT,
    checked_limit,
    checked_machine,
    positive,
    time_ms_of,
    whole,
)
from quorumlog.client.protocol.appending import body_of
from quorumlog.client.protocol.client_requests import Request, read_target
from quorumlog.client.protocol.read_plan import ReadPlan
from quorumlog.client.reading import Freshness, ReadChoice, freshness_of
from quorumlog.client.result_streams import TAIL_WAIT_MS, Reading, Tailing, TimedReading
from quorumlog.client.sending import Sender, request_of
from quorumlog.entry import Entry, EntryKind
from quorumlog.errors import IndexOutOfRange, ProtocolViolation
from quorumlog.net.rpc.calls import ANY_MEMBER, LEADER, RequestTarget, TargetKind, response_of
from quorumlog.wire.client_messages import (
    FindMarkRequest,
    FindMarkResponse,
    MachineReadRequest,
    MachineReadResponse,
    ReadRequest,
    ReadResponse,
)
from quorumlog.wire.read_promise import ReadGuarantee

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

GET_LIMIT_BYTES = 1
LAGGING_MEMBER_WAIT_MS = 1000
"""How long a follower may take to learn that an entry that others know of is committed."""
SUBSTITUTE_TIMEOUT_MS = 5000
"""For a member that is asked in place of a damaged one: there may be another to ask after it."""


class ReadOperations:
    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._protocol = sender.protocol

    # ---------------------------------------------------------------- entries

    async def get(self, index: int, choice: ReadChoice) -> Entry:
        index = _index(index)
        stop_index = whole("the index after it", index + 1)
        plan = self._plan(index, stop_index, choice, batch_bytes=GET_LIMIT_BYTES)
        while True:
            (request,) = plan.wanted()
            await self._sender.call(request)
            batch = plan.take()
            if batch is not None:
                return _entry_of(request, batch, index)

    def read(
        self,
        first_index: int,
        stop_index: int | None,
        limit: int | None,
        choice: ReadChoice,
        with_time: bool = False,
    ) -> Reading[Any]:
        limit = checked_limit(limit)
        plan = self._range_plan(first_index, stop_index, choice, entries_hint=limit)
        if with_time:
            return self._timed(self._reading(plan, _whole), AppendTimes.entries, choice, limit)
        return Reading(self._sender, plan, EntryBatch.entries, limit)

    def read_batches(
        self,
        first_index: int,
        stop_index: int | None,
        choice: ReadChoice,
        *,
        heads: bool = False,
        **sizes: int,
    ) -> Reading[EntryBatch]:
        """`sizes`: batch_bytes and prefetch."""
        return self._reading(
            self._range_plan(first_index, stop_index, choice, heads=heads, **sizes), _whole
        )

    def read_arrow(
        self,
        first_index: int,
        stop_index: int | None,
        choice: ReadChoice,
        columns: Sequence[str] | None,
        **sizes: int,
    ) -> Reading[pa.RecordBatch]:
        from quorumlog.arrow import TIME_COLUMN, record_batch_of, schema_of

        schema = schema_of(columns)

        def rows_of(
            batch: EntryBatch, times: list[tuple[int, int]] | None = None
        ) -> Iterable[pa.RecordBatch]:
            rows = record_batch_of(batch, schema, times=times)
            return (rows,) if rows.num_rows else ()

        heads = not {"body", TIME_COLUMN} & set(schema.names)
        plan = self._range_plan(first_index, stop_index, choice, heads=heads, **sizes)
        if TIME_COLUMN not in schema.names:
            return self._reading(plan, rows_of)

        return self._timed(
            self._reading(plan, _whole), lambda times, batch: rows_of(batch, times.runs(batch)), choice
        )

    def tail(
        self,
        first_index: int | Literal["latest"],
        choice: ReadChoice,
        *,
        wait: bool,
        timeout_ms: float | None,
        with_time: bool = False,
    ) -> Reading[Any]:
        self._protocol.check_open()
        if first_index != "latest":
            first_index = whole('first_index, unless "latest",', first_index)
        patience_ms = float("inf") if timeout_ms is None else self._sender.timeout_ms_of(timeout_ms)

        async def opening() -> ReadPlan:
            first = first_index
            if first == "latest":
                first = await self.end_index() + 1
            elif first > 0 and not wait:
                await self._check_reached(first, choice)
            return self._plan(first, None, choice, wait_ms=TAIL_WAIT_MS, follow=True)

        def tailing(part_of: Callable[[EntryBatch], Iterable[T]]) -> Reading[T]:
            return Tailing(self._sender, opening, self.end_index, patience_ms, part_of)

        if with_time:
            return self._timed(tailing(_whole), AppendTimes.entries, choice)
        return tailing(EntryBatch.entries)

    def _reading(self, plan: ReadPlan, part_of: Callable[[EntryBatch], Iterable[T]]) -> Reading[T]:
        return Reading(self._sender, plan, part_of)

    def _timed(
        self,
        batches: Reading[EntryBatch],
        part_of: Callable[[AppendTimes, EntryBatch], Iterable[T]],
        choice: ReadChoice,
        limit: int | None = None,
    ) -> Reading[T]:
        """Who gave the first entry is asked for its time: it knows that it is committed."""

        async def times_from(index: int) -> AppendTimes:
            found = await self.find_mark(FindMarkRequest(index=index), choice.member)
            return AppendTimes(found.time_ms, found.clock_resets)

        return TimedReading(batches, times_from, part_of, limit)

    async def _check_reached(self, first_index: int, choice: ReadChoice) -> None:
        """Raises IndexOutOfRange if there would still be a gap before an entry that comes now."""
        message = ReadRequest(first_index=first_index, limit_bytes=GET_LIMIT_BYTES)
        request = await self._sender.call(self._request(message, choice.target))
        if not isinstance(request.error, IndexOutOfRange):
            return  # it is there, or the read itself tells what is wrong
        end_index = request.error.committed_index
        if end_index < first_index - 1 and choice.target is not LEADER:
            end_index = await self.end_index()
        if end_index < first_index - 1:
            raise IndexOutOfRange(
                f"index {first_index} is beyond the end of the log, whose last entry is {end_index};"
                " with wait=True a tail waits until the log has grown as far",
                ledger_begin_index=request.error.ledger_begin_index,
                committed_index=end_index,
            )

    def _range_plan(
        self,
        first_index: int,
        stop_index: int | None,
        choice: ReadChoice,
        entries_hint: int | None = None,
        *,
        heads: bool = False,
        **sizes: int,
    ) -> ReadPlan:
        may_lag = stop_index is not None and choice.target is not LEADER
        return self._plan(
            whole("first_index", first_index),
            None if stop_index is None else whole("stop_index", stop_index),
            choice,
            wait_ms=LAGGING_MEMBER_WAIT_MS if may_lag else 0,
            entries_hint=entries_hint,
            heads=bool(heads),  # whatever is true or false: a message carries a bool only
            **{name: positive(name, size) for name, size in sizes.items()},
        )

    def _plan(
        self, first_index: int, stop_index: int | None, choice: ReadChoice, **options: Any
    ) -> ReadPlan:
        may_ask_others = choice.target in (LEADER, ANY_MEMBER)

        def make_request(message: ReadRequest) -> Request:
            end = plan.end
            if end is None or options.get("follow"):
                promise = choice.promise(self._protocol.written_index)
            else:
                # Where the read ends was promised; another member that goes on has to come as far.
                index = max(end.committed_index, self._protocol.written_index)
                promise = ReadGuarantee(at_least_index=index) if choice.consistency else None
            return self._request(message, choice.target, promise)

        plan = ReadPlan(
            first_index,
            stop_index,
            make_request=make_request,
            make_substitute=self._substitute if may_ask_others else None,
            **options,
        )
        return plan

    def _request(
        self, message: ReadRequest, target: RequestTarget, promise: ReadGuarantee | None = None
    ) -> Request:
        if promise is not None:
            message = replace(message, promise=promise)
        timeout_ms = self._sender.timeout_ms + message.wait_ms
        return request_of(message, target, timeout_ms, counts_progress=True)

    def _substitute(self, message: ReadRequest, tried: set[str]) -> Request | None:
        address = self._protocol.view.untried_address(tried)
        if address is None:
            return None
        timeout_ms = min(self._sender.timeout_ms, SUBSTITUTE_TIMEOUT_MS)
        target = RequestTarget(TargetKind.ADDRESS, address)
        return request_of(message, target, timeout_ms + message.wait_ms, counts_progress=True)

    # ---------------------------------------------------------------- the end, and state machines

    async def end_index(self, timeout_ms: float | None = None) -> int:
        return (await self.freshness(ReadChoice(), timeout_ms)).index

    async def freshness(self, choice: ReadChoice, timeout_ms: float | None) -> Freshness:
        """Where the log ends, as it was chosen, and how old that may be."""
        # Above all entries there is only the end: the refusal names it, when it is as promised.
        promise = choice.promise(self._protocol.written_index)
        message = ReadRequest(first_index=INDEX_LIMIT - 1, to_end=True, promise=promise)
        allowed_ms = self._sender.timeout_ms_of(timeout_ms)
        request = await self._sender.call(request_of(message, choice.target, allowed_ms))
        error = request.error
        if isinstance(error, IndexOutOfRange):
            return freshness_of(request, error)
        raise error or ProtocolViolation(f"{request.response} above the end of every log")

    async def ask(
        self, machine: str, question: bytes, choice: ReadChoice, timeout_ms: float | None
    ) -> bytes:
        message = MachineReadRequest(
            machine=checked_machine(machine),
            question=body_of(question),
            promise=choice.promise(self._protocol.written_index),
        )
        target = choice.target if choice.consistency else LEADER
        return (await self._sender.ask(message, MachineReadResponse, timeout_ms, target)).answer

    # ---------------------------------------------------------------- time marks

    async def index_at(self, time: datetime, from_member: str | None) -> int:
        found = await self.find_mark(FindMarkRequest(time_ms=time_ms_of(time)), from_member)
        return max(found.index, found.ledger_begin_index)

    async def time_at(self, index: int, from_member: str | None) -> datetime | None:
        index = _index(index)
        found = await self.find_mark(FindMarkRequest(index=index), from_member)
        if not found.ledger_begin_index <= index <= found.committed_index:
            raise IndexOutOfRange(
                f"index {index} is outside the log, whose committed entries are"
                f" {found.ledger_begin_index} to {found.committed_index}",
                ledger_begin_index=found.ledger_begin_index,
                committed_index=found.committed_index,
            )
        return time_of(found.time_ms)

    async def find_mark(self, message: FindMarkRequest, from_member: str | None) -> FindMarkResponse:
        return await self._sender.ask(message, FindMarkResponse, target=read_target(from_member))


def _index(index: int) -> int:
    index = whole("index", index)
    if index < 0:
        raise IndexOutOfRange(f"index {index} is below 0, where every log begins")
    return index


def _whole(batch: EntryBatch) -> Iterable[EntryBatch]:
    return (batch,)


def _entry_of(request: Request, batch: EntryBatch, index: int) -> Entry:
    """The entry of what `get(index)` brought, checked; raises IndexOutOfRange for a control entry."""
    assert batch.first_index == index, (batch.first_index, index)
    for entry in batch.entries():
        return entry
    kind, term = EntryKind(batch.first_header.magic), batch.first_header.term
    response = response_of(request, ReadResponse)
    raise IndexOutOfRange(
        f"index {index} holds no appended entry, but the {kind.name} of term {term}",
        ledger_begin_index=response.ledger_begin_index,
        committed_index=response.committed_index,
    )
