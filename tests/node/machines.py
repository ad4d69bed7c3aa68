"""State machines that tests let members run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from quorumlog.errors import CommandError
from quorumlog.state_machine import Applied, SnapshotReader, SnapshotWriter, StateMachine


class Chain(StateMachine):
    """Remembers all that it was given, in order; a body that begins with "no" is refused."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes]] = []

    def command(self, body: bytes, index: int) -> bytes | None:
        if body.startswith(b"no"):
            raise CommandError(f"{body!r} is refused")
        self.taken.append((index, body))
        return b"%d:" % index + body

    def query(self, question: bytes) -> bytes:
        if question == b"digest":
            return hashlib.sha256(msgspec.msgpack.encode(self.taken)).digest()
        if question == b"bad":
            raise ValueError("not a question")
        return b"%d" % len(self.taken)

    def save(self, writer: SnapshotWriter) -> None:
        writer.write(msgspec.msgpack.encode(self.taken))

    def load(self, reader: SnapshotReader) -> None:
        self.taken = msgspec.msgpack.decode(reader.read(), type=list[tuple[int, bytes]])


class Sliced(Chain):
    """Saves one entry at a time, and remembers how many commands came between."""

    def __init__(self) -> None:
        super().__init__()
        self.between: list[int] = []
        self.is_saving = False
        self.on_slice: Callable[[], None] = lambda: None

    def save_slices(self, writer: SnapshotWriter) -> Iterator[None]:
        taken, self.is_saving = list(self.taken), True
        try:
            writer.write(msgspec.msgpack.encode(taken))
            for _ in taken:
                before = len(self.taken)
                self.on_slice()
                yield
                self.between.append(len(self.taken) - before)
        finally:
            self.is_saving = False


class Fragile(Chain):
    """Falls over a body that begins with "bug"."""

    def command(self, body: bytes, index: int) -> bytes | None:
        if body.startswith(b"bug"):
            raise ZeroDivisionError("a bug")
        return super().command(body, index)


class Disk:
    """What a `Lasting` machine has kept; outlives it."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes]] = []
        self.applied: Applied | None = None
        self.version: int | None = None


class Lasting(Chain):
    """Keeps its state with the entry that it follows from."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.taken = list(disk.taken)

    def apply(self, batch: Any, first_index: int) -> Any:
        results = super().apply(batch, first_index)
        self._disk.taken, self._disk.applied = list(self.taken), Applied.of_last(batch)
        return results

    def applied(self) -> Applied | None:
        return self._disk.applied

    def clear(self) -> None:
        self._disk.taken, self._disk.applied = [], None
        self.taken = []


class Recorder:
    """A factory that remembers what it made."""

    def __init__(self, make: Callable[[], StateMachine]) -> None:
        self._make = make
        self.version = getattr(make, "version", 1)
        self.made: list[Any] = []

    def __call__(self) -> StateMachine:
        self.made.append(self._make())
        return self.made[-1]
