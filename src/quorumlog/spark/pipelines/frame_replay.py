"""replay, on Spark: entries of a log or an archive into another log, each exactly once, with filter and
mapping as functions of DataFrames.

Parts of the source, in order of index, are written one after the other by the sink. Each is the sink's
batch whose number is the index that it ends in front of: so the newest batch that stands says where the
replay goes on, however long the log has become meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING

from quorumlog.config import DEFAULT_GROUP, MIB
from quorumlog.errors import BadRequest, ConfigError
from quorumlog.pipelines.places import Place, even_cuts, open_log
from quorumlog.pipelines.replaying import (
    SPARK_ROWS,
    Replayed,
    checked_target,
    parsed_filter,
    refuse_own_log,
)
from quorumlog.spark.pipelines.spark_engine import SparkEngine
from quorumlog.staging import SinkCommits, open_sink_logs
from quorumlog.staging.commits import ROWS_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

assert SPARK_ROWS == ROWS_SUFFIX
FrameTransform = Callable[["DataFrame"], "DataFrame"]
"""Rows `index, term, body` (BINARY) and `append_time`, to those that are appended: their column `body`.
"""

PART_BYTES = 256 * MIB


def replay_frames(
    spark: SparkSession | SparkEngine,
    source: Place,
    target: Place,
    replay_id: str,
    *,
    first_index: int | None = None,
    stop_index: int | None = None,
    transform: FrameTransform | None = None,
    part_bytes: int = PART_BYTES,
    again: bool = False,
    report: Callable[[int, int], None] = lambda done, in_all: None,
) -> Replayed:
    """Append to `target`, whose group needs a staging group. `replay_id` is the sink's `producerId`: the
    same again goes on behind the newest part that stands. `transform` keeps the log's order if it
    filters and maps rows, and not if it groups, joins or sorts them. `part_bytes`: about so many of
    the source become one batch of the sink. `again`: see `quorumlog.pipelines.replaying.replay`.

    Raises ConfigError, BadRequest for a range that does not go with what stands, SinkRefused, and what
    the logs raise.
    """
    checked_target(target, replay_id)
    group = target.group or DEFAULT_GROUP
    with (
        closing(open_log(source)) as log,
        open_sink_logs(target.servers, group, target.timeout_ms) as sink_logs,
    ):
        refuse_own_log(log, source, target, again=again)
        commits = SinkCommits(sink_logs, replay_id)
        if sink_logs.log.producer(replay_id) is not None:
            raise ConfigError(
                f"{replay_id!r} is a replay without Spark, which counts its rows in another way: let"
                " that one end it, or give this one another id"
            )
        before = _rows_of(commits)
        newest = commits.resume()
        first = log.begin_index if first_index is None else first_index
        stop = log.stop_index if stop_index is None else min(stop_index, log.stop_index)
        reached = first if newest is None else newest.standing.batch.batch_id
        if newest is not None and not first <= reached <= stop:
            raise BadRequest(
                f"{replay_id} stands at index {reached} of its source, and this replay is of {first} to"
                f" {stop - 1}: it is of another range. Nothing was appended; give it another id"
            )
        edges = even_cuts(log, reached, stop, part_bytes)
        for low, high in pairwise(edges):
            session = spark.spark if isinstance(spark, SparkEngine) else spark
            rows = _read(session, source, low, high)
            mapped = rows if transform is None else transform(rows)
            mapped.select("body").write.format("quorumlog").mode("append").options(
                servers=target.servers,
                group=group,
                producerId=replay_id,
                batchId=high,
                timeoutMs=target.timeout_ms,
            ).save()
            report(high - first, stop - first)
        after = _rows_of(commits)
    return Replayed(
        replay_id=replay_id,
        source=source.name,
        target=target.servers,
        first_index=first,
        last_index=stop - 1,
        rows=after,
        appended=after - before,
    )


def _rows_of(commits: SinkCommits) -> int:
    """That this replay has put into the target."""
    newest = commits.newest()
    return 0 if newest is None else newest.manifest.stop_sequence


def _read(spark: SparkSession, source: Place, low: int, high: int) -> DataFrame:
    given = {"servers": source.servers, "path": source.path, "archive": source.archive}
    given |= {"group": source.group, "columns": "index,term,body,append_time"}
    named = {name: value for name, value in given.items() if value}
    reading = spark.read.format("quorumlog").options(**named).option("timeoutMs", source.timeout_ms)
    return reading.options(startingOffsets=low, endingOffsets=high).load()


def frame_filter_of(expression: str) -> FrameTransform:
    """See `quorumlog.pipelines.replaying.filter_of`."""
    from pyspark.sql import functions as f

    form, text = parsed_filter(expression)
    kernels = {"contains": f.contains, "prefix": f.startswith}
    return lambda rows: rows.where(kernels[form](f.col("body"), f.lit(bytearray(text.encode()))))
