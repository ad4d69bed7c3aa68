"""The port on members: requests by hand, and aiokafka."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from kio.schema.errors import ErrorCode

from harness.kafka.wire import KafkaWire
from quorumlog.config import MIB, StoreConfig
from quorumlog.kafka.codec import ADVERTISED, API_VERSIONS, VERSIONS
from tests.kafka.batches import made_batch
from tests.kafka.cluster import KafkaCluster
from tests.waiting import eventually


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture
def wire(kafka: KafkaCluster) -> Iterator[KafkaWire]:
    with kafka.wire() as connection:
        yield connection


def create(wire: KafkaWire, name: str, partitions: int = 1, **options: Any) -> Any:
    row = {"name": name, "num_partitions": partitions, "replication_factor": -1}
    row |= {"assignments": [], "configs": [], **options}
    (topic,) = wire.ask("create_topics", 7, topics=[row], timeout=30_000, validate_only=False).topics
    return topic


def produced(wire: KafkaWire, topic: str, data: bytes, partition: int = 0, **options: Any) -> Any:
    values = produce_values(topic, data, partition)
    (answer,) = wire.ask("produce", 9, **{**values, **options}).responses[0].partition_responses
    return answer


def produce_values(topic: str, data: bytes, partition: int = 0) -> dict[str, Any]:
    rows = [{"index": partition, "records": data}]
    topics = [{"name": topic, "partition_data": rows}]
    return {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": topics}


def fetch_values(topic: str, offset: int, wait_ms: int = 0, **options: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    return {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "topics": [{"topic": topic, "partitions": [{**partition, **options}]}],
        "forgotten_topics_data": [],
    }


def fetched(wire: KafkaWire, topic: str, offset: int, wait_ms: int = 0, **options: Any) -> Any:
    answer = wire.ask("fetch", 11, **fetch_values(topic, offset, wait_ms, **options))
    return answer.responses[0].partitions[0]


def offset_at(wire: KafkaWire, topic: str, timestamp: int) -> Any:
    row = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    topics = [{"name": topic, "partitions": [row]}]
    answer = wire.ask("list_offsets", 7, replica_id=-1, isolation_level=0, topics=topics)
    return answer.topics[0].partitions[0]


def metadata(wire: KafkaWire, *topics: str, version: int = 12, creates: bool = True) -> Any:
    values = metadata_values(version, topics, creates=creates)
    return wire.ask("metadata", version, **values)


def metadata_values(version: int, topics: Sequence[str] | None, *, creates: bool = True) -> Any:
    values: dict[str, Any] = {"topics": topics and [{"name": each} for each in topics]}
    if version >= 10 and topics:
        values["topics"] = [{"name": each, "topic_id": None} for each in topics]
    if version >= 4:
        values["allow_auto_topic_creation"] = creates
    if version >= 8:
        values["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        values["include_cluster_authorized_operations"] = False
    return values


# ---------------------------------------------------------------- by hand


def test_every_version_that_is_named_is_served(kafka: KafkaCluster) -> None:
    with kafka.wire() as wire:
        answer = wire.ask("api_versions", 3, client_software_name="it", client_software_version="1")
        named = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        assert named == ADVERTISED
        for version in range(VERSIONS[3][0], VERSIONS[3][1] + 1):
            assert metadata(wire, version=version).brokers
        for version in range(2, 8):
            name = f"version-{version}"
            rows = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
            rows[0] |= {"assignments": [], "configs": []}
            answer = wire.ask("create_topics", version, topics=rows, timeout=30_000)
            assert answer.topics[0].error_code == ErrorCode.none


def test_an_unknown_version_of_api_versions_is_told_the_known_ones(wire: KafkaWire) -> None:
    wire.send_bytes(struct.pack(">hhih", API_VERSIONS, 99, 7, -1) + b"whatever")
    data = wire.receive_bytes()
    number, code, count = struct.unpack_from(">ihi", data)
    assert (number, code, count) == (7, ErrorCode.unsupported_version, len(ADVERTISED))


@pytest.mark.parametrize(
    "request_", [struct.pack(">hhih", 99, 0, 1, -1), struct.pack(">hhih", 3, 99, 1, -1), b"GET / HTTP"]
)
def test_what_is_not_served_ends_the_connection(wire: KafkaWire, request_: bytes) -> None:
    wire.send_bytes(request_)
    with pytest.raises((EOFError, ConnectionError)):
        wire.receive_bytes()


def test_records_come_back_as_they_were_sent_with_their_offsets(wire: KafkaWire) -> None:
    topic_id = create(wire, "as-sent").topic_id
    sent = [made_batch([b"one", b"two"]), made_batch([b"three"], timestamp=5_000)]
    assert [produced(wire, "as-sent", each).base_offset for each in sent] == [0, 2]
    expected = sent[0] + struct.pack(">q", 2) + sent[1][8:]
    answer = fetched(wire, "as-sent", 0)
    assert (answer.records, answer.high_watermark, answer.log_start_offset) == (expected, 3, 0)
    assert fetched(wire, "as-sent", 1).records == expected
    assert fetched(wire, "as-sent", 2).records == expected[len(sent[0]) :]
    assert fetched(wire, "as-sent", 3).records == b""
    assert fetched(wire, "as-sent", 4).error_code == ErrorCode.offset_out_of_range
    assert fetched(wire, "as-sent", 0, partition_max_bytes=1).records == sent[0]
    values = fetch_values("", 0)
    values["topics"][0] = {**values["topics"][0], "topic_id": topic_id}
    del values["topics"][0]["topic"]
    by_id = wire.ask("fetch", 16, **values).responses[0]
    assert (by_id.topic_id, by_id.partitions[0].records) == (topic_id, expected)


def test_offsets_are_found_by_time(wire: KafkaWire) -> None:
    create(wire, "times")
    for timestamp in (1_000, 2_000):
        produced(wire, "times", made_batch([b"a", b"b", b"c"], timestamp=timestamp))
    found = {each: offset_at(wire, "times", each) for each in (-1, -2, -3, 0, 1_002, 1_003, 2_003)}
    assert {each: at.offset for each, at in found.items()} == {
        -1: 6,
        -2: 0,
        -3: 5,
        0: 0,
        1_002: 2,
        1_003: 3,
        2_003: -1,
    }
    assert found[1_002].timestamp == 1_002
    assert found[-3].timestamp == 2_002


def test_a_fetch_waits_for_records(kafka: KafkaCluster, wire: KafkaWire) -> None:
    create(wire, "waits")
    number = wire.send("fetch", 11, **fetch_values("waits", 0, wait_ms=60_000))
    with kafka.wire() as other:
        sent = made_batch([b"at last"])
        assert produced(other, "waits", sent).error_code == ErrorCode.none
    answer = wire.receive("fetch", 11, number)
    assert answer.responses[0].partitions[0].records == sent


def test_a_fetch_of_a_topic_that_is_deleted_meanwhile_ends(kafka: KafkaCluster, wire: KafkaWire) -> None:
    create(wire, "doomed")
    number = wire.send("fetch", 11, **fetch_values("doomed", 0, wait_ms=60_000))
    with kafka.wire() as other:
        row = {"name": "doomed", "topic_id": None}
        (deleted,) = other.ask("delete_topics", 6, topics=[row], timeout=30_000).responses
        assert deleted.error_code == ErrorCode.none
    (answer,) = wire.receive("fetch", 11, number).responses[0].partitions
    assert answer.error_code == ErrorCode.unknown_topic_or_partition


def test_answers_come_in_the_order_of_requests(wire: KafkaWire) -> None:
    create(wire, "in-order")
    numbers = []
    for _ in range(20):
        numbers.append(("fetch", 11, wire.send("fetch", 11, **fetch_values("in-order", 0, wait_ms=1))))
        values = produce_values("in-order", made_batch([b"value"]))
        numbers.append(("produce", 9, wire.send("produce", 9, **values)))
        values = metadata_values(9, None)
        numbers.append(("metadata", 9, wire.send("metadata", 9, **values)))
    for name, version, number in numbers:
        wire.receive(name, version, number)


def test_who_wants_no_answer_gets_none_and_the_records_are_there(wire: KafkaWire) -> None:
    create(wire, "no-answer")
    wire.send("produce", 9, **{**produce_values("no-answer", made_batch([b"value"])), "acks": 0})
    assert metadata(wire).brokers
    eventually(lambda: offset_at(wire, "no-answer", -1).offset == 1)


def test_who_wants_no_answer_is_told_of_a_refusal_by_the_end(wire: KafkaWire) -> None:
    wire.send("produce", 9, **{**produce_values("not-there", made_batch([b"value"])), "acks": 0})
    with pytest.raises(EOFError):
        wire.receive_bytes()


def test_transactions_and_compaction_are_refused_by_their_codes(wire: KafkaWire) -> None:
    create(wire, "plain")
    denied = ErrorCode.transactional_id_authorization_failed
    made = wire.ask("init_producer_id", 4, transactional_id="t", transaction_timeout=1, producer_id=-1)
    assert made.error_code == denied
    assert produced(wire, "plain", made_batch([b"v"]), transactional_id="t").error_code == denied
    found = wire.ask("find_coordinator", 4, key_type=1, coordinator_keys=["t"])
    assert found.coordinators[0].error_code == denied
    compacted = create(wire, "compacted", configs=[{"name": "cleanup.policy", "value": "compact"}])
    assert compacted.error_code == ErrorCode.invalid_config
    assert "nothing is compacted" in compacted.error_message


def test_topics_are_made_grown_described_and_deleted(wire: KafkaWire) -> None:
    made = create(wire, "grows", partitions=2)
    assert (made.error_code, made.num_partitions) == (ErrorCode.none, 2)
    assert create(wire, "grows").error_code == ErrorCode.topic_already_exists
    assert create(wire, "no/name").error_code == ErrorCode.invalid_topic_exception
    answers = []
    for count in (1, 3):
        row = {"name": "grows", "count": count, "assignments": None}
        values = {"topics": [row], "timeout": 30_000, "validate_only": False}
        answers += wire.ask("create_partitions", 3, **values).results
    assert [each.error_code for each in answers] == [ErrorCode.invalid_partitions, ErrorCode.none]
    (topic,) = metadata(wire, "grows").topics
    assert len(topic.partitions) == 3
    resource = {"resource_type": 2, "resource_name": "grows", "configuration_keys": None}
    asked = {"include_synonyms": False, "include_documentation": False}
    (described,) = wire.ask("describe_configs", 4, resources=[resource], **asked).results
    assert {each.name: each.value for each in described.configs}["cleanup.policy"] == "delete"
    (deleted,) = wire.ask(
        "delete_topics", 6, topics=[{"name": None, "topic_id": made.topic_id}], timeout=30_000
    ).responses
    assert (deleted.name, deleted.error_code) == ("grows", ErrorCode.none)
    assert produced(wire, "grows", made_batch([b"v"])).error_code == 3


def test_a_topic_is_made_when_it_is_asked_for_if_that_is_wanted(wire: KafkaWire) -> None:
    (missing,) = metadata(wire, "on-demand", creates=False).topics
    assert missing.error_code == ErrorCode.unknown_topic_or_partition
    (made,) = metadata(wire, "on-demand").topics
    assert (made.error_code, len(made.partitions)) == (ErrorCode.none, 1)


def test_a_batch_that_is_damaged_on_its_way_is_refused(wire: KafkaWire) -> None:
    create(wire, "damaged")
    data = bytearray(made_batch([b"value"]))
    data[-3] ^= 1
    assert produced(wire, "damaged", bytes(data)).error_code == ErrorCode.corrupt_message
    assert offset_at(wire, "damaged", -1).offset == 0


# ---------------------------------------------------------------- aiokafka


def test_a_consumer_group_goes_on_where_it_has_committed(kafka: KafkaCluster) -> None:
    async def consume(count: int) -> list[bytes | None]:
        consumer = AIOKafkaConsumer(
            "group-topic",
            bootstrap_servers=kafka.servers,
            group_id="readers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            found = [await asyncio.wait_for(consumer.getone(), 60) for _ in range(count)]
            await consumer.commit()
            return [each.value for each in found]
        finally:
            await consumer.stop()

    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=kafka.servers, enable_idempotence=True, compression_type="gzip"
        )
        await producer.start()
        values = [b"%d" % number for number in range(20)]
        for value in values:
            await producer.send_and_wait("group-topic", value)
        assert await consume(15) == values[:15]
        assert await consume(5) == values[15:]
        await producer.stop()

    asyncio.run(run())


# ---------------------------------------------------------------- several members


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    with KafkaCluster(3) as cluster:
        yield cluster


def test_a_follower_names_the_leader_and_answers_for_no_partition(three: KafkaCluster) -> None:
    leader = int(three.leader()[1:])
    with three.wire() as wire:
        create(wire, "led")
    with three.wire(three.follower()) as wire:
        eventually(lambda: metadata(wire, "led").topics[0].partitions)
        answer = metadata(wire, "led")
        assert answer.controller_id == leader
        assert {each.node_id for each in answer.brokers} == {0, 1, 2}
        assert answer.topics[0].partitions[0].leader_id == leader
        (made,) = metadata(wire, "made-by-the-leader").topics
        assert (made.error_code, len(made.partitions)) == (ErrorCode.none, 1)
        refused = ErrorCode.not_leader_or_follower
        assert produced(wire, "led", made_batch([b"v"])).error_code == refused
        assert fetched(wire, "led", 0).error_code == refused
        assert offset_at(wire, "led", -1).error_code == refused
        found = wire.ask("find_coordinator", 4, key_type=0, coordinator_keys=["readers"])
        assert found.coordinators[0].node_id == leader


def test_an_idempotent_producer_goes_on_over_the_death_of_a_leader(three: KafkaCluster) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=three.servers,
            enable_idempotence=True,
            retry_backoff_ms=50,
            request_timeout_ms=60_000,
        )
        await producer.start()
        values = [b"%d" % number for number in range(300)]
        sent = [await producer.send("survives", value, partition=0) for value in values[:150]]
        killed = three.leader()
        await asyncio.to_thread(three.cluster.kill, killed)
        sent += [await producer.send("survives", value, partition=0) for value in values[150:]]
        offsets = [(await asyncio.wait_for(each, 60)).offset for each in sent]
        assert offsets == list(range(300))
        await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=three.servers, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([TopicPartition("survives", 0)])
        found = [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in values]
        assert found == values
        await consumer.stop()
        await asyncio.to_thread(three.cluster.restart, killed)

    asyncio.run(run())


def test_what_is_committed_is_there_after_a_restart_of_all() -> None:
    storage = StoreConfig(segment_bytes=MIB)
    with KafkaCluster(storage=storage) as kafka:
        with kafka.wire() as wire:
            create(wire, "kept")
            sent = made_batch([b"kept"])
            assert produced(wire, "kept", sent).base_offset == 0
        kafka.cluster.restart("n0")
        with kafka.wire() as wire:
            assert fetched(wire, "kept", 0).records == sent
            assert produced(wire, "kept", made_batch([b"more"])).base_offset == 1
