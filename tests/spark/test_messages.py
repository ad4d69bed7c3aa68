"""The view of messages: directories of ours and of Java's, a broker, and what is pushed down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo
from pyspark.sql.pandas.types import to_arrow_schema

from quorumlog.broker import Message, MessageStore, MessageStoreConfig, connect
from quorumlog.broker.client.broker_calls import QueueInfo
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.errors import QueueOffsetOutOfRange
from quorumlog.broker.message import encode_records
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.errors import ConfigError
from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.messages.message_options import COLUMNS, MessageOptions
from quorumlog.spark.messages.message_sources import BrokerSource, StoreDirectorySource
from tests.broker.store.store_making import put_and_wait
from tests.broker.store.test_golden import GOLDEN, expected_body
from tests.waiting import eventually


def rows_of(**options: str) -> list[dict[str, Any]]:
    """Without a JVM."""
    source = LedgerDataSource({"view": "messages", **options})
    reader = source.reader(source.schema())
    return [
        row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()
    ]


def test_a_directory_of_java_as_columns() -> None:
    rows = rows_of(path=str(GOLDEN))
    assert len(rows) == 130
    row = rows[77]
    assert (row["topic"], row["queue"], row["offset"]) == ("golden", 1, 17)
    assert row["body"] == expected_body(77, "golden")
    assert row["keys"] == ["key77", "tenth7"]
    assert row["tags"] == "tag2"
    assert dict(row["properties"])["number"] == "77"
    assert row["born_time"].timestamp() * 1000 == 1_700_000_000_077


def test_the_columns_are_what_spark_expects_to_the_last_name() -> None:
    source = LedgerDataSource({"view": "messages", "path": str(GOLDEN), "columns": ",".join(COLUMNS)})
    reader = source.reader(source.schema())
    (batch, *_) = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert batch.schema.equals(to_arrow_schema(source.schema(), timezone="UTC"))


def test_topic_and_time_choose_the_files_that_are_read(tmp_path: Path) -> None:
    now = [1_000_000.0]
    config = MessageStoreConfig(
        mapped_file_size_commit_log=16_384, max_hash_slot_num=10, max_index_num=1000
    )
    store = MessageStore(str(tmp_path), config, wall_clock=lambda: now[0])
    for number in range(300):
        now[0] += 1000
        topic = "rare" if number == 150 else "often"
        encoded = encode_records([Message(topic, bytes(500))], 0, 0)
        put_and_wait(store, RecordBatch.contiguous(*encoded))
        store.reput_once()
    files = len([base for base in store.commit_log.files.bases if base < store.commit_log.max_offset])
    store.close()
    assert files > 8
    all_parts = rows_and_parts(tmp_path)
    assert all_parts == (300, files)
    assert rows_and_parts(tmp_path, topic="rare") == (1, 1)
    late = str(1_000_000 + 299_000)
    assert rows_and_parts(tmp_path, startingTimestamp=late) == (2, 1)
    assert rows_and_parts(tmp_path, endingTimestamp="1002000") == (2, 1)
    split, parts = rows_and_parts(tmp_path, partitionBytes="5000")
    assert split == 300
    assert parts > files
    source = LedgerDataSource({"view": "messages", "path": str(tmp_path), "pushdown": "true"})
    reader = source.reader(source.schema())
    kept = list(reader.pushFilters([EqualTo(("topic",), "rare")]))
    assert len(kept) == 1, "Spark applies it again"
    assert len(reader.partitions()) == 1


def rows_and_parts(path: Path, **options: str) -> tuple[int, int]:
    source = LedgerDataSource({"view": "messages", "path": str(path), **options})
    parsed = source.read_options
    assert isinstance(parsed, MessageOptions)
    parts = StoreDirectorySource(parsed).partitions()
    return len(rows_of(path=str(path), **options)), len(parts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "path"),
        ({"path": "x", "servers": "127.0.0.1:1"}, "one of both"),
        ({"path": "x", "columns": "nope"}, "unknown column 'nope'"),
        ({"path": "x", "columns": "partition"}, "Kafka's partition is queue here"),
        ({"path": "x", "group": "g"}, "unknown option 'group'"),
        ({"path": "/nonexistent"}, "holds no store"),
        (
            {"path": "x", "startingOffsets": '{"t": 5}'},
            "option startingOffsets must be earliest, latest or",
        ),
        ({"path": "x", "endingOffsets": '{"t": {"0": -3}}'}, "option endingOffsets must be"),
        ({"path": "x", "startingOffsets": "earliest", "startingTimestamp": "1"}, "exclude each other"),
    ],
)
def test_a_slip_is_told(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rows_of(**options)


def offsets_of(**options: str) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for row in rows_of(columns="topic,queue,offset", **options):
        found.setdefault((row["topic"], row["queue"]), []).append(row["offset"])
    return found


def test_offsets_by_queue_are_the_same_of_a_directory_and_of_brokers(tmp_path: Path) -> None:
    topics = {"orders": 2, "audit": 1}
    with LocalBrokers(1, topics=topics, directory=tmp_path / "log") as brokers:
        eventually(lambda: brokers.brokers["n0"].role.state.is_master)
        member = brokers.cluster.data_dir("n0")
        with connect(brokers.servers) as client:
            for topic, queue_id in (("orders", 0), ("orders", 1), ("audit", 0)):
                client.send_batch([Message(topic, b"%d" % n) for n in range(10)], queue_id=queue_id)
            eventually(lambda: sum(queue.max_offset for queue in client.queues()) == 30)
        some = {
            "startingOffsets": '{"orders": {"0": 3, "1": -1}}',
            "endingOffsets": '{"orders": {"0": 7}}',
        }
        asked = [some, {"endingOffsets": '{"orders": {"1": 2}, "audit": {"0": -2}}'}, {}]
        live = [offsets_of(servers=brokers.servers, **each) for each in asked]
        for stated, error in (
            ('{"orders": {"2": 0}}', "topic orders has no queue 2"),
            ('{"orders": {"0": 11}}', "startingOffsets is 11, and queue 0 of topic orders ends at 10"),
        ):
            with pytest.raises((ConfigError, QueueOffsetOutOfRange), match=error):
                rows_of(servers=brokers.servers, startingOffsets=stated)
        brokers.cluster.stop("n0")
    assert live[0] == {("orders", 0): [3, 4, 5, 6]}
    assert live[1] == {("orders", 0): [*range(10)], ("orders", 1): [0, 1]}
    assert [offsets_of(path=str(member), **each) for each in asked] == live


def test_messages_that_retention_took_are_an_error_or_left_out() -> None:
    options = {"view": "messages", "servers": "127.0.0.1:1", "startingOffsets": '{"t": {"0": 2}}'}
    queue = QueueInfo("t", 0, 5, 9)
    with pytest.raises(QueueOffsetOutOfRange, match="messages 2 to 4 of queue 0 of topic t are gone"):
        BrokerSource(MessageOptions.parse(options)).range_of(queue)
    kept = BrokerSource(MessageOptions.parse({**options, "failOnDataLoss": "false"}))
    assert kept.range_of(queue) == (5, 9)
    earliest = {"view": "messages", "servers": "127.0.0.1:1"}
    assert BrokerSource(MessageOptions.parse(earliest)).range_of(queue) == (5, 9)


@pytest.mark.spark
def test_spark_reads_a_broker_the_directory_of_one_and_a_store_of_java(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Queues and offsets are the same, whether a broker tells them or the log does."""
    queues = [("orders", 0), ("orders", 1), ("audit", 0)]

    def view(**options: str) -> DataFrame:
        return spark.read.format("quorumlog").options(view="messages", **options).load()

    def ends(frame: DataFrame) -> dict[tuple[str, int], tuple[int, int]]:
        found = frame.groupBy("topic", "queue").agg({"*": "count", "offset": "max"}).collect()
        return {(row.topic, row.queue): (row["count(1)"], row["max(offset)"]) for row in found}

    with LocalBrokers(1, topics={"orders": 2, "audit": 1}, directory=tmp_path / "log") as brokers:
        eventually(lambda: brokers.brokers["n0"].role.state.is_master)
        with connect(brokers.servers) as client:
            for number, (topic, queue_id) in enumerate(queues * 2):
                bodies = [b"%d of %d" % (each, number) for each in range(10 * (queue_id + 1))]
                client.send_batch([Message(topic, body) for body in bodies], queue_id=queue_id)
            eventually(lambda: sum(queue.max_offset for queue in client.queues()) == 80)
        live = ends(view(servers=brokers.servers))
        member = brokers.cluster.data_dir("n0")
        brokers.cluster.stop("n0")
    assert live == {("orders", 0): (20, 19), ("orders", 1): (40, 39), ("audit", 0): (20, 19)}
    stored = view(path=str(member))
    assert ends(stored) == live
    [row] = stored.filter("topic = 'orders' and queue = 1 and offset = 25").collect()
    assert bytes(row.body) == b"5 of 4"
    golden = view(path=str(GOLDEN))
    assert golden.filter("topic = 'golden' and tags = 'tag0'").count() == 34
    assert golden.selectExpr("properties['number'] as n").filter("n = '77'").count() == 1
