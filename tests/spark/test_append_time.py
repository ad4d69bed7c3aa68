"""The column append_time: each task asks what holds at its first entry, and marks tell the rest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, IsNotNull

from quorumlog import LocalCluster, StoreConfig
from quorumlog.log_state.control_entries import TimeMark
from quorumlog.spark.batch_reader import LedgerBatchReader, PushdownReader
from quorumlog.spark.options import LedgerOptions, spark_schema_of
from tests.spark.made_directories import SMALL_SEGMENTS, write_directory

T0_MS = 1_700_000_000_000
COLUMNS = ["append_time", "body"]


def body_of(minute: int | None, number: int) -> bytes:
    return f"{'-' if minute is None else minute} {number}".encode()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bodies name the minute of the mark in front of them; the first have none."""
    bodies: list[Any] = [None, *(body_of(None, number) for number in range(20))]
    for minute in range(50):
        bodies.append(TimeMark(T0_MS + 60_000 * minute))
        bodies += [body_of(minute, number) for number in range(1 + minute % 7)]
    return write_directory(
        tmp_path_factory.mktemp("marked") / "n0", bodies, committed_index=len(bodies) - 1
    )


def time_of(body: bytes) -> datetime | None:
    minute = body.decode().partition(" ")[0]
    return None if minute == "-" else datetime.fromtimestamp(T0_MS / 1000 + 60 * int(minute), UTC)


def check(rows: list[tuple[datetime | None, bytes]]) -> None:
    assert len(rows) == 20 + sum(1 + minute % 7 for minute in range(50))
    assert [time for time, _ in rows] == [time_of(body) for _, body in rows]


def read(**options: str) -> list[tuple[datetime | None, bytes]]:
    reader = LedgerBatchReader(LedgerOptions.parse(options), spark_schema_of(COLUMNS))
    batches = [rows for partition in reader.partitions() for rows in reader.read(partition)]
    return [(row["append_time"], row["body"]) for rows in batches for row in rows.to_pylist()]


@pytest.mark.parametrize("partitions", ["1", "7", "300"])
def test_of_a_directory(directory: Path, partitions: str) -> None:
    check(read(path=str(directory), minPartitions=partitions, batchBytes="700"))


@pytest.fixture(scope="module")
def servers(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running cluster that holds the same bodies and marks."""
    from quorumlog import connect
    from tests.waiting import eventually, propose

    storage = StoreConfig(
        segment_bytes=SMALL_SEGMENTS.segment_bytes,
        index_segment_bytes=SMALL_SEGMENTS.index_segment_bytes,
        max_entry_bytes=1024,
    )
    with LocalCluster(1, storage=storage) as cluster, connect(cluster.servers) as log:
        driver = cluster.server("n0").drivers[0]
        log.append_batch([body_of(None, number) for number in range(20)])
        for minute in range(50):
            mark = TimeMark(T0_MS + 60_000 * minute)
            propose(driver, mark)
            eventually(lambda mark=mark: driver.node.log_time_ms() == mark.time_ms)  # type: ignore[misc]
            log.append_batch([body_of(minute, number) for number in range(1 + minute % 7)])
        yield cluster.servers


@pytest.mark.parametrize("partitions", ["1", "7"])
def test_of_a_cluster(servers: str, partitions: str) -> None:
    check(read(servers=servers, minPartitions=partitions, batchBytes="700"))


def test_only_of_the_time_it_may_be_asked_whether_it_is_null(directory: Path) -> None:
    options = LedgerOptions.parse({"path": str(directory)})
    reader = PushdownReader(options, spark_schema_of(["index", *COLUMNS]))
    kept = [IsNotNull(("append_time",))]
    asked = [IsNotNull(("index",)), *kept, EqualTo(("index",), 3)]
    assert list(reader.pushFilters(asked)) == kept


@pytest.mark.spark
def test_spark_has_it_as_a_timestamp(spark: SparkSession, directory: Path) -> None:
    options = {"columns": "append_time,body", "minPartitions": 4}
    frame = spark.read.format("quorumlog").options(**options).load(str(directory))  # type: ignore[arg-type]
    (field, _) = frame.schema.fields
    assert (field.name, field.dataType.simpleString(), field.nullable) == (
        "append_time",
        "timestamp",
        True,
    )
    rows = frame.selectExpr("unix_millis(append_time) AS ms", "body").collect()
    check(
        [
            (None if row.ms is None else datetime.fromtimestamp(row.ms / 1000, UTC), bytes(row.body))
            for row in rows
        ]
    )
    assert frame.where("append_time IS NOT NULL").count() == len(rows) - 20
