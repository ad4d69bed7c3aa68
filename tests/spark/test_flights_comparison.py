"""The demo's comparison finds what is lost, repeated, changed and foreign."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from demo.flights import encode_records, load_flights
from demo.spark_comparison import LogContents, compare

pytestmark = pytest.mark.spark

ROWS = 400


def contents_of(spark: SparkSession, records: list[bytes], folder: Path) -> LogContents:
    log = spark.createDataFrame([(bytearray(record),) for record in records], "body BINARY")
    return compare(spark, log, load_flights(ROWS), folder, lambda stage: None)


def verdicts(contents: LogContents) -> list[bool]:
    return [comparison.agrees for comparison in contents.comparisons]


def test_the_whole_source_agrees_also_where_records_are_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = encode_records(load_flights(ROWS))
    contents = contents_of(spark, [*records, *records[:30], records[0]], tmp_path)
    assert verdicts(contents) == [True] * 4
    assert (contents.records, contents.repeated_rows) == (ROWS + 31, 31)
    assert (contents.lost_rows, contents.foreign_records) == (0, 0)


def test_a_lost_and_a_changed_record_are_found(spark: SparkSession, tmp_path: Path) -> None:
    records = encode_records(load_flights(ROWS))
    changed = records[7].replace(b'"distance":', b'"distance":1')
    assert changed != records[7]
    contents = contents_of(spark, [*records[:7], changed, *records[8:-1]], tmp_path)
    assert contents.lost_rows == 2
    assert contents.foreign_records == 1
    assert contents.repeated_rows == 0
    assert verdicts(contents) == [False, False, False, False]
