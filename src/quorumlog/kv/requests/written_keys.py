"""WrittenKeys: what the operations of a transaction may write, so that none writes a key twice. There
may be a hundred thousand of them: whatever is looked for lies in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from sortedcontainers import SortedSet

from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests.operations import FROM_KEY, DeleteRange, Operation, Put, Txn

Stop = tuple[bool, bytes]
"""(there is none, key)."""


class KeyRanges:
    """Ranges that do not touch, in order; those that were added are parts of them."""

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._stops: list[Stop] = []

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[bytes, Stop]]:
        return zip(self._starts, self._stops, strict=True)

    def __contains__(self, key: bytes) -> bool:
        place = bisect_right(self._starts, key) - 1
        return place >= 0 and (False, key) < self._stops[place]

    def add(self, start: bytes, stop: Stop) -> None:
        if stop <= (False, start):
            return
        first = bisect_left(self._stops, (False, start))
        behind = len(self._starts) if stop[0] else bisect_right(self._starts, stop[1])
        if first < behind:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[behind - 1])
        self._starts[first:behind] = [start]
        self._stops[first:behind] = [stop]


class WrittenKeys:
    def __init__(self, deleted: KeyRanges) -> None:
        self.puts: SortedSet[bytes] = SortedSet()
        self.deleted = deleted

    def join(self, other: WrittenKeys) -> WrittenKeys:
        """What either writes; neither is there any more."""
        if len(other.puts) > len(self.puts):
            self.puts, other.puts = other.puts, self.puts
        self.puts.update(other.puts)
        if len(other.deleted) > len(self.deleted):
            self.deleted, other.deleted = other.deleted, self.deleted
        for start, stop in other.deleted:
            self.deleted.add(start, stop)
        return self

    def least_put_in(self, ranges: KeyRanges) -> bytes | None:
        for start, stop in ranges:
            place = self.puts.bisect_left(start)
            if place < len(self.puts) and (False, self.puts[place]) < stop:
                return self.puts[place]
        return None


def check_written_once(operations: Sequence[Operation]) -> None:
    """Raises InvalidRequest where two of them write one key."""
    if any(isinstance(operation, Txn) for operation in operations):
        written_by(operations)
        return
    deleted = _deleted_by(operations)
    puts: set[bytes] = set()
    for operation in operations:
        if isinstance(operation, Put):
            key = operation.key
            _refuse_twice(key if key in puts or key in deleted else None)
            puts.add(key)


def written_by(operations: Sequence[Operation]) -> WrittenKeys:
    """What they may write. Raises InvalidRequest where two of them write one key."""
    written = WrittenKeys(_deleted_by(operations))
    for operation in operations:
        if isinstance(operation, Txn):
            # Only one of the two lists is carried out: they may write the same.
            inner = written_by(operation.success).join(written_by(operation.failure))
            _refuse_twice(next((key for key in inner.puts if key in written.puts), None))
            _refuse_twice(next((key for key in inner.puts if key in written.deleted), None))
            _refuse_twice(written.least_put_in(inner.deleted))
            written = written.join(inner)
    for operation in operations:
        if isinstance(operation, Put):
            key = operation.key
            _refuse_twice(key if key in written.puts or key in written.deleted else None)
            written.puts.add(key)
    return written


def _deleted_by(operations: Sequence[Operation]) -> KeyRanges:
    deleted = KeyRanges()
    for operation in operations:
        if isinstance(operation, DeleteRange):
            deleted.add(operation.key, _stop_of(operation))
    return deleted


def _stop_of(operation: DeleteRange) -> Stop:
    if not operation.end:
        return False, operation.key + b"\0"
    return (True, b"") if operation.end == FROM_KEY else (False, operation.end)


def _refuse_twice(key: bytes | None) -> None:
    if key is not None:
        raise InvalidRequest(f"a transaction writes the key {key!r} twice")
