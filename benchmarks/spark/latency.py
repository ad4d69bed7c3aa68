"""From an append to `foreachBatch`, while nothing else is appended."""

from __future__ import annotations

import queue
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from quorumlog import connect

_COUNTED, _FIRST = 30, 5
"""So many appends count, and not those of a start."""
_LONGEST_S = 60.0


class Latency(NamedTuple):
    """Medians, in milliseconds."""

    to_function: float
    to_rows: float
    """Until it has the entry's row in its hands."""


def append_to_batch(spark: SparkSession, servers: str, group: str, folder: Path) -> Latency:
    came: queue.Queue[tuple[float, float]] = queue.Queue()

    def take(rows: DataFrame, _: int) -> None:
        called_s = time.perf_counter()
        for _row in rows.collect():
            came.put((called_s, time.perf_counter()))

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
                found.append([at_s - began_s for at_s in came.get(timeout=_LONGEST_S)])
    finally:
        query.stop()
    return Latency(*(statistics.median(each) * 1000 for each in zip(*found[_FIRST:], strict=True)))
