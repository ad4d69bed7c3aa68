"""KeyValueMachine: the store as a state machine of the log. A batch of commands is one write of the
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quorumlog.batch import EntryBatch
from quorumlog.kv.errors import InvalidRequest, KeyValueError, LeaseNotFound
from quorumlog.kv.requests import answers
from quorumlog.kv.requests.limits import MAX_ANSWER_BYTES, check
from quorumlog.kv.requests.operations import (
    Compact,
    Grant,
    History,
    LeaseKeys,
    Leases,
    Put,
    Range,
    Revoke,
    Stand,
    Txn,
    decode_command,
    decode_key_value,
    decode_question,
    encode,
)
from quorumlog.kv.store.changes import Begins, Change, Changed, CompactedTo, Ended, Feed, Granted
from quorumlog.kv.store.engine import (
    CHANGE,
    CHANGES,
    NUMBER,
    OLDER,
    Engine,
    MemoryEngine,
    escaped,
    older_key,
)
from quorumlog.kv.store.keyspace import Keyspace
from quorumlog.kv.store.ranges import AnswerRoom, Body, EncodedItems, read_history, read_range
from quorumlog.kv.store.snapshot_format import SLICE_ITEMS, load, save_slices
from quorumlog.kv.store.transactions import answer_txn, carry_out
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

SLICE_CHANGES = 500
"""Looked at once."""


def sweep(keyspace: Keyspace, changes: int = SLICE_CHANGES) -> bool:
    """A slice of the work; True if more is left. A change below the compacted revision goes, with the
    versions of its key before it, and itself if it is a deletion. What stands at the revision stays."""
    engine, compacted = keyspace.engine, keyspace.compacted
    if keyspace.swept_to >= compacted:
        return False
    found = []
    for place, key in engine.scan(
        CHANGES, CHANGE.pack(keyspace.swept_to, 0), CHANGE.pack(compacted + 1, 0)
    ):
        found.append((place, key))
        if len(found) > changes:
            break
    for place, key in found[:changes]:
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
    if len(found) > changes:
        # Within a revision that is not done the work begins anew: what is done is gone.
        keyspace.swept_to = int(CHANGE.unpack(found[changes][0])[0])
    else:
        keyspace.swept_to = compacted
    keyspace.save_stand()
    return keyspace.swept_to < compacted


# ----------------------------------------------------------------
# KeyValueMachine: the store as a state machine of the log. A batch of commands is one write of the
# engine.


MACHINE_NAME = "kv"
LEASES_TAG, LEASE_KEYS_TAG, STAND_TAG = 21, 22, 23


MOST_ANSWER_BYTES = {1: MOST_KEPT_BYTES - KEPT_RESULT_BYTES, 2: MAX_ANSWER_BYTES}
"""To a command, by the version that it was written for; `CARRIED_OUT` stands for one that is larger, and
is not built. In version 1 such a one would be kept for who repeats the command if there were room."""


_PUT = encode(Put(b"", b""))[1:2]
"""Behind the head of the array: which command it is."""


class KeyValueMachine(StateMachine):
    version = 2

    def __init__(
        self,
        engine: Callable[[], Engine] = MemoryEngine,
        feed: Feed | None = None,
        slice_items: int = SLICE_ITEMS,
    ) -> None:
        """`feed` hears of what changes; `slice_items`: so many are saved at once."""
        self.keyspace = Keyspace(engine())
        self._feed = feed
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
            stand = self.keyspace
            self._feed.tell([Begins(stand.revision, stand.compacted, dict(stand.leases))])

    # ---------------------------------------------------------------- commands

    def apply(self, batch: EntryBatch, first_index: int) -> FirstResults:
        keyspace = self.keyspace
        told: list[Change] = []
        results: list[bytes] = []
        unkept: list[int] = []
        size_bytes = 0
        for index, body in zip(batch.headers()["index"].tolist(), batch.bodies(), strict=True):
            try:
                result, is_kept = self._one(body, index, told)
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
        keyspace.save_stand()
        keyspace.engine.commit(Applied.of_last(batch))
        if self._feed is not None:
            self._feed.size_bytes = keyspace.engine.size_bytes
            self._feed.tell(told)
        return FirstResults(results, unkept)

    def is_quick(self, batch: EntryBatch) -> bool:
        """Puts into memory: whatever else there is may name all keys."""
        if not isinstance(self.keyspace.engine, MemoryEngine):
            return False
        keyspace = self.keyspace
        is_swept = keyspace.swept_to >= keyspace.compacted
        return is_swept and all(body[1:2] == _PUT for body in batch.bodies())

    def _one(self, entry: memoryview, index: int, told: list[Change]) -> tuple[bytes, bool]:
        """(its result, whether that may be kept)."""
        keyspace = self.keyspace
        keyspace.begin_command()
        room = AnswerRoom(MOST_ANSWER_BYTES[self._acts_as])
        try:
            command = decode_command(entry)
            body = carry_out(keyspace, command, index, room)
        except KeyValueError as refusal:
            assert not keyspace.changes, (refusal, keyspace.changes)
            return answers.refused(refusal), True
        if keyspace.changes:
            told.append(Changed(index, keyspace.written))
        if isinstance(command, Grant):
            told.append(Granted(body[1], keyspace.leases[body[1]]))
        elif isinstance(command, Revoke):
            told.append(Ended(command.lease))
        elif isinstance(command, Compact):
            told.append(CompactedTo(keyspace.compacted))
        if not room.is_over:
            answer = answers.done(keyspace.revision, body)
            if len(answer) <= room.size_bytes:
                return answer, True
        return answers.CARRIED_OUT, self._acts_as > 1

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
            return answers.done(self.keyspace.revision, body)
        except KeyValueError as refusal:
            return answers.refused(refusal)

    def _answer(self, question: bytes, room: AnswerRoom) -> Body:
        keyspace = self.keyspace
        asked = decode_question(question)
        if isinstance(asked, Range | Txn):
            check(asked, len(question))
        if isinstance(asked, Range):
            return read_range(keyspace, asked, room)
        if isinstance(asked, Txn):
            return answer_txn(keyspace, asked, room)
        if isinstance(asked, History):
            return read_history(keyspace, asked, room)
        if isinstance(asked, Leases):
            told = EncodedItems(room)
            for row in sorted((lease, *granted) for lease, granted in keyspace.leases.items()):
                told.add(encode(row))
            return LEASES_TAG, told.encoded()
        if isinstance(asked, LeaseKeys):
            lease = keyspace.leases.get(asked.lease)
            if lease is None:
                raise LeaseNotFound(f"there is no lease {asked.lease}")
            told = EncodedItems(room)
            for key in keyspace.keys_of(asked.lease):
                if not told.add(encode(key)):
                    break
            return LEASE_KEYS_TAG, lease.ttl_ms, told.encoded()
        assert isinstance(asked, Stand), asked
        return self._stand()

    def _stand(self) -> Body:
        keyspace = self.keyspace
        engine = keyspace.engine
        swept = self._saves > 0 or not sweep(keyspace)  # whoever asks moves it on
        engine.commit(None)
        leases = len(keyspace.leases)
        size_bytes = engine.size_bytes
        return STAND_TAG, keyspace.revision, keyspace.compacted, keyspace.keys, leases, size_bytes, swept

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
