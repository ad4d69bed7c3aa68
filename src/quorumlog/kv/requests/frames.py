"""How requests and answers lie on a connection: 4 bytes of length, then a MessagePack array.

    request    [number, kind, body]        body: bytes, of the kind
    answer     [number, kind, body]        the number is that of the request

The first request is HELLO. A watch has the number of the request that made it; what it tells comes with
that number until it is cancelled.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

from quorumlog.errors import ProtocolViolation

MAX_FRAME_BYTES = 64 << 20
FROM_CLIENT_BYTES = 2 << 20
"""What a member takes: a request and its frame."""
_LENGTH = 4
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Kind(IntEnum):
    # Requests.
    HELLO = 0
    COMMAND = 1
    READ = 2
    """A question; the answer is linearizable."""
    READ_HERE = 3
    """A question to this member, as far as it has applied."""
    KEEP_ALIVE = 4
    WATCH = 5
    CANCEL = 6
    STATUS = 7
    TIME_TO_LIVE = 8
    # Answers.
    WELCOME = 16
    ANSWER = 17
    """As `answers` has it."""
    ERROR = 18
    """An error of the log: encoded ErrorResponse."""
    EVENTS = 19
    """(next revision, events)."""
    ENDED = 20
    """Of a watch: (code, message, number)."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    version: Int64 = 1
    cluster_id: Annotated[str, msgspec.Meta(max_length=255)] = ""
    """Of what the client saw before; empty: nothing."""


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    version: int = 1
    cluster_id: str = ""
    member_id: str = ""
    election_timeout_ms: int = 0
    etcd_gateway: str = ""
    """URL of this member's gateway for clients of etcd, if it has one."""


class Watch(msgspec.Struct, frozen=True, array_like=True):
    key: bytes
    end: bytes = b""
    first_revision: Int64 = 0
    """0: what changes from now on."""
    prev_kv: bool = False
    puts: bool = True
    deletions: bool = True


class KeepAlive(msgspec.Struct, frozen=True, array_like=True):
    leases: list[Int64]


class StatusAnswer(msgspec.Struct, frozen=True, array_like=True):
    member_id: str = ""
    cluster_id: str = ""
    role: str = ""
    term: int = 0
    leader_id: str = ""
    revision: int = 0
    compacted_revision: int = 0
    keys: int = 0
    leases: int = 0
    size_bytes: int = 0
    quota_bytes: int = 0
    watches: int = 0
    applied_index: int = 0
    release: str = ""
    """Of the member; empty: an earlier one, which does not say."""
    refuses: str = ""
    """Why this member has refused a change for want of space and would again; empty: it would not."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, int, bytes]).decode


def frame(number: int, kind: Kind, body: bytes) -> bytes:
    data = _encode((number, kind, body))
    return len(data).to_bytes(_LENGTH, "big") + data


class FrameReader:
    """Sans-IO: bytes in, whole frames out."""

    def __init__(self, limit_bytes: int) -> None:
        self._buffer = bytearray()
        self._limit_bytes = limit_bytes

    def receive(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Raises ProtocolViolation."""
        buffer = self._buffer
        buffer += data
        frames = []
        start = 0
        while len(buffer) - start >= _LENGTH:
            size_bytes = int.from_bytes(buffer[start : start + _LENGTH], "big")
            if size_bytes > self._limit_bytes:
                raise ProtocolViolation(f"a frame of {size_bytes} bytes is above {self._limit_bytes}")
            stop = start + _LENGTH + size_bytes
            if len(buffer) < stop:
                break
            try:
                frames.append(_decode(memoryview(buffer)[start + _LENGTH : stop]))
            except msgspec.DecodeError as error:
                raise ProtocolViolation(f"no frame of the key-value store: {error}") from None
            start = stop
        if start:
            del buffer[:start]
        return frames
