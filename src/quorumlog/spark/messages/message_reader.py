"""MessageReader: a query of messages, planned beside the driver and read in the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from quorumlog.spark.messages.message_options import MessageOptions
from quorumlog.spark.messages.message_rows import MessageRows, check_message_schema
from quorumlog.spark.messages.message_sources import MessagePartition, SmallQueues, source_of
from quorumlog.spark.short_errors import EXPECTED, hide_traceback, in_short


def message_reader(options: MessageOptions, schema: StructType) -> DataSourceReader:
    return (PushdownMessageReader if options.pushdown else MessageReader)(options, schema)


class MessageReader(DataSourceReader):
    def __init__(self, options: MessageOptions, schema: StructType) -> None:
        """Raises ConfigError if `schema` is not made of our columns."""
        check_message_schema(schema)
        self.options = options
        self._schema = schema

    @in_short
    def partitions(self) -> list[InputPartition]:
        return [*source_of(self.options).partitions()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_messages(self.options, self._schema, partition)


def read_messages(
    options: MessageOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """In a task. Raises what the source raises."""
    if not isinstance(partition, MessagePartition | SmallQueues):
        # Spark puts an empty partition of its own in place of an empty plan.
        assert partition.value is None, f"a partition of another source: {partition}"
        return
    rows, source = MessageRows(schema), source_of(options)
    try:
        for part in partition.parts if isinstance(partition, SmallQueues) else (partition,):
            for records in source.read(part):
                yield rows.encode(records)
    except EXPECTED:
        hide_traceback()
        raise


class PushdownMessageReader(MessageReader):
    """Takes conditions on `topic` and `store_time` to choose what is read at all. Spark applies them
    again. A class of its own, since Spark refuses every reader that overrides `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for each in filters:
            match each:
                case EqualTo(("topic",), str(topic)):
                    self._keep_topics((topic,))
                case In(("topic",), topics):
                    self._keep_topics(tuple(str(topic) for topic in topics))
                case GreaterThan(("store_time",), value) | GreaterThanOrEqual(("store_time",), value):
                    if isinstance(value, datetime):
                        begin_ms = max(self.options.begin_ms, _milliseconds(value))
                        self.options = replace(self.options, begin_ms=begin_ms)
                case LessThan(("store_time",), value) | LessThanOrEqual(("store_time",), value):
                    if isinstance(value, datetime):
                        end_ms = min(self.options.end_ms, _milliseconds(value) + 1)
                        self.options = replace(self.options, end_ms=end_ms)
                case _:
                    pass
        return filters

    def _keep_topics(self, topics: tuple[str, ...]) -> None:
        before = self.options.topics
        kept = tuple(t for t in topics if t in before) if before else topics
        self.options = replace(self.options, topics=kept or ("",))


def _milliseconds(moment: datetime) -> int:
    return int(moment.astimezone(UTC).timestamp() * 1000)
