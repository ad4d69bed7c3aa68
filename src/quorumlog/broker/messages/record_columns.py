"""RecordColumns: where the parts of many records lie, found with numpy; nothing is done per record."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from quorumlog.broker.messages.record import (
    BODY_LENGTH_AT,
    BORN_HOST_AT,
    BORN_HOST_V6,
    LEAST_RECORD_BYTES,
    MAGIC,
    MAGIC_WIDE_TOPIC,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
    V4_BYTES,
    V6_MORE_BYTES,
)

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_HEAD = np.dtype(
    [
        ("size", ">u4"),
        ("magic", ">u4"),
        ("body_crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_time_ms", ">i8"),
    ]
)
"""What lies at the same place whatever the hosts are."""
assert _HEAD.itemsize == BORN_HOST_AT


def windows(data: Bytes, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A value of this type at every byte of `data`, where it lies."""
    kind = np.dtype(dtype)
    return np.ndarray((max(len(data) - kind.itemsize + 1, 0),), kind, data.data, strides=(1,))


def field_of(data: Bytes, at: Int64Array, dtype: str) -> npt.NDArray[Any]:
    """A big-endian number at each of these places."""
    found: npt.NDArray[Any] = windows(data, dtype)[at]
    return found


def put_bytes(data: Bytes, at: Int64Array, values: Bytes) -> None:
    """A row of `values` at each of these places."""
    if len(at):
        kind = f"V{values.shape[1]}"
        windows(data, kind)[at] = np.ascontiguousarray(values).view(kind)[:, 0]


class RecordColumns:
    """Of records at `starts` with `sizes` in `data`, which lie whole in it."""

    def __init__(self, data: Bytes, starts: Int64Array, sizes: Int64Array) -> None:
        assert len(starts) == len(sizes), (len(starts), len(sizes))
        if len(data) < LEAST_RECORD_BYTES:  # as a client may send it
            data = np.pad(data, (0, LEAST_RECORD_BYTES - len(data)))
        self.data = data
        self.starts = starts
        self.sizes = sizes
        count = len(starts)
        stops = starts + sizes
        good = sizes >= LEAST_RECORD_BYTES
        if not good.all():
            # Whatever lies there is looked at as if it were a record, so it must lie in `data`.
            starts = np.minimum(starts, len(data) - LEAST_RECORD_BYTES)
        last = starts + np.maximum(sizes, LEAST_RECORD_BYTES)

        def inside(at: Int64Array) -> Int64Array:
            """Where it may be looked; anywhere in those that have not the shape of a record."""
            return at if good.all() else np.where(good, at, starts)

        self._heads = heads = windows(data, _HEAD)[starts]
        self.magic = heads["magic"]
        self.wide = self.magic == MAGIC_WIDE_TOPIC
        has_wide = bool(self.wide.any())
        good &= self.wide | (self.magic == MAGIC)
        good &= heads["size"] == sizes
        self.sys_flag = heads["sys_flag"]
        self.store_time_at = starts + (BORN_HOST_AT + V4_BYTES)
        length_at = starts + BODY_LENGTH_AT
        if (self.sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)).any():
            born_more = np.where(self.sys_flag & BORN_HOST_V6, V6_MORE_BYTES, 0)
            self.store_time_at += born_more
            length_at += born_more + np.where(self.sys_flag & STORE_HOST_V6, V6_MORE_BYTES, 0)
            good &= length_at + 7 <= last
            length_at = inside(length_at)
        body_sizes = field_of(data, length_at, ">i4").astype(np.int64)
        self.body_sizes: Int64Array = body_sizes if good.all() else np.where(good, body_sizes, 0)
        self.body_starts = length_at + 4
        topic_at = self.body_starts + self.body_sizes
        good &= (self.body_sizes >= 0) & (topic_at + 1 + self.wide <= last)
        topic_at = inside(topic_at)
        self.topic_sizes = data[topic_at].astype(np.int64)
        if has_wide:
            wide_at = np.where(self.wide & good, topic_at, starts)
            wide_sizes = field_of(data, wide_at, ">u2").astype(np.int64)
            self.topic_sizes = np.where(self.wide, wide_sizes, self.topic_sizes)
        self.topic_starts = topic_at + 1 + self.wide
        properties_at = self.topic_starts + self.topic_sizes
        good &= (self.topic_sizes > 0) & (properties_at + 2 <= last)
        properties_at = inside(properties_at)
        property_sizes = field_of(data, properties_at, ">u2").astype(np.int64)
        self.property_sizes: Int64Array = (
            property_sizes if good.all() else np.where(good, property_sizes, 0)
        )
        self.property_starts = properties_at + 2
        good &= self.property_starts + self.property_sizes == stops
        self.good = good
        """Which of them have the shape of a record; CRCs are not looked at."""
        assert len(good) == count

    @cached_property
    def queue_ids(self) -> Int64Array:
        return self._heads["queue_id"].astype(np.int64)

    @cached_property
    def queue_offsets(self) -> Int64Array:
        return field_of(self.data, self.starts + QUEUE_OFFSET_AT, ">i8").astype(np.int64)

    @cached_property
    def physical_offsets(self) -> Int64Array:
        return field_of(self.data, self.starts + QUEUE_OFFSET_AT + 8, ">i8").astype(np.int64)

    @cached_property
    def born_times_ms(self) -> Int64Array:
        return self._heads["born_time_ms"].astype(np.int64)

    @cached_property
    def store_times_ms(self) -> Int64Array:
        return field_of(self.data, self.store_time_at, ">i8").astype(np.int64)

    @cached_property
    def body_crcs(self) -> npt.NDArray[Any]:
        return self._heads["body_crc"]

    @cached_property
    def flags(self) -> Int64Array:
        return self._heads["flag"].astype(np.int64)

    @cached_property
    def reconsume_times(self) -> Int64Array:
        at = self.body_starts - 16
        return field_of(self.data, at, ">i4").astype(np.int64)
