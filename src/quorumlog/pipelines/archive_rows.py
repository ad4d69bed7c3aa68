"""Entries as rows of an archive, and rows as the very entries again.

A row has every field of an entry's header that its body does not say, so an entry is rebuilt byte for
byte: its digests are checked as those of a member are. Control entries are no rows, for who reads the
files with another tool; they lie whole in the footer of their file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.append_times import AppendTimes
from quorumlog.arrow import record_batch_of
from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES, unpack_header
from quorumlog.header_array import HEADER_DTYPE
from quorumlog.log_state.log_state import Reset, said_ms

ROW_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("append_time", pa.timestamp("ms", tz="UTC")),
        pa.field("channel", pa.int32(), nullable=False),
        pa.field("pos", pa.int64(), nullable=False),
        pa.field("body_crc", pa.int64(), nullable=False),
        pa.field("chain_crc", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)


class Rows(NamedTuple):
    rows: pa.RecordBatch
    controls: bytes
    """Control entries, which are no rows, encoded back to back."""
    time_ms: int
    """What counts at the end of the batch."""
    resets: tuple[Reset, ...]
    """Of the log's clock, in the batch."""


def rows_of(batch: EntryBatch, times: AppendTimes) -> Rows:
    runs = times.runs(batch)
    controls = b"".join(bytes(batch.slice(at, at + 1).buffer) for at in batch.control_positions())
    kinds = batch.headers()["magic"]
    resets = tuple(
        Reset(batch.first_index + at, time_ms)
        for at in batch.log_state_positions()
        if kinds[at] == EntryKind.CLOCK
        if (time_ms := said_ms(EntryKind.CLOCK, batch.body(at))) is not None
    )
    return Rows(record_batch_of(batch, ROW_SCHEMA, times=runs), controls, runs[-1][1], resets)


def split_controls(encoded: bytes) -> list[tuple[int, bytes]]:
    """(index, entry) of each, in order."""
    controls, at = [], 0
    while at < len(encoded):
        header = unpack_header(memoryview(encoded)[at : at + HEADER_BYTES])
        controls.append((header.index, encoded[at : at + header.size]))
        at += header.size
    return controls


def batch_of(rows: pa.RecordBatch, controls: Sequence[tuple[int, bytes]]) -> EntryBatch:
    """The entries, in order of index. Rows that were changed make entries whose digests are wrong:
    whoever reads checks them."""
    bodies = rows.column("body")
    sizes = pc.binary_length(bodies).to_numpy(zero_copy_only=False).astype(np.int64)
    headers = np.empty(rows.num_rows, HEADER_DTYPE)
    headers["magic"] = EntryKind.NORMAL
    headers["size"] = sizes + HEADER_BYTES
    headers["body_len"] = sizes
    indices = rows.column("index").to_numpy()
    headers["index"] = indices
    for name in ("term", "pos", "channel", "chain_crc", "body_crc"):
        headers[name] = rows.column(name).to_numpy()
    encoded = pa.Array.from_buffers(
        pa.binary(HEADER_BYTES), rows.num_rows, [None, pa.py_buffer(headers)]
    ).cast(pa.binary())
    entries = pc.binary_join_element_wise(encoded, bodies, b"")
    if controls:
        entries = pa.concat_arrays([entries, pa.array([entry for _, entry in controls], pa.binary())])
        places = np.concatenate([indices, np.array([index for index, _ in controls], np.int64)])
        entries = entries.take(pa.array(np.argsort(places, kind="stable")))
    _, offset_buffer, data = entries.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[entries.offset : entries.offset + len(entries) + 1]
    taken = memoryview(data)[int(offsets[0]) : int(offsets[-1])] if len(entries) else b""
    return EntryBatch(taken, np.diff(offsets.astype(np.int64)))


def check(batch: EntryBatch) -> None:
    """Both digests of every entry. Raises ProtocolViolation."""
    batch.check_encoding()
    batch.check_sequence(batch.first_index, batch.chain_before)
    batch.check_bodies()
