"""Rows as entries: the options of a sink, the identity of rows, and their bodies."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32
from pyspark.sql.types import BinaryType, StringType, StructType

from quorumlog.arrow import batch_of_bodies
from quorumlog.batch import EntryBatch
from quorumlog.config import DEFAULT_GROUP, MIB
from quorumlog.errors import ConfigError
from quorumlog.header_array import UInt32Array, UInt64Array
from quorumlog.spark.options import (
    ALIASES,
    ENTRIES,
    MESSAGES,
    TIMEOUT_MS,
    VIEW,
    ClientOptions,
    LedgerOptions,
    fields_of,
    name_of,
    number_of,
    one_of,
    option,
    parsers_of,
    servers_of,
)
from quorumlog.staging import BatchRules, RowDigest
from quorumlog.staging.commits import checked_sink_id
from quorumlog.staging.manifests import mixed

_logger = logging.getLogger(__name__)

RAW, JSON, ARROW = "raw", "json", "arrow"
ERROR, KEEP, SKIP = "error", "keep", "skip"


def _sink_id(name: str, text: str) -> str:
    return checked_sink_id(name_of(name, text))


@dataclass(frozen=True, slots=True)
class SinkOptions(ClientOptions):
    """The options of a query that writes."""

    servers: str = option("", servers=servers_of)
    group: str = option(DEFAULT_GROUP, group=name_of, subscribe=name_of)
    producer_id: str = option("", producerId=_sink_id)
    """Under which the log remembers written rows; empty: a generated name for one `df.write`."""
    batch_id: int = option(-1, batchId=number_of(0, 2**62))
    """Of `df.write`; -1: not given."""
    body_format: str = option("", bodyFormat=one_of(RAW, JSON, ARROW))
    """Empty: `raw` if the schema names the body."""
    rows_per_entry: int = option(1000, rowsPerEntry=number_of(1, 1_000_000))
    batch_differs: str = option(ERROR, batchDiffers=one_of(ERROR, KEEP))
    batch_order: str = option(ERROR, batchOrder=one_of(ERROR, SKIP))
    """Of `df.write`: `skip` leaves out batches below the newest committed one."""
    reset_producer: str = option("", resetProducer=name_of)
    batch_bytes: int = option(2 * MIB, batchBytes=number_of(1, 8 * MIB))
    timeout_ms: int = option(30_000, timeoutMs=TIMEOUT_MS)
    view: str = option(ENTRIES, view=one_of(ENTRIES, MESSAGES))
    topic: str = option("", topic=name_of)
    """Of messages; empty: each row names its own."""

    @property
    def writes_messages(self) -> bool:
        return self.view == MESSAGES

    @property
    def rules(self) -> BatchRules:
        return BatchRules(
            keeps_existing=self.batch_differs == KEEP,
            skips_older=self.batch_order == SKIP,
            reset_query_id=self.reset_producer or None,
        )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Raises ConfigError with the option, its value and the valid values."""
        values = fields_of(
            options, parsers_of(cls), "where format quorumlog is written to", READ_ONLY | SPARK_OPTIONS
        )
        parsed = cls(**values)
        if not parsed.servers:
            raise ConfigError(
                "writing format quorumlog needs option servers (host:port,host:port,...): rows go"
                " through running members, and never into a directory"
            )
        if parsed.topic and not parsed.writes_messages:
            raise ConfigError(
                "option topic needs option view = messages; without it rows become entries"
            )
        if parsed.writes_messages and parsed.body_format:
            raise ConfigError(
                "option bodyFormat is for entries only: a message takes column body as it is"
            )
        return parsed

    @staticmethod
    def to_write(options: Mapping[str, str]) -> SinkOptions:
        """Where it is known that rows are written, and nothing is read. Raises ConfigError."""
        for key in options:
            if key.lower() in READ_ONLY and ALIASES.get(key.lower(), key.lower()) not in _NAMES:
                _logger.warning("option %s is for reading, and is ignored where rows are written", key)
        return SinkOptions.parse(options)

    def check_for_batch(self) -> None:
        """Raises ConfigError."""
        if bool(self.producer_id) != (self.batch_id >= 0):
            raise ConfigError(
                "options producerId and batchId go together: a batch that is written again under the"
                " same two is in the log once. Without both, each write is a new one"
            )

    def check_for_stream(self) -> None:
        """Raises ConfigError."""
        if not self.producer_id:
            raise ConfigError(
                "writeStream needs option producerId, a name of this query's own: the log remembers"
                " under it which micro-batches it has"
            )
        if self.batch_id >= 0:
            raise ConfigError("option batchId is for df.write; a streaming query numbers its batches")
        if self.batch_order != ERROR:
            raise ConfigError("option batchOrder is for df.write: an older checkpoint is an error")


_NAMES = frozenset(parsers_of(SinkOptions))
_READING = frozenset(parsers_of(LedgerOptions))
SINK_ONLY = _NAMES - _READING - {VIEW, "topic"}
READ_ONLY = _READING - _NAMES
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "path"})
"""Spark's own, which it hands over with the rest."""


# ----------------------------------------------------------------
# A 64-bit number for each row of any schema, by which it is recognised again: a column at a time.
#
# Rows that are equal have equal numbers, wherever in a batch they stand. Nested columns cost Python per
# row.


Int32Array = npt.NDArray[np.int32]
_NULL = np.uint64(0x6E756C6C)
_BITS_32 = np.uint64(32)
_encoder = msgspec.msgpack.Encoder()


def row_hashes(rows: pa.RecordBatch) -> UInt64Array:
    """Shape (rows,)."""
    total = np.zeros(rows.num_rows, np.uint64)
    for place, column in enumerate(rows.columns):
        total += mixed(mixed(_hashes(column)) + np.uint64(place + 1))
    return total


def _hashes(column: pa.Array) -> UInt64Array:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        hashes = _of_bytes(column.cast(pa.binary()))
    elif pa.types.is_boolean(kind):
        hashes = _of_fixed(column.cast(pa.uint8()), 1)
    elif pa.types.is_decimal128(kind):
        hashes = _of_fixed(column, 16)
    elif pa.types.is_primitive(kind) and kind.bit_width in (8, 16, 32, 64):
        hashes = _of_fixed(column, kind.bit_width // 8)
    else:
        packed = (crc32(_encoder.encode(value)) for value in column.to_pylist())
        hashes = np.fromiter(packed, np.uint64, len(column))
    if column.null_count:
        hashes = np.where(np.asarray(pc.is_valid(column)), hashes, _NULL)
    return hashes


def _of_fixed(column: pa.Array, width: int) -> UInt64Array:
    """Their bits as they are, so that every value counts."""
    values = column.buffers()[1]
    begin, end = column.offset * width, (column.offset + len(column)) * width
    if width == 16:
        pairs = np.frombuffer(values, "<u8", len(column) * 2, begin).reshape(-1, 2)
        both: UInt64Array = mixed(pairs[:, 0]) ^ pairs[:, 1]
        return both
    assert end <= values.size, (end, values.size)
    return np.frombuffer(values, f"<u{width}", len(column), begin).astype(np.uint64)


def _of_bytes(column: pa.Array) -> UInt64Array:
    """CRC and length. The bytes under a null are not looked at."""
    lengths = np.diff(_offsets_of(column)).astype(np.uint64)
    return (crcs_of(column).astype(np.uint64) << _BITS_32) | lengths


def crcs_of(column: pa.Array) -> UInt32Array:
    """Shape (rows,): of a column of `binary`."""
    data = memoryview(column.buffers()[2] or b"")
    bounds = _offsets_of(column).tolist()
    return np.array([crc32(data[start:stop]) for start, stop in pairwise(bounds)], np.uint32)


def _offsets_of(column: pa.Array) -> Int32Array:
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)


# ----------------------------------------------------------------
# RowBodies: rows as entries, an Arrow batch at a time.
#
# raw     the only column: a row is an entry, its value the body
# json    a row is an entry, a JSON object of its columns, with maps as objects (Python per row)
# arrow   up to `rowsPerEntry` rows are an entry, an Arrow IPC stream of their own


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
