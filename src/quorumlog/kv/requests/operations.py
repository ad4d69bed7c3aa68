"""What is asked of the store. A command is one array, the body of one entry of the log; a question is
one array, too. Names and meanings are etcd's v3 API's.

    end == b""       the one key
    end == b"\0"     every key from `key` on
    else             key <= each < end
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Annotated

import msgspec
from sortedcontainers import SortedSet

from quorumlog.kv.errors import InvalidRequest
from quorumlog.wire.field_names import named_reason

NO_LEASE = 0
FROM_KEY = b"\0"
"""As an end: there is none."""

MOST = 2**63 - 1
"""Numbers have 63 bits, as etcd has them: the one behind each is a number, too."""
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Revision = Number
LeaseId = Number


class KeyValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key as it was at one revision."""

    key: bytes
    create_revision: int
    """Of the put that made it; 0 of a deletion."""
    mod_revision: int
    """Of the last change."""
    version: int
    """Counts the puts since it was made; 0 of a deletion."""
    value: bytes
    lease: int = NO_LEASE
    """That it ends with; 0: none."""


class Target(IntEnum):
    """What a comparison looks at, or results are sorted by."""

    VERSION = 0
    CREATE = 1
    MOD = 2
    VALUE = 3
    LEASE = 4
    KEY = 5
    """For sorting only."""


class Relation(IntEnum):
    EQUAL = 0
    GREATER = 1
    LESS = 2
    NOT_EQUAL = 3


class Compare(msgspec.Struct, frozen=True, array_like=True):
    """Of every key in the range: each must be so. A key that is not there has 0 everywhere, and no value
    that could be compared."""

    key: bytes
    target: Target
    relation: Relation
    than: int | bytes
    end: bytes = b""


class Put(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    key: bytes
    value: bytes
    lease: LeaseId = NO_LEASE
    prev_kv: bool = False
    """Answer with what it was before."""
    keeps_value: bool = False
    """Only its lease changes; the key must exist."""
    keeps_lease: bool = False


class DeleteRange(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    key: bytes
    end: bytes = b""
    prev_kv: bool = False


class Range(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    key: bytes
    end: bytes = b""
    limit: Number = 0
    """0: none."""
    revision: Revision = 0
    """0: the newest."""
    sort_by: Target = Target.KEY
    descending: bool = False
    keys_only: bool = False
    count_only: bool = False
    min_mod: Revision = 0
    max_mod: Revision = 0
    min_create: Revision = 0
    max_create: Revision = 0
    without_count: bool = False
    """How many there are costs a look at each, which who reads a page after the other does not want."""


class Txn(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """One of the two lists is carried out, at one revision."""

    compare: list[Compare] = []
    success: list[Put | DeleteRange | Range | Txn] = []
    failure: list[Put | DeleteRange | Range | Txn] = []


class Grant(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    ttl_ms: Number
    lease: LeaseId = 0
    """0: the index of the entry becomes its id."""


class Revoke(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The lease ends, and the keys that are attached to it with it. `granted_at`: only if it is the one
    of this grant; 0: whichever has the id."""

    lease: LeaseId
    granted_at: Number = 0


class Compact(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """History below `revision` goes. `leads`: of the leader, whose wish may be late; it is no error
    then."""

    revision: Revision
    leads: bool = False


Operation = Put | DeleteRange | Range | Txn
Command = Put | DeleteRange | Txn | Grant | Revoke | Compact


def writes(operation: Operation) -> bool:
    if isinstance(operation, Txn):
        return any(writes(each) for each in (*operation.success, *operation.failure))
    return not isinstance(operation, Range)


# Questions: they change nothing.


class History(msgspec.Struct, frozen=True, array_like=True, tag=20, gc=False):
    """Changes of the keys of a range from a revision on, some at a time, whole revisions each."""

    first_revision: Revision
    key: bytes
    end: bytes = b""
    limit_bytes: int = 1 << 20
    prev_kv: bool = True


class Leases(msgspec.Struct, frozen=True, array_like=True, tag=21, gc=False):
    """All that stand."""


class LeaseKeys(msgspec.Struct, frozen=True, array_like=True, tag=22, gc=False):
    """The keys that are attached to a lease."""

    lease: LeaseId


class Stand(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    """How far the store is, and how large."""


Question = Range | Txn | History | Leases | LeaseKeys | Stand

encode = msgspec.msgpack.Encoder().encode
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
TOO_DEEP = "transactions are nested too deeply"


def encoded(asked: object) -> bytes:
    """Of what a caller has given. Raises InvalidRequest."""
    try:
        return encode(asked)
    except (OverflowError, TypeError) as error:
        raise InvalidRequest(f"{asked!r:.200} cannot be sent: {error}") from None


def decode_command(body: bytes | memoryview) -> Command:
    """Raises InvalidRequest."""
    try:
        return _commands.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = TOO_DEEP if isinstance(error, RecursionError) else error
        raise InvalidRequest(f"no command of the key-value store: {reason}") from None


def decode_command_of_client(body: bytes) -> Command:
    """Before it is an entry. Of an entry the refusal is a result, and all releases give the same. Raises
    InvalidRequest."""
    try:
        return _commands.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = TOO_DEEP if isinstance(error, RecursionError) else named_reason(error, body, Command)
        raise InvalidRequest(f"no command of the key-value store: {reason}") from None


def decode_question(body: bytes) -> Question:
    """Raises InvalidRequest."""
    try:
        return _questions.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = TOO_DEEP if isinstance(error, RecursionError) else named_reason(error, body, Question)
        raise InvalidRequest(f"no question to the key-value store: {reason}") from None


decode_key_value = msgspec.msgpack.Decoder(KeyValue).decode


# ----------------------------------------------------------------
# WrittenKeys: what the operations of a transaction may write, so that none writes a key twice. There
# may be a hundred thousand of them: whatever is looked for lies in order.


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
