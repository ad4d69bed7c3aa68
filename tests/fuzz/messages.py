"""Requests as a broken or malicious client would send them: of every message, fields at their limits, of
another type, missing, or doubled; made of the definitions, so a new field is there at once."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from enum import Enum
from random import Random
from typing import Annotated, Any, get_args, get_origin

import msgspec

NUMBERS: Sequence[Any] = (
    0,
    1,
    -1,
    2,
    255,
    2**31,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64 - 1,
)
TEXTS: Sequence[Any] = ("", "default", "n0", "x" * 300, "\0", "~", "a,b=c", "..", "€" * 200)
BYTES: Sequence[Any] = (b"", b"\0", b"\0" * 16, b"x" * 20_000, b"\x93\x01\x02\x03", bytes(range(256)))
WRONG: Sequence[Any] = (
    "x" * 70_000,
    "x" * 70_000,
    None,
    True,
    1.5,
    float("nan"),
    [],
    {},
    [[[]]],
    "text",
    b"bytes",
    -7,
)


def messages_of(union: Any) -> list[type[msgspec.Struct]]:
    """Of a union of structs, or of a union's type alias."""
    if get_origin(union) in (typing.Union, types.UnionType):
        return [each for part in get_args(union) for each in messages_of(part)]
    return [union]


def valid(kind: Any, random: Random, depth: int = 0) -> Any:
    """Some value of the type, as MessagePack has it."""
    origin = get_origin(kind)
    if origin is Annotated:
        return valid(get_args(kind)[0], random, depth)
    if origin in (typing.Union, types.UnionType):
        return valid(random.choice(get_args(kind)), random, depth)
    if kind is int:
        return random.choice([n for n in NUMBERS if -(2**63) <= n < 2**63])
    if kind is str:
        return random.choice(TEXTS)
    if kind is bytes:
        return random.choice(BYTES)
    if kind is bool:
        return random.random() < 0.5
    if kind is float:
        return random.choice([0.0, -1.0, 1e300, 5.5])
    if kind is type(None):
        return None
    if origin in (list, tuple) and depth < 3:
        of = get_args(kind)
        if origin is tuple and of[-1:] != (...,):
            return [valid(each, random, depth + 1) for each in of]
        return [valid(of[0], random, depth + 1) for _ in range(random.choice([0, 1, 3]))]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and depth < 4:
        return as_sent(kind, fields_of(kind, random, depth + 1))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return random.choice([*(each.value for each in kind), 99])
    if isinstance(kind, type) and issubclass(kind, tuple):  # a NamedTuple
        return [valid(each, random, depth + 1) for each in typing.get_type_hints(kind).values()]
    return []


def fields_of(kind: type[msgspec.Struct], random: Random, depth: int = 0) -> list[Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    head = [kind.__struct_config__.tag] if kind.__struct_config__.tag is not None else []
    return head + [valid(hints[name], random, depth) for name in kind.__struct_fields__]


def as_sent(kind: type[msgspec.Struct], fields: list[Any]) -> Any:
    """An array, or a map of the kinds that go so."""
    if kind.__struct_config__.array_like:
        return fields
    return dict(zip(kind.__struct_fields__, fields, strict=False))


def mutated(kind: type[msgspec.Struct], random: Random, count: int) -> Iterator[Any]:
    """As they go over the wire: most of them decodable, the rest broken in one place."""
    for _ in range(count):
        fields = fields_of(kind, random)
        what = random.random()
        at = random.randrange(len(fields)) if fields else 0
        if what < 0.05 and fields:
            fields[at] = random.choice((*WRONG, *NUMBERS))
        elif what < 0.07:
            fields = fields[:at]
        elif what < 0.09:
            fields.append(random.choice(WRONG))
        yield as_sent(kind, fields)
