"""State machines that members as processes run: named to them as `harness.machines:NAME`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from quorumlog import CommandError, StateMachine
from quorumlog.batch import EntryBatch
from quorumlog.state_machine import SnapshotReader, SnapshotWriter

PADDING_NAME = "QUORUMLOG_HARNESS_SNAPSHOT_BYTES"
"""In the environment of the members: how long what a `Padded` saves is."""
PADDED_FROM_NAME = "QUORUMLOG_HARNESS_PADDED_FROM"
"""There, too: from which command on."""
PIECE_BYTES = 1 << 20


class Digest(StateMachine):
    """Counts its commands, and has a digest of them in their order: members that differ show it."""

    def __init__(self) -> None:
        self.count = 0
        self.digest = b""

    def command(self, body: bytes, index: int) -> bytes | None:
        if body.startswith(b"no"):
            raise CommandError("refused")
        self.count += 1
        self.digest = hashlib.sha256(self.digest + b"%d:" % index + body).digest()
        return b"%d" % self.count

    def query(self, question: bytes) -> bytes:
        return b"%d %s" % (self.count, self.digest.hex().encode())

    def save(self, writer: SnapshotWriter) -> None:
        writer.write(self.count.to_bytes(8, "big") + self.digest.ljust(32))

    def load(self, reader: SnapshotReader) -> None:
        self.count = int.from_bytes(reader.read(8), "big")
        self.digest = reader.read(32).strip(b" ")


class Padded(Digest):
    """As one that keeps much on a disk of its own: it saves and loads that in pieces, and holds none."""

    def save_slices(self, writer: SnapshotWriter) -> Iterator[None]:
        self.save(writer)
        is_padded = self.count >= int(os.environ.get(PADDED_FROM_NAME, "0"))
        left_bytes = int(os.environ.get(PADDING_NAME, "0")) if is_padded else 0
        piece = os.urandom(PIECE_BYTES)
        while left_bytes > 0:
            writer.write(piece[:left_bytes])
            left_bytes -= PIECE_BYTES
            yield

    def load(self, reader: SnapshotReader) -> None:
        super().load(reader)
        while reader.read(PIECE_BYTES):
            pass


class Idle(StateMachine):
    """Does nothing, as cheaply as can be."""

    def apply(self, batch: EntryBatch, first_index: int) -> None:
        return None
