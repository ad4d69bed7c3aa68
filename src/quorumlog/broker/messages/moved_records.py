"""Records that go to another queue as they are: delayed messages that are due."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from quorumlog.broker.messages.java_strings import gather
from quorumlog.broker.messages.property_columns import VALUE_END
from quorumlog.broker.messages.record import MAGIC, MAGIC_WIDE_TOPIC, NARROW_TOPIC_BYTES
from quorumlog.broker.messages.record_batch import RecordBatch
from quorumlog.broker.messages.record_columns import Bytes, Int64Array, put_bytes

_HEAD_BYTES = 16
"""Size, magic, CRC of the body, queue."""


def moved_records(
    records: RecordBatch,
    targets: Sequence[tuple[str, int]],
    target_of: Int64Array,
    without: Collection[str],
) -> RecordBatch:
    """Copies: of record i to the (topic, queue) `targets[target_of[i]]`, without properties of the names
    `without`. Bodies, keys, born times and hosts, flags and counts of consumption stay."""
    columns = records.columns
    names = [topic.encode() for topic, _ in targets]
    is_wide = np.array([len(name) > NARROW_TOPIC_BYTES for name in names], bool)
    # Topics as they stand in a record, with their length before them.
    topics = [
        len(name).to_bytes(2 if wide else 1, "big") + name
        for name, wide in zip(names, is_wide.tolist(), strict=True)
    ]
    topic_bytes = np.array([len(topic) for topic in topics], np.int64)
    topic_starts = np.cumsum(topic_bytes) - topic_bytes
    kept, kept_bytes = _properties(records, without)

    middle_starts = records.starts + _HEAD_BYTES
    middle_bytes = columns.body_starts + columns.body_sizes - middle_starts
    sizes = _HEAD_BYTES + middle_bytes + topic_bytes[target_of] + 2 + kept_bytes
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)

    head = np.empty((len(records), 4), ">u4")
    head[:, 0] = sizes
    head[:, 1] = np.where(is_wide, MAGIC_WIDE_TOPIC, MAGIC)[target_of]
    head[:, 2] = columns.body_crcs
    head[:, 3] = np.array([queue_id for _, queue_id in targets], np.int64)[target_of]
    put_bytes(out, starts, head.view(np.uint8))
    at = starts + _HEAD_BYTES
    _lay(out, at, middle_bytes, gather(records.data, middle_starts, middle_bytes)[0])
    at = at + middle_bytes
    all_topics = np.frombuffer(b"".join(topics), np.uint8)
    wanted = topic_bytes[target_of]
    _lay(out, at, wanted, gather(all_topics, topic_starts[target_of], wanted)[0])
    at = at + wanted
    put_bytes(out, at, kept_bytes.astype(">u2")[:, None].view(np.uint8))
    _lay(out, at + 2, kept_bytes, kept)
    return RecordBatch.contiguous(out.tobytes(), sizes)


def _properties(records: RecordBatch, without: Collection[str]) -> tuple[Bytes, Int64Array]:
    """What stays of the properties, one record's behind the other's, and how much of each."""
    properties = records.properties
    data = properties.data
    stays: npt.NDArray[np.bool_] = np.ones(len(data), bool)
    for name in without:
        found = properties.find(name)
        begins = found.starts - len(name.encode()) - 1
        sizes = found.starts + found.sizes + 1 - begins
        # The ends of the ranges that go, as steps down and up again.
        steps = np.zeros(len(data) + 1, np.int64)
        steps[begins] -= 1
        steps[begins + sizes] += 1
        stays &= np.cumsum(steps[:-1]) == 0
    # An end without anything before it: behind the last property there may be one, and here always is.
    record_bytes = records.columns.property_sizes + 1
    owner = np.repeat(np.arange(len(records)), record_bytes)
    is_end = data == VALUE_END
    after_end = np.ones(len(data), bool)
    after_end[1:] = is_end[:-1]
    after_end[np.cumsum(record_bytes) - record_bytes] = True
    stays &= ~(is_end & after_end)
    return data[stays], np.bincount(owner[stays], minlength=len(records)).astype(np.int64)


def _lay(out: Bytes, starts: Int64Array, sizes: Int64Array, pieces: Bytes) -> None:
    """Pieces that lie one behind the other, each to its place."""
    begins = np.cumsum(sizes) - sizes
    out[np.arange(len(pieces)) + np.repeat(starts - begins, sizes)] = pieces
