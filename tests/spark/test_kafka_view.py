"""Topics of Kafka's clients as rows: what a consumer would see. Without a JVM but for the last tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from harness.kafka.wire import KafkaWire
from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.errors import CommandError, ConfigError
from quorumlog.kafka.places import MACHINE_NAME
from quorumlog.spark import streaming
from quorumlog.spark.batch_reader import LedgerBatchReader
from quorumlog.spark.kafka.kafka_view import KafkaOptions
from quorumlog.spark.ledger_data_source import LedgerDataSource
from quorumlog.spark.options import LedgerDataLoss
from quorumlog.spark.partitions import LedgerPartition
from quorumlog.spark.streaming import LedgerStreamReader
from tests.docs.markdown import DOCS, code_blocks
from tests.kafka.batches import made_batch
from tests.kafka.cluster import KafkaCluster
from tests.kafka.test_served import create, produced
from tests.waiting import eventually

ALL = ReadAllAvailable()
Row = tuple[str, int, int, bytes]
"""Topic, partition, offset and value."""


@pytest.fixture(autouse=True)
def _no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "POLL_S", 0.0)


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture
def wire(kafka: KafkaCluster) -> Iterator[KafkaWire]:
    with kafka.wire() as connection:
        yield connection


def source_of(**options: str) -> LedgerDataSource:
    return LedgerDataSource({"view": "kafka", **options})


def batch_reader(**options: str) -> LedgerBatchReader:
    source = source_of(**options)
    reader = source.reader(source.schema())
    assert isinstance(reader, LedgerBatchReader)
    return reader


def stream_reader(**options: str) -> LedgerStreamReader:
    source = source_of(**options)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, LedgerStreamReader)
    return reader


def rows_of(
    reader: LedgerBatchReader | LedgerStreamReader, parts: Sequence[InputPartition]
) -> list[Row]:
    return sorted(
        (row["topic"], row["partition"], row["offset"], row["value"])
        for part in parts
        for batch in reader.read(part)
        for row in batch.to_pylist()
    )


def read(**options: str) -> list[Row]:
    reader = batch_reader(**options)
    return rows_of(reader, reader.partitions())


def expected(topic: str, values: Sequence[bytes], partition: int = 0, first: int = 0) -> list[Row]:
    return [(topic, partition, first + number, value) for number, value in enumerate(values)]


def delete(wire: KafkaWire, topic: str) -> None:
    rows = [{"name": topic, "topic_id": None}]
    (deleted,) = wire.ask("delete_topics", 6, topics=rows, timeout=30_000).responses
    assert not deleted.error_code


def test_rows_are_those_that_a_consumer_sees(kafka: KafkaCluster, wire: KafkaWire) -> None:
    create(wire, "orders", 2)
    create(wire, "audit")
    servers = kafka.cluster.servers
    for partition, value in ((0, b"a"), (1, b"b"), (0, b"c")):
        assert not produced(wire, "orders", made_batch([value] * 3), partition).error_code
    produced(wire, "audit", made_batch([b"x"]))
    once = made_batch([b"once"], producer=(7, 0, 0))
    assert [produced(wire, "orders", once).base_offset for _ in range(2)] == [6, 6]
    early = made_batch([b"early"], producer=(7, 0, 5))
    assert produced(wire, "orders", early).error_code, "a sequence is left out"
    orders = [
        *expected("orders", [b"a"] * 3 + [b"c"] * 3 + [b"once"]),
        *expected("orders", [b"b"] * 3, partition=1),
    ]
    audit = expected("audit", [b"x"])
    assert read(servers=servers) == audit + orders
    assert read(servers=servers, topic="orders") == orders
    assert read(servers=servers, subscribe="orders, audit", minPartitions="3") == audit + orders
    assert read(servers=servers, subscribePattern="a.*") == audit
    assert read(servers=servers, subscribePattern="au") == []
    assert read(servers=servers, startingOffsets="latest") == []
    # A topic that is made anew has none of the records of the one before.
    delete(wire, "orders")
    assert read(servers=servers) == audit
    create(wire, "orders")
    produced(wire, "orders", made_batch([b"anew"]))
    assert read(servers=servers, topic="orders") == expected("orders", [b"anew"])


def test_columns_are_those_of_sparks_own_source(kafka: KafkaCluster, wire: KafkaWire) -> None:
    create(wire, "orders")
    produced(wire, "orders", made_batch([b"a"], timestamp=1_764_000_000_123))
    servers = kafka.cluster.servers
    fields = [(each.name, each.dataType.simpleString()) for each in source_of(servers=servers).schema()]
    assert fields == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    headers = source_of(servers=servers, includeHeaders="true").schema()["headers"]
    assert headers.dataType.simpleString() == "array<struct<key:string,value:binary>>"
    source = source_of(servers=servers, columns="timestampType,timestamp,headers")
    reader = source.reader(source.schema())
    assert isinstance(reader, LedgerBatchReader)
    ((rows,),) = ([*reader.read(part)] for part in reader.partitions())
    (row,) = rows.to_pylist()
    assert [*row] == ["timestampType", "timestamp", "headers"]
    assert (row["timestampType"], row["headers"]) == (0, None)
    assert row["timestamp"].timestamp() == 1_764_000_000.123


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_compresses_is_read(
    kafka: KafkaCluster, wire: KafkaWire, compression: str
) -> None:
    create(wire, "packed")
    settings = {"bootstrap.servers": kafka.servers, "compression.type": compression, "linger.ms": 100}
    producer = Producer({**settings, "enable.idempotence": True})
    values = [b"%d" % number * 50 for number in range(500)]
    for value in values:
        producer.produce("packed", value, key=b"key", headers=[("name", b"v"), ("none", None)])
    assert not producer.flush(60)
    reader = batch_reader(servers=kafka.cluster.servers, includeHeaders="true")
    parts = reader.partitions()
    assert rows_of(reader, parts) == expected("packed", values)
    row = next(reader.read(parts[0])).to_pylist()[0]
    headers = [{"key": "name", "value": b"v"}, {"key": "none", "value": None}]
    assert (row["key"], row["headers"]) == (b"key", headers)


def test_micro_batches_and_what_a_restart_reads_again(kafka: KafkaCluster, wire: KafkaWire) -> None:
    create(wire, "orders")
    create(wire, "other")
    produced(wire, "orders", made_batch([b"before"]))
    options = {"servers": kafka.cluster.servers, "topic": "orders", "startingOffsets": "latest"}
    reader = stream_reader(**options)
    begun = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(begun, ALL) == begun
    produced(wire, "orders", made_batch([b"a", b"b"]))
    produced(wire, "other", made_batch([b"x"]))
    end = reader.latestOffset(begun, ALL)
    found = expected("orders", [b"a", b"b"], first=1)
    assert rows_of(reader, reader.partitions(begun, end)) == found
    again = stream_reader(**options)
    assert rows_of(again, again.partitions(begun, end)) == found
    produced(wire, "other", made_batch([b"y"]))
    more = again.latestOffset(end, ALL)
    assert more != end and not again.partitions(end, more), "nothing of another topic is read"
    # What is planned is read as it was planned.
    produced(wire, "orders", made_batch([b"c"]))
    last = again.latestOffset(more, ALL)
    parts = again.partitions(more, last)
    delete(wire, "orders")
    assert rows_of(again, parts) == expected("orders", [b"c"], first=3)
    with pytest.raises(ConfigError, match="has no topic orders"):
        again.partitions(more, last)
    tolerant = stream_reader(**options, failOnDataLoss="false")
    assert not tolerant.partitions(more, last)


def test_limits_of_a_micro_batch_are_entries_of_the_log(kafka: KafkaCluster, wire: KafkaWire) -> None:
    create(wire, "orders")
    for number in range(10):
        produced(wire, "orders", made_batch([b"%d" % number] * 2))
    reader = stream_reader(servers=kafka.cluster.servers, maxOffsetsPerTrigger="4")
    reader.prepareForTriggerAvailableNow()
    produced(wire, "orders", made_batch([b"late"]))
    start, counts, found = reader.initialOffset(), [], []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        rows = rows_of(reader, reader.partitions(start, end))
        counts.append(len(rows))
        found += rows
        start = end
    assert max(counts) <= 8
    assert found == expected("orders", [b"%d" % (number // 2) for number in range(20)])


def test_a_stream_goes_on_over_the_death_of_a_leader() -> None:
    with KafkaCluster(3) as kafka:
        with kafka.wire() as wire:
            create(wire, "orders")
            produced(wire, "orders", made_batch([b"a"], producer=(7, 0, 0)))
        reader = stream_reader(servers=kafka.cluster.servers, topic="orders")
        begun = reader.latestOffset(reader.initialOffset(), ALL)
        middle = reader.latestOffset(begun, ALL)
        kafka.cluster.kill(kafka.leader())
        found = rows_of(reader, reader.partitions(begun, middle))
        with kafka.wire() as wire:
            for sequence, value in enumerate((b"a", b"b")):  # the first one again
                produced(wire, "orders", made_batch([value], producer=(7, 0, sequence)))
        found += rows_of(reader, reader.partitions(middle, reader.latestOffset(middle, ALL)))
        assert found == expected("orders", [b"a", b"b"])


SMALL = StoreConfig(
    segment_bytes=64 * 1024,
    index_segment_bytes=8 * 1024,
    reserve_step_bytes=64 * 1024,
    snapshot_entries=20,
    compact_behind_snapshots=True,
)


def test_what_retention_has_taken_is_no_row_and_offsets_stay() -> None:
    with KafkaCluster(storage=SMALL) as kafka, kafka.wire() as wire:
        servers = kafka.cluster.servers
        create(wire, "orders", 2)
        sent: list[Row] = []
        reader = stream_reader(servers=servers)
        begun = reader.latestOffset(reader.initialOffset(), ALL)

        def has_dropped() -> bool:
            for partition in range(2):
                values = [b"%d" % (len(sent) + number) + bytes(1_000) for number in range(4)]
                base = produced(wire, "orders", made_batch(values), partition).base_offset
                sent.extend(expected("orders", values, partition, base))
            with connect(servers) as log:
                return log.layout("n0").begin_index > 50

        eventually(has_dropped)
        found = read(servers=servers)
        assert len(found) < len(sent) and found == newest(sent, found)
        with pytest.raises(LedgerDataLoss):
            reader.partitions(begun, reader.latestOffset(begun, ALL))
        tolerant = stream_reader(servers=servers, failOnDataLoss="false")
        end = tolerant.latestOffset(begun, ALL)
        rest = rows_of(tolerant, tolerant.partitions(begun, end))
        assert rest and rest == newest(sent, rest)
        # And so it is if they go after the range is split into tasks.
        (last,) = tolerant.partitions(begun, end)[-1:]
        assert isinstance(last, LedgerPartition)
        parts = [
            LedgerPartition(last.group, low, high)
            for low, high in ((1, 20), (20, 40), (40, last.stop_index))
        ]
        strict, view = KafkaOptions.parse({"servers": servers})
        with pytest.raises(LedgerDataLoss):
            view.planned(strict, parts)
        lenient, view = KafkaOptions.parse({"servers": servers, "failOnDataLoss": "false"})
        assert rows_of(tolerant, view.planned(lenient, parts)) == rest
        assert view.planned(lenient, parts[:2]) == []
        # So it is with the directory of a stopped member, which knows the offsets from a snapshot.
        kafka.cluster.stop("n0")
        stopped = read(path=str(kafka.cluster.data_dir("n0")), readConsistency="local")
        assert stopped and stopped == newest(sent, stopped)


def newest(sent: Sequence[Row], found: Sequence[Row]) -> list[Row]:
    """Of each partition those from the first one on that was found."""
    firsts = {partition: min(row[2] for row in found if row[1] == partition) for partition in range(2)}
    return sorted(row for row in sent if row[2] >= firsts[row[1]])


def test_a_stopped_members_directory_has_the_same_rows() -> None:
    with KafkaCluster() as kafka:
        with kafka.wire() as wire:
            create(wire, "orders")
            create(wire, "gone")
            produced(wire, "gone", made_batch([b"x"]))
            for _ in range(2):
                produced(wire, "orders", made_batch([b"a", b"b"], producer=(7, 0, 0)))
            delete(wire, "gone")
        found = read(servers=kafka.cluster.servers)
        assert found == expected("orders", [b"a", b"b"])
        kafka.cluster.stop("n0")
        path = kafka.cluster.data_dir("n0")
        assert read(path=path, readConsistency="local") == found
        assert (
            read(
                path=path,
                readConsistency="local",
                topic="orders",
                columns="topic,partition,offset,value",
            )
            == found
        )
        with pytest.raises(ConfigError, match="has no topic gone"):
            read(path=path, topic="gone")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "needs option servers"),
        (
            {"servers": "a:1", "pushdown": "true"},
            "unknown option 'pushdown' of view kafka; valid are topic",
        ),
        ({"servers": "a:1", "archive": "x"}, "unknown option 'archive' of view kafka"),
        ({"servers": "a:1", "topic": ","}, "option topic is empty"),
        ({"servers": "a:1", "subscribePattern": "("}, "is no regular expression"),
        ({"servers": "a:1", "subscribePattern": "a", "topic": "b"}, "exclude each other"),
        ({"servers": "a:1", "columns": "body"}, "unknown column 'body'; valid are key, value, topic"),
        (
            {"servers": "a:1", "startingOffsets": json.dumps({"orders": {"0": 5}})},
            "startingOffsets of view kafka is earliest, latest or an index of the log",
        ),
        ({"servers": "a:1", "includeHeaders": "maybe"}, "must be true or false"),
    ],
)
def test_a_slip_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        source_of(**given)


@pytest.mark.parametrize(
    "given",
    [{}, {"readConsistency": "committed"}, {"readConsistency": "local"}, {"maxStalenessMs": "5"}],
)
def test_the_begin_is_the_leaders_whatever_a_query_may_miss(given: dict[str, str]) -> None:
    """A member whose log begins earlier would have the query told of a loss, as the leader knows no
    offsets before its own begin."""
    options, _ = KafkaOptions.parse({"servers": "a:1", **given})
    assert (options.read_consistency, options.max_staleness_ms) == ("read_index", -1)


def test_a_slip_that_the_log_shows_is_told(kafka: KafkaCluster, wire: KafkaWire) -> None:
    servers = kafka.cluster.servers
    with pytest.raises(ConfigError, match="'default' has no topic nowhere: name others"):
        read(servers=servers, topic="nowhere")
    with pytest.raises(ConfigError, match="has no topic nowhere"):
        stream_reader(servers=servers, topic="nowhere").initialOffset()
    with pytest.raises(ConfigError, match="view must be entries or messages, not 'kafka'"):
        source_of(servers=servers).writer(source_of(servers=servers).schema(), overwrite=False)
    with pytest.raises(ConfigError, match=r"option reader is for spark\.readStream"):
        read(servers=servers, reader="name")
    source = source_of(servers=servers)
    with pytest.raises(ConfigError, match="declares value as STRING, but it is BINARY; cast it"):
        source.reader(type(source.schema())().add("value", "string"))


def test_a_log_without_topics_is_told() -> None:
    with LocalCluster(1) as cluster:
        with pytest.raises(ConfigError, match="has no topics of Kafka"):
            read(servers=cluster.servers)
        cluster.stop("n0")
        with pytest.raises(ConfigError, match="has no topics of Kafka"):
            read(path=str(cluster.data_dir("n0")), readConsistency="local")


def test_a_question_of_a_later_release_is_refused(kafka: KafkaCluster) -> None:
    with connect(kafka.cluster.servers) as log, pytest.raises(CommandError, match="does not know"):
        log.ask(MACHINE_NAME, b"\x91\x63")


@pytest.mark.spark
def test_spark_reads_topics_and_streams_them_over_a_restart(
    spark: SparkSession,
    kafka: KafkaCluster,
    wire: KafkaWire,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    create(wire, "orders", 2)
    options = {"view": "kafka", "servers": kafka.cluster.servers, "topic": "orders"}
    found: list[Row] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend((row.topic, row.partition, row.offset, bytes(row.value)) for row in batch.collect())

    def run() -> None:
        stream = spark.readStream.format("quorumlog").options(**options).load()
        writing = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
        assert writing.trigger(availableNow=True).start().awaitTermination(240)

    produced(wire, "orders", made_batch([b"a", b"b"]))
    run()
    produced(wire, "orders", made_batch([b"c"]), 1)
    run()
    everything = [*expected("orders", [b"a", b"b"]), *expected("orders", [b"c"], partition=1)]
    assert sorted(found) == everything
    rows = spark.read.format("quorumlog").options(**options, includeHeaders="true").load()
    assert rows.where("partition = 0").selectExpr("sum(offset)", "count(headers)").first() == (1, 0)
    (example,) = (
        each for each in code_blocks((DOCS / "kafka.md").read_text(), "python") if "view" in each
    )
    exec(example.replace("127.0.0.1:20911", kafka.cluster.servers), {})
    assert "|        1|     0|NULL|    c|" in capsys.readouterr().out
    assert rows.selectExpr("cast(value as string) v").orderBy("v").collect() == [("a",), ("b",), ("c",)]
