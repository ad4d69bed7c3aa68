"""Shared by batch and streaming queries: planning a range in a process of the driver, and reading a
partition in a worker. Both run without a JVM."""

from __future__ import annotations

import gc
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from quorumlog.append_times import AppendTimes
from quorumlog.batch import EntryBatch
from quorumlog.errors import IndexOutOfRange
from quorumlog.spark.options import (
    DEFAULT_COLUMNS,
    AppendedAt,
    IndexRange,
    LedgerOptions,
    LogBounds,
    Offset,
    RowEncoder,
    StatedBound,
    check_schema,
    resolve,
    skip_lost_entries,
    spark_schema_of,
)
from quorumlog.spark.partitions import LedgerPartition, RangeCheck, plan, with_chains
from quorumlog.spark.short_errors import EXPECTED, hide_traceback
from quorumlog.spark.sources.ledger_source import LedgerSource, open_source, served_groups

SourceOpener = Callable[[LedgerOptions], LedgerSource]
GroupFinder = Callable[[LedgerOptions], Iterable[str]]
"""The names of all groups."""


def planned(
    options: LedgerOptions, source: LedgerSource, bounds: LogBounds, index_range: IndexRange
) -> list[LedgerPartition]:
    """The partitions of a range. `bounds`: the latest ones of `source`. Raises LedgerDataLoss if some
    entries are deleted meanwhile and `failOnDataLoss` is true."""
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
    """The part of the range that is not deleted. Raises LedgerDataLoss if some entries are deleted
    and `failOnDataLoss` is true."""
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
    return bisect_left(range(high), time_ms, low, high, key=source.time_ms_at)


def stated_range(options: LedgerOptions, source: LedgerSource, bounds: LogBounds) -> IndexRange:
    """The entries that the options of a query mean. Raises as `resolve`."""

    def offset_of(stated: StatedBound) -> Offset:
        if isinstance(stated, AppendedAt):
            return index_from(source, bounds.begin_index, bounds.stop_index, stated.time_ms)
        assert isinstance(stated, int | str), f"{stated!r} of a query that reads one group"
        return stated

    return resolve(
        offset_of(options.starting),
        offset_of(options.ending),
        bounds,
        fail_on_data_loss=options.fail_on_data_loss,
    )


class Encoder(Protocol):
    """Makes rows from entries, in a task."""

    @property
    def needs_bodies(self) -> bool: ...

    @property
    def has_times(self) -> bool: ...

    def rows(self, batch: EntryBatch, times: AppendTimes | None) -> Iterator[pa.RecordBatch]:
        """Rows of the entries, no batch empty. `times`: append times, if it `has_times`."""


class EntryView:
    """The rows that a query makes from entries: here one row for each entry. Pickled with the reader."""

    def schema_of(self, options: LedgerOptions) -> StructType:
        default = ("group", *DEFAULT_COLUMNS) if options.names_several else DEFAULT_COLUMNS
        return spark_schema_of(options.columns or default)

    def check_schema(self, schema: StructType, options: LedgerOptions) -> None:
        """Raises ConfigError unless `schema` has only columns of the view."""
        check_schema(schema, options.columns)

    def check_log(self, options: LedgerOptions) -> None:
        """Called when a stream begins. Raises the errors of `planned`."""

    def planned(
        self, options: LedgerOptions, parts: Sequence[LedgerPartition]
    ) -> Sequence[LedgerPartition]:
        """Called in a process of the driver: the partitions, with the data that the view's tasks
        need, without those that have no rows."""
        return parts

    def encoder(self, options: LedgerOptions, schema: StructType, partition: LedgerPartition) -> Encoder:
        return RowEncoder(schema, partition.group)


ENTRY_VIEW = EntryView()


def read_partition(
    options: LedgerOptions,
    schema: StructType,
    opener: SourceOpener,
    partition: InputPartition,
    view: EntryView = ENTRY_VIEW,
) -> Iterator[pa.RecordBatch]:
    """Raises RangeMismatch unless the partition is complete and undamaged."""
    if not isinstance(partition, LedgerPartition):
        # Spark puts an empty partition of its own in place of an empty plan.
        assert partition.value is None, f"a partition of another source: {partition}"
        return
    encoder = view.encoder(options, schema, partition)
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
    """Called after the first task of a process: exclude imported modules from garbage collection.
    Spark collects garbage after each task and plan, which takes about 20 ms, most of it for these
    modules."""
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name == "pyspark.daemon":  # a worker of Spark's
        gc.freeze()


class LogReader:
    """What a batch and a stream have in common. Pickled for the workers, with nothing open."""

    def __init__(
        self,
        options: LedgerOptions,
        schema: StructType,
        opener: SourceOpener = open_source,
        served: GroupFinder = served_groups,
        view: EntryView = ENTRY_VIEW,
    ) -> None:
        """Raises ConfigError if `schema` is not made of our columns."""
        view.check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._opener = opener
        self._served = served
        self._view = view

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `read_partition`."""
        return read_partition(self._options, self._schema, self._opener, partition, self._view)


def _with_chains(partition: LedgerPartition, source: LedgerSource) -> LedgerPartition:
    try:
        return with_chains(partition, source.points_of)
    except IndexOutOfRange:  # gone meanwhile: what is read says so, and is refused or left out
        return replace(partition, previous_chain=None, last_chain=None)


def _rows(source: LedgerSource, check: RangeCheck, encoder: Encoder) -> Iterator[pa.RecordBatch]:
    with closing(source.batches(check, heads=not encoder.needs_bodies)) as batches:
        times, next_index = None, -1
        for batch in batches:
            if encoder.has_times and batch.first_index != next_index:
                # The first one, and after entries that are gone: a mark may have been among them.
                times = AppendTimes(source.time_ms_at(batch.first_index), source.clock_resets())
            next_index = batch.last_index + 1
            yield from encoder.rows(batch, times)
        check.finish()
