"""Master and slaves on one machine: messages a second in each mode, beside RocketMQ's Java brokers in
the same mode and run; and how fast an empty slave catches up, beside a plain copy of the same bytes.

    python -m benchmarks.broker --replication [--seconds 5] [--flush SYNC_FLUSH]
    python -m benchmarks.broker --catch-up

A sync master waits for one slave in both systems (`inSyncReplicas` 2), also where there are two.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.broker.loads import BODIES, HEAD, LOADS, RULE, Figure, Load, figure, ours, row
from harness.broker_process import BrokerProcess
from harness.rocketmq.java_broker import JavaBroker
from quorumlog.broker import Message, connect
from quorumlog.server.free_ports import free_ports

MODES = (
    ("alone", "", 0),
    ("async master, one slave", "async-master", 1),
    ("sync master, one slave", "sync-master", 1),
    ("sync master, two slaves", "sync-master", 2),
)
CATCH_UP_BYTES = 512 << 20
_BODY = 64 << 10
WAIT_S = 120.0
MEASURED = LOADS[2:]
"""Of these two something is promised."""


def until(holds: Callable[[], bool]) -> None:
    stop_at = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > stop_at:
            raise RuntimeError("the slaves do not come that far")
        time.sleep(0.01)


@contextmanager
def replicated(folder: Path, flush: str, role: str, slaves: int) -> Iterator[list[BrokerProcess]]:
    """The master first, once all slaves follow it."""
    ports = free_ports(1 + slaves)
    brokers = []
    for number, port in enumerate(ports):
        options = ["--flush", flush]
        if role:
            options += ["--role", "slave" if number else role, "--id", str(number)]
            options += ["--ha-port", str(port)]
        if number:
            options += ["--master", f"127.0.0.1:{ports[0]}"]
        brokers.append(BrokerProcess(folder / str(number), *options, topics="bench:4"))
    with ExitStack() as stack:
        for broker in brokers:
            stack.enter_context(broker)
        if slaves:
            with connect(brokers[0].address) as master:
                until(lambda: sum(slave.counts for slave in master.replica().slaves) == slaves)
        yield brokers


def catch_up_in(folder: Path) -> tuple[float, float]:
    """MiB a second of an empty slave, and of `cp` with a sync, of the same log."""
    (master_port, slave_port) = free_ports(2)
    at_master = ("--role", "async-master", "--id", "a", "--ha-port", str(master_port))
    process = BrokerProcess(folder / "a", "--flush", "async", *at_master, topics="bench:4")
    with process, connect(process.address) as master:
        batch = [Message("bench", os.urandom(_BODY))] * 16
        while master.status().max_offset < CATCH_UP_BYTES:
            master.send_batch(batch)
        end = master.status().max_offset
        until(lambda: master.status().dispatch_behind_bytes == 0)
        to_master = ("--role", "slave", "--master", f"127.0.0.1:{master_port}")
        at_slave = ("--flush", "async", *to_master, "--ha-port", str(slave_port))
        with BrokerProcess(folder / "b", *at_slave) as slave:
            begin = time.monotonic()
            with connect(slave.address) as follower:
                until(lambda: follower.status().flushed_offset >= end)
            replicated_s = time.monotonic() - begin
    begin = time.monotonic()
    for file in sorted((folder / "a" / "commitlog").iterdir()):
        copy = folder / file.name
        shutil.copyfile(file, copy)
        with copy.open("rb") as held:
            os.fdatasync(held.fileno())
    copied_s = time.monotonic() - begin
    return end / replicated_s / (1 << 20), end / copied_s / (1 << 20)


def catch_up() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-replicas-") as folder:
        replicated, copied = catch_up_in(Path(folder))
    print(
        f"catch-up of an empty slave: {replicated:.0f} MiB/s, a plain copy: {copied:.0f} MiB/s", end=""
    )
    print(f" ({replicated / copied:.2f})")


def measure_ours(folder: Path, flush: str, role: str, slaves: int, seconds: float) -> dict[Load, Figure]:
    figures = {}
    with replicated(folder, "sync" if flush == "SYNC_FLUSH" else "async", role, slaves) as brokers:
        pids = [broker.pid for broker in brokers]
        for load in MEASURED:
            one = (brokers[0].address, load, BODIES[0], seconds)
            figures[load] = figure(pids, seconds, partial(ours, *one))
    return figures


def measure_java(
    classes: str, folder: Path, flush: str, role: str, slaves: int, seconds: float
) -> dict[Load, Figure]:
    figures = {}
    role = role.upper().replace("-", "_")
    with JavaBroker(classes, folder, flush=flush, role=role, slaves=slaves) as broker:
        broker.warm_up()
        for load in MEASURED:
            one = (*load, BODIES[0], seconds)
            figures[load] = figure(broker.pids, seconds, partial(broker.load, *one))
    return figures


def main(flushes: list[str], seconds: float, classes: str) -> None:
    """`classes`: of RocketMQ; empty: without it."""
    print(f"| flush | mode | load | {HEAD} beside alone |")
    print(f"| --- | --- | --- | {RULE} --- |")
    for flush in flushes:
        alone: dict[Load, float] = {}
        for name, role, slaves in MODES:
            mode = (flush, role, slaves, seconds)
            with tempfile.TemporaryDirectory(prefix="bench-replicas-") as folder:
                found = measure_ours(Path(folder) / "ours", *mode)
                theirs: dict[Load, Figure] = {}
                if classes and role:  # alone it stands in the other table
                    theirs = measure_java(classes, Path(folder) / "java", *mode)
            for load, one in found.items():
                alone.setdefault(load, one.per_second)
                cells = row(one, theirs.get(load))
                beside = one.per_second / alone[load]
                print(f"| {flush} | {name} | {load.name} | {cells} {beside:.2f} |", flush=True)
