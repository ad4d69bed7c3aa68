"""EtcdCoordinator: the record and its holder as two keys in etcd.

quorumlog/failover/GROUP/record    JSON
quorumlog/failover/GROUP/holder    on the lease of whoever leads
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from quorumlog.broker.errors import CoordinatorUnreachable
from quorumlog.broker.failover import NO_HOLDER, Granted, Standing
from quorumlog.coordinators.etcd_gateway import EtcdGateway, LeaseNotFound

PREFIX = "quorumlog/failover"


class _Header(Struct):
    revision: int


class _Item(Struct):
    mod_revision: int
    value: bytes = b""
    lease: int = NO_HOLDER


class _Items(Struct):
    kvs: tuple[_Item, ...] = ()


class _Found(Struct):
    response_range: _Items


class _Both(Struct):
    responses: tuple[_Found, _Found]


class _Done(Struct):
    header: _Header
    succeeded: bool = False
    canceled: bool = False


class _Lease(Struct, rename="upper"):
    id: int
    ttl: int = 0


def _b64(text: str) -> str:
    return b64encode(text.encode()).decode()


class EtcdCoordinator:
    relays_renewals = False

    def __init__(self, servers: str, group: str) -> None:
        """Raises ConfigError."""
        self._gateway = EtcdGateway(servers)
        self._record, self._holder = (_b64(f"{PREFIX}/{group}/{name}") for name in ("record", "holder"))
        self._prefix, self._end = _b64(f"{PREFIX}/{group}/"), _b64(f"{PREFIX}/{group}0")

    # ---------------------------------------------------------------- as Coordinator

    async def read(self) -> Standing:
        ranges = [{"request_range": {"key": key}} for key in (self._record, self._holder)]
        both = (await self._gateway.post("kv/txn", {"success": ranges}, _Both)).responses
        records, holders = (found.response_range.kvs for found in both)
        holder = holders[0].lease if holders else NO_HOLDER
        if not records:
            return Standing(0, None, holder)
        return Standing(records[0].mod_revision, records[0].value, holder)

    async def grant(self, ttl_ms: int) -> Granted:
        asked = {"TTL": -(-ttl_ms // 1000)}  # etcd counts in seconds
        told = await self._gateway.post("lease/grant", asked, _Lease)
        return Granted(told.id, told.ttl * 1000)

    async def put(self, revision: int, record: bytes, lease: int, *, takes: bool) -> int | None:
        same = {"key": self._record, "target": "MOD", "result": "EQUAL", "mod_revision": revision}
        held: dict[str, Any] = {
            "key": self._holder,
            "target": "LEASE",
            "result": "EQUAL",
            "lease": lease,
        }
        puts: list[dict[str, Any]] = [{"key": self._record, "value": b64encode(record).decode()}]
        if takes:
            held = {"key": self._holder, "target": "CREATE", "result": "EQUAL", "create_revision": 0}
            puts.append({"key": self._holder, "value": "", "lease": lease})
        success = [{"request_put": put} for put in puts]
        try:
            asked = {"compare": [same, held], "success": success}
            told = await self._gateway.post("kv/txn", asked, _Done)
        except LeaseNotFound:
            return None
        return told.header.revision if told.succeeded else None

    async def renew(self, lease: int) -> int:
        return (await self._gateway.post("lease/keepalive", {"ID": lease}, _Lease)).ttl * 1000

    async def revoke(self, lease: int) -> None:
        try:
            await self._gateway.post("lease/revoke", {"ID": lease}, _Done)
        except LeaseNotFound:
            return

    async def watch(self, changed: Callable[[], None]) -> None:
        create = {"create_request": {"key": self._prefix, "range_end": self._end}}
        async with aclosing(self._gateway.stream("watch", create, _Done)) as news:
            async for told in news:
                if told.canceled:
                    raise CoordinatorUnreachable("etcd ends the watch")
                changed()

    async def close(self) -> None:
        """A request keeps nothing open."""
