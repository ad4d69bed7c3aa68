"""Spark reads the log and says whether it holds what the source holds.

The source takes another road to Spark: pandas writes it as Parquet. Two set differences over all columns
show every lost and every foreign record, and Spark's sums of the log are compared with those that pandas
computed from the source.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from demo.flights import GROUPINGS, ROW, summarise
from harness.directories import Comparison

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MEAN_TOLERANCE = 1e-9
"""Relative. Both add the same integers and divide once, perhaps in another order of roundings."""

SPARK_SETTINGS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    # A job of seconds pays more for the optimising compiler than it gets back.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
SPARK_LOG_NAME = "spark.log"
SOURCE_NAME = "source.parquet"

Report = Callable[[str], None]


class LogContents(NamedTuple):
    records: int
    lost_rows: int
    """Rows of the source that are not in the log with all their values."""
    repeated_rows: int
    """Records above one of their row."""
    foreign_records: int
    """Distinct records of the log that are no row of the source."""
    comparisons: tuple[Comparison, ...]
    seconds: float


def read_and_compare(servers: str, flights: pd.DataFrame, folder: Path, report: Report) -> LogContents:
    """`folder`: for scratch files; `report`: what begins. Blocks for seconds: run it in a thread."""
    import quorumlog.spark

    began = time.perf_counter()
    report("starting Spark")
    with _standard_error_in(folder / SPARK_LOG_NAME):
        spark = quorumlog.spark.session("flights", "local[*]", **SPARK_SETTINGS)
    try:
        log = spark.read.format("quorumlog").option("servers", servers).option("minPartitions", 4).load()
        contents = compare(spark, log, flights, folder, report)
    finally:
        spark.stop()
    return contents._replace(seconds=time.perf_counter() - began)


@contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    """A Java process that is started meanwhile writes its warnings to `path` for all its life, and not
    across the progress shown on the terminal."""
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)


def compare(
    spark: SparkSession, log: DataFrame, flights: pd.DataFrame, folder: Path, report: Report
) -> LogContents:
    """`log`: a data frame with a column `body` of JSON records."""
    from pyspark.sql import functions as f

    source_path = folder / SOURCE_NAME
    flights.to_parquet(source_path, index=False)
    source = spark.read.parquet(str(source_path))

    report("counting the records of the log")
    parsed = (
        log.select(f.from_json(f.col("body").cast("string"), source.schema).alias("flight"))
        .select("flight.*")
        .cache()
    )
    records = parsed.count()
    repeated_rows = records - parsed.select(ROW).distinct().count()
    report("looking for every row of the source")
    lost_rows = source.subtract(parsed).count()
    foreign_records = parsed.subtract(source).count()
    comparisons = [
        Comparison(
            "every row of the source is in the log",
            lost_rows == 0,
            f"{len(flights) - lost_rows:,} of {len(flights):,} rows, all {len(flights.columns)} columns",
        ),
        Comparison(
            "nothing else is in the log", foreign_records == 0, f"{foreign_records:,} foreign records"
        ),
    ]
    once = parsed.dropDuplicates([ROW])
    for by in GROUPINGS:
        report(f"flights and mean arrival delay per {by}")
        found = (
            once.groupBy(by)
            .agg(f.count("*").alias("flights"), f.avg("arr_delay").alias("mean_arr_delay"))
            .orderBy(by)
            .toPandas()
        )
        comparisons.append(compare_summaries(by, found, summarise(flights, by)))
    parsed.unpersist()
    return LogContents(records, lost_rows, repeated_rows, foreign_records, tuple(comparisons), 0.0)


def compare_summaries(by: str, found: pd.DataFrame, expected: pd.DataFrame) -> Comparison:
    name = f"flights and mean arrival delay per {by}, Spark and pandas"
    both = expected.merge(found, on=by, how="outer", suffixes=("", "_found"))
    wrong = [str(row[by]) for _, row in both.iterrows() if not _same(row)]
    if wrong:
        return Comparison(name, False, f"differs for {by} {', '.join(wrong[:5])}")
    return Comparison(name, True, f"{len(both)} of {len(both)} groups agree")


def _same(row: pd.Series) -> bool:
    if pd.isna(row["flights"]) or pd.isna(row["flights_found"]):
        return False
    if int(row["flights"]) != int(row["flights_found"]):
        return False
    mean, found = row["mean_arr_delay"], row["mean_arr_delay_found"]
    if pd.isna(mean) or pd.isna(found):
        return bool(pd.isna(mean) and pd.isna(found))
    return bool(abs(float(mean) - float(found)) <= MEAN_TOLERANCE * max(1.0, abs(float(mean))))
