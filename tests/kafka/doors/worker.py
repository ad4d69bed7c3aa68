"""One client in a process of its own, which is killed: `python -m tests.kafka.doors.worker KIND ...`

    produce-CLIENT SERVERS TOPIC NAME         idempotent, until stdin ends; then prints how many
    consume-CLIENT SERVERS TOPIC GROUP FILE   until it is killed; FILE gets PARTITION OFFSET VALUE,
                                              which is committed afterwards

A value is NAME:NUMBER; the numbers are counted from 0 without a gap, over all partitions.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from itertools import count
from typing import Any

BATCH = 50
PARTITIONS = 4


def until_told() -> threading.Event:
    """Set once stdin has ended."""
    told = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        told.set()

    threading.Thread(target=wait, daemon=True).start()
    return told


def produce_librdkafka(servers: str, topic: str, name: str) -> None:
    from confluent_kafka import Producer

    options: dict[str, Any] = {
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "message.timeout.ms": 240_000,
        "linger.ms": 1,
    }
    producer = Producer(options)
    failed: list[Any] = []
    told, numbers, sent = until_told(), count(), 0
    while not told.is_set():
        for number in (next(numbers) for _ in range(BATCH)):
            producer.produce(
                topic,
                f"{name}:{number}",
                partition=number % PARTITIONS,
                on_delivery=lambda error, _: error and failed.append(error),
            )
            sent += 1
        while len(producer) > 4 * BATCH:
            producer.poll(0.1)
    left = producer.flush(240)
    assert not failed and not left, (failed[:1], left)
    print(sent, flush=True)


def produce_aiokafka(servers: str, topic: str, name: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> int:
        told, numbers, sent = until_told(), count(), 0
        async with AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True, request_timeout_ms=240_000
        ) as producer:
            while not told.is_set():
                waiting = []
                for number in (next(numbers) for _ in range(BATCH)):
                    value = f"{name}:{number}".encode()
                    waiting.append(await producer.send(topic, value, partition=number % PARTITIONS))
                    sent += 1
                await asyncio.gather(*waiting)
        return sent

    print(asyncio.run(run()), flush=True)


def consume_librdkafka(servers: str, topic: str, group: str, file: str) -> None:
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
            "partition.assignment.strategy": "range",
        }
    )
    consumer.subscribe([topic])
    with open(file, "a", buffering=1) as out:
        while True:
            messages = [one for one in consumer.consume(100, 0.2) if one.error() is None]
            out.write("".join(f"{m.partition()} {m.offset()} {m.value().decode()}\n" for m in messages))
            if messages:
                with suppress(KafkaException):  # a rebalance, or a new leader: read once more
                    consumer.commit(asynchronous=False)


def consume_aiokafka(servers: str, topic: str, group: str, file: str) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    async def run() -> None:
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            partition_assignment_strategy=(RangePartitionAssignor,),
        ) as consumer:
            with open(file, "a", buffering=1) as out:
                while True:
                    found = await consumer.getmany(timeout_ms=200, max_records=100)
                    rows = [one for each in found.values() for one in each]
                    out.write("".join(f"{r.partition} {r.offset} {r.value.decode()}\n" for r in rows))
                    if rows:
                        with suppress(KafkaError):  # a rebalance, or a new leader: read once more
                            await consumer.commit()

    asyncio.run(run())


def consume_kafka_python(servers: str, topic: str, group: str, file: str) -> None:
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=1_000,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    with open(file, "a", buffering=1) as out:
        while True:
            rows = [one for each in consumer.poll(200, 100).values() for one in each]
            out.write("".join(f"{r.partition} {r.offset} {r.value.decode()}\n" for r in rows))
            if rows:
                with suppress(KafkaError):  # a rebalance, or a new leader: read once more
                    consumer.commit()


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")](*sys.argv[2:])
