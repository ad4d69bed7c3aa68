"""What clients did and what they were told, a JSON line an operation, and what the disks hold.

    {"client":"c0.1","op":"append_batch","value":17,"count":3,"call":..,"return":..,"ok":true,"index":812}
    {"client":"c0.2","op":"read","count":2,"call":..,"return":..,"ok":true,"index":811,
     "entries":[[812,"c0.1/17"]]}

A client numbers what it appends: the body that carries number 17 of `c0.1` begins with `c0.1/17`. `call`
and `return` are nanoseconds of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from quorumlog.entry import EntryKind
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk

READ, READ_TO_END, LAST_SEQUENCE = "read", "read_to_end", "last_sequence"

Log = list[str | None]
"""Values by index; None for an entry that no client appended (a no-op), and below where it begins."""


class Operation(msgspec.Struct, rename={"call_ns": "call", "return_ns": "return"}, gc=False):
    client: str
    op: str
    call_ns: int
    return_ns: int
    ok: bool | None
    """True: acknowledged, or the whole range was read; False: refused; None: the outcome is unknown."""
    value: int = -1
    """Number of the first appended value; -1 for a read. `last_sequence`: what it told."""
    count: int = 1
    """Values appended, or indices asked for (`read_to_end`: up to the last entry that came)."""
    index: int = -1
    """First index: acknowledged, or asked for by a read; -1: none is known."""
    entries: list[tuple[int, str]] = []
    """What a read returned: (index, value)."""
    parts: list[tuple[int, int]] = []
    """(first index, count) of an append that a crash has cut; empty: all of it lies together."""
    in_session: bool = False
    """Of a producer, whose sequences are the numbers of its values."""
    tries: int = 1
    """So often the program has asked for it."""

    @property
    def is_append(self) -> bool:
        return not self.is_read and self.op != LAST_SEQUENCE

    @property
    def is_read(self) -> bool:
        return self.op in (READ, READ_TO_END)

    @property
    def indices(self) -> list[int]:
        """Where its values lie, as it was told."""
        parts = self.parts or [(self.index, self.count)]
        return [first_index + i for first_index, count in parts for i in range(count)]

    @property
    def stop_index(self) -> int:
        """Behind its last value."""
        first_index, count = self.parts[-1] if self.parts else (self.index, self.count)
        return first_index + count

    def values(self) -> list[str]:
        return [value_name(self.client, self.value + i) for i in range(self.count)]


def value_name(client: str, number: int) -> str:
    return f"{client}/{number}"


def encode_body(name: str, padding_bytes: int) -> bytes:
    return name.encode() + b" " + b"." * padding_bytes


def decode_body(body: bytes) -> str:
    return body.partition(b" ")[0].decode()


class HistoryWriter:
    """Lines of one client process; its threads share it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._encoder = msgspec.json.Encoder()
        self._lock = threading.Lock()

    def record(self, operation: Operation) -> None:
        line = self._encoder.encode(operation) + b"\n"
        with self._lock:
            self._file.write(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._file.close()


def load_histories(paths: Iterable[Path]) -> list[Operation]:
    """All operations, file by file. Raises msgspec.DecodeError for a line that is none."""
    decoder = msgspec.json.Decoder(Operation)
    operations: list[Operation] = []
    for path in paths:
        with path.open("rb") as file:
            operations.extend(decoder.decode(line) for line in file)
    return operations


def load_log(data_dir: Path) -> tuple[int, Log]:
    """What a stopped member holds, and where that begins. Raises DirectoryDamaged."""
    with DirectoryReader(OsDisk(), str(data_dir)) as reader:
        begin_index = max(reader.ledger_begin_index, 0)
        log: Log = [None] * begin_index
        for batch in reader.batches(begin_index, reader.ledger_end_index + 1):
            kinds = batch.headers()["magic"].tolist()
            for kind, body in zip(kinds, batch.bodies(), strict=True):
                # The name stands at the front; long bodies are not worth a copy.
                named = kind == EntryKind.NORMAL
                log.append(decode_body(bytes(body[:64])) if named else None)
    return begin_index, log
