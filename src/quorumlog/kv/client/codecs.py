"""How values become bytes, and of which type they are then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from quorumlog.errors import ConfigError
from quorumlog.kv.errors import InvalidRequest

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=bytes)
    """The values of a client: bytes of one that is not told a codec."""
    V_co = TypeVar("V_co", default=bytes, covariant=True)
else:  # a default is Python 3.13's
    from typing import TypeVar

    V = TypeVar("V")
    V_co = TypeVar("V_co", covariant=True)

BytesLike = bytes | bytearray | memoryview | str
"""What a client of bytes takes."""
CodecName = Literal["bytes", "text", "json", "msgspec"]
Unreadable = Literal["raise", "raw", "skip"]
"""What becomes of a value that the codec cannot read."""


class Codec(Protocol[V]):
    """What a call raises for a value that it cannot make is what this raises."""

    def encode(self, value: V, /) -> bytes: ...

    def decode(self, data: bytes, /) -> V: ...


def utf8(text: str) -> bytes:
    """Raises InvalidRequest."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{text!r} is no text of Unicode ({error.reason}): give bytes") from None


class BytesCodec:
    """Values are bytes; text is taken, too, as UTF-8."""

    def encode(self, value: BytesLike) -> bytes:
        if isinstance(value, str):
            return utf8(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise InvalidRequest(
            f"a value is bytes or text, not {type(value).__name__}; codec='json' takes more"
        )

    def decode(self, data: bytes) -> bytes:
        return data


class TextCodec:
    """Values are text, in the store as UTF-8."""

    def encode(self, value: str) -> bytes:
        if isinstance(value, str):
            return utf8(value)
        raise InvalidRequest(f"a value is text, not {type(value).__name__}; codec='json' takes more")

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
