"""Clients of a log: `connect` gives a blocking one, `connect_async` one for asyncio. Both have the same
verbs. asyncio is imported only by whoever asks for the second.

Read in this order: `verbs` (what each verb does, as requests) and `result_streams` (those that give
many results), with `arguments` (what callers give), `status_rows` (a status) and `events` (what
callbacks are told); the rooms `reading` (whom a read asks, and for what), `producers`,
`readers`, `machines`, `times` and `members`; `ledger_client_base` (what both share) and the room
`appending` (streams of appends). Then either client: `blocking_client`, `thread_joiner` and
`connecting`, or `async_client` and `task_joiner`. Both drive the room `protocol`, on the loop of
`net/io_loop.py` or through the sockets of the room `io`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorumlog.client.appending.append_stream import AppendStream
from quorumlog.client.blocking_client import LedgerClient
from quorumlog.client.connecting import connect
from quorumlog.client.protocol.append_window import StreamOutcomeUnknown, StreamProgress
from quorumlog.client.readers.reader_rows import ReaderRow
from quorumlog.client.reading.read_choice import Freshness
from quorumlog.client.status_rows import MemberStatusRow, leader_of

if TYPE_CHECKING:
    from quorumlog.client.appending.async_append_stream import AsyncAppendStream
    from quorumlog.client.async_client import AsyncLedgerClient, connect_async

__all__ = [
    "AppendStream",
    "AsyncAppendStream",
    "AsyncLedgerClient",
    "Freshness",
    "LedgerClient",
    "MemberStatusRow",
    "ReaderRow",
    "StreamOutcomeUnknown",
    "StreamProgress",
    "connect",
    "connect_async",
    "leader_of",
]


def __getattr__(name: str) -> Any:
    if name in ("AsyncAppendStream", "AsyncLedgerClient", "connect_async"):
        from quorumlog.client import async_client

        return getattr(async_client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
