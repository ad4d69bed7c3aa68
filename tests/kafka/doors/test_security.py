"""Users of each client of Kafka: by SCRAM, and over TLS by their password as well."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from harness.kafka.java_client import JavaClient
from harness.kafka.real_broker import VERSIONS
from harness.maven import Unavailable
from quorumlog.net.tls import ClientTls
from tests import certificates
from tests.kafka.cluster import KafkaCluster, log_in
from tests.kafka.test_users import add_users, all_know_bob
from tests.waiting import eventually

pytestmark = [pytest.mark.doors, pytest.mark.timeout(300)]

CA = certificates.directory() / "ca.crt"
LOGINS = [("SASL_PLAINTEXT", "SCRAM-SHA-256"), ("SASL_SSL", "SCRAM-SHA-256"), ("SASL_SSL", "PLAIN")]
logins = pytest.mark.parametrize(("protocol", "mechanism"), LOGINS)
VALUES = [f"value {number}" for number in range(20)]


@pytest.fixture(scope="module")
def plain() -> Iterator[KafkaCluster]:
    with KafkaCluster(3) as kafka:
        add_users(kafka.cluster.servers)
        eventually(lambda: all_know_bob(kafka))
        yield kafka


@pytest.fixture(scope="module")
def encrypted() -> Iterator[KafkaCluster]:
    def tls_of(member_id: str) -> Any:
        return certificates.options_of(certificates.member(member_id))

    with KafkaCluster(3, tls=tls_of) as kafka:
        add_users(kafka.cluster.servers, ClientTls(str(CA)))
        eventually(lambda: all_know_bob(kafka))
        yield kafka


@pytest.fixture
def servers(protocol: str, request: pytest.FixtureRequest) -> str:
    kafka: KafkaCluster = request.getfixturevalue(
        "plain" if protocol == "SASL_PLAINTEXT" else "encrypted"
    )
    return kafka.servers


def create(kafka: KafkaCluster, topic: str) -> None:
    """Members that show each other no certificate do not have their leader make one for a user."""
    with kafka.wire() as wire:
        log_in(wire, "alice", "sesame")
        row = {"name": topic, "num_partitions": 1, "replication_factor": -1}
        row |= {"assignments": [], "configs": []}
        made = wire.ask("create_topics", 7, topics=[row], timeout=30_000, validate_only=False)
        assert not made.topics[0].error_code


class Client:
    """Writes the values to a topic, and reads them in a group. Raises an exception where its user may
    not, or is not let in."""

    def __init__(self, servers: str, protocol: str, mechanism: str, password: str, place: Path) -> None:
        self.servers = servers
        self.protocol = protocol
        self.mechanism = mechanism
        self.password = password
        self.place = place

    def librdkafka_options(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": "bob",
            "sasl.password": self.password,
            "ssl.ca.location": str(CA),
        }

    def confluent_kafka(self, topic: str) -> list[str]:
        from confluent_kafka import Consumer, KafkaException, Producer

        failed: list[Any] = []
        options: dict[str, Any] = {**self.librdkafka_options(), "message.timeout.ms": 60_000}

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({**options, "enable.idempotence": True, "error_cb": failed.append})
        for value in VALUES:
            producer.produce(topic, value, on_delivery=delivered)
        while len(producer) and not failed:
            producer.poll(0.1)
        if failed:
            producer.purge()
            raise KafkaException(failed[0])
        del options["message.timeout.ms"]
        consumer = Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        found: list[str] = []
        while len(found) < len(VALUES):
            for one in consumer.consume(len(VALUES), 1.0):
                assert one.error() is None
                found.append(one.value().decode())
        consumer.close()
        return found

    def aiokafka(self, topic: str) -> list[str]:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

        options: dict[str, Any] = {
            "bootstrap_servers": self.servers,
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": "bob",
            "sasl_plain_password": self.password,
        }
        if self.protocol == "SASL_SSL":
            options["ssl_context"] = ssl.create_default_context(cafile=str(CA))

        async def run() -> list[str]:
            producer = AIOKafkaProducer(**options, enable_idempotence=True)
            try:
                await producer.start()
                for value in VALUES:
                    await producer.send_and_wait(topic, value.encode())
            finally:
                await producer.stop()
            async with AIOKafkaConsumer(
                topic, **options, group_id=topic, auto_offset_reset="earliest"
            ) as consumer:
                return [(await consumer.getone()).value.decode() for _ in VALUES]

        return asyncio.run(asyncio.wait_for(run(), 120))

    def kafka_python(self, topic: str) -> list[str]:
        from kafka import KafkaConsumer, KafkaProducer

        options: dict[str, Any] = {
            "bootstrap_servers": self.servers.split(","),
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": "bob",
            "sasl_plain_password": self.password,
        }
        if self.protocol == "SASL_SSL":
            options["ssl_cafile"] = str(CA)
        with KafkaProducer(**options) as producer:
            for each in [producer.send(topic, value.encode()) for value in VALUES]:
                each.get(60)
        with KafkaConsumer(topic, **options, group_id=topic, auto_offset_reset="earliest") as consumer:
            return [next(consumer).value.decode() for _ in VALUES]

    def kcat(self, topic: str) -> list[str]:
        if which("kcat") is None:
            pytest.skip("kcat is not installed: apt-get install kcat")
        options = [f"-X{name}={value}" for name, value in self.librdkafka_options().items()]
        command = ["kcat", *options, "-q"]
        run: dict[str, Any] = {"text": True, "check": True, "timeout": 120}
        # It tries again for as long as it may where it is not let in.
        limits = ["-Xmessage.timeout.ms=20000"]
        subprocess.run([*command, *limits, "-P", "-t", topic], input="\n".join(VALUES), **run)
        read = [*command, "-C", "-t", topic, "-o", "beginning", "-e"]
        return subprocess.run(read, stdout=subprocess.PIPE, **run).stdout.splitlines()

    def java(self, topic: str, version: str) -> list[str]:
        login = (
            "scram.ScramLoginModule" if self.mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
        )
        module = f"org.apache.kafka.common.security.{login} required"
        properties = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.jaas.config": f'{module} username="bob" password="{self.password}";',
        }
        if self.protocol == "SASL_SSL":
            properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(CA)}
        try:
            client = JavaClient(self.place, version, properties)
        except Unavailable as reason:
            pytest.skip(f"Kafka's Java clients are not to be had: {reason}")
        client.run(self.servers, "send", topic, len(VALUES), "none")
        rows = client.run(self.servers, "read", topic, topic, len(VALUES))
        return [f"value {value[1:]}" for _, _, _, value, _ in rows]


CLIENTS: dict[str, Callable[[Client, str], list[str]]] = {
    "confluent-kafka": Client.confluent_kafka,
    "aiokafka": Client.aiokafka,
    "kafka-python": Client.kafka_python,
    "kcat": Client.kcat,
    **{f"java-{each}": lambda client, topic, each=each: client.java(topic, each) for each in VERSIONS},
}


@logins
@pytest.mark.parametrize("name", CLIENTS)
def test_a_user_writes_and_reads(
    servers: str,
    protocol: str,
    mechanism: str,
    name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    client = Client(servers, protocol, mechanism, "tahini", tmp_path)
    topic = f"mine-{name}-{protocol}-{mechanism}"
    if protocol == "SASL_PLAINTEXT":
        create(request.getfixturevalue("plain"), topic)
    assert CLIENTS[name](client, topic) == VALUES


@logins
@pytest.mark.parametrize("name", CLIENTS)
def test_who_has_another_password_is_not_let_in(
    servers: str, protocol: str, mechanism: str, name: str, tmp_path: Path
) -> None:
    client = Client(servers, protocol, mechanism, "sesame", tmp_path)
    with pytest.raises(Exception, match=r"(?i)auth|sasl|exit status|bootstrap|unable"):
        CLIENTS[name](client, f"mine-{name}-{protocol}-{mechanism}")


@pytest.mark.parametrize(("protocol", "mechanism"), [("SASL_PLAINTEXT", "PLAIN")])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_password_is_not_taken_without_tls(
    servers: str, protocol: str, mechanism: str, name: str, tmp_path: Path
) -> None:
    client = Client(servers, protocol, mechanism, "tahini", tmp_path)
    with pytest.raises(Exception, match=r"(?i)auth|sasl|exit status|bootstrap|unable"):
        CLIENTS[name](client, f"mine-{name}")
