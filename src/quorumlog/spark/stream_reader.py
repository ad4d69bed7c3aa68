"""LedgerStreamReader: a streaming query's offsets and micro-batches.

An offset is `{"<group>": next index}`. Spark takes one that goes back without a word, so that is looked
after here. One reader lives beside the driver for as long as the query runs; the workers get copies of
it, with the options and nothing open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quorumlog.errors import ConfigError
from quorumlog.spark.offsets import IndexRange, LedgerDataLoss, LogBounds, resolve, skip_lost_entries
from quorumlog.spark.options import LedgerOptions
from quorumlog.spark.reading import SourceOpener, planned, read_partition
from quorumlog.spark.rows import check_schema
from quorumlog.spark.sources.ledger_source import LedgerSource, open_source

POLL_S = 0.1
"""So long a query that has everything waits for new entries before Spark asks again."""
_PAUSE_S = 0.01


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self, options: LedgerOptions, schema: StructType, opener: SourceOpener = open_source
    ) -> None:
        """Raises ConfigError if `schema` is not made of our columns, or an option is for batches."""
        check_schema(schema, options.columns)
        if options.path:
            raise ConfigError(
                "a stream reads from running members (option servers); a directory (option path) does"
                " not grow: read it with spark.read"
            )
        if options.ending_offsets != "latest":
            raise ConfigError("option endingOffsets is for spark.read; a stream has no end")
        self._options = options
        self._schema = schema
        self._opener = opener
        self._target: int | None = None
        """Where a query ends that reads what is available now."""
        self._bounds: LogBounds | None = None
        """As they were told last."""
        self._batched_at = time.monotonic()
        """When there was something for a micro-batch last."""

    # ---------------------------------------------------------------- offsets

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Raises LedgerDataLoss, IndexOutOfRange, ConfigError as a batch query does."""
        options = self._options
        with closing(self._opener(options)) as source:
            bounds = source.bounds()
            if options.starting_timestamp_ms >= 0:
                first_index = source.index_at(options.starting_timestamp_ms)
                return {bounds.group: min(max(first_index, bounds.begin_index), bounds.stop_index)}
        stated = resolve(
            options.starting_offsets, "latest", bounds, fail_on_data_loss=options.fail_on_data_loss
        )
        return {bounds.group: stated.first_index}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The options' limits, of which Spark takes one; `latestOffset` applies them all."""
        options = self._options
        if options.max_offsets:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes:
            return ReadMaxBytes(options.max_bytes)
        if options.min_offsets:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Raises LedgerDataLoss if the log ends below `start`, Unreachable after `timeoutMs`."""
        group, first_index = self._only(start)
        polling_ends = time.monotonic() + POLL_S
        with closing(self._opener(self._options)) as source:
            while True:
                bounds = self._told(source, first_index)
                if bounds.group != group:
                    raise ConfigError(
                        f"the checkpoint is of group {group!r}, the option names {bounds.group!r}: a"
                        " query keeps its group, another one needs a checkpoint of its own"
                    )
                if bounds.stop_index < first_index:
                    raise LedgerDataLoss(
                        f"the checkpoint goes on at offset {first_index}, and group {group!r} ends at"
                        f" {bounds.stop_index}: these are the servers of another log, or of one that was"
                        " restored to an earlier point",
                        ledger_begin_index=bounds.begin_index,
                        committed_index=bounds.stop_index - 1,
                    )
                stop_index = self._limited(source, bounds, first_index, limit)
                if stop_index > first_index:
                    self._batched_at = time.monotonic()
                if (
                    stop_index > first_index
                    or self._target is not None
                    or time.monotonic() >= polling_ends
                ):
                    return {group: stop_index}
                time.sleep(_PAUSE_S)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """Where the log ended when it was asked last: with the offset of a micro-batch it is the lag."""
        return None if self._bounds is None else {self._bounds.group: self._bounds.stop_index}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with closing(self._opener(self._options)) as source:
            self._target = self._told(source).stop_index

    def _told(self, source: LedgerSource, reached: int = 0) -> LogBounds:
        self._bounds = source.bounds(reached)
        return self._bounds

    def _only(self, offset: dict[str, Any]) -> tuple[str, int]:
        [(group, index)] = offset.items()
        return group, int(index)

    def _limited(
        self, source: LedgerSource, bounds: LogBounds, first_index: int, limit: ReadLimit
    ) -> int:
        """Where the micro-batch from `first_index` on ends; there, if it has to wait."""
        options = self._options
        stop_index = bounds.stop_index
        if self._target is not None:
            stop_index = max(first_index, min(stop_index, self._target))
        if isinstance(limit, ReadAllAvailable):  # a trigger that wants everything at once
            return stop_index
        if self._target is None and stop_index - first_index < options.min_offsets:
            waited_ms = (time.monotonic() - self._batched_at) * 1000
            if waited_ms < options.max_trigger_delay_ms:
                return first_index
        if options.max_offsets:
            stop_index = min(stop_index, first_index + options.max_offsets)
        if options.max_bytes and stop_index > first_index:
            stop_index = _within_bytes(source, first_index, stop_index, bounds, options.max_bytes)
        return stop_index

    # ---------------------------------------------------------------- micro-batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Also of a range that was planned before a restart. Raises LedgerDataLoss if some of it is
        gone and `failOnDataLoss` is true."""
        group, first_index = self._only(start)
        _, stop_index = self._only(end)
        assert first_index <= stop_index, f"a micro-batch from {first_index} to {stop_index}"
        if first_index == stop_index:
            return []
        options = self._options
        with closing(self._opener(options)) as source:
            bounds = self._told(source)
            assert bounds.group == group, (bounds, group)
            if first_index < bounds.begin_index:
                first_index = skip_lost_entries(
                    first_index,
                    min(bounds.begin_index, stop_index),
                    bounds,
                    fail_on_data_loss=options.fail_on_data_loss,
                )
            return planned(options, source, bounds, IndexRange(first_index, stop_index))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything below `end`: known one micro-batch late, and at a restart."""
        if self._options.reader:
            _, index = self._only(end)
            with closing(self._opener(self._options)) as source:
                source.commit_reader(self._options.reader, index)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `read_partition`."""
        return read_partition(self._options, self._schema, self._opener, partition)


def _within_bytes(
    source: LedgerSource, first_index: int, stop_index: int, bounds: LogBounds, most_bytes: int
) -> int:
    """The highest stop up to which the entries from `first_index` on have at most `most_bytes`; one more
    than `first_index` at least, so that a large entry does not end the query."""
    first_index = max(first_index, bounds.begin_index)
    stop_position = source.point_of(first_index).position + most_bytes
    low, high = first_index + 1, max(stop_index, first_index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        # An entry ends where the next one begins; of the last one nobody says where.
        ends_at = (
            source.point_of(middle).position
            if middle < bounds.stop_index
            else source.point_of(middle - 1).position + 1
        )
        if ends_at <= stop_position:
            low = middle
        else:
            high = middle - 1
    return low
