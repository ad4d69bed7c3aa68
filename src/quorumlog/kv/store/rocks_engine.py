"""RocksEngine: RocksDB through `rocksdict`, in one column family, and without its WAL: that is the log.

What a batch changes lies in memory until it is committed as one write batch, which names the entry that
it leads up to. After a power loss RocksDB is as of an earlier batch, and the log applies what followed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rocksdict import Options, Rdict, ReadOptions, Snapshot, WriteBatch, WriteOptions

from quorumlog.kv.store.engine import SPACES, EngineView
from quorumlog.state_machine import Applied

_APPLIED_KEY = bytes([SPACES])
_ITEM_BYTES = 40
_decode_applied = msgspec.msgpack.Decoder(Applied).decode
_PREFIXES = [bytes([space]) for space in range(SPACES)]


class RocksEngine:
    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._pending: dict[bytes, bytes | None] = {}
        """Changed since the last commit; None: deleted."""
        self._unsynced = WriteOptions()
        self._unsynced.disable_wal = True  # type: ignore[method-assign, assignment]
        Path(self._path).mkdir(parents=True, exist_ok=True)
        self._db = self._opened()
        self._pinned: set[_Pinned] = set()

    def _opened(self) -> Rdict:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_atomic_flush(True)
        return Rdict(self._path, options)

    def get(self, space: int, key: bytes) -> bytes | None:
        full = _PREFIXES[space] + key
        if full in self._pending:
            return self._pending[full]
        value: bytes | None = self._db.get(full)
        return value

    def put(self, space: int, key: bytes, value: bytes) -> None:
        self._pending[_PREFIXES[space] + key] = value

    def delete(self, space: int, key: bytes) -> None:
        self._pending[_PREFIXES[space] + key] = None

    def scan(
        self, space: int, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        first = _PREFIXES[space] + start
        behind = bytes([space + 1]) if stop is None else _PREFIXES[space] + stop
        stored = _stored(self._db, first, behind, reverse)
        changed = sorted(
            ((key, value) for key, value in self._pending.items() if first <= key < behind),
            reverse=reverse,
        )
        for key, value in _merged(stored, changed, reverse) if changed else stored:
            yield key[1:], value

    @contextmanager
    def pinned(self) -> Iterator[EngineView]:
        pinned = _Pinned(self._db.snapshot())
        self._pinned.add(pinned)
        try:
            yield pinned
        finally:
            self._pinned.discard(pinned)

    def count(self, space: int, start: bytes, stop: bytes | None) -> int:
        return sum(1 for _ in self.scan(space, start, stop))

    def commit(self, applied: Applied | None) -> None:
        if not self._pending and applied is None:
            return
        batch = WriteBatch(raw_mode=True)
        for key, value in self._pending.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        if applied is not None:
            batch.put(_APPLIED_KEY, msgspec.msgpack.encode(applied))
        self._db.write(batch, self._unsynced)
        self._pending.clear()

    def applied(self) -> Applied | None:
        stored = self._db.get(_APPLIED_KEY)
        return None if stored is None else _decode_applied(stored)

    def clear(self) -> None:
        self._pending.clear()
        self.close()
        shutil.rmtree(self._path)
        Path(self._path).mkdir(parents=True)
        self._db = self._opened()

    @property
    def size_bytes(self) -> int:
        total = 0
        for name in ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-all-mem-tables"):
            total += int(self._db.property_int_value(name) or 0)
        return total + len(self._pending) * _ITEM_BYTES

    def close(self) -> None:
        for each in self._pinned:
            each.release()  # or the directory stays locked
        self._pinned.clear()
        self._db.close()


class _Pinned:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot: Snapshot | None = snapshot

    def get(self, space: int, key: bytes) -> bytes | None:
        full = _PREFIXES[space] + key
        return next((value for _, value in _stored(self._held, full, full + b"\0", False)), None)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        behind = bytes([space + 1]) if stop is None else _PREFIXES[space] + stop
        for key, value in _stored(self._held, _PREFIXES[space] + start, behind, reverse):
            yield key[1:], value

    @property
    def _held(self) -> Snapshot:
        assert self._snapshot is not None, "the engine is closed"
        return self._snapshot

    def release(self) -> None:
        self._snapshot = None


def _stored(
    view: Rdict | Snapshot, first: bytes, behind: bytes, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    if first >= behind:
        return
    if not reverse:
        # Or one step may go over all that others have written behind it, or deleted there.
        options = ReadOptions()
        options.set_iterate_upper_bound(behind)
        iterator = view.iter(options)
        iterator.seek(first)
        while iterator.valid():
            yield iterator.key(), iterator.value()
            iterator.next()
        return
    iterator = view.iter()
    iterator.seek_for_prev(behind)
    if iterator.valid() and iterator.key() == behind:
        iterator.prev()
    while iterator.valid() and (key := iterator.key()) >= first:
        yield key, iterator.value()
        iterator.prev()


def _merged(
    stored: Iterator[tuple[bytes, bytes]], changed: list[tuple[bytes, bytes | None]], reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """In order; what has changed stands for what is stored."""
    place = 0
    for key, value in stored:
        while place < len(changed) and (changed[place][0] > key if reverse else changed[place][0] < key):
            name, newer = changed[place]
            place += 1
            if newer is not None:
                yield name, newer
        if place < len(changed) and changed[place][0] == key:
            newer = changed[place][1]
            place += 1
            if newer is not None:
                yield key, newer
        else:
            yield key, value
    for name, newer in changed[place:]:
        if newer is not None:
            yield name, newer
