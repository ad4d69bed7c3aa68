"""The state machine of simulated members: its state holds the entries applied, with their order and
count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from zlib import crc32

import msgspec

from quorumlog.errors import CommandError
from quorumlog.state_machine import SnapshotReader, SnapshotWriter, StateMachine

DIGEST_NAME = "digest"
REFUSED = b"7"
"""A command whose body ends so is refused."""
SLICE_BYTES = 12
"""Saved at once: commands and crashes come between."""


def result_of(index: int, body: bytes) -> bytes | None:
    """The machine's result for a command at `index`; None: it refuses it."""
    return None if body.endswith(REFUSED) else b"%d:%d" % (index, crc32(body))


class DigestMachine(StateMachine):
    def __init__(self) -> None:
        self._count = 0
        self._digest = b""

    def command(self, body: bytes, index: int) -> bytes | None:
        result = result_of(index, body)
        if result is None:
            raise CommandError(f"command {index} is refused")
        self._count += 1
        self._digest = hashlib.sha256(self._digest + result).digest()
        return result

    def query(self, question: bytes) -> bytes:
        return b"%d" % self._count

    def save_slices(self, writer: SnapshotWriter) -> Iterator[None]:
        data = msgspec.msgpack.encode((self._count, self._digest))
        for start in range(0, len(data), SLICE_BYTES):
            writer.write(data[start : start + SLICE_BYTES])
            yield

    def load(self, reader: SnapshotReader) -> None:
        self._count, self._digest = msgspec.msgpack.decode(reader.read(), type=tuple[int, bytes])


class DigestWriter:
    """`SnapshotWriter` of which only the digest is left."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._hash.update(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
