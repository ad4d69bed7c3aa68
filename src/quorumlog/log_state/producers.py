"""Producers: the sessions in a log, and the entries of each.

A session is a producer and its epoch. The entries of a producer are numbered from 0 on, across its
epochs. A PRODUCER entry gives the numbers of the entries after it. A no-op among them, which opens
another term, shows that a crash has cut that batch, and the producer's last number is that of the entry
before.

One value of many sessions: each change makes another one that shares nearly all with the one before. A
session is kept as its bytes, which take a fifth of the memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import accumulate
from typing import Any, Self

import msgspec

from quorumlog.log_state.control_entries import (
    ANONYMOUS,
    MOST_PRODUCERS,
    Body,
    Index,
    Name,
    OpenProducer,
    ProducerBatch,
    ProducerEpoch,
    Sequence,
    Token,
)

MOST_BATCHES = 5
"""Of a session: their indices are remembered. A client leaves no more of them unanswered, counted from
the oldest one."""
MOST_RANGES = 64
"""Of those batches together: each crash may cut one."""
EVICTED_TOGETHER = 100
"""To find the least recently used one costs a look at all."""
EVICTED_BYTES = 32 << 10
"""Of their names: one entry says them all."""
_USED_BYTES = 8
_FAN_OUT = 64


class ProducerRange(Body, frozen=True):
    """Entries of a producer that follow each other in the log."""

    first_sequence: Sequence
    first_index: Index
    count: Index
    term: Index

    @property
    def stop_sequence(self) -> int:
        return self.first_sequence + self.count


class SessionRecord(Body, frozen=True):
    """Of one producer."""

    epoch: ProducerEpoch
    """The current one."""
    token: Token
    last_sequence: Index = -1
    """-1: nothing is in the log."""
    batches: tuple[tuple[ProducerRange, ...], ...] = ()
    """The newest ones, oldest first."""

    def ranges_of(self, first_sequence: int, count: int) -> tuple[ProducerRange, ...] | None:
        """Where these numbers lie; None if that is not remembered of all."""
        stop, found = first_sequence + count, []
        at = first_sequence
        for each in (one for batch in self.batches for one in batch):
            if at < stop and each.first_sequence <= at < each.stop_sequence:
                skip = at - each.first_sequence
                taken = min(stop, each.stop_sequence) - at
                found.append(ProducerRange(at, each.first_index + skip, taken, each.term))
                at += taken
        return tuple(found) if at == stop else None


class Current(Body, frozen=True):
    """The last batch of all producers, which another term may still cut."""

    producer: Name
    first_index: Index
    """Of its first data entry."""
    count: Index
    term: Index

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1


_Shelf = dict[str, bytes]
"""producer -> index of the entry that named it last (8 bytes), and its Session."""
_Shelves = tuple[tuple[_Shelf, ...], ...]
_NO_SHELF: _Shelf = {}
_NO_ROW: tuple[_Shelf, ...] = (_NO_SHELF,) * _FAN_OUT
_NO_SHELVES: _Shelves = (_NO_ROW,) * _FAN_OUT
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SessionRecord)
_record_decoder = msgspec.msgpack.Decoder(tuple[Current | None, list[msgspec.Raw]])
_item_decoder = msgspec.msgpack.Decoder(tuple[Name, bytes])


def _place(producer: str) -> tuple[int, int]:
    number = zlib.crc32(producer.encode())
    return number % _FAN_OUT, number // _FAN_OUT % _FAN_OUT


class Producers:
    """Never changed once it is made."""

    __slots__ = ("_shelves", "count", "current")

    def __init__(self, shelves: _Shelves, count: int, current: Current | None) -> None:
        self._shelves = shelves
        self.count = count
        self.current = current

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Producers):
            return NotImplemented
        return self.current == other.current and self._shelves == other._shelves

    def __hash__(self) -> int:
        return hash((self.count, self.current))

    def __repr__(self) -> str:
        return f"<Producers {dict(self.items())} {self.current}>"

    # ---------------------------------------------------------------- asked

    def get(self, producer: str, last_index: int | None = None) -> SessionRecord | None:
        """Of a log that ends with `last_index`; None: its last batch is whole, as a leader's is."""
        outer, inner = _place(producer)
        packed = self._shelves[outer][inner].get(producer)
        if packed is None:
            return None
        session = _decoder.decode(memoryview(packed)[_USED_BYTES:])
        current = self.current
        if last_index is None or current is None or current.producer != producer:
            return session
        return _cut(session, current, last_index + 1)

    def names(self) -> Iterator[str]:
        """In no order."""
        return (name for shelf in self._filled() for name in shelf)

    def _filled(self) -> Iterator[_Shelf]:
        """A few producers fill a few of thousands of shelves; a state is encoded at each boundary."""
        rows = (row for row in self._shelves if row is not _NO_ROW)
        return (shelf for row in rows for shelf in row if shelf)

    def items(self) -> list[tuple[str, SessionRecord]]:
        """By name."""
        found = ((name, self.get(name)) for name in sorted(self.names()))
        return [(name, session) for name, session in found if session is not None]

    def to_evict(self) -> tuple[str, ...]:
        """Producers that the next OPEN of another one must evict: none while there is room. Empty also
        if none may be forgotten."""
        if self.count < MOST_PRODUCERS:
            return ()
        anonymous = (
            (packed[:_USED_BYTES], name)
            for shelf in self._filled()
            for name, packed in shelf.items()
            if name[0] == ANONYMOUS
        )
        oldest = [name for _, name in nsmallest(EVICTED_TOGETHER, anonymous)]
        sizes = accumulate(len(name.encode()) for name in oldest)
        return tuple(name for name, size in zip(oldest, sizes, strict=True) if size <= EVICTED_BYTES)

    # ---------------------------------------------------------------- what comes of entries

    def opened(self, epoch: ProducerEpoch, body: OpenProducer) -> Self:
        """After an OPEN entry at index `epoch`."""
        session = self.get(body.producer)
        if (None if session is None else session.epoch) != body.ends:
            return self
        if body.forgets:
            return self._without((body.producer,))
        kept = self._without([name for name in body.evicts if name != body.producer])
        if session is None and kept.count >= MOST_PRODUCERS:
            return self
        opened = SessionRecord(epoch, body.token)
        if session is not None:
            opened = msgspec.structs.replace(session, epoch=epoch, token=body.token)
        return kept._with(body.producer, epoch.index, opened, self.current)

    def with_batch(self, index: int, term: int, body: ProducerBatch) -> Self:
        """After a PRODUCER entry at `index`, followed by its batch."""
        place = _place(body.producer)
        packed = self._shelves[place[0]][place[1]].get(body.producer)
        if packed is None:
            return self
        session = _decoder.decode(packed[_USED_BYTES:])
        if session.last_sequence + 1 != body.first_sequence or session.epoch != body.epoch:
            return self
        ranges: tuple[ProducerRange, ...] = (
            ProducerRange(body.first_sequence, index + 1, body.count, term),
        )
        batches = session.batches
        if body.continues and batches:
            batches, ranges = batches[:-1], batches[-1] + ranges
        last_sequence = body.first_sequence + body.count - 1
        batches = _bounded((*batches, ranges))
        session = SessionRecord(session.epoch, session.token, last_sequence, batches)
        return self._with(
            body.producer, index, session, Current(body.producer, index + 1, body.count, term)
        )

    def cut_at(self, index: int) -> Self:
        """After a no-op at `index`: another term begins."""
        current = self.current
        if current is None or index > current.last_index:
            return self
        session = self.get(current.producer, index - 1)
        if session is None:
            return type(self)(self._shelves, self.count, None)  # it was forgotten since
        return self._with(current.producer, current.first_index - 1, session, None)

    def _with(
        self, producer: str, used_index: int, session: SessionRecord, current: Current | None
    ) -> Self:
        outer, inner = _place(producer)
        shelf = dict(self._shelves[outer][inner])
        count = self.count + (producer not in shelf)
        shelf[producer] = used_index.to_bytes(_USED_BYTES, "big") + _encoder.encode(session)
        return type(self)(_replaced(self._shelves, outer, inner, shelf), count, current)

    def _without(self, producers: tuple[str, ...] | list[str]) -> Self:
        shelves, count = self._shelves, self.count
        for producer in producers:
            outer, inner = _place(producer)
            shelf = dict(shelves[outer][inner])
            if shelf.pop(producer, None) is not None:
                shelves, count = _replaced(shelves, outer, inner, shelf), count - 1
        return type(self)(shelves, count, self.current)

    # ---------------------------------------------------------------- as a record

    def record(self) -> tuple[Current | None, list[tuple[str, bytes]]]:
        items = (item for shelf in self._filled() for item in shelf.items())
        return self.current, sorted(items)

    @classmethod
    def of_record(cls, current: Current | None, items: Iterable[tuple[str, bytes]]) -> Self:
        """Raises msgspec.DecodeError."""
        rows: dict[int, dict[int, _Shelf]] = {}
        count = 0
        for producer, packed in items:
            _decoder.decode(memoryview(packed)[_USED_BYTES:])
            outer, inner = _place(producer)
            rows.setdefault(outer, {}).setdefault(inner, {})[producer] = packed
            count += 1
        shelves = tuple(
            tuple(rows[outer].get(inner, _NO_SHELF) for inner in range(_FAN_OUT))
            if outer in rows
            else _NO_ROW
            for outer in range(_FAN_OUT)
        )
        return cls(shelves, count, current)


NO_PRODUCERS = Producers(_NO_SHELVES, 0, None)


def _replaced(shelves: _Shelves, outer: int, inner: int, shelf: _Shelf) -> _Shelves:
    row = [*shelves[outer]]
    row[inner] = shelf
    rows = [*shelves]
    rows[outer] = tuple(row)
    return tuple(rows)


def _cut(session: SessionRecord, current: Current, index: int) -> SessionRecord:
    """The same if `current`, its last batch, ends before `index`."""
    last = session.batches[-1][-1] if session.batches else None
    if last is None or last.first_index != current.first_index or index > current.last_index:
        return session
    count = max(0, index - current.first_index)
    ranges = session.batches[-1][:-1]
    if count:
        ranges = (*ranges, msgspec.structs.replace(last, count=count))
    return msgspec.structs.replace(
        session,
        last_sequence=last.first_sequence + count - 1,
        batches=(*session.batches[:-1], ranges) if ranges else session.batches[:-1],
    )


def _bounded(batches: tuple[tuple[ProducerRange, ...], ...]) -> tuple[tuple[ProducerRange, ...], ...]:
    batches = batches[-MOST_BATCHES:]
    while sum(map(len, batches)) > MOST_RANGES:
        batches = (batches[0][1:], *batches[1:]) if len(batches[0]) > 1 else batches[1:]
    return batches


def encode_hook(value: Any) -> object:
    assert isinstance(value, Producers), value
    return value.record()


def decode_producers(record: msgspec.Raw) -> Producers:
    """Raises msgspec.DecodeError."""
    current, items = _record_decoder.decode(record)
    # One at a time, and none kept: a list of all would be as large again as what becomes of them.
    decoded = (_item_decoder.decode(items.pop()) for _ in range(len(items)))
    return Producers.of_record(current, decoded)
