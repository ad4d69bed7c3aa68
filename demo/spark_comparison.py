"""Spark reads the log and says whether it holds what the source holds.

The source takes another road to Spark: pandas writes it as Parquet. A join of both by row number shows
every lost, repeated and foreign record, all columns compared, and Spark's sums of the log are compared
with those that pandas computed from the source.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from demo.flights import GROUPINGS, ROW, summarise
from harness.directories import Comparison

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MEAN_TOLERANCE = 1e-9
"""Relative. Both add the same integers and divide once, perhaps in another order of roundings."""

SOURCE_NAME = "source.parquet"

Report = Callable[[str], None]


class LogContents(NamedTuple):
    records: int
    lost_rows: int
    """Rows of the source that are not in the log with all their values."""
    repeated_rows: int
    """Records above one of their row."""
    foreign_records: int
    """Records of the log that are no row of the source."""
    comparisons: tuple[Comparison, ...]
    seconds: float
    steps: tuple[tuple[str, float], ...] = ()
    """Of what Spark did, in order: seconds of each."""


def compare(
    spark: SparkSession, log: DataFrame, flights: pd.DataFrame, folder: Path, report: Report
) -> LogContents:
    """`log`: a data frame with a column `body` of JSON records."""
    from pyspark.sql import functions as f

    source_path = folder / SOURCE_NAME
    flights.to_parquet(source_path, index=False)
    source = spark.read.parquet(str(source_path))

    report("looking for every row of the source")
    parsed = log.select(f.from_json(f.col("body").cast("string"), source.schema).alias("found"))
    both = source.select(ROW, f.struct("*").alias("wanted")).join(
        parsed.withColumn(ROW, f.col(f"found.{ROW}")), ROW, "full_outer"
    )
    is_same = f.col("wanted").eqNullSafe(f.col("found"))
    is_found = f.col("found").isNotNull()
    [counts] = both.agg(
        f.count("found").alias("records"),
        f.count_distinct(f.when(is_found, f.col(ROW))).alias("rows"),
        f.count_distinct(f.when(is_same, f.col(ROW))).alias("right"),
        f.count_if(is_found & ~is_same).alias("foreign"),
    ).collect()
    lost_rows = len(flights) - counts.right
    comparisons = [
        Comparison(
            "every row of the source is in the log",
            lost_rows == 0,
            f"{counts.right:,} of {len(flights):,} rows, all {len(flights.columns)} columns",
        ),
        Comparison(
            "nothing else is in the log", counts.foreign == 0, f"{counts.foreign:,} foreign records"
        ),
    ]
    report("flights and mean arrival delays")
    once = parsed.select("found.*").dropDuplicates([ROW])
    sums = once.groupBy(*GROUPINGS).agg(
        f.count("*").alias("flights"),
        f.sum("arr_delay").alias("delay"),
        f.count("arr_delay").alias("known"),
    )
    found = sums.toPandas()
    for by in GROUPINGS:
        means = mean_delays(found, by)
        comparisons.append(compare_summaries(by, means, summarise(flights, by)))
    return LogContents(
        counts.records,
        lost_rows,
        counts.records - counts.rows,
        counts.foreign,
        tuple(comparisons),
        0.0,
    )


def mean_delays(parts: pd.DataFrame, by: str) -> pd.DataFrame:
    """Of partial sums: columns `flights`, `delay`, and `known`, of how many the delay is known."""
    sums = parts.groupby(by, sort=True)[["flights", "delay", "known"]].sum()
    means = sums["delay"] / sums["known"].where(sums["known"] > 0)
    return pd.DataFrame({"flights": sums["flights"], "mean_arr_delay": means}).reset_index()


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
