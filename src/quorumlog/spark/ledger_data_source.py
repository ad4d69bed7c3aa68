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
from quorumlog.spark.messages.message_options import STREAM_OPTIONS as MESSAGE_STREAM_OPTIONS
from quorumlog.spark.messages.message_options import (
    VIEW,
    MessageOptions,
    is_message_view,
    message_schema,
)
from quorumlog.spark.messages.message_stream import MessageStreamReader, message_reader
from quorumlog.spark.options import DEFAULT_COLUMNS, STREAM_OPTIONS, LedgerOptions, spark_schema_of
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
        self._message_options: MessageOptions | None = None
        self.views_messages = is_message_view(options)
        self._entry_options = {key: value for key, value in options.items() if key.lower() != VIEW}
        self._ledger_options: LedgerOptions | None = None
        try:
            if self.views_messages:
                self._message_options = MessageOptions.parse(options)
            else:
                self._ledger_options = LedgerOptions.parse(self._entry_options)
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
    def message_options(self) -> MessageOptions | None:
        """None: entries are read, not messages. Raises ConfigError."""
        if not self.views_messages:
            return None
        return self._message_options or MessageOptions.parse(self.options)

    @property
    def ledger_options(self) -> LedgerOptions:
        """To read with; raises ConfigError."""
        return self._ledger_options or LedgerOptions.parse(self._entry_options)

    @in_short
    def schema(self) -> StructType:
        if self.message_options is not None:
            return message_schema(self.message_options.columns)
        options = self.ledger_options
        default = ("group", *DEFAULT_COLUMNS) if options.names_several else DEFAULT_COLUMNS
        return spark_schema_of(options.columns or default)

    @in_short
    def reader(self, schema: StructType) -> DataSourceReader:
        views_messages = self.message_options is not None
        for name in MESSAGE_STREAM_OPTIONS if views_messages else STREAM_OPTIONS:
            if name.lower() in (key.lower() for key in self.options):
                raise ConfigError(f"option {name} is for spark.readStream; spark.read reads all at once")
        if self.message_options is not None:
            return message_reader(self.message_options, schema)
        reader = PushdownReader if self.ledger_options.pushdown else LedgerBatchReader
        return reader(self.ledger_options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            if self.message_options is not None:
                return MessageStreamReader(self.message_options, schema)
            return LedgerStreamReader(self.ledger_options, schema)
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
