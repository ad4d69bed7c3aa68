"""What etcd is not asked for: ten watchers of many changes, and a million keys in one member."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import uvloop

from benchmarks.kv.load import until_known
from benchmarks.peers.servers import ServerCommand, Servers
from quorumlog.errors import LedgerError
from quorumlog.kv import Put, connect_async
from quorumlog.server.free_ports import free_ports

PUTS_OF_TXN = 100
WATCHERS, EVENTS = 10, 100_000
KEYS = 1_000_000
WRITING_S = 20.0
SNAPSHOT_ENTRIES = 2_000


async def _fill(servers: str, count: int) -> None:
    async with connect_async(servers, timeout_ms=120_000) as kv:
        left = iter(range(0, count, PUTS_OF_TXN))
        shown = 0

        async def one() -> None:
            nonlocal shown
            for start in left:
                if (tenths := start * 10 // count) > shown:
                    shown = tenths
                    print(f"  {start:,} of {count:,} put", flush=True)
                puts = [
                    Put(f"{place:08}".encode(), b"v" * 64) for place in range(start, start + PUTS_OF_TXN)
                ]
                await until_known(partial(kv.txn, then=puts))

        await asyncio.gather(*[one() for _ in range(8)])


async def _watch(servers: str, events: int) -> None:
    async def one() -> int:
        seen = last = 0
        async with (
            connect_async(servers, timeout_ms=120_000) as kv,
            kv.watch_prefix(b"", first_revision=first) as watch,
        ):
            while seen < events:
                for change in await watch.batch():
                    assert change.revision >= last, (change, last)
                    last = change.revision
                    seen += 1
        return seen

    async with connect_async(servers, timeout_ms=120_000) as kv:
        first = (await kv.status()).revision + 1
    begin = time.monotonic()
    watchers = [asyncio.create_task(one()) for _ in range(WATCHERS)]
    await _fill(servers, events)
    written_s = time.monotonic() - begin
    seen = await asyncio.gather(*watchers)
    took_s = time.monotonic() - begin
    print(
        f"{events:,} changes to {WATCHERS} watchers: {sum(seen):,} told in {took_s:.1f} s, written in"
        f" {written_s:.1f} s, the clients in one process"
    )


def watched(servers: str, events: int) -> None:
    uvloop.run(_watch(servers, events))


async def _write(servers: str, folder: Path, keys: int) -> None:
    async with connect_async(servers, timeout_ms=120_000) as kv:
        waited_ms: list[float] = []
        before = {path.name for path in folder.glob("*")}
        saved = set[str]()
        end = time.monotonic() + WRITING_S
        while time.monotonic() < end:
            begin = time.perf_counter()
            await until_known(partial(kv.put, "key", b"v"))
            waited_ms.append((time.perf_counter() - begin) * 1000)
            if len(waited_ms) % 100 == 0:
                saved |= {path.name for path in folder.glob("*")} - before
    waited_ms.sort()
    whole = sum(1 for name in saved if name[-1].isdigit())
    print(
        f"{len(waited_ms):,} puts in a row while {whole} snapshots of {keys:,} keys were saved:"
        f" median {waited_ms[len(waited_ms) // 2]:.1f} ms, 99.9 % within"
        f" {waited_ms[int(len(waited_ms) * 0.999)]:.1f} ms, longest {waited_ms[-1]:.1f} ms"
    )


async def _until_there(servers: str, keys: int) -> None:
    while True:
        with suppress(LedgerError):
            async with connect_async(servers, timeout_ms=1000) as kv:
                if (await kv.range(b"\0", b"\xff", count_only=True)).total >= keys:
                    return
        await asyncio.sleep(0.05)


def large(engine: str, keys: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listen, log = (f"127.0.0.1:{port}" for port in free_ports(2))
        config = folder / "member.toml"
        config.write_text(f"snapshot_entries = {SNAPSHOT_ENTRIES}\n")
        command = [
            *(sys.executable, "-m", "quorumlog", "kv", "serve", "--id", "n0", "--members", f"n0={log}"),
            *("--data-dir", str(folder / "n0"), "--listen", listen, "--engine", engine),
            *("--config", str(config), "--log-level", "error"),
        ]
        with Servers(folder, [ServerCommand("n0", command)]):
            begin = time.monotonic()
            uvloop.run(_fill(listen, keys))
            print(f"{engine}: {keys:,} keys put in {time.monotonic() - begin:.1f} s")
            uvloop.run(_write(listen, folder / "n0" / "snapshots", keys))
        begin = time.monotonic()
        with Servers(folder, [ServerCommand("n0", command)]):
            uvloop.run(_until_there(listen, keys))
            print(f"{engine}: a start with {keys:,} keys took {time.monotonic() - begin:.1f} s")
