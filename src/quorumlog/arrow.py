"""Entries as Arrow record batches, a batch at a time. Needs pyarrow (extra `arrow`), which only
importing this module imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import BadRequest, the_extra
from quorumlog.header_array import HEADER_DTYPE, field_of

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"record batches need pyarrow, {the_extra('arrow')}", name=error.name
    ) from error

ENTRY_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""The fields of an entry for applications, as `quorumlog.Entry`."""
TIME_COLUMN = "append_time"
"""Time of the last time mark before an entry; null without one."""
_ALL_FIELDS = pa.schema([*ENTRY_SCHEMA, pa.field(TIME_COLUMN, pa.timestamp("ms", tz="UTC"))])

_OFFSETS_END = 2**31


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """These fields of `ENTRY_SCHEMA`, or `TIME_COLUMN`, in this order; None: those of `ENTRY_SCHEMA`.
    Raises BadRequest for another name."""
    if columns is None:
        return ENTRY_SCHEMA
    if isinstance(columns, str):
        raise BadRequest(f"columns must be a list of names, not the text {columns!r}")
    unknown = [name for name in columns if name not in _ALL_FIELDS.names]
    if unknown or not columns:
        raise BadRequest(f"columns must be of {', '.join(_ALL_FIELDS.names)}, not {list(columns)}")
    return pa.schema([_ALL_FIELDS.field(name) for name in columns])


def record_batch_of(
    batch: EntryBatch,
    schema: pa.Schema = ENTRY_SCHEMA,
    constants: Mapping[str, pa.Scalar] | None = None,
    times: Sequence[tuple[int, int]] | None = None,
) -> pa.RecordBatch:
    """The NORMAL entries of `batch` as rows, without no-ops.

    The fields of `schema` are `body` (binary) and fields of the header by their names in
    `quorumlog.batch.HEADER_DTYPE` (any integer type that holds them); only these columns are built.
    `constants`: fields with one value in every row. `times`: for the field `append_time`, (position,
    milliseconds since 1970 from there on, -1 for null). Raises BadRequest for 2 GiB or more."""
    words = batch.words()
    constants = constants or {}
    columns = []
    for field in schema:
        if field.name == "body":
            columns.append(_bodies_of(batch))
        elif field.name in constants:
            columns.append(pa.repeat(constants[field.name], batch.count))
        elif field.name == TIME_COLUMN:
            assert times is not None, schema
            columns.append(_times_of(times, batch.count, field.type))
        else:
            values = field_of(words, field.name)
            columns.append(pa.array(values.astype(field.type.to_pandas_dtype(), copy=False)))
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    normal = field_of(words, "magic") == EntryKind.NORMAL
    return rows if bool(normal.all()) else rows.filter(pa.array(normal))


def _times_of(times: Sequence[tuple[int, int]], count: int, kind: pa.DataType) -> pa.Array:
    milliseconds = pa.timestamp("ms", tz="UTC")
    starts = [at for at, _ in times]
    runs = [
        pa.repeat(pa.scalar(time_ms if time_ms >= 0 else None, milliseconds), stop - start)
        for start, stop, (_, time_ms) in zip(starts, [*starts[1:], count], times, strict=True)
    ]
    column = runs[0] if len(runs) == 1 else pa.concat_arrays(runs)
    return column if kind == milliseconds else column.cast(kind)


def _bodies_of(batch: EntryBatch) -> pa.Array:
    """Entries lie back to back, so header + body is an Arrow array without a copy; one kernel call then
    cuts the headers off. `binary_slice(array, 48)` would say the same but fails without `stop` on large
    arrays (pyarrow 26: "Negative buffer resize")."""
    if batch.total_bytes >= _OFFSETS_END:
        raise BadRequest(f"{batch.total_bytes} bytes do not fit into 32-bit offsets; take slices")
    offsets = np.empty(batch.count + 1, np.int32)
    offsets[:-1] = batch.starts
    offsets[-1] = batch.total_bytes
    entries = pa.Array.from_buffers(
        pa.binary(), batch.count, [None, pa.py_buffer(offsets), pa.py_buffer(batch.buffer)]
    )
    return pc.binary_replace_slice(entries, 0, HEADER_BYTES, b"")


def batch_of_bodies(bodies: pa.Array) -> EntryBatch:
    """The reverse: entries with these bodies, a column of `binary` without nulls, for an append. Do not
    stamp the batch: Arrow's memory is not writable. Raises BadRequest for 2 GiB or more."""
    count = len(bodies)
    offsets = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset : bodies.offset + count + 1]
    sizes = np.diff(offsets).astype(np.int64) + HEADER_BYTES
    total = int(sizes.sum())
    if total >= _OFFSETS_END:
        raise BadRequest(f"{total} bytes do not fit into 32-bit offsets; take slices")
    headers = np.zeros(count, HEADER_DTYPE)
    headers["magic"] = EntryKind.NORMAL
    headers["size"] = sizes
    headers["body_len"] = sizes - HEADER_BYTES
    starts = np.arange(0, (count + 1) * HEADER_BYTES, HEADER_BYTES, dtype=np.int32)
    heads = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(starts), pa.py_buffer(headers.tobytes())]
    )
    entries = pc.binary_join_element_wise(heads, bodies, b"")
    return EntryBatch(memoryview(entries.buffers()[2])[:total], sizes)
