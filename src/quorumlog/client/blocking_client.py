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
from quorumlog.client.async_client import DEFAULT_TIMEOUT_MS, AsyncLedgerClient
from quorumlog.client.events import Callback, CallbackThread
from quorumlog.client.handles import AsyncMachineHandle, AsyncNamedReader
from quorumlog.client.protocol.appending import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BATCH_RECORDS,
    DEFAULT_WINDOW,
    Item,
)
from quorumlog.client.protocol.read_plan import DEFAULT_PREFETCH, READ_BATCH_BYTES
from quorumlog.client.reader_verbs import GivenHold, ReaderRow
from quorumlog.client.reading import Freshness, ReadOptions, Results, TailOptions
from quorumlog.client.status_rows import STATUS_TIMEOUT_MS, MemberStatusRow
from quorumlog.client.verbs import Members
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
        """Index of the next entry that it wants, as this object was last told."""
        return self._it.position

    @property
    def hold(self) -> GivenHold:
        """What it has not read is kept: True, unless somebody forces it; "archive", always."""
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
        """Everything below `index` is done with; returns where the reader stands once a majority has
        that: never further back than before. `last_chain`: of an archive, the `chain_crc` of its last
        entry, index - 1; with `retention = archived` a member deletes only what an archive has that ends
        there with the chain of its own log. Raises UnknownReader if somebody has ended it,
        IndexOutOfRange behind the end of the log."""
        return self._thread.run(self._it.commit(index, last_chain=last_chain, timeout_ms=timeout_ms))

    def seek(self, index: int, *, timeout_ms: int | None = None) -> int:
        """Go to `index`, back as well. Raises ReaderMoved if the reader does not stand at `position` any
        more, or has been elsewhere since; IndexOutOfRange for what may be deleted by now."""
        return self._thread.run(self._it.seek(index, timeout_ms=timeout_ms))

    def note_skipped(self, first_index: int, stop_index: int, *, timeout_ms: int | None = None) -> None:
        """The entries of [first_index, stop_index) were gone when it came to them, and it goes on
        without: they are counted in its row of `readers()`, once however often they are named. It does
        not move. Nothing is counted while a member is of a release before this one. Raises
        UnknownReader, BadRequest for no range, IndexOutOfRange behind the end of the log."""
        self._thread.run(self._it.note_skipped(first_index, stop_index, timeout_ms=timeout_ms))

    def end(self, *, timeout_ms: int | None = None) -> None:
        """Forget it, with what it holds. Raises UnknownReader, ReaderMoved if somebody has led it back
        meanwhile."""
        self._thread.run(self._it.end(timeout_ms=timeout_ms))

    def __iter__(self) -> Results[Entry]:
        return self.read()

    def __repr__(self) -> str:
        return repr(self._made).replace("<AsyncNamedReader", "<NamedReader", 1)


class LedgerClient(ClientShell[AsyncLedgerClient]):
    """Verbs on one group. Every one may raise the errors of `quorumlog.errors.LedgerError`.

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
        """Of a call that is given none."""
        return self._it.timeout_ms

    def add_servers(self, servers: str | Sequence[str]) -> None:
        """Members are to be found there, too: what one client has learned of the members, another one
        need not find out from a list that may be old. What was added before is forgotten. Raises
        ConfigError for what cannot be read."""
        self._it.add_servers(servers)

    @property
    def known_servers(self) -> list[str]:
        """Those that were given or added, and the members that they have told of so far."""
        return self._it.known_servers

    @property
    def producer_id(self) -> str | None:
        """The one that was given, or drawn for an idempotent client; None: neither."""
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

        `expected_last`: only if no data was appended behind this index since; the no-ops of elections
        do not count, -1 means an empty log. Otherwise raises WrongLastIndex, which names the real one.
        After OutcomeUnknown nobody can tell by repeating it: its own success would refuse it.

        `sequence`, of a client with a `producer_id`: the number of this entry among the producer's, from
        0 on; one that is in the log already gets its receipt once more. Raises SequenceGap, which names
        the next number, if earlier ones are missing, and AlreadyCommitted if it is there too long to
        tell where. Without it each append gets the next number.

        `machine`: a command for this state machine; returns when the leader has applied it, with its
        `result`, or raises CommandError if the machine refuses it.

        Raises a Refused if it certainly was not written (BodyTooLarge, Unreachable, NotLeader after the
        deadline, ...) and OutcomeUnknown if nobody can tell. Appends of threads that share the client
        travel together; each has its own receipt or error.
        """
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
        """Append entries that follow each other in the log; `expected_last`, `sequence` (of the first of
        them) and errors as in `append`. What a `machine` refuses is in the receipt's `failures`, and
        has the result None.

        Raises BodyTooLarge for a batch above the server's frame limit and BadRequest for an empty one.
        """
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
        """What a state machine answers; without `read_consistency` that of the leader, linearizable: it
        follows from everything that any client was told to be committed before the call. Otherwise of
        any member, as in `read`. Raises CommandError if the machine refuses, UnknownMachine."""
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
        """One state machine: `append`, `append_batch` and `ask` without naming it."""
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

        Bodies are gathered to batches of `batch_records` or `batch_bytes`. A batch leaves earlier with
        an item that took longer than 50 ms to come, and when an asynchronous source (asyncio) waits.
        `timeout_ms` counts for each batch from when it is complete.
        """
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
        """The entry at `index`. Raises IndexOutOfRange outside of the log and for a no-op."""
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
        """Entries of [first_index, stop_index), no-ops left out, at most `limit`.

        Without `stop_index`: up to what is committed when the read begins. The leader, which is asked
        unless `from_member` names "any" or one member by id, has a majority confirm it: nothing is
        missing that any client was told before. Others give what they know to be committed.

        `read_consistency` (docs/reads.md) says what any member promises, which is asked then:
        "read_index" misses nothing, wherever it is read; "committed" may be old, by `max_staleness_ms`
        at most (else TooStale), and has what this client has appended (else NotCaughtUp).
        `with_time`: each is a TimedEntry, with its `append_time`, as `time_at` gives it.
        Raises IndexOutOfRange if the range reaches outside of the log.
        """
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
        """The same as stored batches (no-ops included), checked, of about `batch_bytes` each.

        `heads`: the headers are enough. What comes may have no bodies then, and is checked by its chain:
        see `EntryBatch.heads`. `batch_bytes` are still those of the log.
        """
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
        """The same as Arrow record batches: `index` and `term` (int64) and `body` (binary), a row an
        entry, no-ops left out; `quorumlog.arrow.ENTRY_SCHEMA`. `columns`: only these, in this order;
        there is also `append_time` (timestamp, null in front of the first time mark), see `time_at`.

        Raises BadRequest for a column that there is not, and ModuleNotFoundError at once where pyarrow
        (extra `arrow`) is not installed.
        """
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
        """Entries from `first_index` on: at the end of the log it waits for the next, without end, or
        for `timeout_ms`. "latest": what is appended after the iteration has begun.

        `with_time` as in `read`.

        Raises IndexOutOfRange for a position that the log does not reach yet, unless `wait`. Goes over
        a change of leader; raises if no server answers for the client's `timeout_ms`. Closing it, or
        the client, ends it, also in a thread that waits.
        """
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
        """Index of the last committed entry, as the leader knows it once a majority has confirmed it.

        Linearizable: whatever any client was told to be committed before the call is at or below it.
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
        """How far a member knows the log to be committed, and how old that may be. Without
        `read_consistency` and `from_member` the leader says it, as in `end_index`."""
        return self._thread.run(
            self._it.freshness(
                from_member=from_member,
                read_consistency=read_consistency,
                max_staleness_ms=max_staleness_ms,
                timeout_ms=timeout_ms,
            )
        )

    def index_at(self, time: datetime, *, from_member: str | None = None) -> int:
        """From where to read all that was appended at `time` or later: the last time mark that says so
        or earlier, or the first index that there is. What was appended in the second behind that mark
        comes first, however long before `time` that was.

        `time` needs a zone, as `datetime.now(UTC)` has. As the leader knows the log, or `from_member`.
        """
        return self._thread.run(self._it.index_at(time, from_member=from_member))

    def time_at(self, index: int, *, from_member: str | None = None) -> datetime | None:
        """When the committed entry at `index` was appended: what the last time mark at or in front of it
        says, in UTC. None where there is none.

        Raises IndexOutOfRange for an entry that the member does not hold, or does not know to be
        committed.
        """
        return self._thread.run(self._it.time_at(index, from_member=from_member))

    def clock_resets(self, *, from_member: str | None = None) -> tuple[Reset, ...]:
        """Where `reset_clock` has reset the log's time, by index; the newest 16. For who reads batches:
        `AppendTimes` makes times of entries of these and of the marks among them."""
        return self._thread.run(self._it.clock_resets(from_member=from_member))

    def last_sequence(self, *, timeout_ms: int | None = None) -> int:
        """Number of the newest entry of this client's producer that is in the log, -1 if there is none.

        Connects as that producer, if no append has yet: whoever was connected as it before is fenced,
        so the number is final until this client appends.
        """
        return self._thread.run(self._it.last_sequence(timeout_ms=timeout_ms))

    def producers(self, *, timeout_ms: int | None = None) -> list[ProducerInfo]:
        """All producers that the log remembers, by id."""
        return self._thread.run(self._it.producers(timeout_ms=timeout_ms))

    def producer(self, producer_id: str, *, timeout_ms: int | None = None) -> ProducerInfo:
        """What the log remembers of one; raises ProducerExpired if it remembers nothing."""
        return self._thread.run(self._it.producer(producer_id, timeout_ms=timeout_ms))

    def forget_producer(self, producer_id: str, *, timeout_ms: int | None = None) -> ProducerInfo:
        """End a producer's session for good; returns what the log remembered. Its numbers begin at 0
        again, and what it repeats is appended again."""
        return self._thread.run(self._it.forget_producer(producer_id, timeout_ms=timeout_ms))

    def reader(
        self,
        name: str,
        *,
        hold: GivenHold | None = None,
        first_index: int | Literal["latest"] | None = None,
        timeout_ms: int | None = None,
    ) -> NamedReader:
        """The reader of this name, which the cluster keeps: it goes on where it has committed.

        A new one begins at `first_index`, or where the log does. `hold`: what it has not read may not be
        deleted (True), not even where a disk is nearly full ("archive"); False gives the hold up, None
        leaves it as it is. Raises IndexOutOfRange for a hold on what may be deleted by now, BadRequest
        for a name that is none, TooManyReaders.
        """
        return NamedReader(
            self._thread,
            self._thread.run(
                self._it.reader(name, hold=hold, first_index=first_index, timeout_ms=timeout_ms)
            ),
        )

    def readers(self, *, timeout_ms: int | None = None) -> list[ReaderRow]:
        """The readers that the cluster keeps, by name, with how far each is behind."""
        return self._thread.run(self._it.readers(timeout_ms=timeout_ms))

    def why_kept(self, *, timeout_ms: int | None = None) -> WhyKeptResponse:
        """What keeps each segment of the log, oldest first, as the leader knows it."""
        return self._thread.run(self._it.why_kept(timeout_ms=timeout_ms))

    def status(
        self, *, timeout_ms: float = STATUS_TIMEOUT_MS, events: bool = False
    ) -> list[MemberStatusRow]:
        """A row a member, also of those that are down (`reachable` false). `events`: with what each
        remembers of what has happened. Raises WrongPort where no address is that of a log."""
        return self._thread.run(self._it.status(timeout_ms=timeout_ms, events=events))

    def reload(self, *, timeout_ms: int | None = None) -> dict[str, ReloadResponse | LedgerError]:
        """Have the servers that are listed read their configuration and certificates again, as SIGHUP
        does: what each answers, by address."""
        return self._thread.run(self._it.reload(timeout_ms=timeout_ms))

    def transfer(self, to: str, *, timeout_ms: int | None = None) -> str:
        """Hand leadership to member `to`; returns the id of the leader then.

        Raises TransferFailed with the reason if it stays where it was."""
        return self._thread.run(self._it.transfer(to, timeout_ms=timeout_ms))

    def reset_clock(self, *, timeout_ms: int | None = None) -> Reset:
        """Let the log's time begin anew at what the clocks of a quorum say, once they are right again:
        what stands in front counts as appended then at the latest. Returns where, and at what time.

        Raises ClockNotReset while the clocks of a quorum differ by more than 60 s; LevelNotTold unless
        every member and learner knows such an entry; UpgradeNotFinished; OutcomeUnknown if leadership
        was lost meanwhile."""
        return self._thread.run(self._it.reset_clock(timeout_ms=timeout_ms))

    def finish_upgrade(self, *, timeout_ms: int | None = None) -> int:
        """Let the log have entries that releases before do not know, once all members run this one. No
        member can go back from then on. Returns the level of the log's format.

        Raises LevelNotTold, naming members that have not told that they run it; OutcomeUnknown if
        leadership was lost meanwhile, and asking again does no harm."""
        return self._thread.run(self._it.finish_upgrade(timeout_ms=timeout_ms))

    def change_users(self, order: UserOrder, *, timeout_ms: int | None = None) -> int:
        """Add, change or remove a user, a role or what is granted to a role (docs/security.md). Returns
        the index of the entry that says so.

        Raises BadRequest where it makes no sense, Forbidden, UpgradeNotFinished, LevelNotTold;
        OutcomeUnknown if leadership was lost meanwhile."""
        return self._thread.run(self._it.change_users(order, timeout_ms=timeout_ms))

    def users(self, *, timeout_ms: int | None = None) -> UsersResponse:
        """Who the users are, and what is granted to which role."""
        return self._thread.run(self._it.users(timeout_ms=timeout_ms))

    def change_members(
        self,
        verb: str,
        member_id: str,
        address: str = "",
        *,
        dry_run: bool = False,
        timeout_ms: int | None = None,
    ) -> Members:
        """Change who is a member, and return once that is committed (docs/membership.md).

        `verb`: "add" (with the `address`, as a learner), "promote", "remove", "replace" (by the
        directory that is connected under that id now) or "set-address". `dry_run` changes nothing.
        Raises MembershipRefused with the reason, and OutcomeUnknown.
        """
        return self._thread.run(
            self._it.change_members(verb, member_id, address, dry_run=dry_run, timeout_ms=timeout_ms)
        )

    def step_over(
        self, machine: str, index: int, *, unsafe: bool = False, timeout_ms: int | None = None
    ) -> int:
        """Have every member's state machine leave the entry at `index` out, because no member survives
        it; returns the index of the entry of the log that says so, once it is committed
        (docs/state-machines.md). `unsafe`: also where a member has applied it, or does not answer.

        Raises StepOverRefused with the reason, UnknownMachine, LevelNotTold while a member is silent or
        of an earlier release, BadRequest for what is no command, and OutcomeUnknown: ask again then."""
        return self._thread.run(self._it.step_over(machine, index, unsafe=unsafe, timeout_ms=timeout_ms))

    def layout(self, from_member: str = "any", *, timeout_ms: int | None = None) -> LayoutResponse:
        """Where a member's log begins and how long its segments are: all that a backup needs to know."""
        return self._thread.run(self._it.layout(from_member, timeout_ms=timeout_ms))

    def groups(self, *, timeout_ms: float = STATUS_TIMEOUT_MS) -> list[str]:
        """The names of the groups that the listed servers have, sorted, staging groups among them. The
        group that this client was made for need not be one of them. A server that says nothing for
        `timeout_ms` is left out. Raises Unreachable or RequestTimeout if none answers."""
        return self._thread.run(self._it.groups(timeout_ms=timeout_ms))

    def __repr__(self) -> str:
        return repr(self._made).replace("<AsyncLedgerClient", "<LedgerClient", 1)
