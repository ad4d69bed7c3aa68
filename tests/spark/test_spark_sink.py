"""Rows into a running group through Spark itself, each once. What happens at each step of a commit is
tested in tests/staging, without Spark; `make sink-proof` kills what takes part."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from quorumlog import LocalCluster, connect
from quorumlog.spark import newest_batch

pytestmark = pytest.mark.spark
TIMEOUT_S = 240


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(members=1) as cluster:
        yield cluster


def bodies(cluster: LocalCluster) -> list[bytes]:
    with connect(cluster.servers) as log:
        return [entry.body for entry in log.read(0)]


def numbers(first: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, stop)]


def frame(spark: SparkSession, first: int, stop: int, partitions: int) -> DataFrame:
    return spark.range(first, stop, numPartitions=partitions).selectExpr("CAST(id AS STRING) AS body")


def write(rows: DataFrame, cluster: LocalCluster, **options: str | int) -> None:
    rows.write.format("quorumlog").mode("append").options(servers=cluster.servers, **options).save()


def test_a_data_frame_comes_into_the_log_once_and_in_its_order(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    named = {"producerId": "import", "batchId": 7}
    write(frame(spark, 0, 500, 3), cluster, **named)
    write(frame(spark, 0, 500, 2), cluster, **named)
    assert bodies(cluster) == numbers(0, 500)
    with pytest.raises(Exception, match=r"BatchDiffers: batch 7 of df\.write is in the log already"):
        write(frame(spark, 0, 400, 2), cluster, **named)
    assert newest_batch(cluster.servers, "import") == 7
    assert newest_batch(cluster.servers, "never") is None
    with pytest.raises(Exception, match=r"batchOrder=skip"):
        write(frame(spark, 0, 10, 1), cluster, producerId="import", batchId=3)
    write(frame(spark, 0, 10, 1), cluster, producerId="import", batchId=3, batchOrder="skip")
    write(frame(spark, 500, 510, 1), cluster)
    assert bodies(cluster) == numbers(0, 510)
    with connect(cluster.servers) as log:
        assert [known.producer for known in log.producers()] == ["import/rows"]
    with connect(cluster.servers, group="default.staging") as log:
        assert [row.name for row in log.readers()] == ["sink.import"], "the other write is forgotten"


def test_a_stream_writes_each_row_once_whatever_befalls_its_checkpoint(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    files, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    files.mkdir()

    def run(*, more: str = "") -> None:
        if more:
            (files / f"{more}.json").write_text(json.dumps({"name": more}) + "\n")
        rows = spark.readStream.schema("name STRING").option("maxFilesPerTrigger", 1).json(str(files))
        query = (
            rows.writeStream.format("quorumlog")
            .options(servers=cluster.servers, producerId="names", bodyFormat="json")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S)

    def found() -> list[str]:
        return [json.loads(body)["name"] for body in bodies(cluster)]

    run(more="a")
    run(more="b")
    newest = checkpoint / "commits" / "1"
    newest.unlink()
    newest.with_name(".1.crc").unlink(missing_ok=True)
    run(more="c")
    assert found() == ["a", "b", "c"], "the batch that Spark did not know to be done is not repeated"
    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException, match=r"ProducerIdInUse.*resetProducer="):
        run()
    assert found() == ["a", "b", "c"]
