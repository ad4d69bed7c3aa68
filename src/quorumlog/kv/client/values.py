"""What the calls of a client give, and how values become bytes."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec

from quorumlog.errors import ConfigError
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests.answers import DeleteAnswer, Event, PutAnswer, RangeAnswer, TxnAnswer
from quorumlog.kv.requests.operations import FROM_KEY, KeyValue

Key = str | bytes


def _utf8(text: str) -> bytes:
    """Raises InvalidRequest."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{text!r} is no text of Unicode ({error.reason}): give bytes") from None


class Codec(Protocol):
    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class BytesCodec:
    """Values are bytes; text is taken, too, as UTF-8."""

    def encode(self, value: Any) -> bytes:
        if isinstance(value, str):
            return _utf8(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise InvalidRequest(
            f"a value is bytes or text, not {type(value).__name__}; codec='json' takes more"
        )

    def decode(self, data: bytes) -> Any:
        return data


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


CODECS: dict[str, type[BytesCodec] | type[JsonCodec] | type[MsgpackCodec]] = {
    "bytes": BytesCodec,
    "json": JsonCodec,
    "msgspec": MsgpackCodec,
}


def codec_of(codec: str | Codec) -> Codec:
    """Raises ConfigError."""
    if not isinstance(codec, str):
        return codec
    if codec not in CODECS:
        raise ConfigError(f"there is no codec {codec!r}; there are {', '.join(CODECS)}")
    return CODECS[codec]()


def key_of(key: Key) -> bytes:
    """Raises InvalidRequest."""
    given = _utf8(key) if isinstance(key, str) else key
    if not isinstance(given, bytes) or not given:
        raise InvalidRequest(f"a key is text or bytes, at least one byte long, not {key!r}")
    return given


def end_of_prefix(prefix: bytes) -> bytes:
    """Behind every key that begins so."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else FROM_KEY


def range_of(prefix: Key) -> tuple[bytes, bytes]:
    """(key, end) of all that begins so; an empty prefix is everything."""
    given = _utf8(prefix) if isinstance(prefix, str) else prefix
    return (given, end_of_prefix(given)) if given else (FROM_KEY, FROM_KEY)


class Item(NamedTuple):
    """A key at one revision."""

    key: bytes
    value: Any
    """As the codec reads it; None of a deletion, and where only keys were asked for."""
    create_revision: int
    mod_revision: int
    version: int
    lease: int


class PutResult(NamedTuple):
    revision: int
    previous: Item | None


class DeleteResult(NamedTuple):
    revision: int
    deleted: int
    previous: list[Item]


class RangeResult(NamedTuple):
    revision: int
    """Of the store."""
    items: list[Item]
    more: bool
    """The limit has cut some off."""
    total: int
    """How many there are, whatever the limit."""


class TxnResult(NamedTuple):
    revision: int
    succeeded: bool
    answers: list[PutResult | DeleteResult | RangeResult | TxnResult]


class Change(NamedTuple):
    """One key changed, as a watch tells it."""

    item: Item
    previous: Item | None
    """If the watch asks for it."""
    is_deletion: bool

    @property
    def revision(self) -> int:
        return self.item.mod_revision


class Values:
    """From the store's answers to what calls give."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def item(self, kv: KeyValue) -> Item:
        value = self.codec.decode(kv.value) if kv.version else None
        return Item(kv.key, value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)

    def maybe(self, kv: KeyValue | None) -> Item | None:
        return None if kv is None else self.item(kv)

    def change(self, event: Event) -> Change:
        return Change(self.item(event.kv), self.maybe(event.prev_kv), event.is_deletion)

    def put(self, revision: int, answer: PutAnswer) -> PutResult:
        return PutResult(revision, self.maybe(answer.prev_kv))

    def deletion(self, revision: int, answer: DeleteAnswer) -> DeleteResult:
        return DeleteResult(revision, answer.deleted, [self.item(kv) for kv in answer.prev_kvs])

    def range(self, revision: int, answer: RangeAnswer, *, keys_only: bool = False) -> RangeResult:
        of = self._without_value if keys_only else self.item
        return RangeResult(revision, [of(kv) for kv in answer.kvs], answer.more, answer.count)

    @staticmethod
    def _without_value(kv: KeyValue) -> Item:
        return Item(kv.key, None, kv.create_revision, kv.mod_revision, kv.version, kv.lease)

    def txn(self, revision: int, answer: TxnAnswer) -> TxnResult:
        answers = [self._one(revision, each) for each in answer.answers]
        return TxnResult(revision, answer.succeeded, answers)

    def _one(
        self, revision: int, answer: PutAnswer | DeleteAnswer | RangeAnswer | TxnAnswer
    ) -> PutResult | DeleteResult | RangeResult | TxnResult:
        if isinstance(answer, PutAnswer):
            return self.put(revision, answer)
        if isinstance(answer, DeleteAnswer):
            return self.deletion(revision, answer)
        if isinstance(answer, RangeAnswer):
            return self.range(revision, answer)
        return self.txn(revision, answer)
