"""Dispatcher: records of the commit log go into the queues and the index, a batch at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from quorumlog.broker.message_log import LogRecords
from quorumlog.broker.messages.message import SCHEDULE_TOPIC
from quorumlog.broker.messages.record_batch import QueueKey, RecordBatch
from quorumlog.broker.messages.record_columns import Int64Array
from quorumlog.broker.queues.consume_queue import units_of
from quorumlog.broker.queues.consume_queues import ConsumeQueues
from quorumlog.broker.queues.index_service import IndexService

log = logging.getLogger("quorumlog.broker")


class QueueHole(Exception):
    """A message follows that is not the next one of its queue: units of it were lost."""


class Dispatcher:
    def __init__(
        self,
        queues: ConsumeQueues,
        index: IndexService | None,
        delays_ms: Sequence[int],
    ) -> None:
        """`delays_ms`: of the levels from 1 on."""
        self._queues = queues
        self._index = index
        self._delays_ms = np.array(delays_ms, np.int64)
        self.next_offsets: dict[QueueKey, int] | None = None
        """By what was dispatched, where a start compares: a crash may have left more units, or a part of
        one."""
        self.queues_restart = False
        """0 may come again: a Java broker numbers a topic anew that was deleted and made again, and its
        log holds the messages of before."""
        self.was_deleted: Callable[[str], bool] = lambda topic: False
        """And this topic was not made again."""
        self.last_time_ms = 0
        """Of the last record that was dispatched."""

    def dispatch(self, found: LogRecords) -> list[QueueKey]:
        """As `dispatch_at`."""
        return self.dispatch_at(found.records, found.records.starts + found.position)

    def dispatch_at(
        self, records: RecordBatch, positions: Int64Array, *, again: bool = True
    ) -> list[QueueKey]:
        """`positions`: of each record in the log. Returns the queues that have grown. Raises QueueHole,
        DiskFull, StoreFailure. `again`: some may have been dispatched before; False: then that is a
        QueueHole, too."""
        if not len(records):
            return []
        shown, shown_at = records, positions
        if not records.in_queue.all():
            rows = np.flatnonzero(records.in_queue)
            shown, shown_at = records.select(rows), positions[rows]
        columns = shown.columns
        codes = self._codes_of(shown)
        grown = []
        for key, rows in shown.queues:
            offsets = columns.queue_offsets[rows]
            alive_from = self._queues.alive_from
            if self.was_deleted(key.topic):
                alive_from[key] = int(shown_at[rows[-1]]) + 1
            elif self.queues_restart and not offsets.all():
                self._restart(key, offsets, shown_at[rows], shown.sizes[rows])
            if key in alive_from:
                rows = rows[shown_at[rows] >= alive_from[key]]
                offsets = columns.queue_offsets[rows]
                if not len(rows):
                    continue
            queue = self._queues.queue_of(key)
            first = int(offsets[0])
            is_empty = queue.min_offset == queue.max_offset
            if (
                first > queue.max_offset
                and is_empty
                and self._queues.begins_anywhere
                and not queue.begin_is_known
            ):
                queue.begin_at(first)
                self._queues.record_ends()
            skipped = max(queue.max_offset - first, 0)
            if skipped and not again:
                raise QueueHole(
                    f"{key.topic} queue {key.queue_id}: {first} comes where {queue.max_offset} is next"
                )
            if first > queue.max_offset:
                raise QueueHole(f"{key.topic} queue {key.queue_id}: {queue.max_offset} is missing")
            if not (offsets == np.arange(first, first + len(rows))).all():
                raise QueueHole(f"{key.topic} queue {key.queue_id}: its numbers are not in order")
            if self.next_offsets is not None:
                self.next_offsets[key] = int(offsets[-1]) + 1
            if skipped:
                held, rows = rows[:skipped], rows[skipped:]
                held_codes = None if self.next_offsets is None else codes[held]
                if not queue.names(first, shown_at[held], shown.sizes[held], held_codes):
                    raise QueueHole(
                        f"{key.topic} queue {key.queue_id}: {first} lies at {shown_at[held[0]]}, and its"
                        " unit names another message"
                    )
            if not len(rows):
                continue
            queue.begin_is_known = True
            queue.append(units_of(shown_at[rows], shown.sizes[rows], codes[rows]))
            grown.append(key)
        if self._index is not None:
            self._index.put(records, positions)
        self.last_time_ms = int(records.columns.store_times_ms[-1])
        return grown

    def _restart(
        self, key: QueueKey, offsets: Int64Array, positions: Int64Array, sizes: Int64Array
    ) -> None:
        """Where 0 comes again. Raises StoreFailure."""
        queue = self._queues.get(key)
        last = int(np.flatnonzero(offsets == 0)[-1])
        row = slice(last, last + 1)
        is_other = bool(
            queue and queue.max_offset > 0 and not queue.names(0, positions[row], sizes[row])
        )
        if queue and is_other:
            queue.restart()
        if is_other or last:
            self._queues.alive_from[key] = int(positions[last])
            log.warning(
                "%s queue %d begins with 0 again at %d of the commit log: its topic was deleted and made"
                " again, and what lies before is not shown",
                *key,
                positions[last],
            )

    def _codes_of(self, records: RecordBatch) -> Int64Array:
        """Those of their tags; of delayed messages when they are due, as RocketMQ has it: its
        ScheduleMessageService goes by them and does not look into the log."""
        codes = records.tags_codes
        delayed = [rows for key, rows in records.queues if key.topic == SCHEDULE_TOPIC]
        if delayed:
            rows = np.concatenate(delayed)
            levels = np.minimum(records.delay_levels[rows], len(self._delays_ms))
            rows, levels = rows[levels > 0], levels[levels > 0]
            codes = codes.copy()
            codes[rows] = records.columns.store_times_ms[rows] + self._delays_ms[levels - 1]
        return codes
