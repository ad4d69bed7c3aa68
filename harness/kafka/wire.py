"""One connection to whatever speaks Kafka's protocol: any request in any version, as kio has them.

kio's own reader and writer are used, which the product does not: what both agree on is Kafka's.
"""

from __future__ import annotations

import io
import socket
import types
import typing
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

API_KEYS = {name: key for key, name in api_key_map.items()}
TIMEOUT_S = 120.0


class KafkaWire:
    def __init__(self, address: str, client_id: str = "wire") -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._received = self._socket.makefile("rb")
        self._numbers = count(1)
        self._client_id = client_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._received.close()
        self._socket.close()

    def shut_down(self) -> None:
        """Whoever waits for an answer on it gets EOFError."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def ask(self, name: str, version: int, **values: Any) -> Any:
        """kio's response. `name`: as `list_offsets`; fields that are messages are dicts."""
        number = self.send(name, version, **values)
        return self.receive(name, version, number)

    def send(self, name: str, version: int, **values: Any) -> int:
        """The number of the request."""
        kind = load_request_schema(API_KEYS[name], version)
        number = next(self._numbers)
        header = {
            "request_api_key": API_KEYS[name],
            "request_api_version": version,
            "correlation_id": number,
            "client_id": self._client_id,
        }
        out = io.BytesIO()
        header_kind: Any = kind.__header_schema__
        entity_writer(header_kind)(out, made(header_kind, header))
        entity_writer(kind)(out, made(kind, values))
        self.send_bytes(out.getvalue())
        return number

    def send_bytes(self, request: bytes) -> None:
        self._socket.sendall(len(request).to_bytes(4, "big") + request)

    def receive(self, name: str, version: int, number: int) -> Any:
        kind: Any = load_response_schema(API_KEYS[name], version)
        data = self.receive_bytes()
        header, size = entity_reader(kind.__header_schema__)(data, 0)
        assert header.correlation_id == number, (header, number)
        response, rest = entity_reader(kind)(data, size)
        assert size + rest == len(data), f"{name} {version}: bytes after the response"
        return response

    def receive_bytes(self) -> bytes:
        """Raises EOFError where the connection is closed instead."""
        size = int.from_bytes(self._read(4), "big")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = self._received.read(size)
        if len(data) < size:
            raise EOFError("closed by the server")
        return data


@cache
def _types_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def made(kind: Any, values: dict[str, Any]) -> Any:
    """kio's message of plain values; times are milliseconds."""
    given = {}
    for field in fields(kind):
        if field.name not in values:
            continue
        value = values.pop(field.name)
        kafka_type = field.metadata.get("kafka_type", "")
        inner = _message_in(_types_of(kind)[field.name])
        if value is None:
            pass
        elif inner is not None:
            value = (
                made(inner, dict(value))
                if isinstance(value, dict)
                else tuple(made(inner, dict(one)) for one in value)
            )
        elif kafka_type.startswith("timedelta"):
            value = timedelta(milliseconds=value)
        elif kafka_type.startswith("datetime"):
            value = datetime.fromtimestamp(value / 1_000, UTC)
        elif isinstance(value, list):
            value = tuple(value)
        given[field.name] = value
    assert not values, f"{kind.__name__} has no {', '.join(values)}"
    return kind(**given)


def _message_in(hint: Any) -> Any:
    if is_dataclass(hint):
        return hint
    if typing.get_origin(hint) in (tuple, types.UnionType, typing.Union):
        return next(filter(None, map(_message_in, typing.get_args(hint))), None)
    return None
