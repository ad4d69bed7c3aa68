"""A client of Spark Connect: it has no JVM of its own, and the server runs the data source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog import LocalCluster, connect

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from quorumlog.spark.pipelines import Place, SparkEngine, archive, statistics
from quorumlog.spark.session import default_settings, prepare_environment
servers, others, scratch = sys.argv[1:]
prepare_environment(is_local=True)
builder = SparkSession.builder.remote("local[2]")
for name, value in {**default_settings(scratch, is_local=True), "spark.ui.enabled": False}.items():
    builder = builder.config(name, str(value).lower() if isinstance(value, bool) else value)
spark = builder.getOrCreate()
print(type(spark).__module__)
counted = statistics(Place(servers=servers), engine=SparkEngine(spark))
kept = archive(Place(servers=servers), scratch + "/archive", engine=SparkEngine(spark))
print("pipelines", counted.entries, kept.last_index == counted.last_index)
log = spark.read.format("quorumlog").options(servers=servers, minPartitions=2).load()
print("rows", log.where("length(body) = 6").count())
log.select("body").write.format("quorumlog").mode("append").options(
    servers=servers, producerId="again", batchId=0
).save()
query = (
    spark.readStream.format("quorumlog").options(servers=servers, maxOffsetsPerTrigger=1500).load()
    .selectExpr("CAST(concat('s', CAST(body AS STRING)) AS BINARY) AS body")
    .writeStream.format("quorumlog").options(servers=others, producerId="copy")
    .option("checkpointLocation", scratch + "/checkpoint").trigger(availableNow=True).start()
)
assert query.awaitTermination(120)
print("micro-batches", len(query.recentProgress))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_connect_client_reads_streams_and_writes_once(tmp_path: Path) -> None:
    bodies = [b"%06d" % number for number in range(2000)]
    with (
        LocalCluster(members=1) as members,
        LocalCluster(members=1) as others,
        connect(members.servers) as log,
        connect(others.servers) as copy,
    ):
        log.append_batch(bodies)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, members.servers, others.servers, str(tmp_path)],
            env={**os.environ, "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        module, *words = done.stdout.splitlines()
        assert ".connect." in module
        assert words == ["pipelines 2000 True", "rows 2000", "micro-batches 4"]
        assert [entry.body for entry in log.read(0)] == bodies * 2
        assert [entry.body for entry in copy.read(0)] == [b"s" + body for body in bodies * 2]
