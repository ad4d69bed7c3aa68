"""LedgerBatchReader: a query's range, planned beside the driver and read in the workers.

The reader is pickled from one to the other, so it holds the options and nothing open. It also runs
without a JVM.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing

import pyarrow as pa
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
from pyspark.sql.types import StructType

from quorumlog.arrow import TIME_COLUMN
from quorumlog.spark.offsets import IndexRange, resolve
from quorumlog.spark.options import LedgerOptions
from quorumlog.spark.reading import SourceOpener, planned, read_partition
from quorumlog.spark.rows import check_schema
from quorumlog.spark.short_errors import in_short
from quorumlog.spark.sources.ledger_source import open_source


class LedgerBatchReader(DataSourceReader):
    """Reads what was committed when the query was planned."""

    def __init__(
        self, options: LedgerOptions, schema: StructType, opener: SourceOpener = open_source
    ) -> None:
        """Raises ConfigError if `schema` is not made of our columns."""
        check_schema(schema, options.columns)
        self._options = options
        self._schema = schema
        self._opener = opener
        self._first_index = 0
        self._stop_index = sys.maxsize
        """What pushed filters leave of the log."""

    @in_short
    def partitions(self) -> list[InputPartition]:
        """Raises IndexOutOfRange, LedgerDataLoss or ConfigError if the range cannot be read."""
        return [part for each in self._options.by_group() for part in self._planned(each)]

    def _planned(self, options: LedgerOptions) -> list[InputPartition]:
        with closing(self._opener(options)) as source:
            bounds = source.bounds()
            stated = resolve(
                options.starting_offsets,
                options.ending_offsets,
                bounds,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            return [*planned(options, source, bounds, self._narrowed(stated))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `read_partition`."""
        return read_partition(self._options, self._schema, self._opener, partition)

    def _narrowed(self, stated: IndexRange) -> IndexRange:
        first_index = max(stated.first_index, self._first_index)
        stop_index = min(stated.stop_index, self._stop_index)
        return IndexRange(min(first_index, stop_index), stop_index)


class PushdownReader(LedgerBatchReader):
    """Also takes conditions on `index` over from Spark. A class of its own, since Spark refuses every
    reader that overrides `pushFilters` unless `spark.sql.python.filterPushdown.enabled` is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Returns the filters that Spark must still apply."""
        return [each for each in filters if not self._take(each)]

    def _take(self, condition: Filter) -> bool:
        """True: the range alone now answers it."""
        if isinstance(condition, IsNotNull):
            return condition.attribute != (TIME_COLUMN,)  # no other column of ours is ever null
        match condition:
            case EqualTo(("index",), int(value)):
                self._keep(value, value + 1)
            case GreaterThan(("index",), int(value)):
                self._keep(value + 1, sys.maxsize)
            case GreaterThanOrEqual(("index",), int(value)):
                self._keep(value, sys.maxsize)
            case LessThan(("index",), int(value)):
                self._keep(0, value)
            case LessThanOrEqual(("index",), int(value)):
                self._keep(0, value + 1)
            case _:
                return False
        return True

    def _keep(self, first_index: int, stop_index: int) -> None:
        self._first_index = max(self._first_index, first_index)
        self._stop_index = min(self._stop_index, max(stop_index, 0))
