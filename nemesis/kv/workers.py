"""Workers: clients that read and write a few keys, watch all of them, hold locks and let leases end.

They are clients of ours, or of etcd's API. Times are milliseconds of one clock of this machine.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import Any

from nemesis.kv.over_etcd import EtcdClient
from quorumlog.errors import LedgerError
from quorumlog.kv import AsyncKeyValueClient
from quorumlog.kv.client.values import Change
from sim.kv.histories import (
    MISSING,
    Deleted,
    Histories,
    Looked,
    SeenLease,
    SeenLock,
    SeenWatch,
    Wrote,
    is_open,
)
from sim.kv.linearizability import UNKNOWN, TimedOperation

Client = AsyncKeyValueClient | EtcdClient
WRITERS, LOCKERS, WATCHERS = 4, 2, 2
KEYS = 3
EPOCH_MS = 10_000.0
"""Then other keys: a history of one key stays short enough to be searched."""
PAUSE_S = 0.02
TIMEOUT_S = 3.0
LEASE_S = 2.0
HELD_S = 0.2
PREFIX, LEASES, LOCK = b"k/", b"l/", b"lock"


def now_ms() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000


class Workers:
    """`async with Workers(servers, seed)`; `stop` before it ends."""

    def __init__(self, servers: str, seed: int, *, over_etcd: bool = False) -> None:
        """`over_etcd`: the servers are those of etcd's API."""
        self._servers = servers.split(",")
        self._over_etcd = over_etcd
        self._seed = seed
        self._began_ms = now_ms()
        self.histories = Histories()
        self.counts: Counter[str] = Counter()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def client(self, name: str) -> Client:
        """With its own order of members, so that watches are told by any of them."""
        servers = list(self._servers)
        Random(f"{self._seed}:{name}").shuffle(servers)
        timeout_ms = 1000 * TIMEOUT_S
        client = (
            EtcdClient(servers, timeout_ms)
            if self._over_etcd
            else AsyncKeyValueClient(",".join(servers), timeout_ms=timeout_ms)
        )
        return await self._stack.enter_async_context(client)

    async def __aenter__(self) -> Workers:
        works = [
            *((f"w{number}", self._write) for number in range(WRITERS)),
            *((f"d{number}", self._lock) for number in range(LOCKERS)),
            ("l", self._lease),
        ]
        for number in range(WATCHERS):
            client = await self.client(f"s{number}")
            self._tasks.append(asyncio.create_task(self._watch(client)))
        client = await self.client("e")
        self._tasks.append(asyncio.create_task(self._watch_leases(client)))
        for name, work in works:
            client = await self.client(name)
            worker = Random(f"{self._seed}:{name}")
            self._tasks.append(asyncio.create_task(work(client, worker, name)))
        return self

    async def __aexit__(self, *reason: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def stop_writing(self) -> None:
        """Watches go on. Raises what a worker has failed with."""
        self._stop.set()
        await asyncio.gather(*self._tasks[WATCHERS + 1 :])

    def check(self) -> None:
        """Raises what a worker has failed with."""
        for task in self._tasks:
            if task.done():
                task.result()

    # ---------------------------------------------------------------- keys

    def keys(self, random: Random) -> bytes:
        epoch = int((now_ms() - self._began_ms) / EPOCH_MS)
        return PREFIX + b"%d/%d" % (epoch, random.randrange(KEYS))

    async def _write(self, client: Client, random: Random, name: str) -> None:
        writes = 0
        while not self._stop.is_set():
            await asyncio.sleep(random.expovariate(1 / PAUSE_S))
            key = self.keys(random)
            kind = random.random()
            writes += 1
            value = f"{name}.{writes}".encode()
            if kind < 0.35:
                await self._note(key, Wrote(value, None), client.put(key, value))
            elif kind < 0.5:
                found = await self.look(client, key)
                if found is not None:
                    expected = found[1]
                    put = client.compare_and_set(key, value, expected_revision=expected)
                    await self._note(key, Wrote(value, expected), put)
            elif kind < 0.58:
                await self._note(key, Deleted(), client.delete(key))
            else:
                await self.look(client, key)

    async def look(self, client: Client, key: bytes) -> tuple[bytes, int] | None:
        """(value, revision); None: nobody has answered."""
        called_ms = now_ms()
        try:
            item = await client.get(key)
        except LedgerError:
            self.counts["unanswered reads"] += 1
            return None
        found = MISSING if item is None else (item.value, item.mod_revision)
        self._happened(key, called_ms, Looked(), found)
        return found

    async def _note(self, key: bytes, asked: Wrote | Deleted, doing: Any) -> None:
        called_ms = now_ms()
        try:
            done = await doing
        except LedgerError as error:
            if is_open(error):
                self.counts["of unknown outcome"] += 1
                never = TimedOperation(called_ms, float("inf"), asked, UNKNOWN)
                self.histories.of_key[key].append(never)
            return
        if isinstance(asked, Deleted):
            outcome = done.revision if done.deleted else 0
        else:
            outcome = None if done is None else done.revision
        self._happened(key, called_ms, asked, outcome)

    def _happened(self, key: bytes, called_ms: float, asked: Any, outcome: object) -> None:
        self.histories.of_key[key].append(TimedOperation(called_ms, now_ms(), asked, outcome))
        self.counts[type(asked).__name__.lower()] += 1

    # ---------------------------------------------------------------- watches

    async def _watch(self, client: Client) -> None:
        seen = SeenWatch(PREFIX, 0)
        self.histories.watches.append(seen)
        async with client.watch_prefix(PREFIX) as watch:
            seen.first_revision = seen.next_revision = watch.next_revision
            while True:
                changes = await watch.batch()
                seen.changes += map(seen_change, changes)
                seen.next_revision = changes[-1].revision + 1
                self.counts["watched"] += len(changes)

    async def _watch_leases(self, client: Client) -> None:
        """When its key goes, a lease has ended."""
        async with client.watch_prefix(LEASES) as watch:
            async for change in watch:
                if change.is_deletion:
                    lease = int(change.item.key.removeprefix(LEASES))
                    self.histories.ended_ms.setdefault(lease, now_ms())

    # ---------------------------------------------------------------- leases and locks

    async def _lease(self, client: Client, random: Random, name: str) -> None:
        """One after the other: kept alive a few times, and left."""
        while not self._stop.is_set():
            with suppress(LedgerError):
                sent_ms = now_ms()
                lease = await client.grant(LEASE_S)
                await client.put(LEASES + b"%d" % lease.id, b"", lease=lease.id)
                seen = SeenLease(lease.id, lease.ttl_ms, [sent_ms])
                self.histories.leases.append(seen)
                for _ in range(random.randrange(6)):
                    await asyncio.sleep(lease.ttl_ms / 1000 * random.uniform(0.2, 0.7))
                    sent_ms = now_ms()
                    await lease.keep_alive_once()
                    seen.sent_ms.append(sent_ms)
                    self.counts["kept alive"] += 1
            await asyncio.sleep(random.expovariate(1 / PAUSE_S))

    async def _lock(self, client: Client, random: Random, name: str) -> None:
        while not self._stop.is_set():
            lock = client.lock(LOCK, ttl_s=LEASE_S)
            with suppress(LedgerError, TimeoutError):
                token = await lock.acquire(timeout_ms=1000 * 2 * TIMEOUT_S)
                from_ms = now_ms()
                await asyncio.sleep(random.expovariate(1 / HELD_S))
                until_ms = now_ms()
                if lock.is_held:  # else it does not say that it held it until now
                    self.histories.locks.append(SeenLock(LOCK, token, from_ms, until_ms))
                    self.counts["locked"] += 1
            with suppress(LedgerError):
                await lock.release()
            await asyncio.sleep(random.expovariate(1 / PAUSE_S))


def seen_change(change: Change) -> tuple[int, bytes, int]:
    return change.revision, change.item.key, change.item.version
