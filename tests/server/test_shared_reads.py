"""Many readers of the same entries cost the member one read of its file, or none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from quorumlog import AsyncLedgerClient, LocalCluster, connect, connect_async
from quorumlog.batch import EntryBatch
from quorumlog.errors import DirectoryDamaged, LedgerError, RangeDamaged
from quorumlog.store.log_points import LogRange
from quorumlog.version import IS_COMPILED

pytestmark = pytest.mark.skipif(
    IS_COMPILED, reason="what is compiled takes no stub, and no other method"
)
READERS = 100
BODIES = [b"%03d" % number * 100 for number in range(500)]


class WatchedReads:
    """Counts the reads of n0's files, and holds them back while `gate` is closed."""

    def __init__(self, cluster: LocalCluster) -> None:
        driver = cluster.server("n0").drivers[0]
        self._read: Callable[[int, int, int], tuple[LogRange, EntryBatch]] = driver.node.store.read_from
        driver.node.store.read_from = self._counted  # type: ignore[method-assign, assignment]
        self.count = 0
        self.gate = threading.Event()
        self.failure: LedgerError | None = None

    def _counted(
        self, first_index: int, stop_index: int, limit_bytes: int
    ) -> tuple[LogRange, EntryBatch]:
        self.count += 1
        self.gate.wait(60)
        if self.failure is not None:
            raise self.failure
        return self._read(first_index, stop_index, limit_bytes)


async def bodies_of(client: AsyncLedgerClient, stop_index: int) -> list[bytes]:
    return [entry.body async for entry in client.read(1, stop_index)]


async def read_together(servers: str, reads: WatchedReads, *stop_indices: int) -> list[object]:
    """What the readers get whose requests are all at the server before it may read anything."""
    clients = [connect_async(servers) for _ in stop_indices]
    for client in clients:
        (row,) = await client.status()
        last = [entry async for entry in client.read_batches(row.committed_index)]
        assert len(last) == 1  # from memory; and by now the client has found its server
    found = [
        asyncio.create_task(bodies_of(client, stop_index))
        for client, stop_index in zip(clients, stop_indices, strict=True)
    ]
    for client in clients:
        await client.status()  # is answered behind the reads that went before it
    reads.gate.set()
    results = await asyncio.gather(*found, return_exceptions=True)
    for client in clients:
        await client.close()
    return list(results)


def with_old_entries(cluster: LocalCluster) -> WatchedReads:
    """`BODIES` from index 1 on, in files and no more in memory."""
    with connect(cluster.servers) as log:
        log.append_batch(BODIES)
    cluster.stop("n0")
    cluster.restart("n0")
    with connect(cluster.servers) as log:
        log.append(b"new")
    return WatchedReads(cluster)


def test_readers_that_begin_together_share_one_read_of_the_file() -> None:
    with LocalCluster(1) as cluster:
        reads = with_old_entries(cluster)
        found = asyncio.run(read_together(cluster.servers, reads, *[401] * READERS))
        assert found == [BODIES[:400]] * READERS
        assert reads.count == 1
        with connect(cluster.servers) as log:
            assert [entry.body for entry in log.read(1, 401)] == BODIES[:400]
        assert reads.count == 2  # what is done is not kept


def test_readers_of_different_ranges_get_each_their_own() -> None:
    with LocalCluster(1) as cluster:
        reads = with_old_entries(cluster)
        found = asyncio.run(read_together(cluster.servers, reads, 11, 21, 11, 31))
        assert found == [BODIES[:10], BODIES[:20], BODIES[:10], BODIES[:30]]
        assert reads.count == 3


def test_damage_is_told_to_every_reader_that_shares_the_read() -> None:
    with LocalCluster(1) as cluster:
        reads = with_old_entries(cluster)
        reads.failure = DirectoryDamaged("a flipped bit", path="data", position=48, index=1)
        found = asyncio.run(read_together(cluster.servers, reads, *[401] * 5))
        assert [type(error) for error in found] == [RangeDamaged] * 5
        assert all("a flipped bit" in str(error) for error in found)


@pytest.mark.parametrize("at_once", [1, 3])
def test_readers_at_the_end_of_the_log_never_touch_the_file(at_once: int) -> None:
    async def follow(client: AsyncLedgerClient, first_index: int, count: int) -> list[bytes]:
        bodies: list[bytes] = []
        async for entry in client.tail(first_index):
            bodies.append(entry.body)
            if len(bodies) == count:
                break
        return bodies

    async def main(servers: str) -> None:
        async with connect_async(servers) as writer:
            first_index = (await writer.append(b"before")).last_index + 1
            clients = [connect_async(servers) for _ in range(READERS)]
            bodies = [b"%d" % number for number in range(10 * at_once)]
            tails = [asyncio.create_task(follow(c, first_index, len(bodies))) for c in clients]
            for client in clients:
                await client.status()  # the tails wait at the server by now, or will ask in a moment
            for start in range(0, len(bodies), at_once):
                await asyncio.gather(*(writer.append(b) for b in bodies[start : start + at_once]))
            found = await asyncio.gather(*tails)
            assert found == [found[0]] * READERS
            assert sorted(found[0]) == sorted(bodies)
            for client in clients:
                await client.close()

    with LocalCluster(1) as cluster:
        reads = WatchedReads(cluster)
        reads.gate.set()
        asyncio.run(main(cluster.servers))
        assert reads.count == 0
