"""Keyspace: keys, what they were before, and the leases that they end with. A revision is the index of
the entry that changed a key; see `engine` for where what lies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from quorumlog.kv.errors import Compacted, FutureRevision
from quorumlog.kv.requests.operations import FROM_KEY, NO_LEASE, KeyValue, decode_key_value, encode
from quorumlog.kv.store.engine import (
    ATTACHED,
    CHANGE,
    CHANGES,
    CURRENT,
    LEASES,
    NUMBER,
    OLDER,
    STAND,
    Engine,
    escaped,
    older_key,
)

_LEASE = msgspec.msgpack.Decoder(tuple[int, int])
_REVISIONS = msgspec.msgpack.Decoder(tuple[int, int, int])
_COUNT = msgspec.msgpack.Decoder(tuple[int, int])
_STAND_KEY = b"revisions"
_COUNT_KEY = b"keys"
_VERSION_KEY = b"version"
SLICE_KEYS = 1_000
SLICE_BYTES = 1 << 20
"""Of keys that are read at once, before they are changed."""
MOST_WRITTEN_BYTES = 16 << 20
"""What one command changes is told to watches up to so much; more is read from history."""


class Lease(NamedTuple):
    ttl_ms: int
    granted_at: int
    """Index of its grant: tells it from an earlier or later one of the same id."""


class Written(NamedTuple):
    """One key changed: what watches hear."""

    key: bytes
    kv: bytes
    """Encoded, as it is now; version 0: deleted."""
    prev: bytes | None


class Keyspace:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.leases: dict[int, Lease] = {}
        self.revision = self.compacted = self.swept_to = 0
        """The newest change; history below `compacted` is gone, below `swept_to` from the engine."""
        self.keys = 0
        """How many there are: an engine with a disk would have to look at each."""
        self.begin_command()
        self.take_over()

    def begin_command(self) -> None:
        self.written: list[Written] = []
        """By the command that is under way; empty if it has written more than `MOST_WRITTEN_BYTES`."""
        self.written_bytes = 0
        self.changes = 0

    def take_over(self) -> None:
        """What lies in the engine."""
        stored = self.engine.get(STAND, _STAND_KEY)
        self.revision, self.compacted, self.swept_to = (
            (0, 0, 0) if stored is None else _REVISIONS.decode(stored)
        )
        counted = self.engine.get(STAND, _COUNT_KEY)
        at, self.keys = (-1, 0) if counted is None else _COUNT.decode(counted)
        if at != self.revision:  # an earlier release does not count
            self.keys = self.engine.count(CURRENT, b"", None)
        self.leases = {
            int(NUMBER.unpack(key)[0]): Lease(*_LEASE.decode(value))
            for key, value in self.engine.scan(LEASES, b"", None)
        }

    def save_stand(self) -> None:
        self.engine.put(STAND, _STAND_KEY, encode((self.revision, self.compacted, self.swept_to)))
        self.engine.put(STAND, _COUNT_KEY, encode((self.revision, self.keys)))

    @property
    def version(self) -> int:
        """That the machine was told last; an earlier release kept none, and had the first only."""
        stored = self.engine.get(STAND, _VERSION_KEY)
        return 1 if stored is None else int(NUMBER.unpack(stored)[0])

    def keep_version(self, version: int) -> None:
        self.engine.put(STAND, _VERSION_KEY, NUMBER.pack(version))

    def current(self, key: bytes) -> KeyValue | None:
        stored = self.engine.get(CURRENT, key)
        return None if stored is None else decode_key_value(stored)

    def check_revision(self, revision: int) -> None:
        """Raises Compacted, FutureRevision."""
        if revision > self.revision:
            raise FutureRevision(f"revision {revision} is above {self.revision}, the newest")
        if revision < self.compacted:
            raise Compacted(
                f"revision {revision} is compacted: history begins at {self.compacted}",
                compacted_revision=self.compacted,
            )

    # ---------------------------------------------------------------- changes

    def put(self, key: bytes, value: bytes, lease: int, revision: int) -> bytes | None:
        """What it was before, encoded."""
        engine = self.engine
        before = engine.get(CURRENT, key)
        if before is None:
            create_revision, version, old_lease = revision, 1, NO_LEASE
            self.keys += 1
        else:
            old = decode_key_value(before)
            create_revision, version, old_lease = old.create_revision, old.version + 1, old.lease
            engine.put(OLDER, older_key(key, old.mod_revision), before)
        now = encode(KeyValue(key, create_revision, revision, version, value, lease))
        engine.put(CURRENT, key, now)
        self._changed(key, now, before, revision)
        if lease != old_lease:
            self._detach(old_lease, key)
            self.attach(lease, key)
        return before

    def delete(self, key: bytes, revision: int) -> bytes | None:
        engine = self.engine
        before = engine.get(CURRENT, key)
        if before is None:
            return None
        old = decode_key_value(before)
        engine.put(OLDER, older_key(key, old.mod_revision), before)
        gone = encode(KeyValue(key, 0, revision, 0, b"", NO_LEASE))
        engine.put(OLDER, older_key(key, revision), gone)
        engine.delete(CURRENT, key)
        self.keys -= 1
        self._changed(key, gone, before, revision)
        self._detach(old.lease, key)
        return before

    def _changed(self, key: bytes, now: bytes, before: bytes | None, revision: int) -> None:
        self.engine.put(CHANGES, CHANGE.pack(revision, self.changes), key)
        self.changes += 1
        self.written_bytes += len(key) + len(now) + (0 if before is None else len(before))
        if self.written_bytes <= MOST_WRITTEN_BYTES:
            self.written.append(Written(key, now, before))
        else:
            self.written = []
        self.revision = revision

    def attach(self, lease: int, key: bytes) -> None:
        if lease != NO_LEASE:
            self.engine.put(ATTACHED, NUMBER.pack(lease) + key, b"")

    def _detach(self, lease: int, key: bytes) -> None:
        if lease != NO_LEASE:
            self.engine.delete(ATTACHED, NUMBER.pack(lease) + key)

    # ---------------------------------------------------------------- leases

    def grant(self, lease: int, ttl_ms: int, index: int) -> None:
        self.leases[lease] = Lease(ttl_ms, index)
        self.engine.put(LEASES, NUMBER.pack(lease), encode((ttl_ms, index)))

    def keys_of(self, lease: int, start: bytes = b"") -> Iterator[bytes]:
        attached = self.engine.scan(ATTACHED, NUMBER.pack(lease) + start, NUMBER.pack(lease + 1))
        return (each[NUMBER.size :] for each, _ in attached)

    def revoke(self, lease: int, revision: int) -> int:
        """How many keys went with it."""
        count, start = 0, b""
        while keys := _some(self.keys_of(lease, start)):
            start = keys[-1] + b"\0"
            for key in keys:
                self.delete(key, revision)
            count += len(keys)
        del self.leases[lease]
        self.engine.delete(LEASES, NUMBER.pack(lease))
        return count

    def delete_range(self, start: bytes, stop: bytes | None, revision: int) -> Iterator[bytes]:
        """What each key was, encoded. It is for the caller to come to the end."""
        while keys := _some(key for key, _ in self.engine.scan(CURRENT, start, stop)):
            start = keys[-1] + b"\0"
            for key in keys:
                before = self.delete(key, revision)
                assert before is not None, key
                yield before

    # ---------------------------------------------------------------- history

    def older(self, key: bytes, below: int) -> bytes | None:
        """The newest version of a key before a revision; one that says that it was deleted, too."""
        prefix = escaped(key)
        scan = self.engine.scan(OLDER, prefix, prefix + NUMBER.pack(below), reverse=True)
        return next((value for _, value in scan), None)

    def at(self, key: bytes, revision: int) -> bytes | None:
        """A key as it was at a revision; None: it was not there."""
        stored = self.engine.get(CURRENT, key)
        if stored is not None and decode_key_value(stored).mod_revision <= revision:
            return stored
        older = self.older(key, revision + 1)
        return None if older is None or decode_key_value(older).version == 0 else older

    def changed_at(self, key: bytes, revision: int) -> bytes:
        """What a change made of a key."""
        stored = self.engine.get(OLDER, older_key(key, revision))
        if stored is None:
            stored = self.engine.get(CURRENT, key)
        assert stored is not None, (key, revision)
        assert decode_key_value(stored).mod_revision == revision, (key, revision)
        return stored


def _some(keys: Iterator[bytes]) -> list[bytes]:
    """The first ones."""
    found: list[bytes] = []
    size_bytes = 0
    for key in islice(keys, SLICE_KEYS):
        found.append(key)
        size_bytes += len(key)
        if size_bytes >= SLICE_BYTES:
            break
    return found


def bounds(key: bytes, end: bytes) -> tuple[bytes, bytes | None]:
    """Of a range, as an engine takes them."""
    if not end:
        return key, key + b"\0"
    return key, None if end == FROM_KEY else max(end, key)
