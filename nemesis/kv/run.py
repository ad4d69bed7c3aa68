"""Faults, one after the other, while clients work; then everything must add up."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nemesis.cluster import Cluster
from nemesis.faults import FAULTS, draw_faults
from nemesis.kv.checking import check, judge
from nemesis.kv.workers import Workers
from quorumlog.server.free_ports import free_ports

KINDS = ("kill", "pause", "cut", "wipe")
HOLD_S = (1.0, 4.0)
BREATH_S = (0.5, 1.5)
RETENTION_BYTES = 1_000_000
"""Little, so that a directory that was lost is fed from snapshots."""
MEMBERS = 3
CHECK_TIMEOUT_S = 120.0


@dataclass(slots=True)
class Report:
    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    keys: int = 0

    def __str__(self) -> str:
        faults = ", ".join(f"{count} x {name}" for name, count in sorted(self.faults.items()))
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"seed {self.seed}: {faults}; {self.keys} keys: {counts}"


def run(
    folder: Path,
    *,
    seed: int,
    minutes: float = 0.0,
    rounds: int = 0,
    faults: Sequence[str] = KINDS,
    engine: str = "memory",
    over_etcd: bool = False,
    porcupine: bool = False,
    say: Callable[[str], None] = print,
) -> Report:
    """So many minutes, or so many rounds. `over_etcd`: clients speak etcd's gRPC API. `porcupine`: it
    judges the histories of keys, too. Raises Violation, MemberFailed, NotWhole."""
    ports = free_ports(2 * MEMBERS)
    stores, grpc = (
        [f"127.0.0.1:{port}" for port in some] for some in (ports[:MEMBERS], ports[MEMBERS:])
    )
    servers = ",".join(stores)

    def command_of(member_id: str) -> Sequence[str]:
        number = int(member_id.removeprefix("n"))
        command = (
            "kv",
            "serve",
            "--listen",
            stores[number],
            "--engine",
            engine,
            "--auto-compaction",
            "0",
        )
        return (*command, "--etcd", grpc[number], "--servers", servers) if over_etcd else command

    with Cluster(
        folder,
        MEMBERS,
        with_small_disk=False,
        seed=seed,
        retention_bytes=RETENTION_BYTES,
        command_of=command_of,
    ) as cluster:
        cluster.wait_until_whole()
        workers = Workers(",".join(grpc) if over_etcd else servers, seed, over_etcd=over_etcd)
        report = asyncio.run(_break(cluster, workers, servers, seed, minutes, rounds, faults, say))
    if porcupine:
        report.counts["keys that Porcupine takes to be linearizable"] = judge(workers.histories)
    return report


async def _break(
    cluster: Cluster,
    workers: Workers,
    servers: str,
    seed: int,
    minutes: float,
    rounds: int,
    faults: Sequence[str],
    say: Callable[[str], None],
) -> Report:
    drawn, report = random.Random(seed), Report(seed)
    kinds = [FAULTS[name] for name in faults]
    began_s = time.monotonic()
    end_s = began_s + minutes * 60
    async with workers:
        while time.monotonic() < end_s or report.faults.total() < rounds:
            await asyncio.sleep(drawn.uniform(*BREATH_S))
            leader_id = await asyncio.to_thread(cluster.wait_until_whole)
            (fault,) = draw_faults(cluster, kinds, leader_id, drawn)
            before = workers.counts.total()
            told = await asyncio.to_thread(fault.begin)
            await asyncio.sleep(drawn.uniform(*HOLD_S))
            await asyncio.to_thread(fault.end)
            await asyncio.to_thread(cluster.wait_until_whole)
            workers.check()
            report.faults[fault.name] += 1
            at = f"{time.monotonic() - began_s:5.0f} s"
            say(f"{at}  {leader_id} leads; {told}: {workers.counts.total() - before} answers meanwhile")
        await workers.stop_writing()
        await asyncio.to_thread(cluster.wait_until_whole)
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await check(workers, servers)
        report.counts, report.keys = workers.counts, len(workers.histories.of_key)
    return report
