"""What Spark calls for `format("quorumlog")`."""

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
from quorumlog.spark.options import STREAM_OPTIONS, LedgerOptions
from quorumlog.spark.rows import DEFAULT_COLUMNS, spark_schema_of
from quorumlog.spark.sink.sink_options import SINK_ONLY, SinkOptions
from quorumlog.spark.sink.writers import LedgerBatchWriter, LedgerStreamWriter
from quorumlog.spark.stream_reader import LedgerStreamReader

FORMAT_NAME = "quorumlog"


class LedgerDataSource(DataSource):
    """A replicated log as a table, one row per entry; what is written to it is appended, once.

        spark.read.format("quorumlog").option("servers", "127.0.0.1:20911").load()
        spark.read.format("quorumlog").schema("index BIGINT, body BINARY").load("/data/n0")
        spark.readStream.format("quorumlog").option("servers", "127.0.0.1:20911").load()
        df.write.format("quorumlog").option("servers", "127.0.0.1:20911").mode("append").save()
        df.writeStream.format("quorumlog").options(servers="127.0.0.1:20911", producerId="copy").start()

    Options: docs/spark.md. Spark makes an instance beside the driver for each `load()`, so a wrong
    option is reported there and not by a task.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raises ConfigError naming the option."""
        super().__init__(options)
        self._ledger_options: LedgerOptions | None = None
        try:
            self._ledger_options = LedgerOptions.parse(options)
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
    def ledger_options(self) -> LedgerOptions:
        """To read with; raises ConfigError."""
        return self._ledger_options or LedgerOptions.parse(self.options)

    def schema(self) -> StructType:
        return spark_schema_of(self.ledger_options.columns or DEFAULT_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        for name in STREAM_OPTIONS:
            if name.lower() in (key.lower() for key in self.options):
                raise ConfigError(f"option {name} is for spark.readStream; spark.read reads all at once")
        reader = PushdownReader if self.ledger_options.pushdown else LedgerBatchReader
        return reader(self.ledger_options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return LedgerStreamReader(self.ledger_options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return LedgerBatchWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        return LedgerStreamWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)
