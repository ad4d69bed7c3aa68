"""How long a message takes from the call that sends it to the handler of a group that waits for it."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.broker_cluster import BrokerCluster
from harness.rocketmq.java_broker import JavaBroker
from quorumlog.broker import Message
from quorumlog.broker.client.async_consumer import AsyncConsumer
from quorumlog.broker.client.async_producer import AsyncProducer
from quorumlog.broker.message import StoredMessage

RATES = (100, 1000)
"""Messages of 1 KiB a second."""
BODY_BYTES = 1024
GROUP, TOPIC = "end-to-end", "bench"
FIRST_S, LAST_S = 60.0, 10.0
"""Until the group has queues, and until the last message has come."""
_SENT = struct.Struct(">d")


class Latency(NamedTuple):
    p50_ms: float
    p99_ms: float
    messages: int


def latency_of(took_ms: Sequence[float]) -> Latency:
    p50, p99 = np.percentile(took_ms, (50, 99))
    return Latency(float(p50), float(p99), len(took_ms))


def main(flush: str, seconds: float, classes: str) -> None:
    """Prints a table; `classes` empty: without RocketMQ."""
    ours: dict[int, Latency] = {}
    theirs: dict[int, Latency] = {}
    mode = "sync" if flush == "SYNC_FLUSH" else "async"
    with tempfile.TemporaryDirectory(prefix="bench-broker-") as folder:
        with BrokerCluster(Path(folder) / "ours", "--flush", mode, topics=f"{TOPIC}:4") as cluster:
            for rate in RATES:
                ours[rate] = latency_of(in_its_own_process(cluster.servers, rate, seconds))
        if classes:
            with JavaBroker(classes, Path(folder) / "java", flush=flush, dledger=True) as broker:
                broker.warm_up()
                for rate in RATES:
                    theirs[rate] = latency_of(broker.end_to_end(rate, seconds))
    print("\n| end to end, ms | quorumlog p50 | p99 | RocketMQ p50 | p99 |")
    print("| --- | --- | --- | --- | --- |")
    for rate in RATES:
        cells = [f"{rate} messages a second, {flush}"]
        for each in (ours, theirs):
            found = each.get(rate)
            cells += ["", ""] if found is None else [f"{found.p50_ms:.2f}", f"{found.p99_ms:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def in_its_own_process(servers: str, rate: int, seconds: float) -> list[float]:
    arguments = ["--address", servers, json.dumps({"rate": rate, "seconds": seconds})]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.broker", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    took_ms: list[float] = json.loads(done.stdout)
    return took_ms


def measure(servers: str, text: str) -> str:
    """What that process does: milliseconds of each message, as JSON."""
    options = json.loads(text)
    return json.dumps(asyncio.run(_measure(servers, options["rate"], options["seconds"])))


async def _measure(servers: str, rate: int, seconds: float) -> list[float]:
    took_ms: list[float] = []
    is_there = asyncio.Event()

    def handle(message: StoredMessage) -> None:
        (sent_s,) = _SENT.unpack_from(message.body)
        if sent_s < 0:
            is_there.set()
        else:
            took_ms.append((time.monotonic() - sent_s) * 1000)

    async with (
        AsyncConsumer(servers, GROUP, TOPIC) as consumer,
        AsyncProducer(servers) as producer,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(consumer.run(handle))
        async with asyncio.timeout(FIRST_S):
            await producer.send(_message(-1.0))
            await is_there.wait()
        count = int(rate * seconds)
        begin_s = time.monotonic()
        for number in range(count):
            due_s = begin_s + number / rate
            if due_s > time.monotonic():
                await asyncio.sleep(due_s - time.monotonic())
            tasks.create_task(producer.send(_message(due_s)))
        async with asyncio.timeout(LAST_S):
            while len(took_ms) < count:
                await asyncio.sleep(0.05)
        running.cancel()
    return took_ms


def _message(sent_s: float) -> Message:
    return Message(TOPIC, _SENT.pack(sent_s).ljust(BODY_BYTES, b"\0"))
