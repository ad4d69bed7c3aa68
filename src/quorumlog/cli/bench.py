"""quorumlog bench: how fast a running group is, beside what its disk allows.

`quorumlog bench flush` (`flush_cost`) needs no group.
"""

from __future__ import annotations

import math
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import uvloop
from rich.table import Table

from quorumlog.bench.local_processes import listening_processes
from quorumlog.bench.open_loop import (
    OPEN_LOADS,
    OpenMeasured,
    chosen_open_loads,
    open_table_of,
    run_open_loads,
)
from quorumlog.bench.raw_limit import measure_raw_limit
from quorumlog.bench.workloads import LOADS, AppendLoad, Load, Measured, Target, measure
from quorumlog.cli.options import Group, Json, Servers, split_servers
from quorumlog.cli.output import err, out, print_json
from quorumlog.client import connect
from quorumlog.config import DEFAULT_GROUP
from quorumlog.errors import ConfigError

PROBE_BYTES = 4096
PROBE_SECONDS = 0.5
RAW_SECONDS_LIMIT = 2.0


class Machine(NamedTuple):
    cpu: str
    cores: int
    kernel: str
    python: str
    fdatasync_p50_ms: float
    """One write of 4 KiB and its sync by one process alone; NaN if not measured."""

    def row(self) -> dict[str, Any]:
        return _without_nan(self._asdict())


class Result(NamedTuple):
    """One line of the table; `row` is the same for `--json`."""

    load: Load
    measured: Measured
    raw_records_per_second: float
    """NaN where there is no raw limit: for reads, and without a directory to measure in."""

    @property
    def share_of_raw(self) -> float:
        return self.measured.records_per_second / self.raw_records_per_second

    def row(self) -> dict[str, Any]:
        load = {key: value for key, value in asdict(self.load).items() if key not in ("name", "targets")}
        figures = {
            **asdict(self.measured),
            "raw_records_per_second": self.raw_records_per_second,
            "share_of_raw": self.share_of_raw,
        }
        return {
            "workload": self.load.name,
            **load,
            **_without_nan(figures),
            "targets": [target.row(self.figure(target)) for target in self.load.targets],
        }

    def figure(self, target: Target) -> float:
        """What was measured of what the target is about."""
        if target.figure == "share_of_raw":
            return self.share_of_raw
        return float(getattr(self.measured, target.figure))


bench_app = typer.Typer(invoke_without_command=True, subcommand_metavar="[flush]")


@bench_app.callback()
def bench(
    context: typer.Context,
    servers: Servers = "",
    group: Group = DEFAULT_GROUP,
    seconds: Annotated[
        float, typer.Option(help="How long each load is measured.", min=0.1, metavar="S")
    ] = 5.0,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Only this load; may be repeated. One of {', '.join(load.name for load in LOADS)};"
            f" with --open-loop one of {', '.join(load.name for load in OPEN_LOADS)}.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    raw_dir: Annotated[
        Path | None,
        typer.Option(
            help="Measure what the disk allows in this directory, which should lie on the disk of the"
            " members. [default: the current directory if the members run on this machine]",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    open_loop: Annotated[
        bool,
        typer.Option(
            "--open-loop",
            help="Instead: latency at 10 to 90 % of the peak and at twice the peak, with Poisson"
            " arrivals. Needs quorumlog[bench].",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the arrivals of --open-loop.", metavar="N")] = 1,
    json: Json = False,
) -> None:
    """Measure appends and reads on a running group. It writes to the log: not for one that matters.

    The raw limit beside each figure is what three plain processes reach together when they write and
    sync the same sizes. Processor time and memory are those of the members on this machine.
    `quorumlog bench flush` measures what a sync costs, without a group.

    Example: quorumlog bench --servers 127.0.0.1:20911,127.0.0.1:20912,127.0.0.1:20913 --seconds 5
    """
    if context.invoked_subcommand is not None:
        return
    split_servers(servers)
    loads = [] if open_loop else chosen_loads(workload)
    open_loads = chosen_open_loads(workload) if open_loop else []
    with connect(servers, group=group) as log:
        addresses = [row["address"] for row in log.status() if row["reachable"]]
    pids = listening_processes(addresses)
    if raw_dir is None and pids:
        raw_dir = Path.cwd()
    results: list[Result] = []
    open_results: list[OpenMeasured] = []
    with err().status("starting") as progress, scratch_directory(raw_dir) as scratch:
        progress.update("measuring the disk")
        machine = machine_of(scratch)
        if json:
            print_json({"machine": machine.row()})
        for result in run_loads(loads, servers, group, seconds, pids, scratch, progress.update):
            results.append(result)
            if json:
                print_json(result.row())
        for measured in run_open_loads(open_loads, servers, group, seconds, pids, seed, progress.update):
            open_results.append(measured)
            if json:
                print_json(measured.row())
    if not json:
        console = out()
        console.print(describe_machine(machine))
        console.print(open_table_of(open_results) if open_loop else table_of(results))
        for line in (*target_lines(results), *open_target_lines(open_results)):
            console.print(line)


def run_loads(
    loads: Sequence[Load],
    servers: str,
    group: str,
    seconds: float,
    pids: Sequence[int],
    scratch: str | None,
    report: Callable[[str], None],
) -> Iterator[Result]:
    """Each load after the raw limit of what it syncs; `report` is told what begins.

    `pids`: processes of the members on this machine. `scratch`: where the raw limit is measured.
    """
    for load in loads:
        raw = math.nan
        if scratch is not None and isinstance(load, AppendLoad):
            report(f"{load.name}: the disk alone")
            limit = measure_raw_limit(scratch, load.sync_bytes, min(seconds, RAW_SECONDS_LIMIT))
            raw = limit.syncs_per_second * load.sync_records
        report(f"{load.name}: {seconds:g} s")
        yield Result(load, uvloop.run(measure(load, servers, group, seconds, pids)), raw)


@contextmanager
def scratch_directory(parent: Path | None) -> Iterator[str | None]:
    """A temporary directory inside `parent`; None without one. Raises ConfigError if it takes none."""
    if parent is None:
        yield None
        return
    try:
        directory = tempfile.TemporaryDirectory(prefix="quorumlog-raw-", dir=parent)
    except OSError as error:
        raise ConfigError(
            f"{parent} takes no files ({error.strerror}): name another directory on the members' disk"
            " (quorumlog bench: --raw-dir)"
        ) from None
    with directory as scratch:
        yield scratch


def chosen_loads(names: Sequence[str] | None) -> list[Load]:
    """All loads, or those named by `--workload`; raises ConfigError for a name that there is not."""
    known = {load.name: load for load in LOADS}
    for name in names or ():
        if name not in known:
            raise ConfigError(f"--workload {name} is unknown; choose from {', '.join(known)}")
    return [known[name] for name in names] if names else list(LOADS)


# ---------------------------------------------------------------- the machine


def machine_of(scratch: str | None) -> Machine:
    p50_ms = math.nan
    if scratch is not None:
        p50_ms = measure_raw_limit(scratch, PROBE_BYTES, PROBE_SECONDS, writers=1).sync_p50_ms
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        python=platform.python_version(),
        fdatasync_p50_ms=p50_ms,
    )


def describe_machine(machine: Machine) -> str:
    sync = (
        ""
        if math.isnan(machine.fdatasync_p50_ms)
        else f", 4 KiB + fdatasync {machine.fdatasync_p50_ms:.2f} ms"
    )
    return f"{machine.cpu}, {machine.cores} cores, Linux {machine.kernel}, Python {machine.python}{sync}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _without_nan(figures: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no NaN: what was not measured is null."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in figures.items()}


# ---------------------------------------------------------------- the table


def table_of(results: Sequence[Result]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("workload", no_wrap=True)
    for heading in ("records/s", "MB/s", "p50 ms", "p99 ms", "CPU s/M", "anon MB", "raw/s", "of raw"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        measured = result.measured
        table.add_row(
            result.load.name,
            _number(measured.records_per_second, 0),
            _number(measured.mb_per_second, 1),
            _number(measured.p50_ms, 3),
            _number(measured.p99_ms, 3),
            _number(measured.cpu_seconds_per_million, 1),
            _number(measured.anonymous_mb, 0),
            _number(result.raw_records_per_second, 0),
            "-" if math.isnan(result.share_of_raw) else f"{result.share_of_raw:.0%}",
        )
    table.caption = (
        "CPU s/M: processor seconds of all members per million records. anon MB: RssAnon of the largest"
        " member. raw/s: records that three plain writers sync at once."
    )
    return table


def target_lines(results: Sequence[Result]) -> list[str]:
    """One line a target, with rich's mark-up: what was promised, and what was measured."""
    return [
        target_line(result.load.name, target, result.figure(target))
        for result in results
        for target in result.load.targets
    ]


def open_target_lines(results: Sequence[OpenMeasured]) -> list[str]:
    return [
        target_line(
            f"{result.load} at {result.share_of_peak:.0%}", target, getattr(result, target.figure)
        )
        for result in results
        for target in result.targets
    ]


def target_line(name: str, target: Target, value: float) -> str:
    digits = 0 if target.bound >= 100 else 2 if target.bound >= 0.1 else 4
    text = (
        f"{name}: {target.figure} {_number(value, digits)}, target"
        f" {'at least' if target.at_least else 'at most'} {target.bound:,g}"
    )
    return f"[green]met[/]      {text}" if target.is_met(value) else f"[red]not met[/]  {text}"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"
