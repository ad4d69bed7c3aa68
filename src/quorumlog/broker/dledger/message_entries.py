"""A message record as the body of an entry: the entry at position p of the log holds the record at p +
48, which is what its PHYSICALOFFSET says."""

from __future__ import annotations

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker.messages.record_batch import RecordBatch
from quorumlog.broker.queues import machine_snapshot
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.header_array import HEADER_DTYPE

MACHINE_NAME = machine_snapshot.MACHINE_NAME
"""Of the state machine whose entries are records."""
BODY_OFFSET = HEADER_BYTES


def entries_of(records: RecordBatch) -> EntryBatch:
    """An entry each, in memory of their own; `records` have no gaps between them."""
    sizes = records.sizes + HEADER_BYTES
    count = len(sizes)
    headers = np.zeros(count, HEADER_DTYPE)
    headers["magic"], headers["size"], headers["body_len"] = EntryKind.NORMAL, sizes, records.sizes
    header_bytes = headers.view(np.uint8).reshape(count, HEADER_BYTES)
    if count and bool((sizes == sizes[0]).all()):
        rows = np.empty((count, int(sizes[0])), np.uint8)
        rows[:, :HEADER_BYTES] = header_bytes
        rows[:, HEADER_BYTES:] = records.data.reshape(count, -1)
        return EntryBatch(rows.reshape(-1).data, sizes)
    is_body = np.ones(int(sizes.sum()), bool)
    starts = np.cumsum(sizes) - sizes
    is_body[starts[:, None] + np.arange(HEADER_BYTES)] = False
    buffer = np.empty(len(is_body), np.uint8)
    buffer[is_body] = records.data
    buffer[~is_body] = header_bytes.reshape(-1)
    return EntryBatch(buffer.data, sizes)


def records_of(entries: EntryBatch) -> RecordBatch:
    """Their bodies, where they lie."""
    return RecordBatch(entries.buffer, entries.starts + BODY_OFFSET, entries.sizes - BODY_OFFSET)
