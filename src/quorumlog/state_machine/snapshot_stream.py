"""What a state machine is saved to and loaded from: bytes in order, without an end that it need know."""

from __future__ import annotations

from typing import Protocol

from quorumlog.entry_header import Buffer


class SnapshotWriter(Protocol):
    def write(self, data: Buffer) -> None:
        """As much at once as is convenient, a few bytes or megabytes; `data` may change afterwards."""


class SnapshotReader(Protocol):
    def read(self, size_bytes: int = -1) -> bytes:
        """Exactly so many bytes, fewer only at the end; -1: all that is left. What comes is as it was
        written: a damaged snapshot ends the load before its bytes get here."""
