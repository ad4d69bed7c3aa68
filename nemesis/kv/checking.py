"""What must hold once the faults are over: of what clients saw, and of what the members have."""

from __future__ import annotations

import asyncio
import time

from harness.porcupine.compare import verdicts
from harness.porcupine.registers import of_store
from nemesis.kv.workers import PREFIX, Workers, seen_change
from quorumlog.errors import LedgerError
from quorumlog.kv import AsyncKeyValueClient, Item
from quorumlog.testing.promises import Violation
from sim.kv.histories import Histories, SeenChange
from sim.kv.promises import check_keys, check_leases, check_locks, check_watch, settled

PATIENCE_S = 30.0
POLL_S = 0.1


async def check(workers: Workers, servers: str) -> None:
    """The members are whole, and nobody writes any more. Raises Violation."""
    histories = workers.histories
    async with AsyncKeyValueClient(servers) as client:
        for key in list(histories.of_key):  # the last word: what was acknowledged is there
            if await workers.look(client, key) is None:
                raise Violation(f"nobody answers what {key!r} is")
        truth = await _history(client)
    await _told(workers, max((each[0] for each in truth if each[1].startswith(PREFIX)), default=0))
    await _alike(servers)
    for watch in histories.watches:
        check_watch(watch, watch.first_revision, truth)
    check_keys(histories)
    check_leases(histories)
    check_locks(histories)


def judge(histories: Histories) -> int:
    """How many keys have a history that Porcupine takes to be linearizable. Raises Violation."""
    found = verdicts([of_store(settled(each)) for each in histories.of_key.values()])
    illegal = [key for key, verdict in zip(histories.of_key, found, strict=True) if verdict == "illegal"]
    if illegal:
        raise Violation(f"Porcupine: the histories of {illegal} are not linearizable")
    return found.count("ok")


async def _history(client: AsyncKeyValueClient) -> list[SeenChange]:
    """All changes since the store was made; nothing is compacted."""
    newest = (await client.prefix("", count_only=True)).revision
    found: list[SeenChange] = []
    async with client.watch_prefix(b"", first_revision=1) as watch:
        while not found or found[-1][0] < newest:
            found += map(seen_change, await watch.batch())
    return found


async def _told(workers: Workers, last: int) -> None:
    """Until each watch has told of the last change; that none is missing is looked at later."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        behind = [w for w in workers.histories.watches if w.first_revision <= last >= w.next_revision]
        if not behind:
            return
        workers.check()
        if time.monotonic() > deadline_s:
            raise Violation(f"watches stand still at {[w.next_revision for w in behind]}, not {last}")
        await asyncio.sleep(POLL_S)


async def _alike(servers: str) -> None:
    """Every member has the same keys, each as far as it has applied."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        found: list[list[Item]] = []
        for server in servers.split(","):
            try:
                async with AsyncKeyValueClient(server, timeout_ms=2000) as client:
                    found.append((await client.prefix("", stale=True)).items)
            except LedgerError:
                break
        if len(found) == len(servers.split(",")) and all(each == found[0] for each in found):
            return
        if time.monotonic() > deadline_s:
            raise Violation(f"the members differ: {[len(each) for each in found]} keys")
        await asyncio.sleep(POLL_S)
