"""The log on Spark beside Spark's own files: `python -m benchmarks.spark` (`make bench-spark`).

The same rows lie in a log, in Parquet (zstd) and in files of JSON lines. All are read into the noop
sink, in turn, so that what else the machine does meets all of them; a share is of the other's time in
the same turn. The bound is the yielder, a Python data source that has its batches ready. Then the ways
in: the stream, the sink beside `write.parquet`, the archive. Behind the shares stands the processor time
of a row, by who has spent it, and what the shares are by that: what else runs disturbs it less.
"""

from __future__ import annotations

import base64
import functools
import json
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, NamedTuple

import typer
from pyspark.sql import DataFrame, SparkSession

import quorumlog.spark
from benchmarks.outcome import Outcome, outcome_table_of
from benchmarks.spark.latency import append_to_batch
from benchmarks.spark.processor_time import ProcessorTime, jvm_of, watched
from benchmarks.spark.yielder import Yielder
from harness.member_processes import MemberProcesses
from harness.signals import end_as_ctrl_c_does
from quorumlog import connect
from quorumlog.bench.figures import PromisedFigure, target_rows
from quorumlog.bench.machine import machine_of
from quorumlog.cli.output import out
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.places import Place

COLUMNS = "index,term,body"
SOURCE, COPY = "source", "copy"
SETTINGS: dict[str, str | int | bool] = {"spark.ui.enabled": False, "spark.log.level": "ERROR"}
_AT_ONCE_BYTES = 1 << 20
_TEXT = base64.b64encode(Random(7).randbytes(24 << 20))
_STEP = 7_919
_SMALL_ROWS = 100
"""Of a micro-batch that costs what Spark costs. So many count, and not those of a start."""
_SMALL_BATCHES, _FIRST_BATCHES = 30, 5
Report = Callable[[str], None]
Act = Callable[[], object]
_WRITTEN_PART = 4
"""One row of so many is written in each turn of the sink: three members write it twice each."""
_SHARES = (
    ("servers_of_yielder", 0.5, 0.7),
    ("path_of_yielder", 0.65, 0.85),
    ("count_of_yielder", 0.7, 0.7),
    ("sink_of_parquet", 0.5, 0.5),
    ("over_json_lines", 3.0, 3.0),
    ("stream_share_of_batch", 0.6, 0.6),
)
_MOST_MS = (
    PromisedFigure("append_to_batch_ms", 120, False),
    PromisedFigure("micro_batch_added_ms", 150, False),
)
TARGETS = {
    100: (
        *(PromisedFigure(name, bound, True) for name, bound, _ in _SHARES),
        *_MOST_MS,
        PromisedFigure("archive_per_second", 1_200_000, True),
    ),
    1024: (*(PromisedFigure(name, bound, True) for name, _, bound in _SHARES), *_MOST_MS),
}


class Turn(NamedTuple):
    seconds: float
    processor: ProcessorTime


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
    spark.dataSource.register(Yielder)
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
        log = spark.read.format("quorumlog").options(servers=servers, group=SOURCE)
        parquet, lines = str(folder / "parquet"), str(folder / "lines")
        report("the same rows into Parquet and JSON lines")
        log.load().write.mode("overwrite").option("compression", "zstd").parquet(parquet)
        log.load().selectExpr("to_json(struct(*)) AS value").write.mode("overwrite").text(lines)
        stopped = members.members[-1]
        stopped.stop()
        stored = str(stopped.data_dir / SOURCE)
        part = spark.read.parquet(parquet).where(f"index < {rows // _WRITTEN_PART}").select("body")
        frames = frames_of(spark, servers, stored, parquet, lines, rows, body_bytes)
        reads: dict[str, Act] = {
            name: functools.partial(_read, name, frame) for name, frame in frames.items()
        }
        jvm = jvm_of(spark)
        running = [member.pid for member in members.members if member.running]
        turns = _in_turn(reads, repetitions, jvm, running, report)
        stopped.start()
        running = [member.pid for member in members.members]
        writes: dict[str, Act] = {
            "write_parquet": lambda: (
                part.write.mode("overwrite")
                .option("compression", "zstd")
                .parquet(str(folder / "written"))
            ),
            "sink": lambda: _write(part, servers),
        }
        turns |= _in_turn(writes, repetitions, jvm, running, report)
        streamed = []
        for number in range(repetitions):
            report(f"stream {number + 1} of {repetitions}")
            streamed.append(_streamed(spark, servers, folder / f"stream-{body_bytes}-{number}"))
        report("small micro-batches")
        added_ms = _micro_batch_added_ms(spark, servers, folder / f"small-{body_bytes}")
        report("appends, one by one, to foreachBatch")
        latency = append_to_batch(spark, servers, COPY, folder / f"latency-{body_bytes}")
        report("the archive")
        archived = _seconds(
            lambda: archive(Place(servers=servers, group=SOURCE), str(folder / "archive"))
        )
    shutil.rmtree(folder / "archive", ignore_errors=True)
    figures = {
        "stream_share_of_batch": _median(turns["servers"]) / statistics.median(streamed),
        "micro_batch_added_ms": added_ms,
        "append_to_batch_ms": latency.to_function,
        "append_to_rows_ms": latency.to_rows,
        "archive_per_second": rows / archived,
    }
    figures = _figures_of(turns, rows) | figures
    return Outcome(f"{body_bytes} B", figures, TARGETS[body_bytes], f"{rows:,} rows of {body_bytes} B")


def frames_of(
    spark: SparkSession,
    servers: str,
    stored: str,
    parquet: str,
    lines: str,
    rows: int,
    body_bytes: int,
) -> dict[str, Callable[[], DataFrame]]:
    """What is read, each by a reader of its own: options that one is given stay with it."""

    def log(**options: str) -> DataFrame:
        return spark.read.format("quorumlog").options(**options).load()

    def yielder(columns: str) -> DataFrame:
        made = spark.read.format("yielder").options(rows=rows, size=body_bytes, columns=columns)
        return made.load()

    members = {"servers": servers, "group": SOURCE}
    return {
        "parquet": lambda: spark.read.parquet(parquet),
        "json_lines": lambda: spark.read.schema(log(**members).schema).json(lines),
        "yielder": lambda: yielder(COLUMNS),
        "path": lambda: log(path=stored),
        "path_unchecked": lambda: log(path=stored, verifyCrc="false"),
        "servers": lambda: log(**members),
        "yielder_count": lambda: yielder("index"),
        "count": lambda: log(**members, columns="index"),
    }


def _read(name: str, frame: Callable[[], DataFrame]) -> None:
    if name.endswith("count"):
        frame().count()
    else:
        _drain(frame())


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
    acts: dict[str, Act], repetitions: int, jvm: int, members: Sequence[int], report: Report
) -> dict[str, list[Turn]]:
    """The first turn warms up, and is not counted."""
    found: dict[str, list[Turn]] = {name: [] for name in acts}
    for turn in range(repetitions + 1):
        report(f"turn {turn} of {repetitions}, {', '.join(acts)}" if turn else "all of them, to warm up")
        for name, act in acts.items():
            began = watched(jvm, members)
            seconds = _seconds(act)
            if turn:
                found[name].append(Turn(seconds, watched(jvm, members).since(began)))
    return found


def _drain(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _write(frame: DataFrame, servers: str) -> None:
    writing = frame.select("body").write.format("quorumlog").mode("append")
    writing.options(servers=servers, group=COPY).save()


def _streamed(spark: SparkSession, servers: str, folder: Path) -> float:
    """Seconds for all rows, in micro-batches of a million."""
    log = spark.readStream.format("quorumlog")
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


def _median(turns: Sequence[Turn]) -> float:
    return statistics.median(turn.seconds for turn in turns)


def _figures_of(turns: dict[str, list[Turn]], rows: int) -> dict[str, float]:
    """Rates, shares, and the processor time of a row, by who has spent it."""
    written = rows // _WRITTEN_PART
    counts = {name: written if name in ("write_parquet", "sink") else rows for name in turns}

    def times_faster(name: str, other: str) -> float:
        pairs = zip(turns[name], turns[other], strict=True)
        return statistics.median(theirs.seconds / own.seconds for own, theirs in pairs)

    figures = {f"{name}_per_second": counts[name] / _median(each) for name, each in turns.items()}
    figures |= {f"{name}_of_yielder": times_faster(name, "yielder") for name in ("path", "servers")}
    figures |= {
        "count_of_yielder": times_faster("count", "yielder_count"),
        "path_of_parquet": times_faster("path", "parquet"),
        "servers_of_parquet": times_faster("servers", "parquet"),
        "sink_of_parquet": times_faster("sink", "write_parquet"),
        "over_json_lines": times_faster("path", "json_lines"),
    }
    for name, other in (("path", "yielder"), ("servers", "yielder"), ("count", "yielder_count")):
        figures[f"{name}_of_yielder_by_processor"] = statistics.median(
            sum(theirs.processor) / sum(own.processor)
            for own, theirs in zip(turns[name], turns[other], strict=True)
        )
    for name, each in turns.items():
        for who in ProcessorTime._fields:
            spent = statistics.median(getattr(turn.processor, who) for turn in each)
            figures[f"{name}_{who}_ns"] = spent / counts[name] * 1e9
    return figures


if __name__ == "__main__":
    typer.run(main)
