"""`AsyncLedgerClient`: the log for asyncio (and uvloop). The same verbs as `LedgerClient`.

    async with quorumlog.connect_async("10.0.0.1:20911,10.0.0.2:20911") as log:
        receipt = await log.append(b"hello")
        async for entry in log.read(receipt.first_index):
            ...

A client belongs to the loop that it was first used in.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Generator,
    Iterable,
    Sequence,
)
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from quorumlog.append_times import TimedEntry
from quorumlog.batch import EntryBatch
from quorumlog.client.appending.async_append_stream import AsyncAppendStream
from quorumlog.client.arguments import check_items, checked_machine
from quorumlog.client.events import Callback, Events
from quorumlog.client.ledger_client_base import DEFAULT_TIMEOUT_MS, LedgerClientBase
from quorumlog.client.machines.machine_handles import AsyncMachineHandle
from quorumlog.client.machines.machine_verbs import step_over
from quorumlog.client.members.member_verbs import Members, change_members
from quorumlog.client.protocol.append_joiner import body_of
from quorumlog.client.protocol.append_window import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BATCH_RECORDS,
    DEFAULT_WINDOW,
    Item,
)
from quorumlog.client.protocol.client_requests import Request
from quorumlog.client.protocol.read_plan import DEFAULT_PREFETCH, READ_BATCH_BYTES
from quorumlog.client.readers.named_readers import AsyncNamedReader
from quorumlog.client.readers.read_results import AsyncResults
from quorumlog.client.readers.reader_rows import GivenHold, ReaderRow
from quorumlog.client.reading.read_choice import Freshness
from quorumlog.client.reading.read_options import ReadOptions, TailOptions
from quorumlog.client.result_streams import Reading, Verb, of_one
from quorumlog.client.status_rows import STATUS_TIMEOUT_MS, MemberStatusRow
from quorumlog.client.task_joiner import TaskJoiner
from quorumlog.config import DEFAULT_GROUP
from quorumlog.entry import AppendReceipt, Entry
from quorumlog.log_state.log_state import Reset
from quorumlog.net.io_loop import IoLoop
from quorumlog.wire.client_messages import LayoutResponse, WhyKeptResponse
from quorumlog.wire.producer_messages import ProducerInfo

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class AsyncLedgerClient(LedgerClientBase):
    """See `LedgerClient` for outcomes and errors; they are the same, from the same code."""

    def _open(self, events: Events) -> None:
        self._io = IoLoop(self._protocol, events.told)
        self._joiner = TaskJoiner(self._io, in_session=self._protocol.producer is not None)

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
        """See `LedgerClient.append`. If the task is cancelled the outcome is unknown to it: once a body
        shares a frame with others it stays there."""
        if type(body) is not bytes:
            body = body_of(body)
        verbs = self._verbs
        if expected_last is not None or sequence is not None:
            verb = verbs.append_batch([body], timeout_ms, expected_last, sequence, machine)
            return await self._run(of_one(verb))
        allowed_ms = verbs.timeout_ms if timeout_ms is None else verbs.timeout_ms_of(timeout_ms)
        waiter, joined = self._joiner.add(body, allowed_ms, machine and checked_machine(machine))
        try:
            outcome = await waiter
        except CancelledError:
            self._joiner.leave(waiter, joined)
            raise
        if isinstance(outcome, AppendReceipt):
            return outcome
        if outcome is None:
            return await self._run(self._verbs.append_alone(body, joined))
        raise outcome

    async def append_batch(
        self,
        bodies: Sequence[bytes] | EntryBatch,
        *,
        expected_last: int | None = None,
        sequence: int | None = None,
        machine: str = "",
        timeout_ms: int | None = None,
    ) -> AppendReceipt:
        """See `LedgerClient.append_batch`."""
        return await self._run(
            self._verbs.append_batch(bodies, timeout_ms, expected_last, sequence, machine)
        )

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
        """See `LedgerClient.ask`."""
        choice = self._verbs.choice(from_member, read_consistency, max_staleness_ms)
        return await self._run(self._verbs.ask(machine, question, choice, timeout_ms))

    def machine(self, name: str) -> AsyncMachineHandle:
        """See `LedgerClient.machine`."""
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
        """See `LedgerClient.append_stream`; iterate with `async for`."""
        check_items(items, may_wait=True)
        appending = self._verbs.append_stream(batch_records, batch_bytes, window, timeout_ms)
        return AsyncAppendStream(self, items, appending)

    # ---------------------------------------------------------------- read

    async def get(
        self,
        index: int,
        *,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
    ) -> Entry:
        """See `LedgerClient.get`."""
        choice = self._verbs.choice(from_member, read_consistency, max_staleness_ms)
        return await self._run(self._verbs.get(index, choice))

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
        """See `LedgerClient.read`."""
        choice = self._verbs.choice(from_member, read_consistency, max_staleness_ms)
        reading = self._verbs.read(first_index, stop_index, limit, choice, with_time)
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
        """See `LedgerClient.read_batches`."""
        choice = self._verbs.choice(from_member, read_consistency, max_staleness_ms)
        sizes = {"batch_bytes": batch_bytes, "prefetch": prefetch}
        reading = self._verbs.read_batches(first_index, stop_index, choice, heads=heads, **sizes)
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
        """See `LedgerClient.read_arrow`."""
        choice = self._verbs.choice(from_member, read_consistency, max_staleness_ms)
        sizes = {"batch_bytes": batch_bytes, "prefetch": prefetch}
        reading = self._verbs.read_arrow(first_index, stop_index, choice, columns, **sizes)
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
        """See `LedgerClient.tail`."""
        choice = self._verbs.choice(from_member, read_consistency, max_staleness_ms)
        tail = self._verbs.tail(
            first_index, choice, wait=wait, timeout_ms=timeout_ms, with_time=with_time
        )
        return self._results(tail, "tail", first_index)

    async def end_index(self, *, timeout_ms: int | None = None) -> int:
        """See `LedgerClient.end_index`."""
        return await self._run(self._verbs.end_index(timeout_ms))

    async def freshness(
        self,
        *,
        from_member: str | None = None,
        read_consistency: str | None = None,
        max_staleness_ms: float | None = None,
        timeout_ms: int | None = None,
    ) -> Freshness:
        """See `LedgerClient.freshness`."""
        choice = self._verbs.choice(from_member, read_consistency, max_staleness_ms)
        return await self._run(self._verbs.freshness(choice, timeout_ms))

    async def index_at(self, time: datetime, *, from_member: str | None = None) -> int:
        """See `LedgerClient.index_at`."""
        return await self._run(self._verbs.index_at(time, from_member))

    async def time_at(self, index: int, *, from_member: str | None = None) -> datetime | None:
        """See `LedgerClient.time_at`."""
        return await self._run(self._verbs.time_at(index, from_member))

    async def clock_resets(self, *, from_member: str | None = None) -> tuple[Reset, ...]:
        """See `LedgerClient.clock_resets`."""
        return await self._run(self._verbs.clock_resets(from_member))

    # ---------------------------------------------------------------- producers

    async def last_sequence(self, *, timeout_ms: int | None = None) -> int:
        """See `LedgerClient.last_sequence`."""
        return await self._run(self._verbs.last_sequence(timeout_ms))

    async def producers(self, *, timeout_ms: int | None = None) -> list[ProducerInfo]:
        """See `LedgerClient.producers`."""
        return await self._run(self._verbs.producers(timeout_ms))

    async def producer(self, producer_id: str, *, timeout_ms: int | None = None) -> ProducerInfo:
        """See `LedgerClient.producer`."""
        return await self._run(self._verbs.producer(producer_id, timeout_ms))

    async def forget_producer(self, producer_id: str, *, timeout_ms: int | None = None) -> ProducerInfo:
        """See `LedgerClient.forget_producer`."""
        return await self._run(self._verbs.forget_producer(producer_id, timeout_ms))

    # ---------------------------------------------------------------- readers

    async def reader(
        self,
        name: str,
        *,
        hold: GivenHold | None = None,
        first_index: int | Literal["latest"] | None = None,
        timeout_ms: int | None = None,
    ) -> AsyncNamedReader:
        """See `LedgerClient.reader`."""
        stand = await self._run(self._verbs.open_reader(name, hold, first_index, timeout_ms))
        return AsyncNamedReader(name, stand, self._verbs, self._run, self._results)

    async def readers(self, *, timeout_ms: int | None = None) -> list[ReaderRow]:
        """See `LedgerClient.readers`."""
        return await self._run(self._verbs.readers(timeout_ms))

    async def why_kept(self, *, timeout_ms: int | None = None) -> WhyKeptResponse:
        """See `LedgerClient.why_kept`."""
        return await self._run(self._verbs.why_kept(timeout_ms))

    # ---------------------------------------------------------------- the group

    async def status(self, *, timeout_ms: float = STATUS_TIMEOUT_MS) -> list[MemberStatusRow]:
        """See `LedgerClient.status`."""
        return await self._run(self._verbs.status(timeout_ms))

    async def transfer(self, to: str, *, timeout_ms: int | None = None) -> str:
        """See `LedgerClient.transfer`."""
        return await self._run(self._verbs.transfer(to, timeout_ms))

    async def reset_clock(self, *, timeout_ms: int | None = None) -> Reset:
        """See `LedgerClient.reset_clock`."""
        return await self._run(self._verbs.reset_clock(timeout_ms))

    async def finish_upgrade(self, *, timeout_ms: int | None = None) -> int:
        """See `LedgerClient.finish_upgrade`."""
        return (await self._run(self._verbs.finish_upgrade(timeout_ms))).level

    async def change_members(
        self,
        verb: str,
        member_id: str,
        address: str = "",
        *,
        dry_run: bool = False,
        timeout_ms: int | None = None,
    ) -> Members:
        """See `LedgerClient.change_members`."""
        allowed_ms = self._verbs.timeout_ms_of(timeout_ms)
        return await self._run(change_members(verb, member_id, address, dry_run, allowed_ms))

    async def step_over(
        self, machine: str, index: int, *, unsafe: bool = False, timeout_ms: int | None = None
    ) -> int:
        """See `LedgerClient.step_over`."""
        allowed_ms = self._verbs.timeout_ms_of(timeout_ms)
        return await self._run(step_over(machine, index, unsafe, allowed_ms))

    async def layout(self, from_member: str = "any", *, timeout_ms: int | None = None) -> LayoutResponse:
        """See `LedgerClient.layout`."""
        return await self._run(self._verbs.layout(from_member, timeout_ms))

    async def groups(self, *, timeout_ms: float = STATUS_TIMEOUT_MS) -> list[str]:
        """See `LedgerClient.groups`."""
        return await self._run(self._verbs.groups(timeout_ms))

    async def close(self) -> None:
        """End the connections. An append that another task waits for ends as OutcomeUnknown."""
        await self._io.close()
        if not self._io.has_lost_loop:
            self._joiner.send()

    def __await__(self) -> Generator[Any, None, Self]:
        """`await connect_async(...)` and `async with connect_async(...)` both give the client."""
        yield from ()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # ---------------------------------------------------------------- waiting

    async def _run(self, verb: Verb[T]) -> T:
        """Drive one verb to its outcome."""
        while True:
            try:
                step = next(verb)
            except StopIteration as end:
                outcome: T = end.value
                return outcome
            self._submit(step.new)
            for request in step.awaited:
                await self._io.wait(request)

    def _submit(self, requests: Sequence[Request]) -> None:
        if requests and requests[0].batch is not None:
            # Among appends, what was begun first is written first.
            self._joiner.send()
        self._io.submit(requests)

    def _results(
        self, reading: Reading[T], verb: str, first_index: object, stop_index: object = None
    ) -> AsyncResults[T]:
        described = self._described(verb, first_index, stop_index)
        return AsyncResults(
            self._parts(reading), lambda: self._io.cancel(reading.stop()), described, reading
        )

    async def _parts(self, reading: Reading[T]) -> AsyncGenerator[T]:
        try:
            while (part := await self._run(reading.next_part())) is not None:
                for result in part:
                    yield result
        finally:
            self._io.cancel(reading.stop())


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
) -> AsyncLedgerClient:
    """An asyncio client: `await connect_async(...)` or `async with connect_async(...) as client`.

    `on_leader_change` and `on_reconnect` as in `connect`, but called by the client's loop, and not to
    wait: whoever has more to do starts a task.
    """
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
    )
