"""quorumlog bench: the speed of a running group, beside the limit of its disk; and the cost of a
sync."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.options import (
    DEAD_AFTER_S,
    DEFAULT_GROUP,
    TIMEOUT_S,
    App,
    Group,
    LogServers,
    Servers,
    TlsOfClients,
    option,
    timeout_ms_of,
)
from quorumlog.cli.output import err, is_json, out, tell, tell_each
from quorumlog.errors import ConfigError

LOADS = (
    *("one-writer", "64-writers", "256-writers", "concurrent-appends", "batches", "small-records"),
    *("sequential-read", "random-get"),
)
"""Names in `quorumlog.bench`, known without loading it."""

MAX_ROUNDS = 100_000
"""Each of them needs 2 MiB on the disk."""

bench_app = App(no_args_is_help=False, invoke_without_command=True, subcommand_metavar="[flush]")


@bench_app.callback(has_json=True)
def bench(
    context: typer.Context,
    servers: Servers = "",
    group: Group = DEFAULT_GROUP,
    seconds: Annotated[float, option("Seconds per load.", "S", min=0.1)] = 5.0,
    workload: Annotated[
        list[str] | None,
        option(f"Measure this load only; may be repeated. One of {', '.join(LOADS)}.", "NAME"),
    ] = None,
    raw_dir: Annotated[
        Path | None,
        option(
            "Measure the raw disk in this directory, which should be on the members' disk."
            " [default: the current directory if the members run on this machine]",
            "DIR",
        ),
    ] = None,
    *,
    tls: TlsOfClients,
) -> None:
    """Measure appends and reads on a running group. It writes to the log: do not use it in production.

    The raw limit beside each figure is the rate of three plain processes together that write and sync
    the same sizes. Processor time and memory are those of the members on this machine. `quorumlog bench
    flush` measures the cost of a sync, without a group.

    Example: quorumlog bench --servers 127.0.0.1:20911 --seconds 5
    """
    if context.invoked_subcommand is not None:
        return
    from quorumlog.bench.closed_loop import run_loads
    from quorumlog.bench.machine import machine_of
    from quorumlog.bench.raw_limit import scratch_directory
    from quorumlog.bench.running_group import RunningGroup, listening_processes
    from quorumlog.bench.workloads import LOADS_BY_NAME, chosen
    from quorumlog.cli.bench_tables import table_of, target_lines

    at = LogServers(servers, DEAD_AFTER_S, group)
    loads = chosen(workload, LOADS_BY_NAME)
    context.with_resource(tls.speaking())
    with at.connected(timeout_ms=timeout_ms_of(TIMEOUT_S)) as log:
        addresses = [row.address for row in log.status() if row.reachable]
    pids = listening_processes(addresses)
    if raw_dir is None and pids:
        raw_dir = Path.cwd()
    with err().status("starting") as progress, scratch_directory(raw_dir) as scratch:
        progress.update("measuring the disk")
        machine = machine_of(scratch)
        tell({"machine": machine.row()}, lambda: None)
        running = RunningGroup(servers, group, pids)
        found = []
        for each in run_loads(loads, running, seconds, scratch, progress.update):
            tell(each.row(), lambda: None)
            found.append(each)
    if not is_json():
        console = out()
        console.print(machine.describe())
        console.print(table_of(found))
        for line in target_lines(found):
            console.print(line)


@bench_app.command()
def flush(
    directory: Annotated[
        Path, option("Measure the disk of this directory.", "DIR", name="--dir")
    ] = Path(),
    rounds: Annotated[int, option("Syncs per method and size.", min=1, max=MAX_ROUNDS)] = 200,
) -> None:
    """Measure the cost of a sync on this disk, for each flush method; needs no running group.

    Example: quorumlog bench flush --dir /var/lib/quorumlog --rounds 200
    """
    from quorumlog.bench.flush_cost import measure_flush_costs
    from quorumlog.cli.bench_tables import flush_table_of

    if not directory.is_dir():
        raise ConfigError(f"--dir {directory} is not a directory; name one on the disk to measure")
    with err().status("preparing files") as status:
        try:
            costs = measure_flush_costs(directory, rounds, status.update)
        except OSError as error:
            raise ConfigError(
                f"--dir {directory} cannot be measured: {error.strerror}; name one that takes files"
            ) from None
    tell_each((cost.row() for cost in costs), lambda: out().print(flush_table_of(costs)))
