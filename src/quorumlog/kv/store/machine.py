"""KeyValueMachine: the store as a state machine of the log. A batch of commands is one write of the
engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from quorumlog.batch import EntryBatch
from quorumlog.kv.errors import KeyValueError, LeaseNotFound
from quorumlog.kv.requests import answers
from quorumlog.kv.requests.limits import check
from quorumlog.kv.requests.operations import (
    Compact,
    Grant,
    History,
    LeaseKeys,
    Leases,
    Range,
    Revoke,
    Stand,
    Txn,
    decode_command,
    decode_question,
)
from quorumlog.kv.store.changes import Begins, Change, Changed, CompactedTo, Ended, Feed, Granted
from quorumlog.kv.store.engine import Engine
from quorumlog.kv.store.keyspace import Keyspace, Written
from quorumlog.kv.store.memory_engine import MemoryEngine
from quorumlog.kv.store.ranges import Body, read_history, read_range
from quorumlog.kv.store.snapshot_format import SLICE_ITEMS, load, save_slices
from quorumlog.kv.store.sweeping import sweep
from quorumlog.kv.store.transactions import answer_txn, carry_out
from quorumlog.state_machine import (
    Applied,
    ApplyFailure,
    Result,
    SnapshotReader,
    SnapshotWriter,
    StateMachine,
)

MACHINE_NAME = "kv"
LEASES_TAG, LEASE_KEYS_TAG, STAND_TAG = 21, 22, 23


class KeyValueMachine(StateMachine):
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
        if self.keyspace.engine.applied() is None:
            self.clear()  # a load that a crash has cut may have left something
        else:
            self._begin()

    def _begin(self) -> None:
        if self._feed is not None:
            stand = self.keyspace
            self._feed.tell([Begins(stand.revision, stand.compacted, dict(stand.leases))])

    # ---------------------------------------------------------------- commands

    def apply(self, batch: EntryBatch, first_index: int) -> Sequence[Result]:
        keyspace = self.keyspace
        told: list[Change] = []
        results: list[Result] = []
        for index, body in zip(batch.headers()["index"].tolist(), batch.bodies(), strict=True):
            try:
                results.append(self._one(body, index, told))
            except Exception as error:
                raise ApplyFailure(index) from error
        if not self._saves:
            sweep(keyspace)
        keyspace.save_stand()
        keyspace.engine.commit(Applied.of_last(batch))
        if self._feed is not None:
            self._feed.size_bytes = keyspace.engine.size_bytes
            self._feed.tell(told)
        return results

    def _one(self, entry: memoryview, index: int, told: list[Change]) -> bytes:
        keyspace = self.keyspace
        written: list[Written] = []
        keyspace.written = written
        try:
            command = decode_command(entry)
            body = carry_out(keyspace, command, index)
        except KeyValueError as refusal:
            assert not written, (refusal, written)
            return answers.refused(refusal)
        if written:
            told.append(Changed(index, written))
        if isinstance(command, Grant):
            told.append(Granted(body[1], keyspace.leases[body[1]]))
        elif isinstance(command, Revoke):
            told.append(Ended(command.lease))
        elif isinstance(command, Compact):
            told.append(CompactedTo(keyspace.compacted))
        return answers.done(keyspace.revision, body)

    # ---------------------------------------------------------------- questions

    def query(self, question: bytes) -> bytes:
        try:
            return answers.done(self.keyspace.revision, self._answer(question))
        except KeyValueError as refusal:
            return answers.refused(refusal)

    def _answer(self, question: bytes) -> Body:
        keyspace = self.keyspace
        asked = decode_question(question)
        if isinstance(asked, Range | Txn):
            check(asked, len(question))
        if isinstance(asked, Range):
            return read_range(keyspace, asked)
        if isinstance(asked, Txn):
            return answer_txn(keyspace, asked)
        if isinstance(asked, History):
            return read_history(keyspace, asked)
        if isinstance(asked, Leases):
            rows = sorted((lease, *granted) for lease, granted in keyspace.leases.items())
            return LEASES_TAG, rows
        if isinstance(asked, LeaseKeys):
            lease = keyspace.leases.get(asked.lease)
            if lease is None:
                raise LeaseNotFound(f"there is no lease {asked.lease}")
            return LEASE_KEYS_TAG, lease.ttl_ms, keyspace.keys_of(asked.lease)
        assert isinstance(asked, Stand), asked
        return self._stand()

    def _stand(self) -> Body:
        keyspace = self.keyspace
        engine = keyspace.engine
        swept = self._saves > 0 or not sweep(keyspace)  # whoever asks moves it on
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
        self._begin()

    # ---------------------------------------------------------------- an engine with a disk

    def applied(self) -> Applied | None:
        return self.keyspace.engine.applied()

    def clear(self) -> None:
        self.keyspace.engine.clear()
        self.keyspace.take_over()
        self._begin()
