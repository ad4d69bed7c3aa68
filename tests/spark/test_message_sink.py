"""Rows that become messages of brokers, each once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from quorumlog import connect as log_of
from quorumlog.broker import BrokerAdmin, BrokerClient, connect
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.errors import TopicNotPermitted, UnknownTopic
from quorumlog.broker.group_commands import READ
from quorumlog.broker.groups.group_service import GroupOptions, GroupService
from quorumlog.broker.message import StoredMessage
from quorumlog.config import staging_name
from quorumlog.errors import ConfigError
from quorumlog.spark.messages.message_bodies import MESSAGE_MACHINE, MessageBodies, topics_of
from quorumlog.spark.messages.message_options import message_schema
from quorumlog.spark.row_bodies import SinkOptions
from quorumlog.staging import Batch, BatchRules, RowDigest, SinkCommits, open_sink_logs, stage
from quorumlog.staging.manifests import NewestManifest
from tests.waiting import eventually

COLUMNS = ("topic", "queue", "keys", "tags", "properties", "body")
SCHEMA = message_schema(COLUMNS)


def bodies(topics: dict[str, int], schema: StructType = SCHEMA, **options: str) -> MessageBodies:
    given = {"servers": "127.0.0.1:1", "view": "messages", **options}
    return MessageBodies(schema, SinkOptions.parse(given), topics)


def batch(*rows: dict[str, object]) -> pa.RecordBatch:
    kinds = {
        "topic": pa.string(),
        "queue": pa.int32(),
        "keys": pa.list_(pa.string()),
        "tags": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
        "body": pa.binary(),
    }
    return pa.RecordBatch.from_pylist(list(rows), schema=pa.schema(kinds))


def row(number: int, **changes: object) -> dict[str, object]:
    return {"topic": "orders", "queue": number % 2, "body": b"%d" % number, **changes}


def test_a_row_is_recognised_again_whatever_key_and_time_its_record_has() -> None:
    rows = batch(*[row(n, tags="t", keys=["k"], properties={"a": "b"}) for n in range(40)])
    first, second = ([*bodies({"orders": 2}, batchBytes="400").pack(rows)] for _ in range(2))
    assert len(first) > 2
    digests = []
    for packed in (first, second):
        digest = RowDigest()
        for each in packed:
            assert each.rows == each.batch.count
            digest = digest.plus(each.digest)
        digests.append(digest)
    assert digests[0] == digests[1]
    assert bytes(first[0].batch.buffer) != bytes(second[0].batch.buffer)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"topic": "nope"}, UnknownTopic, "no topic 'nope'"),
        ({"queue": 2}, UnknownTopic, "has no queue 2"),
        ({"body": None}, ConfigError, "is null"),
    ],
)
def test_what_no_broker_would_take_is_not_staged(
    changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        list(bodies({"orders": 2}).pack(batch(row(0, **changes))))


def test_columns_that_a_message_has_not_are_refused() -> None:
    for schema, message in (
        (StructType().add("body", "binary"), "column topic or option topic"),
        (message_schema([*COLUMNS, "offset"]), "column offset BIGINT cannot be written"),
        (
            StructType().add("topic", "string").add("body", "integer"),
            "column body INT cannot be written",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            bodies({"orders": 2}, schema)


@pytest.fixture
def brokers() -> Iterator[LocalBrokers]:
    options = GroupOptions(first_topics={"orders": 2})
    with LocalBrokers(1, groups=lambda _: GroupService(options)) as brokers:
        eventually(lambda: len(brokers.brokers["n0"].shown_topics) >= 3)
        yield brokers


def stored(client: BrokerClient, topic: str) -> list[StoredMessage]:
    return [m for q in client.queues(topic) for m in client.pull(topic, q.queue_id, 0).messages]


class DiesBeforeReplay(SinkCommits):
    def _replay(self, standing: NewestManifest) -> None:
        raise SystemExit


def test_whoever_finishes_what_a_crash_left_makes_messages_of_it(brokers: LocalBrokers) -> None:
    log = brokers.cluster.servers
    digest, batches = RowDigest(), []
    for packed in bodies({"orders": 2}).pack(batch(*[row(n) for n in range(40)])):
        digest = digest.plus(packed.digest)
        batches.append(packed.batch)
    with open_sink_logs(log, "default", 10_000) as logs, connect(brokers.servers) as client:
        SinkCommits(logs, "left").begin()
        with log_of(log, group=staging_name("default")) as staging:
            ranges = stage(staging, batches)
        made = Batch("q", 0, 40, digest, ranges, MESSAGE_MACHINE)
        with pytest.raises(SystemExit):
            DiesBeforeReplay(logs, "left").commit(made, BatchRules())
        assert stored(client, "orders") == []
        for was_finished in (False, True):
            resumed = SinkCommits(logs, "left").resume()
            assert resumed is not None
            assert resumed.was_finished is was_finished
            found = [int(m.body) for m in eventually(lambda: stored(client, "orders"))]
            assert found == [*range(0, 40, 2), *range(1, 40, 2)]


@pytest.mark.spark
def test_rows_become_messages_once(spark: SparkSession, brokers: LocalBrokers) -> None:
    log = brokers.cluster.servers
    frame = spark.range(60, numPartitions=3).selectExpr(
        "CAST(id % 2 AS INT) AS queue",
        "array(concat('k', id)) AS keys",
        "IF(id % 3 = 0, 'third', NULL) AS tags",
        "map('number', CAST(id AS STRING)) AS properties",
        "CAST(id AS STRING) AS body",
    )

    def write(**options: str | int) -> None:
        given = {"view": "messages", "servers": log, "topic": "orders", **options}
        frame.write.format("quorumlog").mode("append").options(**given).save()

    for _ in range(2):
        write(producerId="import", batchId=1)
    with connect(brokers.servers) as client:
        found = stored(client, "orders")
        assert [int(m.body) for m in found] == [*range(0, 60, 2), *range(1, 60, 2)]
        assert [m.queue_offset for m in found] == [*range(30)] * 2
        (by_key,) = client.query("orders", "k33")
        assert (by_key.body, by_key.tags, by_key.properties["number"]) == (b"33", "third", "33")
        read = spark.read.format("quorumlog").options(view="messages", servers=brokers.servers)
        assert read.load().filter("topic = 'orders'").count() == 60


def test_a_topic_that_is_not_there_or_takes_nothing_is_told(brokers: LocalBrokers) -> None:
    with BrokerAdmin(brokers.servers) as admin:
        admin.create_topic("closed", 1, perm=READ)
    options = {"servers": brokers.cluster.servers, "view": "messages"}
    assert topics_of(SinkOptions.parse(options))["orders"] == 2
    assert "closed" not in topics_of(SinkOptions.parse(options))
    with pytest.raises(TopicNotPermitted):
        topics_of(SinkOptions.parse({**options, "topic": "closed"}))
    with pytest.raises(UnknownTopic):
        topics_of(SinkOptions.parse({**options, "topic": "nope"}))
