"""Two attempts of one task at once: python -m nemesis.sink.speculating.

The first attempt of a task stages half of its rows and hangs; Spark starts another one elsewhere, whose
rows count. It has to be on another host than the first: so Spark wants it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

import quorumlog.spark
from harness.spark_cluster import SETTINGS as CLUSTER_SETTINGS
from harness.spark_cluster import SparkCluster
from nemesis.sink.copies import BODY, COPY, Copies
from nemesis.sink.copying import SETTINGS

ROWS = 4000
_HANG_S = 300.0
"""Spark kills it once another attempt is done."""
_TIMEOUT_S = 600.0
_SPECULATION: dict[str, str | int | bool] = {
    "spark.speculation": True,
    "spark.task.maxFailures": 1,
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": 1,
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "100ms",
}


def hanging(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The last partition's first attempt stops in its middle; whoever comes later does not."""
    task = TaskContext.get()
    assert task is not None
    hangs = task.partitionId() == 3 and task.attemptNumber() == 0
    for batch in batches:
        numbers = batch.column(0).to_pylist()
        bodies = pa.array([BODY % number for number in numbers], pa.binary())
        rows = pa.RecordBatch.from_arrays([bodies], names=["body"])
        if hangs:
            yield rows.slice(0, len(numbers) // 2)
            time.sleep(_HANG_S)
            raise AssertionError("no other attempt was started")
        else:
            yield rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m nemesis.sink.speculating")
    parser.add_argument("--servers", required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--master", required=True)
    given = parser.parse_args()
    settings = {**SETTINGS, **CLUSTER_SETTINGS, **_SPECULATION}
    settings["spark.executorEnv.PYTHONPATH"] = ":".join(sys.path)
    spark = quorumlog.spark.session("nemesis", given.master, **settings)
    rows = spark.range(given.first, given.first + ROWS, numPartitions=4)
    writing = rows.mapInArrow(hanging, "body BINARY").write.format("quorumlog").mode("append")
    writing.options(servers=given.servers, group=COPY, producerId="speculation", batchId=0).save()
    spark.stop()


def run_speculating(servers: str, folder: Path, copies: Copies) -> None:
    """What it writes comes into the source as well, so that both are equal."""
    copies.append(ROWS - copies.rows if copies.rows < ROWS else 0)
    command = [sys.executable, "-m", "nemesis.sink.speculating", "--servers", servers, "--first", "0"]
    with SparkCluster(folder / "spark") as cluster, (folder / "speculating.log").open("ab") as log:
        subprocess.run(
            [*command, "--master", cluster.master],
            env=cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=_TIMEOUT_S,
            check=True,
        )


if __name__ == "__main__":
    main()
