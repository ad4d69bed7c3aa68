"""RecordBatch: many records in one buffer, the unit of everything that moves in a message store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import numpy.ma  # np.unique would load it where it is called first: no file may open then
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.broker.messages.java_strings import (
    cached_java_hash,
    java_hashes,
    powers_of_31,
    utf16_units,
)
from quorumlog.broker.messages.message import DELAY, KEYS, TAGS, UNIQ_KEY, StoredMessage
from quorumlog.broker.messages.property_columns import PropertyColumns
from quorumlog.broker.messages.record import (
    CRC_BITS,
    QUEUE_OFFSET_AT,
    TRANSACTION_BITS,
    decode_record,
)
from quorumlog.broker.messages.record_columns import Bytes, Int64Array, RecordColumns, put_bytes, windows
from quorumlog.entry_header import Buffer

_COMMITTED_TRANSACTION = 0x8
_ROLLED_BACK = 0xC


class QueueKey(NamedTuple):
    topic: str
    queue_id: int


class IndexKeys(NamedTuple):
    """What an index file is to find records by; one row a key, in the order of the records."""

    rows: Int64Array
    hashes: Int64Array
    """`abs` of Java's hash of `topic#key`."""


class RecordBatch:
    """Whole records; gaps may lie between them."""

    def __init__(self, buffer: Buffer, starts: Int64Array, sizes: Int64Array) -> None:
        self.buffer = memoryview(buffer).cast("B")
        self.starts = starts
        self.sizes = sizes

    @classmethod
    def contiguous(cls, buffer: Buffer, sizes: npt.ArrayLike) -> Self:
        array = np.asarray(sizes, np.int64)
        return cls(buffer, np.cumsum(array) - array, array)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def total_bytes(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def data(self) -> Bytes:
        return np.frombuffer(self.buffer, np.uint8)

    @cached_property
    def columns(self) -> RecordColumns:
        return RecordColumns(self.data, self.starts, self.sizes)

    @cached_property
    def properties(self) -> PropertyColumns:
        return PropertyColumns(self.columns)

    # ---------------------------------------------------------------- checking

    def bodies_good(self) -> npt.NDArray[np.bool_]:
        """By their CRCs: one C call each."""
        columns, buffer = self.columns, self.buffer
        starts = columns.body_starts.tolist()
        stops = (columns.body_starts + columns.body_sizes).tolist()
        crcs = [crc32(buffer[start:stop]) for start, stop in zip(starts, stops, strict=True)]
        good: npt.NDArray[np.bool_] = (np.array(crcs, np.uint32) & CRC_BITS) == columns.body_crcs
        return good

    # ---------------------------------------------------------------- what a store fills in

    def stamp(self, queue_offsets: Int64Array, positions: Int64Array, time_ms: int, host: bytes) -> None:
        """In place: QUEUEOFFSET, PHYSICALOFFSET, STORETIMESTAMP, STOREHOST (IPv4)."""
        columns, data = self.columns, self.data
        pairs = np.empty((len(self), 2), ">i8")
        pairs[:, 0] = queue_offsets
        pairs[:, 1] = positions
        put_bytes(data, self.starts + QUEUE_OFFSET_AT, pairs.view(np.uint8))
        stored = np.frombuffer(time_ms.to_bytes(8, "big", signed=True) + host, np.uint8)
        put_bytes(data, columns.store_time_at, np.broadcast_to(stored, (len(self), len(stored))))
        for name in ("queue_offsets", "physical_offsets", "store_times_ms"):
            columns.__dict__.pop(name, None)

    def move_to(self, positions: Int64Array) -> None:
        """In place: PHYSICALOFFSET alone."""
        column = np.empty((len(self), 1), ">i8")
        column[:, 0] = positions
        put_bytes(self.data, self.starts + QUEUE_OFFSET_AT + 8, column.view(np.uint8))
        self.columns.__dict__.pop("physical_offsets", None)

    # ---------------------------------------------------------------- what follows from them

    def topic_of(self, row: int) -> str:
        columns = self.columns
        start, size = int(columns.topic_starts[row]), int(columns.topic_sizes[row])
        return str(self.buffer[start : start + size], "utf-8", "replace")

    @cached_property
    def queues(self) -> list[tuple[QueueKey, Int64Array]]:
        """(queue, rows of its records), each queue once; records of a queue in their order."""
        return list(self._by_queue())

    def _by_queue(self) -> Iterator[tuple[QueueKey, Int64Array]]:
        if not len(self):
            return
        queue_ids = self.columns.queue_ids
        which = queue_ids if self._is_of_one_topic() else self._numbered_queues()
        if (which == which[0]).all():
            yield QueueKey(self.topic_of(0), int(queue_ids[0])), np.arange(len(self))
            return
        order = np.argsort(which, kind="stable")
        cuts = np.flatnonzero(np.diff(which[order])) + 1
        for rows in np.split(order, cuts):
            first = int(rows[0])
            yield QueueKey(self.topic_of(first), int(queue_ids[first])), rows

    def _is_of_one_topic(self) -> bool:
        sizes = self.columns.topic_sizes
        width = int(sizes[0])
        if not width or not (sizes == width).all():
            return False
        topics = windows(self.data, f"V{width}")[self.columns.topic_starts].view(np.uint8)
        return bool((topics.reshape(-1, width) == topics[:width]).all())

    def _numbered_queues(self) -> Int64Array:
        """A number for each queue of each topic."""
        columns = self.columns
        width = int(columns.topic_sizes.max())
        names = np.zeros((len(self), width + 6), np.uint8)
        names[:, :4] = columns.queue_ids.astype(">i4").view(np.uint8).reshape(-1, 4)
        names[:, 4:6] = columns.topic_sizes.astype(">u2").view(np.uint8).reshape(-1, 2)
        at = columns.topic_starts[:, None] + np.arange(width)
        within = np.arange(width) < columns.topic_sizes[:, None]
        names[:, 6:] = np.where(within, self.data[np.where(within, at, 0)], 0)
        numbers: Int64Array = np.unique(names.view(f"V{width + 6}")[:, 0], return_inverse=True)[1]
        return numbers

    @cached_property
    def in_queue(self) -> npt.NDArray[np.bool_]:
        """Messages that a queue shows: neither prepared nor rolled back."""
        kind = self.columns.sys_flag & TRANSACTION_BITS
        shown: npt.NDArray[np.bool_] = (kind == 0) | (kind == _COMMITTED_TRANSACTION)
        return shown

    @cached_property
    def tags_codes(self) -> Int64Array:
        """Java's hash of the tags, 0 without; of the last TAGS if there are two, as Java has it."""
        found = self.properties.find(TAGS)
        codes = np.zeros(len(self), np.int64)
        codes[found.rows] = java_hashes(self.properties.data, found.starts, found.sizes)
        return codes

    @cached_property
    def delay_levels(self) -> Int64Array:
        """-1 of a message that is not delayed, or by what is no number."""
        found = self.properties.find(DELAY)
        levels = np.full(len(self), -1, np.int64)
        levels[found.rows] = self.properties.numbers(found)
        return levels

    def index_keys(self) -> IndexKeys:
        """UNIQ_KEY, then each word of KEYS."""
        properties, columns = self.properties, self.columns
        unique = properties.find(UNIQ_KEY)
        words = properties.split_words(properties.find(KEYS))
        rows = np.concatenate([unique.rows, words.rows])
        starts = np.concatenate([unique.starts, words.starts])
        sizes = np.concatenate([unique.sizes, words.sizes])
        keep = (columns.sys_flag[rows] & TRANSACTION_BITS) != _ROLLED_BACK
        keep &= sizes > 0
        rows, starts, sizes = rows[keep], starts[keep], sizes[keep]
        order = np.argsort(rows, kind="stable")
        rows, starts, sizes = rows[order], starts[order], sizes[order]
        # hash(topic#key) = hash(topic#) * 31^units(key) + hash(key), modulo 2^32.
        of_topic = np.zeros(len(self), np.int64)
        for queue, records in self.queues:
            of_topic[records] = cached_java_hash(f"{queue.topic}#")
        units = utf16_units(properties.data, starts, sizes)
        shifted = of_topic[rows].astype(np.uint32) * powers_of_31(int(units.max(initial=0)) + 1)[units]
        hashes = (shifted + java_hashes(properties.data, starts, sizes).astype(np.uint32)).view(np.int32)
        hashes = hashes.astype(np.int64)
        hashes = np.abs(hashes)
        hashes[hashes == 1 << 31] = 0
        return IndexKeys(rows, hashes)

    # ---------------------------------------------------------------- pieces

    def select(self, rows: Int64Array) -> RecordBatch:
        return RecordBatch(self.buffer, self.starts[rows], self.sizes[rows])

    def joined(self) -> RecordBatch:
        """The same records without gaps, in a buffer of their own."""
        buffer = self.buffer
        stops = (self.starts + self.sizes).tolist()
        pieces = [buffer[a:b] for a, b in zip(self.starts.tolist(), stops, strict=True)]
        return RecordBatch.contiguous(bytearray().join(pieces), self.sizes)

    def messages(self) -> list[StoredMessage]:
        """For applications: an object each."""
        buffer = self.buffer
        stops = (self.starts + self.sizes).tolist()
        return [decode_record(buffer[a:b]) for a, b in zip(self.starts.tolist(), stops, strict=True)]
