"""The command: `python -m benchmarks`. Its status says only whether it could measure."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
import uvloop

from benchmarks.chart import draw
from benchmarks.failover import FailoverTimes, time_failovers
from benchmarks.large import LargeResult, measure_memory, time_start
from demo.faults import Watch
from demo.member_processes import MemberProcesses
from quorumlog import connect_async
from quorumlog.cli.bench import (
    Result,
    chosen_loads,
    describe_machine,
    machine_of,
    run_loads,
    scratch_directory,
    table_of,
    target_lines,
    verdict,
)
from quorumlog.cli.output import out
from quorumlog.config import DEFAULT_GROUP
from quorumlog.errors import ConfigError

START_GB = 10
MEMORY_GB = 5


def main(
    seconds: Annotated[float, typer.Option(help="How long each load is measured.", min=0.1)] = 5.0,
    kills: Annotated[int, typer.Option(help="How often the leader gets SIGKILL.", min=0)] = 20,
    stops: Annotated[int, typer.Option(help="How often the leader gets SIGSTOP.", min=0)] = 10,
    workload: Annotated[
        list[str] | None, typer.Option(help="Only this load; may be repeated.", metavar="NAME")
    ] = None,
    loads: Annotated[bool, typer.Option(help="Measure loads at all.")] = True,
    large: Annotated[
        bool,
        typer.Option(
            "--large",
            help=f"Also the start of a {START_GB} GB directory and memory over {MEMORY_GB} GB; takes"
            f" minutes and {max(START_GB, 3 * MEMORY_GB)} GB of disk.",
        ),
    ] = False,
    folder: Annotated[Path, typer.Option("--dir", help="Results; data is removed.")] = Path("bench-out"),
) -> None:
    """Measure three members on this machine: loads beside the raw limit, failovers, memory."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = out()
    try:
        chosen = chosen_loads(workload) if loads else []
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    results: list[Result] = []
    failovers: list[FailoverTimes] = []
    larges: list[LargeResult] = []
    try:
        with (
            console.status("starting three members") as status,
            scratch_directory(folder) as scratch,
        ):
            machine = machine_of(scratch)
            with MemberProcesses(data) as members:
                uvloop.run(_ready(members))
                pids = [member.pid for member in members.members]
                results += run_loads(
                    chosen, members.servers, DEFAULT_GROUP, seconds, pids, scratch, status.update
                )
                failovers = time_failovers(members, kills, stops, status.update)
            if large:
                larges.append(measure_memory(data, MEMORY_GB * 10**9, status.update))
                larges.append(time_start(data, START_GB * 10**9, status.update))
    finally:
        shutil.rmtree(data, ignore_errors=True)

    title = describe_machine(machine)
    console.print(title)
    if results:
        console.print(table_of(results))
    for line in (*target_lines(results), *_other_lines(failovers, larges)):
        console.print(line)
    rows = [result.row() for result in results]
    rows += [times.row() for times in failovers]
    rows += [result.row() for result in larges]
    _write_lines(folder / "results.jsonl", [{"machine": machine.row()}, *rows])
    draw(folder / "bench.png", results, failovers, title)
    console.print(f"Results: {folder / 'results.jsonl'}, {folder / 'bench.png'}")


async def _ready(members: MemberProcesses) -> None:
    async with connect_async(members.servers) as client:
        await Watch(client, members).leader()


def _other_lines(failovers: Sequence[FailoverTimes], larges: Sequence[LargeResult]) -> list[str]:
    lines = []
    for times in failovers:
        row = times.row()
        text = (
            f"{times.signal_name} of the leader, {row['runs']} runs: next acknowledged append after"
            f" {row['median_s']:.3f} s at the median, {row['p90_s']:.3f} s at p90,"
            f" {row['worst_s']:.3f} s at worst, target at most {times.target_s:g} s at the median"
        )
        lines.append(verdict(text, times.is_met))
    for result in larges:
        figures = ", ".join(f"{name} {value:,.2f}" for name, value in result.figures.items())
        text = f"{result.name}: {figures}, target {result.figure} at most {result.bound:g}"
        lines.append(verdict(text, result.is_met))
    return lines


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    typer.run(main)
