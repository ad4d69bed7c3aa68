"""KeyValueCoordinator: the record and its holder as two keys of our own key-value store.

quorumlog/failover/GROUP/record    JSON
quorumlog/failover/GROUP/holder    on the lease of the master
"""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.broker.errors import CoordinatorUnreachable
from quorumlog.broker.failover import NO_HOLDER, CoordinatorSnapshot, GrantedLease
from quorumlog.errors import LedgerError
from quorumlog.kv.client.async_store import AsyncKeyValueClient
from quorumlog.kv.client.values import RangeResult
from quorumlog.kv.errors import LeaseNotFound
from quorumlog.kv.requests import Compare, Put, Range, Relation, Target
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls

TIMEOUT_S = 1.0
PREFIX = b"quorumlog/failover/"


class KeyValueCoordinator:
    relays_renewals = False

    def __init__(
        self, servers: str, group: str, tls: ClientTls | None = None, user: ClientUser | None = None
    ) -> None:
        """Raises ConfigError."""
        self._client = AsyncKeyValueClient(servers, timeout_ms=1000 * TIMEOUT_S, tls=tls, user=user)
        self._prefix = PREFIX + group.encode() + b"/"
        self._record, self._holder = self._prefix + b"record", self._prefix + b"holder"

    # ---------------------------------------------------------------- as Coordinator

    async def read(self) -> CoordinatorSnapshot:
        found = await self._client.txn(then=[Range(self._record), Range(self._holder)])
        records, holders = found.answers
        assert isinstance(records, RangeResult), records
        assert isinstance(holders, RangeResult), holders
        holder = holders.items[0].lease if holders.items else NO_HOLDER
        if not records.items:
            return CoordinatorSnapshot(0, None, holder)
        return CoordinatorSnapshot(records.items[0].mod_revision, records.items[0].value, holder)

    async def grant(self, ttl_ms: int) -> GrantedLease:
        lease = await self._client.grant(ttl_ms / 1000)
        return GrantedLease(lease.id, lease.ttl_ms)

    async def put(self, revision: int, record: bytes, lease: int, *, takes: bool) -> int | None:
        same = Compare(self._record, Target.MOD, Relation.EQUAL, revision)
        held = Compare(self._holder, Target.LEASE, Relation.EQUAL, lease)
        puts = [Put(self._record, record)]
        if takes:
            held = Compare(self._holder, Target.CREATE, Relation.EQUAL, 0)
            puts.append(Put(self._holder, b"", lease))
        try:
            done = await self._client.txn([same, held], puts)
        except LeaseNotFound:
            return None
        return done.revision if done.succeeded else None

    async def renew(self, lease: int) -> int:
        try:
            return await self._client.lease(lease).keep_alive_once()
        except LeaseNotFound:
            return 0

    async def revoke(self, lease: int) -> None:
        try:
            await self._client.lease(lease).revoke()
        except LeaseNotFound:
            return

    async def watch(self, changed: Callable[[], None]) -> None:
        try:
            async with self._client.watch_prefix(self._prefix) as watch:
                changed()  # what happened before it began
                while True:
                    await watch.batch()
                    changed()
        except LedgerError as error:
            raise CoordinatorUnreachable(f"the key-value store ends the watch: {error}") from None

    async def close(self) -> None:
        await self._client.close()
