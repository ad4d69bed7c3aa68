"""Entries about users are readable by administrators alone: others get substitute bodies.

These have the same length and CRC-32, so that the header and the chain of the log, which archives and
readers check, stay valid.
"""

from __future__ import annotations

from isal.isal_zlib import crc32

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES


def without_users(batch: EntryBatch) -> EntryBatch:
    """In memory of its own, if anything is to be hidden."""
    positions = batch.log_state_positions()
    if not positions:
        return batch
    kinds = batch.kinds_and_terms(positions)
    hidden = [at for at, (kind, _) in zip(positions, kinds, strict=True) if kind == EntryKind.USERS]
    if not hidden:
        return batch
    buffer = bytearray(batch.buffer)
    starts = batch.starts
    for at in hidden:
        body = batch.body(at)
        first = int(starts[at]) + HEADER_BYTES
        buffer[first : first + len(body)] = bytes_with_crc(len(body), crc32(body))
    return EntryBatch(buffer, batch.sizes)


def bytes_with_crc(count: int, crc: int) -> bytes:
    """`count` bytes, at least 4, of which only the last 4 are not 0."""
    zeros = bytes(count - 4)
    begun = crc32(zeros)
    none = crc32(bytes(4), begun)
    # What a bit adds to the CRC does not depend on the other bits: 32 equations of 32 bits.
    rows: dict[int, tuple[int, int]] = {}
    for bit in range(32):
        adds, bits = crc32((1 << bit).to_bytes(4, "little"), begun) ^ none, 1 << bit
        while adds and (top := adds.bit_length()) in rows:
            adds, bits = adds ^ rows[top][0], bits ^ rows[top][1]
        rows[adds.bit_length()] = adds, bits
    left, last = crc ^ none, 0
    while left:
        adds, bits = rows[left.bit_length()]
        left, last = left ^ adds, last ^ bits
    return zeros + last.to_bytes(4, "little")
