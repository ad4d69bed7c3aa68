"""Streaming queries through Spark itself, from a running group into files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window
from pyspark.sql.streaming.query import StreamingQuery

from quorumlog import LocalCluster, StoreConfig, connect
from tests.waiting import eventually

pytestmark = pytest.mark.spark
TIMEOUT_S = 240


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(members=3) as cluster:
        yield cluster


def append(cluster: LocalCluster, first: int, stop: int) -> None:
    with connect(cluster.servers) as log:
        log.append_batch([b"%d" % number for number in range(first, stop)])


def query(
    spark: SparkSession,
    cluster: LocalCluster,
    folder: Path,
    *,
    available_now: bool = True,
    **options: str,
) -> StreamingQuery:
    log = spark.readStream.format("quorumlog").options(servers=cluster.servers, **options).load()
    writing = log.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    if available_now:
        writing = writing.trigger(availableNow=True)
    return writing.start(str(folder / "rows"))


def ended(running: StreamingQuery) -> StreamingQuery:
    assert running.awaitTermination(TIMEOUT_S)
    return running


def numbers(spark: SparkSession, folder: Path) -> list[int]:
    rows = spark.read.parquet(str(folder / "rows")).orderBy("index").collect()
    return [int(bytes(row.body)) for row in rows]


def test_a_query_reads_what_is_there_in_bounded_batches_and_goes_on_after_a_restart(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    append(cluster, 0, 1000)
    first = ended(query(spark, cluster, tmp_path, maxOffsetsPerTrigger="400"))
    assert [progress.numInputRows for progress in first.recentProgress] == [0, 399, 400, 201]
    assert numbers(spark, tmp_path) == list(range(1000))
    append(cluster, 1000, 1500)
    ended(query(spark, cluster, tmp_path, reader="lines"))
    assert numbers(spark, tmp_path) == list(range(1500))
    with connect(cluster.servers) as log:
        (row,) = log.readers()
    assert (row.name, row.position) == ("lines", 1001), "the last micro-batch is told of at a restart"


@pytest.mark.long
def test_what_retention_took_from_a_query_is_counted_at_its_reader(
    spark: SparkSession, tmp_path: Path
) -> None:
    storage = StoreConfig(
        segment_bytes=64 * 1024,
        index_segment_bytes=8 * 1024,
        reserve_step_bytes=64 * 1024,
        retention_bytes=1,
    )
    with LocalCluster(members=3, storage=storage) as cluster, connect(cluster.servers) as log:
        append(cluster, 0, 100)
        ended(query(spark, cluster, tmp_path, reader="lines"))
        read_to = next(row.position for row in log.readers())

        def has_dropped() -> bool:
            append(cluster, 100, 2100)
            begins = {log.layout(each.member_id).begin_index + 1 for each in cluster.members}
            return min(begins) > read_to + 100 and len(begins) == 1

        eventually(has_dropped)
        with pytest.raises(StreamingQueryException, match="LedgerDataLoss"):
            ended(query(spark, cluster, tmp_path, reader="lines"))
        ended(query(spark, cluster, tmp_path, reader="lines", failOnDataLoss="false"))
        (row,) = log.readers()
        indices = [each["index"] for each in spark.read.parquet(str(tmp_path / "rows")).collect()]
        (gap,) = row.skipped_ranges
        assert row.skipped_entries == gap[1] - gap[0] > 100
        assert not any(gap[0] <= index < gap[1] for index in indices)
        assert max(indices) >= gap[1]


def test_a_stream_whose_first_rows_failed_begins_where_it_began(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """`latest` means another offset at each restart; the checkpoint says which one was meant."""
    rows: list[int] = []
    fails = True

    def take(batch: DataFrame, _: int) -> None:
        found = [int(bytes(row.body)) for row in batch.collect()]
        if fails and found:
            raise RuntimeError("the sink is not there yet")
        rows.extend(found)

    log = spark.readStream.format("quorumlog").options(servers=cluster.servers, startingOffsets="latest")
    writing = log.load().writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    append(cluster, 0, 100)
    running = writing.trigger(processingTime="0 seconds").start()
    running.processAllAvailable()
    append(cluster, 100, 110)
    with pytest.raises(StreamingQueryException, match="the sink is not there yet"):
        ended(running)
    append(cluster, 110, 120)
    fails = False
    ended(writing.trigger(availableNow=True).start())
    assert rows == list(range(100, 120))


def test_a_query_goes_on_while_its_leader_is_killed(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    append(cluster, 0, 200)
    running = query(spark, cluster, tmp_path, available_now=False, maxOffsetsPerTrigger="100")
    try:
        running.processAllAvailable()
        killed = cluster.leader()
        assert killed is not None
        cluster.kill(killed)
        append(cluster, 200, 400)
        running.processAllAvailable()
        cluster.restart(killed)
    finally:
        running.stop()
    assert numbers(spark, tmp_path) == list(range(400))


@pytest.mark.long
def test_the_time_of_an_append_makes_windows_with_a_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LocalCluster(members=1, time_marks=True) as cluster:
        append(cluster, 0, 300)
        log = spark.readStream.format("quorumlog").options(servers=cluster.servers)
        rows = log.option("columns", "append_time,body").load().where("append_time IS NOT NULL")
        windows = rows.withWatermark("append_time", "10 seconds").groupBy(window("append_time", "1 day"))
        writing = windows.count().writeStream.format("memory").queryName("windows").outputMode("update")
        ended(writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
        timed = spark.read.format("quorumlog").options(servers=cluster.servers, columns="append_time")
        expected = timed.load().where("append_time IS NOT NULL").count()
    counts = [row["count"] for row in spark.table("windows").collect()]
    assert sum(counts) == expected > 0


def test_a_real_time_trigger_is_refused(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    log = spark.readStream.format("quorumlog").option("servers", cluster.servers).load()
    writing = log.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match=r"(?i)real.?time"):
        writing.trigger(realTime="5 minutes").start()


def test_an_option_that_a_stream_does_not_have_ends_the_query_with_its_sentence(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match=r"endingOffsets is for spark\.read") as refusal:
        ended(query(spark, cluster, tmp_path, endingOffsets="5"))
    assert "Traceback" not in str(refusal.value)
