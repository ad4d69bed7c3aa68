"""`AsyncLedgerClient`: the log for asyncio (and uvloop). The same operations as `LedgerClient`.

    async with quorumlog.connect_async("10.0.0.1:20911,10.0.0.2:20911") as log:
        receipt = await log.append(b"hello")
        async for entry in log.read(receipt.first_index):
            ...

A client belongs to the loop that it was first used in.
"""

from __future__ import annotations

import random
from asyncio import CancelledError
from collections.abc import AsyncIterable, Generator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar, Unpack, overload

from quorumlog.append_times import TimedEntry
from quorumlog.batch import EntryBatch
from quorumlog.client import reader_operations
from quorumlog.client.append_streams import AsyncAppendStream
from quorumlog.client.arguments import (
    check_items,
    checked_expected_last,
    checked_machine,
    checked_producer,
    checked_producer_id,
    checked_sequence,
    milliseconds,
    parse_servers,
    positive,
    whole,
)
from quorumlog.client.events import Callback, Events
from quorumlog.client.handles import AsyncMachineHandle, AsyncNamedReader
from quorumlog.client.protocol.appending import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BATCH_RECORDS,
    DEFAULT_WINDOW,
    BatchGatherer,
    Item,
    batch_of,
    body_of,
)
from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.protocol.client_requests import Request, read_target, receipt_of
from quorumlog.client.protocol.read_plan import DEFAULT_PREFETCH, READ_BATCH_BYTES
from quorumlog.client.read_operations import ReadOperations
from quorumlog.client.reader_operations import GivenHold, ReaderRow
from quorumlog.client.reading import AsyncResults, Freshness, ReadDefaults, ReadOptions, TailOptions
from quorumlog.client.result_streams import Appending, Reading
from quorumlog.client.sending import Sender, request_of
from quorumlog.client.status_rows import STATUS_TIMEOUT_MS, MemberStatusRow, rows_of
from quorumlog.config import DEFAULT_GROUP, check_name
from quorumlog.entry import AppendReceipt, Entry
from quorumlog.errors import (
    BadRequest,
    CommandError,
    ConfigError,
    LedgerError,
    UnknownGroup,
    WrongPort,
)
from quorumlog.log_state.control_entries import MOST_INDEX
from quorumlog.log_state.log_state import Reset
from quorumlog.log_state.users import UserOrder, checked_order
from quorumlog.net.credentials import ClientUser
from quorumlog.net.io_loop import IoLoop
from quorumlog.net.rpc.calls import LEADER, RequestTarget, TargetKind, response_of
from quorumlog.net.rpc.timings import Timings
from quorumlog.net.system import now_ms
from quorumlog.net.tls import ClientTls
from quorumlog.wire.client_messages import (
    AnyClientMessage,
    AppendRequest,
    ChangeMembersRequest,
    ChangeMembersResponse,
    ChangeUsersRequest,
    ChangeUsersResponse,
    FindMarkRequest,
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
    ReadersRequest,
    ReadersResponse,
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
DEFAULT_TIMEOUT_MS = 30_000


class Members(NamedTuple):
    """Ids of a group's members, once a change of it is committed."""

    voters: tuple[str, ...]
    learners: tuple[str, ...]


class AsyncLedgerClient:
    """Operations on one group. Each may raise the errors of `quorumlog.errors.LedgerError`.

    Outcomes of an append are exactly three: a receipt (committed), a `Refused` (certainly not written)
    or `OutcomeUnknown` (perhaps written, and never repeated by the client). Refusals that pass by
    themselves, such as a change of leader, are retried for `timeout_ms`.

    With a `producer_id`, or `idempotent`, unknown outcomes are retried, too, and no entry is appended
    twice (docs/exactly-once.md).
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        group: str = DEFAULT_GROUP,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        timings: Timings | None = None,
        producer_id: str | None = None,
        idempotent: bool = False,
        on_leader_change: Callback | None = None,
        on_reconnect: Callback | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
        read_from: str | None = None,
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """Connects with the first call. Raises ConfigError for a list that cannot be read."""
        given_ms = milliseconds(timeout_ms)
        if given_ms is None or given_ms <= 0:
            raise ConfigError(f"timeout_ms must be positive, in milliseconds, not {timeout_ms!r}")
        if not isinstance(group, str):
            raise ConfigError(f"group must be the name of a replicated log, not {group!r}")
        check_name("group", group)
        self.servers = parse_servers(servers)
        self.group = "".join(group)  # a plain str, which is all that a message can carry
        producer = "" if idempotent else None
        if producer_id is not None:
            producer = checked_producer_id(producer_id)
        self._protocol = ClientProtocol(
            self.servers, group=self.group, random=random.Random(), timings=timings, producer=producer
        )
        self._choice = ReadDefaults(read_consistency, max_staleness_ms, read_from).choice
        events = Events(self.group, on_leader_change, on_reconnect)
        self._io = IoLoop(self._protocol, events.told, tls, user)
        self._sender = Sender(self._protocol, self._io, given_ms)
        self._ask = self._sender.ask
        self._reads = ReadOperations(self._sender)

    def __repr__(self) -> str:
        leader = self._protocol.view.leader
        state = "no leader known yet" if leader is None else f"leader {leader.address}"
        if self._protocol.is_closed:
            state = "closed"
        name, servers = type(self).__name__, ",".join(self.servers)
        return f"<{name} of group {self.group!r} at {servers}: {state}>"

    @property
    def timeout_ms(self) -> float:
        """Default time-out of calls, in milliseconds."""
        return self._sender.timeout_ms

    def add_servers(self, servers: str | Sequence[str]) -> None:
        """Add addresses at which to find members, such as those learned by another client. Replaces
        addresses added before. Raises ConfigError for an invalid address."""
        self._protocol.view.add_servers(parse_servers(servers))

    @property
    def known_servers(self) -> list[str]:
        """Addresses given or added, and those of the members learned so far."""
        return self._protocol.view.known_addresses()

    @property
    def producer_id(self) -> str | None:
        """The given id, or the generated one of an idempotent client; None: neither."""
        return self._protocol.producer

    # ---------------------------------------------------------------- append

    async def append(
        self,
        body: bytes,
        *,
        expected_last: int | None = None,
        sequence: int | None = None,
        machine: str = "",
        timeout_ms: int | None = None,
    ) -> AppendReceipt:
        """Append one entry; returns when it is committed.

        `expected_last`: append only if the last data entry is at this index; the no-ops of elections do
        not count, -1 means an empty log. Otherwise raises WrongLastIndex, which has the actual index.
        Repeating it after OutcomeUnknown does not reveal the outcome: if the first try succeeded, the
        repetition is refused.

        `sequence`, for a client with a `producer_id`: the sequence number of this entry, from 0 on. If
        the log has it already, the original receipt is returned. Without it each append gets the next
        number. Raises SequenceGap, which has the next number, if earlier ones are missing, and
        AlreadyCommitted if the original receipt is no longer remembered.

        `machine`: the entry is a command for this state machine; returns when the leader has applied
        it, with its `result`. Raises CommandError if the machine refuses it.

        Raises a Refused if it certainly was not written (BodyTooLarge, Unreachable, NotLeader after the
        time-out, ...) and OutcomeUnknown otherwise. Concurrent appends of one client share a frame;
        each has its own receipt or error."""
        if type(body) is not bytes:
            body = body_of(body)
        sender = self._sender
        if expected_last is not None or sequence is not None:
            return await self._append_one(body, timeout_ms, expected_last, sequence, machine)
        allowed_ms = sender.timeout_ms if timeout_ms is None else sender.timeout_ms_of(timeout_ms)
        if machine != "":
            machine = checked_machine(machine)
        waiter, joined = sender.batcher.add(body, allowed_ms, machine)
        try:
            outcome = await waiter
        except CancelledError:
            sender.batcher.leave(waiter, joined)
            raise
        if isinstance(outcome, AppendReceipt):
            return outcome
        if outcome is None:  # the frame was refused for its size: alone, in the time that is left
            return await self._append_one(body, joined.deadline_ms - now_ms(), machine=joined.machine)
        raise outcome

    async def _append_one(
        self,
        body: bytes,
        timeout_ms: float | None,
        expected_last: int | None = None,
        sequence: int | None = None,
        machine: str = "",
    ) -> AppendReceipt:
        """Raises CommandError if the state machine that takes it has refused it."""
        receipt = await self._append([body], timeout_ms, expected_last, sequence, machine)
        for _, why in receipt.failures:
            raise CommandError(why)
        return receipt

    async def append_batch(
        self,
        bodies: Sequence[bytes] | EntryBatch,
        *,
        expected_last: int | None = None,
        sequence: int | None = None,
        machine: str = "",
        timeout_ms: int | None = None,
    ) -> AppendReceipt:
        """Append consecutive entries; `expected_last`, `sequence` (of the first entry) and errors as in
        `append`. Commands that a `machine` refuses are in the receipt's `failures`, with the result
        None. Raises BodyTooLarge for a batch above the server's frame limit and BadRequest for an empty
        one."""
        return await self._append(bodies, timeout_ms, expected_last, sequence, machine)

    async def _append(
        self,
        bodies: Sequence[bytes] | EntryBatch,
        timeout_ms: float | None,
        expected_last: int | None,
        sequence: int | None,
        machine: str,
    ) -> AppendReceipt:
        producer = self._protocol.producer
        if sequence is not None:
            sequence = checked_sequence(sequence, expected_last, producer)
        message = AppendRequest(
            expected_last=checked_expected_last(expected_last), machine=checked_machine(machine)
        )
        request = request_of(
            message,
            LEADER,
            self._sender.timeout_ms_of(timeout_ms),
            batch=batch_of(bodies),
            in_session=expected_last is None and producer is not None,
            sequence=-1 if sequence is None else sequence,
            is_numbered_by_caller=sequence is not None,
        )
        return receipt_of(await self._sender.call(request))

    async def ask(
        self,
        machine: str,
        question: bytes = b"",
        *,
        timeout_ms: int | None = None,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
    ) -> bytes:
        """Query a state machine. Without `read_consistency` the leader answers, linearizably: the
        answer includes everything that any client knew to be committed before the call. Otherwise any
        member, as in `read`. Raises CommandError if the machine refuses, UnknownMachine."""
        choice = self._choice(from_member, read_consistency, max_staleness_ms)
        return await self._reads.ask(machine, question, choice, timeout_ms)

    def machine(self, name: str) -> AsyncMachineHandle:
        """A handle of one state machine: `append`, `append_batch` and `ask` without its name."""
        return AsyncMachineHandle(self, name)

    def append_stream(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        *,
        batch_records: int = DEFAULT_BATCH_RECORDS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        window: int = DEFAULT_WINDOW,
        timeout_ms: int | None = None,
    ) -> AsyncAppendStream:
        """Append many bodies (or batches) in order, `window` batches in flight; iterate the receipts.
        Bodies are collected into batches of `batch_records` or `batch_bytes`. An incomplete batch is
        sent with an item that took longer than 50 ms to come, and when an asynchronous source (asyncio)
        waits. `timeout_ms` counts for each batch from when it is complete."""
        check_items(items)
        limits = positive("batch_records", batch_records), positive("batch_bytes", batch_bytes)
        window, allowed_ms = positive("window", window), self._sender.timeout_ms_of(timeout_ms)
        gatherer = BatchGatherer(*limits, now_ms)
        return AsyncAppendStream(items, Appending(self._sender, gatherer, window, allowed_ms))

    # ---------------------------------------------------------------- read

    async def get(
        self,
        index: int,
        *,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
    ) -> Entry:
        """The entry at `index`. Raises IndexOutOfRange outside of the log, and for a no-op."""
        choice = self._choice(from_member, read_consistency, max_staleness_ms)
        return await self._reads.get(index, choice)

    @overload
    def read(
        self,
        first_index: int,
        stop_index: int | None = None,
        *,
        with_time: Literal[True],
        **options: Unpack[ReadOptions],
    ) -> AsyncResults[TimedEntry]: ...

    @overload
    def read(
        self,
        first_index: int,
        stop_index: int | None = None,
        *,
        with_time: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AsyncResults[Entry]: ...

    def read(
        self,
        first_index: int,
        stop_index: int | None = None,
        *,
        limit: int | None = None,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
        with_time: bool = False,
    ) -> AsyncResults[Any]:
        """Entries of [first_index, stop_index) without no-ops, at most `limit`. Without `stop_index`:
        up to the committed index when the read begins.

        By default the leader answers, confirmed by a majority: no entry is missing that any client knew
        to be committed before. `from_member`: "any" or the id of a member, which returns the entries
        that it knows to be committed.

        `read_consistency` (docs/reads.md) requests a guarantee from any member: "read_index" misses
        nothing; "committed" may be stale, by at most `max_staleness_ms` (else TooStale), and includes
        this client's own appends (else NotCaughtUp).

        `with_time`: the entries are TimedEntry, with `append_time` as in `time_at`. Raises
        IndexOutOfRange if the range reaches outside of the log."""
        choice = self._choice(from_member, read_consistency, max_staleness_ms)
        reading = self._reads.read(first_index, stop_index, limit, choice, with_time)
        return self._results(reading, "read", first_index, stop_index)

    def read_batches(
        self,
        first_index: int,
        stop_index: int | None = None,
        *,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
        batch_bytes: int = READ_BATCH_BYTES,
        prefetch: int = DEFAULT_PREFETCH,
        heads: bool = False,
    ) -> AsyncResults[EntryBatch]:
        """The same as stored batches (no-ops included), checked, of about `batch_bytes` each. `heads`:
        only headers are needed; the batches may then lack bodies and are checked by their chain, see
        `EntryBatch.heads`. `batch_bytes` still counts bytes of the log."""
        choice = self._choice(from_member, read_consistency, max_staleness_ms)
        sizes = {"batch_bytes": batch_bytes, "prefetch": prefetch}
        reading = self._reads.read_batches(first_index, stop_index, choice, heads=heads, **sizes)
        return self._results(reading, "read_batches", first_index, stop_index)

    def read_arrow(
        self,
        first_index: int,
        stop_index: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
        batch_bytes: int = READ_BATCH_BYTES,
        prefetch: int = DEFAULT_PREFETCH,
    ) -> AsyncResults[pa.RecordBatch]:
        """The same as Arrow record batches: `index` and `term` (int64) and `body` (binary), a row per
        entry, without no-ops; `quorumlog.arrow.ENTRY_SCHEMA`. `columns`: only these, in this order;
        also `append_time` (timestamp, null before the first time mark), see `time_at`. Raises
        BadRequest for an unknown column, and ModuleNotFoundError at once if pyarrow (extra `arrow`) is
        not installed."""
        choice = self._choice(from_member, read_consistency, max_staleness_ms)
        sizes = {"batch_bytes": batch_bytes, "prefetch": prefetch}
        reading = self._reads.read_arrow(first_index, stop_index, choice, columns, **sizes)
        return self._results(reading, "read_arrow", first_index, stop_index)

    @overload
    def tail(
        self,
        first_index: int | Literal["latest"] = 0,
        *,
        with_time: Literal[True],
        **options: Unpack[TailOptions],
    ) -> AsyncResults[TimedEntry]: ...

    @overload
    def tail(
        self,
        first_index: int | Literal["latest"] = 0,
        *,
        with_time: bool = False,
        **options: Unpack[TailOptions],
    ) -> AsyncResults[Entry]: ...

    def tail(
        self,
        first_index: int | Literal["latest"] = 0,
        *,
        wait: bool = False,
        timeout_ms: int | None = None,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
        with_time: bool = False,
    ) -> AsyncResults[Any]:
        """Entries from `first_index` on; at the end of the log it waits for the next one, for ever or
        for `timeout_ms`. "latest": entries appended after the iteration has begun. `with_time` as in
        `read`.

        Raises IndexOutOfRange for a position beyond the end of the log, unless `wait`. Continues over a
        change of leader; raises if no server answers for the client's `timeout_ms`. Closing it, or the
        client, ends it, also in a waiting thread."""
        choice = self._choice(from_member, read_consistency, max_staleness_ms)
        tail = self._reads.tail(
            first_index, choice, wait=wait, timeout_ms=timeout_ms, with_time=with_time
        )
        return self._results(tail, "tail", first_index)

    async def end_index(self, *, timeout_ms: int | None = None) -> int:
        """Index of the last committed entry, from the leader after confirmation by a majority.
        Linearizable: everything that any client knew to be committed before the call is at or below it.
        """
        return await self._reads.end_index(timeout_ms)

    async def freshness(
        self,
        *,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
        timeout_ms: int | None = None,
    ) -> Freshness:
        """A member's committed index, and how old it may be. Without `read_consistency` and
        `from_member` the leader answers, as in `end_index`."""
        choice = self._choice(from_member, read_consistency, max_staleness_ms)
        return await self._reads.freshness(choice, timeout_ms)

    async def index_at(self, time: datetime, *, from_member: str | None = None) -> int:
        """The index from which to read everything appended at `time` or later: the last time mark at or
        before `time`, or the first index of the log. Entries appended within a second after that mark
        come first, however long before `time` that was. `time` needs a zone, as in `datetime.now(UTC)`.
        Asks the leader, or `from_member`."""
        return await self._reads.index_at(time, from_member)

    async def time_at(self, index: int, *, from_member: str | None = None) -> datetime | None:
        """When the committed entry at `index` was appended: the time of the last time mark at or before
        it, in UTC; None if there is none. Raises IndexOutOfRange for an entry that the member does not
        have, or does not know to be committed."""
        return await self._reads.time_at(index, from_member)

    async def clock_resets(self, *, from_member: str | None = None) -> tuple[Reset, ...]:
        """Resets of the log's time by `reset_clock`, by index; the newest 16. For programs that read
        batches: `AppendTimes` computes times from these and the time marks."""
        return (await self._reads.find_mark(FindMarkRequest(index=0), from_member)).clock_resets

    # ---------------------------------------------------------------- producers

    async def last_sequence(self, *, timeout_ms: int | None = None) -> int:
        """Sequence number of the newest entry of this client's producer in the log, -1 if there is
        none. Connects as that producer unless an append has done so: this fences any earlier client of
        that producer, so the number is final until this client appends."""
        producer = self._protocol.producer
        if producer is None:
            raise BadRequest("this client has no producer: connect(..., producer_id=...)")
        return (await self._producer(producer, timeout_ms, in_session=True)).last_sequence

    async def _producer(self, producer: str, timeout_ms: int | None, **options: Any) -> ProducerInfo:
        message = LastSequence(producer=producer)
        return (await self._ask(message, LastSequenceResponse, timeout_ms, **options)).producer

    async def producers(self, *, timeout_ms: int | None = None) -> list[ProducerInfo]:
        """All producers that the log remembers, by id."""
        found = list[ProducerInfo]()
        while True:
            message = ListProducers(after=found[-1].producer if found else "")
            response = await self._ask(message, ListProducersResponse, timeout_ms)
            found += response.producers
            if response.is_last:
                return found

    async def producer(self, producer_id: str, *, timeout_ms: int | None = None) -> ProducerInfo:
        """The state of one producer. Raises ProducerExpired if the log does not remember it."""
        return await self._producer(checked_producer(producer_id), timeout_ms)

    async def forget_producer(self, producer_id: str, *, timeout_ms: int | None = None) -> ProducerInfo:
        """End a producer's session for good; returns its last state. Its sequence numbers begin at 0
        again, and repeated entries are appended again."""
        known = await self.producer(producer_id, timeout_ms=timeout_ms)
        message = ForgetProducer(producer=known.producer, epoch=known.epoch)
        await self._ask(message, ForgetProducerResponse, timeout_ms)
        return known

    # ---------------------------------------------------------------- readers

    async def reader(
        self,
        name: str,
        *,
        hold: GivenHold | None = None,
        first_index: int | Literal["latest"] | None = None,
        timeout_ms: int | None = None,
    ) -> AsyncNamedReader:
        """The reader with this name, whose position the cluster keeps; it continues at its committed
        position. A new one begins at `first_index`, or at the start of the log. `hold`: unread entries
        may not be deleted (True), not even on a nearly full disk ("archive"); False releases the hold,
        None leaves it unchanged. Raises IndexOutOfRange for a hold on entries that may already be
        deleted, BadRequest for an invalid name, TooManyReaders."""
        position: int | None = None
        if first_index == "latest":
            position = await self.end_index(timeout_ms=timeout_ms) + 1
        elif first_index is not None:
            position = whole('first_index, unless "latest",', first_index)
        message = MoveReaderRequest(
            reader=reader_operations.checked_name(name),
            position=position,
            hold=reader_operations.number_of(hold),
            opens=True,
        )
        state = await reader_operations.open_reader(self._sender, message, timeout_ms)
        return AsyncNamedReader(self, name, state)

    async def readers(self, *, timeout_ms: int | None = None) -> list[ReaderRow]:
        """The named readers, with their lag."""
        return reader_operations.rows_of(await self._ask(ReadersRequest(), ReadersResponse, timeout_ms))

    async def why_kept(self, *, timeout_ms: int | None = None) -> WhyKeptResponse:
        """Why each segment of the log is kept, oldest first, from the leader."""
        return await self._ask(WhyKeptRequest(), WhyKeptResponse, timeout_ms)

    # ---------------------------------------------------------------- the group

    async def status(
        self, *, timeout_ms: float = STATUS_TIMEOUT_MS, events: bool = False
    ) -> list[MemberStatusRow]:
        """A row per member, also for those that are down (`reachable` false). `events`: with each
        member's recent events. Raises WrongPort if no address is that of a log."""
        allowed_ms, view = self._sender.timeout_ms_of(timeout_ms), self._protocol.view
        sent: dict[str, Request] = {}
        while new := [address for address in view.known_addresses() if address not in sent]:
            sent |= await self._ask_each(new, StatusRequest(events=events), allowed_ms)
        refusal = view.group_unknown_to_all()
        if isinstance(refusal, WrongPort):
            raise refusal
        return rows_of(sent, view, allowed_ms)

    async def _ask_each(
        self, addresses: Sequence[str], message: AnyClientMessage, timeout_ms: float | None
    ) -> dict[str, Request]:
        """The finished request to each server, by address."""
        allowed_ms = self._sender.timeout_ms_of(timeout_ms)
        requests = {
            address: request_of(message, RequestTarget(TargetKind.ADDRESS, address), allowed_ms)
            for address in addresses
        }
        self._sender.submit(list(requests.values()))
        for request in requests.values():
            await self._sender.wait(request)
        self._protocol.check_open()
        return requests

    async def reload(self, *, timeout_ms: int | None = None) -> dict[str, ReloadResponse | LedgerError]:
        """Make the given and added servers read configuration and certificates again, as SIGHUP does,
        and no other members; returns the answer of each, by address."""
        requests = await self._ask_each(self._protocol.view.servers, ReloadRequest(), timeout_ms)
        return {
            address: each.error or response_of(each, ReloadResponse)
            for address, each in requests.items()
        }

    async def transfer(self, to: str, *, timeout_ms: int | None = None) -> str:
        """Transfer leadership to member `to`; returns the id of the leader then. Raises TransferFailed
        with the reason if the leader is unchanged."""
        if not isinstance(to, str):
            raise BadRequest(f"to must be the id of a member, not {to!r}")
        message = TransferRequest(to_member_id="".join(to))
        return (await self._ask(message, TransferResponse, timeout_ms)).leader_id

    async def reset_clock(self, *, timeout_ms: int | None = None) -> Reset:
        """Set the log's time to the clocks of a quorum, once they are right again: earlier entries
        count as appended then at the latest. Returns index and time of the reset. Raises ClockNotReset
        while the clocks of a quorum differ by more than 60 s; LevelNotReported unless every member and
        learner knows such an entry; UpgradeNotFinished; OutcomeUnknown if leadership was lost
        meanwhile."""
        response = await self._ask(ResetClockRequest(), ResetClockResponse, timeout_ms)
        return Reset(response.index, response.time_ms)

    async def finish_upgrade(self, *, timeout_ms: int | None = None) -> int:
        """Allow log entries that earlier releases do not know, once all members run this release. From
        then on no member can be downgraded. Returns the level of the log's format. Raises
        LevelNotReported with the members that have not reported this release; OutcomeUnknown if
        leadership was lost meanwhile, after which it may be repeated."""
        return (await self._ask(FinishUpgradeRequest(), FinishUpgradeResponse, timeout_ms)).level

    async def change_users(self, order: UserOrder, *, timeout_ms: int | None = None) -> int:
        """Add, change or remove a user, a role or a grant (docs/security.md). Returns the index of the
        entry with the change. Raises BadRequest for an invalid change, Forbidden, UpgradeNotFinished,
        LevelNotReported; OutcomeUnknown if leadership was lost meanwhile."""
        message = ChangeUsersRequest(order=checked_order(order))
        return (await self._ask(message, ChangeUsersResponse, timeout_ms)).index

    async def users(self, *, timeout_ms: int | None = None) -> UsersResponse:
        """The users, and the grants of each role."""
        return await self._ask(UsersRequest(), UsersResponse, timeout_ms)

    async def change_members(
        self,
        operation: str,
        member_id: str,
        address: str = "",
        *,
        dry_run: bool = False,
        timeout_ms: int | None = None,
    ) -> Members:
        """Change the membership, and return once that is committed (docs/membership.md). `operation`:
        "add" (with the `address`, as a learner), "promote", "remove", "replace" (by the directory that
        is connected under that id now) or "set-address". `dry_run` changes nothing. Raises
        MembershipRefused with the reason, and OutcomeUnknown."""
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
        response = await self._ask(message, ChangeMembersResponse, timeout_ms)
        return Members(response.voters, response.learners)

    async def step_over(
        self, machine: str, index: int, *, unsafe: bool = False, timeout_ms: int | None = None
    ) -> int:
        """Make the state machine of every member skip the entry at `index`, which crashes it; returns
        the index of the log entry with this order, once it is committed (docs/state-machines.md).
        `unsafe`: even if a member has applied it, or does not answer. Raises StepOverRefused with the
        reason, UnknownMachine, LevelNotReported while a member is silent or runs an earlier release,
        BadRequest for an entry that is not a command, and OutcomeUnknown, after which it may be
        repeated."""
        if not isinstance(machine, str) or not machine:
            raise BadRequest(f"machine must be the name of a state machine, not {machine!r}")
        if type(index) is not int or not 0 <= index <= MOST_INDEX:
            raise BadRequest(f"index must be 0 or more, not {index!r}")
        message = StepOverRequest(machine=machine, index=index, unsafe=unsafe)
        return (await self._ask(message, StepOverResponse, timeout_ms)).index

    async def layout(self, from_member: str = "any", *, timeout_ms: int | None = None) -> LayoutResponse:
        """Where a member's log begins, and the length of its segments, for a backup."""
        target = read_target(from_member)
        return await self._ask(LayoutRequest(), LayoutResponse, timeout_ms, target)

    async def groups(self, *, timeout_ms: float = STATUS_TIMEOUT_MS) -> list[str]:
        """The names of all groups of the listed servers, sorted, with staging groups. This client's own
        group need not be among them. Servers silent for `timeout_ms` are skipped. Raises Unreachable or
        RequestTimeout if none answers."""
        requests = await self._ask_each(self.known_servers, StatusRequest(), timeout_ms)
        found: set[str] = set()
        for request in requests.values():
            if isinstance(request.response, StatusResponse):
                found.update(request.response.groups or [request.response.group])
            elif isinstance(request.error, UnknownGroup):
                found.update(request.error.groups)
        if not found and (error := next(iter(requests.values())).error):
            raise error
        return sorted(found)

    async def close(self) -> None:
        """End the connections. A waiting append of another task ends as OutcomeUnknown."""
        await self._io.close()
        if not self._io.has_lost_loop:
            self._sender.batcher.send()

    def __await__(self) -> Generator[Any, None, Self]:
        """`await connect_async(...)` and `async with connect_async(...)` both give the client."""
        yield from ()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _results(
        self, reading: Reading[T], operation: str, first_index: object, stop_index: object = None
    ) -> AsyncResults[T]:
        stop = "" if stop_index is None else f" to {stop_index}"
        described = f"{operation} from {first_index}{stop}, group {self.group!r}"
        return AsyncResults(reading, described)


def connect_async(
    servers: str | Sequence[str],
    *,
    group: str = DEFAULT_GROUP,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    producer_id: str | None = None,
    idempotent: bool = False,
    on_leader_change: Callback | None = None,
    on_reconnect: Callback | None = None,
    read_consistency: str | None = None,
    max_staleness_ms: float | None = None,
    read_from: str | None = None,
    tls: ClientTls | None = None,
    user: ClientUser | None = None,
) -> AsyncLedgerClient:
    """An asyncio client: `await connect_async(...)` or `async with connect_async(...) as client`.

    `on_leader_change` and `on_reconnect` as in `connect`, but called in the client's loop; they must
    not block: start a task for longer work."""
    return AsyncLedgerClient(
        servers,
        group=group,
        timeout_ms=timeout_ms,
        producer_id=producer_id,
        idempotent=idempotent,
        on_leader_change=on_leader_change,
        on_reconnect=on_reconnect,
        read_consistency=read_consistency,
        max_staleness_ms=max_staleness_ms,
        read_from=read_from,
        tls=tls,
        user=user,
    )
