"""State machines: a start from a snapshot; a snapshot that goes to a wiped member while others write;
what applying and results cost."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.large import fill
from benchmarks.outcome import Outcome, Report
from harness.faults import Watch
from harness.machines import PADDED_FROM_NAME, PADDING_NAME, Idle
from harness.member_processes import MemberProcesses
from quorumlog import AsyncLedgerClient, LocalCluster, StateMachine, connect, connect_async
from quorumlog.batch import EntryBatch
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.running_group import RunningGroup, usage_of
from quorumlog.bench.workloads import LOADS_BY_NAME, measure
from quorumlog.config import MIB
from quorumlog.node.machine_runner import MachineRunner

NAME = "padded"
COMMANDS = 50
"""Behind so many of them there is a snapshot."""
OPTIONS: dict[str, Any] = {
    "state_machines": {NAME: "harness.machines:Padded"},
    "snapshot_entries": COMMANDS,
    "segment_bytes": 16 * MIB,
    "index_segment_bytes": MIB,
    "reserve_step_bytes": 4 * MIB,
}
LIMIT_S = 1800
POLL_S = 0.05
WRITERS = 64
IDLE = "idle"
APPLY_TURNS = 15
APPLY_BATCHES = 60
ECHO = "echo"
RESULT_TURNS = 7


def time_machine_start(folder: Path, log_bytes: int, snapshot_bytes: int, report: Report) -> Outcome:
    """From the new process of a group of one to a machine that has all that is committed, after
    SIGKILL. The snapshot is taken at the end of the log."""
    os.environ |= {PADDING_NAME: str(snapshot_bytes), PADDED_FROM_NAME: "0"}
    large = OPTIONS | {"segment_bytes": 1024 * MIB, "index_segment_bytes": 64 * MIB}
    with MemberProcesses(folder, count=1, flush="async", **large) as members:
        uvloop.run(fill(members, log_bytes, report))
        report(f"a snapshot of {snapshot_bytes / 1e9:g} GB")
        uvloop.run(_snapshots(members, 1))
        report(f"start of {log_bytes / 1e9:g} GB with that")
        members.members[0].kill()
        seconds = uvloop.run(_machine_started(members))
        used_s = usage_of(members.members[0].pid).cpu_seconds
    figures = {
        "log_gb": log_bytes / 1e9,
        "snapshot_gb": snapshot_bytes / 1e9,
        "start_s": seconds,
        "start_cpu_s": used_s,
    }
    note = "start_cpu_s: processor time by then, whatever else the computer does"
    return Outcome("machine-start", figures, (PromisedFigure("start_s", 5.0, False),), note)


def measure_install(folder: Path, snapshot_bytes: int, seconds: float, report: Report) -> Outcome:
    """A member is wiped whose log the others have cut: it gets their start and a snapshot, while 256
    writers append beside it."""
    # The first one is short: the log may be cut behind it, and nobody gets it.
    os.environ |= {PADDING_NAME: str(snapshot_bytes), PADDED_FROM_NAME: str(COMMANDS + 1)}
    with MemberProcesses(folder, **OPTIONS, compact_behind_snapshots=True) as members:
        report(f"a snapshot of {snapshot_bytes / 1e9:g} GB, and the log is cut behind one before it")
        uvloop.run(fill(members, 64 * MIB, report))
        uvloop.run(_snapshots(members, 2))
        uvloop.run(_until(members, lambda rows: all(row.ledger_begin_index > 0 for row in rows)))
        report(f"256 writers before, {seconds:g} s")
        load = LOADS_BY_NAME["256-writers"]
        before = uvloop.run(measure(load, RunningGroup(members.servers), seconds))
        report(f"a wiped member, and 256 writers in windows of {seconds:g} s")
        during, took_s, highest = uvloop.run(_install(members, seconds))
    figures = {
        "snapshot_gb": snapshot_bytes / 1e9,
        "seconds": took_s,
        "mb_per_second": snapshot_bytes / 1e6 / took_s,
        "anonymous_mb": highest / 1e6,
        "before_per_second": before.records_per_second,
        "during_per_second": statistics.median(during),
        "share_of_load": statistics.median(during) / before.records_per_second,
    }
    targets = (PromisedFigure("anonymous_mb", 200.0, False), PromisedFigure("share_of_load", 0.75, True))
    return Outcome("machine-install", figures, targets, "memory: of the wiped member, the highest")


async def _install(members: MemberProcesses, seconds: float) -> tuple[list[float], float, int]:
    async with connect_async(members.servers) as client:
        leader = await Watch(client, members).leader()
    member = next(m for m in reversed(members.members) if m.member_id != leader.id)
    member.kill()
    shutil.rmtree(member.data_dir)
    member.start()
    began_s = time.perf_counter()
    highest = 0
    during: list[float] = []

    async def watch() -> None:
        nonlocal highest
        while True:
            with suppress(FileNotFoundError):
                highest = max(highest, usage_of(member.pid).anonymous_bytes)
            await asyncio.sleep(POLL_S)

    async def load() -> None:
        while True:
            found = await measure(LOADS_BY_NAME["256-writers"], RunningGroup(members.servers), seconds)
            during.append(found.records_per_second)

    beside = [asyncio.create_task(watch()), asyncio.create_task(load())]
    try:
        await _until(members, lambda rows: _runs(rows, member.member_id))
        took_s = time.perf_counter() - began_s
        while not during:
            await asyncio.wait(beside, timeout=POLL_S)
            for task in beside:
                if task.done():
                    task.result()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    return during, took_s, highest


def _runs(rows: list[Any], member_id: str) -> bool:
    own = [row for row in rows if row.id == member_id and row.reachable and row.machines]
    return bool(own) and own[0].machines[0].snapshot_index >= 0 and not own[0].machines[0].problem


def _have_saved(newest: int, rows: list[Any]) -> bool:
    return all(row.machines and row.machines[0].snapshot_index > newest for row in rows)


async def _snapshots(members: MemberProcesses, count: int) -> None:
    """So many more of each member."""
    async with connect_async(members.servers) as client:
        await Watch(client, members).leader()
        machine = client.machine(NAME)
        for _ in range(count):
            rows = await client.status()
            newest = max(row.machines[0].snapshot_index for row in rows)
            await machine.append_batch([b"command"] * COMMANDS, timeout_ms=1000 * LIMIT_S)
            await _until(members, partial(_have_saved, newest))


async def _until(members: MemberProcesses, is_so: Callable[[list[Any]], bool]) -> None:
    until_s = time.perf_counter() + LIMIT_S
    async with connect_async(members.servers) as client:
        while not is_so(await client.status(timeout_ms=1000)):
            members.check_running()
            assert time.perf_counter() < until_s, "it takes too long"
            await asyncio.sleep(POLL_S)


async def _machine_started(members: MemberProcesses) -> float:
    began_s = time.perf_counter()
    members.members[0].start()
    async with connect_async(members.servers) as client:
        await client.ask(NAME, b"", timeout_ms=1000 * LIMIT_S)
    return time.perf_counter() - began_s


# ---------------------------------------------------------------- what applying costs


def measure_apply(entries: int, report: Report) -> Outcome:
    """Of a machine that does nothing, an entry, in batches of 1,024."""
    report("apply")
    batch = EntryBatch.from_bodies([bytes(100)] * 1024)
    batch.stamp(0, 1, np.arange(1024) * 148, 0)
    batch.set_channel(1)
    runner = MachineRunner("idle", 1, Idle(), 1)
    rounds = max(1, entries // 1024)
    began_s = time.perf_counter()
    for _ in range(rounds):
        runner.apply(batch)
    per_entry_us = (time.perf_counter() - began_s) * 1e6 / (1024 * rounds)
    figures = {"entries": 1024.0 * rounds, "us_an_entry": per_entry_us}
    return Outcome("machine-apply", figures, (PromisedFigure("us_an_entry", 3.0, False),))


def measure_apply_share(batches: int, report: Report) -> Outcome:
    """What a machine that does nothing costs a leader: processor time of an entry in batches that are
    commands for it, and in batches that are not, in turns. One member and its client in this process, so
    that what else the computer does takes least part in it."""
    used: dict[str, list[float]] = {"": [], IDLE: []}
    bodies = [bytes(1024)] * 256
    with LocalCluster(1, state_machines={IDLE: Idle}) as cluster, connect(cluster.servers) as log:
        log.append_batch(bodies, machine=IDLE)
        for turn in range(APPLY_TURNS):
            report(f"apply beside plain entries: turn {turn + 1} of {APPLY_TURNS}")
            for machine in used:
                began_s = time.process_time()
                for _ in range(batches):
                    log.append_batch(bodies, machine=machine)
                seconds = time.process_time() - began_s
                used[machine].append(seconds * 1e6 / (batches * len(bodies)))
    more = [applied - plain for plain, applied in zip(used[""], used[IDLE], strict=True)]
    figures = {
        "plain_us": statistics.median(used[""]),
        "applied_us": statistics.median(used[IDLE]),
        "more_us": statistics.median(more),
    }
    note = "processor time of one member and its client, an entry"
    return Outcome("machine-apply-share", figures, (PromisedFigure("more_us", 3.0, False),), note)


class Echo(StateMachine):
    def command(self, body: bytes, index: int) -> bytes:
        return body[:8]


def measure_results(seconds: float, report: Report) -> Outcome:
    """64 clients, an append each at a time: with a result, and without, in turns."""
    rates: dict[str, list[float]] = {"": [], ECHO: []}
    with LocalCluster(3, state_machines={ECHO: Echo}) as cluster:
        for turn in range(RESULT_TURNS):
            report(
                f"results of {WRITERS} clients: turn {turn + 1} of {RESULT_TURNS}, {seconds:g} s each"
            )
            for machine in rates:
                rates[machine].append(uvloop.run(_appends(cluster.servers, machine, seconds)))
    shares = [results / plain for plain, results in zip(rates[""], rates[ECHO], strict=True)]
    figures = {
        "plain_per_second": statistics.median(rates[""]),
        "results_per_second": statistics.median(rates[ECHO]),
        "share": statistics.median(shares),
    }
    return Outcome("machine-results", figures, (PromisedFigure("share", 0.8, True),))


async def _appends(servers: str, machine: str, seconds: float) -> float:
    count = 0
    body = bytes(1024)

    async def write(client: AsyncLedgerClient, until_s: float) -> None:
        nonlocal count
        while time.perf_counter() < until_s:
            await client.append(body, machine=machine)
            count += 1

    async with asyncio.TaskGroup() as tasks:
        clients = [connect_async(servers) for _ in range(WRITERS)]
        until_s = time.perf_counter() + seconds
        for client in clients:
            tasks.create_task(write(client, until_s))
    for client in clients:
        await client.close()
    return count / seconds


def main(part: str, gigabytes: float = 1.0, seconds: float = 5.0) -> None:
    """One part of what `python -m benchmarks --machines` measures, at a size of its own."""
    parts: dict[str, Callable[[Path], Outcome]] = {
        "apply": lambda folder: measure_apply(1 << 22, print),
        "apply-share": lambda folder: measure_apply_share(APPLY_BATCHES, print),
        "results": lambda folder: measure_results(seconds, print),
        "install": lambda folder: measure_install(folder, int(gigabytes * 1e9), seconds, print),
        "start": lambda folder: time_machine_start(
            folder, int(gigabytes * 1e10), int(gigabytes * 1e9), print
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in parts[part](Path(folder)).figures.items():
            print(f"{name:32} {figure:12,.2f}")


if __name__ == "__main__":
    # `python -m benchmarks.machines install 5`: a snapshot of 5 GB; `start 1`: 1 GB, and 10 GB of log.
    main(sys.argv[1], *map(float, sys.argv[2:]))
