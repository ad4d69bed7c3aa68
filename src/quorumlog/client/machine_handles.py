"""`client.machine(name)`: one state machine, without naming it each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quorumlog.batch import EntryBatch
from quorumlog.client.arguments import checked_machine
from quorumlog.entry import AppendReceipt


class AsyncVerbs(Protocol):
    """Of an `AsyncLedgerClient`."""

    async def append(self, body: bytes, *, machine: str, timeout_ms: int | None) -> AppendReceipt: ...
    async def append_batch(
        self, bodies: Sequence[bytes] | EntryBatch, *, machine: str, timeout_ms: int | None
    ) -> AppendReceipt: ...
    async def ask(self, machine: str, question: bytes, *, timeout_ms: int | None) -> bytes: ...


class AsyncMachineHandle:
    """A state machine of the group, as one client reaches it."""

    def __init__(self, client: AsyncVerbs, name: str) -> None:
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
