"""`connect`: a blocking client."""

from __future__ import annotations

from collections.abc import Sequence

from quorumlog.client.async_client import DEFAULT_TIMEOUT_MS
from quorumlog.client.blocking_client import LedgerClient
from quorumlog.client.events import Callback
from quorumlog.config import DEFAULT_GROUP
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls


def connect(
    servers: str | Sequence[str],
    *,
    group: str = DEFAULT_GROUP,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
    producer_id: str | None = None,
    idempotent: bool = False,
    on_leader_change: Callback | None = None,
    on_reconnect: Callback | None = None,
    read_consistency: str | None = None,
    max_staleness_ms: float | None = None,
    read_from: str | None = None,
    tls: ClientTls | None = None,
    user: ClientUser | None = None,
) -> LedgerClient:
    """A blocking client of the group of the listed servers (`host:port,host:port`).

    One reachable server of the list is enough; the others are learned from it.

    `producer_id`: appends under this name are in the log once and in order, however often they are
    sent, also by another process under the same name, which fences this one (ProducerFenced).
    `idempotent`: the same without a name, for the lifetime of this client. See docs/exactly-once.md.

    `on_leader_change(address)` is called when another server leads, also the first time, and
    `on_reconnect(address)` when a lost connection is restored: one after the other, on a thread of
    their own, so they may use the client. Their exceptions are logged (`quorumlog.client`) and have no
    other effect.

    `read_consistency`, `max_staleness_ms` and `read_from` ("leader", "any" or the id of a member):
    defaults of reads, see `LedgerClient.read`. `tls`: see docs/security.md."""
    return LedgerClient(
        servers,
        group=group,
        timeout_ms=timeout_ms,
        producer_id=producer_id,
        idempotent=idempotent,
        on_leader_change=on_leader_change,
        on_reconnect=on_reconnect,
        read_consistency=read_consistency,
        max_staleness_ms=max_staleness_ms,
        read_from=read_from,
        tls=tls,
        user=user,
    )
