"""The data source behind `format("quorumlog")`."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from quorumlog.errors import ConfigError
from quorumlog.spark.batch_reader import LedgerBatchReader, PushdownReader
from quorumlog.spark.kafka.kafka_view import KafkaOptions
from quorumlog.spark.messages.message_options import STREAM_OPTIONS as MESSAGE_STREAM_OPTIONS
from quorumlog.spark.messages.message_options import MessageOptions, message_schema
from quorumlog.spark.messages.message_stream import MessageStreamReader, message_reader
from quorumlog.spark.options import (
    ENTRIES,
    KAFKA,
    MESSAGES,
    STREAM_OPTIONS,
    VIEW,
    VIEWS,
    LedgerOptions,
    one_of,
)
from quorumlog.spark.reading import ENTRY_VIEW, EntryView
from quorumlog.spark.row_bodies import SINK_ONLY, SinkOptions
from quorumlog.spark.short_errors import EXPECTED, in_short
from quorumlog.spark.streaming import LedgerStreamReader, RefusedStream
from quorumlog.spark.writers import LedgerBatchWriter, LedgerStreamWriter

FORMAT_NAME = "quorumlog"


class LedgerDataSource(DataSource):
    """A replicated log as a table, one row per entry; written rows are appended, each once.

        spark.read.format("quorumlog").option("servers", "127.0.0.1:20911").load()
        spark.read.format("quorumlog").schema("index BIGINT, body BINARY").load("/data/n0")
        spark.read.format("quorumlog").option("view", "messages").load("/data/store")
        spark.read.format("quorumlog").options(view="kafka", servers="127.0.0.1:20911").load()
        spark.readStream.format("quorumlog").option("servers", "127.0.0.1:20911").load()
        df.write.format("quorumlog").option("servers", "127.0.0.1:20911").mode("append").save()
        df.writeStream.format("quorumlog").options(servers="127.0.0.1:20911", producerId="copy").start()

    Options: docs/spark.md. Spark makes an instance next to the driver for each `load()`, so a wrong
    option is reported there and not by a task.
    """

    @in_short
    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raises ConfigError naming the option."""
        super().__init__(options)
        views = [str(value) for key, value in options.items() if key.lower() == VIEW]
        self._view = one_of(*VIEWS)(VIEW, views[0]) if views else ENTRIES
        self._parsed: MessageOptions | KafkaOptions | LedgerOptions | None = None
        try:
            self._parsed = self.read_options
        except ConfigError as error:
            # Spark does not say here whether it will read or write.
            try:
                SinkOptions.parse(options)
            except ConfigError as sink_error:
                is_for_sink = not SINK_ONLY.isdisjoint(key.lower() for key in options)
                raise (sink_error if is_for_sink else error) from None

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    @property
    def read_options(self) -> MessageOptions | KafkaOptions | LedgerOptions:
        """To read with, by view; raises ConfigError."""
        if self._parsed is not None:
            return self._parsed
        if self._view == MESSAGES:
            return MessageOptions.parse(self.options)
        if self._view == KAFKA:
            return KafkaOptions.parse(self.options)
        return LedgerOptions.parse(
            {key: value for key, value in self.options.items() if key.lower() != VIEW}
        )

    @in_short
    def schema(self) -> StructType:
        options = self.read_options
        if isinstance(options, MessageOptions):
            return message_schema(options.columns)
        ledger, view = _log_of(options)
        return view.schema_of(ledger)

    @in_short
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.read_options
        is_of_messages = isinstance(options, MessageOptions)
        for name in MESSAGE_STREAM_OPTIONS if is_of_messages else STREAM_OPTIONS:
            if name.lower() in (key.lower() for key in self.options):
                raise ConfigError(f"option {name} is for spark.readStream; spark.read reads all at once")
        if isinstance(options, MessageOptions):
            return message_reader(options, schema)
        ledger, view = _log_of(options)
        return (PushdownReader if ledger.pushdown else LedgerBatchReader)(ledger, schema, view=view)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            options = self.read_options
            if isinstance(options, MessageOptions):
                return MessageStreamReader(options, schema)
            ledger, view = _log_of(options)
            return LedgerStreamReader(ledger, schema, view=view)
        except EXPECTED as error:
            return RefusedStream(error)

    @in_short
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return LedgerBatchWriter(SinkOptions.to_write(self.options), schema, overwrite=overwrite)

    @in_short
    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        return LedgerStreamWriter(SinkOptions.to_write(self.options), schema, overwrite=overwrite)


def _log_of(options: KafkaOptions | LedgerOptions) -> tuple[LedgerOptions, EntryView]:
    return (options, ENTRY_VIEW) if isinstance(options, LedgerOptions) else options
