"""The record and its holder as two keys in etcd, through its JSON gateway.

quorumlog/failover/GROUP/record    JSON
quorumlog/failover/GROUP/holder    on the lease of the master
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import httpx
import msgspec
from msgspec import Struct

from quorumlog.broker.errors import CoordinatorUnreachable
from quorumlog.broker.failover import NO_HOLDER, CoordinatorSnapshot, GrantedLease
from quorumlog.config import parse_address
from quorumlog.errors import ConfigError
from quorumlog.wire.field_names import UNREADABLE

# ----------------------------------------------------------------
# EtcdGateway: a connection for each request, of which there are few a second.

TIMEOUT_S = 1.0
"""Of a request: another member is asked next time."""
MOST_BYTES = 1 << 20
"""Of an answer."""
T = TypeVar("T")

logging.getLogger("httpx").setLevel(logging.WARNING)  # it has a line for each request


class EtcdLeaseNotFound(CoordinatorUnreachable):
    """etcd has answered that there is none."""


class EtcdConnection:
    def __init__(self, servers: str) -> None:
        """`servers`: HOST:PORT or http(s)://HOST:PORT, comma separated. Raises ConfigError."""
        self._servers = [_server_of(part.strip()) for part in servers.split(",") if part.strip()]
        if not self._servers:
            raise ConfigError("the coordinator's list is empty; give HOST:PORT,HOST:PORT,... of etcd")
        self._place = 0
        self._http = httpx.AsyncClient(
            verify=ssl.create_default_context(),
            trust_env=False,
            headers={"Accept-Encoding": "identity"},
            timeout=httpx.Timeout(None, connect=TIMEOUT_S),
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def post(self, path: str, body: dict[str, Any], kind: type[T]) -> T:
        """The answer. Raises LeaseNotFound; CoordinatorUnreachable: it may have been done or not."""
        place = self._place
        try:
            async with asyncio.timeout(TIMEOUT_S), aclosing(self.stream(path, body, kind)) as answers:
                return await anext(answers)
        except TimeoutError:
            raise self._failed(place, "no answer in time") from None
        except asyncio.CancelledError:
            self._failed(place, "")  # the caller has waited long enough
            raise

    async def stream(self, path: str, body: dict[str, Any], kind: type[T]) -> AsyncGenerator[T, None]:
        """Results as they come. Ends by CoordinatorUnreachable, at the latest with the connection."""
        place = self._place
        try:
            data, url = msgspec.json.encode(body), f"{self._servers[place]}/v3/{path}"
            async with self._http.stream("POST", url, content=data) as response:
                data = b""
                async for part in response.aiter_raw():
                    *lines, data = (data + part).split(b"\n")
                    for line in lines:
                        yield self._answer(place, line, kind)
                    if len(data) > MOST_BYTES:
                        raise self._failed(place, f"an answer of more than {MOST_BYTES} bytes")
                if data:
                    yield self._answer(place, data, kind)
            raise self._failed(place, "the connection has ended")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            cause: BaseException | None = error
            while cause is not None and not getattr(cause, "errno", None):  # by the system
                cause = cause.__cause__ or cause.__context__
            raise self._failed(place, str(cause or error) or type(error).__name__) from None

    def _failed(self, place: int, why: str) -> CoordinatorUnreachable:
        """The next one is asked from now on, unless another request has turned to it already."""
        if self._place == place:
            self._place = (place + 1) % len(self._servers)
        return CoordinatorUnreachable(f"etcd at {self._servers[place].partition('://')[2]}: {why}")

    def _answer(self, place: int, data: bytes, kind: type[T]) -> T:
        try:
            answer = msgspec.json.decode(data, type=dict[str, Any])
            reply = answer.get("error") or answer.get("message")  # the latter alone from etcd 3.6 on
            if reply is None:
                return msgspec.convert(answer.get("result", answer), kind, strict=False)
        except UNREADABLE as error:
            raise self._failed(place, f"this is no answer of etcd: {error}") from None
        words = str(reply.get("message", reply) if isinstance(reply, dict) else reply)
        if "requested lease not found" in words:
            raise EtcdLeaseNotFound(words)
        raise self._failed(place, words)  # it may have no leader


def _server_of(text: str) -> str:
    scheme, _, address = text.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise ConfigError(f"{text}: write HOST:PORT, http://HOST:PORT or https://HOST:PORT")
    host, port = parse_address(address.removesuffix("/"))
    return f"{scheme or 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


# ---------------------------------------------------------------- EtcdCoordinator

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
        self._gateway = EtcdConnection(servers)
        self._record, self._holder = (_b64(f"{PREFIX}/{group}/{name}") for name in ("record", "holder"))
        self._prefix, self._end = _b64(f"{PREFIX}/{group}/"), _b64(f"{PREFIX}/{group}0")

    # ---------------------------------------------------------------- as Coordinator

    async def read(self) -> CoordinatorSnapshot:
        ranges = [{"request_range": {"key": key}} for key in (self._record, self._holder)]
        both = (await self._gateway.post("kv/txn", {"success": ranges}, _Both)).responses
        records, holders = (found.response_range.kvs for found in both)
        holder = holders[0].lease if holders else NO_HOLDER
        if not records:
            return CoordinatorSnapshot(0, None, holder)
        return CoordinatorSnapshot(records[0].mod_revision, records[0].value, holder)

    async def grant(self, ttl_ms: int) -> GrantedLease:
        body = {"TTL": -(-ttl_ms // 1000)}  # etcd counts in seconds
        reply = await self._gateway.post("lease/grant", body, _Lease)
        return GrantedLease(reply.id, reply.ttl * 1000)

    async def put(self, revision: int, record: bytes, lease: int, *, takes: bool) -> int | None:
        same = {"key": self._record, "target": "MOD", "result": "EQUAL", "mod_revision": revision}
        held = {"key": self._holder, "target": "LEASE", "result": "EQUAL", "lease": lease}
        puts: list[dict[str, Any]] = [{"key": self._record, "value": b64encode(record).decode()}]
        if takes:
            held = {"key": self._holder, "target": "CREATE", "result": "EQUAL", "create_revision": 0}
            puts.append({"key": self._holder, "value": "", "lease": lease})
        success = [{"request_put": put} for put in puts]
        try:
            body = {"compare": [same, held], "success": success}
            reply = await self._gateway.post("kv/txn", body, _Done)
        except EtcdLeaseNotFound:
            return None
        return reply.header.revision if reply.succeeded else None

    async def renew(self, lease: int) -> int:
        return (await self._gateway.post("lease/keepalive", {"ID": lease}, _Lease)).ttl * 1000

    async def revoke(self, lease: int) -> None:
        try:
            await self._gateway.post("lease/revoke", {"ID": lease}, _Done)
        except EtcdLeaseNotFound:
            return

    async def watch(self, changed: Callable[[], None]) -> None:
        create = {"create_request": {"key": self._prefix, "range_end": self._end}}
        async with aclosing(self._gateway.stream("watch", create, _Done)) as news:
            async for reply in news:
                if reply.canceled:
                    raise CoordinatorUnreachable("etcd ends the watch")
                changed()

    async def close(self) -> None:
        """A request keeps nothing open."""
