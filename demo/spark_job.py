"""What Spark makes of the log: it is compared, summed up by a stream while a leader is killed, archived
and audited by the executors, and read again as an archive and what follows it.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pandas as pd

from demo.flights import summarise
from demo.spark_comparison import LogContents, compare, compare_summaries, mean_delays
from harness.directories import Comparison
from harness.member_processes import MemberProcesses
from quorumlog import connect, leader_of
from quorumlog.config import MIB
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.engine import WorkEngine
from quorumlog.pipelines.places import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS, CARRIERS = "default", "carriers"
"""Groups: what was appended, and what the stream makes of it."""
SPARK_LOG_NAME = "spark.log"
ARCHIVE_NAME = "archive"
CHECKPOINT_NAME = "checkpoint"
PART_BYTES = 8 * MIB
"""Of the archive: a task each."""
MICRO_BATCHES = 4
"""At least."""
_USED = "carrier STRING, arr_delay BIGINT"
"""Of a record."""
_POLL_S = 0.02
_TIMEOUT_S = 120
_SPARK_SETTINGS: dict[str, str | int | bool] = {
    "spark.sql.shuffle.partitions": 4,
    "spark.ui.enabled": False,
    # A job of seconds pays more for the optimising compiler than it gets back.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

Report = Callable[[str], None]


class Steps:
    """Says what begins, and remembers how long each took."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._began: list[tuple[str, float]] = []

    def begin(self, name: str) -> None:
        self._report(name)
        self._began.append((name, time.perf_counter()))

    def seconds(self) -> tuple[tuple[str, float], ...]:
        stops = [began for _, began in self._began[1:]] + [time.perf_counter()]
        return tuple(
            (name, stop - began) for (name, began), stop in zip(self._began, stops, strict=True)
        )


def run(members: MemberProcesses, flights: pd.DataFrame, folder: Path, report: Report) -> LogContents:
    """`folder`: for scratch files; `report`: what begins. Blocks for many seconds."""
    import quorumlog.spark
    from quorumlog.spark.pipelines import SparkEngine

    for name in (ARCHIVE_NAME, CHECKPOINT_NAME):
        shutil.rmtree(folder / name, ignore_errors=True)
    steps = Steps(report)
    steps.begin("starting Spark")
    with _standard_error_in(folder / SPARK_LOG_NAME):
        spark = quorumlog.spark.session("flights", "local[*]", **_SPARK_SETTINGS)
    servers = members.servers
    try:
        log = spark.read.format("quorumlog").options(servers=servers, minPartitions=4).load()
        contents = compare(spark, log, flights, folder, steps.begin)
        steps.begin("a stream sums up, and a leader is killed under it")
        streamed = sum_up(spark, members, flights, folder)
        steps.begin("Spark's executors archive two thirds of the log")
        archived = str(folder / ARCHIVE_NAME)
        with connect(servers) as client:
            two_thirds = 2 * client.end_index() // 3
        engine, log_of_members = SparkEngine(spark), Place(servers=servers)
        archive(
            log_of_members,
            archived,
            stop_index=two_thirds,
            hold=ARCHIVE_NAME,
            part_bytes=PART_BYTES,
            engine=engine,
        )
        steps.begin("Spark's executors audit members and archive")
        audited = audit_all(servers, archived, engine)
        steps.begin("reading archive and log as one")
        union = read_as_one(spark, servers, archived, len(flights))
    finally:
        spark.stop()
    seconds = steps.seconds()
    return contents._replace(
        comparisons=(*contents.comparisons, streamed, audited, union),
        seconds=sum(each for _, each in seconds),
        steps=seconds,
    )


def sum_up(
    spark: SparkSession, members: MemberProcesses, flights: pd.DataFrame, folder: Path
) -> Comparison:
    """Each micro-batch's flights and delays per carrier go into a log of their own, once. If one came
    twice or not at all, their sum would differ from what pandas has computed from the source."""
    from pyspark.sql import functions as f

    servers = members.servers

    def write(batch: DataFrame, batch_id: int) -> None:
        sums = batch.groupBy("flight.carrier").agg(
            f.count("*").alias("flights"),
            f.sum("flight.arr_delay").alias("delay"),
            f.count("flight.arr_delay").alias("known"),
        )
        writing = sums.write.format("quorumlog").mode("append").option("bodyFormat", "json")
        writing.options(servers=servers, group=CARRIERS, producerId="carriers", batchId=batch_id).save()

    log = spark.readStream.format("quorumlog")
    limit = -(-len(flights) // MICRO_BATCHES)
    lines = log.options(servers=servers, maxOffsetsPerTrigger=limit).load()
    query = (
        lines.selectExpr(f"from_json(CAST(body AS STRING), '{_USED}') AS flight")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / CHECKPOINT_NAME))
        .trigger(availableNow=True)
        .start()
    )
    killed = _kill_leader_under(query, members)
    if not query.awaitTermination(_TIMEOUT_S):
        raise TimeoutError(f"the stream did not end within {_TIMEOUT_S} s")
    with connect(servers, group=CARRIERS) as results:
        parts = pd.DataFrame([msgspec.json.decode(entry.body) for entry in results.read(0)])
    agreed = compare_summaries("carrier", mean_delays(parts, "carrier"), summarise(flights, "carrier"))
    return agreed._replace(
        name="a stream's sums per carrier, written exactly once, and pandas",
        detail=f"{agreed.detail}, in {len(query.recentProgress)} micro-batches; {killed} was killed",
    )


def _kill_leader_under(query: StreamingQuery, members: MemberProcesses) -> str:
    """Once its first micro-batch is done; it starts again at once. Returns who it was."""
    deadline = time.monotonic() + _TIMEOUT_S
    while query.isActive and query.lastProgress is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    with connect(members.servers) as client:
        leader = leader_of(client.status())
    if leader is None:
        raise TimeoutError("no member leads")
    members[leader.id].kill()
    members[leader.id].start()
    return leader.id


def audit_all(servers: str, archived: str, engine: WorkEngine) -> Comparison:
    """Whoever was killed has to be back: a member that does not answer is a difference as well."""
    deadline = time.monotonic() + _TIMEOUT_S
    with connect(servers) as client:
        while not all(row.reachable for row in client.status()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    found = audit([Place(servers=servers), Place(archive=archived)], engine=engine)
    name = "every member and the archive hold the same entries, digests recomputed"
    if found.differences:
        first = found.differences[0]
        return Comparison(name, False, f"{first.place}: {first.what}")
    entries = sum(place.entries for place in found.places)
    return Comparison(name, True, f"{entries:,} entries in {len(found.places)} places")


def read_as_one(spark: SparkSession, servers: str, archived: str, rows: int) -> Comparison:
    from pyspark.sql import functions as f

    def contents(**options: str) -> tuple[int, int, int]:
        log = spark.read.format("quorumlog").options(
            servers=servers, columns="index,body_crc", **options
        )
        sums = (f.count("*"), f.sum("index"), f.bit_xor(f.xxhash64("index", "body_crc")))
        [found] = log.load().agg(*sums).collect()
        return tuple(found)

    union, live = contents(archive=archived), contents()
    return Comparison(
        "archive and log read as one are the log",
        union == live and union[0] == rows,
        f"{union[0]:,} rows, two thirds of them archived",
    )


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
