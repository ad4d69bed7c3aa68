"""Clients of an earlier release: a frame is 4 bytes of length and a MessagePack array [number, kind,
body], and the first one is of kind 0. They are told to be upgraded by a refusal, which they raise."""

from __future__ import annotations

import msgspec

from quorumlog.kv.errors import KeyValueError
from quorumlog.net.strangers import OtherSoftware

UPGRADE = "this member speaks a newer protocol: upgrade the client"
_LENGTH, _HELLO, _ANSWER = 4, 0, 17
OLD_GREETING_BYTES = 1024
"""At most, behind its length."""
_decode = msgspec.msgpack.Decoder(tuple[int, int, bytes]).decode


def words_to_old_client(problem: Exception) -> bytes | None:
    """See `LastWords`."""
    return answer_to_old_greeting(problem.received) if isinstance(problem, OtherSoftware) else None


def answer_to_old_greeting(received: bytes) -> bytes | None:
    """`received`: the first bytes of a connection. None: they are no such greeting, or a part of it."""
    size_bytes = int.from_bytes(received[:_LENGTH], "big")
    if not 0 < size_bytes <= OLD_GREETING_BYTES or len(received) < _LENGTH + size_bytes:
        return None
    try:
        number, kind, _ = _decode(received[_LENGTH : _LENGTH + size_bytes])
    except msgspec.DecodeError:
        return None
    if kind != _HELLO:
        return None
    refusal = msgspec.msgpack.encode((KeyValueError.code, UPGRADE, 0))
    answer = msgspec.msgpack.encode((number, _ANSWER, refusal))
    return len(answer).to_bytes(_LENGTH, "big") + answer
