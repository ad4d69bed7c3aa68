"""Records a second through Kafka's own client, beside three brokers of a real Kafka in the same run:

    python -m benchmarks.kafka [--seconds 10] [--rounds 3] [--version 4.3] [--only-ours]

Records of 1 KiB, acks=all, one idempotent producer of librdkafka in a process of its own, four
partitions, three members or brokers on this machine. Both have a record on the disks of a majority
before they acknowledge it (Kafka: `log.flush.interval.messages=1`, `min.insync.replicas=2`). Rounds
alternate; medians.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from harness.kafka.members import KafkaMembers
from harness.kafka.real_broker import VERSIONS, real_kafka
from quorumlog.bench.machine import machine_of
from quorumlog.bench.running_group import usage_of

BODY_BYTES = 1024
PARTITIONS = 4
BATCHES = {"16 KiB": 16 << 10, "1 MiB": 1_000_000}
"""`batch.size`: Kafka's default, and about as much as a batch may have by default."""
WARM_UP_S = 2.0


class Load(NamedTuple):
    records_per_second: float
    client_cores: float
    server_cores: float


def load(servers: str, batch_bytes: int, seconds: float) -> None:
    """In a process of its own: as much as the servers acknowledge. Prints what came of it."""
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    topic = f"bench-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": servers})
    patient = {"operation_timeout": 240, "request_timeout": 300}
    admin.create_topics([NewTopic(topic, PARTITIONS)], **patient)[topic].result(300)
    failed: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            "batch.size": batch_bytes,
            "linger.ms": 5,
            "queue.buffering.max.messages": 100_000,
            "queue.buffering.max.kbytes": 64 << 10,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failed.append(error),
        }
    )
    body = bytes(BODY_BYTES)
    sent = 0

    def send_until(end_s: float) -> None:
        nonlocal sent
        while time.perf_counter() < end_s:
            for partition in range(PARTITIONS):
                messages = [{"value": body} for _ in range(1_000)]
                sent += producer.produce_batch(topic, messages, partition=partition)
            producer.poll(0)
            while len(producer) > 32_000 and time.perf_counter() < end_s:
                producer.poll(0.001)
            if failed:
                raise KafkaException(failed[0])

    send_until(time.perf_counter() + WARM_UP_S)
    began_s, acknowledged, cpu_s = time.perf_counter(), sent - len(producer), time.process_time()
    print("began", flush=True)
    send_until(began_s + seconds)
    took_s = time.perf_counter() - began_s
    records = sent - len(producer) - acknowledged
    figures = {"records_per_second": records / took_s, "cores": (time.process_time() - cpu_s) / took_s}
    print(msgspec.json.encode(figures).decode(), flush=True)
    producer.flush(60)


def measured(servers: str, pids: Sequence[int], batch_bytes: int, seconds: float) -> Load:
    command = [
        sys.executable,
        "-m",
        "benchmarks.kafka",
        "--load",
        servers,
        str(batch_bytes),
        str(seconds),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "began\n", "the load did not begin"
            before_s, began_s = cpu_seconds(pids), time.perf_counter()
            figures = msgspec.json.decode(process.stdout.readline())
            cores = (cpu_seconds(pids) - before_s) / (time.perf_counter() - began_s)
            return Load(figures["records_per_second"], figures["cores"], cores)
        finally:
            process.kill()


def cpu_seconds(pids: Sequence[int]) -> float:
    return sum(usage_of(pid).cpu_seconds for pid in pids)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--version", default=VERSIONS[-1])
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.load:
        servers, batch_bytes, seconds = given.load
        load(servers, int(batch_bytes), float(seconds))
        return
    found: dict[tuple[str, str], list[Load]] = {}
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-kafka-") as place:
        print(machine_of(place).describe(), flush=True)
        for number in range(given.rounds):
            with KafkaMembers(Path(place) / f"ours-{number}") as members:
                members.kafka_leader()
                pids = [each.pid for each in members.members]
                for batch, batch_bytes in BATCHES.items():
                    one = measured(members.kafka_servers, pids, batch_bytes, given.seconds)
                    found.setdefault(("quorumlog", batch), []).append(one)
            if given.only_ours:
                continue
            flushed = {"log.flush.interval.messages": 1}
            folder = Path(place) / f"kafka-{number}"
            with real_kafka(folder, given.version, brokers=3, options=flushed) as kafka:
                for batch, batch_bytes in BATCHES.items():
                    one = measured(kafka.servers, kafka.pids, batch_bytes, given.seconds)
                    found.setdefault((f"Kafka {given.version}", batch), []).append(one)
    print("| system | batches | records/s | least to most | servers' cores | client's cores |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for (system, batch), loads in found.items():
        rates = sorted(each.records_per_second for each in loads)
        print(
            f"| {system} | {batch} | {median(rates):,.0f} | {rates[0]:,.0f} to {rates[-1]:,.0f} |"
            f" {median(each.server_cores for each in loads):.2f} |"
            f" {median(each.client_cores for each in loads):.2f} |"
        )
    for batch in BATCHES if not given.only_ours else ():
        pairs = zip(found["quorumlog", batch], found[f"Kafka {given.version}", batch], strict=True)
        ratios = [
            one.records_per_second / other.records_per_second if other.records_per_second else math.nan
            for one, other in pairs
        ]
        print(f"Batches of {batch}: {median(ratios):.2f} of Kafka {given.version}")


if __name__ == "__main__":
    main()
