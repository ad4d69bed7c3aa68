"""What takes minutes and gigabytes: the start of a large directory, and memory over a long run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import uvloop

from benchmarks.outcome import Outcome, Report
from harness.faults import Watch
from harness.member_processes import MemberProcess, MemberProcesses
from quorumlog import AsyncLedgerClient, connect_async
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.running_group import usage_of
from quorumlog.entry_header import HEADER_BYTES

BODY_BYTES = 1024
BATCH_RECORDS = 1024
IN_FLIGHT = 8
SAMPLE_SECONDS = 0.1
SPARSE_SHARE = 10
"""So many times as large as what a directory holds are its segments, where most are empty."""


def time_start(folder: Path, size_bytes: int, report: Report) -> Outcome:
    """From the new process to its first answer as leader, in a group of one: after SIGTERM, after
    SIGKILL, and with empty sparse segments behind its log."""
    with MemberProcesses(folder, count=1, flush="async") as members:
        member = members.members[0]
        uvloop.run(fill(members, size_bytes, report))
        figures = {"gigabytes": size_bytes / 1e9}
        for how, end in (("clean_s", MemberProcess.stop), ("killed_s", MemberProcess.kill)):
            report(f"start of {size_bytes / 1e9:g} GB, {how.removesuffix('_s')}")
            end(member)
            figures[how] = uvloop.run(_started(members))
        report(f"start of {size_bytes / 1e9:g} GB in segments of {SPARSE_SHARE * size_bytes / 1e9:g} GB")
        member.kill()
        figures["sparse_gigabytes"] = _add_sparse_segments(member.data_dir, size_bytes) / 1e9
        figures["sparse_s"] = uvloop.run(_started(members))
        figures["worst_s"] = max(figures["clean_s"], figures["killed_s"], figures["sparse_s"])
    return Outcome("start", figures, (PromisedFigure("worst_s", 3.0, False),))


def _add_sparse_segments(directory: Path, size_bytes: int) -> int:
    """The bytes of all data segments then."""
    segments = sorted(directory.rglob("data/*"))
    segment_bytes = segments[-1].stat().st_size
    while len(segments) * segment_bytes < SPARSE_SHARE * size_bytes:
        segments.append(segments[0].parent / f"{int(segments[-1].name) + segment_bytes:020d}")
        with segments[-1].open("xb") as file:
            file.truncate(segment_bytes)
    return len(segments) * segment_bytes


def measure_memory(folder: Path, size_bytes: int, report: Report) -> Outcome:
    """Highest RssAnon of three members while `size_bytes` go through them."""
    with MemberProcesses(folder) as members:
        pids = [member.pid for member in members.members]
        highest, seconds = uvloop.run(_fill_watched(members, pids, size_bytes, report))
    figures = {
        "gigabytes": size_bytes / 1e9,
        "mb_per_second": size_bytes / 1e6 / seconds,
        "anonymous_mb": highest / 1e6,
    }
    return Outcome("memory", figures, (PromisedFigure("anonymous_mb", 200.0, False),))


async def fill(members: MemberProcesses, size_bytes: int, report: Report) -> None:
    """Append `size_bytes` of entries, headers included, in batches."""
    bodies = [bytes([number % 256]) * BODY_BYTES for number in range(BATCH_RECORDS)]
    batch_bytes = BATCH_RECORDS * (BODY_BYTES + HEADER_BYTES)
    total = -(-size_bytes // batch_bytes)
    left = iter(range(total))

    async def write(client: AsyncLedgerClient) -> None:
        for number in left:
            await client.append_batch(bodies)
            if number % 64 == 0:
                report(f"filling {size_bytes / 1e9:g} GB: {number / total:.0%}")

    async with connect_async(members.servers) as client:
        await Watch(client, members).leader()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(write(client))


async def _fill_watched(
    members: MemberProcesses, pids: list[int], size_bytes: int, report: Report
) -> tuple[int, float]:
    began = time.perf_counter()
    filling = asyncio.create_task(fill(members, size_bytes, report))
    highest = 0
    while not filling.done():
        highest = max(highest, *(usage_of(pid).anonymous_bytes for pid in pids))
        await asyncio.wait([filling], timeout=SAMPLE_SECONDS)
    await filling
    return highest, time.perf_counter() - began


async def _started(members: MemberProcesses) -> float:
    began = time.perf_counter()
    members.members[0].start()
    async with connect_async(members.servers) as client:
        await Watch(client, members).leader()
    return time.perf_counter() - began
