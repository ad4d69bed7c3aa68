"""What a coordinator has to keep, whichever it is: a plug-in's tests call `keeps_the_contract`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from quorumlog.broker.failover import NO_HOLDER, Coordinator, CoordinatorSnapshot

_groups = itertools.count(1)


async def keeps_the_contract(make: Callable[[str], Coordinator]) -> None:
    """`make`: a coordinator for a group of that name; several of one group see the same."""
    group = f"group-{next(_groups)}"
    one, two, other = make(group), make(group), make(f"{group}-2")
    news = asyncio.Event()
    watch = asyncio.create_task(two.watch(news.set))
    try:
        await _takes_and_changes(one, two, other)
        await asyncio.wait_for(news.wait(), 10)
        await _a_lease_ends(one, two, news)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        for each in (one, two, other):
            await each.close()


async def _takes_and_changes(one: Coordinator, two: Coordinator, other: Coordinator) -> None:
    assert await one.read() == CoordinatorSnapshot(0, None, NO_HOLDER)
    lease, ttl_ms = await one.grant(60_000)
    assert ttl_ms >= 60_000
    first = await one.put(0, b"a", lease, takes=True)
    assert first is not None and first > 0
    assert await two.read() == CoordinatorSnapshot(first, b"a", lease)

    late, _ = await two.grant(60_000)
    assert await two.put(0, b"b", late, takes=True) is None, "the record is there already"
    assert await two.put(first, b"b", late, takes=True) is None, "somebody holds it"
    assert await two.put(first, b"b", late, takes=False) is None, "somebody else holds it"
    assert await two.put(first - 1, b"b", lease, takes=False) is None, (
        "the record is of another revision"
    )
    second = await one.put(first, b"b", lease, takes=False)
    assert second is not None and second > first
    assert await two.read() == CoordinatorSnapshot(second, b"b", lease)
    assert await one.put(first, b"c", lease, takes=False) is None, "a delayed repetition"
    assert await other.read() == CoordinatorSnapshot(0, None, NO_HOLDER), "another group"
    assert await one.renew(lease) == ttl_ms

    await one.revoke(lease)
    await one.revoke(lease)
    assert await one.renew(lease) == 0
    assert await two.read() == CoordinatorSnapshot(second, b"b", NO_HOLDER), "the record stays"
    assert await one.put(second, b"c", lease, takes=False) is None, "its lease has ended"
    assert await one.put(second, b"c", lease, takes=True) is None, "its lease has ended"
    third = await two.put(second, b"c", late, takes=True)
    assert third is not None and third > second
    assert await one.read() == CoordinatorSnapshot(third, b"c", late)
    await two.revoke(late)


async def _a_lease_ends(one: Coordinator, two: Coordinator, news: asyncio.Event) -> None:
    lease, _ = await one.grant(1_000)
    revision = (await one.read()).revision
    assert await one.put(revision, b"d", lease, takes=True) is not None
    news.clear()
    async with asyncio.timeout(30):
        while (await two.read()).holder == lease:
            await news.wait()
            news.clear()
    assert await one.renew(lease) == 0
