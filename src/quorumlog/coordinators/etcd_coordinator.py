"""EtcdCoordinator: the record and its holder as two keys in etcd.

quorumlog/failover/GROUP/record    JSON
quorumlog/failover/GROUP/holder    on the lease of whoever leads
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from quorumlog.broker.errors import CoordinatorUnreachable
from quorumlog.broker.failover.coordinator import NO_HOLDER, Granted, Standing
from quorumlog.coordinators.etcd_gateway import LEASE_NOT_FOUND, EtcdGateway, EtcdRefusal

T = TypeVar("T")
TIMEOUT_S = 1.0
"""Of a request: another member is asked next time."""
PREFIX = "quorumlog/failover"
THREADS = 4


def _b64(text: str) -> str:
    return b64encode(text.encode()).decode()


class EtcdCoordinator:
    relays_renewals = False

    def __init__(self, servers: str, group: str) -> None:
        """Raises ConfigError."""
        self._gateway = EtcdGateway(servers, TIMEOUT_S)
        self._record, self._holder = (_b64(f"{PREFIX}/{group}/{name}") for name in ("record", "holder"))
        self._prefix, self._end = _b64(f"{PREFIX}/{group}/"), _b64(f"{PREFIX}/{group}0")
        self._threads = ThreadPoolExecutor(THREADS, "etcd")
        self._watcher = ThreadPoolExecutor(1, "etcd-watch")

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # ---------------------------------------------------------------- as Coordinator

    async def read(self) -> Standing:
        return await self._do(self._read)

    def _read(self) -> Standing:
        ranges = [{"request_range": {"key": key}} for key in (self._record, self._holder)]
        answers = self._gateway.post("kv/txn", {"success": ranges})["responses"]
        records, holders = (answer["response_range"].get("kvs", ()) for answer in answers)
        holder = int(holders[0].get("lease", NO_HOLDER)) if holders else NO_HOLDER
        if not records:
            return Standing(0, None, holder)
        return Standing(int(records[0]["mod_revision"]), b64decode(records[0].get("value", "")), holder)

    async def grant(self, ttl_ms: int) -> Granted:
        asked = {"TTL": -(-ttl_ms // 1000)}  # etcd counts in seconds
        told = await self._do(lambda: self._gateway.post("lease/grant", asked))
        return Granted(int(told["ID"]), int(told["TTL"]) * 1000)

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
        body = {"compare": [same, held], "success": success}
        try:
            told = await self._do(lambda: self._gateway.post("kv/txn", body))
        except EtcdRefusal as refusal:
            if LEASE_NOT_FOUND in str(refusal):
                return None
            raise
        return int(told["header"]["revision"]) if told.get("succeeded") else None

    async def renew(self, lease: int) -> int:
        told = await self._do(lambda: self._gateway.post("lease/keepalive", {"ID": lease}))
        return int(told.get("TTL", 0)) * 1000

    async def revoke(self, lease: int) -> None:
        try:
            await self._do(lambda: self._gateway.post("lease/revoke", {"ID": lease}))
        except EtcdRefusal as refusal:
            if LEASE_NOT_FOUND not in str(refusal):
                raise

    async def watch(self, changed: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        create = {"create_request": {"key": self._prefix, "range_end": self._end}}

        def follow() -> None:
            for told in self._gateway.stream("watch", create):
                if told.get("canceled"):
                    raise CoordinatorUnreachable(f"etcd ends the watch: {told}")
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(changed)

        try:
            await loop.run_in_executor(self._watcher, follow)
        except asyncio.CancelledError:
            self._gateway.close_streams()
            raise

    async def close(self) -> None:
        self._gateway.close()
        self._watcher.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
