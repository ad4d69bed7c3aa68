"""The two coordinators that come with the product, on a real etcd of three and on our own store."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from harness.etcd_cluster import etcd_of_three
from quorumlog.broker.errors import CoordinatorUnreachable
from quorumlog.client import connect
from quorumlog.coordinators import CoordinatorKind, coordinator_of
from quorumlog.coordinators.etcd_coordinator import MOST_BYTES, EtcdCoordinator
from quorumlog.errors import ConfigError, NotAuthenticated
from quorumlog.kv.testing import LocalStores
from quorumlog.log_state.users import Kind, Right, RoleGrant, UserOperation, UserOrder
from quorumlog.net.credentials import ClientUser, verifier_for
from tests.broker.failover.coordinator_contract import keeps_the_contract
from tests.waiting import eventually

A_LEASE = b'{"ID": "7", "TTL": "3"}\n'


def test_etcd_keeps_the_contract_also_without_one_of_its_members(tmp_path: Path) -> None:
    with etcd_of_three(tmp_path) as etcd:

        async def run() -> None:
            await keeps_the_contract(
                lambda group: coordinator_of(CoordinatorKind.ETCD, etcd.servers, group)
            )
            coordinator = coordinator_of(CoordinatorKind.ETCD, etcd.servers, "orders")
            lease, _ = await coordinator.grant(60_000)
            etcd.processes[0].send_signal(signal.SIGKILL)
            etcd.processes[0].wait()
            while True:
                try:
                    standing = await coordinator.read()
                    break
                except CoordinatorUnreachable:
                    continue  # the next one is asked
            while await coordinator.put(standing.revision, b"record", lease, takes=True) is None:
                continue
            assert (await coordinator.read()).record == b"record"
            await coordinator.close()

        asyncio.run(run())


async def etcd_that_says(
    body: bytes, host: str = "127.0.0.1"
) -> tuple[asyncio.Server, int, list[bytes]]:
    """Its port, and the heads of what it is asked."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + body)
        writer.close()

    server = await asyncio.start_server(answer, host, 0)
    return server, server.sockets[0].getsockname()[1], heads


def test_an_etcd_that_is_silent_is_left_also_by_who_waits_for_less_than_its_time() -> None:
    """A member that is stopped: connections are made, and nothing is ever answered."""

    async def run() -> None:
        asked = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await reader.read()
            writer.close()

        silent_server = await asyncio.start_server(silent, "127.0.0.1", 0)
        server, port, _ = await etcd_that_says(A_LEASE)
        ports = (silent_server.sockets[0].getsockname()[1], port)
        coordinator = EtcdCoordinator(",".join(f"127.0.0.1:{port}" for port in ports), "orders")
        first = asyncio.create_task(coordinator.grant(3_000))
        await asked.wait()
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        assert await coordinator.grant(3_000) == (7, 3_000)
        silent_server.close()
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize("field", ["error", "message"])
def test_a_lease_that_has_ended_is_told_as_every_release_of_etcd_does(field: str) -> None:
    """Until 3.5 as `error`, too, and from 3.6 on as `message` alone."""
    ended = msgspec.json.encode({"code": 5, field: "etcdserver: requested lease not found"})

    async def run() -> None:
        async with etcd_that_answers(ended) as coordinator:
            assert await coordinator.put(3, b"record", 7, takes=True) is None
            await coordinator.revoke(7)

    asyncio.run(run())


@asynccontextmanager
async def etcd_that_answers(said: bytes) -> AsyncIterator[EtcdCoordinator]:
    server, port, _ = await etcd_that_says(said)
    yield EtcdCoordinator(f"127.0.0.1:{port}", "orders")
    server.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b'{"responses"',
        b'{"header":' * 5_000,
        b"[]",
        b"{}",
        b'{"result":3}',
        b'{"responses":[{"response_range":{}}]}',
        b'{"responses":null,"ID":null}',
        b'{"header":{"revision":"x"},"ID":"7","TTL":"x"}',
        b'{"responses":[{"response_range":{"kvs":[{"mod_revision":"3","value":"?"}]}},{"response_range":{}}]}',
    ],
)
def test_what_is_no_answer_of_etcd_is_none(nonsense: bytes) -> None:
    """A request that ends otherwise is under way for ever, and nothing more is asked."""

    async def run() -> None:
        async with etcd_that_answers(nonsense) as coordinator:
            for asked in (
                coordinator.read(),
                coordinator.grant(1_000),
                coordinator.put(3, b"record", 7, takes=True),
                coordinator.renew(7),
                coordinator.revoke(7),
                coordinator.watch(lambda: None),
            ):
                with pytest.raises(CoordinatorUnreachable):
                    await asked

    asyncio.run(run())


def test_an_address_of_six_is_named_as_http_has_it() -> None:
    async def run() -> None:
        server, port, heads = await etcd_that_says(A_LEASE, "::1")
        assert await EtcdCoordinator(f"[::1]:{port}", "orders").grant(3_000) == (7, 3_000)
        assert f"\r\nHost: [::1]:{port}\r\n".encode() in heads[0]
        server.close()

    asyncio.run(run())


def test_our_own_store_keeps_the_contract_for_a_user_with_the_rights_for_it() -> None:
    root, broker = ClientUser("root", "sesame"), ClientUser("broker", "tahini")
    mine = tuple(
        RoleGrant(right, Kind.KEY, b"quorumlog/failover/") for right in (Right.READ, Right.WRITE)
    )
    with LocalStores() as stores:
        servers = stores.cluster.servers
        with connect(servers) as log:
            admin = UserOrder(UserOperation.ADD_USER, "root", ("admin",), (), verifier_for("sesame"))
            log.change_users(admin)
        with connect(servers, user=root) as log:
            log.change_users(UserOrder(UserOperation.ADD_ROLE, "failover", (), mine))
            log.change_users(
                UserOrder(UserOperation.ADD_USER, "broker", ("failover",), (), verifier_for("tahini"))
            )
            eventually(lambda: {row.users for row in log.status()} == {"on"})

        async def run() -> None:
            nobody = coordinator_of(CoordinatorKind.KV, stores.servers, "orders")
            with pytest.raises(NotAuthenticated):
                await nobody.read()
            await nobody.close()
            await keeps_the_contract(
                lambda group: coordinator_of(CoordinatorKind.KV, stores.servers, group, user=broker)
            )

        asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "module", "client"),
    [
        (CoordinatorKind.ETCD, "etcd_coordinator", "httpx"),
        (CoordinatorKind.ZOOKEEPER, "zookeeper_coordinator", "kazoo.exceptions"),
    ],
)
def test_a_coordinator_needs_its_extra(
    monkeypatch: pytest.MonkeyPatch, kind: CoordinatorKind, module: str, client: str
) -> None:
    monkeypatch.delitem(sys.modules, f"quorumlog.coordinators.{module}", raising=False)
    monkeypatch.setitem(sys.modules, client, None)
    with pytest.raises(ConfigError, match=rf"{client}.*the extra `{kind.value}`"):
        coordinator_of(kind, "127.0.0.1:2181", "orders")


def test_etcd_is_asked_without_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")

    async def run() -> None:
        server, port, _ = await etcd_that_says(A_LEASE)
        assert await EtcdCoordinator(f"127.0.0.1:{port}", "orders").grant(3_000) == (7, 3_000)
        server.close()

    asyncio.run(run())


def test_an_answer_without_an_end_is_not_kept() -> None:
    async def run() -> None:
        server, port, _ = await etcd_that_says(bytes(MOST_BYTES + 1))
        coordinator = EtcdCoordinator(f"127.0.0.1:{port}", "orders")
        with pytest.raises(CoordinatorUnreachable, match="more than 1048576 bytes"):
            await coordinator.watch(lambda: None)
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize("servers", ["", "a", "a:1,,b:2", "a:1/chroot"])
@pytest.mark.parametrize("kind", [CoordinatorKind.KV, CoordinatorKind.ZOOKEEPER])
def test_a_list_without_ports_is_refused(kind: CoordinatorKind, servers: str) -> None:
    with pytest.raises(ConfigError):
        coordinator_of(kind, servers, "orders")


def test_a_list_that_is_none_is_refused() -> None:
    for servers, problem in (("", "HOST:PORT"), ("ftp://a:1", "https://HOST:PORT"), ("a", "host:port")):
        with pytest.raises(ConfigError, match=problem):
            coordinator_of(CoordinatorKind.ETCD, servers, "orders")
