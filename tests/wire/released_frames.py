"""What a release says on the wire of the log and writes as bodies of entries: one of each kind, each
field set to something other than its default, as lines `dialect name hexadecimal`.

Run with the sources of that release, this prints them:

    PYTHONPATH=RELEASE/src python tests/wire/released_frames.py > tests/fixtures/wire/RELEASE

so it uses nothing of the tests, and of the product only what that release has.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from enum import Enum
from itertools import count
from typing import Annotated, Any, get_args, get_origin

import msgspec


def kinds_of(union: Any) -> list[type[msgspec.Struct]]:
    """The structs of a union, in the order of their tags or names."""
    if get_origin(union) in (typing.Union, types.UnionType):
        return sorted(
            (each for part in get_args(union) for each in kinds_of(part)),
            key=lambda kind: (kind.__struct_config__.tag or 0, kind.__name__),
        )
    return [union]


class Filler:
    """Values that are all different where their type allows it, the same at each run."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def value(self, kind: Any, meta: Any = None) -> Any:
        origin = get_origin(kind)
        if origin is Annotated:
            return self.value(get_args(kind)[0], kind.__metadata__[0])
        if origin in (typing.Union, types.UnionType):
            return self.value(next(each for each in get_args(kind) if each is not type(None)), meta)
        if origin in (list, tuple):
            of = get_args(kind)
            each = of if origin is tuple and of[-1] is not ... else (of[0],)
            return origin(self.value(item) for item in each)
        if origin is dict:
            key, item = get_args(kind)
            return {self.value(key): self.value(item)}
        if origin is typing.Literal:
            return get_args(kind)[-1]
        if kind is bool:
            return True
        if kind is int:
            least = getattr(meta, "gt", None)
            return max(next(self._numbers), 0 if least is None else least + 1)
        if kind is float:
            return next(self._numbers) + 0.5
        if kind is str:
            return f"text{next(self._numbers)}"
        if kind is bytes:
            return next(self._numbers).to_bytes(getattr(meta, "min_length", None) or 4, "little")
        if issubclass(kind, Enum):
            return list(kind)[-1]
        if issubclass(kind, msgspec.Struct):
            return made(kind)
        if issubclass(kind, tuple):
            return kind(*(self.value(each) for each in typing.get_type_hints(kind).values()))
        raise TypeError(f"no value is known for {kind}")


def made(kind: type[Any], leave_out: tuple[str, ...] = ()) -> Any:
    values = Filler()
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [name for name in kind.__struct_fields__ if name not in leave_out]
    return kind(**{name: values.value(hints[name]) for name in fields})


def log_frames() -> Iterator[tuple[str, bytes]]:
    from quorumlog.batch import EntryBatch
    from quorumlog.net.frame import AnyFrameMessage, encode_frame

    batch = EntryBatch.from_bodies([b"first", b"the second"])
    batch.stamp(7, 3, [0, 53], 11)
    for kind in kinds_of(AnyFrameMessage):
        message = made(kind, ("batch", "sender"))
        yield kind.__name__, b"".join(encode_frame("orders", message))
        if "batch" in kind.__struct_fields__ or kind.__name__ in ("AppendRequest", "ReadResponse"):
            yield f"{kind.__name__}+batch", b"".join(encode_frame("orders", message, batch))


def greetings() -> Iterator[tuple[str, bytes]]:
    """Of the port of a broker; what else is said there may change."""
    from quorumlog.broker.wire import EarlierHello, EarlierHelloResponse, encode

    for name, kind in (("BrokerHello", EarlierHello), ("BrokerHelloResponse", EarlierHelloResponse)):
        yield name, b"".join(encode(made(kind)))


def store_frames() -> Iterator[tuple[str, bytes]]:
    from quorumlog.kv.requests import GROUP, Request, Response
    from quorumlog.net.frame import encode_frame

    for kind in (*kinds_of(Request), *kinds_of(Response)):
        yield kind.__name__, b"".join(encode_frame(GROUP, made(kind)))


def ha_frames() -> Iterator[tuple[str, bytes]]:
    from quorumlog.broker.replication import links as ha

    for kind in kinds_of(ha.HaMessage):
        yield kind.__name__, b"".join(ha.HaCodec().encode(made(kind)))


def control_bodies() -> Iterator[tuple[str, bytes]]:
    from quorumlog.log_state.control_entries import BODIES, encode_body

    for body in BODIES.values():
        yield body.__name__, encode_body(made(body))


def command_bodies() -> Iterator[tuple[str, bytes]]:
    from quorumlog.broker import group_commands
    from quorumlog.kv import requests as operations

    for dialect, union in (
        ("store", operations.Command),
        ("store", operations.Question),
        ("group", group_commands.Command),
        ("group", group_commands.Question),
    ):
        for kind in kinds_of(union):
            yield f"{dialect}.{kind.__name__}", msgspec.msgpack.encode(made(kind))


DIALECTS = {
    "log": log_frames,
    "greeting": greetings,
    "store": store_frames,
    "replica": ha_frames,
    "control": control_bodies,
    "command": command_bodies,
}

if __name__ == "__main__":
    for dialect, made_frames in DIALECTS.items():
        for name, data in made_frames():
            print(dialect, name, data.hex())
