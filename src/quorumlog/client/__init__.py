"""Clients of a log: `connect_async` gives one for asyncio, `connect` a blocking one, generated from it.

Read in this order: the room `protocol`; `sending`, which drives it on the loop of `net/io_loop.py`, with
`arguments` (of callers); `result_streams` (calls with many results), `reading` (servers and consistency
of reads, and their results), `read_operations`, `reader_operations` (named readers), `status_rows` (a
status) and `events` (for callbacks); `append_streams`, `handles`, `async_client` (every call),
`blocking_client` and `connecting`.
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
