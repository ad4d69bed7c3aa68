"""The operations of both clients: generators of requests.

An operation yields steps; its return value or its error is the outcome of the call. One that gives many
results is an object whose next result is such a generator (`result_streams`). Nothing here waits; the
clients drive (`LedgerClient._run`, `AsyncLedgerClient._run`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from quorumlog.append_times import AppendTimes, time_of
from quorumlog.batch import EntryBatch
from quorumlog.client import reader_operations
from quorumlog.client.arguments import (
    checked_expected_last,
    checked_limit,
    checked_machine,
    checked_producer,
    checked_sequence,
    milliseconds,
    positive,
    time_ms_of,
    whole,
)
from quorumlog.client.protocol.appending import BatchGatherer, JoinedAppends, batch_of
from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.protocol.client_requests import Request, read_target, receipt_of
from quorumlog.client.protocol.read_plan import ReadPlan
from quorumlog.client.reader_operations import GivenHold, ReaderRow, ReaderState, number_of
from quorumlog.client.reading import Freshness, ReadChoice, ReadDefaults, ReadRequests, Source
from quorumlog.client.result_streams import (
    TAIL_WAIT_MS,
    Appending,
    ClientOperation,
    Reading,
    Step,
    Tailing,
    TimedReading,
    asked,
    call,
    of_one,
    request_of,
)
from quorumlog.client.status_rows import MemberStatusRow, rows_of
from quorumlog.entry import AppendReceipt, Entry, EntryKind
from quorumlog.errors import (
    BadRequest,
    IndexOutOfRange,
    LedgerError,
    UnknownGroup,
    WrongPort,
)
from quorumlog.log_state.control_entries import MOST_INDEX
from quorumlog.log_state.log_state import Reset, Resets
from quorumlog.log_state.users import UserOrder, checked_order
from quorumlog.net.rpc.calls import LEADER, RequestTarget, TargetKind, response_of
from quorumlog.net.system import now_ms
from quorumlog.wire.client_messages import (
    AppendRequest,
    ChangeMembersRequest,
    ChangeMembersResponse,
    ChangeUsersRequest,
    ChangeUsersResponse,
    FindMarkRequest,
    FindMarkResponse,
    FinishUpgradeRequest,
    FinishUpgradeResponse,
    ForgetProducer,
    ForgetProducerResponse,
    LastSequence,
    LastSequenceResponse,
    LayoutRequest,
    LayoutResponse,
    ListProducers,
    ListProducersResponse,
    MoveReaderRequest,
    ProducerInfo,
    ReadRequest,
    ReadResponse,
    ReloadRequest,
    ReloadResponse,
    ResetClockRequest,
    ResetClockResponse,
    StatusRequest,
    StatusResponse,
    StepOverRequest,
    StepOverResponse,
    TransferRequest,
    TransferResponse,
    UsersRequest,
    UsersResponse,
    WhyKeptRequest,
    WhyKeptResponse,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

GET_LIMIT_BYTES = 1


class Members(NamedTuple):
    """Ids of a group's members, once a change of it is committed."""

    voters: tuple[str, ...]
    learners: tuple[str, ...]


class ClientOperations:
    """All operations on one group but the single append, which the batchers send."""

    def __init__(self, protocol: ClientProtocol, timeout_ms: float, defaults: ReadDefaults) -> None:
        self._protocol = protocol
        self._defaults = defaults
        self.choice = defaults.choice
        self._reads = ReadRequests(protocol, timeout_ms)
        self.timeout_ms = timeout_ms
        """Of a call that is given none."""

    def timeout_ms_of(self, timeout_ms: float | None) -> float:
        """None: that of the client. Raises BadRequest."""
        if timeout_ms is None:
            return self.timeout_ms
        value_ms = milliseconds(timeout_ms)
        if value_ms is None:
            raise BadRequest(f"timeout_ms must be a number of milliseconds, not {timeout_ms!r}")
        return value_ms

    # ---------------------------------------------------------------- append

    def append_batch(
        self,
        bodies: Sequence[bytes] | EntryBatch,
        timeout_ms: float | None,
        expected_last: int | None = None,
        sequence: int | None = None,
        machine: str = "",
    ) -> ClientOperation[AppendReceipt]:
        in_session = expected_last is None and self._protocol.producer is not None
        if sequence is not None:
            sequence = checked_sequence(sequence, expected_last, self._protocol.producer)
        request = request_of(
            AppendRequest(
                expected_last=checked_expected_last(expected_last), machine=checked_machine(machine)
            ),
            LEADER,
            self.timeout_ms_of(timeout_ms),
            batch=batch_of(bodies),
            in_session=in_session,
            sequence=-1 if sequence is None else sequence,
            is_numbered_by_caller=sequence is not None,
        )
        yield call(request)
        return receipt_of(request)

    def append_alone(self, body: bytes, joined: JoinedAppends) -> ClientOperation[AppendReceipt]:
        """One body of a frame that was refused for its size, in the time that is left to it."""
        return of_one(self.append_batch([body], joined.deadline_ms - now_ms(), machine=joined.machine))

    def append_stream(
        self, batch_records: int, batch_bytes: int, window: int, timeout_ms: float | None
    ) -> Appending:
        limits = positive("batch_records", batch_records), positive("batch_bytes", batch_bytes)
        window, allowed_ms = positive("window", window), self.timeout_ms_of(timeout_ms)
        gatherer = BatchGatherer(*limits, now_ms)
        in_session = self._protocol.producer is not None
        stream = self._protocol.new_stream()
        return Appending(stream, gatherer, window, allowed_ms, in_session=in_session)

    # ---------------------------------------------------------------- producers

    def last_sequence(self, timeout_ms: float | None) -> ClientOperation[int]:
        """Of the client's own one, whose session is opened first."""
        own_producer = self._protocol.producer
        if own_producer is None:
            raise BadRequest("this client has no producer: connect(..., producer_id=...)")
        message, allowed_ms = LastSequence(producer=own_producer), self.timeout_ms_of(timeout_ms)
        known = yield from asked(message, LEADER, allowed_ms, LastSequenceResponse, in_session=True)
        return known.producer.last_sequence

    def producers(self, timeout_ms: float | None) -> ClientOperation[list[ProducerInfo]]:
        allowed_ms = self.timeout_ms_of(timeout_ms)
        found = list[ProducerInfo]()
        while True:
            after = found[-1].producer if found else ""
            response = yield from asked(
                ListProducers(after=after), LEADER, allowed_ms, ListProducersResponse
            )
            found += response.producers
            if response.is_last:
                return found

    def producer(self, producer_id: str, timeout_ms: float | None) -> ClientOperation[ProducerInfo]:
        message = LastSequence(producer=checked_producer(producer_id))
        allowed_ms = self.timeout_ms_of(timeout_ms)
        return (yield from asked(message, LEADER, allowed_ms, LastSequenceResponse)).producer

    def forget_producer(
        self, producer_id: str, timeout_ms: float | None
    ) -> ClientOperation[ProducerInfo]:
        known = yield from self.producer(producer_id, timeout_ms)
        message = ForgetProducer(producer=known.producer, epoch=known.epoch)
        yield from asked(message, LEADER, self.timeout_ms_of(timeout_ms), ForgetProducerResponse)
        return known

    # ---------------------------------------------------------------- read

    def get(self, index: int, source: Source) -> ClientOperation[Entry]:
        index = whole("index", index)
        if index < 0:
            raise IndexOutOfRange(f"index {index} is below 0, where every log begins")
        plan = self._reads.plan(index, index + 1, self._defaults.of(source), batch_bytes=GET_LIMIT_BYTES)
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
        source: Source,
        with_time: bool = False,
    ) -> Reading[Entry]:
        limit = checked_limit(limit)
        choice = self._defaults.of(source)
        plan = self._reads.range_plan(first_index, stop_index, choice, entries_hint=limit)
        if with_time:
            return self._timed(Reading(plan, _whole), AppendTimes.entries, choice, limit)
        return Reading(plan, EntryBatch.entries, limit)

    def read_batches(
        self,
        first_index: int,
        stop_index: int | None,
        source: Source,
        *,
        heads: bool = False,
        **sizes: int,
    ) -> Reading[EntryBatch]:
        """`sizes`: batch_bytes and prefetch."""
        choice = self._defaults.of(source)
        plan = self._reads.range_plan(first_index, stop_index, choice, heads=heads, **sizes)
        return Reading(plan, lambda batch: (batch,))

    def read_arrow(
        self,
        first_index: int,
        stop_index: int | None,
        source: Source,
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

        choice = self._defaults.of(source)
        heads = not {"body", TIME_COLUMN} & set(schema.names)
        plan = self._reads.range_plan(first_index, stop_index, choice, heads=heads, **sizes)
        if TIME_COLUMN not in schema.names:
            return Reading(plan, rows_of)

        def timed_rows_of(times: AppendTimes, batch: EntryBatch) -> Iterable[pa.RecordBatch]:
            return rows_of(batch, times.runs(batch))

        return self._timed(Reading(plan, _whole), timed_rows_of, choice)

    def tail(
        self,
        first_index: int | Literal["latest"],
        source: Source,
        *,
        wait: bool,
        timeout_ms: float | None,
        with_time: bool = False,
    ) -> Reading[Entry]:
        self._protocol.check_open()
        if first_index != "latest":
            first_index = whole('first_index, unless "latest",', first_index)
        choice = self._defaults.of(source)
        opening = self._tail_plan(first_index, choice, wait=wait)
        patience_ms = float("inf") if timeout_ms is None else self.timeout_ms_of(timeout_ms)
        if with_time:
            tailing = Tailing(opening, self.end_index, self._is_closed, patience_ms, _whole)
            return self._timed(tailing, AppendTimes.entries, choice)
        return Tailing(opening, self.end_index, self._is_closed, patience_ms, EntryBatch.entries)

    def _is_closed(self) -> bool:
        return self._protocol.is_closed

    def _timed(
        self,
        batches: Reading[EntryBatch],
        part_of: Callable[[AppendTimes, EntryBatch], Iterable[T]],
        choice: ReadChoice,
        limit: int | None = None,
    ) -> Reading[T]:
        """Who gave the first entry is asked for its time: it knows that it is committed."""

        def times_from(index: int) -> ClientOperation[AppendTimes]:
            found = yield from self._find_mark(FindMarkRequest(index=index), choice.member)
            return AppendTimes(found.time_ms, found.clock_resets)

        return TimedReading(batches, times_from, part_of, limit)

    def _tail_plan(
        self, first_index: int | Literal["latest"], choice: ReadChoice, *, wait: bool
    ) -> ClientOperation[ReadPlan]:
        if first_index == "latest":
            first_index = (yield from self.end_index(None)) + 1
        elif first_index > 0 and not wait:
            yield from self._check_reached(first_index, choice)
        return self._reads.plan(first_index, None, choice, wait_ms=TAIL_WAIT_MS, follow=True)

    def _check_reached(self, first_index: int, choice: ReadChoice) -> ClientOperation[None]:
        """Raises IndexOutOfRange if there would still be a gap before an entry that comes now."""
        message = ReadRequest(first_index=first_index, limit_bytes=GET_LIMIT_BYTES)
        request = self._reads.request(message, choice.target)
        yield call(request)
        if not isinstance(request.error, IndexOutOfRange):
            return  # it is there, or the read itself tells what is wrong
        end_index = request.error.committed_index
        if end_index < first_index - 1 and choice.target is not LEADER:
            end_index = yield from self.end_index(None)
        if end_index < first_index - 1:
            raise IndexOutOfRange(
                f"index {first_index} is beyond the end of the log, whose last entry is {end_index};"
                " with wait=True a tail waits until the log has grown as far",
                ledger_begin_index=request.error.ledger_begin_index,
                committed_index=end_index,
            )

    def end_index(self, timeout_ms: float | None) -> ClientOperation[int]:
        return (yield from self.freshness(ReadChoice(), timeout_ms)).index

    def freshness(self, choice: ReadChoice, timeout_ms: float | None) -> ClientOperation[Freshness]:
        return self._reads.end(choice, self.timeout_ms_of(timeout_ms))

    def ask(
        self, machine: str, question: bytes, choice: ReadChoice, timeout_ms: float | None
    ) -> ClientOperation[bytes]:
        return self._reads.ask(machine, question, choice, self.timeout_ms_of(timeout_ms))

    # ---------------------------------------------------------------- time marks

    def index_at(self, time: datetime, from_member: str | None) -> ClientOperation[int]:
        found = yield from self._find_mark(FindMarkRequest(time_ms=time_ms_of(time)), from_member)
        return max(found.index, found.ledger_begin_index)

    def time_at(self, index: int, from_member: str | None) -> ClientOperation[datetime | None]:
        index = whole("index", index)
        if index < 0:
            raise IndexOutOfRange(f"index {index} is below 0, where every log begins")
        found = yield from self._find_mark(FindMarkRequest(index=index), from_member)
        if not found.ledger_begin_index <= index <= found.committed_index:
            raise IndexOutOfRange(
                f"index {index} is outside the log, whose committed entries are"
                f" {found.ledger_begin_index} to {found.committed_index}",
                ledger_begin_index=found.ledger_begin_index,
                committed_index=found.committed_index,
            )
        return time_of(found.time_ms)

    def clock_resets(self, from_member: str | None) -> ClientOperation[Resets]:
        return (yield from self._find_mark(FindMarkRequest(index=0), from_member)).clock_resets

    def _find_mark(
        self, message: FindMarkRequest, from_member: str | None
    ) -> ClientOperation[FindMarkResponse]:
        return asked(message, read_target(from_member), self.timeout_ms, FindMarkResponse)

    # ---------------------------------------------------------------- readers

    def open_reader(
        self,
        name: str,
        hold: GivenHold | None,
        first_index: int | Literal["latest"] | None,
        timeout_ms: float | None,
    ) -> ClientOperation[ReaderState]:
        position: int | None = None
        if first_index == "latest":
            position = (yield from self.end_index(timeout_ms)) + 1
        elif first_index is not None:
            position = whole('first_index, unless "latest",', first_index)
        message = MoveReaderRequest(
            reader=reader_operations.checked_name(name),
            position=position,
            hold=number_of(hold),
            opens=True,
        )
        return (yield from reader_operations.open_reader(message, self.timeout_ms_of(timeout_ms)))

    def commit_reader(
        self,
        name: str,
        index: int,
        state: ReaderState,
        last_chain: int | None,
        timeout_ms: float | None,
    ) -> ClientOperation[ReaderState]:
        message = MoveReaderRequest(
            reader=name,
            position=whole("index", index),
            seen_index=state.known_index,
            last_chain=None if last_chain is None else whole("last_chain", last_chain),
        )
        return reader_operations.move(message, self.timeout_ms_of(timeout_ms))

    def seek_reader(
        self, name: str, index: int, state: ReaderState, timeout_ms: float | None
    ) -> ClientOperation[ReaderState]:
        message = reader_operations.seek(name, whole("index", index), state)
        return reader_operations.move(message, self.timeout_ms_of(timeout_ms))

    def skip_in_reader(
        self, name: str, first_index: int, stop_index: int, timeout_ms: float | None
    ) -> ClientOperation[ReaderState]:
        """Not tied to one log: a late copy of it changes nothing."""
        skipped = whole("first_index", first_index), whole("stop_index", stop_index)
        message = MoveReaderRequest(reader=name, skipped=skipped)
        return reader_operations.move(message, self.timeout_ms_of(timeout_ms))

    def end_reader(
        self, name: str, state: ReaderState, timeout_ms: float | None
    ) -> ClientOperation[ReaderState]:
        message = MoveReaderRequest(reader=name, ends=True, seen_index=state.known_index)
        return reader_operations.move(message, self.timeout_ms_of(timeout_ms))

    def readers(self, timeout_ms: float | None) -> ClientOperation[list[ReaderRow]]:
        return reader_operations.readers(self.timeout_ms_of(timeout_ms))

    def why_kept(self, timeout_ms: float | None) -> ClientOperation[WhyKeptResponse]:
        return asked(WhyKeptRequest(), LEADER, self.timeout_ms_of(timeout_ms), WhyKeptResponse)

    # ---------------------------------------------------------------- the group

    def reload(
        self, timeout_ms: float | None
    ) -> ClientOperation[dict[str, ReloadResponse | LedgerError]]:
        """Of the servers that are listed, by address."""
        allowed_ms = self.timeout_ms_of(timeout_ms)
        requests = {
            address: request_of(ReloadRequest(), RequestTarget(TargetKind.ADDRESS, address), allowed_ms)
            for address in self._protocol.view.known_addresses()
        }
        yield Step(list(requests.values()), list(requests.values()))
        self._protocol.check_open()
        return {
            address: each.error or response_of(each, ReloadResponse)
            for address, each in requests.items()
        }

    def status(
        self, timeout_ms: float, *, events: bool = False
    ) -> ClientOperation[list[MemberStatusRow]]:
        """Of every listed server, then of the members named in the answers. Raises WrongPort if none is
        a log's."""
        allowed_ms = self.timeout_ms_of(timeout_ms)
        view = self._protocol.view
        sent: dict[str, Request] = {}
        while new := [address for address in view.known_addresses() if address not in sent]:
            requests = [
                request_of(
                    StatusRequest(events=events), RequestTarget(TargetKind.ADDRESS, address), allowed_ms
                )
                for address in new
            ]
            sent.update(zip(new, requests, strict=True))
            yield Step(requests, requests)
        self._protocol.check_open()
        refusal = view.group_unknown_to_all()
        if isinstance(refusal, WrongPort):
            raise refusal
        return rows_of(sent, view, allowed_ms)

    def transfer(self, to: str, timeout_ms: float | None) -> ClientOperation[str]:
        if not isinstance(to, str):
            raise BadRequest(f"to must be the id of a member, not {to!r}")
        message = TransferRequest(to_member_id="".join(to))
        allowed_ms = self.timeout_ms_of(timeout_ms)
        return (yield from asked(message, LEADER, allowed_ms, TransferResponse)).leader_id

    def reset_clock(self, timeout_ms: float | None) -> ClientOperation[Reset]:
        allowed_ms = self.timeout_ms_of(timeout_ms)
        response = yield from asked(ResetClockRequest(), LEADER, allowed_ms, ResetClockResponse)
        return Reset(response.index, response.time_ms)

    def finish_upgrade(self, timeout_ms: float | None) -> ClientOperation[FinishUpgradeResponse]:
        allowed_ms = self.timeout_ms_of(timeout_ms)
        return asked(FinishUpgradeRequest(), LEADER, allowed_ms, FinishUpgradeResponse)

    def change_users(self, order: UserOrder, timeout_ms: float | None) -> ClientOperation[int]:
        allowed_ms = self.timeout_ms_of(timeout_ms)
        message = ChangeUsersRequest(order=checked_order(order))
        return (yield from asked(message, LEADER, allowed_ms, ChangeUsersResponse)).index

    def users(self, timeout_ms: float | None) -> ClientOperation[UsersResponse]:
        return asked(UsersRequest(), LEADER, self.timeout_ms_of(timeout_ms), UsersResponse)

    def layout(self, from_member: str, timeout_ms: float | None) -> ClientOperation[LayoutResponse]:
        target, allowed_ms = read_target(from_member), self.timeout_ms_of(timeout_ms)
        return asked(LayoutRequest(), target, allowed_ms, LayoutResponse)

    def change_members(
        self, operation: str, member_id: str, address: str, dry_run: bool, timeout_ms: float | None
    ) -> ClientOperation[Members]:
        for name, text in (("operation", operation), ("member_id", member_id), ("address", address)):
            if not isinstance(text, str) or (not text and name != "address"):
                raise BadRequest(f"{name} must be a text, not {text!r}")
        if operation == "add" and (
            "=" in member_id or "," in member_id or member_id.split() != [member_id]
        ):
            # Nobody would ever answer under it, and the command would wait.
            raise BadRequest(f"{member_id!r} is not the id of a member: ids have no blanks, commas or =")
        message = ChangeMembersRequest(
            verb=operation, member_id=member_id, address=address, dry_run=dry_run
        )
        allowed_ms = self.timeout_ms_of(timeout_ms)
        response = yield from asked(message, LEADER, allowed_ms, ChangeMembersResponse)
        return Members(response.voters, response.learners)

    def step_over(
        self, machine: str, index: int, unsafe: bool, timeout_ms: float | None
    ) -> ClientOperation[int]:
        if not isinstance(machine, str) or not machine:
            raise BadRequest(f"machine must be the name of a state machine, not {machine!r}")
        if type(index) is not int or not 0 <= index <= MOST_INDEX:
            raise BadRequest(f"index must be 0 or more, not {index!r}")
        message = StepOverRequest(machine=machine, index=index, unsafe=unsafe)
        allowed_ms = self.timeout_ms_of(timeout_ms)
        return (yield from asked(message, LEADER, allowed_ms, StepOverResponse)).index

    def groups(self, timeout_ms: float) -> ClientOperation[list[str]]:
        """Of every listed server: they need not serve the same ones."""
        allowed_ms = self.timeout_ms_of(timeout_ms)
        requests = [
            request_of(StatusRequest(), RequestTarget(TargetKind.ADDRESS, address), allowed_ms)
            for address in self._protocol.view.known_addresses()
        ]
        yield Step(requests, requests)
        self._protocol.check_open()
        found: set[str] = set()
        for request in requests:
            if isinstance(request.response, StatusResponse):
                found.update(request.response.groups or [request.response.group])
            elif isinstance(request.error, UnknownGroup):
                found.update(request.error.groups)
        if not found and (error := requests[0].error):
            raise error
        return sorted(found)


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
