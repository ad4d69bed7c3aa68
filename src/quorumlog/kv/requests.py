"""Requests and responses of the key-value store."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from sortedcontainers import SortedSet

from quorumlog.errors import LedgerError, ProtocolViolation, ResultUnknown
from quorumlog.kv.errors import Compacted, InvalidRequest, KeyValueError, error_of
from quorumlog.log_state.users import Verifier
from quorumlog.net.errors import ErrorResponse
from quorumlog.net.frame import FrameDecoder
from quorumlog.net.hello import Challenge, ChallengeResponse, Hello, HelloResponse
from quorumlog.net.limits import GREETING_BYTES
from quorumlog.net.logins import DIGEST_BYTES, LOGIN_ID
from quorumlog.net.strangers import OtherSoftware
from quorumlog.wire.client_message import ClientMessage, Int
from quorumlog.wire.field_names import named_reason
from quorumlog.wire.nesting import REFUSAL, nested_deeper

# ----------------------------------------------------------------
# What is asked of the store. A command is one array, the body of one entry of the log; a question is
# one array, too. Names and meanings are etcd's v3 API's.
#
#     end == b""       the one key
#     end == b"\0"     every key from `key` on
#     else             key <= each < end

NO_LEASE = 0
FROM_KEY = b"\0"
"""As an end: there is none."""

MOST = 2**63 - 1
"""Numbers have 63 bits, as etcd has them: the one after each is a number, too."""
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
    """Field to compare, or to sort results by."""

    VERSION = 0
    CREATE = 1
    MOD = 2
    VALUE = 3
    LEASE = 4
    KEY = 5
    """For sorting only."""


FIELD_OF: dict[Target, Callable[[KeyValue], Any]] = {
    Target.VERSION: attrgetter("version"),
    Target.CREATE: attrgetter("create_revision"),
    Target.MOD: attrgetter("mod_revision"),
    Target.VALUE: attrgetter("value"),
    Target.LEASE: attrgetter("lease"),
    Target.KEY: attrgetter("key"),
}


class Relation(IntEnum):
    EQUAL = 0
    GREATER = 1
    LESS = 2
    NOT_EQUAL = 3


class Compare(msgspec.Struct, frozen=True, array_like=True):
    """Holds if every key of the range satisfies it. An absent key has 0 in all numbers, and no
    comparable value."""

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
    """Return the previous item."""
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
    """Do not count all matches, which costs a look at each; for readers of page after page."""


class Txn(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Executes one of the two lists, at one revision."""

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
    """All leases."""


class LeaseKeys(msgspec.Struct, frozen=True, array_like=True, tag=22, gc=False):
    """The keys that are attached to a lease."""

    lease: LeaseId


class StoreStats(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    """How far the store is, and how large."""


Question = Range | Txn | History | Leases | LeaseKeys | StoreStats

encode = msgspec.msgpack.Encoder().encode
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)


def encoded(value: object) -> bytes:
    """Of a caller's value. Raises InvalidRequest."""
    try:
        return encode(value)
    except (OverflowError, TypeError) as error:
        raise InvalidRequest(f"{value!r:.200} cannot be sent: {error}") from None


def decode_command(body: bytes | memoryview) -> Command:
    """Of an entry: the refusal is a result, and all releases give the same. Raises InvalidRequest."""
    try:
        return _decoded(_commands, body, "no command of")
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"no command of the key-value store: {error}") from None


_last: tuple[bytes, Command | None] = (b"", None)
"""Of a client: its check and its handler both decode it."""


def decode_command_of_client(body: bytes) -> Command:
    """Before it is an entry. Raises InvalidRequest."""
    global _last
    last, command = _last
    if last is body and command is not None:
        return command
    try:
        command = _decoded(_commands, body, "no command of")
        _last = body, command
        return command
    except msgspec.DecodeError as error:
        reason = named_reason(error, body, Command)
        raise InvalidRequest(f"no command of the key-value store: {reason}") from None


def decode_question(body: bytes) -> Question:
    """Raises InvalidRequest."""
    try:
        return _decoded(_questions, body, "no question to")
    except msgspec.DecodeError as error:
        reason = named_reason(error, body, Question)
        raise InvalidRequest(f"no question to the key-value store: {reason}") from None


def _decoded(decoder: msgspec.msgpack.Decoder[T], body: bytes | memoryview, what: str) -> T:
    """Raises DecodeError, and InvalidRequest of what is nested too deeply, decoded or not."""
    try:
        found = decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        _refuse_deep(body, what)
        raise
    if not (isinstance(found, Txn) and _is_flat(found, body)):
        _refuse_deep(body, what)
    return found


def _is_flat(txn: Txn, body: bytes | memoryview) -> bool:
    """It holds no other one, nor fields of a later release. `nested_deeper` looks at each value of a
    hundred puts, which would take a third of the time in which they are applied."""
    kinds = {*map(type, txn.success), *map(type, txn.failure)}
    return Txn not in kinds and encode(txn) == bytes(body)


def _refuse_deep(body: bytes | memoryview, what: str) -> None:
    if nested_deeper(body):
        raise InvalidRequest(f"{what} the key-value store: {REFUSAL}")


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
        """The keys that either writes; replaces both."""
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
    kinds = {*map(type, operations)}
    if Txn in kinds:
        written_by(operations)
        return
    if kinds == {Put} and len({each.key for each in operations if isinstance(each, Put)}) == len(
        operations
    ):
        return
    deleted = _deleted_by(operations)
    puts: set[bytes] = set()
    for operation in operations:
        if isinstance(operation, Put):
            key = operation.key
            _refuse_twice(key if key in puts or key in deleted else None)
            puts.add(key)


def written_by(operations: Sequence[Operation]) -> WrittenKeys:
    """The keys that they may write. Raises InvalidRequest where two of them write one key."""
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


# ----------------------------------------------------------------
# What makes a request valid, for the client that sends it and the member that appends it.

MAX_OPERATIONS = 128
"""Of a transaction: in its longest list, with those of the inner ones that lie on one path."""
MAX_REQUEST_BYTES = 1_572_864
"""1.5 MiB, as etcd has it."""
MAX_ANSWER_BYTES = 32 << 20
"""More would delay other messages to the client; a frame of twice it ends the connection."""
MAX_OPEN_RANGES = 8
"""Of a transaction that writes: every member builds its answer, and again at each start."""
MAX_RANGES = 2 * MAX_OPERATIONS
"""Of a transaction with those in it, also where they answer with little: nobody else is served while a
member looks over them."""
MAX_LIMIT = 10_000
"""Of a range: one above is none, as far as that goes."""
MAX_TTL_MS = 9_000_000_000_000
MAX_DEPTH = 8
"""Of transactions in transactions."""


def check(command: Command | Range, size_bytes: int) -> None:
    """Raises InvalidRequest."""
    if size_bytes > MAX_REQUEST_BYTES:
        raise InvalidRequest(
            f"a request of {size_bytes} bytes is above {MAX_REQUEST_BYTES}: write less at once"
        )
    if isinstance(command, Grant):
        if not 0 < command.ttl_ms <= MAX_TTL_MS:
            raise InvalidRequest(f"a TTL must be above 0 and at most {MAX_TTL_MS} ms")
    elif isinstance(command, Txn):
        _check_txn(command, MAX_DEPTH, MAX_OPERATIONS)
        open_ranges = _open_ranges(command)
        if open_ranges > MAX_OPEN_RANGES and writes(command):
            raise InvalidRequest(
                f"a transaction that writes has at most {MAX_OPEN_RANGES} ranges with no limit, or one"
                f" above {MAX_LIMIT}, and this one has {open_ranges}: give limits, or read in one that"
                " does not write"
            )
        ranges = _ranges(command)
        if ranges > MAX_RANGES:
            raise InvalidRequest(
                f"a transaction looks over at most {MAX_RANGES} ranges, comparisons and inner ones"
                f" included, and this one looks over {ranges}"
            )
    elif isinstance(command, Put | DeleteRange | Range):
        _check_operation(command, MAX_DEPTH, MAX_OPERATIONS)
    else:
        assert isinstance(command, Revoke | Compact), command


def _check_operation(operation: Operation, depth: int, most: int) -> None:
    if isinstance(operation, Txn):
        _check_txn(operation, depth - 1, most)
    elif not operation.key:
        raise InvalidRequest("a key is at least one byte")
    elif isinstance(operation, Put):
        if operation.keeps_value and operation.value:
            raise InvalidRequest("a put that keeps the value brings none")
        if operation.keeps_lease and operation.lease:
            raise InvalidRequest("a put that keeps the lease brings none")


def _check_txn(txn: Txn, depth: int, most: int) -> None:
    """`most`: operations that those around it leave, as etcd counts them."""
    if depth <= 0:
        raise InvalidRequest(f"transactions are nested deeper than {MAX_DEPTH}")
    longest = max(len(txn.compare), len(txn.success), len(txn.failure))
    if longest > most:
        raise InvalidRequest(
            f"a transaction has at most {MAX_OPERATIONS} operations in each of its lists, less the ones"
            " around an inner one"
        )
    for compare in txn.compare:
        check_compare(compare)
    for operations in (txn.success, txn.failure):
        for operation in operations:
            _check_operation(operation, depth, most - longest)
        check_written_once(operations)


def may_answer_much(command: Command | Operation) -> bool:
    """True if the answer may be larger than the request: it returns stored data."""
    if isinstance(command, Txn):
        return any(may_answer_much(each) for each in (*command.success, *command.failure))
    if isinstance(command, DeleteRange):
        return command.prev_kv and bool(command.end)
    return isinstance(command, Range) and bool(_open_ranges(command))


def _ranges(operation: Operation) -> int:
    """That it may look over."""
    if isinstance(operation, Txn):
        compared = sum(bool(each.end) for each in operation.compare)
        return compared + _most(_ranges, operation)
    return isinstance(operation, Range) and bool(operation.end)


def _open_ranges(operation: Operation) -> int:
    """That it may carry out, and that answer with whatever is there."""
    if isinstance(operation, Txn):
        return _most(_open_ranges, operation)
    return (
        isinstance(operation, Range)
        and bool(operation.end)
        and not operation.count_only
        and not 0 < operation.limit <= MAX_LIMIT
    )


def _most(count: Callable[[Operation], int], txn: Txn) -> int:
    return max(sum(map(count, txn.success)), sum(map(count, txn.failure)))


def check_compare(compare: Compare) -> None:
    if not compare.key:
        raise InvalidRequest("a key is at least one byte")
    wants_bytes = compare.target is Target.VALUE
    if compare.target is Target.KEY or isinstance(compare.than, bytes) is not wants_bytes:
        raise InvalidRequest(f"{compare.target.name} cannot be compared with {compare.than!r}")


KeyBounds = tuple[bytes, bytes]


def contains(bounds: KeyBounds, key: bytes) -> bool:
    start, end = bounds
    if not end:
        return key == start
    return start <= key and (end == FROM_KEY or key < end)


# ---------------------------------------------------------------- What comes back
# What a state machine gives for a command, and for a question.
#
#     [0, revision, body]       done; `revision` is that of the store then
#     [code, message, number]   refused, and nothing has changed
#     [452, message, 0]         it was carried out, and its answer is too large

DONE = 0
T = TypeVar("T")


class PutAnswer(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    prev_kv: KeyValue | None = None


class DeleteAnswer(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    deleted: int = 0
    prev_kvs: list[KeyValue] = []


class RangeAnswer(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    kvs: list[KeyValue] = []
    more: bool = False
    """The limit has cut some off."""
    count: int = 0
    """Of the range, regardless of the limit."""


class TxnAnswer(msgspec.Struct, frozen=True, array_like=True, tag=4):
    succeeded: bool = False
    """Every comparison held."""
    answers: list[PutAnswer | DeleteAnswer | RangeAnswer | TxnAnswer] = []


class GrantAnswer(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    lease: int = 0
    ttl_ms: int = 0
    granted_at: int = 0


class RevokeAnswer(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    deleted: int = 0


class CompactAnswer(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    pass


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One key changed."""

    kv: KeyValue
    """After it; version 0: it was deleted."""
    prev_kv: KeyValue | None = None
    """Before it, where the watch asks for that and it is not compacted."""

    @property
    def is_deletion(self) -> bool:
        return self.kv.version == 0


class HistoryAnswer(msgspec.Struct, frozen=True, array_like=True, tag=20, gc=False):
    next_revision: int = 0
    """All changes below were sent, in this answer or before it."""
    events: list[Event] = []


class LeasesAnswer(msgspec.Struct, frozen=True, array_like=True, tag=21, gc=False):
    leases: list[tuple[int, int, int]] = []
    """(id, TTL in milliseconds, index of its grant)."""


class LeaseKeysAnswer(msgspec.Struct, frozen=True, array_like=True, tag=22, gc=False):
    ttl_ms: int = 0
    keys: list[bytes] = []


class StoreStatsAnswer(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    revision: int = 0
    compacted_revision: int = 0
    keys: int = 0
    leases: int = 0
    size_bytes: int = 0
    swept: bool = True
    """Nothing below the compacted revision lies in the engine any more."""


_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
TOO_LARGE = f"it was carried out; its answer is above {MAX_ANSWER_BYTES} bytes: give a limit"
CARRIED_OUT = encode((ResultUnknown.code, TOO_LARGE, 0))
"""In the place of an answer that is larger. All members keep it for repeated commands: these bytes must
not change."""
_head = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw, msgspec.Raw])


def done(revision: int, body: object) -> bytes:
    return encode((DONE, revision, body))


def refused(error: LedgerError) -> bytes:
    number = error.compacted_revision if isinstance(error, Compacted) else 0
    return encode((error.code, str(error), number))


def code_of(answer: bytes) -> int:
    """0: it is no refusal."""
    return 0 if answer[1:2] == b"\0" else _head.decode(answer)[0]


def read_answer(answer: bytes, kind: type[T]) -> tuple[int, T]:
    """(revision of the store, body). Raises KeyValueError, ResultUnknown, ProtocolViolation."""
    try:
        code, second, third = _head.decode(answer)
        if code != DONE:
            message = msgspec.msgpack.decode(second, type=str)
            raise error_of(code, message, msgspec.msgpack.decode(third, type=int))
        decoder = _decoders.get(kind)
        if decoder is None:
            decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
        return msgspec.msgpack.decode(second, type=int), decoder.decode(third)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"an answer of the key-value store is not one: {error}") from None


# ----------------------------------------------------------------
# What a client of an earlier release says first, and the answer to it.

UPGRADE = "this member speaks a newer protocol: upgrade the client"
_LENGTH, _HELLO, _ANSWER = 4, 0, 17
OLD_GREETING_BYTES = 1024
"""At most, after its length."""
_decode = msgspec.msgpack.Decoder(tuple[int, int, bytes]).decode


def words_to_old_client(problem: Exception) -> bytes | None:
    """See `LastWords`."""
    return answer_to_old_greeting(problem.received) if isinstance(problem, OtherSoftware) else None


def answer_to_old_greeting(received: bytes) -> bytes | None:
    """`received`: the first bytes of a connection. None: they are no such greeting, or a part of it."""
    size_bytes = int.from_bytes(received[:_LENGTH], "big")
    if not 0 < size_bytes <= OLD_GREETING_BYTES or len(received) < _LENGTH + size_bytes:
        return None
    try:
        number, kind, _ = _decode(received[_LENGTH : _LENGTH + size_bytes])
    except msgspec.DecodeError:
        return None
    if kind != _HELLO:
        return None
    refusal = msgspec.msgpack.encode((KeyValueError.code, UPGRADE, 0))
    answer = msgspec.msgpack.encode((number, _ANSWER, refusal))
    return len(answer).to_bytes(_LENGTH, "big") + answer


# ----------------------------------------------------------------
# What clients and the key-value store say to each other after the Hello: one request, one answer with
# its `request_id`. What a watch is told has the id of its request, until the watch is cancelled or an
# ErrorResponse ends it.

GROUP = "kv"
"""Of every frame on this port."""
MAX_FRAME_BYTES = 64 << 20
FROM_CLIENT_BYTES = 2 << 20
"""The largest message a member accepts: a request and its frame."""


class CommandRequest(ClientMessage, frozen=True, kw_only=True, tag=110):
    command: bytes
    """As `operations` has it: it becomes the body of an entry."""


class QuestionRequest(ClientMessage, frozen=True, kw_only=True, tag=111):
    question: bytes
    """As `operations` has it."""
    here: bool = False
    """Of this member, as far as it has applied; else the answer is linearizable."""


MOST_LEASES = 1_000
"""That one request keeps alive."""
MOST_WATCHED_BYTES = 16 << 10
"""Of a key that is watched, which the member remembers as long as the watch is open."""
WatchedKey = Annotated[bytes, msgspec.Meta(max_length=MOST_WATCHED_BYTES)]


class KeepAliveRequest(ClientMessage, frozen=True, kw_only=True, tag=112):
    """Answered with each lease's time left from when this was sent, in milliseconds; 0: expired."""

    passes_limits = True
    leases: Annotated[tuple[LeaseId, ...], msgspec.Meta(max_length=MOST_LEASES)]


class TimeToLiveRequest(ClientMessage, frozen=True, kw_only=True, tag=113):
    """Answered with (TTL, time left by the leader's clock, both in milliseconds, keys)."""

    lease: LeaseId


class StoreStatusRequest(ClientMessage, frozen=True, kw_only=True, tag=114):
    """Answered with StatusAnswer."""

    passes_limits = True


class WatchRequest(ClientMessage, frozen=True, kw_only=True, tag=115):
    of_watch = True
    key: WatchedKey
    end: WatchedKey = b""
    first_revision: Revision = 0
    """0: changes from now on."""
    prev_kv: bool = False
    puts: bool = True
    deletions: bool = True


class CancelRequest(ClientMessage, frozen=True, kw_only=True, tag=116):
    passes_limits = True
    is_answered = False
    watch: Int
    """Id of its request."""


class LoginRequest(ClientMessage, frozen=True, kw_only=True, tag=119):
    """Gives the user authenticated by password on this connection a token. Answered with True."""

    login_id: Annotated[str, msgspec.Meta(pattern=LOGIN_ID)]
    digest: Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    """SHA-256 of its secret."""
    verifier: Verifier
    """Of its secret, for SCRAM."""


class AnswerResponse(ClientMessage, frozen=True, kw_only=True, tag=117):
    answer: bytes
    """As `answers` has it."""


class EventsResponse(ClientMessage, frozen=True, kw_only=True, tag=118):
    """Of a watch. The first has no events and says that it has begun."""

    of_watch = True
    next_revision: Int
    """Every change below was sent."""
    events: list[Event]


class StatusAnswer(msgspec.Struct, frozen=True, array_like=True):
    member_id: str = ""
    cluster_id: str = ""
    role: str = ""
    term: int = 0
    leader_id: str = ""
    revision: int = 0
    compacted_revision: int = 0
    keys: int = 0
    leases: int = 0
    size_bytes: int = 0
    quota_bytes: int = 0
    watches: int = 0
    applied_index: int = 0
    release: str = ""
    """Of the member; empty: an earlier one, which does not say."""
    refuses: str = ""
    """Why this member has refused a change for want of space and would again; empty: it would not."""
    etcd_gateway: str = ""
    """URL of this member's JSON gateway for clients of etcd, if it has one."""
    etcd: str = ""
    """The same of its port for etcd's gRPC API."""


Request = (
    CommandRequest
    | QuestionRequest
    | KeepAliveRequest
    | TimeToLiveRequest
    | StoreStatusRequest
    | WatchRequest
    | CancelRequest
    | LoginRequest
)
R = TypeVar("R", bound=Request)
Response = AnswerResponse | EventsResponse | ErrorResponse

_of_client: Any = msgspec.msgpack.Decoder(tuple[str, Hello | ChallengeResponse | Request])
_of_member: Any = msgspec.msgpack.Decoder(tuple[str, HelloResponse | Challenge | Response])


def checked(request: R) -> R:
    """The caller's request, as a member accepts it. Raises InvalidRequest."""
    data = encoded(request)
    try:
        return msgspec.msgpack.decode(data, type=type(request))
    except msgspec.ValidationError as error:
        raise InvalidRequest(named_reason(error, data, type(request))) from None


_BY_TAG: dict[int, type] = {each.__struct_config__.tag: each for each in get_args(Command | Question)}


def operation_of(request: Request) -> type:
    """The operation's name: the kind of its command or question, where that is known."""
    if isinstance(request, CommandRequest | QuestionRequest):
        body = request.command if isinstance(request, CommandRequest) else request.question
        return _BY_TAG.get(body[1] if len(body) > 1 else 0, type(request))
    return type(request)


def size_bytes_of(request: Request) -> int:
    """Of its command or question."""
    if isinstance(request, CommandRequest):
        return len(request.command)
    if isinstance(request, KeepAliveRequest):
        return 8 * len(request.leases)
    return len(request.question) if isinstance(request, QuestionRequest) else 0


def request_decoder() -> FrameDecoder:
    return FrameDecoder(
        FROM_CLIENT_BYTES, _of_client, GREETING_BYTES, other_greeting_bytes=OLD_GREETING_BYTES
    )


def response_decoder() -> FrameDecoder:
    return FrameDecoder(MAX_FRAME_BYTES, _of_member)
