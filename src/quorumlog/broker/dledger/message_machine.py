"""MessageMachine: queues and index of a member, dispatched from committed entries in their order.

Its files lie in the member's directory in RocketMQ's formats, and are derived anew at each start, from
the newest snapshot and the entries behind it: nothing has to be in step with anything else on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.dledger.message_entries import BODY_OFFSET, records_of
from quorumlog.broker.dledger.message_filler import MessageFiller
from quorumlog.broker.errors import MessageIllegal
from quorumlog.broker.flush.store_checkpoint import StoreCheckpoint
from quorumlog.broker.messages.record import LEAST_RECORD_BYTES
from quorumlog.broker.messages.record_batch import QueueKey, RecordBatch
from quorumlog.broker.messages.record_columns import Int64Array
from quorumlog.broker.old_log import OldLog
from quorumlog.broker.queues import machine_snapshot
from quorumlog.broker.queues.consume_queues import QUEUES_NAME, ConsumeQueues
from quorumlog.broker.queues.dispatcher import Dispatcher
from quorumlog.broker.queues.index_service import INDEX_FOLDER_NAME, IndexService
from quorumlog.broker.queues.queue_ends import QUEUE_ENDS_NAME
from quorumlog.errors import CommandError, StoreFailure
from quorumlog.state_machine import Result, SnapshotReader, SnapshotWriter, StateMachine
from quorumlog.store.disk import Disk, refusal

Grown = Callable[[list[QueueKey]], None]


class QueueEndsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What a master begins with."""

    queues: list[tuple[str, int, int]]
    """(topic, queue, number of its next message)."""
    last_time_ms: int
    end_position: int
    """Behind the last message, whose time that is."""


def wipe(disk: Disk, root: str) -> None:
    """What an earlier process has derived. Raises StoreFailure."""
    try:
        disk.make_directory(root)
        folders = [f"{root}/{INDEX_FOLDER_NAME}"]
        for topic in disk.list(f"{root}/{QUEUES_NAME}"):
            folders += [
                f"{root}/{QUEUES_NAME}/{topic}/{queue_id}"
                for queue_id in disk.list(f"{root}/{QUEUES_NAME}/{topic}")
            ]
        for folder in folders:
            for name in disk.list(folder):
                disk.unlink(f"{folder}/{name}")
        if disk.exists(f"{root}/{QUEUE_ENDS_NAME}"):
            disk.unlink(f"{root}/{QUEUE_ENDS_NAME}")  # an earlier release recorded what nobody asks
        for name in (QUEUES_NAME, INDEX_FOLDER_NAME):
            disk.make_directory(f"{root}/{name}")
    except OSError as error:
        raise StoreFailure(refusal(root, "cleared", error)) from error


class MessageMachine(StateMachine):
    may_leave_out = False
    """The messages of a queue are numbered: behind a hole none could be dispatched any more."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        config: MessageStoreConfig,
        grown: Grown,
        first_position: Callable[[], int],
        old_log: OldLog | None = None,
    ) -> None:
        """`grown` is told which queues have grown, on the thread that applies. `first_position`: where
        the log begins by now. `old_log`: what is dispatched before the first entry. Raises
        StoreFailure."""
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
        """Behind the last record that was dispatched."""
        self.last_time_ms = 0
        self.dispatched_messages = 0
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
        records = records_of(batch)
        if int(batch.sizes.min()) >= BODY_OFFSET + LEAST_RECORD_BYTES:
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

    def _dispatch(self, records: RecordBatch, positions: Int64Array) -> None:
        if not (records.columns.physical_offsets == positions).all():
            raise MessageIllegal("a record names another place in the log than its own")
        self._names_ms = int(records.columns.store_times_ms[0])
        grown = self._dispatcher.dispatch_at(records, positions, again=False)
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
            yield from machine_snapshot.save_slices(
                writer, self.end_position, self.last_time_ms, self.queues, self.index
            )
        finally:
            self._saves -= 1

    def load(self, reader: SnapshotReader) -> None:
        self._old_log = None  # a snapshot has it
        head = machine_snapshot.load(reader, self.queues, self.index)
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
    """Makes the machine of a member, again and again: what it says of is the newest."""

    version = MessageMachine.version
    may_leave_out = MessageMachine.may_leave_out

    def __init__(
        self,
        disk: Disk,
        root: str,
        config: MessageStoreConfig,
        filler: MessageFiller,
        grown: Grown,
        first_position: Callable[[], int],
        old_log: OldLog | None = None,
    ) -> None:
        self.filler = filler
        self.newest: MessageMachine | None = None
        """None: the log does not bind it yet."""
        self._made_with = disk, root, config, grown, first_position, old_log

    def __call__(self) -> MessageMachine:
        """On the thread that applies."""
        self.close()
        self.newest = MessageMachine(*self._made_with)
        return self.newest

    def close(self) -> None:
        if self.newest is not None:
            self.newest.close()
