"""The streams a state machine is saved to and loaded from: ordered bytes of unknown length."""

from __future__ import annotations

from typing import Protocol

from quorumlog.entry_header import Buffer


class SnapshotWriter(Protocol):
    def write(self, data: Buffer) -> None:
        """Any number of bytes at a time; `data` may be changed afterwards."""


class SnapshotReader(Protocol):
    def read(self, size_bytes: int = -1) -> bytes:
        """Exactly this many bytes, fewer only at the end; -1: all the rest. The bytes are verified: a
        damaged snapshot ends the load before they are returned."""
