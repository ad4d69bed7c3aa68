"""Rows a second of the view `kafka` beside Spark's own source of Kafka, of the same topics, in one run:

    python -m benchmarks.kafka_on_spark [--rounds 3] [--megabytes 400] [--compression none]

Three members on this machine have a topic of four partitions, written by one idempotent producer in
batches of 64 KiB. Spark on two cores reads all of it: key, value and the other columns to nowhere, or
the offsets alone. Rounds alternate; medians.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame

import quorumlog.spark
from harness.kafka.members import KafkaMembers
from harness.kafka.real_broker import spark_jars
from quorumlog.bench.machine import machine_of

PARTITIONS = 4
BODY_BYTES = (100, 1024)
BATCH_BYTES = 64 << 10
KAFKA, VIEW = "Spark's own source", "view=kafka"


def fill(servers: str, topic: str, records: int, body_bytes: int, compression: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    patient = {"operation_timeout": 240, "request_timeout": 300}
    admin.create_topics([NewTopic(topic, PARTITIONS)], **patient)[topic].result(300)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "batch.size": BATCH_BYTES,
            "linger.ms": 20,
            "compression.type": compression,
            "queue.buffering.max.messages": 100_000,
        }
    )
    for first in range(0, records, 1_000):
        messages = [
            {"key": b"%012d" % number, "value": (b"%012d" % number) * (body_bytes // 12)}
            for number in range(first, min(first + 1_000, records))
        ]
        producer.produce_batch(topic, messages, partition=first // 1_000 % PARTITIONS)
        while len(producer) > 50_000:
            producer.poll(0.05)
    assert not producer.flush(240)


def seconds_of(frame: DataFrame) -> float:
    began_s = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began_s


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--compression", default="none")
    given = parser.parse_args(arguments)
    found: dict[tuple[int, str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-kafka-") as place:
        print(machine_of(place).describe(), flush=True)
        spark = quorumlog.spark.session(
            "kafka-on-spark", "local[2]", **{"spark.jars": ",".join(spark_jars())}
        )
        spark.sparkContext.setLogLevel("ERROR")
        with KafkaMembers(Path(place) / "members") as members:
            members.kafka_leader()
            servers, log = members.kafka_servers, ",".join(each.address for each in members.members)
            for body_bytes in BODY_BYTES:
                topic = f"of-{body_bytes}"
                records = given.megabytes * 1_000_000 // body_bytes
                fill(servers, topic, records, body_bytes, given.compression)
                own = spark.read.format("kafka").options(
                    **{"kafka.bootstrap.servers": servers, "subscribe": topic}
                )
                view = spark.read.format("quorumlog").options(view="kafka", servers=log, topic=topic)
                # A source of Python's has to be told which columns are wanted.
                frames = {
                    (KAFKA, "all"): own.load(),
                    (VIEW, "all"): view.load(),
                    (KAFKA, "offset"): own.load().select("offset"),
                    (VIEW, "offset"): view.option("columns", "offset").load(),
                }
                for (source, _), frame in frames.items():
                    assert frame.count() == records, (source, records)
                for _ in range(given.rounds):
                    for key, frame in frames.items():
                        rate = records / seconds_of(frame)
                        found.setdefault((body_bytes, *key), []).append(rate)
        spark.stop()
    print("| records | columns | source | rows/s | least to most |")
    print("| --- | --- | --- | ---: | ---: |")
    for (body_bytes, source, columns), rates in found.items():
        print(
            f"| {body_bytes} B | {columns} | {source} | {median(rates):,.0f} |"
            f" {min(rates):,.0f} to {max(rates):,.0f} |"
        )


if __name__ == "__main__":
    main()
