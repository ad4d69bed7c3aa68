"""The handles that `log.machine(name)` and `log.reader(name)` return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quorumlog.batch import EntryBatch
from quorumlog.client.arguments import checked_machine, whole
from quorumlog.client.protocol.read_plan import DEFAULT_PREFETCH, READ_BATCH_BYTES
from quorumlog.client.reader_operations import GivenHold, ReaderState, hold_of, move
from quorumlog.client.reading import AsyncResults
from quorumlog.entry import AppendReceipt, Entry
from quorumlog.wire.client_messages import MoveReaderRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from quorumlog.client.async_client import AsyncLedgerClient


class AsyncMachineHandle:
    """A state machine of the group, as one client reaches it."""

    def __init__(self, client: AsyncLedgerClient, name: str) -> None:
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


class AsyncNamedReader:
    """Its reads begin at `position`; their options are those of the client's."""

    def __init__(self, client: AsyncLedgerClient, name: str, state: ReaderState) -> None:
        self._client = client
        self.name = name
        self._state = state

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

    def read(
        self,
        stop_index: int | None = None,
        *,
        limit: int | None = None,
        from_member: str | None = None,
    ) -> AsyncResults[Entry]:
        """As `LedgerClient.read`, from its `position` on."""
        return self._client.read(self.position, stop_index, limit=limit, from_member=from_member)

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
        return self._client.read_batches(
            self.position,
            stop_index,
            from_member=from_member,
            batch_bytes=batch_bytes,
            prefetch=prefetch,
        )

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
        return self._client.read_arrow(
            self.position,
            stop_index,
            columns=columns,
            from_member=from_member,
            batch_bytes=batch_bytes,
            prefetch=prefetch,
        )

    def tail(
        self, *, timeout_ms: int | None = None, from_member: str | None = None
    ) -> AsyncResults[Entry]:
        """As `LedgerClient.tail`, from its `position` on; waits for an end of the log that is below
        it."""
        return self._client.tail(
            self.position, wait=True, timeout_ms=timeout_ms, from_member=from_member
        )

    async def commit(
        self, index: int, *, last_chain: int | None = None, timeout_ms: int | None = None
    ) -> int:
        """Commit every entry below `index`; returns the reader's position once a majority has it: never
        lower than before. `last_chain`: of an archive, the `chain_crc` of its last entry, index - 1;
        with `retention = archived` a member deletes only entries of an archive that ends there with the
        chain of its own log. Raises UnknownReader if the reader was ended, IndexOutOfRange after the end
        of the log."""
        message = MoveReaderRequest(
            reader=self.name,
            position=whole("index", index),
            seen_index=self._state.known_index,
            last_chain=None if last_chain is None else whole("last_chain", last_chain),
        )
        return await self._moved(message, timeout_ms)

    async def seek(self, index: int, *, timeout_ms: int | None = None) -> int:
        """Move to `index`, forward or back. Raises ReaderMoved if the reader is no longer at `position`,
        or was elsewhere since; IndexOutOfRange if the entry may be deleted by now."""
        state = self._state
        message = MoveReaderRequest(
            reader=self.name,
            position=whole("index", index),
            seeks_from=state.position,
            last_index=state.last_index if state.last_index >= 0 else None,
        )
        return await self._moved(message, timeout_ms)

    async def note_skipped(
        self, first_index: int, stop_index: int, *, timeout_ms: int | None = None
    ) -> None:
        """The entries of [first_index, stop_index) were deleted before it reached them, and it skips
        them: they are counted in its row of `readers()`, once however often reported. It does not move.
        Nothing is counted while a member is of a release before this one. Raises UnknownReader,
        BadRequest for no range, IndexOutOfRange after the end of the log."""
        skipped = whole("first_index", first_index), whole("stop_index", stop_index)
        # Not tied to one log: a late copy of it changes nothing.
        await self._moved(MoveReaderRequest(reader=self.name, skipped=skipped), timeout_ms)

    async def end(self, *, timeout_ms: int | None = None) -> None:
        """Delete the reader with its hold. Raises UnknownReader, ReaderMoved if it was moved back
        meanwhile."""
        seen_index = self._state.known_index
        message = MoveReaderRequest(reader=self.name, ends=True, seen_index=seen_index)
        await move(self._client._sender, message, timeout_ms)

    async def _moved(self, message: MoveReaderRequest, timeout_ms: int | None) -> int:
        self._state = await move(self._client._sender, message, timeout_ms)
        return self.position
