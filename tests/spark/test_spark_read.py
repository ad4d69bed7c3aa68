"""Through Spark itself: the format, its schema, its options and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, crc32
from pyspark.sql.functions import max as max_of
from pyspark.sql.functions import sum as sum_of

from quorumlog import LocalCluster, StoreConfig, connect
from tests.spark.made_directories import flip_bit_of_body, write_directory

pytestmark = pytest.mark.spark

BODIES = [b"record %d;" % number for number in range(5000)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three members with 5,000 records behind the no-op of term 1."""
    with LocalCluster(members=3, storage=StoreConfig(segment_bytes=65536)) as cluster:
        with connect(cluster.servers) as log:
            for first in range(0, len(BODIES), 1000):
                assert log.append_batch(BODIES[first : first + 1000]).first_index == first + 1
        yield cluster


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped member with 99 records, of which 79 are committed."""
    bodies = [None, *(b"body %d;" % number for number in range(1, 100))]
    return write_directory(tmp_path_factory.mktemp("data") / "n0", bodies, committed_index=79)


def loaded(spark: SparkSession, cluster: LocalCluster, **options: str | int | bool) -> DataFrame:
    return spark.read.format("quorumlog").options(servers=cluster.servers, **options).load()


def test_the_schema_is_as_documented(spark: SparkSession, cluster: LocalCluster) -> None:
    fields = [(f.name, f.dataType.simpleString()) for f in loaded(spark, cluster).schema.fields]
    assert fields == [("index", "bigint"), ("term", "bigint"), ("body", "binary")]
    columns = "group,index,term,pos,channel,chain_crc,body_crc,body"
    everything = loaded(spark, cluster, columns=columns).schema.fields
    assert not any(field.nullable for field in everything)
    assert [(f.name, f.dataType.simpleString()) for f in everything] == [
        ("group", "string"),
        ("index", "bigint"),
        ("term", "bigint"),
        ("pos", "bigint"),
        ("channel", "int"),
        ("chain_crc", "bigint"),
        ("body_crc", "bigint"),
        ("body", "binary"),
    ]


def test_every_record_arrives_once_with_its_digest(spark: SparkSession, cluster: LocalCluster) -> None:
    log = loaded(spark, cluster, minPartitions=3, batchBytes=20000, columns="index,body,body_crc")
    rows = log.orderBy("index").select("index", "body").collect()
    assert [bytes(row.body) for row in rows] == BODIES
    assert [row["index"] for row in rows] == list(range(1, 5001))
    assert log.where(crc32("body") == col("body_crc")).count() == 5000
    assert log.rdd.getNumPartitions() == 3


def test_sql_finds_the_format_too(spark: SparkSession, cluster: LocalCluster) -> None:
    spark.sql(
        "CREATE TEMPORARY VIEW log USING quorumlog OPTIONS"
        f" (servers '{cluster.servers}', startingOffsets '1001', endingOffsets '2001')"
    )
    try:
        [row] = spark.sql(
            "SELECT count(*) AS n, min(index) AS low, max(index) AS high FROM log"
        ).collect()
        assert (row.n, row.low, row.high) == (1000, 1001, 2000)
    finally:
        spark.catalog.dropTempView("log")


def test_columns_are_pruned_by_option_and_by_schema(spark: SparkSession, cluster: LocalCluster) -> None:
    by_option = loaded(spark, cluster, columns="body,index", endingOffsets=3)
    assert by_option.columns == ["body", "index"]
    assert [tuple(row) for row in by_option.collect()] == [(BODIES[0], 1), (BODIES[1], 2)]
    reading = spark.read.format("quorumlog").schema("INDEX BIGINT NOT NULL, `Group` STRING")
    by_schema = reading.options(servers=cluster.servers, endingOffsets=3).load()
    assert [tuple(row) for row in by_schema.collect()] == [(1, "default"), (2, "default")]
    assert by_schema.columns == ["INDEX", "Group"]


def test_servers_and_path_give_the_same_rows(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    victim = next(member for member in cluster.running if member != cluster.leader())
    columns = "index,term,pos,channel,chain_crc,body_crc,body"
    from_servers = loaded(spark, cluster, columns=columns)
    cluster.stop(victim)
    try:
        reading = spark.read.format("quorumlog").options(minPartitions=2, columns=columns)
        from_path = reading.load(str(cluster.data_dir(victim)))
        assert from_path.count() == 5000
        assert from_servers.exceptAll(from_path).count() == 0
    finally:
        cluster.restart(victim)


def test_a_path_is_read_up_to_the_committed_index_and_further_by_name(
    spark: SparkSession, directory: Path
) -> None:
    reading = spark.read.format("quorumlog")
    committed, local = reading.load(str(directory)), reading.option("readConsistency", "local")
    assert committed.agg(count("*"), max_of("index")).first() == (79, 79)
    assert local.load(str(directory)).agg(count("*"), max_of("index")).first() == (99, 99)


def test_several_groups_are_one_table(spark: SparkSession, cluster: LocalCluster) -> None:
    log = loaded(spark, cluster, subscribe="default, default.staging")
    assert log.columns == ["group", "index", "term", "body"]
    counts = {row["group"]: row["count"] for row in log.groupBy("group").count().collect()}
    assert counts["default"] == 5000


def test_conditions_on_index_are_pushed_down_where_that_is_asked_for(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    log = loaded(spark, cluster, pushdown=True, columns="index")
    found = log.where("index > 4000 AND index <= 4500 AND index % 2 = 0")
    assert found.agg(count("*"), sum_of("index")).first() == (250, sum(range(4002, 4501, 2)))
    assert found.where("index = 1").count() == 0


def test_wrong_offsets_are_told_where_the_query_is_planned(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    with pytest.raises(AnalysisException, match=r"endingOffsets is 6000, .* up to offset 5001"):
        loaded(spark, cluster, endingOffsets=6000).count()
    with pytest.raises(AnalysisException, match=r"startingOffsets \(9\) is above endingOffsets \(5\)"):
        loaded(spark, cluster, startingOffsets=9, endingOffsets=5).count()
    assert loaded(spark, cluster, startingOffsets="latest").count() == 0


def test_a_damaged_directory_is_an_error_and_not_a_smaller_result(
    spark: SparkSession, tmp_path: Path
) -> None:
    bodies = [None, *(b"body %d;" % number for number in range(1, 100))]
    path = write_directory(tmp_path / "n0", bodies, committed_index=99)
    flip_bit_of_body(path, b"body 50;")
    with pytest.raises(PythonException, match=r"DirectoryDamaged: .*body_crc does not match.*index 50"):
        spark.read.format("quorumlog").load(str(path)).count()


def test_a_query_goes_on_while_members_come_and_go(spark: SparkSession, cluster: LocalCluster) -> None:
    """Planned with every member alive, read while the first follower is down."""
    log = loaded(spark, cluster, minPartitions=4, columns="index")
    assert log.count() == 5000
    victim = next(member for member in cluster.running if member != cluster.leader())
    cluster.kill(victim)
    try:
        assert log.agg(count("*"), sum_of("index")).first() == (5000, sum(range(1, 5001)))
    finally:
        cluster.restart(victim)


def test_what_is_appended_later_belongs_to_a_later_query(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    before = loaded(spark, cluster, startingOffsets=5001, columns="body")
    planned = before.rdd
    assert planned.getNumPartitions() == 1
    with connect(cluster.servers) as log:
        assert log.append(b"late").last_index == 5001
    assert planned.count() == 0
    again = loaded(spark, cluster, startingOffsets=5001, columns="body").collect()
    assert [bytes(row.body) for row in again] == [b"late"]
