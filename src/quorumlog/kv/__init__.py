"""The key-value store: keys with history, leases, watches and transactions, on the log.

Read in this order: `requests` (requests and responses), `errors`, `old_spellings`, `store` (the state
machine), `service` (a member's service for clients), `client`, `needs` (the right that each request
needs), `endpoint` (its port), `etcd` (ports for clients of etcd), `testing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from quorumlog.kv.old_spellings import takes_seconds

if TYPE_CHECKING:
    from quorumlog.kv.client.async_store import AsyncKeyValueClient
    from quorumlog.kv.client.blocking_store import KeyValueClient
    from quorumlog.kv.client.leasing import StoreClientOptions
    from quorumlog.kv.client.values import Change, Codec, CodecName, Item, Unreadable, V
    from quorumlog.kv.endpoint import KeyValueEndpoint, KeyValueStore
    from quorumlog.kv.errors import (
        ClusterChanged,
        Compacted,
        FutureRevision,
        InvalidRequest,
        KeyNotFound,
        KeyValueError,
        LeaseExists,
        LeaseNotFound,
        LockLost,
        NoSpace,
        ValueUnreadable,
    )
    from quorumlog.kv.requests import (
        Compare,
        DeleteRange,
        Put,
        Range,
        Relation,
        Target,
        Txn,
    )
    from quorumlog.kv.service import StoreOptions
    from quorumlog.net.credentials import ClientUser
    from quorumlog.net.tls import ClientTls

_MODULES = {
    "client.async_store": "AsyncKeyValueClient",
    "client.blocking_store": "KeyValueClient",
    "client.values": "Change Item",
    "endpoint": "KeyValueEndpoint KeyValueStore",
    "errors": "ClusterChanged Compacted FutureRevision InvalidRequest KeyNotFound KeyValueError"
    " LeaseExists LeaseNotFound LockLost NoSpace ValueUnreadable",
    "requests": "Compare DeleteRange Put Range Relation Target Txn",
    "service": "StoreOptions",
}
"""A client loads no server."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(f"quorumlog.kv.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@overload
def connect(
    servers: str, *, codec: Literal["bytes"] = "bytes", **options: Unpack[StoreClientOptions]
) -> KeyValueClient[bytes]: ...


@overload
def connect(
    servers: str, *, codec: Literal["text"], **options: Unpack[StoreClientOptions]
) -> KeyValueClient[str]: ...


@overload
def connect(
    servers: str, *, codec: Literal["json", "msgspec"], **options: Unpack[StoreClientOptions]
) -> KeyValueClient[Any]: ...


@overload
def connect(
    servers: str, *, codec: Codec[V], **options: Unpack[StoreClientOptions]
) -> KeyValueClient[V]: ...


@takes_seconds
def connect(
    servers: str,
    *,
    codec: CodecName | Codec[Any] = "bytes",
    timeout_ms: float = 10_000,
    cluster_id: str = "",
    errors: Unreadable = "raise",
    tls: ClientTls | None = None,
    user: ClientUser | None = None,
) -> KeyValueClient[Any]:
    """A blocking client: `servers` are HOST:PORT,... of the members' stores; options as of
    `AsyncKeyValueClient`. `codec`: "bytes" (values are bytes, text is encoded as UTF-8), "text" (str),
    "json" or "msgspec" (MessagePack), or an object with `encode` and `decode`. Sends no request. Raises
    ConfigError."""
    from quorumlog.kv.client.blocking_store import KeyValueClient
    from quorumlog.kv.client.values import codec_of

    return KeyValueClient(
        servers,
        codec=codec_of(codec),
        timeout_ms=timeout_ms,
        cluster_id=cluster_id,
        errors=errors,
        tls=tls,
        user=user,
    )


@overload
def connect_async(
    servers: str, *, codec: Literal["bytes"] = "bytes", **options: Unpack[StoreClientOptions]
) -> AsyncKeyValueClient[bytes]: ...


@overload
def connect_async(
    servers: str, *, codec: Literal["text"], **options: Unpack[StoreClientOptions]
) -> AsyncKeyValueClient[str]: ...


@overload
def connect_async(
    servers: str, *, codec: Literal["json", "msgspec"], **options: Unpack[StoreClientOptions]
) -> AsyncKeyValueClient[Any]: ...


@overload
def connect_async(
    servers: str, *, codec: Codec[V], **options: Unpack[StoreClientOptions]
) -> AsyncKeyValueClient[V]: ...


@takes_seconds
def connect_async(
    servers: str,
    *,
    codec: CodecName | Codec[Any] = "bytes",
    timeout_ms: float = 10_000,
    cluster_id: str = "",
    errors: Unreadable = "raise",
    tls: ClientTls | None = None,
    user: ClientUser | None = None,
) -> AsyncKeyValueClient[Any]:
    """A client for asyncio; arguments as of `connect`. Raises ConfigError."""
    from quorumlog.kv.client.async_store import AsyncKeyValueClient
    from quorumlog.kv.client.values import codec_of

    return AsyncKeyValueClient(
        servers,
        codec=codec_of(codec),
        timeout_ms=timeout_ms,
        cluster_id=cluster_id,
        errors=errors,
        tls=tls,
        user=user,
    )


__all__ = [
    "AsyncKeyValueClient",
    "Change",
    "ClusterChanged",
    "Compacted",
    "Compare",
    "DeleteRange",
    "FutureRevision",
    "InvalidRequest",
    "Item",
    "KeyNotFound",
    "KeyValueClient",
    "KeyValueEndpoint",
    "KeyValueError",
    "KeyValueStore",
    "LeaseExists",
    "LeaseNotFound",
    "LockLost",
    "NoSpace",
    "Put",
    "Range",
    "Relation",
    "StoreOptions",
    "Target",
    "Txn",
    "ValueUnreadable",
    "connect",
    "connect_async",
]
