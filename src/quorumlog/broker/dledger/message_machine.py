"""Messages in a replicated log: stamping by the leader, and applying by members."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.errors import MessageIllegal, UnknownTopic
from quorumlog.broker.message import LEAST_RECORD_BYTES, MAX_BODY_BYTES, V4_BYTES
from quorumlog.broker.offline.old_log import OldLog
from quorumlog.broker.record_batch import Int64Array, QueueKey, RecordBatch
from quorumlog.broker.store.dispatch import Dispatcher, load_queues, save_queues
from quorumlog.broker.store.flush import StoreCheckpoint
from quorumlog.broker.store.index import INDEX_FOLDER_NAME, IndexService
from quorumlog.broker.store.queues import QUEUE_ENDS_NAME, QUEUES_NAME, ConsumeQueues
from quorumlog.entry import EntryId, EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import (
    BodyTooLarge,
    CommandError,
    DirectoryDamaged,
    LeaderNotReady,
    LedgerError,
)
from quorumlog.header_array import HEADER_DTYPE
from quorumlog.log_state.log_state import Reset, Resets, counted_ms
from quorumlog.node.ledger_node import LedgerNode
from quorumlog.state_machine import Result, SnapshotReader, SnapshotWriter, StateMachine
from quorumlog.store.disk import Disk, disk_work

# ---------------------------------------------------------------- A record as the body of an entry
# The entry at position p of the log holds the record at p + 48, which is what its PHYSICALOFFSET says.

BODY_OFFSET = HEADER_BYTES


def entries_of(records: RecordBatch) -> EntryBatch:
    """An entry each, in memory of their own; `records` have no gaps between them."""
    if len(records) == 1:
        return EntryBatch.from_bodies([records.buffer])
    sizes = records.sizes + HEADER_BYTES
    count = len(sizes)
    headers = np.zeros(count, HEADER_DTYPE)
    headers["magic"], headers["size"], headers["body_len"] = EntryKind.NORMAL, sizes, records.sizes
    header_bytes = headers.view(np.uint8).reshape(count, HEADER_BYTES)
    if count and bool((sizes == sizes[0]).all()):
        rows = np.empty((count, int(sizes[0])), np.uint8)
        rows[:, :HEADER_BYTES] = header_bytes
        rows[:, HEADER_BYTES:] = records.data.reshape(count, -1)
        return EntryBatch(rows.reshape(-1).data, sizes)
    is_body = np.ones(int(sizes.sum()), bool)
    starts = np.cumsum(sizes) - sizes
    is_body[starts[:, None] + np.arange(HEADER_BYTES)] = False
    buffer = np.empty(len(is_body), np.uint8)
    buffer[is_body] = records.data
    buffer[~is_body] = header_bytes.reshape(-1)
    return EntryBatch(buffer.data, sizes)


def records_of(entries: EntryBatch) -> RecordBatch:
    """Their bodies, where they lie."""
    return RecordBatch(entries.buffer, entries.starts + BODY_OFFSET, entries.sizes - BODY_OFFSET)


class LogResets:
    """Resets of the log's clock, by position: messages are known by where they lie. Any thread."""

    def __init__(self, node: Callable[[], LedgerNode | None]) -> None:
        """`node`: the one of now; None while there is none."""
        self._node = node
        self._positions: dict[int, int] = {}
        """Of the end of each entry, by index."""

    def __call__(self) -> Resets:
        """The index of each is the position after its entry. Resets before the log's begin bound no
        remaining message."""
        node = self._node()
        state = None if node is None else node.log_state.appended
        if node is None or state is None or not state.clock_resets:
            return ()
        found = [(self._position_of(node, each.index), each.time_ms) for each in state.clock_resets]
        return tuple(Reset(at, time_ms) for at, time_ms in found if at is not None)

    def _position_of(self, node: LedgerNode, index: int) -> int | None:
        known = self._positions.get(index)
        if known is not None and index <= node.committed_index:
            return known
        try:
            point = node.store.point_in_memory(index) or node.store.point_on_disk(index)
        except (LedgerError, DirectoryDamaged):
            return None
        self._positions[index] = point.position
        return point.position


# ---------------------------------------------------------------- MessageFiller
# What a record says of its place (QUEUEOFFSET, PHYSICALOFFSET) and of who stored it when
# (STORETIMESTAMP, STOREHOST), written by the master as it proposes.
#
# Queue ends are those of its whole log. It begins with what the state machine says once every entry of
# earlier leaders is committed and dispatched, and adds what it proposes itself; a leader cuts nothing
# of its log, so nothing that it has given out is taken back while it leads. When it leads no more the
# ends are forgotten, and with them whatever a cut undoes.

RETRY_MS = 20


class Filled(NamedTuple):
    """Values that an append's messages were stamped with, one row each."""

    first_index: int
    queue_offsets: Int64Array
    positions: Int64Array
    """Of the records."""
    time_ms: int


class MessageStamper:
    """On the loop."""

    def __init__(
        self,
        takes: Callable[[QueueKey], bool],
        leads_in: Callable[[], int | None],
        resets: Callable[[], Resets],
    ) -> None:
        """`takes`: whether there is such a queue. `leads_in`: see `NodeHandle`. `resets`: see
        `LogResets`."""
        self.takes = takes
        self._resets = resets
        self._leads_in = leads_in
        self.term: int | None = None
        """In which this member is master; None: it is not."""
        self.next_offsets: dict[QueueKey, int] = {}
        """After the last message of each queue in the whole log."""
        self.store_host = bytes(V4_BYTES)
        self.checked: EntryBatch | None = None
        """Records that were looked at already."""
        self._last_time_ms = self._last_position = 0

    def begin(
        self, term: int, next_offsets: dict[QueueKey, int], last_time_ms: int, end_position: int
    ) -> None:
        """This member is master, and its log holds no entry that these do not count."""
        self.term, self.next_offsets = term, next_offsets
        self._last_time_ms, self._last_position = last_time_ms, end_position - 1

    def end(self) -> None:
        self.term = None
        self.next_offsets = {}

    # ---------------------------------------------------------------- EntryFiller

    def check(self, batch: EntryBatch) -> None:
        """Raises LeaderNotReady, MessageIllegal, BodyTooLarge, UnknownTopic."""
        if self.term is None or self.term != self._leads_in():
            raise LeaderNotReady(
                "the broker becomes master once all earlier messages are dispatched",
                retry_after_ms=RETRY_MS,
            )
        if batch is self.checked:
            return
        if int(batch.sizes.min()) < BODY_OFFSET + LEAST_RECORD_BYTES:
            raise MessageIllegal("an entry is too short to be a message record")
        records = records_of(batch)
        if not (records.are_good and records.bodies_good().all()):
            raise MessageIllegal("an entry has not the shape of a message record, or its CRC is wrong")
        if not records.in_queue.all():
            raise MessageIllegal("transaction messages are not taken")
        if int(records.columns.body_sizes.max()) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"a body is above the limit of {MAX_BODY_BYTES} bytes; split it")
        for queue, _ in records.queues:
            if not self.takes(queue):
                raise UnknownTopic(f"there is no queue {queue.queue_id} of a topic {queue.topic}")

    def fill(self, batch: EntryBatch, first: EntryId, positions: Int64Array, time_ms: int) -> Filled:
        assert first.term == self.term, (first, self.term)
        records = records_of(batch)
        offsets = records.numbered(self.next_offsets)
        # Time goes back at a reset of the log's clock only: messages are looked for by halving.
        last_ms = counted_ms(self._last_position, self._last_time_ms, self._resets())
        self._last_time_ms = max(time_ms, last_ms)
        places = positions + BODY_OFFSET
        self._last_position = int(places[-1])
        records.stamp(offsets, places, self._last_time_ms, self.store_host)
        return Filled(first.index, offsets, places, self._last_time_ms)


# ---------------------------------------------------------------- MessageMachine
# Queues and index of a member, dispatched from committed entries in their order.
#
# Its files lie in the member's directory in RocketMQ's formats, and are derived anew at each start,
# from the newest snapshot and the entries behind it: nothing has to be in step with anything else on
# the disk.

Grown = Callable[[list[QueueKey]], None]
HOT_MS = 20_000
"""Milliseconds for which written data is in memory, on its way to the disk."""
_NOTHING = EntryBatch(b"", [])
_NO_RECORDS = records_of(_NOTHING)
_IS_GOOD = np.ones(1, bool)


class QueueEndsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The queues' ends that a master begins with."""

    queues: list[tuple[str, int, int]]
    """(topic, queue, number of its next message)."""
    last_time_ms: int
    end_position: int
    """After the last message, whose time that is."""


def wipe(disk: Disk, root: str) -> None:
    """Delete files that an earlier process derived from the log. Raises StoreFailure."""
    with disk_work(root, "cleared"):
        disk.make_directory(root)
        folders = [f"{root}/{INDEX_FOLDER_NAME}"]
        for topic in disk.list(f"{root}/{QUEUES_NAME}"):
            of_topic = f"{root}/{QUEUES_NAME}/{topic}"
            folders += [f"{of_topic}/{queue_id}" for queue_id in disk.list(of_topic)]
        for folder in folders:
            for name in disk.list(folder):
                disk.unlink(f"{folder}/{name}")
        if disk.exists(f"{root}/{QUEUE_ENDS_NAME}"):
            disk.unlink(f"{root}/{QUEUE_ENDS_NAME}")  # an earlier release recorded what nobody asks
        for name in (QUEUES_NAME, INDEX_FOLDER_NAME):
            disk.make_directory(f"{root}/{name}")


class MessageMachine(StateMachine):
    may_leave_out = False
    """The messages of a queue are numbered: after a hole none could be dispatched any more."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        config: MessageStoreConfig,
        grown: Grown,
        first_position: Callable[[], int],
        old_log: OldLog | None = None,
    ) -> None:
        """`grown` is called with the queues that have grown, on the apply thread. `first_position`: the
        log's begin. `old_log`: dispatched before the first entry. Raises StoreFailure."""
        wipe(disk, root)
        self._disk = disk
        self._grown = grown
        self._first_position = first_position
        self._dropped_position = 0
        self._saves = 0
        """Under way: what they have to read is not dropped."""
        self.queues = ConsumeQueues(disk, root, config, None)
        self.index: IndexService | None = None
        if config.message_index_enable:
            checkpoint = StoreCheckpoint.open(disk, root)
            self.index = IndexService(
                disk, root, config, checkpoint, lambda: self._names_ms, None, is_clean=True
            )
        self._names_ms = 1
        """An index file is named after the time of its first message."""
        self._dispatcher = Dispatcher(self.queues, self.index, config.delays_ms())
        self.end_position = 0
        """After the last record that was dispatched."""
        self.last_time_ms = 0
        self.dispatched_messages = 0
        self._written_ms: dict[QueueKey, int] = {}
        """When each queue has grown last, by the clock of its messages."""
        self._looked_at = _NOTHING, _NO_RECORDS
        self._old_log = old_log
        """None: there is none, or it is dispatched."""

    def _begin(self) -> None:
        """Raises StoreFailure, DiskFull, QueueHole."""
        old, self._old_log = self._old_log, None
        if old is None:
            return
        self.queues.begins_anywhere = True  # the oldest files of the store may have expired
        self._dispatcher.queues_restart = True
        for found in old.records():
            if len(found.records):
                self._names_ms = int(found.records.columns.store_times_ms[0])
                self._dispatcher.dispatch(found)
        self.queues.begins_anywhere = self._dispatcher.queues_restart = False
        for topic, queue_id, begin in old.record.queues:
            self.queues.queue_of(QueueKey(topic, queue_id)).begin_at(begin)
        self.last_time_ms = self._dispatcher.last_time_ms
        self.end_position = old.end_position

    # ---------------------------------------------------------------- entries

    def apply(self, batch: EntryBatch, first_index: int) -> list[Result] | None:
        """Raises QueueHole if a message is not the next one of its queue."""
        self._begin()
        results: list[Result] | None = None
        records, self._looked_at = self._records_of(batch), (_NOTHING, _NO_RECORDS)
        if records.lone is not None:
            good = _IS_GOOD
        elif int(batch.sizes.min()) >= BODY_OFFSET + LEAST_RECORD_BYTES:
            good = records.columns.good
        else:
            good = np.zeros(batch.count, bool)
            for row in np.flatnonzero(batch.sizes >= BODY_OFFSET + LEAST_RECORD_BYTES).tolist():
                good[row] = records_of(batch.slice(row, row + 1)).columns.good[0]
        if not good.all():
            # A leader lets none in; whatever wrote it, it is no message on any member alike.
            refusal_ = CommandError("an entry that is no message record")
            results = [None if each else refusal_ for each in good.tolist()]
        positions = batch.headers()["pos"].astype(np.int64) + BODY_OFFSET
        if results is not None:
            rows = np.flatnonzero(good)
            records, positions = records.select(rows), positions[rows]
        if len(records):
            self._dispatch(records, positions)
        return results

    def _records_of(self, batch: EntryBatch) -> RecordBatch:
        if self._looked_at[0] is not batch:
            self._looked_at = batch, records_of(batch)
        return self._looked_at[1]

    def is_quick(self, batch: EntryBatch) -> bool:
        """Messages of existing queues with room: no file is made, opened or deleted for them, and no
        page just written has to be read."""
        position = self._first_position()
        if self._old_log is not None or (position > self._dropped_position and not self._saves):
            return False
        records = self._records_of(batch)
        if not records.are_good:
            return False
        since_ms = records.store_time_ms(0) - HOT_MS
        return all(
            self._written_ms.get(key, -1) >= since_ms and self.queues.has_room(key, len(rows))
            for key, rows in records.queues
        ) and (self.index is None or self.index.has_room(len(records.index_keys.rows), since_ms))

    def _dispatch(self, records: RecordBatch, positions: Int64Array) -> None:
        if not records.lie_at(positions):
            raise MessageIllegal("a record names another place in the log than its own")
        self._names_ms = records.store_time_ms(0)
        grown = self._dispatcher.dispatch_at(records, positions, again=False)
        self._written_ms |= dict.fromkeys(grown, self._dispatcher.last_time_ms)
        self.end_position = int(positions[-1] + records.sizes[-1])
        self.last_time_ms = self._dispatcher.last_time_ms
        self.dispatched_messages += len(records)
        self._drop_below(self._first_position())
        if grown:
            self._grown(grown)

    def _drop_below(self, position: int) -> None:
        """Forget units of messages that the log has no more."""
        if position <= self._dropped_position or self._saves:
            return
        self._dropped_position = position
        for queue in self.queues.all:
            for path in queue.drop_before(position):
                self._disk.unlink(path)
        if self.index is not None:
            self.index.drop_before(position)

    # ---------------------------------------------------------------- questions

    def query(self, question: bytes) -> bytes:
        self._begin()
        rows = [(key.topic, key.queue_id, queue.max_offset) for key, queue in self.queues.items()]
        return msgspec.msgpack.encode(QueueEndsAnswer(rows, self.last_time_ms, self.end_position))

    # ---------------------------------------------------------------- snapshots

    def save_slices(self, writer: SnapshotWriter) -> Iterator[None]:
        self._begin()
        self._saves += 1
        try:
            yield from save_queues(writer, self.end_position, self.last_time_ms, self.queues, self.index)
        finally:
            self._saves -= 1

    def load(self, reader: SnapshotReader) -> None:
        self._old_log = None  # a snapshot has it
        head = load_queues(reader, self.queues, self.index)
        self.end_position, self.last_time_ms = head.end_position, head.last_time_ms
        self._grown([QueueKey(row.topic, row.queue_id) for row in head.queues])

    def clear(self) -> None:
        self.queues.clear()
        if self.index is not None:
            self.index.clear()
        self.end_position = self.last_time_ms = 0

    def close(self) -> None:
        self.queues.close()
        if self.index is not None:
            self.index.close()


class MessageMachines:
    """Makes a member's machine, repeatedly: its properties are those of the newest."""

    version = MessageMachine.version
    may_leave_out = MessageMachine.may_leave_out

    def __init__(self, filler: MessageStamper, make: Callable[[], MessageMachine]) -> None:
        self.filler = filler
        self.newest: MessageMachine | None = None
        """None: the log does not bind it yet."""
        self._make = make

    def __call__(self) -> MessageMachine:
        """On the thread that applies."""
        self.close()
        self.newest = self._make()
        return self.newest

    def close(self) -> None:
        if self.newest is not None:
            self.newest.close()
