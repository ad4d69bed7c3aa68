"""The key-value store: keys with history, leases, watches and transactions, on the log.

Read in this order: `requests` (what is asked and answered), `errors`, `store` (what the committed
commands have made of the keys), `service` (what a member does for clients), `client`, `door` (its port).
"""

from typing import Any

from quorumlog.kv.client.async_store import AsyncKeyValueClient
from quorumlog.kv.client.blocking_store import KeyValueClient
from quorumlog.kv.client.values import Change, Item
from quorumlog.kv.door.embedded import KeyValueStore
from quorumlog.kv.door.kv_door import KeyValueDoor
from quorumlog.kv.requests.operations import (
    Compare,
    DeleteRange,
    Put,
    Range,
    Relation,
    Target,
    Txn,
)
from quorumlog.kv.service.service import StoreOptions


def connect(servers: str, **options: Any) -> KeyValueClient:
    """A blocking client: `servers` are HOST:PORT,... of the members' stores; options as of
    `KeyValueClient`. Nothing is sent yet. Raises ConfigError."""
    return KeyValueClient(servers, **options)


async def connect_async(servers: str, **options: Any) -> AsyncKeyValueClient:
    """A client for asyncio; options as of `AsyncKeyValueClient`. Raises ConfigError."""
    return AsyncKeyValueClient(servers, **options)


__all__ = [
    "AsyncKeyValueClient",
    "Change",
    "Compare",
    "DeleteRange",
    "Item",
    "KeyValueClient",
    "KeyValueDoor",
    "KeyValueStore",
    "Put",
    "Range",
    "Relation",
    "StoreOptions",
    "Target",
    "Txn",
    "connect",
    "connect_async",
]
