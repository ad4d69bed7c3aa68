"""Shared by batch and streaming queries: planning a range next to the driver, and reading a partition in
a worker. Both run without a JVM."""

from __future__ import annotations

import gc
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from quorumlog.append_times import AppendTimes
from quorumlog.errors import IndexOutOfRange
from quorumlog.spark.options import IndexRange, LedgerOptions, LogBounds, RowEncoder, skip_lost_entries
from quorumlog.spark.partitions import LedgerPartition, RangeCheck, plan, with_chains
from quorumlog.spark.short_errors import EXPECTED, hide_traceback
from quorumlog.spark.sources.ledger_source import LedgerSource

SourceOpener = Callable[[LedgerOptions], LedgerSource]
GroupFinder = Callable[[LedgerOptions], Iterable[str]]
"""The names of all groups that there are."""


def planned(
    options: LedgerOptions, source: LedgerSource, bounds: LogBounds, index_range: IndexRange
) -> list[LedgerPartition]:
    """`bounds` are those that `source` has just returned. Raises LedgerDataLoss if some entries are
    deleted meanwhile and `failOnDataLoss` is true."""
    try:
        return plan(
            bounds.group,
            index_range,
            source.points_of,
            begin_index=bounds.begin_index,
            min_partitions=options.min_partitions,
            partition_bytes=options.partition_bytes,
            max_records=options.max_records_per_partition,
            readers=source.readers(),
        )
    except IndexOutOfRange:
        now = source.bounds(bounds.stop_index)
        if now.begin_index <= bounds.begin_index:
            raise
        return planned(options, source, now, what_is_left(options, source, now, index_range))


def what_is_left(
    options: LedgerOptions, source: LedgerSource, bounds: LogBounds, index_range: IndexRange
) -> IndexRange:
    """Raises LedgerDataLoss if some entries are deleted and `failOnDataLoss` is true."""
    first_index, stop_index = index_range
    if first_index >= bounds.begin_index:
        return index_range
    next_index = skip_lost_entries(
        first_index,
        min(bounds.begin_index, stop_index),
        bounds,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    if options.reader:
        source.note_skipped(options.reader, first_index, next_index)
    return IndexRange(next_index, stop_index)


def index_from(source: LedgerSource, low: int, high: int, time_ms: int) -> int:
    """The first index of [low, high) that was appended at this time or later; `high` if there is none.
    Append times rise with the index."""

    def is_later(index: int) -> bool:
        return source.time_ms_at(index) >= time_ms

    return bisect_left(range(high), True, low, high, key=is_later)


def read_partition(
    options: LedgerOptions, schema: StructType, opener: SourceOpener, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Raises RangeMismatch unless the partition is complete and undamaged."""
    if not isinstance(partition, LedgerPartition):
        # Spark puts an empty partition of its own in place of an empty plan.
        assert partition.value is None, f"a partition of another source: {partition}"
        return
    encoder = RowEncoder(schema, partition.group)
    with closing(opener(options.of_group(partition.group))) as source:
        source.follow(partition)
        check = RangeCheck(_with_chains(partition, source))
        try:
            yield from _rows(source, check, encoder)
        except EXPECTED:
            hide_traceback()
            raise
        finally:
            keep_modules()


@cache
def keep_modules() -> None:
    """After the first work of a process. Spark looks for garbage after each task and each plan: some 20
    ms, most of it on imported modules, which stay."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name == "pyspark.daemon":  # a worker of Spark's
        gc.freeze()


def _with_chains(partition: LedgerPartition, source: LedgerSource) -> LedgerPartition:
    try:
        return with_chains(partition, source.points_of)
    except IndexOutOfRange:  # gone meanwhile: what is read says so, and is refused or left out
        return replace(partition, previous_chain=None, last_chain=None)


def _rows(source: LedgerSource, check: RangeCheck, encoder: RowEncoder) -> Iterator[pa.RecordBatch]:
    with closing(source.batches(check, heads=not encoder.needs_bodies)) as batches:
        times, next_index = None, -1
        for batch in batches:
            if encoder.has_times and batch.first_index != next_index:
                # The first one, and after entries that are gone: a mark may have been among them.
                times = AppendTimes(source.time_ms_at(batch.first_index), source.clock_resets())
            next_index = batch.last_index + 1
            rows = encoder.encode(batch, times)
            if rows.num_rows:
                yield rows
        check.finish()
