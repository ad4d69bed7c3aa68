"""The command: `python -m benchmarks`. Its status says only whether it could measure."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol, TextIO, TypeVar

import typer
import uvloop
from rich.console import Console

from benchmarks.catch_up import measure_catch_up
from benchmarks.chart import draw, draw_latencies, draw_matrix
from benchmarks.delays import measure_delays
from benchmarks.failover import FailoverTimes, time_failovers, time_hand_overs
from benchmarks.fresh_reads import measure_fresh_reads
from benchmarks.idle import measure_idle
from benchmarks.large import measure_memory, time_start
from benchmarks.learner import measure_learner
from benchmarks.links import servers_leader_first
from benchmarks.machines import (
    APPLY_BATCHES,
    measure_apply,
    measure_apply_share,
    measure_install,
    measure_results,
    time_machine_start,
)
from benchmarks.matrix import SECONDS as MATRIX_SECONDS
from benchmarks.matrix import matrix_table_of, run_matrix
from benchmarks.open_loop import OPEN_LOADS_BY_NAME, OpenLoad, open_table_of, run_open_loads
from benchmarks.outcome import Outcome, Report, outcome_table_of, reporter
from benchmarks.restarts import time_restarts
from benchmarks.retention import measure_retention
from benchmarks.sessions import measure_sessions
from benchmarks.silent import measure_silent
from harness.member_processes import MemberProcesses
from harness.signals import end_as_ctrl_c_does
from quorumlog.bench.closed_loop import Result, run_loads
from quorumlog.bench.figures import HasTargets
from quorumlog.bench.machine import machine_of
from quorumlog.bench.raw_limit import scratch_directory
from quorumlog.bench.workloads import LOADS_BY_NAME, Load, chosen
from quorumlog.cli.bench_tables import table_of, target_lines
from quorumlog.cli.output import out
from quorumlog.errors import ConfigError, LedgerError

START_GB = 10
MEMORY_GB = 5


def main(
    seconds: Annotated[float, typer.Option(help="How long each load is measured.", min=0.1)] = 5.0,
    kills: Annotated[int, typer.Option(help="How often the leader gets SIGKILL.", min=0)] = 30,
    stops: Annotated[int, typer.Option(help="How often the leader gets SIGSTOP.", min=0)] = 30,
    hand_overs: Annotated[int, typer.Option(help="How often the leader gets SIGTERM.", min=0)] = 30,
    restarts: Annotated[
        int, typer.Option(help="How often a follower is killed and restarted.", min=0)
    ] = 100,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="Only this load, closed or open; may be repeated.", metavar="NAME"),
    ] = None,
    loads: Annotated[bool, typer.Option(help="Measure loads in closed loops.")] = True,
    open_loop: Annotated[
        bool, typer.Option(help="Measure latency at 10 to 90 % of the peak, and at twice the peak.")
    ] = True,
    fresh_reads: Annotated[
        bool, typer.Option(help="Measure linearizable reads of single entries, of one member and three.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of the arrivals of the open loops.")] = 1,
    idle: Annotated[
        float, typer.Option(help="So many seconds of doing nothing are measured; 0: none.", min=0)
    ] = 20.0,
    sessions: Annotated[
        bool | None,
        typer.Option(
            help="Measure what the sessions of producers cost: two minutes. It is measured unless --only"
            " is given.",
            show_default=False,
        ),
    ] = None,
    matrix: Annotated[
        bool,
        typer.Option("--matrix", help="Also flush x size x writers x delay, 72 cells: three minutes."),
    ] = False,
    matrix_seconds: Annotated[
        float, typer.Option(help="How long each cell of the matrix is measured.", min=0.1)
    ] = MATRIX_SECONDS,
    catch_up: Annotated[
        bool, typer.Option("--catch-up", help="Also wiped followers, and followers behind slow links.")
    ] = False,
    silent: Annotated[
        bool,
        typer.Option(
            "--silent", help="Also 4,000 connections that never say a word, beside 256 writers."
        ),
    ] = False,
    gigabytes: Annotated[float, typer.Option(help="Log of the wiped follower.", min=0.001)] = 2.0,
    large: Annotated[
        bool,
        typer.Option(
            "--large",
            help=f"Also the start of a {START_GB} GB directory and memory over {MEMORY_GB} GB; takes"
            f" minutes and {max(START_GB, 3 * MEMORY_GB)} GB of disk.",
        ),
    ] = False,
    retention: Annotated[
        float,
        typer.Option(
            help="So many seconds of a constant load while old segments go; 0: none. An hour is 3600.",
            min=0,
        ),
    ] = 0.0,
    machines: Annotated[
        float,
        typer.Option(
            help="Also state machines: snapshots of so many GB go to a wiped member, a fifth of that is"
            " started from, and what applying and results cost; 0: none. The promises are of 5.",
            min=0,
        ),
    ] = 0.0,
    learner: Annotated[
        float,
        typer.Option(
            help="Also a new member that fetches a log of so many GB while 256 writers append; 0: none."
            " The promise is of 10.",
            min=0,
        ),
    ] = 0.0,
    only: Annotated[
        bool,
        typer.Option(
            "--only",
            help="Nothing but --sessions, --matrix, --catch-up, --retention, --machines, --learner and"
            " --large, where given.",
        ),
    ] = False,
    folder: Annotated[Path, typer.Option("--dir", help="Results; data is removed.")] = Path("bench-out"),
) -> None:
    """Measure three members on this machine: loads beside the raw limit, latency at fixed rates,
    failovers, an idle cluster, and what is asked for besides.

    Example: python -m benchmarks --only --matrix --catch-up --gigabytes 1
    """
    end_as_ctrl_c_does()
    console = out()
    try:
        closed, opened = _chosen(workload)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    if only:
        loads, open_loop, idle, kills, stops, hand_overs, restarts = False, False, 0.0, 0, 0, 0, 0
        fresh_reads = False
    sessions = not only if sessions is None else sessions
    closed = closed if loads else []
    opened = opened if open_loop else []
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    path = folder / "results.jsonl"
    try:
        with (
            path.open("w") as file,
            console.status("measuring the disk") as status,
            scratch_directory(folder) as scratch,
        ):
            machine = machine_of(scratch)
            title = machine.describe()
            console.print(title)
            report = reporter(console, status)
            run = _Run(console, file, folder, data, seconds, report, title)
            run.save({"machine": machine.row()})
            results: list[Result] = []
            if closed or opened:
                with run.part("loads"):
                    results = run.loads(closed, scratch, opened, seed)
            if fresh_reads:
                with run.part("fresh reads"):
                    run.show([measure_fresh_reads(data, seconds, report)])
            with run.part("failovers"):
                run.failovers(kills, stops, hand_overs, results)
            if restarts:
                with run.part("restarts"):
                    run.show([time_restarts(restarts, report)])
            if sessions:
                with run.part("sessions"):
                    run.show(measure_sessions(data, seconds, report))
            if idle:
                with run.part("idle"):
                    run.show([measure_idle(data, idle, report)])
            if silent:
                with run.part("silent connections"):
                    run.show([measure_silent(data, seconds, report)])
            if retention:
                with run.part("retention"):
                    run.show([measure_retention(data, retention, report)])
            if matrix:
                with run.part("matrix"):
                    run.matrix(matrix_seconds)
            if catch_up:
                with run.part("catch-up"):
                    run.show(measure_catch_up(data, int(gigabytes * 1e9), seconds, report))
                with run.part("delays"):
                    run.show(measure_delays(data, seconds, report))
            if machines:
                with run.part("machines"):
                    size_bytes = int(machines * 1e9)
                    run.show([measure_apply(1 << 22, report)])
                    run.show([measure_apply_share(APPLY_BATCHES, report)])
                    run.show([measure_results(seconds, report)])
                    run.show([measure_install(data, size_bytes, seconds, report)])
                    run.show([time_machine_start(data, 2 * size_bytes, size_bytes // 5, report)])
            if learner:
                with run.part("learner"):
                    run.show([measure_learner(data, int(learner * 1e9), seconds, report)])
            if large:
                with run.part("memory"):
                    run.show([measure_memory(data, MEMORY_GB * 10**9, report)])
                with run.part("start"):
                    run.show([time_start(data, START_GB * 10**9, report)])
    finally:
        shutil.rmtree(data, ignore_errors=True)
    console.print(f"Results: {', '.join(map(str, (path, *run.pictures)))}")
    if not run.is_whole:
        raise typer.Exit(1)


def _chosen(names: Sequence[str] | None) -> tuple[list[Load], list[OpenLoad]]:
    """Loads in closed and in open loops; raises ConfigError for a name that is neither's."""
    every: dict[str, Load | OpenLoad] = {**LOADS_BY_NAME, **OPEN_LOADS_BY_NAME}
    found = chosen(names, every)
    opened = [load for load in found if isinstance(load, OpenLoad)]
    return [load for load in found if not isinstance(load, OpenLoad)], opened


class _Row(Protocol):
    def row(self) -> dict[str, Any]: ...


_R = TypeVar("_R", bound=_Row)


class _Run:
    """Whatever has been measured is written, and printed, before the next thing begins."""

    def __init__(
        self,
        console: Console,
        file: TextIO,
        folder: Path,
        data: Path,
        seconds: float,
        report: Report,
        title: str,
    ) -> None:
        self._console = console
        self._file = file
        self._folder = folder
        self.pictures: list[Path] = []
        """Drawn so far."""
        self.is_whole = True
        """No part has failed."""
        self._data = data
        self._seconds = seconds
        self._report = report
        self._title = title

    def save(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part that the machine did not let come to its end costs none of the others."""
        try:
            yield
        except LedgerError as error:
            self.is_whole = False
            self.save({"failed": name, "reason": str(error)})
            self._console.print(f"{name} has failed: {error}")
        # What its members have left in the page cache is not written back at the next one's expense.
        os.sync()

    def show(self, outcomes: Iterable[Outcome]) -> None:
        found = self._collect(outcomes)
        self._console.print(outcome_table_of(found))
        self._print(found)

    def loads(
        self, loads: Sequence[Load], scratch: str | None, open_loads: Sequence[OpenLoad], seed: int
    ) -> list[Result]:
        """Closed loops first; returns what they came to."""
        with MemberProcesses(self._data) as members:
            self._report("waiting for a leader")
            uvloop.run(servers_leader_first(members))
            group = members.running_group
            results = self._collect(run_loads(loads, group, self._seconds, scratch, self._report))
            if results:
                self._console.print(table_of(results))
                self._print(results)
            opened = self._collect(run_open_loads(open_loads, group, self._seconds, seed, self._report))
            if opened:
                self._console.print(open_table_of(opened))
                self._print(opened)
                draw_latencies(self._picture("latency"), opened, self._title)
        return results

    def failovers(self, kills: int, stops: int, hand_overs: int, results: Sequence[Result]) -> None:
        """On members of their own: what the loads have written is gigabytes. `results` are drawn too."""
        found: list[FailoverTimes] = []
        if kills or stops:
            with MemberProcesses(self._data) as members:
                uvloop.run(servers_leader_first(members))
                found = self._collect(time_failovers(members, kills, stops, self._report))
        if hand_overs:
            with MemberProcesses(self._data) as members:
                uvloop.run(servers_leader_first(members))
                found += self._collect(time_hand_overs(members, hand_overs, self._report))
        self._print(found)
        if results or found:
            draw(self._picture("bench"), results, found, self._title)

    def matrix(self, seconds: float) -> None:
        cells = self._collect(run_matrix(self._data, seconds, self._report))
        self._console.print(matrix_table_of(cells))
        draw_matrix(self._picture("matrix"), cells, self._title)

    def _picture(self, name: str) -> Path:
        self.pictures.append(self._folder / f"{name}.png")
        return self.pictures[-1]

    def _collect(self, measured: Iterable[_R]) -> list[_R]:
        found = []
        for one in measured:
            self.save(one.row())
            found.append(one)
        return found

    def _print(self, measured: Sequence[HasTargets]) -> None:
        for line in target_lines(measured):
            self._console.print(line)


if __name__ == "__main__":
    typer.run(main)
