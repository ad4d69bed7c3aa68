"""What broken clients of Kafka say: made of kio's definitions, which are Kafka's."""

from __future__ import annotations

import io
import struct
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from quorumlog.kafka import codec
from tests.fuzz.messages import BYTES, TEXTS
from tests.kafka.batches import made_batch

_HEADER = {"correlation_id": 7, "client_id": "fuzz"}
_RECORDS = (b"", b"\0", made_batch([b"a", b"b"]), made_batch([b"a"], producer=(5, 0, 0)))


def said_to_kafka(random: Random, count: int) -> Iterator[bytes]:
    """Every request in every version: as it should be with odd values, or changed somewhere."""
    for key, (lowest, highest) in sorted(codec.VERSIONS.items()):
        for version in range(lowest, highest + 1):
            kind = load_request_schema(key, version)
            header_kind: Any = kind.__header_schema__
            header = header_kind(**{**_HEADER, "request_api_key": key, "request_api_version": version})
            for _ in range(count):
                out = io.BytesIO()
                entity_writer(header_kind)(out, header)
                entity_writer(kind)(out, _kafka_message(kind, random))
                yield from _changed(out.getvalue(), random)
    for data in BYTES:
        yield len(data).to_bytes(4, "big") + data
        yield data
    for size in (-1, 2**31 - 1, -(2**31)):
        yield size.to_bytes(4, "big", signed=True) + bytes(100)
    for key, version in ((18, 99), (-1, 0), (0, 0), (1, 3), (3, -1), (999, 0)):
        yield b"\0\0\0\x0a" + struct.pack(">hhih", key, version, 7, -1)


def _changed(request: bytes, random: Random) -> Iterator[bytes]:
    framed = bytearray(request)
    way = random.randrange(6)
    if way == 1:
        for _ in range(random.randint(1, 4)):
            framed[random.randrange(8, len(framed))] = random.randrange(256)
    elif way == 2:
        del framed[random.randrange(8, len(framed) + 1) :]
    elif way == 3:
        framed += random.randbytes(random.randint(1, 40))
    elif way == 4:
        position = random.randrange(8, len(framed))
        framed[position : position + 4] = random.choice((b"\xff" * 5, b"\x7f" + b"\xff" * 3, bytes(4)))
    elif way == 5:
        framed[8:] = random.randbytes(random.randint(0, 200))
    yield len(framed).to_bytes(4, "big") + framed


def _kafka_message(kind: Any, random: Random) -> Any:
    hints = typing.get_type_hints(kind)
    return kind(**{each.name: _kafka_value(each, hints[each.name], random) for each in fields(kind)})


def _kafka_value(field: Any, hint: Any, random: Random) -> Any:
    parts = typing.get_args(hint)
    if type(None) in parts:
        if random.random() < 0.2:
            return None
        (hint,) = (part for part in parts if part is not type(None))
        parts = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        one = parts[0]
        return tuple(_kafka_value(field, one, random) for _ in range(random.choice((0, 1, 1, 2))))
    if is_dataclass(hint):
        return _kafka_message(hint, random)
    name = field.metadata["kafka_type"]
    if name == "bool":
        return random.random() < 0.5
    if name == "string":
        return random.choice([*TEXTS, "t", "t", "g", "range", "consumer"])
    if name in ("bytes", "records"):
        return random.choice(
            [b"", b"\0", made_batch([b"a", b"b"]), made_batch([b"a"], producer=(5, 0, 0))]
        )
    if name == "uuid":
        return UUID(int=random.choice((0, 1, 2**128 - 1)))
    if name.startswith(("timedelta", "datetime")):
        milliseconds = random.choice((0, 1, 100, 10_000, -1))
        if name.startswith("timedelta"):
            return timedelta(milliseconds=milliseconds)
        return datetime.fromtimestamp(abs(milliseconds), UTC)
    if name == "error_code":
        return ErrorCode.none
    most = 2 ** (int(name.removeprefix("u").removeprefix("int")) - (not name.startswith("u"))) - 1
    least = 0 if name.startswith("u") else -most - 1
    return random.choice((0, 0, 1, 2, most, least if least else 3, -1 if least else 0))
