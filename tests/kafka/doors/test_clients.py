"""Each client of Kafka as it is shipped makes a topic, writes to it, reads in a group, and commits."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from harness.kafka.java_client import JavaClient
from harness.kafka.members import KafkaMembers
from harness.kafka.real_broker import VERSIONS
from harness.maven import Unavailable
from tests.waiting import eventually

pytestmark = [pytest.mark.doors, pytest.mark.timeout(300)]

COUNT = 300
Rows = dict[str, tuple[int, int, str]]
"""Partition, offset and value, by key."""


def fresh(name: str) -> str:
    return f"{name}-{time.time_ns()}"


def check_offsets(rows: Rows) -> None:
    """Of a topic of two partitions that only these were written to."""
    assert {key: value for key, (_, _, value) in rows.items()} == {
        f"k{n}": f"v{n}" for n in range(COUNT)
    }
    for partition in (0, 1):
        numbered = sorted((at, int(key[1:])) for key, (own, at, _) in rows.items() if own == partition)
        assert [at for at, _ in numbered] == list(range(len(numbered)))
        assert numbered == sorted(numbered, key=lambda row: row[1]), (
            "in the order in which they were sent"
        )


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka(members: KafkaMembers, compression: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    topic = group = fresh(f"librdkafka-{compression}")
    servers = {"bootstrap.servers": members.kafka_servers}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    sent: Rows = {}
    producer = Producer({**servers, "enable.idempotence": True, "compression.type": compression})
    for n in range(COUNT):
        producer.produce(
            topic,
            f"v{n}",
            f"k{n}",
            headers={"h": b"1"},
            on_delivery=lambda error, one: sent.update(
                {one.key().decode(): (one.partition(), one.offset(), one.value().decode())}
            ),
        )
    assert producer.flush(60) == 0
    check_offsets(sent)
    read: Rows = {}
    consumer = Consumer(
        {**servers, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    while len(read) < COUNT:
        for one in consumer.consume(COUNT, 1.0):
            assert one.error() is None
            assert one.headers() == [("h", b"1")]
            read[one.key().decode()] = (one.partition(), one.offset(), one.value().decode())
    assert read == sent
    consumer.commit(asynchronous=False)
    ends = [sum(partition == each for partition, _, _ in read.values()) for each in (0, 1)]
    partitions = [TopicPartition(topic, each) for each in (0, 1)]
    assert [each.offset for each in consumer.committed(partitions)] == ends
    assert [consumer.get_watermark_offsets(each) for each in partitions] == [(0, end) for end in ends]
    described = admin.describe_consumer_groups([group])[group].result(60)
    assert (described.state.name, len(described.members)) == ("STABLE", 1)
    consumer.close()
    listed = admin.list_consumer_groups().result(60).valid
    assert group in {each.group_id for each in listed}
    admin.delete_topics([topic])[topic].result(60)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics)


def test_aiokafka(members: KafkaMembers) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    async def run() -> None:
        topic, servers = fresh("aiokafka"), members.kafka_servers
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 2, 3)])
        sent: Rows = {}
        async with AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True, compression_type="gzip"
        ) as producer:
            waiting = [await producer.send(topic, b"v%d" % n, b"k%d" % n) for n in range(COUNT)]
            for n, one in enumerate(await asyncio.gather(*waiting)):
                sent[f"k{n}"] = (one.partition, one.offset, f"v{n}")
        check_offsets(sent)
        read: Rows = {}
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            while len(read) < COUNT:
                one = await consumer.getone()
                read[one.key.decode()] = (one.partition, one.offset, one.value.decode())
            await consumer.commit()
            ends = await consumer.end_offsets(consumer.assignment())
            assert ends == {each: await consumer.committed(each) for each in consumer.assignment()}
        assert read == sent
        assert {each[0] for each in await admin.list_consumer_groups()} >= {topic}
        found = await admin.list_consumer_group_offsets(topic)
        assert {each: at.offset for each, at in found.items()} == ends
        assert set(ends) == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        await admin.close()

    asyncio.run(asyncio.wait_for(run(), 120))


def test_kafka_python(members: KafkaMembers) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic

    topic, servers = fresh("kafka-python"), members.kafka_servers.split(",")
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(topic, 2, 3)])
    sent: Rows = {}
    with KafkaProducer(bootstrap_servers=servers, compression_type="gzip", acks="all") as producer:
        waiting = [producer.send(topic, b"v%d" % n, b"k%d" % n) for n in range(COUNT)]
        for n, each in enumerate(waiting):
            at = each.get(60)
            sent[f"k{n}"] = (at.partition, at.offset, f"v{n}")
    check_offsets(sent)
    read: Rows = {}
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    while len(read) < COUNT:
        for rows in consumer.poll(1_000).values():
            for one in rows:
                read[one.key.decode()] = (one.partition, one.offset, one.value.decode())
    assert read == sent
    consumer.commit()
    partitions = [TopicPartition(topic, each) for each in (0, 1)]
    ends = consumer.end_offsets(partitions)
    assert {each: consumer.committed(each) for each in partitions} == ends
    first = consumer.offsets_for_times(dict.fromkeys(partitions, 0))
    assert {at.offset for at in first.values()} == {0}
    consumer.close()
    admin.delete_topics([topic])
    admin.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_java(members: KafkaMembers, tmp_path: Path, version: str) -> None:
    try:
        client = JavaClient(tmp_path, version)
    except Unavailable as reason:
        pytest.skip(f"Kafka's Java clients are not to be had: {reason}")
    topic, servers = fresh(f"java-{version}"), members.kafka_servers
    assert client.run(servers, "create", topic, 2) == [["2"]]
    sent = {
        key: (int(own), int(at)) for own, at, key in client.run(servers, "send", topic, COUNT, "zstd")
    }
    rows = client.run(servers, "read", topic, topic, COUNT)
    assert all(key[1:] == value[1:] == header for _, _, key, value, header in rows)
    check_offsets({key: (int(own), int(at), value) for own, at, key, value, _ in rows})
    assert {key: (int(own), int(at)) for own, at, key, _, _ in rows} == sent
    ends = {str(own): str(1 + max(at for one, at in sent.values() if one == own)) for own in (0, 1)}
    state, *committed = client.run(servers, "describe", topic)
    assert (state, dict(committed)) == (["Empty"], ends)


def test_kcat(members: KafkaMembers) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed: apt-get install kcat")
    kcat = ("kcat", "-b", members.kafka_servers)
    topic = fresh("kcat")
    lines = "".join(f"k{n}:v{n}\n" for n in range(COUNT))
    subprocess.run([*kcat, "-P", "-t", topic, "-K:"], input=lines, text=True, check=True, timeout=120)
    command = [*kcat, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%p %o %k %s\n"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows == [["0", str(n), f"k{n}", f"v{n}"] for n in range(COUNT)], "made when it was asked for"
    known = subprocess.run([*kcat, "-L"], capture_output=True, text=True, check=True, timeout=120)
    assert f'topic "{topic}" with 1 partitions' in known.stdout
    assert known.stdout.count("broker n") + known.stdout.count("\n  broker ") == 3
