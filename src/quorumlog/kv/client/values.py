"""Values and results, as clients pass and receive them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, get_args

import msgspec

from quorumlog.errors import ConfigError
from quorumlog.kv.errors import InvalidRequest, ValueUnreadable
from quorumlog.kv.requests import (
    FROM_KEY,
    DeleteAnswer,
    Event,
    KeyValue,
    Operation,
    PutAnswer,
    Range,
    RangeAnswer,
    Txn,
    TxnAnswer,
)

# ----------------------------------------------------------------
# How values become bytes, and of which type they are then.

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=bytes)
    """The values of a client: bytes without a codec."""
    V_co = TypeVar("V_co", default=bytes, covariant=True)
else:  # a default is Python 3.13's
    from typing import TypeVar

    V = TypeVar("V")
    V_co = TypeVar("V_co", covariant=True)

BytesLike = bytes | bytearray | memoryview | str
"""Values of a client of bytes."""
CodecName = Literal["bytes", "text", "json", "msgspec"]
Unreadable = Literal["raise", "raw", "skip"]
"""Handling of a value that the codec cannot read."""


class Codec(Protocol[V]):
    """Converts values; its exceptions are raised by the call."""

    def encode(self, value: V, /) -> bytes: ...

    def decode(self, data: bytes, /) -> V: ...


def utf8(text: str) -> bytes:
    """Raises InvalidRequest."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{text!r} is not valid Unicode ({error.reason}): give bytes") from None


class BytesCodec:
    """Values are bytes; text is accepted, too, as UTF-8."""

    def encode(self, value: BytesLike) -> bytes:
        if isinstance(value, str):
            return utf8(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise InvalidRequest(
            f"a value is bytes or text, not {type(value).__name__}; codec='json' accepts more"
        )

    def decode(self, data: bytes) -> bytes:
        return data


class TextCodec:
    """Values are text, stored as UTF-8."""

    def encode(self, value: str) -> bytes:
        if isinstance(value, str):
            return utf8(value)
        raise InvalidRequest(f"a value is text, not {type(value).__name__}; codec='json' accepts more")

    def decode(self, data: bytes) -> str:
        return data.decode()


class JsonCodec:
    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, data: bytes) -> Any:
        return msgspec.json.decode(data)


class MsgpackCodec:
    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)

    def decode(self, data: bytes) -> Any:
        return msgspec.msgpack.decode(data)


CODECS: dict[str, type[Codec[Any]]] = {
    "bytes": BytesCodec,
    "text": TextCodec,
    "json": JsonCodec,
    "msgspec": MsgpackCodec,
}


def codec_of(codec: CodecName | Codec[V]) -> Codec[V]:
    """Raises ConfigError."""
    if not isinstance(codec, str):
        if not (callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))):
            raise ConfigError(f"a codec has encode(value) and decode(data), unlike {codec!r}")
        return codec
    if codec not in CODECS:
        raise ConfigError(f"there is no codec {codec!r}; there are {', '.join(CODECS)}")
    return CODECS[codec]()


# ----------------------------------------------------------------
# What the calls of a client give, and how keys become bytes.

Key = str | bytes


def key_of(key: Key) -> bytes:
    """Raises InvalidRequest."""
    raw = utf8(key) if isinstance(key, str) else key
    if not isinstance(raw, bytes) or not raw:
        raise InvalidRequest(f"a key is text or bytes, at least one byte long, not {key!r}")
    return raw


def end_of_prefix(prefix: bytes) -> bytes:
    """The end of the range of keys with this prefix, excluded."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else FROM_KEY


def range_of(prefix: Key) -> tuple[bytes, bytes]:
    """(key, end) of the keys with this prefix; an empty prefix: all keys."""
    raw = utf8(prefix) if isinstance(prefix, str) else prefix
    return (raw, end_of_prefix(raw)) if raw else (FROM_KEY, FROM_KEY)


class Item(NamedTuple, Generic[V_co]):
    """A key at one revision."""

    key: bytes
    value: V_co
    """Decoded by the codec; None for a deletion, and if only keys were requested."""
    create_revision: int
    mod_revision: int
    version: int
    """Number of puts since the key was created; 0 for a deletion."""
    lease: int
    """0: no lease."""


class PutResult(NamedTuple, Generic[V_co]):
    revision: int
    previous: Item[V_co] | None
    """With `prev_kv`: the previous item; None: there was none."""


class DeleteResult(NamedTuple, Generic[V_co]):
    revision: int
    deleted: int
    """Number of deleted keys."""
    previous: list[Item[V_co]]
    """With `prev_kv`: the deleted items."""


class RangeResult(NamedTuple, Generic[V_co]):
    revision: int
    """Revision of the store."""
    items: list[Item[V_co]]
    more: bool
    """The limit has omitted some keys."""
    total: int
    """Number of keys in the range, regardless of the limit."""


class TxnResult(NamedTuple, Generic[V_co]):
    revision: int
    succeeded: bool
    """True: every comparison held and `then` was executed; else `otherwise`."""
    answers: list[PutResult[V_co] | DeleteResult[V_co] | RangeResult[V_co | None] | TxnResult[V_co]]
    """A response to each operation, in order."""


class Change(NamedTuple, Generic[V_co]):
    """A change of one key, as delivered by a watch."""

    item: Item[V_co | None]
    previous: Item[V_co] | None
    """The previous item, if the watch requests it."""
    is_deletion: bool

    @property
    def revision(self) -> int:
        return self.item.mod_revision


class Values(Generic[V]):
    """Converts the store's answers to results of calls. Raises ValueUnreadable depending on `errors`."""

    def __init__(self, codec: Codec[V], errors: Unreadable = "raise") -> None:
        """Raises ConfigError."""
        if errors not in get_args(Unreadable):
            raise ConfigError(f"errors is one of {', '.join(get_args(Unreadable))}, not {errors!r}")
        self.codec = codec
        self._errors = errors

    def item(self, kv: KeyValue) -> Item[V] | None:
        """None: it is skipped."""
        value: Any
        try:
            value = self.codec.decode(kv.value)
        except Exception as error:
            if self._errors == "skip":
                return None
            if self._errors == "raise":
                raise ValueUnreadable(
                    f"the value of {kv.key!r}, {kv.value[:40]!r} ({len(kv.value)} bytes), cannot be"
                    f" read by this client's codec ({error}); errors='raw' returns the bytes,"
                    " errors='skip' omits the item",
                    key=kv.key,
                    data=kv.value,
                ) from error
            value = kv.value
        return Item(kv.key, value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)

    def maybe(self, kv: KeyValue | None) -> Item[V] | None:
        return None if kv is None else self.item(kv)

    def items(self, kvs: list[KeyValue]) -> list[Item[V]]:
        return [item for kv in kvs if (item := self.item(kv)) is not None]

    def change(self, event: Event) -> Change[V] | None:
        """None: it is skipped."""
        item = without_value(event.kv) if event.is_deletion else self.item(event.kv)
        return None if item is None else Change(item, self.maybe(event.prev_kv), event.is_deletion)

    def put(self, revision: int, answer: PutAnswer) -> PutResult[V]:
        return PutResult(revision, self.maybe(answer.prev_kv))

    def deletion(self, revision: int, answer: DeleteAnswer) -> DeleteResult[V]:
        return DeleteResult(revision, answer.deleted, self.items(answer.prev_kvs))

    def range(self, revision: int, answer: RangeAnswer, *, keys_only: bool = False) -> RangeResult[Any]:
        """A range's result; its values are of the codec's type, or None."""
        items: list[Item[Any]]
        items = [without_value(kv) for kv in answer.kvs] if keys_only else self.items(answer.kvs)
        return RangeResult(revision, items, answer.more, answer.count)

    def txn(self, revision: int, answer: TxnAnswer, request: Txn) -> TxnResult[V]:
        carried_out = request.success if answer.succeeded else request.failure
        answers = [
            self._one(revision, each, operation)
            for each, operation in zip(answer.answers, carried_out, strict=True)
        ]
        return TxnResult(revision, answer.succeeded, answers)

    def _one(
        self,
        revision: int,
        answer: PutAnswer | DeleteAnswer | RangeAnswer | TxnAnswer,
        operation: Operation,
    ) -> PutResult[V] | DeleteResult[V] | RangeResult[V | None] | TxnResult[V]:
        if isinstance(answer, PutAnswer):
            return self.put(revision, answer)
        if isinstance(answer, DeleteAnswer):
            return self.deletion(revision, answer)
        if isinstance(answer, RangeAnswer):
            keys_only = isinstance(operation, Range) and operation.keys_only
            return self.range(revision, answer, keys_only=keys_only)
        assert isinstance(operation, Txn), operation
        return self.txn(revision, answer, operation)


def without_value(kv: KeyValue) -> Item[None]:
    return Item(kv.key, None, kv.create_revision, kv.mod_revision, kv.version, kv.lease)
