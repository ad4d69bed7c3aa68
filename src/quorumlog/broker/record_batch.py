"""RecordBatch: many records in one buffer, the unit of everything that moves in a message store."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.ma
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.broker.message import (
    BLANK_BYTES,
    BLANK_MAGIC,
    BODY_LENGTH_AT,
    BORN_HOST_AT,
    BORN_HOST_V6,
    CRC_BITS,
    DELAY,
    KEYS,
    LEAST_RECORD_BYTES,
    MAGIC,
    MAGIC_WIDE_TOPIC,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
    TAGS,
    TRANSACTION_BITS,
    UNIQ_KEY,
    V4_BYTES,
    V6_MORE_BYTES,
    RecordParts,
    StoredMessage,
    decode_record,
    parse_record,
    topic_field,
)
from quorumlog.entry_header import Buffer

# ----------------------------------------------------------------
# Java's `String.hashCode`, of many strings at once: the sum of c[i] * 31^(n-1-i) modulo 2^32 over
# UTF-16 units.

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_LAST_ASCII = 127
_POWERS_OF_31 = np.ones(1, np.uint32)

_utf_16_be = codecs.lookup("utf-16-be").encode
"""Looked up here: the first use opens a file, and a member may have no descriptor left by then."""


def java_hash(text: str) -> int:
    """Signed, of 32 bits."""
    data = _utf_16_be(text, "surrogatepass")[0]
    value = 0
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


cached_java_hash = lru_cache(4096)(java_hash)


def key_hash_of(topic: str, key: str) -> int:
    """The hash under which an index file has a key of a message."""
    hashed = abs(java_hash(f"{topic}#{key}"))
    return 0 if hashed == 1 << 31 else hashed


def powers_of_31(count: int) -> npt.NDArray[np.uint32]:
    global _POWERS_OF_31
    if len(_POWERS_OF_31) < count:
        powers = np.full(max(count, 2 * len(_POWERS_OF_31)), 31, np.uint32)
        powers[0] = 1
        _POWERS_OF_31 = np.multiply.accumulate(powers, dtype=np.uint32)
    return _POWERS_OF_31


def gather(data: Bytes, starts: Int64Array, sizes: Int64Array) -> tuple[Bytes, Int64Array]:
    """The pieces one after the other, and where each begins there."""
    stops = np.cumsum(sizes)
    begins = stops - sizes
    total = int(stops[-1]) if len(stops) else 0
    index = np.arange(total, dtype=np.int64) + np.repeat(starts - begins, sizes)
    return data[index], begins


def java_hashes(data: Bytes, starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Of strings that lie in `data` as UTF-8; signed. An empty one has 0."""
    hashes = np.zeros(len(starts), np.int64)
    some = np.flatnonzero(sizes > 0)
    if not len(some):
        return hashes
    starts, sizes = starts[some], sizes[some]
    pieces, begins = gather(data, starts, sizes)
    most = int(sizes.max())
    powers = powers_of_31(most)
    units = pieces.astype(np.uint32)
    if len(pieces) == most * len(sizes):
        # Of one length, as the keys are that clients make.
        sums = units.reshape(-1, most) @ powers[most - 1 :: -1]
    else:
        exponents = np.repeat(begins + sizes - 1, sizes) - np.arange(len(pieces))
        sums = np.add.reduceat(units * powers[exponents], begins, dtype=np.uint32)
    hashes[some] = sums.view(np.int32)
    for at, text in _beyond_ascii(pieces, begins, sizes):
        hashes[some[at]] = java_hash(text)
    return hashes


def utf16_units(data: Bytes, starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """How long these strings are in Java; none is empty."""
    if not len(starts):
        return np.zeros(0, np.int64)
    pieces, begins = gather(data, starts, sizes)
    units = sizes.copy()
    for at, text in _beyond_ascii(pieces, begins, sizes):
        units[at] = len(_utf_16_be(text, "surrogatepass")[0]) // 2
    return units


def _beyond_ascii(pieces: Bytes, begins: Int64Array, sizes: Int64Array) -> Iterator[tuple[int, str]]:
    """Strings with a character that is one unit or two in Java, and two bytes or more here."""
    if int(pieces.max()) > _LAST_ASCII:
        foreign = np.logical_or.reduceat(pieces > _LAST_ASCII, begins)
        for at in np.flatnonzero(foreign).tolist():
            yield at, bytes(pieces[begins[at] : begins[at] + sizes[at]]).decode("utf-8", "replace")


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


def _column(values: Callable[[RecordColumns], npt.NDArray[Any]]) -> cached_property[Int64Array]:
    return cached_property(lambda columns: values(columns).astype(np.int64))


class RecordColumns:
    """Where the parts of many records lie, found with numpy; nothing is done per record. They are at
    `starts` with `sizes` in `data`, and lie whole in it."""

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

    queue_ids = _column(lambda self: self._heads["queue_id"])
    queue_offsets = _column(lambda self: field_of(self.data, self.starts + QUEUE_OFFSET_AT, ">i8"))
    physical_offsets = _column(
        lambda self: field_of(self.data, self.starts + QUEUE_OFFSET_AT + 8, ">i8")
    )
    born_times_ms = _column(lambda self: self._heads["born_time_ms"])
    store_times_ms = _column(lambda self: field_of(self.data, self.store_time_at, ">i8"))
    body_crcs = _column(lambda self: self._heads["body_crc"])
    flags = _column(lambda self: self._heads["flag"])
    reconsume_times = _column(lambda self: field_of(self.data, self.body_starts - 16, ">i4"))


_NAME_END, VALUE_END = 1, 2
_MOST_DIGITS = 9


class Found(NamedTuple):
    """Values of one property, in `PropertyColumns.data`."""

    rows: Int64Array
    """Which records have it, in order."""
    starts: Int64Array
    sizes: Int64Array


class PropertyColumns:
    """The properties of many records at once: where each name and value lies."""

    def __init__(self, columns: RecordColumns) -> None:
        """`columns` have the shape of records."""
        # An end that may be missing after the last value is always added, and then seen twice.
        sizes = columns.property_sizes + 1
        stops = np.cumsum(sizes)
        index = np.repeat(columns.property_starts - stops + sizes, sizes)
        index += np.arange(len(index))
        index[stops - 1] = 0
        self.data: Bytes = columns.data[index]
        self.data[stops - 1] = VALUE_END
        value_ends = np.flatnonzero(self.data == VALUE_END)
        self.property_rows: Int64Array = np.searchsorted(stops, value_ends, side="right")
        starts = np.append(0, value_ends + 1)[:-1]
        # The first 0x01 after where a property begins ends its name; a property without is none.
        name_ends = np.append(np.flatnonzero(self.data == _NAME_END), len(self.data))
        name_stops = name_ends[np.searchsorted(name_ends, starts)]
        is_pair = name_stops < value_ends
        self.property_rows = self.property_rows[is_pair]
        self.name_starts: Int64Array = starts[is_pair]
        self.name_sizes: Int64Array = name_stops[is_pair] - self.name_starts
        self.value_starts: Int64Array = name_stops[is_pair] + 1
        self.value_sizes: Int64Array = value_ends[is_pair] - self.value_starts
        assert not len(stops) or stops[-1] == len(self.data)

    def find(self, name: str) -> Found:
        """If a record has it twice, both are found; Java keeps the last one."""
        wanted = np.frombuffer(name.encode(), np.uint8)
        at = np.flatnonzero(self.name_sizes == len(wanted))
        if len(at):
            names = self.data[self.name_starts[at, None] + np.arange(len(wanted))]
            at = at[(names == wanted).all(axis=1)]
        return Found(self.property_rows[at], self.value_starts[at], self.value_sizes[at])

    def texts(self, name: str, count: int) -> npt.NDArray[np.bytes_]:
        """The value of this property of each of `count` records, the last one if there are two; empty
        without. A value has no zero bytes at its end."""
        found = self.find(name)
        width = int(found.sizes.max(initial=0)) + 1
        within = np.arange(width) < found.sizes[:, None]
        at = np.where(within, found.starts[:, None] + np.arange(width), 0)
        texts = np.zeros((count, width), np.uint8)
        if len(found.rows):
            texts[found.rows] = np.where(within, self.data[at], 0)
        values: npt.NDArray[np.bytes_] = texts.view(f"S{width}")[:, 0]
        return values

    def numbers(self, found: Found) -> Int64Array:
        """Values as numbers; -1 for anything but one to nine digits."""
        numbers = np.full(len(found.rows), -1, np.int64)
        some = np.flatnonzero((found.sizes > 0) & (found.sizes <= _MOST_DIGITS))
        if not len(some):
            return numbers
        sizes = found.sizes[some]
        pieces, begins = gather(self.data, found.starts[some], sizes)
        digits = pieces - np.uint8(ord("0"))  # what lies below "0" wraps around
        exponents = np.repeat(begins + sizes - 1, sizes) - np.arange(len(pieces))
        sums = np.add.reduceat(digits * 10**exponents, begins)
        numbers[some] = np.where(np.logical_and.reduceat(digits <= 9, begins), sums, -1)
        return numbers

    def split_words(self, found: Found) -> Found:
        """Each word of values that have words, parted by spaces."""
        if not len(found.rows):
            return found
        pieces, begins = gather(self.data, found.starts, found.sizes)
        is_word: npt.NDArray[np.bool_] = pieces != ord(" ")
        is_edge = np.zeros(len(pieces) + 1, bool)
        is_edge[begins] = is_edge[-1] = True
        may_begin, may_end = is_edge[:-1].copy(), is_edge[1:].copy()
        may_begin[1:] |= ~is_word[:-1]
        may_end[:-1] |= ~is_word[1:]
        starts = np.flatnonzero(is_word & may_begin)
        stops = np.flatnonzero(is_word & may_end) + 1
        owner = np.repeat(np.arange(len(found.rows)), found.sizes)[starts]
        shift = (found.starts - begins)[owner]
        return Found(found.rows[owner], starts + shift, stops - starts)


_COMMITTED_TRANSACTION = 0x8
_ROLLED_BACK = 0xC
_FIRST_ROW = np.zeros(1, np.int64)
_FIRST_ROW.setflags(write=False)
_PLACE = struct.Struct(">qq")
_STORED = struct.Struct(f">q{V4_BYTES}s")


class QueueKey(NamedTuple):
    topic: str
    queue_id: int


class IndexKeys(NamedTuple):
    """Keys of the index file; one row a key, in the order of the records."""

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
    def lone(self) -> RecordParts | None:
        """Of the only record, which needs no columns; None: there are several, or it has not the shape
        of one."""
        return parse_record(self._only) if len(self.starts) == 1 else None

    @cached_property
    def _only(self) -> memoryview:
        start = int(self.starts[0])
        return self.buffer[start : start + int(self.sizes[0])]

    @property
    def are_good(self) -> bool:
        """All have the shape of a record; CRCs are not looked at."""
        return self.lone is not None or bool(self.columns.good.all())

    def store_time_ms(self, row: int) -> int:
        if self.lone is None:
            return int(self.columns.store_times_ms[row])
        return int(_STORED.unpack_from(self._only, self.lone.store_time_at)[0])

    def lie_at(self, positions: Int64Array) -> bool:
        """Each says so itself."""
        if self.lone is None:
            return bool((self.columns.physical_offsets == positions).all())
        return self.lone.physical_offset == int(positions[0])

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

    def numbered(self, next_offsets: dict[QueueKey, int]) -> Int64Array:
        """The queue offset of each. `next_offsets`: of each queue, and of what follows then."""
        offsets = np.empty(len(self), np.int64)
        for queue, rows in self.queues:
            first = next_offsets.get(queue, 0)
            next_offsets[queue] = first + len(rows)
            if len(rows) == len(self):
                return np.arange(first, first + len(rows))
            offsets[rows] = np.arange(first, first + len(rows))
        return offsets

    def stamp(self, queue_offsets: Int64Array, positions: Int64Array, time_ms: int, host: bytes) -> None:
        """In place: QUEUEOFFSET, PHYSICALOFFSET, STORETIMESTAMP, STOREHOST (IPv4)."""
        if self.lone is not None:
            only = self._only
            _PLACE.pack_into(only, QUEUE_OFFSET_AT, int(queue_offsets[0]), int(positions[0]))
            _STORED.pack_into(only, self.lone.store_time_at, time_ms, host)
            for name in ("lone", "columns"):
                self.__dict__.pop(name, None)
            return
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
        lone = self.lone
        if lone is not None:
            return str(self._only[lone.topic_at : lone.topic_at + lone.topic_bytes], "utf-8", "replace")
        columns = self.columns
        start, size = int(columns.topic_starts[row]), int(columns.topic_sizes[row])
        return str(self.buffer[start : start + size], "utf-8", "replace")

    @cached_property
    def queues(self) -> list[tuple[QueueKey, Int64Array]]:
        """(queue, rows of its records), each queue once; records of a queue in their order."""
        if self.lone is not None:
            return [(QueueKey(self.topic_of(0), self.lone.queue_id), _FIRST_ROW)]
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

    @property
    def shown(self) -> RecordBatch:
        """Those of them that a queue shows."""
        return self if self.in_queue.all() else self.select(np.flatnonzero(self.in_queue))

    def _values_of_one(self, name: str) -> list[str]:
        """Of that property of the only record."""
        assert self.lone is not None, "several, or none"
        properties = bytes(self._only[self.lone.properties_at :])
        pairs = [each.partition(b"\x01") for each in properties.split(b"\x02")]
        wanted = name.encode()
        return [str(value, "utf-8", "replace") for found, end, value in pairs if end and found == wanted]

    @cached_property
    def tags_codes(self) -> Int64Array:
        """Java's hash of the tags, 0 without; of the last TAGS if there are two, as Java has it."""
        if self.lone is not None:
            return np.array([java_hash(tags) for tags in self._values_of_one(TAGS)[-1:]] or [0])
        found = self.properties.find(TAGS)
        codes = np.zeros(len(self), np.int64)
        codes[found.rows] = java_hashes(self.properties.data, found.starts, found.sizes)
        return codes

    @cached_property
    def delay_levels(self) -> Int64Array:
        """-1 for a message without a valid delay level."""
        found = self.properties.find(DELAY)
        levels = np.full(len(self), -1, np.int64)
        levels[found.rows] = self.properties.numbers(found)
        return levels

    @cached_property
    def index_keys(self) -> IndexKeys:
        """UNIQ_KEY, then each word of KEYS."""
        if self.lone is not None:
            return self._index_keys_of_one()
        properties, columns = self.properties, self.columns
        unique = properties.find(UNIQ_KEY)
        words = properties.split_words(properties.find(KEYS))
        rows = np.concatenate([unique.rows, words.rows])
        starts = np.concatenate([unique.starts, words.starts])
        sizes = np.concatenate([unique.sizes, words.sizes])
        keep = (columns.sys_flag[rows] & TRANSACTION_BITS) != _ROLLED_BACK
        kept = np.flatnonzero(keep & (sizes > 0))
        kept = kept[np.argsort(rows[kept], kind="stable")]
        rows, starts, sizes = rows[kept], starts[kept], sizes[kept]
        # hash(topic#key) = hash(topic#) * 31^units(key) + hash(key), modulo 2^32.
        of_topic = np.zeros(len(self), np.int64)
        for queue, records in self.queues:
            of_topic[records] = cached_java_hash(f"{queue.topic}#")
        units = utf16_units(properties.data, starts, sizes)
        shifted = of_topic[rows].astype(np.uint32) * powers_of_31(int(units.max(initial=0)) + 1)[units]
        hashes = (shifted + java_hashes(properties.data, starts, sizes).astype(np.uint32)).view(np.int32)
        hashes = np.abs(hashes.astype(np.int64))
        hashes[hashes == 1 << 31] = 0
        return IndexKeys(rows, hashes)

    def _index_keys_of_one(self) -> IndexKeys:
        keys: list[str] = []
        if self.lone is not None and self.lone.sys_flag & TRANSACTION_BITS != _ROLLED_BACK:
            keys += self._values_of_one(UNIQ_KEY)
            for words in self._values_of_one(KEYS):
                keys += words.split(" ")
        topic = self.topic_of(0)
        hashes = [key_hash_of(topic, key) for key in keys if key]
        return IndexKeys(np.zeros(len(hashes), np.int64), np.array(hashes, np.int64))

    # ---------------------------------------------------------------- pieces

    def select(self, rows: Int64Array) -> RecordBatch:
        return RecordBatch(self.buffer, self.starts[rows], self.sizes[rows])

    def joined(self) -> RecordBatch:
        """The same records without gaps, in a buffer of their own."""
        return RecordBatch.contiguous(bytearray().join(self._pieces()), self.sizes)

    def _pieces(self) -> list[memoryview]:
        buffer, stops = self.buffer, (self.starts + self.sizes).tolist()
        return [buffer[a:b] for a, b in zip(self.starts.tolist(), stops, strict=True)]

    def messages(self) -> list[StoredMessage]:
        """For applications: an object each."""
        return [decode_record(piece) for piece in self._pieces()]


# ----------------------------------------------------------------
# Where records begin in bytes that are read from a file: each says how long it is.

_SIZE_AND_MAGIC = struct.Struct(">II")
_RUN = 4096
"""Records of equal size are looked for so many at a time."""


class ScanStop(Enum):
    """Why a scan went no further."""

    BYTES = "bytes"
    """The next record is incomplete in the given bytes."""
    BLANK = "blank"
    """The rest of the file is empty, and closed."""
    NOTHING = "nothing"
    """Zeros: nothing was written here."""
    NO_RECORD = "no record"


class Scan(NamedTuple):
    starts: Int64Array
    sizes: Int64Array
    stop: ScanStop
    stop_at: int
    wanted_bytes: int
    """With BYTES: of the next record, as far as that is known."""


def scan_records(data: Buffer) -> Scan:
    """Only sizes and magic codes are looked at."""
    view = memoryview(data)
    at, end = 0, len(view)
    starts: list[Int64Array] = []
    sizes: list[Int64Array] = []
    loose: list[int] = []
    loose_sizes: list[int] = []
    array = np.frombuffer(view, np.uint8)
    stop, wanted = ScanStop.BYTES, LEAST_RECORD_BYTES
    last_size = 0
    while at + BLANK_BYTES <= end:
        size, magic = _SIZE_AND_MAGIC.unpack_from(view, at)
        if magic not in (MAGIC, MAGIC_WIDE_TOPIC):
            if magic == BLANK_MAGIC and size >= BLANK_BYTES:
                stop = ScanStop.BLANK
            else:
                stop = ScanStop.NOTHING if size == 0 and magic == 0 else ScanStop.NO_RECORD
            break
        if size < LEAST_RECORD_BYTES:
            stop = ScanStop.NO_RECORD
            break
        if at + size > end:
            wanted = size
            break
        loose.append(at)
        loose_sizes.append(size)
        at += size
        if size == last_size:
            run = _run_of(array, at, size)
            if run:
                starts += [np.array(loose, np.int64), at + size * np.arange(run, dtype=np.int64)]
                sizes += [np.array(loose_sizes, np.int64), np.full(run, size, np.int64)]
                loose.clear()
                loose_sizes.clear()
                at += run * size
        last_size = size
    starts.append(np.array(loose, np.int64))
    sizes.append(np.array(loose_sizes, np.int64))
    return Scan(np.concatenate(starts), np.concatenate(sizes), stop, at, wanted)


def _run_of(array: np.ndarray[tuple[int], np.dtype[np.uint8]], at: int, size: int) -> int:
    """How many whole records of this size follow each other from `at` on."""
    fit = min((len(array) - at) // size, _RUN)
    if fit <= 0:
        return 0
    window = np.lib.stride_tricks.as_strided(array[at:], (fit, 8), (size, 1))
    head = array[at - size : at - size + 8]
    same = (window == head).all(axis=1)
    return fit if same.all() else int(np.argmin(same))


# ----------------------------------------------------------------
# Records that go to another queue as they are: delayed messages that are due.

_BYTES_TO_QUEUE = 16
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
    fields = [topic_field(topic.encode()) for topic, _ in targets]
    topic_bytes = np.array([len(topic) for _, topic in fields], np.int64)
    topic_starts = np.cumsum(topic_bytes) - topic_bytes
    kept, kept_bytes = _properties(records, without)

    middle_starts = records.starts + _BYTES_TO_QUEUE
    middle_bytes = columns.body_starts + columns.body_sizes - middle_starts
    sizes = _BYTES_TO_QUEUE + middle_bytes + topic_bytes[target_of] + 2 + kept_bytes
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)

    head = np.empty((len(records), 4), ">u4")
    head[:, 0] = sizes
    head[:, 1] = np.array([magic for magic, _ in fields], np.int64)[target_of]
    head[:, 2] = columns.body_crcs
    head[:, 3] = np.array([queue_id for _, queue_id in targets], np.int64)[target_of]
    put_bytes(out, starts, head.view(np.uint8))
    at = starts + _BYTES_TO_QUEUE
    _lay(out, at, middle_bytes, gather(records.data, middle_starts, middle_bytes)[0])
    at = at + middle_bytes
    all_topics = np.frombuffer(b"".join(topic for _, topic in fields), np.uint8)
    wanted = topic_bytes[target_of]
    _lay(out, at, wanted, gather(all_topics, topic_starts[target_of], wanted)[0])
    at = at + wanted
    put_bytes(out, at, kept_bytes.astype(">u2")[:, None].view(np.uint8))
    _lay(out, at + 2, kept_bytes, kept)
    return RecordBatch.contiguous(out.tobytes(), sizes)


def _properties(records: RecordBatch, without: Collection[str]) -> tuple[Bytes, Int64Array]:
    """What stays of the properties, one record's after the other's, and how much of each."""
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
    # An end without anything before it: after the last property there may be one, and here always is.
    record_bytes = records.columns.property_sizes + 1
    owner = np.repeat(np.arange(len(records)), record_bytes)
    is_end = data == VALUE_END
    after_end = np.ones(len(data), bool)
    after_end[1:] = is_end[:-1]
    after_end[np.cumsum(record_bytes) - record_bytes] = True
    stays &= ~(is_end & after_end)
    return data[stays], np.bincount(owner[stays], minlength=len(records)).astype(np.int64)


def _lay(out: Bytes, starts: Int64Array, sizes: Int64Array, pieces: Bytes) -> None:
    """Pieces that lie one after the other, each to its place."""
    begins = np.cumsum(sizes) - sizes
    out[np.arange(len(pieces)) + np.repeat(starts - begins, sizes)] = pieces
