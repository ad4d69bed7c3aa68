"""What comes back: what a state machine gives for a command, and for a question.

[0, revision, body]                 done; `revision` is that of the store then
[code, message, number]             refused, and nothing has changed
[452, message, 0]                   it was carried out, and its answer is too large
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from quorumlog.errors import LedgerError, ProtocolViolation, ResultUnknown
from quorumlog.kv.errors import Compacted, error_of
from quorumlog.kv.requests.limits import MAX_ANSWER_BYTES
from quorumlog.kv.requests.operations import KeyValue

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
    """Of the range, whatever the limit."""


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
    """All changes below are told, in this answer or before it."""
    events: list[Event] = []


class LeasesAnswer(msgspec.Struct, frozen=True, array_like=True, tag=21, gc=False):
    leases: list[tuple[int, int, int]] = []
    """(id, TTL in milliseconds, index of its grant)."""


class LeaseKeysAnswer(msgspec.Struct, frozen=True, array_like=True, tag=22, gc=False):
    ttl_ms: int = 0
    keys: list[bytes] = []


class StandAnswer(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    revision: int = 0
    compacted_revision: int = 0
    keys: int = 0
    leases: int = 0
    size_bytes: int = 0
    swept: bool = True
    """Nothing below the compacted revision lies in the engine any more."""


_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
TOO_LARGE = f"it was carried out; its answer is above {MAX_ANSWER_BYTES} bytes: give a limit"
CARRIED_OUT = _encode((ResultUnknown.code, TOO_LARGE, 0))
"""In the place of an answer that is larger. All members keep it for who repeats the command: these bytes
stay as they are."""
_head = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw, msgspec.Raw])


def done(revision: int, body: object) -> bytes:
    return _encode((DONE, revision, body))


def refused(error: LedgerError) -> bytes:
    number = error.compacted_revision if isinstance(error, Compacted) else 0
    return _encode((error.code, str(error), number))


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
