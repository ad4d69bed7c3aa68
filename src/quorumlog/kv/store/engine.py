"""Ordered bytes, in memory or in RocksDB."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, Protocol

import msgspec
from sortedcontainers import SortedDict

from quorumlog.state_machine import Applied

with suppress(ImportError):  # of the extra `rocksdb`: the choice of the engine looks for it
    from rocksdict import Options, Rdict, ReadOptions, WriteBatch, WriteOptions

# ---------------------------------------------------------------- Engine
# Ordered maps of bytes, one a space, which the keyspace is written on.
#
#     CURRENT   key                      the key as it is now: an encoded KeyValue
#     OLDER     escaped key + revision   what it was before: a KeyValue; version 0: it was deleted
#     CHANGES   revision + number        the key that was changed; since the compacted revision
#     LEASES    lease                    encoded (TTL, index of its grant)
#     ATTACHED  lease + key              nothing
#     STAND     name                     encoded numbers
#
# Numbers are 8 bytes, big-endian, so that they sort. A key before a number is escaped: it ends
# where no other can go on.

CURRENT, OLDER, CHANGES, LEASES, ATTACHED, STATE = range(6)
SPACES = 6

NUMBER = Struct(">Q")
CHANGE = Struct(">QI")
END = b"\0\1"


def escaped(key: bytes) -> bytes:
    return key.replace(b"\0", b"\0\xff") + END


def older_key(key: bytes, revision: int) -> bytes:
    return escaped(key) + NUMBER.pack(revision)


def parse_older_key(stored: bytes) -> tuple[bytes, int]:
    """(key, revision)."""
    return stored[:-10].replace(b"\0\xff", b"\0"), int(NUMBER.unpack_from(stored, len(stored) - 8)[0])


class Engine(Protocol):
    def get(self, space: int, key: bytes) -> bytes | None: ...

    def scan(
        self, space: int, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """start <= key < stop, in order; None: to the end. Nothing may be changed before it is
        consumed."""

    def put(self, space: int, key: bytes, value: bytes) -> None: ...

    def delete(self, space: int, key: bytes) -> None:
        """The key may be absent."""

    def count(self, space: int, start: bytes, stop: bytes | None) -> int: ...

    def commit(self, applied: Applied | None) -> None:
        """Write the changes since the last commit atomically, with `applied`; None: `applied` has not
        changed."""

    def applied(self) -> Applied | None:
        """Of the last commit; None: an engine in memory, or no commit yet."""

    def clear(self) -> None:
        """Delete everything."""

    @property
    def size_bytes(self) -> int:
        """Approximate number of bytes held."""

    def close(self) -> None: ...


# ----------------------------------------------------------------
# MemoryEngine: ordered maps in memory. What outlives the process are the log and snapshots.

OVERHEAD_BYTES = 100
"""Of an item, beside its key and value."""

_set: Any = dict.__setitem__


class MemoryEngine:
    def __init__(self) -> None:
        self._spaces: list[SortedDict[bytes, bytes]] = []
        self._size_bytes = 0
        self.clear()

    def get(self, space: int, key: bytes) -> bytes | None:
        return self._spaces[space].get(key)

    def put(self, space: int, key: bytes, value: bytes) -> None:
        items = self._spaces[space]
        before = items.get(key)
        if before is None:
            self._size_bytes += len(key) + len(value) + OVERHEAD_BYTES
            items[key] = value
        else:
            self._size_bytes += len(value) - len(before)
            _set(items, key, value)  # its place is there

    def delete(self, space: int, key: bytes) -> None:
        value = self._spaces[space].pop(key, None)
        if value is not None:
            self._size_bytes -= len(key) + len(value) + OVERHEAD_BYTES

    def scan(
        self, space: int, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        items = self._spaces[space]
        for key in items.irange(start, stop, (True, False), reverse):
            yield key, items[key]

    def count(self, space: int, start: bytes, stop: bytes | None) -> int:
        items = self._spaces[space]
        end = len(items) if stop is None else items.bisect_left(stop)
        return max(0, end - items.bisect_left(start))

    def commit(self, applied: Applied | None) -> None:
        """There is no disk."""

    def applied(self) -> Applied | None:
        return None

    def clear(self) -> None:
        self._spaces = [SortedDict() for _ in range(SPACES)]
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def close(self) -> None:
        """Nothing is open."""


# ---------------------------------------------------------------- RocksEngine
# RocksDB through `rocksdict`, in one column family, and without its WAL: that is the log.
#
# What a batch changes lies in memory until it is committed as one write batch, which names the entry
# that it leads up to. After a power loss RocksDB is as of an earlier batch, and the log applies what
# followed. Where one command changes more than `MOST_PENDING_BYTES`, what there is goes to RocksDB
# before, and no entry is named until the end: a start that finds none named builds the store anew.
#
#     PATH              the database
#     PATH.cleared      what `clear` has to remove; the next start removes the rest of it
#     PATH.damaged      damage was found when it was read: the next start sets it aside
#     PATH.set-aside    the last one that could not be opened or read, for people to look at
#
# Nothing is lost with a database that is damaged: the machine loads its newest snapshot, and the log
# applies what follows.

log = logging.getLogger("quorumlog.kv")

MAX_SET_ASIDE_BYTES = 1 << 30
"""A larger database that cannot be opened is removed."""

MOST_PENDING_BYTES = 16 << 20
"""Changed, and not committed; in memory."""

_DAMAGED = ("Corruption", "No such file or directory")
_NO_DAMAGE = (
    "Permission denied",
    "Too many open files",
    "No space left on device",
    "Input/output error",
    "Cannot allocate memory",
)
"""RocksDB wraps what the system says into `Corruption` where it reads the list of its files."""

_APPLIED_KEY = bytes([SPACES])
_ITEM_BYTES = 40
_decode_applied = msgspec.msgpack.Decoder(Applied).decode
_PREFIXES = [bytes([space]) for space in range(SPACES)]


class RocksEngine:
    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._pending: dict[bytes, bytes | None] = {}
        """Changed since the last commit; None: deleted."""
        self._pending_bytes = 0
        self._is_partial = False
        """RocksDB has some of what was changed since the last commit."""
        self._unsynced = WriteOptions()
        self._unsynced.disable_wal = True  # type: ignore[method-assign, assignment]
        self._db = self._opened()
        self._named: bytes | None = self._db.get(_APPLIED_KEY)
        """The entry of the last commit; RocksDB names none while it has some of what follows."""

    def _opened(self) -> Rdict:
        self._remove_cleared()
        if os.path.exists(self._damaged):
            if os.path.exists(self._path):
                self._set_aside("damage was found when it was read")
            os.unlink(self._damaged)
        try:
            return self._open()
        except Exception as error:
            if not _is_damage(error):
                raise
            self._set_aside(str(error))
            return self._open()

    def _open(self) -> Rdict:
        Path(self._path).mkdir(parents=True, exist_ok=True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_atomic_flush(True)
        db = Rdict(self._path, options)
        try:
            db.get(_APPLIED_KEY)  # the one that each start reads
        except Exception:
            db.close()
            raise
        return db

    def get(self, space: int, key: bytes) -> bytes | None:
        full = _PREFIXES[space] + key
        if full in self._pending:
            return self._pending[full]
        try:
            value: bytes | None = self._db.get(full)
        except Exception as error:
            self._note(error)
            raise
        return value

    def put(self, space: int, key: bytes, value: bytes) -> None:
        self._change(_PREFIXES[space] + key, value)

    def delete(self, space: int, key: bytes) -> None:
        self._change(_PREFIXES[space] + key, None)

    def _change(self, full: bytes, value: bytes | None) -> None:
        self._pending[full] = value
        self._pending_bytes += _ITEM_BYTES + len(full) + (0 if value is None else len(value))
        if self._pending_bytes > MOST_PENDING_BYTES:
            self._is_partial = True
            self._write(None)

    def scan(
        self, space: int, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        first = _PREFIXES[space] + start
        behind = bytes([space + 1]) if stop is None else _PREFIXES[space] + stop
        stored = self._stored(first, behind, reverse)
        changed = sorted(
            ((key, value) for key, value in self._pending.items() if first <= key < behind),
            reverse=reverse,
        )
        for key, value in _merged(stored, changed, reverse) if changed else stored:
            yield key[1:], value

    def _stored(self, first: bytes, behind: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from _iterated(self._db, first, behind, reverse)
        except Exception as error:
            self._note(error)
            raise

    def _note(self, error: Exception) -> None:
        """The machine stops: what it read is wrong or missing. All of it is in the log and snapshots."""
        if _is_damage(error):
            Path(self._damaged).touch()

    def count(self, space: int, start: bytes, stop: bytes | None) -> int:
        return sum(1 for _ in self.scan(space, start, stop))

    def commit(self, applied: Applied | None) -> None:
        if applied is not None:
            self._named = msgspec.msgpack.encode(applied)
        elif not self._pending and not self._is_partial:
            return
        self._write(self._named)
        self._is_partial = False

    def _write(self, named: bytes | None) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in self._pending.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        if named is None:
            batch.delete(_APPLIED_KEY)
        else:
            batch.put(_APPLIED_KEY, named)
        self._db.write(batch, self._unsynced)
        self._forget_pending()

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0

    def applied(self) -> Applied | None:
        stored = self._db.get(_APPLIED_KEY)
        return None if stored is None else _decode_applied(stored)

    def clear(self) -> None:
        self._forget_pending()
        self._named, self._is_partial = None, False
        self.close()
        self._move(self._cleared)
        self._db = self._opened()

    @property
    def _damaged(self) -> str:
        return f"{self._path}.damaged"

    @property
    def _cleared(self) -> str:
        return f"{self._path}.cleared"

    def _remove_cleared(self) -> None:
        if os.path.exists(self._cleared):
            shutil.rmtree(self._cleared)

    def _move(self, target: str) -> None:
        """The database as a whole: its directory is there with all its files, or it is not there. On
        disk when this returns, or after a power loss some of its files could be back."""
        os.rename(self._path, target)
        descriptor = os.open(os.path.dirname(self._path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _set_aside(self, reason: str) -> None:
        target = f"{self._path}.set-aside"
        if os.path.exists(target):
            shutil.rmtree(target)
        size_bytes = sum(each.lstat().st_size for each in Path(self._path).rglob("*"))
        if size_bytes > MAX_SET_ASIDE_BYTES:
            target = self._cleared
        self._move(target)
        log.warning(
            "%s cannot be opened (%s): %s; the store is loaded from its newest snapshot and the log",
            self._path,
            " ".join(reason.split()),
            "removed" if target == self._cleared else f"set aside as {target}",
        )
        self._remove_cleared()

    @property
    def size_bytes(self) -> int:
        total = 0
        for name in ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-all-mem-tables"):
            total += int(self._db.property_int_value(name) or 0)
        return total + len(self._pending) * _ITEM_BYTES

    def close(self) -> None:
        self._db.close()


def _is_damage(error: Exception) -> bool:
    reason = str(error)
    is_of_system = any(each in reason for each in _NO_DAMAGE)
    return not is_of_system and any(each in reason for each in _DAMAGED)


def _iterated(db: Rdict, first: bytes, behind: bytes, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
    if first >= behind:
        return
    if not reverse:
        # Or one step may go over all that others have written after it, or deleted there.
        options = ReadOptions()
        options.set_iterate_upper_bound(behind)
        iterator = db.iter(options)
        iterator.seek(first)
        while iterator.valid():
            yield iterator.key(), iterator.value()
            iterator.next()
        iterator.status()  # raises where it was damage that has ended it
        return
    iterator = db.iter()
    iterator.seek_for_prev(behind)
    if iterator.valid() and iterator.key() == behind:
        iterator.prev()
    while iterator.valid() and (key := iterator.key()) >= first:
        yield key, iterator.value()
        iterator.prev()
    iterator.status()


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
