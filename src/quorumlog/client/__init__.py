"""Clients of a log: `connect_async` gives one for asyncio, `connect` one that blocks, made from it.

Read in this order: `operations` (what each operation does, as requests) and `result_streams` (those
that give many results), with `arguments` (what callers give), `status_rows` (a status) and `events`
(what callbacks are told); `reading` (whom a read asks, and for what), `reader_operations` (of readers
that the cluster keeps), `handles`, `append_streams`; `async_client`, which drives the room `protocol`
on the loop of `net/io_loop.py`; `blocking_client` and `connecting`.
"""

from __future__ import annotations

from quorumlog.client.append_streams import AppendStream, AsyncAppendStream
from quorumlog.client.async_client import AsyncLedgerClient, connect_async
from quorumlog.client.blocking_client import LedgerClient
from quorumlog.client.connecting import connect
from quorumlog.client.protocol.appending import StreamOutcomeUnknown, StreamProgress
from quorumlog.client.reader_operations import ReaderRow
from quorumlog.client.reading import Freshness
from quorumlog.client.status_rows import MemberStatusRow, leader_of

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
