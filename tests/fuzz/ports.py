"""A raw connection to each port that a member opens to clients, and what is said on it."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from random import Random
from typing import Any

import msgspec
from isal.isal_zlib import crc32

from quorumlog.batch import EntryBatch
from quorumlog.broker.epochs import Epoch, Peer
from quorumlog.broker.group_commands import Command as GroupCommand
from quorumlog.broker.group_commands import Question as GroupQuestion
from quorumlog.broker.replication.links import (
    HaCodec,
    HaMessage,
    Hello1,
    Refuse1,
    SlaveLog,
    Start1,
    State1,
    Welcome1,
)
from quorumlog.broker.wire import GROUP, AnyBrokerMessage, GroupCommandRequest, GroupQuestionRequest
from quorumlog.kv import requests as store_messages
from quorumlog.kv.etcd import messages_pb2 as etcd_messages
from quorumlog.kv.etcd.http2 import PREFACE, frame, packed
from quorumlog.net.errors import ErrorResponse
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import BROKER, STORE, Hello, client_hello
from quorumlog.wire.client_messages import AnyClientMessage
from tests.fuzz.messages import BYTES, NUMBERS, TEXTS, messages_of, mutated

_TIMEOUT_S = 5.0


def control_frame(group: Any, fields: Any, batch: bytes = b"") -> bytes:
    """With right checksums, whatever it holds."""
    control = msgspec.msgpack.encode((group, fields))
    sizes = len(batch).to_bytes(4, "little") if batch else b""
    behind = crc32(batch, crc32(sizes)) if batch else 0
    size = 24 + len(control) + len(sizes) + len(batch)
    tail = b"".join(n.to_bytes(4, "little") for n in (behind, size, len(control), 1 if batch else 0))
    tail += control
    return b"QLG\x01" + crc32(tail).to_bytes(4, "little") + tail + sizes + batch


def requests_of(union: Any, random: Random) -> list[type[msgspec.Struct]]:
    """Answers, which no client sends, now and then."""
    return [
        kind
        for kind in messages_of(union)
        if not kind.__name__.endswith(("Response", "Answer")) or random.random() < 0.1
    ]


def said_to_log(random: Random, count: int) -> Iterator[bytes]:
    entry = bytes(EntryBatch.from_bodies([b"x"]).buffer)
    for kind in requests_of(Hello | ErrorResponse | AnyClientMessage, random):
        for fields in mutated(kind, random, count):
            group = random.choice(["default"] * 97 + ["", "nosuch", 7])
            yield control_frame(group, fields, random.choice([b"", b"", entry, b"\0" * 48, bytes(200)]))


def said_to_broker(random: Random, count: int) -> Iterator[bytes]:
    for kind in requests_of(AnyBrokerMessage, random):
        for fields in mutated(kind, random, count):
            yield control_frame(
                GROUP, fields, random.choice([b"", b"", bytes(91), random.randbytes(300)])
            )
    for outer, inner in ((GroupCommandRequest, GroupCommand), (GroupQuestionRequest, GroupQuestion)):
        for kind in messages_of(inner):
            for fields in mutated(kind, random, count):
                body = msgspec.msgpack.encode(fields)
                yield control_frame(GROUP, [outer.__struct_config__.tag, 1, body])


def said_to_store(random: Random, count: int) -> Iterator[bytes]:
    group = store_messages.GROUP
    for kind in [*messages_of(store_messages.Request), Hello, *messages_of(store_messages.Response)]:
        for fields in mutated(kind, random, count):
            yield control_frame(group, fields, random.choice([b"", b"", b"\0" * 48]))
    for outer, union in (
        (store_messages.CommandRequest, store_messages.Command),
        (store_messages.QuestionRequest, store_messages.Question),
    ):
        for message in messages_of(union):
            for number, fields in enumerate(mutated(message, random, count), 1):
                body = msgspec.msgpack.encode(fields)
                yield control_frame(group, [outer.__struct_config__.tag, number, body])
        for number, body in enumerate(BYTES, 1):
            yield control_frame(group, [outer.__struct_config__.tag, number, body])


def old_store_frame(number: int, kind: int, body: bytes) -> bytes:
    """Of an earlier release."""
    data = msgspec.msgpack.encode((number, kind, body))
    return len(data).to_bytes(4, "big") + data


def said_to_master(random: Random, count: int) -> Iterator[bytes]:
    """On the port for its slaves."""
    for message in requests_of(HaMessage, random):
        for fields in mutated(message, random, count):
            yield control_frame("replica", fields, random.choice([b"", b"", bytes(91)]))
    for kind, old in enumerate((Hello1, Welcome1, Start1, State1, Refuse1), start=1):
        for fields in mutated(old, random, count):
            yield old_frame(kind, msgspec.msgpack.encode(fields))
    fitting = [number for number in NUMBERS if -(2**63) <= number < 2**63]
    for _ in range(count):
        yield old_frame(8, struct.pack(">qqqq", *random.choices(fitting, k=4)))
    for kind in range(10):
        for body in BYTES:
            yield old_frame(kind, body)


def old_frame(kind: int, body: bytes) -> bytes:
    return (1 + len(body)).to_bytes(4, "big") + bytes([kind]) + body


def ha_greeting(random: Random) -> bytes:
    """Of a slave that may follow: what comes behind it is looked at."""
    slave = Peer(id="fuzz", directory_id="f", address="127.0.0.1:1", ha_address="127.0.0.1:2")
    asks = SlaveLog(
        slave=slave,
        promised=Epoch(),
        runs=[],
        max_offset=0,
        file_bytes=random.choice((65536, 1 << 30)),
        release="fuzz",
    )
    return b"".join(HaCodec().encode(asks))


GATEWAY_FIELDS = (
    *(
        "key",
        "value",
        "range_end",
        "rangeEnd",
        "lease",
        "prev_kv",
        "limit",
        "revision",
        "ID",
        "TTL",
        "keys",
    ),
    *(
        "sort_order",
        "sort_target",
        "serializable",
        "ignore_value",
        "physical",
        "min_mod_revision",
        "name",
    ),
)


def said_to_gateway(random: Random, count: int, paths: Sequence[str]) -> Iterator[bytes]:
    values: list[Any] = [
        *NUMBERS,
        *map(str, NUMBERS),
        *TEXTS,
        "YQ==",
        True,
        None,
        1.5,
        [],
        {},
        [{}],
        "NaN",
    ]
    parts = [
        {"request_put": {"key": "YQ=="}},
        {"requestRange": {"key": 7}},
        {"request_txn": {}},
        {},
        7,
        None,
    ]
    for path in paths:
        for _ in range(count):
            given: Any = {random.choice(GATEWAY_FIELDS): random.choice(values) for _ in range(3)}
            given.setdefault("key", "YQ==")
            if path.endswith("txn"):
                given = {
                    "compare": [{"key": "YQ==", "target": random.choice(values), "version": "1"}],
                    "success": random.choices(parts, k=2),
                }
            if path.endswith("watch"):
                given = {"create_request": given, "cancel_request": random.choice(values)}
            body = random.choice([json.dumps(given)] * 9 + ["[" * 5000, "\ud800", "7", "{"]).encode(
                errors="surrogatepass"
            )
            yield b"POST %s HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s" % (
                path.encode(),
                len(body),
                body,
            )
    yield from BYTES
    for length in (b"-1", b"99999999999999999999", b"x"):
        yield b"POST /v3/kv/put HTTP/1.1\r\nhost: h\r\ncontent-length: " + length + b"\r\n\r\n{}"


LOG_GREETING = b"".join(map(bytes, encode_frame("default", Hello(role="client"))))
STORE_GREETING = b"".join(map(bytes, encode_frame(store_messages.GROUP, client_hello(STORE))))
BROKER_GREETING = b"".join(map(bytes, encode_frame(GROUP, client_hello(BROKER))))


GRPC_GREETING = PREFACE + frame(4, 0, 0)


def said_to_grpc(random: Random, count: int) -> Iterator[bytes]:
    """Calls with messages whose fields hold anything, and frames of HTTP/2 that hold anything."""
    stream = 1
    for service in etcd_messages.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            kind = getattr(etcd_messages, method.input_type.name)
            headers = packed(
                [
                    (":method", "POST"),
                    (":path", f"/etcdserverpb.{service.name}/{method.name}"),
                    ("content-type", "application/grpc"),
                ]
            )
            for _ in range(count):
                data = anything(kind, random).SerializeToString()
                if random.random() < 0.2:
                    data = data[: random.randrange(len(data) + 1)] + random.choice(BYTES)
                said = b"\0" + len(data).to_bytes(4, "big") + data
                flags = 1 if random.random() < 0.8 else 0
                yield frame(1, 4, stream, headers) + frame(0, flags, stream, said)
                if random.random() < 0.2:
                    payload = random.randbytes(random.choice((0, 4, 5, 6, 8, 20)))
                    yield frame(random.randrange(11), random.randrange(256), stream, payload)
                stream += 2


def anything(kind: Any, random: Random, depth: int = 0) -> Any:
    """A message of protobuf."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if random.random() < 0.4 or depth > 3:
            continue
        if field.message_type is not None:
            value = anything(getattr(etcd_messages, field.message_type.name), random, depth + 1)
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            value = random.choice(TEXTS if field.type == field.TYPE_STRING else BYTES)
        elif field.type == field.TYPE_BOOL:
            value = random.random() < 0.5
        else:
            value = random.choice((0, 1, 2, 7, 71, (1 << 31) - 1))
        if field.is_repeated:
            getattr(message, field.name).append(value)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(value)
        else:
            setattr(message, field.name, value)
    return message


def say(
    address: str,
    greeting: bytes,
    said: Iterator[bytes],
    batch: int = 20,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Sends all of it, some on each connection and dialled again where that is closed; answers are read
    and dropped. Returns how many connections it took. Raises OSError if nobody listens any more."""
    host, _, port = address.rpartition(":")
    connections, waiting = 0, list(said)
    while waiting:
        connections += 1
        sock = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=host)
        with closing(sock), suppress(OSError):
            sock.sendall(greeting)
            for _ in range(min(batch, len(waiting))):
                sock.sendall(waiting.pop())
                _drain(sock)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
    return connections


def _drain(sock: socket.socket) -> None:
    sock.setblocking(False)
    with suppress(BlockingIOError, ssl.SSLWantReadError):
        while sock.recv(1 << 16):
            pass
    sock.settimeout(_TIMEOUT_S)


Said = Callable[[Random, int], Iterator[bytes]]
