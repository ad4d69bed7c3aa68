"""What is asked of the store. A command is one array, the body of one entry of the log; a question is
one array, too. Names and meanings are etcd's v3 API's.

    end == b""       the one key
    end == b"\\0"     every key from `key` on
    else             key <= each < end
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

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
