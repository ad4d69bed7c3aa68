"""Blocking clients of two versions in turns: `python -m benchmarks.blocking ../other`.

Threads that share one client call it, each again as soon as it has its answer: an append, a put, a send.
Each version has a server of its own, one member in a process; both stand by, and get the load by turns.
Printed are calls a second, the client's processor time for a call, and the median of the ratios of
neighbouring turns (calls a second). With `TMPDIR=/dev/shm` the disk has no part in it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any

import typer

HERE = Path(__file__).resolve()
PRODUCTS = "log,kv,broker"


def main(
    other: Annotated[Path, typer.Argument(help="Another checkout; its .venv is not used.")],
    products: Annotated[str, typer.Option(help="Separated by commas.")] = PRODUCTS,
    threads: Annotated[str, typer.Option(help="How many share the client.")] = "1,8,64",
    turns: Annotated[int, typer.Option(help="Of each version and number of threads.")] = 9,
    seconds: Annotated[float, typer.Option(help="Of one turn.")] = 1.0,
) -> None:
    """Compare the blocking clients of this checkout with another one's.

    Example: python -m benchmarks.blocking ../before
    """
    print(
        "| client | threads | other, calls a second | this one | other, us a call | this one | ratio |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for product in products.split(","):
        with ExitStack() as stack:
            roots = (other.resolve(), HERE.parents[1])
            pairs = [_started(stack, root, product) for root in roots]
            for count in threads.split(","):
                found = [[_turn(pair, count, seconds) for pair in pairs] for _ in range(turns)]
                before, now = zip(*found, strict=True)
                ratio = statistics.median(one[0] / two[0] for one, two in zip(now, before, strict=True))
                shown = [
                    f"{statistics.median(turn[at] for turn in rows):.0f}"
                    for at in (0, 1)
                    for rows in (before, now)
                ]
                print(f"| {product} | {count} | {' | '.join(shown)} | {ratio:.2f} |", flush=True)


def _started(stack: ExitStack, root: Path, product: str) -> subprocess.Popen[str]:
    """The client; its server runs beside it."""
    environment = os.environ | {"PYTHONPATH": str(root / "src")}

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, str(HERE), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                cwd=root,
            )
        )
        assert process.stdin is not None
        stack.callback(process.stdin.close)
        return process

    server = start("serve", product)
    return start("call", product, _line(server.stdout))


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def _turn(client: subprocess.Popen[str], count: str, seconds: float) -> tuple[float, float]:
    """Calls a second, microseconds of processor time a call."""
    assert client.stdin is not None
    client.stdin.write(f"{count} {seconds}\n")
    client.stdin.flush()
    rate, cost_us = _line(client.stdout).split()
    return float(rate), float(cost_us)


# -------------------------------------------------------------------- in the processes


def _serve(product: str) -> None:
    if product == "log":
        from quorumlog.server import LocalCluster

        served: Any = LocalCluster(1)
    elif product == "kv":
        from quorumlog.kv.testing import LocalStores

        served = LocalStores(1)
    else:
        from quorumlog.broker.dledger.dledger_broker import LocalBrokers

        served = LocalBrokers(1, topics={"t": 1})
    with served:
        print(served.servers, flush=True)
        sys.stdin.read()


def _caller(product: str, servers: str) -> Callable[[], object]:
    body = b"x" * 100
    if product == "log":
        from quorumlog import connect

        log = connect(servers)
        return lambda: log.append(body)
    if product == "kv":
        from quorumlog.kv import connect as connect_store

        kv = connect_store(servers)
        return lambda: kv.put("key", body)
    from quorumlog.broker import Message
    from quorumlog.broker import connect as connect_broker

    broker = connect_broker(servers)
    return lambda: broker.send(Message("t", body))


def _call(product: str, servers: str) -> None:
    call = _caller(product, servers)
    call()
    for line in sys.stdin:
        count, seconds = line.split()
        done: list[None] = []
        begin_s, begin_cpu_s = time.monotonic(), time.process_time()
        stop_s = begin_s + float(seconds)

        def work(done: list[None] = done, stop_s: float = stop_s) -> None:
            while time.monotonic() < stop_s:
                call()
                done.append(None)

        threads = [threading.Thread(target=work) for _ in range(int(count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = len(done) / (time.monotonic() - begin_s)
        cost_us = (time.process_time() - begin_cpu_s) / len(done) * 1e6
        print(f"{rate:.1f} {cost_us:.1f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve(sys.argv[2])
    elif sys.argv[1:2] == ["call"]:
        _call(sys.argv[2], sys.argv[3])
    else:
        typer.run(main)
