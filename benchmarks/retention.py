"""What a group takes of memory and disk while old segments go, under a constant load."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.outcome import Outcome, Report
from harness.member_processes import MemberProcesses
from quorumlog import AsyncLedgerClient, connect_async
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.running_group import usage_of
from quorumlog.bench.workloads import bodies_of
from quorumlog.config import MIB

SEGMENT_BYTES = 16 * MIB
RETENTION_BYTES = 64 * MIB
OPTIONS: dict[str, Any] = {
    "segment_bytes": SEGMENT_BYTES,
    "index_segment_bytes": MIB,
    "reserve_step_bytes": SEGMENT_BYTES // 4,
    "retention_bytes": RETENTION_BYTES,
    "retention_follower_budget_bytes": RETENTION_BYTES,
}
BATCH_RECORDS, RECORD_BYTES = 64, 1024
BATCHES_PER_SECOND = 32
LOOK_SECONDS = 1.0
START_MS = 120_000
"""For three members to load on a machine that is busy."""
TARGETS = (
    PromisedFigure("segments_above_retention", 2.0, False),
    PromisedFigure("memory_growth", 0.05, False),
)


def measure_retention(folder: Path, seconds: float, report: Report) -> Outcome:
    """Of three members that take 2 MiB/s for `seconds`, begun once more than stays has been appended."""
    with MemberProcesses(folder, **OPTIONS) as members:
        pids = [member.pid for member in members.members]
        disks, memories = uvloop.run(_load(members.servers, pids, seconds, report))
    return retention_outcome(disks, memories, seconds)


def retention_outcome(disks: list[int], memories: list[int], seconds: float) -> Outcome:
    quarter = max(1, len(memories) // 4)
    early, late = _mean(memories[:quarter]), _mean(memories[-quarter:])
    figures = {
        "seconds": seconds,
        "retention_mib": RETENTION_BYTES / MIB,
        "disk_mib_highest": max(disks) / MIB,
        "segments_above_retention": (max(disks) - RETENTION_BYTES) / SEGMENT_BYTES,
        "memory_mib_early": early / MIB,
        "memory_mib_late": late / MIB,
        "memory_growth": late / early - 1,
    }
    note = "of the member that takes most; early and late are the first and the last quarter"
    return Outcome("retention", figures, TARGETS, note)


async def _load(
    servers: str, pids: list[int], seconds: float, report: Report
) -> tuple[list[int], list[int]]:
    """Bytes of disk and of memory of the member that takes most, each second."""
    disks: list[int] = []
    memories: list[int] = []
    batch_bytes = BATCH_RECORDS * RECORD_BYTES
    async with connect_async(servers, idempotent=True) as log:
        await log.end_index(timeout_ms=START_MS)
        writing = asyncio.create_task(_write(log))
        warm_up_s = 2 * RETENTION_BYTES / (batch_bytes * BATCHES_PER_SECOND)
        report(f"retention: {warm_up_s:g} s until segments go, {seconds:g} s measured")
        await asyncio.sleep(warm_up_s)
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s and not writing.done():
            rows = await log.status()
            disks.append(max(row.log_disk_bytes for row in rows))
            memories.append(max(usage_of(pid).anonymous_bytes for pid in pids))
            await asyncio.sleep(LOOK_SECONDS)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        if not writing.cancelled() and (error := writing.exception()) is not None:
            raise error
    return disks, memories


async def _write(log: AsyncLedgerClient) -> None:
    bodies = bodies_of(BATCH_RECORDS, RECORD_BYTES)
    next_s = time.perf_counter()
    while True:
        await log.append_batch(bodies)
        next_s += 1 / BATCHES_PER_SECOND
        await asyncio.sleep(max(0.0, next_s - time.perf_counter()))


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)
