"""A follower whose directory was wiped: how fast it has the log again, and what the others notice.

Its bandwidth, from its first answer on and of what it has synced, stands beside that of one plain writer
on the same disk, measured just before. "Caught up" means that it has synced all that was committed one
look earlier. It comes back under another directory id and so counts in no quorum.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.large import fill
from benchmarks.outcome import Outcome, Report
from harness.faults import Watch
from harness.member_processes import MemberProcesses
from quorumlog import connect_async, leader_of
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.raw_limit import RAW_SECONDS_LIMIT, measure_raw_limit
from quorumlog.bench.running_group import RunningGroup
from quorumlog.bench.workloads import LOADS_BY_NAME, Measured, measure
from quorumlog.config import MIB
from quorumlog.entry_header import HEADER_BYTES

LOADS = ("256-writers", "batches")
ENTRY_BYTES = HEADER_BYTES + 1024
"""Of all entries here, but for the few that open a term."""
RAW_WRITE_BYTES = 4 * MIB
POLL_S = 0.02
STATUS_TIMEOUT_MS = 1000
TIMEOUT_S = 600.0
TARGETS = (PromisedFigure("share_of_disk", 0.8, True),)


class CatchUp(NamedTuple):
    start_s: float
    """From the new process to its first answer."""
    seconds: float
    """From then until it had caught up, or was given up."""
    megabytes_before: float
    """That it had synced when it first answered."""
    megabytes: float
    """At the end."""
    is_complete: bool


def measure_catch_up(folder: Path, size_bytes: int, seconds: float, report: Report) -> Iterator[Outcome]:
    """A wiped follower of `size_bytes` while nothing else happens, and under each load; `seconds`: how
    long a load is measured before, and for each look meanwhile."""
    with MemberProcesses(folder) as members:
        uvloop.run(fill(members, size_bytes, report))
        disk = _disk_mb_per_second(folder, seconds, report)
        report(f"catch-up of {size_bytes / 1e9:g} GB, idle")
        found = uvloop.run(_catch_up(members))
        yield Outcome("catch-up-idle", _figures(found, disk), TARGETS)
        for name in LOADS:
            disk = _disk_mb_per_second(folder, seconds, report)
            report(f"catch-up under {name}: the load before, {seconds:g} s")
            before = _measure_load(members, name, seconds)
            report(f"catch-up of {size_bytes / 1e9:g} GB and more under {name}")
            found, during = uvloop.run(_catch_up_under_load(members, name, seconds))
            figures = _figures(found, disk) | {
                "before_per_second": before.records_per_second,
                "during_per_second": statistics.median(m.records_per_second for m in during),
                "before_p99_ms": before.p99_ms,
                "during_p99_ms": statistics.median(m.p99_ms for m in during),
                "during_p99_highest_ms": max(m.p99_ms for m in during),
            }
            note = "" if found.is_complete else f"not caught up after {TIMEOUT_S:g} s"
            yield Outcome(f"catch-up-{name}", figures, note=note)


def _figures(found: CatchUp, disk: float) -> dict[str, float]:
    rate = (found.megabytes - found.megabytes_before) / found.seconds
    return {
        "megabytes": found.megabytes,
        "start_s": found.start_s,
        "seconds": found.seconds,
        "caught_up": float(found.is_complete),
        "mb_per_second": rate,
        "disk_mb_per_second": disk,
        "share_of_disk": rate / disk,
    }


def _disk_mb_per_second(folder: Path, seconds: float, report: Report) -> float:
    report("catch-up: the disk alone")
    seconds = min(seconds, RAW_SECONDS_LIMIT)
    limit = measure_raw_limit(str(folder), RAW_WRITE_BYTES, seconds, writers=1)
    return limit.syncs_per_second * RAW_WRITE_BYTES / 1e6


def _measure_load(members: MemberProcesses, name: str, seconds: float) -> Measured:
    return uvloop.run(measure(LOADS_BY_NAME[name], RunningGroup(members.servers), seconds))


async def _catch_up_under_load(
    members: MemberProcesses, name: str, seconds: float
) -> tuple[CatchUp, list[Measured]]:
    """The load runs in windows, one after the other, until the follower has caught up."""
    load = LOADS_BY_NAME[name]
    during: list[Measured] = []
    catching_up = asyncio.create_task(_catch_up(members))
    try:
        while not catching_up.done():
            during.append(await measure(load, RunningGroup(members.servers), seconds))
        return await catching_up, during
    finally:
        catching_up.cancel()


async def _catch_up(members: MemberProcesses) -> CatchUp:
    async with connect_async(members.servers) as client:
        leader = await Watch(client, members).leader()
    member = next(m for m in reversed(members.members) if m.member_id != leader.id)
    member.kill()
    shutil.rmtree(member.data_dir)
    member.start()
    began = time.perf_counter()
    answered: float | None = None
    goal: int | None = None
    before = durable = -1
    is_complete = False
    async with connect_async(members.servers) as client:
        while not is_complete and time.perf_counter() - began < TIMEOUT_S:
            members.check_running()
            rows = await client.status(timeout_ms=STATUS_TIMEOUT_MS)
            own = next((r for r in rows if r.id == member.member_id and r.reachable), None)
            if own is not None:
                durable = own.durable_index
                if answered is None:
                    answered, before = time.perf_counter(), durable
                is_complete = goal is not None and durable >= goal
            leads = leader_of(rows)
            goal = leads.committed_index if leads is not None else goal
            await asyncio.sleep(POLL_S)
    ended = time.perf_counter()
    answered = answered or ended
    return CatchUp(
        answered - began,
        max(ended - answered, POLL_S),
        (before + 1) * ENTRY_BYTES / 1e6,
        (durable + 1) * ENTRY_BYTES / 1e6,
        is_complete,
    )
