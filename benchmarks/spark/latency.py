"""From an append to `foreachBatch`, while nothing else is appended."""

from __future__ import annotations

import queue
import statistics
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from quorumlog import connect

_COUNTED, _FIRST = 30, 5
"""So many appends count, and not those of a start."""
_LONGEST_S = 60.0


def append_to_batch_ms(spark: SparkSession, servers: str, group: str, folder: Path) -> float:
    """The median until the function has the entry's row in its hands."""
    came: queue.Queue[float] = queue.Queue()

    def take(rows: DataFrame, _: int) -> None:
        for _row in rows.collect():
            came.put(time.perf_counter())

    log = spark.readStream.format("quorumlog").options(servers=servers, group=group)
    writing = log.option("startingOffsets", "latest").load().writeStream.foreachBatch(take)
    query = writing.option("checkpointLocation", str(folder)).start()
    found = []
    try:
        while not query.recentProgress:  # its first batch says where it begins
            query.awaitTermination(1)
        with connect(servers, group=group) as client:
            for _ in range(_FIRST + _COUNTED):
                began_s = time.perf_counter()
                client.append(b"an entry")
                found.append(came.get(timeout=_LONGEST_S) - began_s)
    finally:
        query.stop()
    return statistics.median(found[_FIRST:]) * 1000
