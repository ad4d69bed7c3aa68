"""Dispatcher: records of the commit log go into the queues and the index, a batch at a time."""

from __future__ import annotations

import numpy as np

from quorumlog.broker.message_log import LogRecords
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.queues.consume_queue import units_of
from quorumlog.broker.queues.consume_queues import ConsumeQueues
from quorumlog.broker.queues.index_service import IndexService


class QueueHole(Exception):
    """A message follows that is not the next one of its queue: units of it were lost."""


class Dispatcher:
    def __init__(
        self, queues: ConsumeQueues, index: IndexService | None, *, begins_anywhere: bool = False
    ) -> None:
        """`begins_anywhere`: an empty queue may begin with any number, because the commit log no longer
        has what was before."""
        self._queues = queues
        self._index = index
        self.begins_anywhere = begins_anywhere
        self.last_time_ms = 0
        """Of the last record that was dispatched."""

    def dispatch(self, found: LogRecords) -> list[QueueKey]:
        """Returns the queues that have grown. Raises QueueHole, DiskFull, StoreFailure."""
        records = found.records
        if not len(records):
            return []
        shown = records if records.in_queue.all() else records.select(np.flatnonzero(records.in_queue))
        columns = shown.columns
        codes = shown.tags_codes
        grown = []
        for key, rows in shown.queues:
            queue = self._queues.queue_of(key)
            offsets = columns.queue_offsets[rows]
            first = int(offsets[0])
            if (
                first > queue.max_offset
                and queue.max_offset == queue.min_offset
                and self.begins_anywhere
            ):
                queue.begin_at(first)
            skipped = queue.max_offset - first
            if skipped < 0:
                raise QueueHole(f"{key.topic} queue {key.queue_id}: {queue.max_offset} is missing")
            if skipped:
                rows, offsets = rows[skipped:], offsets[skipped:]
            if not len(rows):
                continue
            expected = np.arange(queue.max_offset, queue.max_offset + len(rows))
            if not (offsets == expected).all():
                raise QueueHole(f"{key.topic} queue {key.queue_id}: its numbers are not in order")
            queue.append(units_of(shown.starts[rows] + found.position, shown.sizes[rows], codes[rows]))
            grown.append(key)
        if self._index is not None:
            self._index.put(records, found.position)
        self.last_time_ms = int(records.columns.store_times_ms[-1])
        return grown
