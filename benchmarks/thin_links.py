"""A follower behind a thin link: how much of what the link could carry it gets.

    python -m benchmarks.thin_links --kib-per-second 100 --megabytes 10

It was down while the others took so much, and comes back behind a proxy that lets through so many
bytes a second on each connection from the leader to it. The goodput is that of the entries, from its
first answer on.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from benchmarks.links import PROXY_NOTE, DelayedMembers
from benchmarks.outcome import Outcome, Report, outcome_table_of
from harness.faults import Watch
from quorumlog import connect_async
from quorumlog.bench.figures import PromisedFigure
from quorumlog.cli.output import out
from quorumlog.config import KIB
from quorumlog.entry_header import HEADER_BYTES

BODY_BYTES = 1024
BATCH_RECORDS = 500
ENTRY_BYTES = HEADER_BYTES + BODY_BYTES
"""Of all entries here, but for the few that open a term."""
POLL_S = 0.02
STATUS_TIMEOUT_MS = 1000
MOST_TIMES = 4
"""How much longer than a full link needs a follower may take before it is given up."""


def measure_thin_link(folder: Path, kib_per_second: float, size_bytes: int, report: Report) -> Outcome:
    bytes_per_second = kib_per_second * KIB
    with DelayedMembers(folder) as members:
        seconds, caught_up_bytes = uvloop.run(_catch_up(members, bytes_per_second, size_bytes, report))
    figures = {
        "kib_per_second": kib_per_second,
        "megabytes": caught_up_bytes / 1e6,
        "seconds": seconds,
        "share_of_link": caught_up_bytes / seconds / bytes_per_second,
    }
    return Outcome("thin-link", figures, (PromisedFigure("share_of_link", 0.9, True),), PROXY_NOTE)


async def _catch_up(
    members: DelayedMembers, bytes_per_second: float, size_bytes: int, report: Report
) -> tuple[float, int]:
    """(seconds, bytes that came in them)."""
    async with connect_async(members.servers) as client:
        leader_id = (await Watch(client, members).leader()).id
    behind = next(m for m in reversed(members.members) if m.member_id != leader_id)
    behind.stop()
    async with connect_async(members.servers) as client:
        for _ in range(-(-size_bytes // (BATCH_RECORDS * ENTRY_BYTES))):
            await client.append_batch([bytes(BODY_BYTES)] * BATCH_RECORDS)
    members.set_bandwidth(bytes_per_second, (leader_id, behind.member_id))
    report(f"{size_bytes / 1e6:g} MB through {bytes_per_second / KIB:g} KiB/s")
    behind.start()
    limit_s = MOST_TIMES * size_bytes / bytes_per_second
    began_s, first = 0.0, -1
    async with connect_async(members.servers) as client:
        goal = max(row.committed_index for row in await client.status())
        while True:
            rows = await client.status(timeout_ms=STATUS_TIMEOUT_MS)
            own = next((row for row in rows if row.id == behind.member_id), None)
            if own is not None and own.reachable:
                if not began_s:
                    began_s, first = time.perf_counter(), own.durable_index
                seconds = time.perf_counter() - began_s
                if own.durable_index >= goal or seconds > limit_s:
                    return seconds, (own.durable_index - first) * ENTRY_BYTES
            await asyncio.sleep(POLL_S)


def main(
    kib_per_second: Annotated[
        list[float], typer.Option(help="Of the link; may be given several times.", min=1)
    ],
    megabytes: Annotated[float, typer.Option(help="What the follower lacks.", min=0.1)] = 10.0,
) -> None:
    outcomes = []
    for rate in kib_per_second:
        with tempfile.TemporaryDirectory(prefix="quorumlog-thin-") as folder:
            outcomes.append(
                measure_thin_link(Path(folder), rate, int(megabytes * 1e6), lambda text: None)
            )
    out().print(outcome_table_of(outcomes))


if __name__ == "__main__":
    typer.run(main)
