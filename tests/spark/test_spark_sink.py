"""Rows into a running group through Spark itself, each once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from quorumlog import LocalCluster, connect

pytestmark = pytest.mark.spark
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(members=3) as cluster:
        yield cluster


def bodies(cluster: LocalCluster) -> list[bytes]:
    with connect(cluster.servers) as log:
        return [entry.body for entry in log.read(0)]


def numbers(spark: SparkSession, first: int, stop: int, partitions: int = 3) -> DataFrame:
    return spark.range(first, stop, numPartitions=partitions).selectExpr("CAST(id AS STRING) AS body")


def test_a_data_frame_comes_into_the_log_in_its_order(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    numbers(spark, 0, 1000).write.format("quorumlog").mode("append").options(
        servers=cluster.servers
    ).save()
    assert bodies(cluster) == [b"%d" % n for n in range(1000)]
