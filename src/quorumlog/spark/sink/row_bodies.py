"""RowBodies: rows as entries, an Arrow batch at a time.

raw     the only column: a row is an entry, its value the body
json    a row is an entry, a JSON object of its columns, with maps as objects (Python per row)
arrow   up to `rowsPerEntry` rows are an entry, an Arrow IPC stream of their own
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructType

from quorumlog.arrow import batch_of_bodies
from quorumlog.batch import EntryBatch
from quorumlog.errors import ConfigError
from quorumlog.spark.sink.row_hashes import row_hashes
from quorumlog.spark.sink.sink_options import ARROW, JSON, RAW, SinkOptions
from quorumlog.staging import RowDigest

_json = msgspec.json.Encoder()


class Packed(NamedTuple):
    batch: EntryBatch
    digest: RowDigest
    rows: int


class RowBodies:
    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        """Raises ConfigError."""
        self._format = options.body_format or RAW
        self._batch_bytes = options.batch_bytes
        self._rows_per_entry = options.rows_per_entry
        if self._format == RAW and not _is_body(schema):
            raise ConfigError(_NOT_RAW.format(", ".join(schema.fieldNames()) or "none"))

    def pack(self, rows: pa.RecordBatch) -> Iterator[Packed]:
        """In their order, about `batchBytes` at a time. Raises ConfigError for a body that is null."""
        if rows.num_rows == 0:
            return
        if self._format == ARROW:
            yield from self._as_arrow(rows)
            return
        if self._format == JSON:
            bodies = pa.array(list(map(_json.encode, _rows_as_python(rows))), pa.binary())
        else:
            bodies = rows.column(0)
            if bodies.null_count:
                raise ConfigError(
                    f"column {rows.schema.names[0]} is null in {bodies.null_count} of"
                    f" {rows.num_rows} rows, and an entry needs a body: leave them out (df.dropna), or"
                    " use option bodyFormat=json"
                )
            bodies = bodies.cast(pa.binary())
        for part in parts_of(batch_of_bodies(bodies), self._batch_bytes):
            yield Packed(part, RowDigest.of_entries(part), part.count)

    def _as_arrow(self, rows: pa.RecordBatch) -> Iterator[Packed]:
        for first in range(0, rows.num_rows, self._rows_per_entry):
            part = rows.slice(first, self._rows_per_entry)
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, part.schema) as writer:
                writer.write_batch(part)
            digest = RowDigest.of_hashes(row_hashes(part))
            yield Packed(EntryBatch.from_bodies([stream.getvalue()]), digest, part.num_rows)


def parts_of(batch: EntryBatch, batch_bytes: int) -> Iterator[EntryBatch]:
    """Of about so many bytes, with one entry at least in each."""
    if batch.total_bytes <= batch_bytes:
        yield batch
        return
    stops = batch.starts + batch.sizes
    first = 0
    while first < batch.count:
        limit = int(batch.starts[first]) + batch_bytes
        stop = max(int(np.searchsorted(stops, limit, side="right")), first + 1)
        yield batch.slice(first, stop)
        first = stop


def _rows_as_python(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Maps are objects, as Spark's to_json writes them. Releases of Arrow before 20 do not know how."""
    if not any(map(_has_map, rows.schema.types)):
        return cast("list[dict[str, Any]]", rows.to_pylist())
    return cast("list[dict[str, Any]]", rows.to_pylist(maps_as_pydicts="strict"))


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(number).type) for number in range(kind.num_fields))


def _is_body(schema: StructType) -> bool:
    """With more columns the rest would be lost in silence."""
    return len(schema) == 1 and isinstance(schema[0].dataType, BinaryType | StringType)


_NOT_RAW = (
    "rows have the columns {}, and a body is one column of type BINARY or STRING: select it, as in"
    " df.select('body'), or write all columns with option bodyFormat=json or bodyFormat=arrow"
)
