"""python -m nemesis.sink.copying: a query from the source into the copy, until it is killed."""

from __future__ import annotations

import argparse
import os

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import quorumlog.spark
from nemesis.sink.copies import COPY, PRODUCER, SOURCE
from nemesis.sink.dying import DRIVER_GROUP, DyingSource

SETTINGS: dict[str, str | int | bool] = {
    "spark.ui.enabled": False,
    "spark.sql.shuffle.partitions": 2,
    "spark.log.level": "ERROR",
}


def copying(
    spark: SparkSession,
    servers: str,
    checkpoint: str,
    *,
    rows: int,
    available_now: bool = False,
    partitions: int = 2,
    sink: str = "quorumlog",
    **options: str,
) -> StreamingQuery:
    """`rows` a micro-batch, in `partitions` parts."""
    log = (
        spark.readStream.format("quorumlog")
        .options(servers=servers, group=SOURCE, maxOffsetsPerTrigger=rows, minPartitions=partitions)
        .load()
    )
    writing = (
        log.select("body")
        .writeStream.format(sink)
        .options(servers=servers, group=COPY, producerId=PRODUCER, **options)
        .option("checkpointLocation", checkpoint)
    )
    if available_now:
        writing = writing.trigger(availableNow=True)
    return writing.start()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m nemesis.sink.copying")
    parser.add_argument("--servers", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--dies-before-replay", action="store_true")
    given = parser.parse_args()
    os.environ[DRIVER_GROUP] = str(os.getpgrp())
    # Each task has four attempts, so that a killed worker does not end the query.
    spark = quorumlog.spark.session("nemesis", "local[2,4]", **SETTINGS)
    spark.dataSource.register(DyingSource)
    sink = DyingSource.name() if given.dies_before_replay else "quorumlog"
    copying(spark, given.servers, given.checkpoint, rows=given.rows, sink=sink).awaitTermination()


if __name__ == "__main__":
    main()
