"""A real ZooKeeper of three as the coordinator, from Maven Central; skipped where there is none."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.maven import Unavailable
from harness.zookeeper import ZooKeeperCluster, zookeeper_of_three
from quorumlog.broker.errors import CoordinatorUnreachable
from quorumlog.broker.failover import NO_HOLDER, Coordinator, CoordinatorSnapshot
from quorumlog.coordinators import CoordinatorKind, coordinator_of
from quorumlog.coordinators.zookeeper_coordinator import ZooKeeperSession
from tests.broker.failover.coordinator_contract import keeps_the_contract

pytestmark = [pytest.mark.zookeeper, pytest.mark.processes]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperCluster]:
    try:
        with zookeeper_of_three(tmp_path_factory.mktemp("zookeeper")) as cluster:
            yield cluster
    except Unavailable as reason:
        pytest.skip(f"ZooKeeper is not to be had: {reason}")


def made(servers: str, group: str) -> Coordinator:
    return coordinator_of(CoordinatorKind.ZOOKEEPER, servers, group)


def test_zookeeper_keeps_the_contract(zookeeper: ZooKeeperCluster) -> None:
    asyncio.run(keeps_the_contract(lambda group: made(zookeeper.servers, group)))


def test_a_shorter_lease_than_was_asked_for_is_refused(zookeeper: ZooKeeperCluster) -> None:
    async def run() -> None:
        coordinator = made(zookeeper.servers, "long")
        with pytest.raises(CoordinatorUnreachable, match=r"grants 600000 ms at most.*maxSession"):
            await coordinator.grant(600_001)
        await coordinator.close()

    asyncio.run(run())


def test_a_lease_of_a_process_before_can_be_revoked(zookeeper: ZooKeeperCluster) -> None:
    async def run() -> None:
        before, now = (made(zookeeper.servers, "restarted") for _ in range(2))
        lease, _ = await before.grant(60_000)
        revision = await before.put(0, b"a", lease, takes=True)
        assert revision is not None
        await now.revoke(lease)
        assert await now.read() == CoordinatorSnapshot(revision, b"a", NO_HOLDER)
        assert await before.put(revision, b"b", lease, takes=False) is None, "it is no holder"
        await now.revoke(lease)
        await before.close()
        await now.close()

    asyncio.run(run())


def test_a_lease_that_is_not_renewed_ends_although_its_process_runs(
    zookeeper: ZooKeeperCluster,
) -> None:
    async def run() -> None:
        one, two = (made(zookeeper.servers, "silent") for _ in range(2))
        lease, ttl_ms = await one.grant(1_000)
        assert ttl_ms == 1_000
        revision = await one.put(0, b"a", lease, takes=True)
        assert revision is not None
        while (await two.read()).holder == lease:
            await asyncio.sleep(0.02)
        put = partial(one.put, takes=False)
        assert await until_answered(put, revision, b"b", lease) is None
        with_another, _ = await two.grant(60_000)
        assert await two.put(revision, b"b", with_another, takes=True) is not None
        while await until_answered(one.renew, lease):
            await asyncio.sleep(0.02)
        await one.close()
        await two.close()

    asyncio.run(run())


async def until_answered(call, *given):  # type: ignore[no-untyped-def]
    while True:
        try:
            return await call(*given)
        except CoordinatorUnreachable:
            await asyncio.sleep(0.02)


def test_a_record_that_somebody_has_deleted_is_made_anew(zookeeper: ZooKeeperCluster) -> None:
    async def run() -> None:
        coordinator = made(zookeeper.servers, "deleted")
        lease, _ = await coordinator.grant(60_000)
        assert await coordinator.put(0, b"a", lease, takes=True) == 1
        await coordinator.revoke(lease)
        operator = ZooKeeperSession(zookeeper.servers, 10_000, pings=True)
        await operator.do(lambda zk: zk.delete_async("/quorumlog/failover/deleted/record"))
        await operator.end()
        assert await coordinator.read() == CoordinatorSnapshot(0, None, NO_HOLDER)
        lease, _ = await coordinator.grant(60_000)
        assert await coordinator.put(1, b"b", lease, takes=True) is None
        assert await coordinator.put(0, b"b", lease, takes=True) == 1
        await coordinator.close()

    asyncio.run(run())


def test_a_put_whose_answer_is_lost_is_done_once_or_not_at_all(zookeeper: ZooKeeperCluster) -> None:
    async def run() -> None:
        coordinator = made(zookeeper.servers, "lost answers")
        lease, _ = await coordinator.grant(60_000)
        revision = await coordinator.put(0, b"0", lease, takes=True)
        assert revision is not None
        for number in range(1, 21):
            record = b"%d" % number
            put = asyncio.create_task(coordinator.put(revision, record, lease, takes=False))
            for _ in range(3 * number):  # at another moment each time
                await asyncio.sleep(0)
            coordinator._leases[lease]._drop()  # type: ignore[attr-defined]
            await asyncio.gather(put, return_exceptions=True)
            # Again, as the same compare-and-set: that of a request that was carried out comes too late.
            again = await until_answered(partial(coordinator.put, takes=False), revision, record, lease)
            found = await until_answered(coordinator.read)
            assert found == CoordinatorSnapshot(revision + 1, record, lease)
            assert again in (None, revision + 1)
            revision = found.revision
        await coordinator.close()

    asyncio.run(run())


def test_a_lease_outlives_a_server_that_says_nothing_more(tmp_path: Path) -> None:
    """The server is asked all the time, and does not answer: another one is."""
    try:
        with zookeeper_of_three(tmp_path) as cluster:
            asyncio.run(_outlives(cluster))
    except Unavailable as reason:
        pytest.skip(f"ZooKeeper is not to be had: {reason}")


async def _outlives(cluster: ZooKeeperCluster) -> None:
    coordinator = made(cluster.servers, "silence")
    lease, ttl_ms = await coordinator.grant(60_000)
    revision = await coordinator.put(0, b"a", lease, takes=True)
    assert revision is not None
    for number, process in enumerate(cluster.processes):
        os.kill(process.pid, signal.SIGSTOP)
        try:
            assert await until_answered(coordinator.renew, lease) == ttl_ms, number
            assert (await until_answered(coordinator.read)).holder == lease
        finally:
            os.kill(process.pid, signal.SIGCONT)
        while not any(cluster.leads(each) for each in range(3)):
            await asyncio.sleep(0.02)
    assert await until_answered(coordinator.renew, lease) == ttl_ms
    await coordinator.close()
