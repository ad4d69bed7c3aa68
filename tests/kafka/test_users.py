"""Who clients of Kafka are, and what they may do."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from kio.schema.errors import ErrorCode

from harness.kafka.wire import KafkaWire
from quorumlog.client import connect
from quorumlog.log_state.users import (
    Kind,
    Right,
    RoleGrant,
    UserOperation,
    UserOrder,
)
from quorumlog.net.credentials import ClientUser, verifier_for
from quorumlog.net.tls import ClientTls
from tests import certificates
from tests.kafka.batches import made_batch
from tests.kafka.cluster import KafkaCluster, log_in
from tests.kafka.test_logins import TlsWire
from tests.waiting import eventually

ALICE = ClientUser("alice", "sesame")
GRANTS = (
    RoleGrant(Right.READ, Kind.CONSUMER_GROUP, b"mine-"),
    RoleGrant(Right.READ, Kind.TOPIC, b"mine-"),
    RoleGrant(Right.WRITE, Kind.TOPIC, b"mine-"),
)


def add_users(servers: str, tls: ClientTls | None = None) -> None:
    """alice, who may do everything, and bob, who may write to and read `mine-...`."""
    with connect(servers, tls=tls) as log:
        verifier = verifier_for("sesame")
        log.change_users(UserOrder(UserOperation.ADD_USER, "alice", ("admin",), (), verifier))
    with connect(servers, user=ALICE, tls=tls) as log:
        log.change_users(UserOrder(UserOperation.ADD_ROLE, "mine", (), GRANTS))
        verifier = verifier_for("tahini")
        log.change_users(UserOrder(UserOperation.ADD_USER, "bob", ("mine",), (), verifier))


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        add_users(cluster.cluster.servers)
        eventually(lambda: all_know_bob(cluster))
        yield cluster


def all_know_bob(kafka: KafkaCluster) -> bool:
    known = [each.access.users for each in kafka.endpoints.values()]
    return all(users is not None and users.user("bob") is not None for users in known)


def send(servers: str, topic: str, user: str, password: str, **options: Any) -> int:
    """The offset of one record. Raises KafkaError."""

    async def run() -> int:
        producer = AIOKafkaProducer(
            bootstrap_servers=servers,
            sasl_plain_username=user,
            sasl_plain_password=password,
            **{
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-256",
                "request_timeout_ms": 60_000,
                **options,
            },
        )
        try:
            await producer.start()
            return (await asyncio.wait_for(producer.send_and_wait(topic, b"value"), 60)).offset
        finally:
            await producer.stop()

    return asyncio.run(run())


def test_a_user_proves_a_password_by_scram(kafka: KafkaCluster) -> None:
    assert send(kafka.servers, "of-alice", "alice", "sesame") == 0
    assert send(kafka.servers, "mine-1", "bob", "tahini") == 0


@pytest.mark.parametrize(("user", "password"), [("bob", "sesame"), ("nobody", "tahini")])
def test_who_does_not_is_not_let_in(kafka: KafkaCluster, user: str, password: str) -> None:
    with pytest.raises(KafkaError):
        send(kafka.servers, "mine-1", user, password)


def test_a_topic_is_for_those_to_whom_it_is_granted(kafka: KafkaCluster) -> None:
    send(kafka.servers, "of-alice", "alice", "sesame")
    with pytest.raises(TopicAuthorizationFailedError):
        send(kafka.servers, "of-alice", "bob", "tahini")


def test_who_has_no_name_may_nothing(kafka: KafkaCluster) -> None:
    send(kafka.servers, "of-alice", "alice", "sesame")
    with kafka.wire() as wire:
        assert not metadata_of_all(wire).topics
        rows = [{"index": 0, "records": made_batch([b"value"])}]
        topics = [{"name": "of-alice", "partition_data": rows}]
        values = {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": topics}
        (answer,) = wire.ask("produce", 9, **values).responses[0].partition_responses
        assert answer.error_code == ErrorCode.topic_authorization_failed
        made = wire.ask("init_producer_id", 1, transactional_id=None, transaction_timeout=1)
        assert made.error_code == ErrorCode.topic_authorization_failed
        listed = wire.ask("describe_groups", 4, groups=["a"], include_authorized_operations=False)
        assert listed.groups[0].error_code == ErrorCode.group_authorization_failed
        row = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        row |= {"assignments": [], "configs": []}
        created = wire.ask("create_topics", 5, topics=[row], timeout=1, validate_only=False)
        assert created.topics[0].error_code == ErrorCode.topic_authorization_failed


def metadata_of_all(wire: KafkaWire) -> Any:
    return wire.ask(
        "metadata",
        9,
        topics=None,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def test_a_password_is_not_taken_without_tls(kafka: KafkaCluster) -> None:
    with kafka.wire() as wire:
        answer = wire.ask("sasl_handshake", 1, mechanism="PLAIN")
        assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
        assert answer.mechanisms == ("SCRAM-SHA-256",)


def test_a_fetch_that_waits_ends_when_its_right_is_revoked(kafka: KafkaCluster) -> None:
    def change(operation: UserOperation, name: str, roles: tuple[str, ...] = (), **more: Any) -> None:
        with connect(kafka.cluster.servers, user=ALICE) as log:
            log.change_users(UserOrder(operation, name, roles, **more))

    send(kafka.servers, "watched", "alice", "sesame")
    grants = (RoleGrant(Right.READ, Kind.TOPIC, b"watched"),)
    change(UserOperation.ADD_ROLE, "watches", grants=grants)
    change(UserOperation.ADD_USER, "carol", ("watches",), verifier=verifier_for("olive"))
    partition = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1_000}
    topics = [{"topic": "watched", "partitions": [partition]}]
    values = {"max_wait": 60_000, "min_bytes": 1, "max_bytes": 1_000, "forgotten_topics_data": []}

    def logged_in() -> KafkaWire | None:
        wire = kafka.wire()
        if not log_in(wire, "carol", "olive").error_code:
            return wire
        wire.close()  # the member does not know her yet
        return None

    with eventually(logged_in) as wire:
        number = wire.send("fetch", 11, topics=topics, **values)
        change(UserOperation.TAKE_ROLES, "carol", ("watches",))
        (answer,) = wire.receive("fetch", 11, number).responses[0].partitions
        assert answer.error_code == ErrorCode.topic_authorization_failed
        assert not answer.records


def test_a_follower_has_the_leader_make_a_topic_for_who_may() -> None:
    """Over TLS, where a password is taken as it is, too."""

    def tls_of(member_id: str) -> Any:
        return certificates.options_of(certificates.member(member_id))

    ca = str(certificates.directory() / "ca.crt")
    with KafkaCluster(3, tls=tls_of) as kafka:
        add_users(kafka.cluster.servers, ClientTls(ca))
        eventually(lambda: all_know_bob(kafka))
        options: dict[str, Any] = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "ssl_context": ssl.create_default_context(cafile=ca),
        }
        follower = kafka.addresses[kafka.follower()]
        assert send(follower, "mine-2", "bob", "tahini", **options) == 0
        with pytest.raises(KafkaError):
            send(follower, "mine-2", "bob", "sesame", **options)
        many = [{"name": f"mine-{number:0150}"} for number in range(150)]
        with TlsWire(follower, Path(ca)) as wire:
            assert not log_in(wire, "bob", "tahini").error_code

            def are_made() -> bool:
                told = wire.ask("metadata", 1, topics=many).topics
                return all(each.error_code == ErrorCode.none for each in told)

            eventually(are_made, what="topics by a request too large to be a connection's first one")
