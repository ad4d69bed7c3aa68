"""A 64-bit number for each row of any schema, by which it is recognised again: a column at a time.

Rows that are equal have equal numbers, wherever in a batch they stand. Nested columns cost Python per
row.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32

from quorumlog.header_array import UInt32Array, UInt64Array
from quorumlog.staging.row_digests import mixed

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
