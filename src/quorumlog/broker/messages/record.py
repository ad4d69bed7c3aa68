"""One message record: how it lies in a commit log, byte for byte as RocketMQ writes it (big-endian).

offset  bytes  field               (both hosts IPv4; docs/message-store.md)
     0      4  TOTALSIZE           of the whole record
     4      4  MAGICCODE
     8      4  BODYCRC             CRC-32 of the body, its highest bit cleared
    12      4  QUEUEID
    16      4  FLAG
    20      8  QUEUEOFFSET         number of the message in its queue
    28      8  PHYSICALOFFSET      of this record
    36      4  SYSFLAG
    40      8  BORNTIMESTAMP
    48      8  BORNHOST            address and port; 20 bytes where sysFlag says IPv6
    56      8  STORETIMESTAMP
    64      8  STOREHOST           the same
    72      4  RECONSUMETIMES
    76      8  PREPAREDOFFSET
    84    4+n  body
        1|2+t  topic               two bytes of length with MAGIC_WIDE_TOPIC
          2+p  properties
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence

from isal.isal_zlib import crc32

from quorumlog.broker.messages.message import (
    KEYS,
    MAX_BODY_BYTES,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    TAGS,
    Message,
    StoredMessage,
    parse_properties,
    properties_of,
)
from quorumlog.entry_header import Buffer
from quorumlog.errors import BadRequest, BodyTooLarge

MAGIC = 0xDAA320A7
MAGIC_WIDE_TOPIC = 0xDAA320AB
BLANK_MAGIC = 0xCBD43194
"""Of what fills a file up to its end."""
BLANK_BYTES = 8
NARROW_TOPIC_BYTES = 127

BORN_HOST_V6, STORE_HOST_V6 = 0x10, 0x20
"""Bits of sysFlag."""
V4_BYTES, V6_BYTES = 8, 20
V6_MORE_BYTES = V6_BYTES - V4_BYTES

QUEUE_OFFSET_AT = 20
SYS_FLAG_AT = 36
BORN_HOST_AT = 48
STORE_TIME_AT = 56
"""With a born host of IPv4, as what follows."""
STORE_HOST_AT = 64
BODY_LENGTH_AT = 84
LEAST_RECORD_BYTES = BODY_LENGTH_AT + 4 + 1 + 2
CRC_BITS = 0x7FFFFFFF

NOT_DISPATCHED = {0x4: "prepared", 0xC: "rolled back"}
TRANSACTION_BITS = 0xC

_HEAD = struct.Struct(">IIIiiqqiq8sq8siqi")
_SIZES = struct.Struct(">IIIiiqqiq")
_BLANK = struct.Struct(">II")
assert _HEAD.size == BODY_LENGTH_AT + 4


def crc_of(body: Buffer) -> int:
    return crc32(body) & CRC_BITS


def blank_record(size_bytes: int) -> bytes:
    """The eight bytes that close a file of which so much is left."""
    return _BLANK.pack(size_bytes, BLANK_MAGIC)


def host_bytes(host: str, port: int) -> bytes:
    """Of an IPv4 address; zeros stand for one that is none."""
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


def check_topic(topic: str) -> bytes:
    """Raises BadRequest: a topic is the name of a directory, too."""
    data = topic.encode()
    if not 0 < len(data) <= MAX_TOPIC_BYTES:
        raise BadRequest(f"a topic has 1 to {MAX_TOPIC_BYTES} bytes, not {len(data)}")
    if not all(c.isascii() and (c.isalnum() or c in "%|_-") for c in topic):
        raise BadRequest(f"the topic {topic!r} has characters other than letters, digits and % | _ -")
    return data


def encode_records(
    messages: Sequence[Message],
    queue_id: int,
    born_time_ms: int,
    uniq_keys: Sequence[str] = (),
    born_host: bytes = bytes(V4_BYTES),
) -> tuple[bytearray, list[int]]:
    """Records of one topic, and their sizes; the store fills in what only it knows. Raises BadRequest,
    BodyTooLarge."""
    if not messages:
        raise BadRequest("a batch has one message at least")
    topic = messages[0].topic
    topic_data = check_topic(topic)
    wide = len(topic_data) > NARROW_TOPIC_BYTES
    magic = MAGIC_WIDE_TOPIC if wide else MAGIC
    prefix = len(topic_data).to_bytes(2 if wide else 1, "big") + topic_data
    fixed = BODY_LENGTH_AT + 4 + len(prefix) + 2
    out = bytearray()
    sizes = []
    no_host = bytes(V4_BYTES)
    pack = _HEAD.pack
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
        out += prefix
        out += len(properties).to_bytes(2, "big")
        out += properties
        sizes.append(size)
    return out, sizes


def decode_record(data: Buffer) -> StoredMessage:
    """One whole record that was checked."""
    view = memoryview(data)
    size, magic, _, queue_id, flag, queue_offset, physical_offset, sys_flag, born_time_ms = (
        _SIZES.unpack_from(view)
    )
    at = BORN_HOST_AT
    born_bytes = V6_BYTES if sys_flag & BORN_HOST_V6 else V4_BYTES
    store_bytes = V6_BYTES if sys_flag & STORE_HOST_V6 else V4_BYTES
    born_host = bytes(view[at : at + born_bytes])
    at += born_bytes
    store_time_ms = int.from_bytes(view[at : at + 8], "big", signed=True)
    store_host = bytes(view[at + 8 : at + 8 + store_bytes])
    at += 8 + store_bytes
    reconsume_times, prepared, body_bytes = struct.unpack_from(">iqi", view, at)
    at += 16
    body = bytes(view[at : at + body_bytes])
    at += body_bytes
    width = 2 if magic == MAGIC_WIDE_TOPIC else 1
    topic_bytes = int.from_bytes(view[at : at + width], "big")
    at += width
    topic = str(view[at : at + topic_bytes], "utf-8", "replace")
    at += topic_bytes + 2
    properties = parse_properties(str(view[at:size], "utf-8", "replace"))
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        size_bytes=size,
        body=body,
        tags=properties.get(TAGS, ""),
        keys=tuple(properties.get(KEYS, "").split()),
        properties=properties,
        born_time_ms=born_time_ms,
        store_time_ms=store_time_ms,
        born_host=host_text(born_host),
        store_host=host_text(store_host),
        flag=flag,
        sys_flag=sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        message_id=message_id_of(store_host, physical_offset),
    )


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Raises BadRequest: they are too large."""
    pairs = "".join([f"{key}\x01{value}\x02" for key, value in properties.items()]).encode()
    if len(pairs) > MAX_PROPERTIES_BYTES:
        raise BadRequest(f"properties of {len(pairs)} bytes are above {MAX_PROPERTIES_BYTES}")
    return pairs


def properties_that_fit(properties: Mapping[str, str]) -> bytes:
    """All, or without the largest ones: what was stored in other bytes may be longer once it is text."""
    left = dict(properties)
    while True:
        try:
            return encode_properties(left)
        except BadRequest:
            del left[max(left, key=lambda name: len(left[name].encode()))]


def encode_again(
    message: StoredMessage,
    topic: str,
    queue_id: int,
    properties: bytes,
    reconsume_times: int,
) -> bytearray:
    """A stored message as the record of another queue: its body, flags, born time and host stay.
    `properties`: of `encode_properties`."""
    name = check_topic(topic)
    is_wide = len(name) > NARROW_TOPIC_BYTES
    host, _, port = message.born_host.rpartition(":")
    body = message.body
    size = BODY_LENGTH_AT + 4 + len(body) + 1 + is_wide + len(name) + 2 + len(properties)
    out = bytearray(
        _HEAD.pack(
            size,
            MAGIC_WIDE_TOPIC if is_wide else MAGIC,
            crc_of(body),
            queue_id,
            message.flag,
            0,
            0,
            message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
            message.born_time_ms,
            host_bytes(host, int(port)),
            0,
            bytes(V4_BYTES),
            reconsume_times,
            0,
            len(body),
        )
    )
    out += body
    out += len(name).to_bytes(2 if is_wide else 1, "big") + name
    out += len(properties).to_bytes(2, "big") + properties
    return out
