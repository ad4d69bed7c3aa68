"""The handles that `log.machine(name)` and `log.reader(name)` return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from quorumlog.batch import EntryBatch
from quorumlog.client.arguments import checked_machine
from quorumlog.client.operations import ClientOperations
from quorumlog.client.protocol.read_plan import DEFAULT_PREFETCH, READ_BATCH_BYTES
from quorumlog.client.reader_operations import GivenHold, ReaderState, hold_of
from quorumlog.client.reading import AsyncResults
from quorumlog.client.result_streams import ClientOperation
from quorumlog.entry import AppendReceipt, Entry

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncOperations(Protocol):
    """Of an `AsyncLedgerClient`."""

    async def append(self, body: bytes, *, machine: str, timeout_ms: int | None) -> AppendReceipt: ...
    async def append_batch(
        self, bodies: Sequence[bytes] | EntryBatch, *, machine: str, timeout_ms: int | None
    ) -> AppendReceipt: ...
    async def ask(self, machine: str, question: bytes, *, timeout_ms: int | None) -> bytes: ...


class AsyncMachineHandle:
    """A state machine of the group, as one client reaches it."""

    def __init__(self, client: AsyncOperations, name: str) -> None:
        self._client = client
        self.name = checked_machine(name)

    async def append(self, command: bytes, *, timeout_ms: int | None = None) -> AppendReceipt:
        """See `AsyncLedgerClient.append`."""
        return await self._client.append(command, machine=self.name, timeout_ms=timeout_ms)

    async def append_batch(
        self, commands: Sequence[bytes] | EntryBatch, *, timeout_ms: int | None = None
    ) -> AppendReceipt:
        """See `AsyncLedgerClient.append_batch`."""
        return await self._client.append_batch(commands, machine=self.name, timeout_ms=timeout_ms)

    async def ask(self, question: bytes = b"", *, timeout_ms: int | None = None) -> bytes:
        """See `AsyncLedgerClient.ask`."""
        return await self._client.ask(self.name, question, timeout_ms=timeout_ms)


# ----------------------------------------------------------------
# `log.reader(name)`: a position in the log that the cluster keeps for readers of this name.
#
# Reading does not move it: a reader that has processed entries says so, with `commit`.


RunOperation = Callable[[ClientOperation[ReaderState]], Awaitable[ReaderState]]


class AsyncNamedReader:
    """Its reads begin at `position`; their options are those of the client's."""

    def __init__(
        self,
        name: str,
        state: ReaderState,
        operations: ClientOperations,
        run: RunOperation,
        results: Callable[..., Any],
    ) -> None:
        self.name = name
        self._state = state
        self._operations = operations
        self._run = run
        self._results_of = results

    @property
    def position(self) -> int:
        """Index of the next entry to read, as last known to this object."""
        return self._state.position

    @property
    def hold(self) -> GivenHold:
        """Keep entries that it has not read: True, unless deletion is forced; "archive", always."""
        return hold_of(self._state.hold)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} at {self.position}>"

    def _read(self, stop_index: int | None, limit: int | None, from_member: str | None) -> Any:
        reading = self._operations.read(self.position, stop_index, limit, from_member)
        return self._results_of(reading, "read", self.position, stop_index)

    def _read_batches(self, stop_index: int | None, from_member: str | None, **sizes: int) -> Any:
        reading = self._operations.read_batches(
            self.position, stop_index, from_member, heads=False, **sizes
        )
        return self._results_of(reading, "read_batches", self.position, stop_index)

    def _read_arrow(
        self,
        stop_index: int | None,
        columns: Sequence[str] | None,
        from_member: str | None,
        **sizes: int,
    ) -> Any:
        reading = self._operations.read_arrow(self.position, stop_index, from_member, columns, **sizes)
        return self._results_of(reading, "read_arrow", self.position, stop_index)

    def _tail(self, timeout_ms: int | None, from_member: str | None) -> Any:
        tail = self._operations.tail(self.position, from_member, wait=True, timeout_ms=timeout_ms)
        return self._results_of(tail, "tail", self.position)

    def read(
        self,
        stop_index: int | None = None,
        *,
        limit: int | None = None,
        from_member: str | None = None,
    ) -> AsyncResults[Entry]:
        """As `LedgerClient.read`, from its `position` on."""
        results: AsyncResults[Entry] = self._read(stop_index, limit, from_member)
        return results

    def __aiter__(self) -> AsyncResults[Entry]:
        return self.read()

    def read_batches(
        self,
        stop_index: int | None = None,
        *,
        from_member: str | None = None,
        batch_bytes: int = READ_BATCH_BYTES,
        prefetch: int = DEFAULT_PREFETCH,
    ) -> AsyncResults[EntryBatch]:
        """As `LedgerClient.read_batches`, from its `position` on."""
        sizes = {"batch_bytes": batch_bytes, "prefetch": prefetch}
        results: AsyncResults[EntryBatch] = self._read_batches(stop_index, from_member, **sizes)
        return results

    def read_arrow(
        self,
        stop_index: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        from_member: str | None = None,
        batch_bytes: int = READ_BATCH_BYTES,
        prefetch: int = DEFAULT_PREFETCH,
    ) -> AsyncResults[pa.RecordBatch]:
        """As `LedgerClient.read_arrow`, from its `position` on."""
        sizes = {"batch_bytes": batch_bytes, "prefetch": prefetch}
        results: AsyncResults[pa.RecordBatch]
        results = self._read_arrow(stop_index, columns, from_member, **sizes)
        return results

    def tail(
        self, *, timeout_ms: int | None = None, from_member: str | None = None
    ) -> AsyncResults[Entry]:
        """As `LedgerClient.tail`, from its `position` on; waits for an end of the log that is below
        it."""
        results: AsyncResults[Entry] = self._tail(timeout_ms, from_member)
        return results

    async def commit(
        self, index: int, *, last_chain: int | None = None, timeout_ms: int | None = None
    ) -> int:
        """Commit every entry below `index`; returns the reader's position once a majority has it: never
        lower than before. `last_chain`: of an archive, the `chain_crc` of its last entry, index - 1;
        with `retention = archived` a member deletes only entries of an archive that ends there with the
        chain of its own log. Raises UnknownReader if the reader was ended, IndexOutOfRange after the end
        of the log."""
        commit = self._operations.commit_reader(self.name, index, self._state, last_chain, timeout_ms)
        self._state = await self._run(commit)
        return self.position

    async def seek(self, index: int, *, timeout_ms: int | None = None) -> int:
        """Move to `index`, forward or back. Raises ReaderMoved if the reader is no longer at `position`,
        or was elsewhere since; IndexOutOfRange if the entry may be deleted by now."""
        seek = self._operations.seek_reader(self.name, index, self._state, timeout_ms)
        self._state = await self._run(seek)
        return self.position

    async def note_skipped(
        self, first_index: int, stop_index: int, *, timeout_ms: int | None = None
    ) -> None:
        """The entries of [first_index, stop_index) were deleted before it reached them, and it skips
        them: they are counted in its row of `readers()`, once however often reported. It does not move.
        Nothing is counted while a member is of a release before this one. Raises UnknownReader,
        BadRequest for no range, IndexOutOfRange after the end of the log."""
        self._state = await self._run(
            self._operations.skip_in_reader(self.name, first_index, stop_index, timeout_ms)
        )

    async def end(self, *, timeout_ms: int | None = None) -> None:
        """Delete the reader with its hold. Raises UnknownReader, ReaderMoved if it was moved back
        meanwhile."""
        await self._run(self._operations.end_reader(self.name, self._state, timeout_ms))
