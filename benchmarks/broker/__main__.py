"""Messages a second and CPU per message, beside RocketMQ's Java broker in the same run.

    python -m benchmarks.broker [--seconds 5] [--flush SYNC_FLUSH] [--dledger] [--only-ours]
                               [--replication]

The load is the same: so many senders that each wait for an answer, bodies of the same size, four queues.
Each system is loaded by its own client in a process of its own; the client of quorumlog joins what its
senders begin in one turn of its loop. CPU is that of the server's process alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.broker import replication
from harness.broker_cluster import BrokerCluster
from harness.broker_process import BrokerProcess
from harness.rocketmq.java_broker import JavaBroker
from harness.rocketmq.store_tool import Unavailable, class_path
from quorumlog.broker import Message, connect_async

BATCH, BATCH_SENDERS = 64, 4
BODIES = (1024, 128)
FLUSHES = ("SYNC_FLUSH", "ASYNC_FLUSH")
_TICKS = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    senders: int
    batch: int

    @property
    def name(self) -> str:
        if self.batch > 1:
            return f"{self.senders} senders, batches of {self.batch}"
        return "1 sender" if self.senders == 1 else f"{self.senders} senders"


LOADS = (Load(1, 1), Load(64, 1), Load(256, 1), Load(BATCH_SENDERS, BATCH))


class Figure(NamedTuple):
    per_second: float
    cpu_us: float
    """Of the server, for each message."""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def send(address: str, load: Load, body_bytes: int, seconds: float) -> float:
    body = bytes(body_bytes)
    sent = 0
    async with connect_async(address, timeout_ms=60_000) as broker:
        stop_at = time.monotonic() + seconds

        async def one() -> None:
            nonlocal sent
            while time.monotonic() < stop_at:
                if load.batch == 1:
                    await broker.send(Message("bench", body))
                else:
                    await broker.send_batch([Message("bench", body)] * load.batch)
                sent += load.batch

        begin = time.monotonic()
        await asyncio.gather(*[one() for _ in range(load.senders)])
        return sent / (time.monotonic() - begin)


def measured(address: str, load: Load, body_bytes: int, seconds: float) -> float:
    """Messages a second, of a client in a process of its own."""
    arguments = ["--address", address, json.dumps([*load, body_bytes, seconds])]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.broker", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def loads_of(seconds: float, address: str) -> Iterator[tuple[str, float]]:
    for load in LOADS[2:]:
        yield load.name, measured(address, load, BODIES[0], seconds)


def measure_ours(
    folder: Path, flush: str, seconds: float, *, dledger: bool
) -> dict[tuple[Load, int], Figure]:
    figures = {}
    mode = "sync" if flush == "SYNC_FLUSH" else "async"
    made: BrokerCluster | BrokerProcess
    if dledger:
        made = BrokerCluster(folder, "--flush", mode, topics="bench:4")
    else:
        made = BrokerProcess(folder, "--flush", mode, topics="bench:4")
    with made:
        pids = made.pids if isinstance(made, BrokerCluster) else [made.pid]
        address = made.servers if isinstance(made, BrokerCluster) else made.address
        for load in LOADS:
            for body_bytes in BODIES:
                cpu = sum(map(cpu_seconds, pids))
                per_second = measured(address, load, body_bytes, seconds)
                used = sum(map(cpu_seconds, pids)) - cpu
                figures[load, body_bytes] = Figure(per_second, used / per_second / seconds * 1e6)
    return figures


def measure_java(
    classes: str, folder: Path, flush: str, seconds: float, *, dledger: bool
) -> dict[tuple[Load, int], Figure]:
    figures = {}
    with JavaBroker(classes, folder, flush=flush, dledger=dledger) as broker:
        broker.load(16, 1, 128, 3.0)  # its compiler has seen every path once
        for load in LOADS:
            for body_bytes in BODIES:
                cpu = sum(map(cpu_seconds, broker.pids))
                per_second = broker.load(load.senders, load.batch, body_bytes, seconds)
                used = sum(map(cpu_seconds, broker.pids)) - cpu
                figures[load, body_bytes] = Figure(per_second, used / per_second / seconds * 1e6)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--flush", choices=FLUSHES, help="only this one")
    parser.add_argument("--only-ours", action="store_true", help="without the Java broker")
    parser.add_argument(
        "--replication", action="store_true", help="a master with slaves instead, in each mode"
    )
    parser.add_argument(
        "--dledger",
        action="store_true",
        help="three members of a replicated log, Java's in DLedger mode",
    )
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("load", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.address:
        senders, batch, body_bytes, seconds = json.loads(options.load)
        print(asyncio.run(send(options.address, Load(senders, batch), body_bytes, seconds)))
        return
    if options.replication:
        flushes = [options.flush] if options.flush else list(FLUSHES)
        replication.main(flushes, partial(loads_of, options.seconds))
        return
    classes = ""
    if not options.only_ours:
        try:
            classes = class_path()
        except Unavailable as reason:
            print(f"without RocketMQ: {reason}")
    print("| flush | load | body | quorumlog /s | CPU us | RocketMQ /s | CPU us | ratio | CPU ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for flush in [options.flush] if options.flush else FLUSHES:
        with tempfile.TemporaryDirectory(prefix="bench-broker-") as folder:
            ours = measure_ours(Path(folder) / "ours", flush, options.seconds, dledger=options.dledger)
            theirs: dict[tuple[Load, int], Figure] = {}
            if classes:
                theirs = measure_java(
                    classes, Path(folder) / "java", flush, options.seconds, dledger=options.dledger
                )
        for (load, body_bytes), figure in ours.items():
            what = f"| {flush} | {load.name} | {body_bytes} B"
            row = f"{what} | {figure.per_second:,.0f} | {figure.cpu_us:.0f}"
            other = theirs.get((load, body_bytes))
            if other is not None:
                ratio, cpu_ratio = figure.per_second / other.per_second, figure.cpu_us / other.cpu_us
                row += f" | {other.per_second:,.0f} | {other.cpu_us:.0f} | {ratio:.2f} | {cpu_ratio:.2f}"
            else:
                row += " | | | |"
            print(f"{row} |", flush=True)


if __name__ == "__main__":
    main()
