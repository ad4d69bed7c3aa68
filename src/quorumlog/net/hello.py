"""The greeting: the first frame on every connection, and its answer."""

from __future__ import annotations

from collections.abc import Mapping

from quorumlog.errors import WrongPort
from quorumlog.wire.client_message import ClientMessage, Int, Text

PROTOCOL_VERSION = 1

LOG, STORE, BROKER = "log", "key-value store", "broker"
"""The product of a port, as named in a Hello and its answer, and to users."""

WELCOME, NOT_SERVED, REFUSED, UNSETTLED, DUPLICATE = 200, 400, 401, 402, 403
"""Codes of a HelloResponse. DUPLICATE: another process is the member that this one says it is, and
answers at its address. UNSETTLED: it is connected, and does not."""


PEER_ROLES = ("control", "data")
"""Of a member; everybody else is a client."""


class Hello(ClientMessage, frozen=True, kw_only=True, tag=32):
    """The first frame on every connection, from the side that opened it."""

    passes_limits = True
    protocol: Int = PROTOCOL_VERSION
    role: Text
    """`client`, `control` (heartbeats, votes, COMMIT) or `data` (COMPARE, TRUNCATE, APPEND)."""
    member_id: Text = ""
    directory_id: Text = ""
    """Both empty for a client."""
    to_member_id: Text = ""
    """The member the dialler expects; a peer with another id refuses."""
    cluster_id: Text = ""
    """Empty while unformed."""
    members: Text = ""
    """The dialler's member list, `n0=host:port,...` sorted by id: lists that differ are reported."""
    segment_bytes: Int = 0
    durability: Text = ""
    run_id: Text = ""
    """Of a peer, drawn at each start of a process: distinguishes two on copies of one directory."""
    listens_on: Text = ""
    """`host:port`, of a peer; may be another than the one in `members`."""
    rival: Text = ""
    """Of an earlier release; nobody looks at it."""
    level: Int = 0
    """Of the log's format, up to which a peer knows it (`log_state/control_entries.py`)."""
    product: Text = LOG
    """Whose port it is meant for."""
    line_end: Text = ""
    """Of a client: makes servers of line protocols, as HTTP and Redis, answer."""
    looks: bool = False
    """Of a client that only asks how a member is: it is let in for a moment where others are refused."""
    tls_port: Int = 0
    """Of a peer: where it speaks TLS beside the plain port of `listens_on`; 0: it has one port."""
    release: Text = ""
    """Of a peer's software; empty: 0.1.0, which does not say it."""
    user: Text = ""
    """Of a client: its user, proved if the server has users. Empty: that of its certificate, or none."""


class HelloResponse(ClientMessage, frozen=True, kw_only=True, tag=33):
    """The first frame back. `code` 200, or the connection closes after it and `message` says why."""

    protocol: Int = PROTOCOL_VERSION
    code: Int = 200
    message: Text = ""
    member_id: Text = ""
    directory_id: Text = ""
    cluster_id: Text = ""
    members: Text = ""
    segment_bytes: Int = 0
    durability: Text = ""
    connection_id: Text = ""
    """Names this connection on this server; a stream that moves to a new one gives it back."""
    max_entry_bytes: Int = 0
    max_frame_bytes: Int = 0
    run_id: Text = ""
    knows_conditions: bool = False
    """`AppendRequest.expected_last` is checked; an older server would append unconditionally."""
    level: Int = 0
    """As in Hello."""
    knows_promises: bool = False
    """`promise` of a read or a question is kept; an older server would answer as it is."""
    product: Text = LOG
    """Product whose port it is. An earlier release's log accepts clients of any product."""
    election_timeout_ms: Int = 0
    """Least wait for a silent leader; 0: not sent."""
    tls_port: Int = 0
    """As in Hello."""
    release: Text = ""
    """As in Hello."""


class Challenge(ClientMessage, frozen=True, kw_only=True, tag=62):
    """Between Hello and HelloResponse, as often as the server likes: which user has connected? A client
    of an earlier release does not know it, and goes."""

    mechanism: Text
    data: bytes = b""


class ChallengeResponse(ClientMessage, frozen=True, kw_only=True, tag=70):
    passes_limits = True
    data: bytes


Greeting = Hello | HelloResponse | Challenge | ChallengeResponse


NO_LOG_BESIDE = f"this port serves a {BROKER}, not a {LOG}"
"""The text of `refusal_of_other` at a classic broker."""


def client_hello(product: str) -> Hello:
    return Hello(role="client", product=product, line_end="\r\n\r\n")


def refusal_of_other(hello: Hello, product: str, ports: Mapping[str, str]) -> HelloResponse | None:
    """Of the port of `product`, where the hello is meant for another one. `ports`: addresses of the
    group's ports in this process, by product."""
    if hello.product == product:
        return None
    address = ports.get(hello.product)
    elsewhere = f"; its {hello.product} listens at {address}" if address else f", not a {hello.product}"
    reason = f"this port serves a {product}{elsewhere}"
    # An earlier client, which knows nothing of products, asks no further where its group is not served.
    return HelloResponse(request_id=hello.request_id, code=NOT_SERVED, message=reason, product=product)


def check_product(response: HelloResponse, product: str, address: str) -> None:
    """Of a client of `product`, which has dialled `address`. Raises WrongPort."""
    if response.product != product:
        reason = response.message or f"this port serves a {response.product}, not a {product}"
        raise WrongPort(f"{address}: {reason}")
