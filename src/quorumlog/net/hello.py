"""The one greeting: what is said first on every connection, and what is answered."""

from __future__ import annotations

from quorumlog.wire.client_message import ClientMessage, Int, Text

PROTOCOL_VERSION = 1

WELCOME, NOT_SERVED, REFUSED, UNSETTLED, DUPLICATE = 200, 400, 401, 402, 403
"""Codes of a HelloResponse. DUPLICATE: another process is the member that this one says it is, and has
just answered at its address. UNSETTLED: it is connected, and has not."""


class Hello(ClientMessage, frozen=True, kw_only=True, tag=32):
    """The first frame on every connection, from who dialled."""

    protocol: Int = PROTOCOL_VERSION
    role: Text
    """`client`, `control` (heartbeats, votes, COMMIT) or `data` (COMPARE, TRUNCATE, APPEND)."""
    member_id: Text = ""
    directory_id: Text = ""
    """Both empty for a client."""
    to_member_id: Text = ""
    """Whom the dialler expects to reach; a peer listening under another id refuses."""
    cluster_id: Text = ""
    """Empty while unformed."""
    members: Text = ""
    """The dialler's member list, `n0=host:port,...` sorted by id: lists that differ are reported."""
    segment_bytes: Int = 0
    durability: Text = ""
    run_id: Text = ""
    """Drawn at each start of a process: tells two processes on copies of one directory apart. A client
    gives that of its `rival`."""
    listens_on: Text = ""
    """`host:port`, of a peer; may be another than the one in `members`."""
    rival: Text = ""
    """Of a client: another process speaks as the member that this connection leads to, in a sentence."""
    level: Int = 0
    """Of the log's format, up to which a peer knows it (`log_state/control_entries.py`)."""


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
    """`AppendRequest.expected_last` is looked at; an older server would append whatever it says."""
    level: Int = 0
    """As in Hello."""
    knows_promises: bool = False
    """`promise` of a read or a question is kept; an older server would answer as it is."""
