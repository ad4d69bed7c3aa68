"""What batch and streaming queries share: a range planned beside the driver, and a partition of it read
in a worker. Both run without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from quorumlog.append_times import AppendTimes
from quorumlog.spark.offsets import IndexRange, LogBounds
from quorumlog.spark.options import LedgerOptions
from quorumlog.spark.partitions import LedgerPartition, plan
from quorumlog.spark.range_check import RangeCheck
from quorumlog.spark.rows import RowEncoder
from quorumlog.spark.sources.ledger_source import LedgerSource

SourceOpener = Callable[[LedgerOptions], LedgerSource]


def planned(
    options: LedgerOptions, source: LedgerSource, bounds: LogBounds, index_range: IndexRange
) -> list[LedgerPartition]:
    """`bounds` are those that `source` has just told."""
    return plan(
        bounds.group,
        index_range,
        source.point_of,
        begin_index=bounds.begin_index,
        min_partitions=options.min_partitions,
        partition_bytes=options.partition_bytes,
        max_records=options.max_records_per_partition,
        readers=source.readers(),
    )


def read_partition(
    options: LedgerOptions, schema: StructType, opener: SourceOpener, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Raises RangeMismatch unless the partition is complete and undamaged."""
    if not isinstance(partition, LedgerPartition):
        # Spark puts an empty partition of its own in place of an empty plan.
        assert partition.value is None, f"a partition of another source: {partition}"
        return
    encoder = RowEncoder(schema, partition.group)
    check = RangeCheck(partition)
    with closing(opener(options)) as source, closing(source.batches(check)) as batches:
        times, next_index = None, -1
        for batch in batches:
            if encoder.has_times and batch.first_index != next_index:
                # The first one, and behind entries that are gone: a mark may have been among them.
                times = AppendTimes(source.time_ms_at(batch.first_index))
            next_index = batch.last_index + 1
            rows = encoder.encode(batch, times)
            if rows.num_rows:
                yield rows
        check.finish()
