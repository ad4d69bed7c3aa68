"""The state machine of the store: its commands and its snapshots."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import merge
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.errors import ProtocolViolation
from quorumlog.kv.errors import (
    Compacted,
    FutureRevision,
    InvalidRequest,
    KeyNotFound,
    KeyValueError,
    LeaseExists,
    LeaseNotFound,
)
from quorumlog.kv.requests import (
    CARRIED_OUT,
    FIELD_OF,
    MAX_ANSWER_BYTES,
    NO_LEASE,
    Command,
    Compact,
    Compare,
    DeleteRange,
    Grant,
    History,
    LeaseKeys,
    Leases,
    Put,
    Range,
    Relation,
    Revoke,
    StoreStats,
    Target,
    Txn,
    check,
    check_compare,
    check_written_once,
    decode_command,
    decode_key_value,
    decode_question,
    done,
    encode,
    refused,
    writes,
)
from quorumlog.kv.store.engine import (
    CHANGE,
    CHANGES,
    CURRENT,
    END,
    NUMBER,
    OLDER,
    Engine,
    MemoryEngine,
    escaped,
    older_key,
    parse_older_key,
)
from quorumlog.kv.store.keyspace import (
    AnswerBody,
    AnswerRoom,
    Begins,
    Changed,
    CompactedTo,
    EncodedItems,
    Ended,
    Feed,
    Granted,
    Keyspace,
    StoreChange,
    bounds,
    read_history,
    read_range,
)
from quorumlog.state_machine import (
    KEPT_RESULT_BYTES,
    MOST_KEPT_BYTES,
    MOST_RESULT_BYTES,
    Applied,
    ApplyFailure,
    FirstResults,
    SnapshotReader,
    SnapshotWriter,
    StateMachine,
)

# ----------------------------------------------------------------
# What a command does to the keyspace, as etcd's v3 API has it. What a transaction will refuse is found
# before it changes anything.

PUT_TAG, DELETE_TAG, TXN_TAG, GRANT_TAG, REVOKE_TAG, COMPACT_TAG = 1, 2, 4, 5, 6, 7

_HOLDS: dict[Relation, Callable[[Any, Any], bool]] = {
    Relation.EQUAL: operator.eq,
    Relation.GREATER: operator.gt,
    Relation.LESS: operator.lt,
    Relation.NOT_EQUAL: operator.ne,
}


def carry_out(keyspace: Keyspace, command: Command, index: int, room: AnswerRoom) -> AnswerBody:
    """The entry at `index`. If its answer has no room, the result is none. Raises KeyValueError, and
    nothing has changed then."""
    if isinstance(command, Put | DeleteRange | Txn):
        return _operation(keyspace, _checked(keyspace, command), index, room)
    if isinstance(command, Grant):
        return _grant(keyspace, command, index)
    if isinstance(command, Revoke):
        return _revoke(keyspace, command, index)
    assert isinstance(command, Compact), command
    return _compact(keyspace, command)


def answer_txn(keyspace: Keyspace, txn: Txn, room: AnswerRoom) -> AnswerBody:
    """A question: a transaction that only reads. Raises KeyValueError."""
    if writes(txn):
        raise InvalidRequest("a query cannot write")
    return _operation(keyspace, _checked(keyspace, txn), keyspace.revision, room)


# ---------------------------------------------------------------- what is refused

Plan = tuple[bool, list["Put | DeleteRange | Range | Plan"]]
"""Of a transaction: whether the comparisons held, and the operations to carry out, inner transactions as
plans of their own."""


def _checked(keyspace: Keyspace, operation: Put | DeleteRange | Txn) -> Put | DeleteRange | Plan:
    """What will be carried out, checked in the order in which etcd refuses. Comparisons see the state
    before the transaction, inner ones too."""
    if isinstance(operation, Put):
        _check_lease(keyspace, operation)
        _check_kept(keyspace, operation)
    if not isinstance(operation, Txn):
        return operation
    for operations in (operation.success, operation.failure):
        check_written_once(operations)
    plan = _plan(keyspace, operation)
    path = list(_path(plan))
    for each in path:
        if isinstance(each, Put):
            _check_kept(keyspace, each)
            _check_lease(keyspace, each)
    for each in path:
        if isinstance(each, Range) and each.revision:
            keyspace.check_revision(each.revision)
    keyspace.carried_out["txn"] += 1
    return plan


def _plan(keyspace: Keyspace, txn: Txn) -> Plan:
    # Who appends past the store's endpoint must not stop it on every member.
    for compare in txn.compare:
        check_compare(compare)
    succeeded = all(_holds(keyspace, compare) for compare in txn.compare)
    operations = txn.success if succeeded else txn.failure
    return succeeded, [_plan(keyspace, each) if isinstance(each, Txn) else each for each in operations]


def _path(plan: Plan) -> Iterator[Put | DeleteRange | Range]:
    """What a transaction and those in it carry out."""
    for each in plan[1]:
        if isinstance(each, tuple):
            yield from _path(each)
        else:
            yield each


def _check_lease(keyspace: Keyspace, put: Put) -> None:
    if put.lease and put.lease not in keyspace.leases:
        raise _no_lease(put.lease)


def _check_kept(keyspace: Keyspace, put: Put) -> None:
    keeps = put.keeps_value or put.keeps_lease
    if keeps and keyspace.engine.get(CURRENT, put.key) is None:
        raise KeyNotFound(f"the key {put.key!r} does not exist")


def _no_lease(lease: int) -> LeaseNotFound:
    return LeaseNotFound(f"there is no lease {lease}: it has ended, or was never granted")


# ---------------------------------------------------------------- operations


def _operation(
    keyspace: Keyspace, operation: Put | DeleteRange | Range | Plan, index: int, room: AnswerRoom
) -> AnswerBody:
    if isinstance(operation, Put):
        keyspace.carried_out["put"] += 1
        value, lease = operation.value, operation.lease
        if operation.keeps_value or operation.keeps_lease:
            old = keyspace.current(operation.key)
            assert old is not None, operation.key  # nothing in a transaction deletes what it puts
            value = old.value if operation.keeps_value else value
            lease = old.lease if operation.keeps_lease else lease
        before = keyspace.put(operation.key, value, lease, index)
        if before is None or not operation.prev_kv or not room.take(len(before)):
            return PUT_TAG, None
        return PUT_TAG, msgspec.Raw(before)
    if isinstance(operation, DeleteRange):
        keyspace.carried_out["delete"] += 1
        return _delete(keyspace, operation, index, room)
    if isinstance(operation, Range):
        keyspace.carried_out["range"] += 1
        return read_range(keyspace, operation, room)
    succeeded, operations = operation
    return TXN_TAG, succeeded, [_operation(keyspace, each, index, room) for each in operations]


def _delete(keyspace: Keyspace, operation: DeleteRange, index: int, room: AnswerRoom) -> AnswerBody:
    gone: Iterable[bytes]
    if operation.end:
        gone = keyspace.delete_range(*bounds(operation.key, operation.end), index)
    else:
        before = keyspace.delete(operation.key, index)
        gone = () if before is None else (before,)
    deleted = EncodedItems(room)
    count = 0
    for each in gone:  # to the end, whatever there is room for
        count += 1
        if operation.prev_kv:
            deleted.add(each)
    return DELETE_TAG, count, deleted.encoded()


def _holds(keyspace: Keyspace, compare: Compare) -> bool:
    relation, of = _HOLDS[compare.relation], FIELD_OF[compare.target]
    stored: Iterable[bytes]
    if compare.end:
        start, stop = bounds(compare.key, compare.end)
        stored = (value for _, value in keyspace.engine.scan(CURRENT, start, stop))
    else:
        value = keyspace.engine.get(CURRENT, compare.key)
        stored = () if value is None else (value,)
    is_there = False
    for each in stored:
        is_there = True
        if not relation(of(decode_key_value(each)), compare.than):
            return False
    return is_there or (compare.target is not Target.VALUE and relation(0, compare.than))


# ---------------------------------------------------------------- leases and compaction


def _grant(keyspace: Keyspace, command: Grant, index: int) -> AnswerBody:
    lease = command.lease
    if lease in keyspace.leases:
        raise LeaseExists(f"there is a lease {lease} already")
    if lease == NO_LEASE:
        lease = index
        while lease in keyspace.leases:  # somebody chose that number
            lease += 1
    keyspace.grant(lease, command.ttl_ms, index)
    return GRANT_TAG, lease, command.ttl_ms, index


def _revoke(keyspace: Keyspace, command: Revoke, index: int) -> AnswerBody:
    lease = keyspace.leases.get(command.lease)
    if lease is None or command.granted_at not in (0, lease.granted_at):
        raise _no_lease(command.lease)
    return REVOKE_TAG, keyspace.revoke(command.lease, index)


def _compact(keyspace: Keyspace, command: Compact) -> AnswerBody:
    revision = command.revision
    if revision > keyspace.revision:
        raise FutureRevision(f"revision {revision} is above {keyspace.revision}, the newest")
    if revision <= keyspace.compacted:
        if not command.leads:
            raise Compacted(
                f"history below revision {keyspace.compacted} is compacted already",
                compacted_revision=keyspace.compacted,
            )
    else:
        keyspace.compacted = revision
    return (COMPACT_TAG,)


# ---------------------------------------------------------------- A saved store
# The same bytes whatever the engine, so that a member may change it.
#
#     head        format, revision, compacted revision
#     leases      (id, TTL, index of the grant)
#     current     KeyValue, in the order of keys
#     older       KeyValue, in the order of keys and revisions
#     changes     (revision, number, key)
#
# Each part is a run of frames, 4 bytes of length and MessagePack, and ends with an empty one.

FORMAT = 1
SLICE_ITEMS = 1000
SLICE_BYTES = 1 << 20
"""Written at once, at most and at least one item; a member that saves applies commands in between."""

SavedItem = tuple[bytes, bytes]
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
    pause. Versions not swept yet are left out, so that snapshots do not depend on its progress."""
    revision, compacted = keyspace.revision, keyspace.compacted
    engine = keyspace.engine
    engine.commit(None)  # what sweeping has left to be written
    slices = partial(_slices, engine, slice_items, revision)
    _write(writer, [encode((FORMAT, revision, compacted))])
    _end(writer)
    _write(writer, [encode((lease, *of)) for lease, of in sorted(keyspace.leases.items())])
    _end(writer)
    yield from _part(writer, _current_slices(engine, slice_items, revision))
    yield from _part(writer, _older_slices(engine, slices(OLDER), revision, compacted))
    changes = slices(CHANGES, CHANGE.pack(compacted, 0), CHANGE.pack(revision + 1, 0))
    yield from _part(
        writer,
        ([encode((*CHANGE.unpack(place), key)) for place, key in values] for values, _ in changes),
    )


def _part(writer: SnapshotWriter, slices: Iterable[Iterable[bytes]]) -> Iterator[None]:
    for items in slices:
        _write(writer, items)
        yield
    _end(writer)


def _current_slices(engine: Engine, items: int, revision: int) -> Iterator[list[bytes]]:
    """What the keys were at the revision. One that changes meanwhile moves to the older ones:
    it is never out of sight. Keys that are new since then do not count."""
    start, is_last = b"", False
    # Keys after this one are new: with many of them the step that finds none would take seconds.
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
) -> Iterator[tuple[list[SavedItem], bool]]:
    """(items, whether they are the last). What is newer than `revision` does not count, and of the newer
    versions of a key only the first is told: writers cannot keep a save from its end."""
    is_last = False
    while not is_last:
        values: list[SavedItem] = []
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
    engine: Engine, slices: Iterator[tuple[list[SavedItem], bool]], revision: int, compacted: int
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
            assert current is not None, kv  # a deletion would lie after it
            follows = decode_key_value(current)
        return compacted < follows.mod_revision <= revision  # or it was the current one

    held: list[SavedItem] = []  # what follows it comes with the next slice
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
    """Replaces the whole state. Raises ProtocolViolation if it is not a saved store."""
    engine = keyspace.engine
    engine.clear()
    heads = [_head.decode(frame) for frame in _frames(reader)]
    if len(heads) != 1 or heads[0][0] != FORMAT:
        raise ProtocolViolation(f"a saved store of another format than {FORMAT}: {heads}")
    keyspace.take_over()
    _, keyspace.revision, keyspace.compacted = heads[0]
    keyspace.swept_to = keyspace.compacted
    keyspace.save_state()
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
    keyspace.save_state()
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


# ---------------------------------------------------------------- What compaction leaves to do

SLICE_CHANGES = 500
"""Looked at once."""


def sweep(keyspace: Keyspace) -> bool:
    """A slice of the work; True if more is left. A change below the compacted revision removes the
    earlier versions of its key, and itself if it is a deletion. Values current at the revision stay."""
    engine, compacted = keyspace.engine, keyspace.compacted
    if keyspace.swept_to >= compacted:
        return False
    found = []
    for place, key in engine.scan(
        CHANGES, CHANGE.pack(keyspace.swept_to, 0), CHANGE.pack(compacted + 1, 0)
    ):
        found.append((place, key))
        if len(found) > SLICE_CHANGES:
            break
    for place, key in found[:SLICE_CHANGES]:
        revision = int(CHANGE.unpack(place)[0])
        prefix = escaped(key)
        older = engine.scan(OLDER, prefix, prefix + NUMBER.pack(revision))
        for name in [name for name, _ in older]:
            engine.delete(OLDER, name)
        if revision < compacted:
            gone = engine.get(OLDER, older_key(key, revision))
            if gone is not None and decode_key_value(gone).version == 0:
                engine.delete(OLDER, older_key(key, revision))
            engine.delete(CHANGES, place)
    if len(found) > SLICE_CHANGES:
        # Within a revision that is not done the work begins anew: what is done is gone.
        keyspace.swept_to = int(CHANGE.unpack(found[SLICE_CHANGES][0])[0])
    else:
        keyspace.swept_to = compacted
    keyspace.save_state()
    return keyspace.swept_to < compacted


# ----------------------------------------------------------------
# KeyValueMachine: the store as a state machine of the log. A batch of commands is one write of the
# engine.

MACHINE_NAME = "kv"
LEASES_TAG, LEASE_KEYS_TAG, STATS_TAG = 21, 22, 23

MOST_ANSWER_BYTES = {1: MOST_KEPT_BYTES - KEPT_RESULT_BYTES, 2: MAX_ANSWER_BYTES}
"""To a command, by the version that it was written for; `CARRIED_OUT` replaces a larger one, which is
not built. In version 1 it would be kept for repeated commands if there were room."""

_PUT = encode(Put(b"", b""))[1:2]
"""After the head of the array: which command it is."""


class KeyValueMachine(StateMachine):
    version = 2

    def __init__(
        self,
        engine: Callable[[], Engine] = MemoryEngine,
        feed: Feed | None = None,
        slice_items: int = SLICE_ITEMS,
    ) -> None:
        """`feed` receives changes; `slice_items`: saved at once."""
        self.keyspace = Keyspace(engine())
        self._feed = feed
        if feed is not None:
            feed.carried_out = self.keyspace.carried_out
        self._slice_items = slice_items
        self._saves = 0
        """Under way: what they have to read is not swept."""
        self._acts_as = self.keyspace.version
        if self.keyspace.engine.applied() is None:
            self.clear()  # a load that a crash has cut may have left something
        else:
            self._begin()

    def _begin(self) -> None:
        if self._feed is not None:
            keyspace = self.keyspace
            self._feed.tell([Begins(keyspace.revision, keyspace.compacted, dict(keyspace.leases))])

    # ---------------------------------------------------------------- commands

    def apply(self, batch: EntryBatch, first_index: int) -> FirstResults:
        keyspace = self.keyspace
        changes: list[StoreChange] = []
        results: list[bytes] = []
        unkept: list[int] = []
        size_bytes = 0
        for index, body in zip(batch.headers()["index"].tolist(), batch.bodies(), strict=True):
            try:
                result, is_kept = self._one(body, index, changes)
            except Exception as error:
                raise ApplyFailure(index) from error
            if not is_kept:
                unkept.append(len(results))
            results.append(result)
            size_bytes += len(result) + keyspace.written_bytes
            if size_bytes >= MOST_RESULT_BYTES:
                batch = batch.slice(0, len(results))
                break
        if not self._saves:
            sweep(keyspace)
        keyspace.save_state()
        keyspace.engine.commit(Applied.of_last(batch))
        if self._feed is not None:
            self._feed.size_bytes = keyspace.engine.size_bytes
            self._feed.tell(changes)
        return FirstResults(results, unkept)

    def is_quick(self, batch: EntryBatch) -> bool:
        """Puts into memory: other commands may name all keys."""
        if not isinstance(self.keyspace.engine, MemoryEngine):
            return False
        keyspace = self.keyspace
        is_swept = keyspace.swept_to >= keyspace.compacted
        return is_swept and all(body[1:2] == _PUT for body in batch.bodies())

    def _one(self, entry: memoryview, index: int, changes: list[StoreChange]) -> tuple[bytes, bool]:
        """(its result, whether that may be kept)."""
        keyspace = self.keyspace
        keyspace.begin_command()
        room = AnswerRoom(MOST_ANSWER_BYTES[self._acts_as])
        try:
            command = decode_command(entry)
            body = carry_out(keyspace, command, index, room)
        except KeyValueError as refusal:
            assert not keyspace.changes, (refusal, keyspace.changes)
            return refused(refusal), True
        if keyspace.changes:
            changes.append(Changed(index, keyspace.written))
        if isinstance(command, Grant):
            changes.append(Granted(body[1], keyspace.leases[body[1]]))
        elif isinstance(command, Revoke):
            changes.append(Ended(command.lease))
        elif isinstance(command, Compact):
            changes.append(CompactedTo(keyspace.compacted))
        if not room.is_over:
            answer = done(keyspace.revision, body)
            if len(answer) <= room.size_bytes:
                return answer, True
        return CARRIED_OUT, self._acts_as > 1

    def act_as(self, version: int) -> None:
        self._acts_as = version
        self.keyspace.keep_version(version)

    # ---------------------------------------------------------------- questions

    def query(self, question: bytes) -> bytes:
        room = AnswerRoom(MAX_ANSWER_BYTES)
        try:
            body = self._answer(question, room)
            if room.is_over:
                raise InvalidRequest(f"the answer is above {MAX_ANSWER_BYTES} bytes: give a limit")
            return done(self.keyspace.revision, body)
        except KeyValueError as refusal:
            return refused(refusal)

    def _answer(self, question: bytes, room: AnswerRoom) -> AnswerBody:
        keyspace = self.keyspace
        decoded = decode_question(question)
        if isinstance(decoded, Range | Txn):
            check(decoded, len(question))
        if isinstance(decoded, Range):
            return _operation(keyspace, decoded, keyspace.revision, room)
        if isinstance(decoded, Txn):
            return answer_txn(keyspace, decoded, room)
        if isinstance(decoded, History):
            return read_history(keyspace, decoded, room)
        if isinstance(decoded, Leases):
            rows = EncodedItems(room)
            for row in sorted((lease, *granted) for lease, granted in keyspace.leases.items()):
                rows.add(encode(row))
            return LEASES_TAG, rows.encoded()
        if isinstance(decoded, LeaseKeys):
            lease = keyspace.leases.get(decoded.lease)
            if lease is None:
                raise LeaseNotFound(f"there is no lease {decoded.lease}")
            rows = EncodedItems(room)
            for key in keyspace.keys_of(decoded.lease):
                if not rows.add(encode(key)):
                    break
            return LEASE_KEYS_TAG, lease.ttl_ms, rows.encoded()
        assert isinstance(decoded, StoreStats), decoded
        return self._stats()

    def _stats(self) -> AnswerBody:
        keyspace = self.keyspace
        engine = keyspace.engine
        swept = self._saves > 0 or not sweep(keyspace)  # each query moves it on
        engine.commit(None)
        leases = len(keyspace.leases)
        size_bytes = engine.size_bytes
        return STATS_TAG, keyspace.revision, keyspace.compacted, keyspace.keys, leases, size_bytes, swept

    # ---------------------------------------------------------------- snapshots

    def save_slices(self, writer: SnapshotWriter) -> Iterator[None]:
        self._saves += 1
        try:
            yield from save_slices(self.keyspace, writer, self._slice_items)
        finally:
            self._saves -= 1

    def load(self, reader: SnapshotReader) -> None:
        load(self.keyspace, reader)
        self._acts_as = self.keyspace.version
        self._begin()

    # ---------------------------------------------------------------- an engine with a disk

    def applied(self) -> Applied | None:
        return self.keyspace.engine.applied()

    def kept_version(self) -> int:
        return self.keyspace.version

    def clear(self) -> None:
        self.keyspace.engine.clear()
        self.keyspace.take_over()
        self._acts_as = self.keyspace.version
        self._begin()


class KeyValueMachines:
    """Makes the machine of a member, again and again."""

    version = KeyValueMachine.version

    def __init__(self, make: Callable[[], KeyValueMachine]) -> None:
        self._make = make

    def __call__(self) -> KeyValueMachine:
        return self._make()
