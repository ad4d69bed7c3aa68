"""Kafka's messages: bytes from outside to values, values to bytes, in every version.

The layout of messages comes from kio, whose dataclasses are generated from Kafka's own definitions. They
are used as a schema here. kio's own reader is not used: it allocates as many elements as an array
announces, regardless of the bytes that follow.

    request = decode(METADATA, 12, body)     request.topics[0].name; ints, str, bytes, uuid.UUID, None
    encode(METADATA, 12, {"topics": [...]})  fields that the version lacks are omitted;
                                             missing ones take their default

Records are received as views, and sent as buffers of their own: both ways without a copy. Times are
whole milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from datetime import datetime, timedelta
from functools import cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 10, 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, SASL_HANDSHAKE, API_VERSIONS = 15, 16, 17, 18
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, DESCRIBE_CONFIGS = 19, 20, 22, 32
SASL_AUTHENTICATE, CREATE_PARTITIONS, DELETE_GROUPS, DESCRIBE_CLUSTER = 36, 37, 42, 60

VERSIONS = {
    PRODUCE: (3, 12),
    FETCH: (4, 17),
    LIST_OFFSETS: (1, 7),
    METADATA: (0, 12),
    OFFSET_COMMIT: (2, 9),
    OFFSET_FETCH: (1, 9),
    FIND_COORDINATOR: (0, 5),
    JOIN_GROUP: (0, 9),
    HEARTBEAT: (0, 4),
    LEAVE_GROUP: (0, 5),
    SYNC_GROUP: (0, 5),
    DESCRIBE_GROUPS: (0, 5),
    LIST_GROUPS: (0, 4),
    SASL_HANDSHAKE: (0, 1),
    API_VERSIONS: (0, 3),
    CREATE_TOPICS: (2, 7),
    DELETE_TOPICS: (1, 6),
    INIT_PRODUCER_ID: (0, 4),
    DESCRIBE_CONFIGS: (1, 4),
    SASL_AUTHENTICATE: (0, 2),
    CREATE_PARTITIONS: (0, 3),
    DELETE_GROUPS: (0, 2),
    DESCRIBE_CLUSTER: (0, 1),
}
"""(lowest, highest) supported version by API key."""
ADVERTISED = {**VERSIONS, PRODUCE: (0, VERSIONS[PRODUCE][1])}
"""Announced as by Kafka: librdkafka compresses only if the oldest Produce version is announced."""

MOST_ELEMENTS = 25_000
"""Elements of all arrays of a request: the maximum number of partitions, and as many other elements."""

Values = Mapping[str, Any]
Take = Callable[["Cursor"], Any]
Put = Callable[["_Out", Any], None]

_NO_UUID = UUID(int=0)


class KafkaRequest(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: memoryview
    data: memoryview
    """The whole request without its size field."""

    @property
    def size_bytes(self) -> int:
        return len(self.data)


class Cursor:
    """A read position in a message. Its methods raise ProtocolViolation if bytes are missing."""

    __slots__ = ("data", "elements", "position")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0
        self.elements = 0
        """Elements of all arrays so far."""

    def unpack(self, kind: struct.Struct) -> Any:
        try:
            (value,) = kind.unpack_from(self.data, self.position)
        except struct.error:
            raise ProtocolViolation("a request ends in the middle") from None
        self.position += kind.size
        return value

    def take(self, size_bytes: int) -> memoryview:
        start = self.position
        if not 0 <= size_bytes <= len(self.data) - start:
            raise ProtocolViolation(f"{size_bytes} bytes in {len(self.data) - start}")
        self.position = start + size_bytes
        return self.data[start : self.position]

    def varint(self) -> int:
        """An unsigned varint of up to 32 bits."""
        value = shift = 0
        while shift < 35:
            byte: int = self.unpack(_UINT8)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ProtocolViolation("a number of more than 32 bits")

    def length(self, is_compact: bool, kind: struct.Struct) -> int:
        """-1: null."""
        size: int = self.varint() - 1 if is_compact else self.unpack(kind)
        return size

    def text(self, size_bytes: int) -> str:
        try:
            return str(self.take(size_bytes), "utf-8")
        except UnicodeDecodeError:
            raise ProtocolViolation("a string is not UTF-8") from None

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())


_UINT8, _INT16, _INT32 = struct.Struct(">B"), struct.Struct(">h"), struct.Struct(">i")
_INT64, _BOOL = struct.Struct(">q"), struct.Struct(">?")
_NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": _INT16,
    "uint16": struct.Struct(">H"),
    "int32": _INT32,
    "uint32": struct.Struct(">I"),
    "int64": _INT64,
    "float64": struct.Struct(">d"),
    "bool": _BOOL,
    "error_code": _INT16,
    "timedelta_i32": _INT32,
    "timedelta_i64": _INT64,
    "datetime_i64": _INT64,
}


def put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


class _Shape(NamedTuple):
    """The schema of a field."""

    name: str
    kind: str
    """The Kafka primitive type; empty: a struct."""
    entity: Any
    is_array: bool
    is_nullable: bool
    """The array's element, for an array."""
    tag: int
    """-1: not tagged."""
    default: Any


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) is not UnionType:
        return kind, False
    (inner,) = (each for each in get_args(kind) if each is not NoneType)
    return inner, True


def _shape_of(field: Field[Any]) -> _Shape:
    kind, is_nullable = _without_none(field.type)
    is_array = get_origin(kind) is tuple
    if is_array:
        kind, _ = _without_none(get_args(kind)[0])
    primitive = str(field.metadata.get("kafka_type", ""))
    default = None if field.default is MISSING else field.default
    if isinstance(default, timedelta):
        default = round(default.total_seconds() * 1000)
    elif isinstance(default, datetime):
        default = round(default.timestamp() * 1000)
    elif default is None and primitive == "datetime_i64":
        default = -1
    elif default is None and not is_nullable:
        zeros = {"string": "", "bytes": b"", "records": [], "uuid": _NO_UUID}
        default = () if is_array else zeros.get(primitive, 0)
    return _Shape(
        field.name,
        primitive,
        None if primitive else kind,
        is_array,
        is_nullable,
        int(field.metadata.get("tag", -1)),
        default,
    )


@cache
def _shapes_of(entity: Any) -> tuple[_Shape, ...]:
    return tuple(map(_shape_of, fields(entity)))


# ---------------------------------------------------------------- in


@cache
def _taker_of(entity: Any) -> Take:
    is_flexible: bool = entity.__flexible__
    shapes = _shapes_of(entity)
    plain = [(each.name, _take_field(each, is_flexible)) for each in shapes if each.tag < 0]
    tagged = {each.tag: (each.name, _take_field(each, is_flexible)) for each in shapes if each.tag >= 0}
    defaults = {each.name: each.default for each in shapes if each.tag >= 0}

    def take(cursor: Cursor) -> SimpleNamespace:
        values = SimpleNamespace(**defaults)
        for name, take_field in plain:
            setattr(values, name, take_field(cursor))
        if is_flexible:
            for _ in range(cursor.varint()):
                tag, data = cursor.varint(), cursor.take(cursor.varint())
                if tag in tagged:
                    name, take_field = tagged[tag]
                    setattr(values, name, take_field(Cursor(data)))
        return values

    return take


def _take_field(shape: _Shape, is_flexible: bool) -> Take:
    if not shape.is_array:
        return _take_one(shape, is_flexible, shape.is_nullable)
    take_one = _take_one(shape, is_flexible, False)

    def take(cursor: Cursor) -> list[Any] | None:
        count = cursor.length(is_flexible, _INT32)
        if count < 0 and shape.is_nullable:
            return None
        cursor.elements += count
        if count < 0 or cursor.elements > MOST_ELEMENTS:
            raise ProtocolViolation(f"{shape.name} has {count} elements")
        return [take_one(cursor) for _ in range(count)]

    return take


def _take_one(shape: _Shape, is_flexible: bool, is_nullable: bool) -> Take:
    if shape.entity is not None:
        assert not is_nullable, shape
        return _taker_of(shape.entity)
    number = _NUMBERS.get(shape.kind)
    if number is not None:
        return lambda cursor: cursor.unpack(number)
    if shape.kind == "uuid":
        return lambda cursor: UUID(bytes=bytes(cursor.take(16)))
    is_text = shape.kind == "string"
    kind = _INT16 if is_text else _INT32

    def take(cursor: Cursor) -> Any:
        size = cursor.length(is_flexible, kind)
        if size < 0:
            if not is_nullable and shape.kind != "records":
                raise ProtocolViolation(f"{shape.name} is missing")
            return None
        if is_text:
            return cursor.text(size)
        data = cursor.take(size)
        return data if shape.kind == "records" else bytes(data)

    return take


def header_of(data: memoryview) -> KafkaRequest:
    """Raises ProtocolViolation."""
    cursor = Cursor(data)
    api_key, version = cursor.unpack(_INT16), cursor.unpack(_INT16)
    correlation_id, size = cursor.unpack(_INT32), cursor.unpack(_INT16)
    client_id = cursor.text(size) if size >= 0 else ""
    if api_key not in VERSIONS:
        raise ProtocolViolation(f"API key {api_key} of Kafka's protocol is not supported here")
    low, high = VERSIONS[api_key]
    if not low <= version <= high:
        if api_key != API_VERSIONS:
            raise ProtocolViolation(
                f"version {version} of Kafka's API {api_key} is not supported, only {low} to {high}"
            )
    elif is_flexible(api_key, version):
        cursor.skip_tags()
    return KafkaRequest(api_key, version, correlation_id, client_id, data[cursor.position :], data)


@cache
def is_flexible(api_key: int, version: int) -> bool:
    return load_request_schema(api_key, version).__flexible__


def decode(api_key: int, version: int, body: memoryview) -> Any:
    """The fields of a request, as attributes. Raises ProtocolViolation."""
    return _taker_of(load_request_schema(api_key, version))(Cursor(body))


# ---------------------------------------------------------------- out


class _Out(bytearray):
    """A body without its records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[int, list[Buffer]]] = []
        """(position, bytes) of the records in the body."""

    def buffers(self) -> list[Buffer]:
        if not self.records:
            return [self]
        found: list[Buffer] = []
        start, view = 0, memoryview(self)
        for position, records in self.records:
            found += (view[start:position], *records)
            start = position
        return [*found, view[start:]]


@cache
def _putter_of(entity: Any) -> Callable[[_Out, Values], None]:
    is_flexible: bool = entity.__flexible__
    shapes = _shapes_of(entity)
    plain = [(each.name, each.default, _put_field(each, is_flexible)) for each in shapes if each.tag < 0]
    tagged = sorted(
        (each.tag, each.name, each.default, _put_field(each, is_flexible))
        for each in shapes
        if each.tag >= 0
    )

    def put(out: _Out, values: Values) -> None:
        for name, default, put_field in plain:
            put_field(out, values.get(name, default))
        if not is_flexible:
            return
        given = [each for each in tagged if values.get(each[1], each[2]) != each[2]]
        put_varint(out, len(given))
        for tag, name, _, put_field in given:
            inner = _Out()
            put_field(inner, values[name])
            put_varint(out, tag)
            put_varint(out, len(inner))
            out += inner

    return put


def _put_length(out: _Out, size: int, is_compact: bool, kind: struct.Struct) -> None:
    """`size` -1: null."""
    if is_compact:
        put_varint(out, size + 1)
    else:
        out += kind.pack(size)


def _put_field(shape: _Shape, is_flexible: bool) -> Put:
    put_one = _put_one(shape, is_flexible)
    if not shape.is_array:
        return put_one

    def put(out: _Out, values: Any) -> None:
        _put_length(out, -1 if values is None else len(values), is_flexible, _INT32)
        for each in values or ():
            put_one(out, each)

    return put


def _put_one(shape: _Shape, is_flexible: bool) -> Put:
    if shape.entity is not None:
        return _putter_of(shape.entity)
    number = _NUMBERS.get(shape.kind)
    if number is not None:
        pack = number.pack
        return lambda out, value: out.extend(pack(value))
    if shape.kind == "uuid":
        return lambda out, value: out.extend((value or _NO_UUID).bytes)
    if shape.kind == "records":
        return lambda out, value: _put_records(out, value, is_flexible)
    is_text = shape.kind == "string"
    kind = _INT16 if is_text else _INT32

    def put(out: _Out, value: Any) -> None:
        data = value.encode() if is_text and value is not None else value
        _put_length(out, -1 if data is None else len(data), is_flexible, kind)
        out += data or b""

    return put


def _put_records(out: _Out, buffers: list[Buffer], is_flexible: bool) -> None:
    """They are not copied."""
    _put_length(out, sum(map(len, buffers)), is_flexible, _INT32)
    if buffers:
        out.records.append((len(out), buffers))


def encode(api_key: int, version: int, values: Values) -> list[Buffer]:
    """The body of a response; records are given as a list of buffers."""
    out = _Out()
    _putter_of(load_response_schema(api_key, version))(out, values)
    return out.buffers()


# ---------------------------------------------------------------- of a client


def encoded_request(api_key: int, version: int, correlation_id: int, values: Values) -> bytes:
    """Size, header and body."""
    out = _Out()
    name = b"quorumlog"
    out += struct.pack(">hhih", api_key, version, correlation_id, len(name)) + name
    if is_flexible(api_key, version):
        out += b"\0"
    _putter_of(load_request_schema(api_key, version))(out, values)
    return _INT32.pack(len(out)) + out


def decoded_response(api_key: int, version: int, data: bytes) -> Any:
    """The fields of a response, as attributes. `data`: the response without its size field. Raises
    ProtocolViolation."""
    cursor = Cursor(memoryview(data))
    cursor.take(4)
    if is_flexible(api_key, version):
        cursor.skip_tags()
    return _taker_of(load_response_schema(api_key, version))(cursor)


def assigned(assignment: bytes) -> dict[str, list[int]]:
    """Assigned partitions by topic; empty if the assignment is not in the consumer protocol's format."""
    cursor = Cursor(memoryview(assignment))
    try:
        cursor.take(2)
        found = {}
        for _ in range(cursor.unpack(_INT32)):
            name = cursor.text(cursor.unpack(_INT16))
            found[name] = [cursor.unpack(_INT32) for _ in range(cursor.unpack(_INT32))]
    except ProtocolViolation:
        return {}
    return found


# ---------------------------------------------------------------- all of them


def load() -> None:
    """Load the schemas of all supported messages. It takes a second: call it before clients connect."""
    for api_key, (low, high) in VERSIONS.items():
        for version in range(low, high + 1):
            _taker_of(load_request_schema(api_key, version))
            _putter_of(load_response_schema(api_key, version))


def response_head(request: KafkaRequest, body_bytes: int) -> bytes:
    """The size field and the header of a response."""
    # The response to ApiVersions has the old header: it is read by who does not know the version yet.
    has_tags = request.api_key != API_VERSIONS and is_flexible(request.api_key, request.version)
    head = struct.pack(">ii", 4 + has_tags + body_bytes, request.correlation_id)
    return head + b"\0" if has_tags else head


def api_versions(request: KafkaRequest) -> list[Buffer]:
    """A request of an unknown version gets the supported versions, in version 0 of the response."""
    low, high = VERSIONS[API_VERSIONS]
    is_known = low <= request.version <= high
    return encode(
        API_VERSIONS,
        request.version if is_known else 0,
        {
            "error_code": ErrorCode.none if is_known else ErrorCode.unsupported_version,
            "api_keys": [
                {"api_key": key, "min_version": first, "max_version": last}
                for key, (first, last) in ADVERTISED.items()
            ],
        },
    )
