"""`LedgerClient`: the log for code that blocks. Thread-safe; threads share its connections.

    with quorumlog.connect("10.0.0.1:20911,10.0.0.2:20911,10.0.0.3:20911") as log:
        receipt = log.append(b"hello")
        for entry in log.read(receipt.first_index):
            ...

Written by harness/blocking_clients.py: do not edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from quorumlog.append_times import TimedEntry
from quorumlog.batch import EntryBatch
from quorumlog.client.append_streams import AppendStream
from quorumlog.client.async_client import DEFAULT_TIMEOUT_MS, AsyncLedgerClient, Members
from quorumlog.client.events import Callback, CallbackThread
from quorumlog.client.handles import AsyncMachineHandle, AsyncNamedReader
from quorumlog.client.protocol.appending import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BATCH_RECORDS,
    DEFAULT_WINDOW,
    Item,
)
from quorumlog.client.protocol.read_plan import DEFAULT_PREFETCH, READ_BATCH_BYTES
from quorumlog.client.reader_operations import GivenHold, ReaderRow
from quorumlog.client.reading import Freshness, ReadOptions, Results, TailOptions
from quorumlog.client.status_rows import STATUS_TIMEOUT_MS, MemberStatusRow
from quorumlog.config import DEFAULT_GROUP
from quorumlog.entry import AppendReceipt, Entry
from quorumlog.errors import BadRequest, LedgerError
from quorumlog.log_state.log_state import Reset
from quorumlog.log_state.users import UserOrder
from quorumlog.net.credentials import ClientUser
from quorumlog.net.loop_thread import ONE_SESSION, ClientShell, Shell
from quorumlog.net.rpc.timings import Timings
from quorumlog.net.tls import ClientTls
from quorumlog.wire.client_messages import (
    LayoutResponse,
    ProducerInfo,
    ReloadResponse,
    UsersResponse,
    WhyKeptResponse,
)

if TYPE_CHECKING:
    import pyarrow as pa


class MachineHandle(Shell[AsyncMachineHandle]):
    """A state machine of the group, as one client reaches it."""

    @property
    def name(self) -> str:
        return self._it.name

    def append(self, command: bytes, *, timeout_ms: int | None = None) -> AppendReceipt:
        """See `LedgerClient.append`."""
        return self._thread.run(self._it.append(command, timeout_ms=timeout_ms))

    def append_batch(
        self, commands: Sequence[bytes] | EntryBatch, *, timeout_ms: int | None = None
    ) -> AppendReceipt:
        """See `LedgerClient.append_batch`."""
        return self._thread.run(self._it.append_batch(commands, timeout_ms=timeout_ms))

    def ask(self, question: bytes = b"", *, timeout_ms: int | None = None) -> bytes:
        """See `LedgerClient.ask`."""
        return self._thread.run(self._it.ask(question, timeout_ms=timeout_ms))


class NamedReader(Shell[AsyncNamedReader]):
    """Its reads begin at `position`; their options are those of the client's."""

    @property
    def name(self) -> str:
        return self._it.name

    @property
    def position(self) -> int:
        """Index of the next entry to read, as last known to this object."""
        return self._it.position

    @property
    def hold(self) -> GivenHold:
        """Keep entries that it has not read: True, unless deletion is forced; "archive", always."""
        return self._it.hold

    def read(
        self, stop_index: int | None = None, *, limit: int | None = None, from_member: str | None = None
    ) -> Results[Entry]:
        """As `LedgerClient.read`, from its `position` on."""
        return Results(self._thread, self._it.read(stop_index, limit=limit, from_member=from_member))

    def read_batches(
        self,
        stop_index: int | None = None,
        *,
        from_member: str | None = None,
        batch_bytes: int = READ_BATCH_BYTES,
        prefetch: int = DEFAULT_PREFETCH,
    ) -> Results[EntryBatch]:
        """As `LedgerClient.read_batches`, from its `position` on."""
        return Results(
            self._thread,
            self._it.read_batches(
                stop_index, from_member=from_member, batch_bytes=batch_bytes, prefetch=prefetch
            ),
        )

    def read_arrow(
        self,
        stop_index: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        from_member: str | None = None,
        batch_bytes: int = READ_BATCH_BYTES,
        prefetch: int = DEFAULT_PREFETCH,
    ) -> Results[pa.RecordBatch]:
        """As `LedgerClient.read_arrow`, from its `position` on."""
        return Results(
            self._thread,
            self._it.read_arrow(
                stop_index,
                columns=columns,
                from_member=from_member,
                batch_bytes=batch_bytes,
                prefetch=prefetch,
            ),
        )

    def tail(self, *, timeout_ms: int | None = None, from_member: str | None = None) -> Results[Entry]:
        """As `LedgerClient.tail`, from its `position` on; waits for an end of the log that is below
        it."""
        return Results(self._thread, self._it.tail(timeout_ms=timeout_ms, from_member=from_member))

    def commit(self, index: int, *, last_chain: int | None = None, timeout_ms: int | None = None) -> int:
        """Commit every entry below `index`; returns the reader's position once a majority has it: never
        lower than before. `last_chain`: of an archive, the `chain_crc` of its last entry, index - 1;
        with `retention = archived` a member deletes only entries of an archive that ends there with the
        chain of its own log. Raises UnknownReader if the reader was ended, IndexOutOfRange after the end
        of the log."""
        return self._thread.run(self._it.commit(index, last_chain=last_chain, timeout_ms=timeout_ms))

    def seek(self, index: int, *, timeout_ms: int | None = None) -> int:
        """Move to `index`, forward or back. Raises ReaderMoved if the reader is no longer at `position`,
        or was elsewhere since; IndexOutOfRange if the entry may be deleted by now."""
        return self._thread.run(self._it.seek(index, timeout_ms=timeout_ms))

    def note_skipped(self, first_index: int, stop_index: int, *, timeout_ms: int | None = None) -> None:
        """The entries of [first_index, stop_index) were deleted before it reached them, and it skips
        them: they are counted in its row of `readers()`, once however often reported. It does not move.
        Nothing is counted while a member is of a release before this one. Raises UnknownReader,
        BadRequest for no range, IndexOutOfRange after the end of the log."""
        self._thread.run(self._it.note_skipped(first_index, stop_index, timeout_ms=timeout_ms))

    def end(self, *, timeout_ms: int | None = None) -> None:
        """Delete the reader with its hold. Raises UnknownReader, ReaderMoved if it was moved back
        meanwhile."""
        self._thread.run(self._it.end(timeout_ms=timeout_ms))

    def __iter__(self) -> Results[Entry]:
        return self.read()

    def __repr__(self) -> str:
        return repr(self._made).replace("<AsyncNamedReader", "<NamedReader", 1)


class LedgerClient(ClientShell[AsyncLedgerClient]):
    """Operations on one group. Each may raise the errors of `quorumlog.errors.LedgerError`.

    Outcomes of an append are exactly three: a receipt (committed), a `Refused` (certainly not written)
    or `OutcomeUnknown` (perhaps written, and never repeated by the client). Refusals that pass by
    themselves, such as a change of leader, are retried for `timeout_ms`.

    With a `producer_id`, or `idempotent`, unknown outcomes are retried, too, and no entry is appended
    twice (docs/exactly-once.md).
    """

    @property
    def servers(self) -> list[str]:
        return self._it.servers

    @property
    def group(self) -> str:
        return self._it.group

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

        def make() -> AsyncLedgerClient:
            calls = CallbackThread()
            return AsyncLedgerClient(
                servers,
                group=group,
                timeout_ms=timeout_ms,
                timings=timings,
                producer_id=producer_id,
                idempotent=idempotent,
                on_leader_change=calls.wrapped(on_leader_change),
                on_reconnect=calls.wrapped(on_reconnect),
                read_consistency=read_consistency,
                max_staleness_ms=max_staleness_ms,
                read_from=read_from,
                tls=tls,
                user=user,
            )

        super().__init__(
            make,
            lambda: BadRequest("the client is closed: create a new one"),
            stays_with_parent=ONE_SESSION if producer_id is not None else "",
        )

    @property
    def timeout_ms(self) -> float:
        """Default time-out of calls, in milliseconds."""
        return self._it.timeout_ms

    def add_servers(self, servers: str | Sequence[str]) -> None:
        """Add addresses at which to find members, such as those learned by another client. Replaces
        addresses added before. Raises ConfigError for an invalid address."""
        self._it.add_servers(servers)

    @property
    def known_servers(self) -> list[str]:
        """Addresses given or added, and those of the members learned so far."""
        return self._it.known_servers

    @property
    def producer_id(self) -> str | None:
        """The given id, or the generated one of an idempotent client; None: neither."""
        return self._it.producer_id

    def append(
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
        return self._thread.run(
            self._it.append(
                body,
                expected_last=expected_last,
                sequence=sequence,
                machine=machine,
                timeout_ms=timeout_ms,
            )
        )

    def append_batch(
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
        return self._thread.run(
            self._it.append_batch(
                bodies,
                expected_last=expected_last,
                sequence=sequence,
                machine=machine,
                timeout_ms=timeout_ms,
            )
        )

    def ask(
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
        return self._thread.run(
            self._it.ask(
                machine,
                question,
                timeout_ms=timeout_ms,
                from_member=from_member,
                read_consistency=read_consistency,
                max_staleness_ms=max_staleness_ms,
            )
        )

    def machine(self, name: str) -> MachineHandle:
        """A handle of one state machine: `append`, `append_batch` and `ask` without its name."""
        return MachineHandle(self._thread, self._it.machine(name))

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
        Bodies are collected into batches of `batch_records` or `batch_bytes`. An incomplete batch is
        sent with an item that took longer than 50 ms to come, and when an asynchronous source (asyncio)
        waits. `timeout_ms` counts for each batch from when it is complete."""
        return AppendStream(
            self._thread,
            self._it.append_stream(
                items,
                batch_records=batch_records,
                batch_bytes=batch_bytes,
                window=window,
                timeout_ms=timeout_ms,
            ),
        )

    def get(
        self,
        index: int,
        *,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
    ) -> Entry:
        """The entry at `index`. Raises IndexOutOfRange outside of the log, and for a no-op."""
        return self._thread.run(
            self._it.get(
                index,
                from_member=from_member,
                read_consistency=read_consistency,
                max_staleness_ms=max_staleness_ms,
            )
        )

    @overload
    def read(
        self,
        first_index: int,
        stop_index: int | None = None,
        *,
        with_time: Literal[True],
        **options: Unpack[ReadOptions],
    ) -> Results[TimedEntry]: ...

    @overload
    def read(
        self,
        first_index: int,
        stop_index: int | None = None,
        *,
        with_time: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Results[Entry]: ...

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
    ) -> Results[Any]:
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
        return Results(
            self._thread,
            self._it.read(
                first_index,
                stop_index,
                limit=limit,
                from_member=from_member,
                read_consistency=read_consistency,
                max_staleness_ms=max_staleness_ms,
                with_time=with_time,
            ),
        )

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
    ) -> Results[EntryBatch]:
        """The same as stored batches (no-ops included), checked, of about `batch_bytes` each. `heads`:
        only headers are needed; the batches may then lack bodies and are checked by their chain, see
        `EntryBatch.heads`. `batch_bytes` still counts bytes of the log."""
        return Results(
            self._thread,
            self._it.read_batches(
                first_index,
                stop_index,
                from_member=from_member,
                read_consistency=read_consistency,
                max_staleness_ms=max_staleness_ms,
                batch_bytes=batch_bytes,
                prefetch=prefetch,
                heads=heads,
            ),
        )

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
    ) -> Results[pa.RecordBatch]:
        """The same as Arrow record batches: `index` and `term` (int64) and `body` (binary), a row per
        entry, without no-ops; `quorumlog.arrow.ENTRY_SCHEMA`. `columns`: only these, in this order;
        also `append_time` (timestamp, null before the first time mark), see `time_at`. Raises
        BadRequest for an unknown column, and ModuleNotFoundError at once if pyarrow (extra `arrow`) is
        not installed."""
        return Results(
            self._thread,
            self._it.read_arrow(
                first_index,
                stop_index,
                columns=columns,
                from_member=from_member,
                read_consistency=read_consistency,
                max_staleness_ms=max_staleness_ms,
                batch_bytes=batch_bytes,
                prefetch=prefetch,
            ),
        )

    @overload
    def tail(
        self,
        first_index: int | Literal["latest"] = 0,
        *,
        with_time: Literal[True],
        **options: Unpack[TailOptions],
    ) -> Results[TimedEntry]: ...

    @overload
    def tail(
        self,
        first_index: int | Literal["latest"] = 0,
        *,
        with_time: bool = False,
        **options: Unpack[TailOptions],
    ) -> Results[Entry]: ...

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
    ) -> Results[Any]:
        """Entries from `first_index` on; at the end of the log it waits for the next one, for ever or
        for `timeout_ms`. "latest": entries appended after the iteration has begun. `with_time` as in
        `read`.

        Raises IndexOutOfRange for a position beyond the end of the log, unless `wait`. Continues over a
        change of leader; raises if no server answers for the client's `timeout_ms`. Closing it, or the
        client, ends it, also in a waiting thread."""
        return Results(
            self._thread,
            self._it.tail(
                first_index,
                wait=wait,
                timeout_ms=timeout_ms,
                from_member=from_member,
                read_consistency=read_consistency,
                max_staleness_ms=max_staleness_ms,
                with_time=with_time,
            ),
        )

    def end_index(self, *, timeout_ms: int | None = None) -> int:
        """Index of the last committed entry, from the leader after confirmation by a majority.
        Linearizable: everything that any client knew to be committed before the call is at or below it.
        """
        return self._thread.run(self._it.end_index(timeout_ms=timeout_ms))

    def freshness(
        self,
        *,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
        timeout_ms: int | None = None,
    ) -> Freshness:
        """A member's committed index, and how old it may be. Without `read_consistency` and
        `from_member` the leader answers, as in `end_index`."""
        return self._thread.run(
            self._it.freshness(
                from_member=from_member,
                read_consistency=read_consistency,
                max_staleness_ms=max_staleness_ms,
                timeout_ms=timeout_ms,
            )
        )

    def index_at(self, time: datetime, *, from_member: str | None = None) -> int:
        """The index from which to read everything appended at `time` or later: the last time mark at or
        before `time`, or the first index of the log. Entries appended within a second after that mark
        come first, however long before `time` that was. `time` needs a zone, as in `datetime.now(UTC)`.
        Asks the leader, or `from_member`."""
        return self._thread.run(self._it.index_at(time, from_member=from_member))

    def time_at(self, index: int, *, from_member: str | None = None) -> datetime | None:
        """When the committed entry at `index` was appended: the time of the last time mark at or before
        it, in UTC; None if there is none. Raises IndexOutOfRange for an entry that the member does not
        have, or does not know to be committed."""
        return self._thread.run(self._it.time_at(index, from_member=from_member))

    def clock_resets(self, *, from_member: str | None = None) -> tuple[Reset, ...]:
        """Resets of the log's time by `reset_clock`, by index; the newest 16. For programs that read
        batches: `AppendTimes` computes times from these and the time marks."""
        return self._thread.run(self._it.clock_resets(from_member=from_member))

    def last_sequence(self, *, timeout_ms: int | None = None) -> int:
        """Sequence number of the newest entry of this client's producer in the log, -1 if there is
        none. Connects as that producer unless an append has done so: this fences any earlier client of
        that producer, so the number is final until this client appends."""
        return self._thread.run(self._it.last_sequence(timeout_ms=timeout_ms))

    def producers(self, *, timeout_ms: int | None = None) -> list[ProducerInfo]:
        """All producers that the log remembers, by id."""
        return self._thread.run(self._it.producers(timeout_ms=timeout_ms))

    def producer(self, producer_id: str, *, timeout_ms: int | None = None) -> ProducerInfo:
        """The state of one producer. Raises ProducerExpired if the log does not remember it."""
        return self._thread.run(self._it.producer(producer_id, timeout_ms=timeout_ms))

    def forget_producer(self, producer_id: str, *, timeout_ms: int | None = None) -> ProducerInfo:
        """End a producer's session for good; returns its last state. Its sequence numbers begin at 0
        again, and repeated entries are appended again."""
        return self._thread.run(self._it.forget_producer(producer_id, timeout_ms=timeout_ms))

    def reader(
        self,
        name: str,
        *,
        hold: GivenHold | None = None,
        first_index: int | Literal["latest"] | None = None,
        timeout_ms: int | None = None,
    ) -> NamedReader:
        """The reader with this name, whose position the cluster keeps; it continues at its committed
        position. A new one begins at `first_index`, or at the start of the log. `hold`: unread entries
        may not be deleted (True), not even on a nearly full disk ("archive"); False releases the hold,
        None leaves it unchanged. Raises IndexOutOfRange for a hold on entries that may already be
        deleted, BadRequest for an invalid name, TooManyReaders."""
        return NamedReader(
            self._thread,
            self._thread.run(
                self._it.reader(name, hold=hold, first_index=first_index, timeout_ms=timeout_ms)
            ),
        )

    def readers(self, *, timeout_ms: int | None = None) -> list[ReaderRow]:
        """The named readers, with their lag."""
        return self._thread.run(self._it.readers(timeout_ms=timeout_ms))

    def why_kept(self, *, timeout_ms: int | None = None) -> WhyKeptResponse:
        """Why each segment of the log is kept, oldest first, from the leader."""
        return self._thread.run(self._it.why_kept(timeout_ms=timeout_ms))

    def status(
        self, *, timeout_ms: float = STATUS_TIMEOUT_MS, events: bool = False
    ) -> list[MemberStatusRow]:
        """A row per member, also for those that are down (`reachable` false). `events`: with each
        member's recent events. Raises WrongPort if no address is that of a log."""
        return self._thread.run(self._it.status(timeout_ms=timeout_ms, events=events))

    def reload(self, *, timeout_ms: int | None = None) -> dict[str, ReloadResponse | LedgerError]:
        """Make the given and added servers read configuration and certificates again, as SIGHUP does,
        and no other members; returns the answer of each, by address."""
        return self._thread.run(self._it.reload(timeout_ms=timeout_ms))

    def transfer(self, to: str, *, timeout_ms: int | None = None) -> str:
        """Transfer leadership to member `to`; returns the id of the leader then. Raises TransferFailed
        with the reason if the leader is unchanged."""
        return self._thread.run(self._it.transfer(to, timeout_ms=timeout_ms))

    def reset_clock(self, *, timeout_ms: int | None = None) -> Reset:
        """Set the log's time to the clocks of a quorum, once they are right again: earlier entries
        count as appended then at the latest. Returns index and time of the reset. Raises ClockNotReset
        while the clocks of a quorum differ by more than 60 s; LevelNotReported unless every member and
        learner knows such an entry; UpgradeNotFinished; OutcomeUnknown if leadership was lost
        meanwhile."""
        return self._thread.run(self._it.reset_clock(timeout_ms=timeout_ms))

    def finish_upgrade(self, *, timeout_ms: int | None = None) -> int:
        """Allow log entries that earlier releases do not know, once all members run this release. From
        then on no member can be downgraded. Returns the level of the log's format. Raises
        LevelNotReported with the members that have not reported this release; OutcomeUnknown if
        leadership was lost meanwhile, after which it may be repeated."""
        return self._thread.run(self._it.finish_upgrade(timeout_ms=timeout_ms))

    def change_users(self, order: UserOrder, *, timeout_ms: int | None = None) -> int:
        """Add, change or remove a user, a role or a grant (docs/security.md). Returns the index of the
        entry with the change. Raises BadRequest for an invalid change, Forbidden, UpgradeNotFinished,
        LevelNotReported; OutcomeUnknown if leadership was lost meanwhile."""
        return self._thread.run(self._it.change_users(order, timeout_ms=timeout_ms))

    def users(self, *, timeout_ms: int | None = None) -> UsersResponse:
        """The users, and the grants of each role."""
        return self._thread.run(self._it.users(timeout_ms=timeout_ms))

    def change_members(
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
        return self._thread.run(
            self._it.change_members(
                operation, member_id, address, dry_run=dry_run, timeout_ms=timeout_ms
            )
        )

    def step_over(
        self, machine: str, index: int, *, unsafe: bool = False, timeout_ms: int | None = None
    ) -> int:
        """Make the state machine of every member skip the entry at `index`, which crashes it; returns
        the index of the log entry with this order, once it is committed (docs/state-machines.md).
        `unsafe`: even if a member has applied it, or does not answer. Raises StepOverRefused with the
        reason, UnknownMachine, LevelNotReported while a member is silent or runs an earlier release,
        BadRequest for an entry that is not a command, and OutcomeUnknown, after which it may be
        repeated."""
        return self._thread.run(self._it.step_over(machine, index, unsafe=unsafe, timeout_ms=timeout_ms))

    def layout(self, from_member: str = "any", *, timeout_ms: int | None = None) -> LayoutResponse:
        """Where a member's log begins, and the length of its segments, for a backup."""
        return self._thread.run(self._it.layout(from_member, timeout_ms=timeout_ms))

    def groups(self, *, timeout_ms: float = STATUS_TIMEOUT_MS) -> list[str]:
        """The names of all groups of the listed servers, sorted, with staging groups. This client's own
        group need not be among them. Servers silent for `timeout_ms` are skipped. Raises Unreachable or
        RequestTimeout if none answers."""
        return self._thread.run(self._it.groups(timeout_ms=timeout_ms))

    def __repr__(self) -> str:
        return repr(self._made).replace("<AsyncLedgerClient", "<LedgerClient", 1)
