"""What programs do with aetcd: python use_aetcd.py HOST:PORT.

It prints a line for each step.
"""

from __future__ import annotations

import asyncio
import sys

import aetcd

TIMEOUT_S = 30


async def main(address: str) -> None:
    host, port = address.split(":")
    async with aetcd.Client(host=host, port=int(port), timeout=TIMEOUT_S) as client:
        await client.delete_prefix(b"aio/")  # of an attempt before
        for step in (keys, transactions, watches, leases, locks, cluster):
            await step(client)
            print(step.__name__, flush=True)


async def keys(client: aetcd.Client) -> None:
    await client.put(b"aio/a", b"1")
    found = await client.get(b"aio/a")
    assert (found.value, found.version) == (b"1", 1)
    assert (await client.put(b"aio/a", b"2", prev_kv=True)).prev_kv.value == b"1"
    assert await client.get(b"aio/nothing") is None
    await client.put(b"aio/b", b"b")
    by_key = await client.get_prefix(b"aio/", sort_order="descend", sort_target="key")
    assert [each.key for each in by_key] == [b"aio/b", b"aio/a"]
    assert await client.replace(b"aio/a", b"2", b"3")
    assert not await client.replace(b"aio/a", b"2", b"4")
    assert (await client.delete(b"aio/a", prev_kv=True)).prev_kv.value == b"3"
    assert (await client.delete_prefix(b"aio/")).deleted == 1


async def transactions(client: aetcd.Client) -> None:
    of = client.transactions
    await client.put(b"aio/txn", b"1")
    held, answers = await client.transaction(
        compare=[of.value(b"aio/txn") == b"1", of.create(b"aio/other") == 0],
        success=[of.put(b"aio/other", b"2"), of.get(b"aio/other")],
        failure=[of.delete(b"aio/txn")],
    )
    assert held and answers[1][0][0] == b"2"
    held, _ = await client.transaction(
        compare=[of.version(b"aio/txn") == 0], success=[], failure=[of.delete(b"aio/txn")]
    )
    assert not held and await client.get(b"aio/txn") is None


async def watches(client: aetcd.Client) -> None:
    watch = await client.watch_prefix(b"aio/watch/", prev_kv=True)
    await client.put(b"aio/watch/a", b"1")
    await client.put(b"aio/watch/a", b"2")
    await client.delete(b"aio/watch/a")
    seen = []
    async for event in watch:
        seen.append((str(event.kind), event.kv.value, event.prev_kv and event.prev_kv.value))
        if len(seen) == 3:
            break
    assert [each[0][-6:] for each in seen] == ["PUT", "PUT", "DELETE"], seen
    assert [each[1] for each in seen[:2]] == [b"1", b"2"] and seen[1][2] == b"1", seen
    await watch.cancel()


async def leases(client: aetcd.Client) -> None:
    lease = await client.lease(60)
    await client.put(b"aio/leased", b"1", lease=lease)
    assert await lease.granted_ttl() == 60 and 0 < await lease.remaining_ttl() <= 60
    assert await lease.keys() == [b"aio/leased"]
    await lease.refresh()
    await lease.revoke()
    assert await client.get(b"aio/leased") is None


async def locks(client: aetcd.Client) -> None:
    first, second = client.lock(b"aio/lock", ttl=60), client.lock(b"aio/lock", ttl=60)
    assert await first.acquire(timeout=TIMEOUT_S) and await first.is_acquired()
    waits = asyncio.create_task(second.acquire(timeout=TIMEOUT_S))
    assert await first.release()
    assert await waits and await second.is_acquired()
    assert await second.release()


async def cluster(client: aetcd.Client) -> None:
    members = [member async for member in client.members()]
    assert members and all(member.client_urls for member in members)
    assert (await client.status()).version
    await client.defragment()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
