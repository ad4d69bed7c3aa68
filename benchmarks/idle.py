"""What a group costs while nobody asks it for anything: processor time and bytes written."""

from __future__ import annotations

import time
from pathlib import Path

import uvloop

from benchmarks.outcome import Outcome, Report
from harness.faults import Watch
from harness.member_processes import MemberProcesses
from quorumlog import connect_async
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.running_group import usage_of
from quorumlog.bench.workloads import bodies_of

SETTLE_SECONDS = 6.0
"""Twice the interval of the checkpoint, the last thing that is written after an append."""
TARGETS = (
    PromisedFigure("cpu_share_highest", 0.005, False),
    PromisedFigure("bytes_written", 0.0, False),
)


def measure_idle(
    folder: Path, seconds: float, report: Report, *, settle_s: float = SETTLE_SECONDS
) -> Outcome:
    """Of three members that have appended a little before and are then left alone for `seconds`."""
    with MemberProcesses(folder) as members:
        uvloop.run(_append_a_little(members))
        report(f"idle: {settle_s:g} s to settle, {seconds:g} s measured")
        time.sleep(settle_s)
        pids = [member.pid for member in members.members]
        before = [(usage_of(pid).cpu_seconds, _bytes_written(pid)) for pid in pids]
        began = time.perf_counter()
        time.sleep(seconds)
        took = time.perf_counter() - began
        after = [(usage_of(pid).cpu_seconds, _bytes_written(pid)) for pid in pids]
    shares = [(b[0] - a[0]) / took for a, b in zip(before, after, strict=True)]
    figures = {
        "seconds": took,
        "cpu_share_highest": max(shares),
        "cpu_share_mean": sum(shares) / len(shares),
        "bytes_written": float(sum(b[1] - a[1] for a, b in zip(before, after, strict=True))),
    }
    return Outcome("idle", figures, TARGETS, "shares are of one core for one member; bytes of all three")


async def _append_a_little(members: MemberProcesses) -> None:
    async with connect_async(members.servers) as client:
        await client.append_batch(bodies_of(100, 1024))
        await Watch(client, members).all_equal()


def _bytes_written(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
