"""Messages a second and CPU per message, beside RocketMQ's Java broker in the same run.

    python -m benchmarks.broker [--seconds 5] [--flush SYNC_FLUSH] [--dledger] [--only-ours]
                               [--replication | --catch-up]

The load is the same: so many senders that each wait for an answer, bodies of the same size, four queues.
Each system is loaded by its own client in a process of its own; the client of quorumlog joins what its
senders begin in one turn of its loop. CPU is that of the servers' processes alone. With --dledger it is
measured, too, how long messages take from the call that sends them to the handler of a group.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.broker import end_to_end, replication
from benchmarks.broker.loads import BODIES, HEAD, LOADS, RULE, Figure, Load, figure, ours, row, send
from harness.broker_cluster import BrokerCluster
from harness.broker_process import BrokerProcess
from harness.maven import Unavailable
from harness.rocketmq.java_broker import JavaBroker
from harness.rocketmq.store_tool import class_path

FLUSHES = ("SYNC_FLUSH", "ASYNC_FLUSH")


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
                one = (address, load, body_bytes, seconds)
                figures[load, body_bytes] = figure(pids, seconds, partial(ours, *one))
    return figures


def measure_java(
    classes: str, folder: Path, flush: str, seconds: float, *, dledger: bool
) -> dict[tuple[Load, int], Figure]:
    figures = {}
    with JavaBroker(classes, folder, flush=flush, dledger=dledger) as broker:
        broker.warm_up()
        for load in LOADS:
            for body_bytes in BODIES:
                one = (*load, body_bytes, seconds)
                figures[load, body_bytes] = figure(broker.pids, seconds, partial(broker.load, *one))
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
        "--catch-up", action="store_true", help="how fast an empty slave follows, beside a plain copy"
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
        is_load = options.load.startswith("[")
        print((send if is_load else end_to_end.measure)(options.address, options.load))
        return
    if options.catch_up:
        replication.catch_up()
        return
    classes = ""
    if not options.only_ours:
        try:
            classes = class_path()
        except Unavailable as reason:
            print(f"without RocketMQ: {reason}")
    flushes = [options.flush] if options.flush else list(FLUSHES)
    if options.replication:
        replication.main(flushes, options.seconds, classes)
        return
    print(f"| flush | load | body | {HEAD}")
    print(f"| --- | --- | --- | {RULE}")
    for flush in flushes:
        with tempfile.TemporaryDirectory(prefix="bench-broker-") as folder:
            found = measure_ours(Path(folder) / "ours", flush, options.seconds, dledger=options.dledger)
            theirs: dict[tuple[Load, int], Figure] = {}
            if classes:
                theirs = measure_java(
                    classes, Path(folder) / "java", flush, options.seconds, dledger=options.dledger
                )
        for (load, body_bytes), one in found.items():
            cells = row(one, theirs.get((load, body_bytes)))
            print(f"| {flush} | {load.name} | {body_bytes} B | {cells}", flush=True)
    if options.dledger:
        for flush in flushes:
            end_to_end.main(flush, options.seconds, classes)


if __name__ == "__main__":
    main()
