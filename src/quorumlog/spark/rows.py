"""Entries as Arrow columns, a batch at a time. docs/spark.md says what each column is.

Both digests are BIGINT: they are unsigned 32-bit numbers, which Spark's INT cannot hold.

Arrow batches must match the schema that Spark expects exactly: order, types (`binary`, not
`large_binary`) and nullability. No column but `append_time` is ever null, and saying so makes reading
faster; a user schema may say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from quorumlog.append_times import AppendTimes
from quorumlog.arrow import TIME_COLUMN, record_batch_of
from quorumlog.batch import EntryBatch
from quorumlog.errors import ConfigError
from quorumlog.spark.option_values import as_kafkas

COLUMN_TYPES: dict[str, DataType] = {
    "group": StringType(),
    "index": LongType(),
    "term": LongType(),
    "pos": LongType(),
    "channel": IntegerType(),
    "chain_crc": LongType(),
    "body_crc": LongType(),
    "body": BinaryType(),
    TIME_COLUMN: TimestampType(),
}
COLUMNS = tuple(COLUMN_TYPES)
DEFAULT_COLUMNS = ("index", "term", "body")
"""What an application wrote; the others are for who looks after the log."""

_ARROW_TYPES: dict[DataType, pa.DataType] = {
    StringType(): pa.string(),
    LongType(): pa.int64(),
    IntegerType(): pa.int32(),
    BinaryType(): pa.binary(),
    TimestampType(): pa.timestamp("us", tz="UTC"),
}


def spark_schema_of(columns: Sequence[str]) -> StructType:
    schema = StructType()
    for name in columns:
        schema = schema.add(name, COLUMN_TYPES[name], nullable=name == TIME_COLUMN)
    return schema


def check_schema(schema: StructType, columns: Sequence[str] | None) -> None:
    """Raises ConfigError unless `schema` is some of our columns with our types, and those of the option
    `columns` if that is given."""
    if not schema.fields:
        raise ConfigError(f".schema(...) names no column; choose from {', '.join(COLUMNS)}")
    for field in schema.fields:
        expected = COLUMN_TYPES.get(field.name.lower())
        if expected is None:
            raise ConfigError(
                f".schema(...) names the column {field.name!r}; format quorumlog has"
                f" {', '.join(COLUMNS)}{as_kafkas(field.name, COLUMNS)}"
            )
        if field.dataType != expected:
            raise ConfigError(
                f".schema(...) declares {field.name} as {field.dataType.simpleString().upper()}, but it"
                f" is {expected.simpleString().upper()}; cast it after loading"
            )
    names = [name.lower() for name in schema.fieldNames()]
    if len(set(names)) != len(names):
        raise ConfigError(f".schema(...) names a column twice: {', '.join(names)}")
    if columns is not None and tuple(columns) != tuple(names):
        raise ConfigError(
            f"option columns ({', '.join(columns)}) and .schema(...) ({', '.join(names)}) disagree;"
            " give one of them"
        )


class RowEncoder:
    def __init__(self, schema: StructType, group: str) -> None:
        """Names in `schema` may be spelled as Spark allows, in any case."""
        self._constants = {"group": pa.scalar(group, pa.string())}
        self.arrow_schema = pa.schema(
            [
                pa.field(field.name, _ARROW_TYPES[field.dataType], nullable=field.nullable)
                for field in schema.fields
            ]
        )
        fields = pa.schema([field.with_name(field.name.lower()) for field in self.arrow_schema])
        self._fields = self.arrow_schema if fields == self.arrow_schema else fields

    @property
    def needs_bodies(self) -> bool:
        """Those of time marks too."""
        return "body" in self._fields.names or self.has_times

    @property
    def has_times(self) -> bool:
        return TIME_COLUMN in self._fields.names

    def encode(self, batch: EntryBatch, times: AppendTimes | None = None) -> pa.RecordBatch:
        """The NORMAL entries of `batch`. `times`: if the schema has them."""
        runs = None if times is None else times.runs(batch)
        rows = record_batch_of(batch, self._fields, self._constants, runs)
        if self._fields is self.arrow_schema:
            return rows
        return pa.RecordBatch.from_arrays(rows.columns, schema=self.arrow_schema)
