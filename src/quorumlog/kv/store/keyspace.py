"""Keys, their versions and leases, ranges of them, and listeners for changes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from quorumlog.kv.errors import Compacted, FutureRevision, InvalidRequest
from quorumlog.kv.requests import (
    FIELD_OF,
    FROM_KEY,
    NO_LEASE,
    History,
    KeyValue,
    Range,
    Target,
    contains,
    decode_key_value,
    encode,
)
from quorumlog.kv.store.engine import (
    ATTACHED,
    CHANGE,
    CHANGES,
    CURRENT,
    LEASES,
    NUMBER,
    OLDER,
    STATE,
    Engine,
    escaped,
    older_key,
    parse_older_key,
)

# ---------------------------------------------------------------- Keyspace
# Keys, what they were before, and the leases that they end with. A revision is the index of the entry
# that changed a key; see `engine` for where what lies.

_LEASE = msgspec.msgpack.Decoder(tuple[int, int])
_REVISIONS = msgspec.msgpack.Decoder(tuple[int, int, int])
_COUNT = msgspec.msgpack.Decoder(tuple[int, int])
_STATE_KEY = b"revisions"
_COUNT_KEY = b"keys"
_VERSION_KEY = b"version"
SLICE_KEYS = 1_000
SLICE_BYTES = 1 << 20
"""Of keys that are read at once, before they are changed."""
MOST_WRITTEN_BYTES = 16 << 20
"""Changes of one command are sent to watches up to this size; more are read from history."""


class LeaseState(NamedTuple):
    ttl_ms: int
    granted_at: int
    """Index of its grant: distinguishes leases of the same id."""


class Written(NamedTuple):
    """One key changed: an event for watches."""

    key: bytes
    kv: bytes
    """Encoded, as it is now; version 0: deleted."""
    prev: bytes | None


class Keyspace:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.leases: dict[int, LeaseState] = {}
        self.revision = self.compacted = self.swept_to = 0
        """The newest change; history below `compacted` is gone, below `swept_to` from the engine."""
        self.keys = 0
        """How many there are: an engine with a disk would have to look at each."""
        self.carried_out = {"put": 0, "delete": 0, "range": 0, "txn": 0}
        self.begin_command()
        self.take_over()

    def begin_command(self) -> None:
        self.written: list[Written] = []
        """By the command that is under way; empty if it has written more than `MOST_WRITTEN_BYTES`."""
        self.written_bytes = 0
        self.changes = 0

    def take_over(self) -> None:
        """Take over the state in the engine."""
        stored = self.engine.get(STATE, _STATE_KEY) or encode((0, 0, 0))
        self.revision, self.compacted, self.swept_to = _REVISIONS.decode(stored)
        counted = self.engine.get(STATE, _COUNT_KEY) or encode((-1, 0))
        at, self.keys = _COUNT.decode(counted)
        if at != self.revision:  # an earlier release does not count
            self.keys = self.engine.count(CURRENT, b"", None)
        self.leases = {
            int(NUMBER.unpack(key)[0]): LeaseState(*_LEASE.decode(value))
            for key, value in self.engine.scan(LEASES, b"", None)
        }

    def save_state(self) -> None:
        self.engine.put(STATE, _STATE_KEY, encode((self.revision, self.compacted, self.swept_to)))
        self.engine.put(STATE, _COUNT_KEY, encode((self.revision, self.keys)))

    @property
    def version(self) -> int:
        """The last version set by the machine; earlier releases kept none, and had only the first."""
        stored = self.engine.get(STATE, _VERSION_KEY)
        return 1 if stored is None else int(NUMBER.unpack(stored)[0])

    def keep_version(self, version: int) -> None:
        self.engine.put(STATE, _VERSION_KEY, NUMBER.pack(version))

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
        """The key's former value, encoded."""
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
        self.leases[lease] = LeaseState(ttl_ms, index)
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
        """The former value of each key, encoded. The caller must exhaust it."""
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
        """The key after a change."""
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


# ----------------------------------------------------------------
# An answer, within its bounds.


class AnswerRoom:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.left_bytes = size_bytes
        """Below 0: the answer is too large, and its built part is discarded."""

    def take(self, size_bytes: int) -> bool:
        """False: there is no room for that, nor for anything after it."""
        self.left_bytes -= size_bytes
        return self.left_bytes >= 0

    @property
    def is_over(self) -> bool:
        return self.left_bytes < 0


class EncodedItems:
    """An array of encoded values, in no more memory than its bytes."""

    def __init__(self, room: AnswerRoom) -> None:
        self._room = room
        self._data = bytearray()
        self.count = 0

    def add(self, item: bytes) -> bool:
        """False: there is no room for it."""
        room = self._room
        room.left_bytes -= len(item)  # as `take`, without a call for each key
        if room.left_bytes < 0:
            self._data.clear()
            return False
        self._data += item
        self.count += 1
        return True

    def encoded(self) -> msgspec.Raw:
        count = self.count
        if count < 16:
            head = bytes([0x90 | count])
        elif count < 1 << 16:
            head = b"\xdc" + count.to_bytes(2, "big")
        else:
            head = b"\xdd" + count.to_bytes(4, "big")
        self._data[:0] = head
        return msgspec.Raw(self._data)


# ----------------------------------------------------------------
# Reading ranges of keys, now and at a revision, and their history.

AnswerBody = tuple[Any, ...]
"""An answer, as `answers` has it, with its tag."""
RANGE_TAG, HISTORY_TAG = 3, 20

_HEAD_BYTES = 64
SLICE_ITEMS = 1_000
"""Taken before filtering."""


def read_range(keyspace: Keyspace, request: Range, room: AnswerRoom) -> AnswerBody:
    """Without room, the result is none. Raises Compacted, FutureRevision."""
    if request.revision:
        keyspace.check_revision(request.revision)
    if room.is_over:
        return RANGE_TAG, [], False, 0
    is_simple = request.sort_by is Target.KEY and not _is_filtered(request)
    if not (
        request.end
        or request.revision
        or request.keys_only
        or request.count_only
        or _is_filtered(request)
    ):
        stored = keyspace.engine.get(CURRENT, request.key)
        if stored is None or not room.take(len(stored)):
            return RANGE_TAG, [], False, 0
        return RANGE_TAG, [msgspec.Raw(stored)], False, 1
    is_past = 0 < request.revision < keyspace.revision
    start, stop = bounds(request.key, request.end)
    reverse = request.descending and is_simple
    found: Iterator[bytes]
    if is_past:
        found = _past(keyspace, request, reverse)
    else:
        found = (value for _, value in keyspace.engine.scan(CURRENT, start, stop, reverse=reverse))
    answered_items, looked_at, more = EncodedItems(room), 0, False
    if not request.count_only and is_simple:
        answered_items, looked_at, more = _first(request, found, room)
    elif not request.count_only:
        answered_items, looked_at, more = _sorted(keyspace, request, found, room)
    count = 0
    if (request.count_only or not request.without_count) and not room.is_over:
        count = looked_at + sum(1 for _ in found) if is_past else _count(keyspace, start, stop)
    return RANGE_TAG, answered_items.encoded(), more, count


def _is_filtered(request: Range) -> bool:
    return bool(request.min_mod or request.max_mod or request.min_create or request.max_create)


def _count(keyspace: Keyspace, start: bytes, stop: bytes | None) -> int:
    is_whole = stop is None and start <= FROM_KEY
    return keyspace.keys if is_whole else keyspace.engine.count(CURRENT, start, stop)


def _past(keyspace: Keyspace, request: Range, reverse: bool) -> Iterator[bytes]:
    """In the order of keys: what they were at an earlier revision."""
    if not request.end:
        found = keyspace.at(request.key, request.revision)
        return iter(() if found is None else (found,))
    start, stop = bounds(request.key, request.end)
    scan = keyspace.engine.scan
    current = (key for key, _ in scan(CURRENT, start, stop, reverse=reverse))
    # What was deleted since lies among the older versions only.
    behind = None if stop is None else escaped(stop)[:-2]
    versions = scan(OLDER, escaped(start)[:-2], behind, reverse=reverse)
    older = (parse_older_key(stored)[0] for stored, _ in versions)
    keys = (key for key, _ in groupby(merge(current, older, reverse=reverse)))
    found_at = (keyspace.at(key, request.revision) for key in keys)
    return (version for version in found_at if version is not None)


def _first(request: Range, found: Iterator[bytes], room: AnswerRoom) -> tuple[EncodedItems, int, bool]:
    """(what is told, how many were looked at, whether there are more)."""
    answered_items = EncodedItems(room)
    for value in found:
        if request.limit and answered_items.count == request.limit:
            return answered_items, answered_items.count + 1, True
        if not answered_items.add(_without_value(value) if request.keys_only else value):
            break
    return answered_items, answered_items.count, False


def _sorted(
    keyspace: Keyspace, request: Range, found: Iterator[bytes], room: AnswerRoom
) -> tuple[EncodedItems, int, bool]:
    """The same, filtered and in the order that was asked for. It holds what there is room for, and the
    first one after: whatever comes, none of those further behind would be told."""
    most = request.limit or sys.maxsize
    kept: list[tuple[Any, bytes]] = []
    looked_at = matched = size_bytes = 0
    for stored in found:
        looked_at += 1
        kv = decode_key_value(stored)
        if not _matches(request, kv):
            continue
        matched += 1
        item = _without_value(stored) if request.keys_only else stored
        kept.append((_place(keyspace, request, kv), item))
        size_bytes += len(item)
        if size_bytes > room.left_bytes + SLICE_BYTES or len(kept) > 2 * most + SLICE_ITEMS:
            if not request.limit:
                break
            size_bytes = _keep_best(kept, request, room.left_bytes)
    _keep_best(kept, request, room.left_bytes)
    answered_items = EncodedItems(room)
    for _, item in kept:
        if not answered_items.add(item):
            break
    return answered_items, looked_at, matched > most


def _keep_best(kept: list[tuple[Any, bytes]], request: Range, left_bytes: int) -> int:
    """How many bytes they have."""
    kept.sort(key=itemgetter(0), reverse=request.descending)
    if request.limit:
        del kept[request.limit :]
    size_bytes = 0
    for place, (_, item) in enumerate(kept):
        size_bytes += len(item)
        if size_bytes > left_bytes:
            del kept[place + 1 :]
            break
    return size_bytes


def _matches(request: Range, kv: KeyValue) -> bool:
    return (
        request.min_mod <= kv.mod_revision
        and (not request.max_mod or kv.mod_revision <= request.max_mod)
        and request.min_create <= kv.create_revision
        and (not request.max_create or kv.create_revision <= request.max_create)
    )


def _place(keyspace: Keyspace, request: Range, kv: KeyValue) -> Any:
    """What it is sorted by."""
    if request.sort_by is Target.LEASE:
        return kv.key
    if request.sort_by is not Target.VALUE:
        return FIELD_OF[request.sort_by](kv)
    head = kv.value[:_HEAD_BYTES]
    return _ByValue(head, partial(_value_of, keyspace, kv.key, request.revision or keyspace.revision))


def _value_of(keyspace: Keyspace, key: bytes, revision: int) -> bytes:
    stored = keyspace.at(key, revision)
    assert stored is not None, (key, revision)
    return decode_key_value(stored).value


class _ByValue:
    """Compares values, and holds the begin of one only: the whole is read where that does not do."""

    __slots__ = ("_head", "_whole")

    def __init__(self, head: bytes, whole: Callable[[], bytes]) -> None:
        self._head = head
        self._whole = whole

    def __lt__(self, other: _ByValue) -> bool:
        if self._head != other._head or len(self._head) < _HEAD_BYTES:
            return self._head < other._head
        return self._whole() < other._whole()


def _without_value(stored: bytes) -> bytes:
    return encode(msgspec.structs.replace(decode_key_value(stored), value=b""))


def read_history(keyspace: Keyspace, request: History, room: AnswerRoom) -> AnswerBody:
    """`next_revision` is after the last change examined, of other keys included. Raises Compacted, and
    InvalidRequest where there is no room for the changes of one revision."""
    first = request.first_revision
    if first < keyspace.compacted:
        raise Compacted(
            f"changes before revision {keyspace.compacted} are compacted, {first} was requested",
            compacted_revision=keyspace.compacted,
        )
    limits = request.key, request.end
    events: list[tuple[msgspec.Raw, msgspec.Raw | None]] = []
    size_bytes = looked_at = last = whole = 0
    for place, key in keyspace.engine.scan(CHANGES, CHANGE.pack(first, 0), None):
        revision, _ = CHANGE.unpack(place)
        if revision != last:
            if size_bytes >= request.limit_bytes or looked_at >= MOST_CHANGES:
                return HISTORY_TAG, revision, events
            whole = len(events)
        last = revision
        looked_at += 1
        if not contains(limits, key):
            continue
        now = keyspace.changed_at(key, revision)
        before = previous(keyspace, key, revision) if request.prev_kv else None
        event_bytes = _EVENT_BYTES + len(now) + (0 if before is None else len(before))
        if whole and size_bytes + event_bytes > room.left_bytes:
            return HISTORY_TAG, revision, events[:whole]
        size_bytes += event_bytes
        if size_bytes > room.left_bytes:
            raise InvalidRequest(
                f"the changes of revision {revision} are above {room.size_bytes} bytes: read the range,"
                f" and watch from revision {revision + 1} on"
            )
        events.append((msgspec.Raw(now), None if before is None else msgspec.Raw(before)))
    return HISTORY_TAG, max(first, keyspace.revision + 1), events


MOST_CHANGES = 10_000
"""Looked at for one question: others wait for it."""
_EVENT_BYTES = 64
"""Of each, beside what it says."""


def previous(keyspace: Keyspace, key: bytes, revision: int) -> bytes | None:
    """The key before the change at `revision`; None: it was not there, or that is compacted."""
    if revision <= keyspace.compacted:
        return None  # whether it still lies in the engine, nobody may see
    before = keyspace.older(key, revision)
    return None if before is None or decode_key_value(before).version == 0 else before


# ----------------------------------------------------------------
# What members hear of their own store as it changes: values that one thread hands to another.


class Changed(NamedTuple):
    revision: int
    written: list[Written]
    """In the order of the command; empty if too large: history has it."""


class Granted(NamedTuple):
    lease: int
    granted: LeaseState


class Ended(NamedTuple):
    lease: int


class CompactedTo(NamedTuple):
    revision: int


class Begins(NamedTuple):
    """The state did not come from applied commands: it was loaded, or is new."""

    revision: int
    compacted: int
    leases: dict[int, LeaseState]


StoreChange = Changed | Granted | Ended | CompactedTo | Begins


class Feed:
    """Written by the thread that applies, read by the loop; `wake` is called from the former."""

    def __init__(self) -> None:
        self.items: deque[StoreChange] = deque()
        self.wake: Callable[[], object] = lambda: None
        self.size_bytes = 0
        """Of the engine, about; as of the last batch."""
        self.carried_out: Mapping[str, int] = {}
        """How many of each operation, since the machine was made."""

    def tell(self, items: list[StoreChange]) -> None:
        if items:
            self.items.extend(items)
            self.wake()

    def take(self) -> list[StoreChange]:
        taken = []
        while self.items:
            taken.append(self.items.popleft())
        return taken
