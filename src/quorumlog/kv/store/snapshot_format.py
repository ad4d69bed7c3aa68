"""A saved store: the same bytes whatever the engine, so that a member may change it.

    head        format, revision, compacted revision
    leases      (id, TTL, index of the grant)
    current     KeyValue, in the order of keys
    older       KeyValue, in the order of keys and revisions
    changes     (revision, number, key)

Each part is a run of frames, 4 bytes of length and MessagePack, and ends with an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from heapq import merge
from itertools import groupby, pairwise
from operator import itemgetter

import msgspec

from quorumlog.errors import ProtocolViolation
from quorumlog.kv.requests.operations import decode_key_value, encode
from quorumlog.kv.store.engine import (
    CHANGE,
    CHANGES,
    CURRENT,
    END,
    NUMBER,
    OLDER,
    Engine,
    escaped,
    older_key,
    parse_older_key,
)
from quorumlog.kv.store.keyspace import Keyspace
from quorumlog.state_machine import SnapshotReader, SnapshotWriter

FORMAT = 1
SLICE_ITEMS = 1000
SLICE_BYTES = 1 << 20
"""Written at once, at most and at least one item; a member that saves goes on applying between."""

Item = tuple[bytes, bytes]
_BEHIND_ALL = b"\xff" * (NUMBER.size + 1)
"""In the place of a revision."""

_name = itemgetter(0)

_head = msgspec.msgpack.Decoder(tuple[int, int, int])
_lease = msgspec.msgpack.Decoder(tuple[int, int, int])
_change = msgspec.msgpack.Decoder(tuple[int, int, bytes])


def save_slices(
    keyspace: Keyspace, writer: SnapshotWriter, slice_items: int = SLICE_ITEMS
) -> Iterator[None]:
    """The state as it is at the first slice, though commands change it between them; only sweeping must
    not go on meanwhile. What is not swept yet is left out, so that nobody can tell how far that is."""
    revision, compacted = keyspace.revision, keyspace.compacted
    engine = keyspace.engine
    engine.commit(None)  # what sweeping has left to be written
    slices = partial(_slices, engine, slice_items, revision)
    _write(writer, [encode((FORMAT, revision, compacted))])
    _end(writer)
    _write(writer, [encode((lease, *of)) for lease, of in sorted(keyspace.leases.items())])
    _end(writer)
    for kept in _current_slices(engine, slice_items, revision):
        _write(writer, kept)
        yield
    _end(writer)
    for kept in _older_slices(engine, slices(OLDER), revision, compacted):
        _write(writer, kept)
        yield
    _end(writer)
    for values, _ in slices(CHANGES, CHANGE.pack(compacted, 0), CHANGE.pack(revision + 1, 0)):
        _write(writer, [encode((*CHANGE.unpack(place), key)) for place, key in values])
        yield
    _end(writer)


def _current_slices(engine: Engine, items: int, revision: int) -> Iterator[list[bytes]]:
    """What the keys were at the revision. One that changes meanwhile moves to the older ones:
    it is never out of sight. Keys that are new since then do not count."""
    start, is_last = b"", False
    # Keys behind this one are new: with many of them the step that finds none would take seconds.
    newest = next((key for key, _ in engine.scan(CURRENT, b"", None, reverse=True)), b"")
    stop = newest + b"\0"
    while not is_last:
        is_last = True
        kept: list[bytes] = []
        counted = size_bytes = 0
        current: Iterator[tuple[bytes, bytes | None]] = engine.scan(CURRENT, start, stop)
        older = ((key, None) for key in _keys_of_older(engine, start))
        for key, found in groupby(merge(current, older, key=_name), _name):
            start = key + b"\0"
            stored = next((value for _, value in found if value is not None), None)
            if stored is None or _mod_revision(stored) > revision:
                prefix = escaped(key)
                until = prefix + NUMBER.pack(revision + 1)
                stored = next((v for _, v in engine.scan(OLDER, prefix, until, reverse=True)), None)
            if stored is None:
                continue
            counted += 1
            size_bytes += len(stored)
            if decode_key_value(stored).version:
                kept.append(stored)
            if counted >= items or size_bytes >= SLICE_BYTES:
                is_last = False
                break
        yield kept


def _keys_of_older(engine: Engine, start: bytes) -> Iterator[bytes]:
    """Each once, however many versions it has."""
    place = escaped(start)[: -len(END)]
    while (found := next(engine.scan(OLDER, place, None), None)) is not None:
        yield parse_older_key(found[0])[0]
        place = found[0][: -NUMBER.size] + _BEHIND_ALL


def _slices(
    engine: Engine,
    items: int,
    revision: int,
    space: int,
    start: bytes = b"",
    stop: bytes | None = None,
) -> Iterator[tuple[list[Item], bool]]:
    """(items, whether they are the last). What is newer than `revision` does not count, and of the newer
    versions of a key only the first is told: writers cannot keep a save from its end."""
    is_last = False
    while not is_last:
        values: list[Item] = []
        counted = size_bytes = 0
        while not is_last and counted < items and size_bytes < SLICE_BYTES:
            is_last = True
            for each in engine.scan(space, start, stop):
                values.append(each)
                start = each[0] + b"\0"
                if space == OLDER and _mod_revision(each[1]) > revision:
                    start = each[0][: -NUMBER.size] + _BEHIND_ALL
                    is_last = False
                    break
                counted += 1
                size_bytes += len(each[1])
                if counted >= items or size_bytes >= SLICE_BYTES:
                    is_last = False
                    break
        yield values, is_last


def _older_slices(
    engine: Engine, slices: Iterator[tuple[list[Item], bool]], revision: int, compacted: int
) -> Iterator[list[bytes]]:
    def stays(stored: bytes, behind: bytes | None) -> bool:
        kv = decode_key_value(stored)
        if kv.mod_revision > revision:
            return False
        if kv.version == 0:
            return kv.mod_revision >= compacted
        follows = None if behind is None else decode_key_value(behind)
        if follows is None or follows.key != kv.key:
            current = engine.get(CURRENT, kv.key)
            assert current is not None, kv  # a deletion would lie behind it
            follows = decode_key_value(current)
        return compacted < follows.mod_revision <= revision  # or it was the current one

    held: list[Item] = []  # what follows it comes with the next slice
    for values, is_last in slices:
        values = [*held, *values]
        held = values[-1:]
        kept = [each for (_, each), (_, behind) in pairwise(values) if stays(each, behind)]
        if is_last:
            kept += [each for _, each in held if stays(each, None)]
        yield kept


def _mod_revision(stored: bytes) -> int:
    return decode_key_value(stored).mod_revision


def _write(writer: SnapshotWriter, items: Iterable[bytes]) -> None:
    data = b"".join(part for item in items for part in (len(item).to_bytes(4, "big"), item))
    if data:
        writer.write(data)


def _end(writer: SnapshotWriter) -> None:
    writer.write(bytes(4))


def load(keyspace: Keyspace, reader: SnapshotReader, commit_every: int = 10_000) -> None:
    """In the place of all that it holds. Raises ProtocolViolation for what is no saved store."""
    engine = keyspace.engine
    engine.clear()
    heads = [_head.decode(frame) for frame in _frames(reader)]
    if len(heads) != 1 or heads[0][0] != FORMAT:
        raise ProtocolViolation(f"a saved store of another format than {FORMAT}: {heads}")
    keyspace.take_over()
    _, keyspace.revision, keyspace.compacted = heads[0]
    keyspace.swept_to = keyspace.compacted
    keyspace.save_stand()
    for frame in _frames(reader):
        keyspace.grant(*_lease.decode(frame))
    for count, frame in enumerate(_frames(reader), 1):
        kv = decode_key_value(frame)
        engine.put(CURRENT, kv.key, frame)
        if kv.lease:
            keyspace.attach(kv.lease, kv.key)
        if count % commit_every == 0:
            engine.commit(None)
    last = b""
    for frame in _frames(reader):
        if last and decode_key_value(last).key != decode_key_value(frame).key:
            _settle(keyspace, last)
        kv = decode_key_value(frame)
        engine.put(OLDER, older_key(kv.key, kv.mod_revision), frame)
        last = frame
    if last:
        _settle(keyspace, last)
    for frame in _frames(reader):
        revision, number, key = _change.decode(frame)
        engine.put(CHANGES, CHANGE.pack(revision, number), key)
    engine.commit(None)
    keyspace.keys = engine.count(CURRENT, b"", None)
    keyspace.save_stand()
    engine.commit(None)


def _settle(keyspace: Keyspace, newest: bytes) -> None:
    """An earlier release wrote what had changed meanwhile as an older version: the newest of those of a
    key was the current one, if it was no deletion and nothing else is the current one."""
    kv, engine = decode_key_value(newest), keyspace.engine
    current = engine.get(CURRENT, kv.key)
    if current is None and kv.version:
        engine.put(CURRENT, kv.key, newest)
        if kv.lease:
            keyspace.attach(kv.lease, kv.key)
    if kv.version and (current is None or decode_key_value(current).mod_revision == kv.mod_revision):
        engine.delete(OLDER, older_key(kv.key, kv.mod_revision))


def _frames(reader: SnapshotReader) -> Iterator[bytes]:
    while size_bytes := int.from_bytes(reader.read(4), "big"):
        yield reader.read(size_bytes)
