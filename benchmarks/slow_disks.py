"""Elections that slow disks cost, beside the release before: `python -m benchmarks.slow_disks`.

Three members as processes and eight writers of 1 KiB. Once appends are acknowledged, every sync of
the leader, of one follower or of all takes 3 s for a while. Counted are the terms that begin meanwhile
and the appends that are acknowledged.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from harness.earlier import unpack
from harness.member_processes import MemberProcesses
from quorumlog import AsyncLedgerClient, connect_async
from quorumlog.client import leader_of
from quorumlog.errors import LedgerError

HERE = Path(__file__).resolve().parent
WRITERS = 8
BODY = bytes(1024)


def main(
    slow: Annotated[float, typer.Option(help="Seconds that a sync takes.")] = 3.0,
    seconds: Annotated[float, typer.Option(help="So long disks are slow, in each turn.")] = 30.0,
    turns: Annotated[int, typer.Option(help="Of each version and place.")] = 3,
) -> None:
    """Count the elections that slow disks cost, beside the release before this one.

    Example: python -m benchmarks.slow_disks
    """
    print(f"syncs of {slow:g} s for {seconds:g} s, {turns} turns")
    print("| slow disks | version | terms begun | appends acknowledged |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="bench-slow-") as name:
        folder = Path(name)
        versions = {
            "before": _package(folder / "before", unpack(folder / "release") / "src"),
            "this": _package(folder / "this", HERE.parent / "src"),
        }
        for place in ("the leader's", "one follower's", "all"):
            found: dict[str, list[tuple[int, int]]] = {version: [] for version in versions}
            for _ in range(turns):
                for version, package in versions.items():
                    with MemberProcesses(folder / "members", package=package) as members:
                        found[version].append(uvloop.run(_measure(members, place, slow, seconds)))
            for version, rows in found.items():
                terms, appends = (", ".join(str(row[of]) for row in rows) for of in (0, 1))
                print(f"| {place} | {version} | {terms} | {appends} |", flush=True)


def _package(folder: Path, source: Path) -> Path:
    folder.mkdir()
    (folder / "quorumlog").symlink_to(source / "quorumlog")
    (folder / "sitecustomize.py").symlink_to(HERE / "slow_syncs" / "sitecustomize.py")
    return folder


async def _measure(members: MemberProcesses, place: str, slow: float, seconds: float) -> tuple[int, int]:
    """Terms that began, appends acknowledged while disks were slow."""
    async with connect_async(members.servers, timeout_ms=60_000) as client:
        await client.append(BODY)
        writers = _Writers(client)
        leader = await _leader(client)
        others = [each for each in members.members if each.member_id != leader[0]]
        chosen: Sequence[Path] = [
            each.data_dir.with_suffix(".slow")
            for each in members.members
            if place == "all" or (each is others[0] if "follower" in place else each not in others)
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(writers.write()) for _ in range(WRITERS)]
            for sign in chosen:
                sign.write_text(f"{slow}")
            before = writers.acknowledged
            await asyncio.sleep(seconds)
            found = writers.acknowledged - before
            for sign in chosen:
                sign.unlink()
            after = await _leader(client)
            for task in tasks:
                task.cancel()
        return after[1] - leader[1], found


async def _leader(client: AsyncLedgerClient) -> tuple[str, int]:
    while True:
        row = leader_of(await client.status())
        if row is not None:
            return row.id, row.term
        await asyncio.sleep(0.1)


class _Writers:
    def __init__(self, client: AsyncLedgerClient) -> None:
        self._client = client
        self.acknowledged = 0

    async def write(self) -> None:
        while True:
            with suppress(LedgerError):
                await self._client.append(BODY)
                self.acknowledged += 1


if __name__ == "__main__":
    typer.run(main)
