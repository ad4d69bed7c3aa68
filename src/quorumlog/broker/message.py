"""Messages as applications send and get them, and the record that each is stored as."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.entry_header import Buffer
from quorumlog.errors import BadRequest, BodyTooLarge

# ---------------------------------------------------------------- What applications send and get
# Values.

MIB = 1 << 20
MAX_BODY_BYTES = 4 * MIB - 64 * 1024
"""Of a message that is taken in. Larger ones that are stored already are served all the same."""
MAX_PROPERTIES_BYTES = 32_767
RETRY_PROPERTIES_BYTES = 1024
"""Of these, for the properties of a retry: names of topics, a message id, a delay level."""
MAX_TOPIC_BYTES = 255

TAGS, KEYS, UNIQ_KEY, WAIT, DELAY = "TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY"
"""Names of properties, as Java has them."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""A queue for each delay level; its messages have the same delay, so the oldest is due first."""
_NAMED = frozenset((TAGS, KEYS, UNIQ_KEY, WAIT))


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send. `keys` are words without spaces, found again by `query`."""

    topic: str
    body: bytes
    tags: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    """Stored unchanged, for the application's own use."""
    wait: bool = True
    """False: acknowledge once it is written, without waiting for flush or slaves."""


class StoredMessage(NamedTuple):
    """A message in a store."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    """Of the whole record."""
    body: bytes
    tags: str
    keys: tuple[str, ...]
    properties: dict[str, str]
    """All of them, including tags and keys."""
    born_time_ms: int
    store_time_ms: int
    born_host: str
    store_host: str
    flag: int
    sys_flag: int
    reconsume_times: int
    prepared_transaction_offset: int
    message_id: str
    """Hexadecimal, of the store's address and the physical offset."""


class PutStatus(Enum):
    """Outcomes of a put, by RocketMQ's names."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Written, and not known to be on disk."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    """The store stops: the outcome is unknown."""


class PutMessageResult(NamedTuple):
    """The place of a batch: its messages are contiguous in the queue."""

    status: PutStatus
    queue_offset: int
    """Of the first message."""
    physical_offset: int
    message_count: int
    store_time_ms: int
    positions: npt.NDArray[np.int64] | None = None
    """Physical offset of each, where the records do not lie one right after the other."""


def properties_of(message: Message, uniq_key: str = "") -> str:
    """As they are stored: `name 0x01 value 0x02` for each. Raises ValueError."""
    if not (message.properties or message.tags or message.keys or uniq_key) and message.wait:
        return ""
    pairs = dict(message.properties)
    for name in pairs:
        if name in _NAMED:
            raise ValueError(f"the property {name} has an argument of its own")
    if message.tags:
        pairs[TAGS] = message.tags
    if message.keys:
        if isinstance(message.keys, str):
            raise ValueError(f"keys are a list of words, not one text: write keys=[{message.keys!r}]")
        if any(key.split() != [key] for key in message.keys):
            raise ValueError(f"keys are words without spaces, not {list(message.keys)!r}")
        pairs[KEYS] = " ".join(message.keys)
    if uniq_key:
        pairs[UNIQ_KEY] = uniq_key
    if not message.wait:
        pairs[WAIT] = "false"
    text = "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()])
    if text.count("\x01") != len(pairs) or text.count("\x02") != len(pairs) or "" in pairs:
        raise ValueError("a property has no name, or the character 0x01 or 0x02 in it")
    return text


def parse_properties(text: str) -> dict[str, str]:
    """Of a record; the last 0x02 may be missing, as written by some releases of RocketMQ."""
    pairs = (pair.partition("\x01") for pair in text.split("\x02") if pair)
    return {name: value for name, separator, value in pairs if separator}


# ---------------------------------------------------------------- One message record
# How it lies in a commit log, byte for byte as RocketMQ writes it (big-endian).
#
# offset  bytes  field               (both hosts IPv4; docs/message-store.md)
#      0      4  TOTALSIZE           of the whole record
#      4      4  MAGICCODE
#      8      4  BODYCRC             CRC-32 of the body, its highest bit cleared
#     12      4  QUEUEID
#     16      4  FLAG
#     20      8  QUEUEOFFSET         number of the message in its queue
#     28      8  PHYSICALOFFSET      of this record
#     36      4  SYSFLAG
#     40      8  BORNTIMESTAMP
#     48      8  BORNHOST            address and port; 20 bytes where sysFlag says IPv6
#     56      8  STORETIMESTAMP
#     64      8  STOREHOST           the same
#     72      4  RECONSUMETIMES
#     76      8  PREPAREDOFFSET
#     84    4+n  body
#         1|2+t  topic               two bytes of length with MAGIC_WIDE_TOPIC
#           2+p  properties

MAGIC = 0xDAA320A7
MAGIC_WIDE_TOPIC = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
"""Of the filler up to the end of a file."""
BLANK_BYTES = 8
NARROW_TOPIC_BYTES = 127

BORN_HOST_V6, STORE_HOST_V6 = 0x10, 0x20
"""Bits of sysFlag."""
V4_BYTES, V6_BYTES = 8, 20
V6_MORE_BYTES = V6_BYTES - V4_BYTES

QUEUE_OFFSET_AT = 20
BORN_HOST_AT = 48
BODY_LENGTH_AT = 84
LEAST_RECORD_BYTES = BODY_LENGTH_AT + 4 + 1 + 2
CRC_BITS = 0x7FFFFFFF

TRANSACTION_BITS = 0xC

_RECORD_HEAD = struct.Struct(">IIIiiqqiq8sq8siqi")
_SIZES = struct.Struct(">IIIiiqqiq")
_BEFORE_BODY = struct.Struct(">iqi")
"""RECONSUMETIMES, PREPAREDOFFSET, length of the body."""
_BLANK = struct.Struct(">II")
assert _RECORD_HEAD.size == BODY_LENGTH_AT + 4


def crc_of(body: Buffer) -> int:
    return crc32(body) & CRC_BITS


def blank_record(size_bytes: int) -> bytes:
    """The eight bytes that close a file of which so much is left."""
    return _BLANK.pack(size_bytes, BLANK_MAGIC)


def host_bytes(host: str, port: int) -> bytes:
    """Of an IPv4 address; zeros for any other."""
    try:
        return socket.inet_aton(host) + struct.pack(">i", port)
    except OSError:
        return bytes(V4_BYTES)


def host_text(data: bytes) -> str:
    family = socket.AF_INET if len(data) == V4_BYTES else socket.AF_INET6
    address = socket.inet_ntop(family, data[:-4])
    port = int.from_bytes(data[-4:], "big", signed=True)
    return f"{address}:{port}" if family == socket.AF_INET else f"[{address}]:{port}"


def message_id_of(store_host: bytes, physical_offset: int) -> str:
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def physical_offset_of(message_id: str) -> int:
    """Raises BadRequest."""
    try:
        data = bytes.fromhex(message_id)
        if len(data) not in (V4_BYTES + 8, V6_BYTES + 8):
            raise ValueError
    except ValueError:
        raise BadRequest(f"{message_id!r} is no message id: 32 or 56 hexadecimal digits") from None
    return int.from_bytes(data[-8:], "big", signed=True)


_TOPIC = re.compile("[0-9A-Za-z%|_-]*").fullmatch


def check_topic(topic: str) -> bytes:
    """Raises BadRequest: a topic is the name of a directory, too."""
    data = topic.encode()
    if not 0 < len(data) <= MAX_TOPIC_BYTES:
        raise BadRequest(f"a topic has 1 to {MAX_TOPIC_BYTES} bytes, not {len(data)}")
    if not _TOPIC(topic):
        raise BadRequest(f"the topic {topic!r} has characters other than letters, digits and % | _ -")
    return data


def topic_field(topic: bytes) -> tuple[int, bytes]:
    """The magic number of a record of this topic, and how the topic stands in it: its length first."""
    if len(topic) > NARROW_TOPIC_BYTES:
        return MAGIC_WIDE_TOPIC, len(topic).to_bytes(2, "big") + topic
    return MAGIC, len(topic).to_bytes(1, "big") + topic


def encode_records(
    messages: Sequence[Message],
    queue_id: int,
    born_time_ms: int,
    uniq_keys: Sequence[str] = (),
    born_host: bytes = bytes(V4_BYTES),
) -> tuple[bytearray, list[int]]:
    """Records of one topic, and their sizes; the store fills in its own fields. Raises BadRequest,
    BodyTooLarge."""
    if not messages:
        raise BadRequest("a batch has one message at least")
    topic = messages[0].topic
    magic, topic_data = topic_field(check_topic(topic))
    fixed = BODY_LENGTH_AT + 4 + len(topic_data) + 2
    out = bytearray()
    sizes = []
    no_host = bytes(V4_BYTES)
    pack = _RECORD_HEAD.pack
    for number, message in enumerate(messages):
        if message.topic != topic:
            raise BadRequest(f"a batch has one topic, not {topic!r} and {message.topic!r}")
        body = message.body
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(
                f"a body of {len(body)} bytes is above the limit of {MAX_BODY_BYTES} bytes; split it"
            )
        try:
            properties = properties_of(message, uniq_keys[number] if uniq_keys else "").encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"{error.object!r} is not UTF-8 text; write it in UTF-8") from None
        except ValueError as error:
            raise BadRequest(str(error)) from None
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise BadRequest(
                f"properties of {len(properties)} bytes are above the limit of {MAX_PROPERTIES_BYTES}"
            )
        size = fixed + len(body) + len(properties)
        crc = crc32(body) & CRC_BITS
        out += pack(
            size, magic, crc, queue_id, message.flag, 0, 0, 0, born_time_ms, born_host, 0, no_host, 0, 0,
            len(body),
        )  # fmt: skip
        out += body
        out += topic_data
        out += len(properties).to_bytes(2, "big")
        out += properties
        sizes.append(size)
    return out, sizes


class RecordParts(NamedTuple):
    """A record's numbers, and where in it the parts of any length lie."""

    size_bytes: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_time_ms: int
    store_time_at: int
    body_at: int
    body_bytes: int
    topic_at: int
    topic_bytes: int
    properties_at: int
    """They extend to the end."""


def parse_record(data: memoryview) -> RecordParts | None:
    """None: it has not the shape of one record. CRCs are not looked at."""
    stop = len(data)
    if stop < LEAST_RECORD_BYTES:
        return None
    head = _SIZES.unpack_from(data)
    size, magic, sys_flag = head[0], head[1], head[7]
    if size != stop or magic not in (MAGIC, MAGIC_WIDE_TOPIC):
        return None
    store_time_at = BORN_HOST_AT + (V6_BYTES if sys_flag & BORN_HOST_V6 else V4_BYTES)
    store_bytes = V6_BYTES if sys_flag & STORE_HOST_V6 else V4_BYTES
    body_at = store_time_at + 8 + store_bytes + _BEFORE_BODY.size
    if body_at + 3 > stop:
        return None
    *_, body_bytes = _BEFORE_BODY.unpack_from(data, body_at - _BEFORE_BODY.size)
    length_at = body_at + body_bytes
    topic_at = length_at + (2 if magic == MAGIC_WIDE_TOPIC else 1)
    if body_bytes < 0 or topic_at > stop:
        return None
    topic_bytes = int.from_bytes(data[length_at:topic_at], "big")
    properties_at = topic_at + topic_bytes + 2
    if not topic_bytes or properties_at > stop:
        return None
    if properties_at + int.from_bytes(data[properties_at - 2 : properties_at], "big") != stop:
        return None
    places = store_time_at, body_at, body_bytes, topic_at, topic_bytes, properties_at
    return RecordParts._make((*head, *places))


def decode_record(data: Buffer) -> StoredMessage:
    """One whole record that was checked."""
    view = memoryview(data)
    parts = parse_record(view)
    assert parts is not None, "no record"
    born_host = bytes(view[BORN_HOST_AT : parts.store_time_at])
    reconsume_times, prepared, _ = _BEFORE_BODY.unpack_from(view, parts.body_at - _BEFORE_BODY.size)
    host_at = parts.store_time_at + 8
    store_host = bytes(view[host_at : parts.body_at - _BEFORE_BODY.size])
    properties = parse_properties(str(view[parts.properties_at :], "utf-8", "replace"))
    return StoredMessage(
        topic=str(view[parts.topic_at : parts.topic_at + parts.topic_bytes], "utf-8", "replace"),
        queue_id=parts.queue_id,
        queue_offset=parts.queue_offset,
        physical_offset=parts.physical_offset,
        size_bytes=parts.size_bytes,
        body=bytes(view[parts.body_at : parts.body_at + parts.body_bytes]),
        tags=properties.get(TAGS, ""),
        keys=tuple(properties.get(KEYS, "").split()),
        properties=properties,
        born_time_ms=parts.born_time_ms,
        store_time_ms=int.from_bytes(view[parts.store_time_at : host_at], "big", signed=True),
        born_host=host_text(born_host),
        store_host=host_text(store_host),
        flag=parts.flag,
        sys_flag=parts.sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        message_id=message_id_of(store_host, parts.physical_offset),
    )


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Raises BadRequest: they are too large."""
    pairs = "".join([f"{key}\x01{value}\x02" for key, value in properties.items()]).encode()
    if len(pairs) > MAX_PROPERTIES_BYTES:
        raise BadRequest(f"properties of {len(pairs)} bytes are above {MAX_PROPERTIES_BYTES}")
    return pairs


def properties_that_fit(properties: Mapping[str, str]) -> bytes:
    """All, or without the largest ones: values stored in another encoding may be longer as text."""
    left = dict(properties)
    while True:
        try:
            return encode_properties(left)
        except BadRequest:
            del left[max(left, key=lambda name: len(left[name].encode()))]


def encode_again(
    message: StoredMessage, topic: str, queue_id: int, properties: bytes, reconsume_times: int
) -> bytearray:
    """A stored message as the record of another queue: its body, flags, born time and host stay.
    `properties`: of `encode_properties`."""
    magic, topic_data = topic_field(check_topic(topic))
    host, _, port = message.born_host.rpartition(":")
    body, sys_flag = message.body, message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
    size = BODY_LENGTH_AT + 4 + len(body) + len(topic_data) + 2 + len(properties)
    head = _RECORD_HEAD.pack(
        *(size, magic, crc_of(body), queue_id, message.flag, 0, 0),
        *(sys_flag, message.born_time_ms, host_bytes(host, int(port)), 0, bytes(V4_BYTES)),
        *(reconsume_times, 0, len(body)),
    )
    return bytearray().join([head, body, topic_data, len(properties).to_bytes(2, "big"), properties])
