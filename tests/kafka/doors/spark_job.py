"""A program for Spark: `python -m tests.kafka.doors.spark_job batch|stream SERVERS TOPIC FOLDER JARS`

batch    writes 20,000 rows with Spark's own connector, reads them, and reads them as a stream
stream   a query that goes on until stdin ends, and puts what it reads into FOLDER as Parquet
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from quorumlog.spark.session import prepare_java_home

ROWS = 20_000


def main(what: str, servers: str, topic: str, folder: str, jars: str) -> None:
    os.environ["JAVA_HOME"] = prepare_java_home()
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}

    def started(place: str, **trigger: object):
        stream = spark.readStream.format("kafka").options(**options).load()
        rows = stream.selectExpr("partition", "offset", "cast(value as string) value")
        return (
            rows.writeStream.format("parquet")
            .option("checkpointLocation", f"{folder}/{place}-checkpoint")
            .trigger(**trigger)
            .start(f"{folder}/{place}")
        )

    if what == "batch":
        rows = spark.range(ROWS).selectExpr("cast(id as string) key", "repeat('x', 200) value")
        sink = rows.write.format("kafka").option("kafka.bootstrap.servers", servers)
        sink.option("topic", topic).save()
        read = spark.read.format("kafka").options(**options).load()
        print(read.count(), read.select("key").distinct().count(), ",".join(read.columns), flush=True)
        query = started("once", availableNow=True)
        assert query.awaitTermination(120)
        print(spark.read.parquet(f"{folder}/once").count(), flush=True)
    else:
        query = started("forever", processingTime="1 second")
        print("started", flush=True)
        sys.stdin.read()
        query.processAllAvailable()
        query.stop()
        print("stopped", flush=True)
    spark.stop()


if __name__ == "__main__":
    assert Path(sys.argv[4]).is_dir()
    main(*sys.argv[1:])
