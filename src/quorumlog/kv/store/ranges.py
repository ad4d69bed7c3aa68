"""Reading ranges of keys, now and at a revision, and their history."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import groupby, islice
from typing import Any

import msgspec

from quorumlog.kv.errors import Compacted
from quorumlog.kv.requests.limits import contains
from quorumlog.kv.requests.operations import (
    FROM_KEY,
    History,
    KeyValue,
    Range,
    Target,
    decode_key_value,
    encode,
)
from quorumlog.kv.store.engine import CHANGE, CHANGES, CURRENT, OLDER, escaped, parse_older_key
from quorumlog.kv.store.keyspace import Keyspace, bounds

Body = tuple[Any, ...]
"""An answer, as `answers` has it, with its tag."""
RANGE_TAG, HISTORY_TAG = 3, 20

_SORTED_BY: dict[Target, Callable[[KeyValue], Any]] = {
    Target.KEY: lambda kv: kv.key,
    Target.VERSION: lambda kv: kv.version,
    Target.CREATE: lambda kv: kv.create_revision,
    Target.MOD: lambda kv: kv.mod_revision,
    Target.VALUE: lambda kv: kv.value,
}


def read_range(keyspace: Keyspace, asked: Range) -> Body:
    """Raises Compacted, FutureRevision."""
    if asked.revision:
        keyspace.check_revision(asked.revision)
    if not asked.end and not asked.revision and not (asked.keys_only or asked.count_only):
        stored = keyspace.engine.get(CURRENT, asked.key)
        if stored is None:
            return RANGE_TAG, [], False, 0
        if not _is_filtered(asked):
            return RANGE_TAG, [msgspec.Raw(stored)], False, 1
    is_past = 0 < asked.revision < keyspace.revision
    start, stop = bounds(asked.key, asked.end)
    is_simple = asked.sort_by is Target.KEY and not _is_filtered(asked)
    reverse = asked.descending and is_simple
    counts = asked.count_only or not asked.without_count
    wanted = min(asked.limit + 1, sys.maxsize) if asked.limit and is_simple else None
    if is_past:
        found = list(islice(_past(keyspace, asked, reverse), None if counts else wanted))
        count = len(found) if counts else 0
        if asked.count_only:
            return RANGE_TAG, [], False, count
    else:
        count = _count(keyspace, start, stop) if counts else 0
        if asked.count_only:
            return RANGE_TAG, [], False, count
        scan = keyspace.engine.scan(CURRENT, start, stop, reverse=reverse)
        found = [value for _, value in islice(scan, wanted)]
    if not is_simple:
        found = _sorted(asked, found)
    more = bool(asked.limit) and len(found) > asked.limit
    if more:
        del found[asked.limit :]
    if asked.keys_only:
        found = [_without_value(value) for value in found]
    return RANGE_TAG, [msgspec.Raw(value) for value in found], more, count


def _is_filtered(asked: Range) -> bool:
    return bool(asked.min_mod or asked.max_mod or asked.min_create or asked.max_create)


def _count(keyspace: Keyspace, start: bytes, stop: bytes | None) -> int:
    is_whole = stop is None and start <= FROM_KEY
    return keyspace.keys if is_whole else keyspace.engine.count(CURRENT, start, stop)


def _past(keyspace: Keyspace, asked: Range, reverse: bool) -> Iterator[bytes]:
    """In the order of keys: what they were at an earlier revision."""
    if not asked.end:
        found = keyspace.at(asked.key, asked.revision)
        return iter(() if found is None else (found,))
    start, stop = bounds(asked.key, asked.end)
    scan = keyspace.engine.scan
    current = (key for key, _ in scan(CURRENT, start, stop, reverse=reverse))
    # What was deleted since lies among the older versions only.
    behind = None if stop is None else escaped(stop)[:-2]
    versions = scan(OLDER, escaped(start)[:-2], behind, reverse=reverse)
    older = (parse_older_key(stored)[0] for stored, _ in versions)
    keys = (key for key, _ in groupby(merge(current, older, reverse=reverse)))
    found_at = (keyspace.at(key, asked.revision) for key in keys)
    return (version for version in found_at if version is not None)


def _sorted(asked: Range, found: list[bytes]) -> list[bytes]:
    pairs = [(decode_key_value(value), value) for value in found]
    pairs = [
        (kv, value)
        for kv, value in pairs
        if asked.min_mod <= kv.mod_revision
        and (not asked.max_mod or kv.mod_revision <= asked.max_mod)
        and asked.min_create <= kv.create_revision
        and (not asked.max_create or kv.create_revision <= asked.max_create)
    ]
    by = _SORTED_BY.get(asked.sort_by, _SORTED_BY[Target.KEY])
    pairs.sort(key=lambda pair: by(pair[0]), reverse=asked.descending)
    return [value for _, value in pairs]


def _without_value(stored: bytes) -> bytes:
    return encode(msgspec.structs.replace(decode_key_value(stored), value=b""))


def read_history(keyspace: Keyspace, asked: History) -> Body:
    """Raises Compacted. `next_revision` is behind what it looked at, changes of other keys included."""
    first = asked.first_revision
    if first < keyspace.compacted:
        raise Compacted(
            f"changes before revision {keyspace.compacted} are compacted, {first} was asked for",
            compacted_revision=keyspace.compacted,
        )
    limits = asked.key, asked.end
    events: list[tuple[msgspec.Raw, msgspec.Raw | None]] = []
    size_bytes = looked_at = last = 0
    for place, key in keyspace.engine.scan(CHANGES, CHANGE.pack(first, 0), None):
        revision, _ = CHANGE.unpack(place)
        if revision != last and (size_bytes >= asked.limit_bytes or looked_at >= MOST_CHANGES):
            return HISTORY_TAG, revision, events
        last = revision
        looked_at += 1
        if not contains(limits, key):
            continue
        now = keyspace.changed_at(key, revision)
        before = previous(keyspace, key, revision) if asked.prev_kv else None
        events.append((msgspec.Raw(now), None if before is None else msgspec.Raw(before)))
        size_bytes += len(now) + (0 if before is None else len(before))
    return HISTORY_TAG, max(first, keyspace.revision + 1), events


MOST_CHANGES = 10_000
"""Looked at for one question: others wait for it."""


def previous(keyspace: Keyspace, key: bytes, revision: int) -> bytes | None:
    """What a key was before the change at `revision`; None: it was not there, or that is compacted."""
    if revision <= keyspace.compacted:
        return None  # whether it still lies in the engine, nobody may see
    before = keyspace.older(key, revision)
    return None if before is None or decode_key_value(before).version == 0 else before
