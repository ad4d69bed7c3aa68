"""Which product a port is of, and what is said to who looks for something else there."""

from __future__ import annotations

from collections.abc import Mapping

from quorumlog.net.hello import LOG, NOT_SERVED, Hello, HelloResponse

STORE, BROKER = "kv", "broker"
NAMES = {LOG: "log", STORE: "key-value store", BROKER: "broker"}

_BEGINNINGS = (
    (b"HTTP/", "HTTP"),
    (b"\x15\x03", "TLS"),
    (b"\x16\x03", "TLS"),
    (b"SSH-", "SSH"),
    (b"-ERR", "the protocol of Redis"),
    (b"\x00\x00\x00", "an earlier release, or other software"),
)


def refusal_of(
    hello: Hello, here: str, group: str, addresses: Mapping[str, str]
) -> HelloResponse | None:
    """What a client is told that looks for another product; None: it is right here. `addresses`: where
    this member has its other ports, by product."""
    if hello.product == here:
        return None
    there = NAMES.get(hello.product, hello.product)
    address = addresses.get(hello.product)
    listens = f"; its {there} listens at {address}" if address else ""
    words = f"this is the port of the {NAMES[here]} of group {group}, not of a {there}{listens}"
    return HelloResponse(code=NOT_SERVED, message=words)


def foreign(begins: bytes) -> str:
    """What answers with these bytes, which are no frame."""
    for beginning, name in _BEGINNINGS:
        if begins.startswith(beginning):
            return f"answers with {name}, not quorumlog"
    return f"answers with {begins!r}, not quorumlog"
