"""A new member that fetches a long log while 256 writers append: how long until it votes, what the
writers lose meanwhile, and how many elections there were."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from benchmarks.large import fill
from benchmarks.outcome import Outcome, Report
from harness.faults import Watch
from harness.member_processes import MemberProcess, MemberProcesses
from quorumlog import AsyncLedgerClient, MembershipRefused, OutcomeUnknown, connect_async
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.running_group import RunningGroup
from quorumlog.bench.workloads import LOADS_BY_NAME, measure
from quorumlog.client.status_rows import MemberStatusRow, leader_of
from quorumlog.server.free_ports import free_ports

LOAD = "256-writers"
NEW_ID = "n9"
ASK_EVERY_S = 0.1
LIMIT_S = 3600.0
TARGETS = (PromisedFigure("share_of_load", 0.75, True), PromisedFigure("elections", 0.0, False))


def measure_learner(folder: Path, size_bytes: int, seconds: float, report: Report) -> Outcome:
    """`seconds`: of the load before, and of each look at it meanwhile."""
    with MemberProcesses(folder) as members:
        uvloop.run(fill(members, size_bytes, report))
        report(f"{LOAD} before, {seconds:g} s")
        group = RunningGroup(members.servers)
        before = uvloop.run(measure(LOADS_BY_NAME[LOAD], group, seconds)).records_per_second
        new = _new_member(folder, members)
        new.start()
        try:
            took_s, terms, during = uvloop.run(_promoted(members, new, seconds, report))
        finally:
            new.destroy()
    figures = {
        "gigabytes": size_bytes / 1e9,
        "seconds": took_s,
        "before_per_second": before,
        "during_per_second": statistics.median(during),
        "share_of_load": statistics.median(during) / before,
        "elections": float(terms),
    }
    return Outcome("learner", figures, TARGETS, "seconds: until it votes")


def _new_member(folder: Path, members: MemberProcesses) -> MemberProcess:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    listed = [f"{each.member_id}={each.address}" for each in members.members]
    return MemberProcess(NEW_ID, address, folder, ",".join([*listed, f"{NEW_ID}={address}"]), "")


async def _promoted(
    members: MemberProcesses, new: MemberProcess, seconds: float, report: Report
) -> tuple[float, int, list[float]]:
    """(seconds until it votes, terms that began meanwhile, records per second of each look)."""
    during: list[float] = []
    group = RunningGroup(members.servers)
    async with connect_async(members.servers) as client:
        first_term = (await Watch(client, members).leader()).term
        began_s = time.perf_counter()
        adding = asyncio.create_task(_add(client, new, report))
        try:
            while not adding.done():
                try:
                    during.append(
                        (await measure(LOADS_BY_NAME[LOAD], group, seconds)).records_per_second
                    )
                except OutcomeUnknown as error:
                    report(f"a look at the load ended: {error}")  # the election is counted
            took_s = await adding - began_s
        finally:
            adding.cancel()
        last_term = (await Watch(client, members).leader()).term
    return took_s, last_term - first_term, during


async def _add(client: AsyncLedgerClient, new: MemberProcess, report: Report) -> float:
    """When it was done."""
    until_s = time.perf_counter() + LIMIT_S
    said = ""
    for verb, address in (("add", new.address), ("promote", "")):
        is_unknown = False
        while True:
            try:
                await client.change_members(verb, new.member_id, address)
                break
            except MembershipRefused as error:
                if not error.retry_after_ms and is_unknown:
                    break  # it was carried out
                if not error.retry_after_ms or time.perf_counter() > until_s:
                    raise
            except OutcomeUnknown:
                is_unknown = True
            progress = f"{verb}: {_progress(await client.status())}"
            if progress != said:
                report(progress)
            said = progress
            await asyncio.sleep(ASK_EVERY_S)
    return time.perf_counter()


def _progress(rows: Sequence[MemberStatusRow]) -> str:
    leader = leader_of(rows)
    found = [] if leader is None else [info for info in leader.members if info.id == NEW_ID]
    if not found or found[0].behind_bytes < 0:
        return "waiting"
    behind_bytes, rate = found[0].behind_bytes, found[0].bytes_per_second
    left = f", {behind_bytes / rate:.0f} s left" if rate > 0 else ""
    return f"{behind_bytes / 1e6:.0f} MB behind{left}"
