"""The log on Spark beside Spark's own files: `python -m benchmarks.spark` (`make bench-spark`).

The same rows lie in a log, in Parquet (zstd) and in files of JSON lines. All are read into the noop
sink, in turn, so that what else the machine does meets all of them; a share is of the Parquet read of
its own turn. The lines are read as the same columns, and as text that nobody looks into (text_lines).
Then the ways in: the stream, the sink, the archive.
"""

from __future__ import annotations

import base64
import json
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession

import quorumlog.spark
from benchmarks.outcome import Outcome, outcome_table_of
from harness.member_processes import MemberProcesses
from harness.signals import end_as_ctrl_c_does
from quorumlog import connect
from quorumlog.bench.figures import Target, target_rows
from quorumlog.bench.machine import machine_of
from quorumlog.cli.output import out
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.places import Place

ALL_COLUMNS = "group,index,term,pos,channel,chain_crc,body_crc,body"
SOURCE, COPY = "source", "copy"
SETTINGS: dict[str, str | int | bool] = {"spark.ui.enabled": False, "spark.log.level": "ERROR"}
_AT_ONCE_BYTES = 1 << 20
_TEXT = base64.b64encode(Random(7).randbytes(24 << 20))
_STEP = 7_919
_SMALL_ROWS = 100
"""Of a micro-batch that costs what Spark costs. So many count, and not those of a start."""
_SMALL_BATCHES, _FIRST_BATCHES = 30, 5
Report = Callable[[str], None]
TARGETS = {
    100: (
        Target("path_unchecked_share", 0.75, True),
        Target("path_share", 0.5, True),
        Target("servers_share", 0.45, True),
        Target("over_json_lines", 3.0, True),
        Target("stream_share_of_batch", 0.6, True),
        Target("micro_batch_added_ms", 150, False),
        Target("sink_per_second", 150_000, True),
        Target("archive_per_second", 1_200_000, True),
    ),
    1024: (
        Target("path_unchecked_share", 1.3, True),
        Target("path_share", 0.95, True),
        Target("servers_share", 0.8, True),
        Target("over_json_lines", 3.0, True),
    ),
}


def main(
    megabytes: Annotated[int, typer.Option(help="Of each of both logs.", min=1)] = 400,
    repetitions: Annotated[int, typer.Option(help="Turns; the median counts.", min=1)] = 3,
    size: Annotated[int, typer.Option(help="Only bodies of so many bytes: 100 or 1024. 0: both.")] = 0,
    folder: Annotated[Path, typer.Option("--dir", help="Data, removed at the end.")] = Path("bench-out"),
) -> None:
    """Measure the Spark source, stream, sink and archive beside Parquet and JSON lines.

    Example: python -m benchmarks.spark --megabytes 100
    """
    if size and size not in TARGETS:
        raise typer.BadParameter(f"must be one of {', '.join(map(str, TARGETS))}", param_hint="--size")
    end_as_ctrl_c_does()
    console = out()
    data = folder / "spark"
    data.mkdir(parents=True, exist_ok=True)
    began_s = time.perf_counter()

    def report(step: str) -> None:
        console.print(f"{time.perf_counter() - began_s:6.0f} s  {step}")

    report("starting Spark")
    spark = quorumlog.spark.session("bench", "local[*]", **SETTINGS)
    try:
        outcomes = [
            measure_spark(spark, data, each, megabytes * 10**6 // each, repetitions, report)
            for each in ([size] if size else TARGETS)
        ]
    finally:
        spark.stop()
        shutil.rmtree(data, ignore_errors=True)
    console.print(machine_of(str(folder)).describe())
    console.print(outcome_table_of(outcomes))
    for outcome in outcomes:
        for row in target_rows(outcome):
            verdict = "met" if row["met"] else "not met"
            figure = row["figure"]
            console.print(f"{outcome.name}: {figure} {outcome.figure(figure):.3g}: {verdict}")


def measure_spark(
    spark: SparkSession,
    folder: Path,
    body_bytes: int,
    rows: int,
    repetitions: int,
    report: Report,
) -> Outcome:
    """`report` is told of each step as it begins."""
    with MemberProcesses(folder / "members", groups=(SOURCE, COPY), staging=True) as members:
        servers = members.servers
        report(f"{rows:,} rows of {body_bytes} B into the log")
        fill(servers, rows, body_bytes)
        log = spark.read.format("quorumlog").options(servers=servers, group=SOURCE, columns=ALL_COLUMNS)
        parquet, lines = str(folder / "parquet"), str(folder / "lines")
        report("the same rows into Parquet and JSON lines")
        log.load().write.mode("overwrite").option("compression", "zstd").parquet(parquet)
        log.load().selectExpr("to_json(struct(*)) AS value").write.mode("overwrite").text(lines)
        stopped = members.members[-1]
        stopped.stop()
        stored = str(stopped.data_dir / SOURCE)
        path = spark.read.format("quorumlog").option("columns", ALL_COLUMNS)
        reads: dict[str, Callable[[], DataFrame]] = {
            "parquet": lambda: spark.read.parquet(parquet),
            "json_lines": lambda: spark.read.schema(log.load().schema).json(lines),
            "text_lines": lambda: spark.read.text(lines),
            "path": lambda: path.load(stored),
            "path_unchecked": lambda: path.option("verifyCrc", "false").load(stored),
            "servers": log.load,
        }
        seconds = _in_turn(reads, repetitions, report)
        stopped.start()
        streamed = []
        for number in range(repetitions):
            report(f"stream {number + 1} of {repetitions}")
            streamed.append(_streamed(spark, servers, folder / f"stream-{body_bytes}-{number}"))
        report("small micro-batches")
        added_ms = _micro_batch_added_ms(spark, servers, folder / f"small-{body_bytes}")
        report("the sink")
        written = _seconds(lambda: _write(log.load(), servers))
        report("the archive")
        archived = _seconds(
            lambda: archive(Place(servers=servers, group=SOURCE), str(folder / "archive"))
        )
    shutil.rmtree(folder / "archive", ignore_errors=True)
    return _outcome(body_bytes, rows, seconds, streamed, written, archived, added_ms)


def fill(servers: str, rows: int, body_bytes: int) -> None:
    """JSON bodies: the same text in all three places."""
    at_once = max(_AT_ONCE_BYTES // body_bytes, 1)
    with connect(servers, group=SOURCE, timeout_ms=120_000) as log:
        batches = (
            [_body(number, body_bytes) for number in range(first, min(first + at_once, rows))]
            for first in range(0, rows, at_once)
        )
        for _ in log.append_stream(batches):
            pass


def _body(number: int, size: int) -> bytes:
    """Text that hardly repeats: Parquet would pack anything else to nothing."""
    head = json.dumps({"number": number, "text": ""}).encode()
    at = number * _STEP % (len(_TEXT) - size)
    return head[:-2] + _TEXT[at : at + size - len(head)] + head[-2:]


def _in_turn(
    reads: dict[str, Callable[[], DataFrame]], repetitions: int, report: Report
) -> dict[str, list[float]]:
    """The first turn warms up, and is not counted."""
    found: dict[str, list[float]] = {name: [] for name in reads}
    for turn in range(repetitions + 1):
        report(f"turn {turn} of {repetitions}, {', '.join(reads)}" if turn else "all reads, to warm up")
        for name, read in reads.items():
            seconds = _seconds(partial(_drain, read))
            if turn:
                found[name].append(seconds)
    return found


def _drain(read: Callable[[], DataFrame]) -> None:
    read().write.format("noop").mode("overwrite").save()


def _write(frame: DataFrame, servers: str) -> None:
    writing = frame.select("body").write.format("quorumlog").mode("append")
    writing.options(servers=servers, group=COPY).save()


def _streamed(spark: SparkSession, servers: str, folder: Path) -> float:
    """Seconds for all rows, in micro-batches of a million."""
    log = spark.readStream.format("quorumlog").option("columns", ALL_COLUMNS)
    log = log.options(servers=servers, group=SOURCE, maxOffsetsPerTrigger=1_000_000)
    writing = log.load().writeStream.format("noop").option("checkpointLocation", str(folder))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(each.durationMs["triggerExecution"] for each in query.recentProgress) / 1000


def _micro_batch_added_ms(spark: SparkSession, servers: str, folder: Path) -> float:
    """Over what Spark needs for the same with a source of its own."""
    log = spark.readStream.format("quorumlog").options(servers=servers, group=SOURCE)
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _SMALL_ROWS)
    ours = _micro_batch_ms(log.option("maxOffsetsPerTrigger", _SMALL_ROWS).load(), folder / "log")
    return ours - _micro_batch_ms(rate.load(), folder / "rate")


def _micro_batch_ms(rows: DataFrame, checkpoint: Path) -> float:
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        while len(query.recentProgress) < _FIRST_BATCHES + _SMALL_BATCHES:
            query.awaitTermination(1)
        counted = query.recentProgress[_FIRST_BATCHES:]
    finally:
        query.stop()
    return statistics.median(each.durationMs["triggerExecution"] for each in counted)


def _seconds(act: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    act()
    return time.perf_counter() - began_s


def _outcome(
    body_bytes: int,
    rows: int,
    seconds: dict[str, list[float]],
    streamed: list[float],
    written: float,
    archived: float,
    added_ms: float,
) -> Outcome:
    def times_faster(name: str, other: str) -> float:
        pairs = zip(seconds[name], seconds[other], strict=True)
        return statistics.median(theirs / own for own, theirs in pairs)

    figures = {f"{name}_per_second": rows / statistics.median(each) for name, each in seconds.items()}
    figures |= {f"{name}_share": times_faster(name, "parquet") for name in seconds if name != "parquet"}
    figures |= {
        "over_json_lines": times_faster("path", "json_lines"),
        "stream_share_of_batch": statistics.median(seconds["servers"]) / statistics.median(streamed),
        "micro_batch_added_ms": added_ms,
        "sink_per_second": rows / written,
        "archive_per_second": rows / archived,
    }
    note = f"{rows:,} rows of {body_bytes} B"
    return Outcome(f"{body_bytes} B", figures, TARGETS[body_bytes], note)


if __name__ == "__main__":
    typer.run(main)
