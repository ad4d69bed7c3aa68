"""LedgerBatchReader: a query's range, planned next to the driver and read in the workers.

The reader is pickled from one to the other, so it holds the options and nothing open. It also runs
without a JVM.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TypeVar

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from quorumlog.append_times import milliseconds_of
from quorumlog.arrow import TIME_COLUMN
from quorumlog.spark.options import IndexRange, LedgerOptions
from quorumlog.spark.reading import (
    LogReader,
    index_from,
    keep_modules,
    planned,
    stated_range,
)
from quorumlog.spark.short_errors import in_short

_logger = logging.getLogger(__name__)


class LedgerBatchReader(LogReader, DataSourceReader):
    """Reads the entries committed when the query was planned."""

    _first_index = 0
    _stop_index = sys.maxsize
    """What pushed filters leave of the log."""
    _begin_ms: int | None = None
    _end_ms: int | None = None
    """The same by append time, in milliseconds since 1970; the end is exclusive."""
    _pushed: Sequence[str] = ()

    @in_short
    def partitions(self) -> list[InputPartition]:
        """Raises IndexOutOfRange, LedgerDataLoss or ConfigError if the range cannot be read."""
        options = self._options
        if options.group_pattern:
            options = options.subscribed_to(self._served(options))
        parts = [part for each in options.by_group() for part in self._planned(each)]
        keep_modules()
        return parts

    def _planned(self, options: LedgerOptions) -> Sequence[InputPartition]:
        with closing(self._opener(options)) as source:
            bounds = source.bounds()
            first_index, stop_index = self._narrowed(stated_range(options, source, bounds))
            if self._begin_ms is not None:
                first_index = index_from(source, first_index, stop_index, self._begin_ms)
            if self._end_ms is not None:
                stop_index = index_from(source, first_index, stop_index, self._end_ms)
            parts = planned(options, source, bounds, IndexRange(first_index, stop_index))
            _logger.info(
                "group %r: offsets %d to %d of %d to %d, %d tasks; pushed filters: %s",
                *(bounds.group, first_index, stop_index, bounds.begin_index, bounds.stop_index),
                *(len(parts), ", ".join(self._pushed) or "none"),
            )
        return self._view.planned(options, parts)

    def _narrowed(self, stated: IndexRange) -> IndexRange:
        first_index = max(stated.first_index, self._first_index)
        stop_index = min(stated.stop_index, self._stop_index)
        return IndexRange(min(first_index, stop_index), stop_index)


class PushdownReader(LedgerBatchReader):
    """Also takes conditions on `index` over from Spark. A class of its own, since Spark refuses every
    reader that overrides `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Returns the filters that Spark must still apply."""
        left = [each for each in filters if not self._take(each)]
        self._pushed = [str(each) for each in filters if each not in left or self._narrow(each)]
        return left

    def _take(self, condition: Filter) -> bool:
        """True: the range alone now answers it."""
        if isinstance(condition, IsNotNull):
            [name] = condition.attribute  # as the user's schema spells it
            return name.lower() != TIME_COLUMN  # no other column of ours is ever null
        span = span_of(condition, "index", int)
        if span is None:
            return False
        low, high = span
        if low is not None:
            self._first_index = max(self._first_index, low + isinstance(condition, GreaterThan))
        if high is not None:
            stop_index = high + (not isinstance(condition, LessThan))
            self._stop_index = min(self._stop_index, max(stop_index, 0))
        return True

    def _narrow(self, condition: Filter) -> bool:
        """True: a condition on the append time, by which less of the log is read. Spark applies it all
        the same: its times are finer than ours."""
        span = times_of(condition, TIME_COLUMN)
        if span is None:
            return False
        begin_ms, last_ms = span
        if begin_ms is not None:
            self._begin_ms = max(self._begin_ms or 0, begin_ms)
        if last_ms is not None:
            end_ms = last_ms + 1
            self._end_ms = end_ms if self._end_ms is None else min(self._end_ms, end_ms)
        return True


V = TypeVar("V")


def span_of(condition: Filter, column: str, kind: type[V]) -> tuple[V | None, V | None] | None:
    """The lowest and the highest value of the column that a comparison lets through, both inclusive,
    also of `<` and `>`; of an end None: it is open. None: another condition."""
    span: tuple[V | None, V | None]
    match condition:
        case EqualTo((name,), value):
            span = value, value
        case GreaterThan((name,), value) | GreaterThanOrEqual((name,), value):
            span = value, None
        case LessThan((name,), value) | LessThanOrEqual((name,), value):
            span = None, value
        case _:
            return None
    return span if name == column and isinstance(value, kind) else None


def times_of(condition: Filter, column: str) -> tuple[int | None, int | None] | None:
    """The same of a time, in milliseconds since 1970, rounded down. Of one without a zone Spark means
    its own zone, which is this process's."""
    span = span_of(condition, column, datetime)
    if span is None:
        return None
    low, high = (None if time is None else milliseconds_of(time.astimezone(UTC)) for time in span)
    return low, high
