"""What each verb does, written once for both clients: a generator of requests.

A verb yields steps; its return value or its error is the outcome of the call. A verb that gives many
results is an object whose next result is such a generator (`result_streams`). Nothing here waits; the
clients drive (`LedgerClient._run`, `AsyncLedgerClient._run`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from quorumlog.append_times import AppendTimes, time_of
from quorumlog.batch import Entry, EntryBatch
from quorumlog.client.arguments import (
    INDEX_LIMIT,
    checked_expected_last,
    checked_limit,
    milliseconds,
    positive,
    time_ms_of,
    whole,
)
from quorumlog.client.protocol.append_joiner import JoinedAppends
from quorumlog.client.protocol.append_window import BatchGatherer, batch_of
from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.protocol.client_requests import (
    ANY_MEMBER,
    LEADER,
    Request,
    RequestTarget,
    TargetKind,
    read_target,
    receipt_of,
    response_of,
)
from quorumlog.client.protocol.read_plan import ReadPlan
from quorumlog.client.readers import reader_rows
from quorumlog.client.readers.reader_rows import GivenHold, ReaderRow, number_of
from quorumlog.client.result_streams import (
    TAIL_WAIT_MS,
    Appending,
    Reading,
    Step,
    Tailing,
    TimedReading,
    Verb,
    request_of,
)
from quorumlog.client.status_rows import MemberStatusRow, rows_of
from quorumlog.client.system import now_ms
from quorumlog.entry import AppendReceipt, EntryKind
from quorumlog.errors import (
    BadRequest,
    IndexOutOfRange,
    OutcomeUnknown,
    ProtocolViolation,
    Refused,
    UnknownReader,
)
from quorumlog.wire.client_messages import (
    AppendRequest,
    FindMarkRequest,
    FindMarkResponse,
    LayoutRequest,
    LayoutResponse,
    MoveReaderRequest,
    MoveReaderResponse,
    ReadersRequest,
    ReadersResponse,
    ReadRequest,
    ReadResponse,
    StatusRequest,
    TransferRequest,
    TransferResponse,
    WhyKeptRequest,
    WhyKeptResponse,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

LAGGING_MEMBER_WAIT_MS = 1000
"""How long a follower may take to learn that an entry that others know of is committed."""
GET_LIMIT_BYTES = 1
SUBSTITUTE_TIMEOUT_MS = 5000
"""For a member that is asked in place of a damaged one: there may be another to ask after it."""


class ReaderStand(NamedTuple):
    position: int
    hold: int


def call(request: Request) -> Step:
    """One request and its answer."""
    return Step((request,), (request,))


class Verbs:
    """All verbs on one group but the single append, which the joiners send."""

    def __init__(self, protocol: ClientProtocol, timeout_ms: float) -> None:
        self._protocol = protocol
        self.timeout_ms = timeout_ms
        """Of a call that is given none."""

    def timeout_ms_of(self, timeout_ms: float | None) -> float:
        """None: that of the client. Raises BadRequest."""
        if timeout_ms is None:
            return self.timeout_ms
        given = milliseconds(timeout_ms)
        if given is None:
            raise BadRequest(f"timeout_ms must be a number of milliseconds, not {timeout_ms!r}")
        return given

    # ---------------------------------------------------------------- append

    def append_batch(
        self,
        bodies: Sequence[bytes] | EntryBatch,
        timeout_ms: float | None,
        expected_last: int | None = None,
    ) -> Verb[AppendReceipt]:
        message = AppendRequest(expected_last=checked_expected_last(expected_last))
        request = request_of(message, LEADER, self.timeout_ms_of(timeout_ms), batch=batch_of(bodies))
        yield call(request)
        return receipt_of(request)

    def append_alone(self, body: bytes, joined: JoinedAppends) -> Verb[AppendReceipt]:
        """One body of a frame that was refused for its size, in the time that is left to it."""
        return self.append_batch([body], joined.deadline_ms - now_ms())

    def append_stream(
        self, batch_records: int, batch_bytes: int, window: int, timeout_ms: float | None
    ) -> Appending:
        limits = positive("batch_records", batch_records), positive("batch_bytes", batch_bytes)
        window, allowed_ms = positive("window", window), self.timeout_ms_of(timeout_ms)
        gatherer = BatchGatherer(*limits, now_ms)
        return Appending(self._protocol.new_stream(), gatherer, window, allowed_ms)

    # ---------------------------------------------------------------- read

    def get(self, index: int, from_member: str | None) -> Verb[Entry]:
        index = whole("index", index)
        if index < 0:
            raise IndexOutOfRange(f"index {index} is below 0, where every log begins")
        plan = self._plan(index, index + 1, from_member, batch_bytes=GET_LIMIT_BYTES)
        while True:
            (request,) = plan.wanted()
            yield call(request)
            batch = plan.take()
            if batch is not None:
                return _entry_of(request, batch, index)

    def read(
        self,
        first_index: int,
        stop_index: int | None,
        limit: int | None,
        from_member: str | None,
        with_time: bool = False,
    ) -> Reading[Entry]:
        limit = checked_limit(limit)
        plan = self._range_plan(first_index, stop_index, from_member, entries_hint=limit)
        if with_time:
            return self._timed(Reading(plan, _whole), AppendTimes.entries, from_member, limit)
        return Reading(plan, EntryBatch.entries, limit)

    def read_batches(
        self, first_index: int, stop_index: int | None, from_member: str | None, **sizes: int
    ) -> Reading[EntryBatch]:
        """`sizes`: batch_bytes and prefetch."""
        plan = self._range_plan(first_index, stop_index, from_member, **sizes)
        return Reading(plan, lambda batch: (batch,))

    def read_arrow(
        self,
        first_index: int,
        stop_index: int | None,
        from_member: str | None,
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

        plan = self._range_plan(first_index, stop_index, from_member, **sizes)
        if TIME_COLUMN not in schema.names:
            return Reading(plan, rows_of)

        def timed_rows_of(times: AppendTimes, batch: EntryBatch) -> Iterable[pa.RecordBatch]:
            return rows_of(batch, times.runs(batch))

        return self._timed(Reading(plan, _whole), timed_rows_of, from_member)

    def tail(
        self,
        first_index: int | Literal["latest"],
        from_member: str | None,
        *,
        wait: bool,
        timeout_ms: float | None,
        with_time: bool = False,
    ) -> Reading[Entry]:
        self._protocol.check_open()
        if first_index != "latest":
            first_index = whole('first_index, unless "latest",', first_index)
        opening = self._tail_plan(first_index, from_member, wait=wait)
        patience_ms = float("inf") if timeout_ms is None else self.timeout_ms_of(timeout_ms)
        if with_time:
            tailing = Tailing(opening, self._is_closed, patience_ms, _whole)
            return self._timed(tailing, AppendTimes.entries, from_member)
        return Tailing(opening, self._is_closed, patience_ms, EntryBatch.entries)

    def _is_closed(self) -> bool:
        return self._protocol.is_closed

    def _timed(
        self,
        batches: Reading[EntryBatch],
        part_of: Callable[[AppendTimes, EntryBatch], Iterable[T]],
        from_member: str | None,
        limit: int | None = None,
    ) -> Reading[T]:
        """Who gave the first entry is asked for its time: it knows that it is committed."""
        member = None if from_member == "any" else from_member
        return TimedReading(batches, lambda index: self.time_ms_at(index, member), part_of, limit)

    def _tail_plan(
        self, first_index: int | Literal["latest"], from_member: str | None, *, wait: bool
    ) -> Verb[ReadPlan]:
        if first_index == "latest":
            first_index = (yield from self.end_index(None)) + 1
        elif first_index > 0 and not wait:
            yield from self._check_reached(first_index, from_member)
        return self._plan(first_index, None, from_member, wait_ms=TAIL_WAIT_MS, follow=True)

    def _check_reached(self, first_index: int, from_member: str | None) -> Verb[None]:
        """Raises IndexOutOfRange if there would still be a gap before an entry that comes now."""
        target = read_target(from_member)
        message = ReadRequest(first_index=first_index, limit_bytes=GET_LIMIT_BYTES)
        request = _read_request(message, target, self.timeout_ms)
        yield call(request)
        if not isinstance(request.error, IndexOutOfRange):
            return  # it is there, or the read itself tells what is wrong
        end_index = request.error.committed_index
        if end_index < first_index - 1 and target is not LEADER:
            end_index = yield from self.end_index(None)
        if end_index < first_index - 1:
            raise IndexOutOfRange(
                f"index {first_index} is beyond the end of the log, whose last entry is {end_index};"
                " with wait=True a tail waits until the log has grown as far",
                ledger_begin_index=request.error.ledger_begin_index,
                committed_index=end_index,
            )

    def end_index(self, timeout_ms: float | None) -> Verb[int]:
        # Above all entries there is only the end: the refusal names it, and waits for the majority.
        message = ReadRequest(first_index=INDEX_LIMIT - 1, to_end=True)
        request = _read_request(message, LEADER, self.timeout_ms_of(timeout_ms))
        yield call(request)
        if isinstance(request.error, IndexOutOfRange):
            return request.error.committed_index
        raise request.error or ProtocolViolation(f"{request.response} above the end of every log")

    def index_at(self, time: datetime, from_member: str | None) -> Verb[int]:
        found = yield from self._find_mark(FindMarkRequest(time_ms=time_ms_of(time)), from_member)
        return max(found.index, found.ledger_begin_index)

    def time_at(self, index: int, from_member: str | None) -> Verb[datetime | None]:
        return time_of((yield from self.time_ms_at(index, from_member)))

    def time_ms_at(self, index: int, from_member: str | None) -> Verb[int]:
        """-1: no mark stands in front of it."""
        index = whole("index", index)
        if index < 0:
            raise IndexOutOfRange(f"index {index} is below 0, where every log begins")
        found = yield from self._find_mark(FindMarkRequest(index=index), from_member)
        if not found.ledger_begin_index <= index <= found.committed_index:
            raise IndexOutOfRange(
                f"index {index} is not between ledger_begin_index {found.ledger_begin_index} and"
                f" committed_index {found.committed_index}",
                ledger_begin_index=found.ledger_begin_index,
                committed_index=found.committed_index,
            )
        return found.time_ms

    def _find_mark(self, message: FindMarkRequest, from_member: str | None) -> Verb[FindMarkResponse]:
        request = request_of(message, read_target(from_member), self.timeout_ms)
        yield call(request)
        return response_of(request, FindMarkResponse)

    # ---------------------------------------------------------------- readers

    def open_reader(
        self,
        name: str,
        hold: GivenHold | None,
        first_index: int | Literal["latest"] | None,
        timeout_ms: float | None,
    ) -> Verb[ReaderStand]:
        position: int | None = None
        if first_index == "latest":
            position = (yield from self.end_index(timeout_ms)) + 1
        elif first_index is not None:
            position = whole('first_index, unless "latest",', first_index)
        message = MoveReaderRequest(
            reader=_reader_name(name), position=position, hold=number_of(hold), opens=True
        )
        return (yield from self._move(message, timeout_ms))

    def commit_reader(self, name: str, index: int, timeout_ms: float | None) -> Verb[ReaderStand]:
        message = MoveReaderRequest(reader=name, position=whole("index", index))
        return (yield from self._move(message, timeout_ms))

    def seek_reader(
        self, name: str, index: int, seeks_from: int, timeout_ms: float | None
    ) -> Verb[ReaderStand]:
        position = whole("index", index)
        message = MoveReaderRequest(reader=name, position=position, seeks_from=seeks_from)
        return (yield from self._move(message, timeout_ms))

    def end_reader(self, name: str, timeout_ms: float | None) -> Verb[ReaderStand]:
        return (yield from self._move(MoveReaderRequest(reader=name, ends=True), timeout_ms))

    def _move(self, message: MoveReaderRequest, timeout_ms: float | None) -> Verb[ReaderStand]:
        """Made again where nobody knows whether it was done: a second time it changes nothing."""
        deadline_ms = now_ms() + self.timeout_ms_of(timeout_ms)
        unknown: OutcomeUnknown | None = None
        while True:
            request = request_of(message, LEADER, deadline_ms - now_ms())
            yield call(request)
            error = request.error
            if message.ends and unknown is not None and isinstance(error, UnknownReader):
                return ReaderStand(-1, 0)
            if isinstance(error, OutcomeUnknown) and now_ms() < deadline_ms:
                unknown = error
            elif unknown is not None and isinstance(error, Refused) and error.retriable:
                raise unknown  # no time was left to make it again
            else:
                response = response_of(request, MoveReaderResponse)
                return ReaderStand(response.position, response.hold)

    def readers(self, timeout_ms: float | None) -> Verb[list[ReaderRow]]:
        request = request_of(ReadersRequest(), LEADER, self.timeout_ms_of(timeout_ms))
        yield call(request)
        return reader_rows.rows_of(response_of(request, ReadersResponse))

    def why_kept(self, timeout_ms: float | None) -> Verb[WhyKeptResponse]:
        request = request_of(WhyKeptRequest(), LEADER, self.timeout_ms_of(timeout_ms))
        yield call(request)
        return response_of(request, WhyKeptResponse)

    # ---------------------------------------------------------------- the group

    def status(self, timeout_ms: float) -> Verb[list[MemberStatusRow]]:
        """Of every listed server, then of the members that the answers told of."""
        allowed_ms = self.timeout_ms_of(timeout_ms)
        view = self._protocol.view
        asked: dict[str, Request] = {}
        while new := [address for address in view.known_addresses() if address not in asked]:
            requests = [
                request_of(StatusRequest(), RequestTarget(TargetKind.ADDRESS, address), allowed_ms)
                for address in new
            ]
            asked.update(zip(new, requests, strict=True))
            yield Step(requests, requests)
        self._protocol.check_open()
        return rows_of(asked, view, allowed_ms)

    def transfer(self, to: str, timeout_ms: float | None) -> Verb[str]:
        if not isinstance(to, str):
            raise BadRequest(f"to must be the id of a member, not {to!r}")
        message = TransferRequest(to_member_id="".join(to))
        request = request_of(message, LEADER, self.timeout_ms_of(timeout_ms))
        yield call(request)
        return response_of(request, TransferResponse).leader_id

    def layout(self, from_member: str, timeout_ms: float | None) -> Verb[LayoutResponse]:
        target = read_target(from_member)
        request = request_of(LayoutRequest(), target, self.timeout_ms_of(timeout_ms))
        yield call(request)
        return response_of(request, LayoutResponse)

    # ---------------------------------------------------------------- requests of reads

    def _range_plan(
        self,
        first_index: int,
        stop_index: int | None,
        from_member: str | None,
        entries_hint: int | None = None,
        **sizes: int,
    ) -> ReadPlan:
        may_lag = stop_index is not None and from_member is not None
        return self._plan(
            whole("first_index", first_index),
            None if stop_index is None else whole("stop_index", stop_index),
            from_member,
            wait_ms=LAGGING_MEMBER_WAIT_MS if may_lag else 0,
            entries_hint=entries_hint,
            **{name: positive(name, size) for name, size in sizes.items()},
        )

    def _plan(
        self, first_index: int, stop_index: int | None, from_member: str | None, **options: Any
    ) -> ReadPlan:
        target = read_target(from_member)
        may_ask_others = target in (LEADER, ANY_MEMBER)
        return ReadPlan(
            first_index,
            stop_index,
            make_request=lambda message: _read_request(message, target, self.timeout_ms),
            make_substitute=self._substitute_request if may_ask_others else None,
            **options,
        )

    def _substitute_request(self, message: ReadRequest, tried: set[str]) -> Request | None:
        address = self._protocol.view.untried_address(tried)
        if address is None:
            return None
        timeout_ms = min(self.timeout_ms, SUBSTITUTE_TIMEOUT_MS)
        return _read_request(message, RequestTarget(TargetKind.ADDRESS, address), timeout_ms)


def _reader_name(name: str) -> str:
    if not isinstance(name, str):
        raise BadRequest(f"the name of a reader is a text, not {name!r}")
    return "".join(name)


def _whole(batch: EntryBatch) -> Iterable[EntryBatch]:
    return (batch,)


def _read_request(message: ReadRequest, target: RequestTarget, timeout_ms: float) -> Request:
    return request_of(message, target, timeout_ms + message.wait_ms)


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
