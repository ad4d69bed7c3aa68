"""replay: entries of a log or an archive into another log, each exactly once.

A session of the target numbers the rows: the number of a row is the count of this replay's rows before
it. A restarted replay asks for the newest number in the log, and continues after it. So filter and
mapping must be the same in each run of a `replay_id`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import msgspec
import pyarrow as pa

from quorumlog.arrow import record_batch_of
from quorumlog.batch import EntryBatch
from quorumlog.client import LedgerClient
from quorumlog.config import MIB
from quorumlog.errors import BadRequest, ConfigError, ProducerExpired
from quorumlog.pipelines.places import OpenLog, Place, connected, linked, open_log, range_in

Transform = Callable[[pa.RecordBatch], "pa.RecordBatch | None"]
"""Rows of `quorumlog.arrow.ENTRY_SCHEMA`, to those that are appended: fewer, or with other bodies."""

SPARK_ROWS = "/rows"
"""A replay by Spark appends as the producer of this name after its id."""
BATCH_RECORDS = 4096
BATCH_BYTES = 1 * MIB


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    replay_id: str
    source: str
    target: str
    first_index: int
    last_index: int
    """Of the source."""
    rows: int
    """Of this replay that are in the target."""
    appended: int
    """By this run."""


def replay(
    source: Place,
    target: Place,
    replay_id: str,
    *,
    first_index: int | None = None,
    stop_index: int | None = None,
    transform: Transform | None = None,
    rows_per_s: float = 0,
    again: bool = False,
    report: Callable[[int, int], None] = lambda done, in_all: None,
) -> Replayed:
    """Append to `target` the bodies of the source from `first_index` on (default: its begin), up to
    `stop_index`, exclusive (default: its end). `replay_id` is the producer of the target's session: the
    same id continues this replay, another one appends all again. `transform` gets each batch of rows and
    returns those to append. `rows_per_s` 0: unlimited. `again`: also into the rows' own log, which has
    them twice then; without it that is refused (ConfigError). `report` is called with entries done and
    in all.

    Raises ConfigError, LedgerError, DirectoryDamaged; entries appended by then stay, and the same
    `replay_id` continues after them."""
    checked_target(target, replay_id)
    with closing(open_log(source)) as log, connected(target, replay_id) as into:
        refuse_own_log(log, source, target, again=again)
        refuse_other_counting(into, replay_id)
        first, stop = range_in(log, first_index, stop_index)
        appended = 0
        pace = _Pace(rows_per_s)
        number, present = 0, into.last_sequence() + 1
        if present and first_index is None and first > 0 and not source.archive:
            # Numbers count from where the first run began, and that may be deleted by now.
            raise BadRequest(
                f"{replay_id} has appended {present} rows to {target.servers}, and entries before index"
                f" {first} of {source.name} are deleted: if the first run began with them, as many"
                " others would be left out now. Nothing was appended. If it began at that index, say so"
                f" (first_index; quorumlog pipeline replay --from {first}); otherwise replay an archive"
                " that has them, or use another id with the first index that is not replayed yet"
            )
        for index, bodies in _rows(log.batches(first, stop), first, stop, transform, source.name):
            skipped = min(max(present - number, 0), len(bodies))
            number += skipped
            for part in cut(bodies.slice(skipped)):
                pace.wait(len(part))
                into.append_batch(part.to_pylist(), sequence=number)
                number += len(part)
                appended += len(part)
            report(index - first, stop - first)
        if number < present:
            raise BadRequest(
                f"{replay_id} has appended {present} rows to {target.servers}, and this replay has"
                f" {number}: it is of another range or filter. Nothing was appended; give it another id"
            )
    return Replayed(
        replay_id=replay_id,
        source=source.name,
        target=target.servers,
        first_index=first,
        last_index=stop - 1,
        rows=number,
        appended=appended,
    )


def checked_target(target: Place, replay_id: str) -> None:
    """Raises ConfigError."""
    if not target.servers:
        raise ConfigError("a replay goes into running members: the target needs servers")
    if not replay_id:
        raise ConfigError("a replay needs an id, by which a repetition finds its earlier rows")


def refuse_own_log(log: OpenLog, source: Place, target: Place, *, again: bool) -> None:
    """Raises ConfigError."""
    if again or not log.cluster_id:
        return
    with connected(target) as into:
        if log.cluster_id == into.layout().cluster_id:
            raise ConfigError(
                f"{source.name} is the same log as {target.servers}: its rows would be there twice."
                " If you want that: quorumlog pipeline replay --again, or again=True"
            )


def refuse_other_counting(into: LedgerClient, replay_id: str) -> None:
    """Raises ConfigError if Spark has begun this replay."""
    with suppress(ProducerExpired):
        into.producer(replay_id + SPARK_ROWS)
        raise ConfigError(
            f"{replay_id!r} was begun by Spark, which numbers its rows differently: finish it with"
            " Spark, or use another id for this replay"
        )


def _rows(
    batches: Iterator[EntryBatch], first: int, stop: int, transform: Transform | None, origin: str
) -> Iterator[tuple[int, pa.Array]]:
    for batch in linked(batches, first, stop, None, origin):
        rows: pa.RecordBatch | None = record_batch_of(batch)
        if transform is not None:
            rows = transform(rows)
        bodies = pa.array([], pa.binary()) if rows is None else rows.column("body")
        yield batch.last_index + 1, bodies


def cut(bodies: pa.Array) -> Iterator[pa.Array]:
    """Into batches that fit one append."""
    at = 0
    while at < len(bodies):
        part = bodies.slice(at, BATCH_RECORDS)
        while part.nbytes > BATCH_BYTES and len(part) > 1:
            part = part.slice(0, (len(part) + 1) // 2)
        yield part
        at += len(part)


class _Pace:
    """So many rows a second, in the long run."""

    def __init__(self, rows_per_s: float) -> None:
        self._rows_per_s = rows_per_s
        self._next_s = time.monotonic()

    def wait(self, rows: int) -> None:
        if self._rows_per_s > 0:
            time.sleep(max(self._next_s - time.monotonic(), 0))
            self._next_s = max(self._next_s, time.monotonic() - 1) + rows / self._rows_per_s


def parsed_filter(expression: str) -> tuple[str, str]:
    """(`contains` or `prefix`, text). Raises ConfigError."""
    form, _, text = expression.partition(":")
    if form not in ("contains", "prefix") or not text:
        raise ConfigError(f"a filter must be contains:TEXT or prefix:TEXT, not {expression!r}")
    return form, text


def filter_of(expression: str) -> Transform:
    """`contains:TEXT` or `prefix:TEXT`: bodies that do. Raises ConfigError."""
    import pyarrow.compute as pc

    form, text = parsed_filter(expression)
    kernels = {"contains": pc.match_substring, "prefix": pc.starts_with}
    return lambda rows: rows.filter(kernels[form](rows.column("body"), text.encode()))
