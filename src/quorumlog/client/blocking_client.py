"""`LedgerClient`: the log for code that blocks. Thread-safe; threads share its connections.

with quorumlog.connect("10.0.0.1:20911,10.0.0.2:20911,10.0.0.3:20911") as log:
    receipt = log.append(b"hello")
    for entry in log.read(receipt.first_index):
        ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from quorumlog.append_times import TimedEntry
from quorumlog.blocking import Blocking
from quorumlog.client.append_streams import AppendStream
from quorumlog.client.async_client import DEFAULT_TIMEOUT_MS, AsyncLedgerClient
from quorumlog.client.events import Callback, CallbackThread
from quorumlog.client.handles import AsyncMachineHandle, AsyncNamedReader
from quorumlog.client.reader_verbs import GivenHold
from quorumlog.client.reading import ReadOptions, Results, TailOptions
from quorumlog.config import DEFAULT_GROUP
from quorumlog.entry import Entry
from quorumlog.errors import BadRequest
from quorumlog.net.loop_thread import ONE_SESSION, ClientShell, Shell
from quorumlog.net.rpc.timings import Timings
from quorumlog.net.tls import ClientTls

_MACHINE = Blocking[AsyncMachineHandle]()
_READER = Blocking[AsyncNamedReader]()
_LOG = Blocking[AsyncLedgerClient]()


class MachineHandle(Shell[AsyncMachineHandle]):
    """A state machine of the group, as one client reaches it."""

    @property
    def name(self) -> str:
        return self._it.name

    append = _MACHINE.waits(AsyncMachineHandle.append)
    append_batch = _MACHINE.waits(AsyncMachineHandle.append_batch)
    ask = _MACHINE.waits(AsyncMachineHandle.ask)


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

    read = _READER.gives(AsyncNamedReader.read, Results)
    read_batches = _READER.gives(AsyncNamedReader.read_batches, Results)
    read_arrow = _READER.gives(AsyncNamedReader.read_arrow, Results)
    tail = _READER.gives(AsyncNamedReader.tail, Results)
    commit = _READER.waits(AsyncNamedReader.commit)
    seek = _READER.waits(AsyncNamedReader.seek)
    note_skipped = _READER.waits(AsyncNamedReader.note_skipped)
    end = _READER.waits(AsyncNamedReader.end)

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
            )

        super().__init__(
            make,
            lambda: BadRequest("the client is closed: make another one"),
            stays_with_parent=ONE_SESSION if producer_id is not None else "",
        )

    @property
    def servers(self) -> list[str]:
        return self._it.servers

    @property
    def group(self) -> str:
        return self._it.group

    @property
    def timeout_ms(self) -> float:
        """Of a call that is given none."""
        return self._it.timeout_ms

    def add_servers(self, servers: str | Sequence[str]) -> None:
        """See `AsyncLedgerClient.add_servers`."""
        self._it.add_servers(servers)

    @property
    def known_servers(self) -> list[str]:
        """Those that were given or added, and the members that they have told of so far."""
        return self._it.known_servers

    @property
    def producer_id(self) -> str | None:
        """The one that was given, or drawn for an idempotent client; None: neither."""
        return self._it.producer_id

    append = _LOG.waits(AsyncLedgerClient.append)
    append_batch = _LOG.waits(AsyncLedgerClient.append_batch)
    append_stream = _LOG.gives(AsyncLedgerClient.append_stream, AppendStream)
    ask = _LOG.waits(AsyncLedgerClient.ask)
    machine = _LOG.gives(AsyncLedgerClient.machine, MachineHandle)
    get = _LOG.waits(AsyncLedgerClient.get)
    read_batches = _LOG.gives(AsyncLedgerClient.read_batches, Results)
    read_arrow = _LOG.gives(AsyncLedgerClient.read_arrow, Results)
    end_index = _LOG.waits(AsyncLedgerClient.end_index)
    freshness = _LOG.waits(AsyncLedgerClient.freshness)
    index_at = _LOG.waits(AsyncLedgerClient.index_at)
    time_at = _LOG.waits(AsyncLedgerClient.time_at)
    clock_resets = _LOG.waits(AsyncLedgerClient.clock_resets)
    last_sequence = _LOG.waits(AsyncLedgerClient.last_sequence)
    producers = _LOG.waits(AsyncLedgerClient.producers)
    producer = _LOG.waits(AsyncLedgerClient.producer)
    forget_producer = _LOG.waits(AsyncLedgerClient.forget_producer)
    reader = _LOG.opens(AsyncLedgerClient.reader, NamedReader)
    readers = _LOG.waits(AsyncLedgerClient.readers)
    why_kept = _LOG.waits(AsyncLedgerClient.why_kept)
    status = _LOG.waits(AsyncLedgerClient.status)
    transfer = _LOG.waits(AsyncLedgerClient.transfer)
    reset_clock = _LOG.waits(AsyncLedgerClient.reset_clock)
    finish_upgrade = _LOG.waits(AsyncLedgerClient.finish_upgrade)
    change_members = _LOG.waits(AsyncLedgerClient.change_members)
    step_over = _LOG.waits(AsyncLedgerClient.step_over)
    layout = _LOG.waits(AsyncLedgerClient.layout)
    groups = _LOG.waits(AsyncLedgerClient.groups)

    if TYPE_CHECKING:

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
        def read(self, *given: Any, **options: Any) -> Any: ...

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
        def tail(self, *given: Any, **options: Any) -> Any: ...

    else:
        read = _LOG.gives(AsyncLedgerClient.read, Results)
        tail = _LOG.gives(AsyncLedgerClient.tail, Results)

    def __repr__(self) -> str:
        return repr(self._made).replace("<AsyncLedgerClient", "<LedgerClient", 1)
