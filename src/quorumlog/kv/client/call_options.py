"""Options that several calls share, by name: `async_store` says what each means."""

from __future__ import annotations

from typing import TypedDict

from quorumlog.kv.client.codecs import Unreadable
from quorumlog.kv.client.leasing import Lease
from quorumlog.kv.requests.operations import Target
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls


class ClientOptions(TypedDict, total=False):
    """Of `quorumlog.kv.connect`, besides the codec."""

    timeout_ms: float
    cluster_id: str
    errors: Unreadable
    tls: ClientTls | None
    user: ClientUser | None


class PutOptions(TypedDict, total=False):
    """Of `AsyncKeyValueClient.put`."""

    lease: Lease | int
    prev_kv: bool
    keeps_lease: bool


class RangeOptions(TypedDict, total=False):
    """Of `AsyncKeyValueClient.range`, besides `keys_only`."""

    limit: int
    revision: int
    descending: bool
    sort_by: Target
    count_only: bool
    stale: bool
