"""A store as its machine holds it, given commands one after the other, as a log would."""

from __future__ import annotations

from typing import Any, TypeVar

from quorumlog.batch import EntryBatch
from quorumlog.kv.requests import (
    Command,
    Compact,
    CompactAnswer,
    DeleteAnswer,
    DeleteRange,
    Grant,
    GrantAnswer,
    History,
    HistoryAnswer,
    Put,
    PutAnswer,
    Question,
    Range,
    RangeAnswer,
    Revoke,
    RevokeAnswer,
    StoreStats,
    StoreStatsAnswer,
    Txn,
    TxnAnswer,
    encode,
    read_answer,
)
from quorumlog.kv.store.machine import KeyValueMachine

KINDS: dict[type, Any] = {
    Put: PutAnswer,
    DeleteRange: DeleteAnswer,
    Range: RangeAnswer,
    Txn: TxnAnswer,
    Grant: GrantAnswer,
    Revoke: RevokeAnswer,
    Compact: CompactAnswer,
    History: HistoryAnswer,
    StoreStats: StoreStatsAnswer,
}
T = TypeVar("T")


class AppliedStore:
    def __init__(self, machine: KeyValueMachine | None = None, index: int = 0) -> None:
        self.machine = machine or KeyValueMachine()
        self.index = index

    def batch(self, *commands: Command) -> EntryBatch:
        """Of the log, to be applied next."""
        batch = EntryBatch.from_bodies([encode(command) for command in commands])
        batch.stamp(self.index + 1, 1, [0] * batch.count, 0)
        self.index += batch.count
        return batch

    def do_all(self, *commands: Command) -> list[bytes]:
        """As one batch of the log."""
        batch = self.batch(*commands)
        results = self.machine.apply(batch, self.index).results
        assert len(results) == batch.count
        return list(results)  # type: ignore[arg-type]

    def do(self, command: Command) -> Any:
        return read_answer(self.do_all(command)[0], KINDS[type(command)])[1]

    def ask(self, question: Question) -> Any:
        return read_answer(self.machine.query(encode(question)), KINDS[type(question)])[1]

    def get(self, key: bytes, revision: int = 0) -> bytes | None:
        kvs = self.ask(Range(key, revision=revision)).kvs
        return kvs[0].value if kvs else None

    @property
    def revision(self) -> int:
        return self.machine.keyspace.revision


class Saved:
    """What a machine is saved to, and loaded from again."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self._position = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def read(self, size_bytes: int = -1) -> bytes:
        stop = len(self.data) if size_bytes < 0 else self._position + size_bytes
        read, self._position = bytes(self.data[self._position : stop]), stop
        return read


def saved(machine: KeyValueMachine) -> bytes:
    writer = Saved()
    for _ in machine.save_slices(writer):
        pass
    return bytes(writer.data)
