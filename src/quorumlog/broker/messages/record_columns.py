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
    SYS_FLAG_AT,
    V6_MORE_BYTES,
)

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_RANGES = {size: np.arange(size) for size in (1, 2, 4, 8, 16)}


def field_of(data: Bytes, at: Int64Array, dtype: str) -> npt.NDArray[Any]:
    """A big-endian number at each of these places."""
    kind = np.dtype(dtype)
    found: npt.NDArray[Any] = data[at[:, None] + _RANGES[kind.itemsize]].view(kind)[:, 0]
    return found


def put_bytes(data: Bytes, at: Int64Array, values: Bytes) -> None:
    """A row of `values` at each of these places."""
    data[at[:, None] + _RANGES[values.shape[1]]] = values


class RecordColumns:
    """Of records at `starts` with `sizes` in `data`, which lie whole in it."""

    def __init__(self, data: Bytes, starts: Int64Array, sizes: Int64Array) -> None:
        assert len(starts) == len(sizes), (len(starts), len(sizes))
        self.data = data
        self.starts = starts
        self.sizes = sizes
        count = len(starts)
        good = sizes >= LEAST_RECORD_BYTES
        if not good.all():
            # Whatever lies there is looked at as if it were a record, so it must lie in `data`.
            assert len(data) >= LEAST_RECORD_BYTES, len(data)
            starts = np.minimum(starts, len(data) - LEAST_RECORD_BYTES)
        last = starts + np.maximum(sizes, LEAST_RECORD_BYTES)
        self.magic = field_of(data, starts + 4, ">u4")
        self.wide = self.magic == MAGIC_WIDE_TOPIC
        good &= self.wide | (self.magic == MAGIC)
        good &= field_of(data, starts, ">u4") == sizes
        self.sys_flag = field_of(data, starts + SYS_FLAG_AT, ">i4")
        born_more = np.where(self.sys_flag & BORN_HOST_V6, V6_MORE_BYTES, 0)
        store_more = np.where(self.sys_flag & STORE_HOST_V6, V6_MORE_BYTES, 0)
        self.store_time_at = starts + BORN_HOST_AT + 8 + born_more
        length_at = starts + BODY_LENGTH_AT + born_more + store_more
        good &= length_at + 7 <= last
        length_at = np.where(good, length_at, starts)
        self.body_sizes = np.where(good, field_of(data, length_at, ">i4"), 0).astype(np.int64)
        self.body_starts = length_at + 4
        topic_at = self.body_starts + self.body_sizes
        good &= (self.body_sizes >= 0) & (topic_at + 1 + self.wide <= last)
        topic_at = np.where(good, topic_at, starts)
        narrow_size = data[topic_at].astype(np.int64)
        wide_at = np.where(self.wide & good, topic_at, starts)
        wide_size = field_of(data, wide_at, ">u2").astype(np.int64) if self.wide.any() else narrow_size
        self.topic_sizes = np.where(self.wide, wide_size, narrow_size)
        self.topic_starts = topic_at + 1 + self.wide
        properties_at = self.topic_starts + self.topic_sizes
        good &= (self.topic_sizes > 0) & (properties_at + 2 <= last)
        properties_at = np.where(good, properties_at, starts)
        self.property_sizes = np.where(good, field_of(data, properties_at, ">u2"), 0).astype(np.int64)
        self.property_starts = properties_at + 2
        good &= self.property_starts + self.property_sizes == starts + sizes
        self.good = good
        """Which of them have the shape of a record; CRCs are not looked at."""
        assert len(good) == count

    @cached_property
    def queue_ids(self) -> Int64Array:
        return field_of(self.data, self.starts + 12, ">i4").astype(np.int64)

    @cached_property
    def queue_offsets(self) -> Int64Array:
        return field_of(self.data, self.starts + QUEUE_OFFSET_AT, ">i8").astype(np.int64)

    @cached_property
    def physical_offsets(self) -> Int64Array:
        return field_of(self.data, self.starts + QUEUE_OFFSET_AT + 8, ">i8").astype(np.int64)

    @cached_property
    def born_times_ms(self) -> Int64Array:
        return field_of(self.data, self.starts + 40, ">i8").astype(np.int64)

    @cached_property
    def store_times_ms(self) -> Int64Array:
        return field_of(self.data, self.store_time_at, ">i8").astype(np.int64)

    @cached_property
    def body_crcs(self) -> npt.NDArray[Any]:
        return field_of(self.data, self.starts + 8, ">u4")

    @cached_property
    def flags(self) -> Int64Array:
        return field_of(self.data, self.starts + 16, ">i4").astype(np.int64)

    @cached_property
    def reconsume_times(self) -> Int64Array:
        at = self.body_starts - 16
        return field_of(self.data, at, ">i4").astype(np.int64)
