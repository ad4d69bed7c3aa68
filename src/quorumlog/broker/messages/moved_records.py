"""Records that go to another queue as they are: delayed messages that are due."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence

from quorumlog.broker.messages.record import MAGIC, MAGIC_WIDE_TOPIC, NARROW_TOPIC_BYTES
from quorumlog.broker.messages.record_batch import RecordBatch

_HEAD = struct.Struct(">IIIi")


def moved_records(
    records: RecordBatch, targets: Sequence[tuple[str, int]], without: Collection[str]
) -> RecordBatch:
    """Copies: (topic, queue) of each, and no properties of the names `without`. Bodies, keys, born times
    and hosts, flags and counts of consumption stay."""
    columns, buffer = records.columns, records.buffer
    unwanted = tuple(f"{name}\x01".encode() for name in without)
    out = bytearray()
    sizes: list[int] = []
    starts = records.starts.tolist()
    bodies_end = (columns.body_starts + columns.body_sizes).tolist()
    properties_at = columns.property_starts.tolist()
    properties_end = (columns.property_starts + columns.property_sizes).tolist()
    crcs = columns.body_crcs.tolist()
    for row, (topic, queue_id) in enumerate(targets):
        name = topic.encode()
        is_wide = len(name) > NARROW_TOPIC_BYTES
        pairs = bytes(buffer[properties_at[row] : properties_end[row]]).split(b"\x02")
        kept = b"".join(pair + b"\x02" for pair in pairs if pair and not pair.startswith(unwanted))
        middle = buffer[starts[row] + _HEAD.size : bodies_end[row]]
        size = _HEAD.size + len(middle) + 1 + is_wide + len(name) + 2 + len(kept)
        out += _HEAD.pack(size, MAGIC_WIDE_TOPIC if is_wide else MAGIC, crcs[row], queue_id)
        out += middle
        out += len(name).to_bytes(2 if is_wide else 1, "big") + name
        out += len(kept).to_bytes(2, "big") + kept
        sizes.append(size)
    return RecordBatch.contiguous(out, sizes)
