"""Entries as Arrow record batches, a batch at a time. Needs pyarrow (extra `arrow`), which only
importing this module imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import BadRequest
from quorumlog.header_array import field_of

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "record batches need pyarrow, the extra `arrow`: pip install '.[arrow]' in a clone of quorumlog",
        name=error.name,
    ) from error

ENTRY_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""What an application sees of an entry, as `quorumlog.Entry`."""

_OFFSETS_END = 2**31


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """These fields of `ENTRY_SCHEMA`, in this order; None: all. Raises BadRequest for another name."""
    if columns is None:
        return ENTRY_SCHEMA
    if isinstance(columns, str):
        raise BadRequest(f"columns must be a list of names, not the text {columns!r}")
    unknown = [name for name in columns if name not in ENTRY_SCHEMA.names]
    if unknown or not columns:
        raise BadRequest(f"columns must be of {', '.join(ENTRY_SCHEMA.names)}, not {list(columns)}")
    return pa.schema([ENTRY_SCHEMA.field(name) for name in columns])


def record_batch_of(
    batch: EntryBatch,
    schema: pa.Schema = ENTRY_SCHEMA,
    constants: Mapping[str, pa.Scalar] | None = None,
) -> pa.RecordBatch:
    """The NORMAL entries of `batch` as rows; no-ops are left out.

    The fields of `schema` are `body` (binary) and fields of the header by their names in
    `quorumlog.batch.HEADER_DTYPE` (any integer type that holds them); only these columns are built.
    `constants`: fields that have one value in every row. Raises BadRequest for 2 GiB or more.
    """
    words = batch.words()
    constants = constants or {}
    columns = []
    for field in schema:
        if field.name == "body":
            columns.append(_bodies_of(batch))
        elif field.name in constants:
            columns.append(pa.repeat(constants[field.name], batch.count))
        else:
            values = field_of(words, field.name)
            columns.append(pa.array(values.astype(field.type.to_pandas_dtype(), copy=False)))
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    normal = field_of(words, "magic") == EntryKind.NORMAL
    return rows if bool(normal.all()) else rows.filter(pa.array(normal))


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
