"""The guard against rot: `python -m benchmarks.quick`, a minute's look at CPU per record.

On a shared machine throughput says more about the hour than about the code; processor time per record,
divided by that of a fixed loop measured in the same run, says what the code costs. The figures last
agreed to lie in `quick.json`. A report to read before a change of the data plane, never a test.
"""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import uvloop
from isal.isal_zlib import crc32
from rich.table import Table

from benchmarks.links import servers_leader_first
from harness.member_processes import MemberProcesses
from harness.signals import end_as_ctrl_c_does
from quorumlog.bench.machine import machine_of
from quorumlog.bench.workloads import LOADS_BY_NAME, measure
from quorumlog.cli.bench_tables import figure_table
from quorumlog.cli.output import out

KEPT = Path(__file__).parent / "quick.json"
LOADS = ("one-writer", "64-writers", "256-writers", "batches", "small-records", "sequential-read")
REPETITIONS = 3
SECONDS = 1.2
NOTABLE = 0.10
"""Below this two looks at the same code differ too."""
_CALIBRATION_ROUNDS = 12_000


def main(
    keep: Annotated[
        bool, typer.Option("--keep", help="Agree: write the figures to quick.json.")
    ] = False,
    folder: Annotated[Path, typer.Option("--dir", help="Data, removed at the end.")] = Path("bench-out"),
) -> None:
    """Compare the CPU per record of the main paths with the figures kept in the repository.

    Example: python -m benchmarks.quick
    """
    end_as_ctrl_c_does()
    console = out()
    data = folder / "quick"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with console.status("starting three members") as status, MemberProcesses(data) as members:
            uvloop.run(servers_leader_first(members))
            costs = _measure(members, status.update)
        machine = machine_of(str(folder)).describe()
    finally:
        shutil.rmtree(data, ignore_errors=True)
    kept: dict[str, float] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    console.print(machine)
    console.print(table_of(costs, kept))
    for line in verdicts(costs, kept):
        console.print(line)
    if keep:
        KEPT.write_text(
            json.dumps({name: round(cost, 3) for name, cost in costs.items()}, indent=2) + "\n"
        )
        console.print(f"kept in {KEPT.name}")


def _measure(members: MemberProcesses, report: Callable[[str], None]) -> dict[str, float]:
    """Processor time of all members for a record, in rounds of the calibration; the median."""
    found: dict[str, list[float]] = {name: [] for name in LOADS}
    for number in range(REPETITIONS):
        for load in (LOADS_BY_NAME[name] for name in LOADS):
            report(f"{load.name}, {number + 1} of {REPETITIONS}")
            before_s = calibration_s()
            measured = uvloop.run(measure(load, members.running_group, SECONDS))
            unit_s = (before_s + calibration_s()) / 2
            found[load.name].append(measured.cpu_seconds_per_million / 1e6 / unit_s)
    return {name: statistics.median(costs) for name, costs in found.items()}


def calibration_s() -> float:
    """Processor seconds of one round of what a member does all day: interpreter, numpy, CRC, sockets."""
    ours, theirs = socket.socketpair()
    body = bytes(1024)
    sizes = np.full(64, 1072)
    total = 0
    with ours, theirs:
        began_s = time.process_time()
        for number in range(_CALIBRATION_ROUNDS):
            ours.send(body)
            received = theirs.recv(4096)
            total ^= crc32(received, number)
            for size in (len(received), len(body), number):
                total = (total + size * 31) & 0xFFFFFFFF
            if number % 8 == 0:
                total += int(np.cumsum(sizes)[-1])
        return (time.process_time() - began_s) / _CALIBRATION_ROUNDS


def table_of(costs: dict[str, float], kept: dict[str, float]) -> Table:
    """Both in rounds of the calibration loop."""
    table = figure_table(("workload",), ("CPU/record", "kept", "change"))
    for name, cost in costs.items():
        before = kept.get(name)
        change = "-" if before is None else f"{cost / before - 1:+.0%}"
        table.add_row(name, f"{cost:.3f}", "-" if before is None else f"{before:.3f}", change)
    table.caption = "CPU/record: of all members, in rounds of a loop that was timed beside each load."
    return table


def verdicts(costs: dict[str, float], kept: dict[str, float]) -> list[str]:
    """What became notably slower or faster, in sentences."""
    lines = []
    for name, cost in costs.items():
        change = cost / kept[name] - 1 if name in kept else 0.0
        if change > NOTABLE:
            lines.append(f"[red]slower[/]  {name}: {change:.0%} more CPU per record than was kept")
        elif change < -NOTABLE:
            lines.append(f"[green]faster[/]  {name}: {-change:.0%} less; --keep remembers it")
    return lines or [f"nothing changed by more than {NOTABLE:.0%}"]


if __name__ == "__main__":
    typer.run(main)
