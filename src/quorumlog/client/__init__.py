"""Clients: other people's processes that append to the log and read it.

`connect` gives a blocking client, `connect_async` one for asyncio; both have the same verbs and take
every decision in the same place, `quorumlog.client.protocol`. asyncio is imported only by whoever asks
for the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorumlog.client.blocking_client import AppendStream, LedgerClient, connect

if TYPE_CHECKING:
    from quorumlog.client.async_client import AsyncAppendStream, AsyncLedgerClient, connect_async

__all__ = [
    "AppendStream",
    "AsyncAppendStream",
    "AsyncLedgerClient",
    "LedgerClient",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> Any:
    if name in ("AsyncAppendStream", "AsyncLedgerClient", "connect_async"):
        from quorumlog.client import async_client

        return getattr(async_client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
