"""The pipelines by the names that Spark's users expect, with results as DataFrames.

Each runs in threads of the calling process, or, with `engine=SparkEngine(spark)`, as tasks on Spark's
executors; the results are the same. There `replay_frames` takes the place of `replay`. Spark reads their
output in parallel, and also an archive together with the log after it (`option("archive", DIR)`).

"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec
import pyarrow as pa

from quorumlog.config import DEFAULT_GROUP, MIB
from quorumlog.errors import (
    BadRequest,
    ConfigError,
    DirectoryDamaged,
    LedgerError,
    ProtocolViolation,
    StoreFailure,
)
from quorumlog.net.credentials import clients_are, user_of_clients
from quorumlog.net.errors import ErrorResponse, error_of, error_response
from quorumlog.net.tls import clients_use, tls_of_clients
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.auditing import audit
from quorumlog.pipelines.compacting import compact
from quorumlog.pipelines.engine import LocalEngine, WorkEngine
from quorumlog.pipelines.places import Place, even_cuts, open_log, range_in
from quorumlog.pipelines.replaying import (
    SPARK_ROWS,
    Replayed,
    checked_target,
    parsed_filter,
    refuse_own_log,
    replay,
)
from quorumlog.pipelines.statistics import statistics
from quorumlog.staging import SinkCommits, open_sink_logs
from quorumlog.staging.commits import ROWS_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


W = TypeVar("W", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

RESULT_BYTES = 128 * MIB
"""Of a job, whose results its driver holds at once, in Java and in Python, within
`spark.driver.maxResultSize`. A work alone may give more."""
_COLUMNS = "number bigint, size bigint, result binary, refusal binary"


class SparkEngine:
    def __init__(self, spark: SparkSession | Callable[[], SparkSession]) -> None:
        """Or how to start a session, once something is to run on it."""
        self._session = spark

    @property
    def spark(self) -> SparkSession:
        """A session may take half a minute to start: errors are raised before if possible."""
        if callable(self._session):
            self._session = self._session()
        return self._session

    def map(self, run: Callable[[W], R], works: Sequence[W], result_bytes: int = 0) -> Iterator[R]:
        """A task that is lost is run again by Spark, and a slow one may run twice. A refusal would
        repeat, so it does not fail its task, and is raised here."""
        kind = get_type_hints(run)["return"]
        at, each_bytes, largest = 0, result_bytes, 0
        while at < len(works):
            count = max(RESULT_BYTES // each_bytes, 1) if each_bytes else len(works)
            some = tuple(works[at : at + count])
            share = RESULT_BYTES // len(some) if result_bytes and len(some) > 1 else 0
            rows = self._job(run, some, share)
            for row in rows:
                if row["refusal"]:
                    raise _raised(bytes(row["refusal"]))
                if not row["result"]:
                    break  # larger than its share, which those before did not tell
                yield msgspec.msgpack.decode(bytes(row["result"]), type=kind)
                at += 1
            largest = max(largest, *(row["size"] for row in rows))
            each_bytes = 2 * largest

    def _job(self, run: Callable[[W], R], works: tuple[W, ...], most_bytes: int) -> list[Row]:
        """Rows of `_COLUMNS`, in the order of works."""
        tls, user = tls_of_clients(), user_of_clients()  # of this process: a worker has none
        _clients_options()  # refused here, rather than by a worker

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with clients_use(tls), clients_are(user):
                for batch in batches:
                    for number in batch.column(0).to_pylist():
                        yield _row(number, run, works[number], most_bytes)

        numbers = self.spark.range(0, len(works), 1, len(works))
        rows = numbers.mapInArrow(task, _COLUMNS).collect()
        return sorted(rows, key=lambda row: row["number"])


_KINDS = (DirectoryDamaged, StoreFailure, ProtocolViolation, ConfigError)


class _Refusal(msgspec.Struct):
    """How a work ended that refused."""

    text: str
    error: ErrorResponse | None = None
    """Of a LedgerError."""
    kind: str = ""
    """Name of another one."""
    place: dict[str, Any] = {}
    """Of DirectoryDamaged, as its constructor takes it."""


def _row(number: int, run: Callable[[W], R], work: W, most_bytes: int) -> pa.RecordBatch:
    """Of a result that is larger than `most_bytes` (0: none is) its size alone."""
    result, refusal = b"", b""
    try:
        result = msgspec.msgpack.encode(run(work))
    except LedgerError as error:
        refusal = msgspec.msgpack.encode(_Refusal(str(error), error_response(0, error)))
    except _KINDS as error:
        kind = next(kind for kind in _KINDS if isinstance(error, kind))
        names = ("path", "position", "index", "stop_index") if kind is DirectoryDamaged else ()
        place = {name: getattr(error, name) for name in names}
        refusal = msgspec.msgpack.encode(_Refusal(str(error), None, kind.__name__, place))
    size = len(result)
    kept = b"" if 0 < most_bytes < size else result
    columns = [pa.array([number]), pa.array([size]), pa.array([kept]), pa.array([refusal])]
    return pa.RecordBatch.from_arrays(columns, ["number", "size", "result", "refusal"])


def _raised(encoded: bytes) -> Exception:
    refusal = msgspec.msgpack.decode(encoded, type=_Refusal)
    if refusal.error is not None:
        return error_of(refusal.error)
    kind = next(kind for kind in _KINDS if kind.__name__ == refusal.kind)
    return kind(refusal.text, **refusal.place)


# ----------------------------------------------------------------
# replay, on Spark: entries of a log or an archive into another log, each exactly once, with filter and
# mapping as functions of DataFrames.
#
# Parts of the source, in order of index, are written one after the other by the sink. Each is the sink's
# batch whose number is the index that it ends before: so the newest batch that stands says where
# the replay goes on, however long the log has become meanwhile.


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
    same id continues after the newest committed part. `transform` keeps the log's order if it filters
    and maps rows, and not if it groups, joins or sorts them. `part_bytes`: about so many of the source
    become one batch of the sink. `again`: see `quorumlog.pipelines.replaying.replay`.

    Raises ConfigError, BadRequest for a range that does not match the committed parts, SinkRefused, and
    the logs' errors.
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
                f"{replay_id!r} was begun without Spark, which numbers its rows differently: finish it"
                " without Spark, or use another id for this replay"
            )
        before = _rows_of(commits)
        newest = commits.resume()
        first, stop = range_in(log, first_index, stop_index)
        reached = first if newest is None else newest.newest_manifest.batch.batch_id
        if newest is not None and not first <= reached <= stop:
            raise BadRequest(
                f"{replay_id} has reached index {reached} of its source, which is outside the range of"
                f" this replay, {first} to {stop - 1}. Nothing was appended; use another id"
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
                **_clients_options(),
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


def _clients_options() -> dict[str, str]:
    """What the clients of this process speak with, and as whom. Raises ConfigError."""
    tls, user = tls_of_clients(), user_of_clients()
    options = dict(zip(("tlsCa", "tlsCert", "tlsKey"), () if tls is None else tls.files, strict=False))
    if user is not None:
        options |= {"user": user.name, "passwordFile": user.sent_file}
    return {name: value for name, value in options.items() if value}


def _rows_of(commits: SinkCommits) -> int:
    """That this replay has put into the target."""
    newest = commits.newest()
    return 0 if newest is None else newest.manifest.stop_sequence


def _read(spark: SparkSession, source: Place, low: int, high: int) -> DataFrame:
    options = {"servers": source.servers, "path": source.path, "archive": source.archive}
    options |= {"group": source.group, "columns": "index,term,body,append_time"}
    named = {name: value for name, value in options.items() if value}
    if source.servers:
        named |= _clients_options()
    reading = spark.read.format("quorumlog").options(**named).option("timeoutMs", source.timeout_ms)
    return reading.options(startingOffsets=low, endingOffsets=high).load()


def frame_filter_of(expression: str) -> FrameTransform:
    """See `quorumlog.pipelines.replaying.filter_of`."""
    from pyspark.sql import functions as f

    form, text = parsed_filter(expression)
    kernels = {"contains": f.contains, "prefix": f.startswith}
    return lambda rows: rows.where(kernels[form](f.col("body"), f.lit(bytearray(text.encode()))))


__all__ = [
    "WorkEngine",
    "LocalEngine",
    "Place",
    "SparkEngine",
    "archive",
    "audit",
    "compact",
    "replay",
    "replay_frames",
    "statistics",
]
