"""A stream of a broker's messages: without a JVM but for the last test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from quorumlog.broker import BrokerAdmin, Message, connect
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.errors import QueueOffsetOutOfRange
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.errors import ConfigError
from quorumlog.spark import streaming as streams
from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.messages.message_stream import MessageStreamReader
from tests.waiting import eventually

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def _no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "POLL_S", 0.0)


def local_brokers(directory: Path) -> LocalBrokers:
    return LocalBrokers(1, directory=directory, groups=lambda member_id: GroupService())


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[LocalBrokers]:
    with local_brokers(tmp_path / "log") as running:
        eventually(lambda: running.brokers["n0"].role.state.is_master)
        with BrokerAdmin(running.servers) as admin:
            admin.create_topic("orders", 2)
            admin.create_topic("audit", 1)
        yield running


def send(brokers: LocalBrokers, topic: str, queue_id: int, bodies: list[bytes]) -> None:
    with connect(brokers.servers) as client:
        receipt = client.send_batch([Message(topic, body) for body in bodies], queue_id=queue_id)
        stop = receipt.queue_offset + len(bodies)
        eventually(lambda: client.max_offset(topic, queue_id) >= stop)


def streaming(servers: str, **given: str) -> MessageStreamReader:
    source = LedgerDataSource({"view": "messages", "servers": servers, **given})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, MessageStreamReader)
    return reader


def bodies_of(reader: MessageStreamReader, start: Any, end: Any) -> list[bytes]:
    return sorted(
        row["body"]
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    )


def test_micro_batches_by_queue_and_what_a_restart_reads_again(brokers: LocalBrokers) -> None:
    send(brokers, "orders", 0, [b"a0", b"a1"])
    reader = streaming(brokers.servers, startingOffsets="latest")
    initial = reader.initialOffset()
    assert initial == {"audit": {"0": 0}, "orders": {"0": 2, "1": 0}}
    begun = reader.latestOffset(initial, ALL)
    assert begun["queues"] == initial and set(begun["records"]) == {"orders"}
    assert not reader.partitions(initial, begun)
    send(brokers, "orders", 1, [b"b0"])
    send(brokers, "audit", 0, [b"c0", b"c1"])
    end = reader.latestOffset(begun, ALL)
    assert bodies_of(reader, begun, end) == [b"b0", b"c0", b"c1"]
    again = streaming(brokers.servers, startingOffsets="latest")
    assert again.initialOffset() != initial, "latest means another offset by now"
    assert bodies_of(again, begun, end) == [b"b0", b"c0", b"c1"]
    assert again.latestOffset(end, ALL) == end
    assert again.reportLatestOffset() == {"queues": end["queues"]}


def test_limits_are_shared_and_available_now_ends(brokers: LocalBrokers) -> None:
    send(brokers, "orders", 0, [b"%d" % n for n in range(30)])
    send(brokers, "orders", 1, [b"%d" % n for n in range(10)])
    reader = streaming(brokers.servers, topic="orders", maxOffsetsPerTrigger="20")
    assert reader.getDefaultReadLimit() == ReadMaxRows(20)
    reader.prepareForTriggerAvailableNow()
    send(brokers, "orders", 1, [b"late"])
    start, ends = reader.initialOffset(), []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        ends.append(end["queues"]["orders"])
        start = end
    assert ends == [{"0": 0, "1": 0}, {"0": 15, "1": 5}, {"0": 30, "1": 10}]


def test_new_topics_are_read_from_their_earliest_message(brokers: LocalBrokers) -> None:
    reader = streaming(brokers.servers, subscribePattern="(orders|new.*)")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    assert list(start["queues"]) == ["orders"]
    with BrokerAdmin(brokers.servers) as admin:
        admin.create_topic("newcomer", 1)
        admin.create_topic("other", 1)
    send(brokers, "newcomer", 0, [b"first"])
    found = reader.latestOffset(start, ALL)
    assert list(found["queues"]) == ["newcomer", "orders"] and not reader.partitions(start, found)
    end = reader.latestOffset(found, ALL)
    assert bodies_of(reader, found, end) == [b"first"]
    with BrokerAdmin(brokers.servers) as admin:
        admin.delete_topic("newcomer")
    with pytest.raises(QueueOffsetOutOfRange, match="queue 0 of topic newcomer is gone"):
        reader.latestOffset(end, ALL)
    with pytest.raises(QueueOffsetOutOfRange, match="newcomer is gone, and is read up to 0"):
        reader.partitions(found, end)  # planned before, and read after a restart
    tolerant = streaming(brokers.servers, subscribePattern="(orders|new.*)", failOnDataLoss="false")
    assert not tolerant.partitions(found, end)
    assert list(tolerant.latestOffset(end, ALL)["queues"]) == ["orders"]


def test_a_checkpoint_of_another_store_is_refused(brokers: LocalBrokers, tmp_path: Path) -> None:
    send(brokers, "orders", 0, [b"%d" % n for n in range(5)])
    reader = streaming(brokers.servers, topic="orders")
    begun = reader.latestOffset(reader.initialOffset(), ALL)
    end = reader.latestOffset(begun, ALL)
    with local_brokers(tmp_path / "other") as others:
        eventually(lambda: others.brokers["n0"].role.state.is_master)
        with BrokerAdmin(others.servers) as admin:
            admin.create_topic("orders", 2)
        send(others, "orders", 0, [b"x%d" % n for n in range(9)])
        for given in ({}, {"failOnDataLoss": "false"}):
            with pytest.raises(QueueOffsetOutOfRange, match="has another message before it"):
                streaming(others.servers, topic="orders", **given).latestOffset(end, ALL)
            with pytest.raises(QueueOffsetOutOfRange, match="has another message before it"):
                streaming(others.servers, topic="orders", **given).partitions(begun, end)


def test_progress_is_committed_as_the_offsets_of_a_consumer_group(brokers: LocalBrokers) -> None:
    send(brokers, "orders", 0, [b"%d" % n for n in range(5)])
    reader = streaming(brokers.servers, topic="orders", consumerGroup="spark")
    begun = reader.latestOffset(reader.initialOffset(), ALL)
    end = reader.latestOffset(begun, ALL)
    reader.commit(end)
    send(brokers, "orders", 0, [b"later"])
    with BrokerAdmin(brokers.servers) as admin:
        lags = {
            (lag.topic, lag.queue_id): (lag.committed_offset, lag.messages) for lag in admin.lag("spark")
        }
    assert lags["orders", 0] == (5, 1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"path": "x"}, "read it with spark.read"),
        ({"servers": "a:1", "endingOffsets": "earliest"}, "are for spark.read"),
        ({"servers": "a:1", "subscribePattern": "("}, "is no regular expression"),
        ({"servers": "a:1", "subscribePattern": "a", "topic": "b"}, "exclude each other"),
    ],
)
def test_a_slip_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        source = LedgerDataSource({"view": "messages", **given})
        source.streamReader(source.schema()).initialOffset()


@pytest.mark.spark
def test_spark_streams_messages_over_a_restart(
    spark: SparkSession, brokers: LocalBrokers, tmp_path: Path
) -> None:
    found: list[tuple[str, int, int]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend((row.topic, row.queue, row.offset) for row in batch.collect())

    def run() -> None:
        stream = spark.readStream.format("quorumlog").options(view="messages", servers=brokers.servers)
        writing = (
            stream.load().writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
        )
        assert writing.trigger(availableNow=True).start().awaitTermination(240)

    send(brokers, "orders", 0, [b"%d" % n for n in range(10)])
    run()
    send(brokers, "audit", 0, [b"%d" % n for n in range(3)])
    run()
    assert sorted(found) == [("audit", 0, n) for n in range(3)] + [("orders", 0, n) for n in range(10)]
