"""MessageFiller: what a record says of its place (QUEUEOFFSET, PHYSICALOFFSET) and of who stored it when
(STORETIMESTAMP, STOREHOST), written by the master as it proposes.

Queue ends are those of its whole log. It begins with what the state machine says once every entry of
earlier leaders is committed and dispatched, and adds what it proposes itself; a leader cuts nothing of
its log, so nothing that it has given out is taken back while it leads. When it leads no more the ends
are forgotten, and with them whatever a cut undoes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.broker.dledger.message_entries import BODY_OFFSET, records_of
from quorumlog.broker.errors import MessageIllegal, UnknownTopic
from quorumlog.broker.messages.message import MAX_BODY_BYTES
from quorumlog.broker.messages.record import LEAST_RECORD_BYTES, V4_BYTES
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.messages.record_columns import Int64Array
from quorumlog.entry import EntryId
from quorumlog.errors import BodyTooLarge, LeaderNotReady
from quorumlog.log_state.log_state import Resets, counted_ms

RETRY_MS = 20


class Filled(NamedTuple):
    """What the messages of an append were given, one row each."""

    first_index: int
    queue_offsets: Int64Array
    positions: Int64Array
    """Of the records."""
    time_ms: int


class MessageFiller:
    """On the loop."""

    def __init__(
        self,
        takes: Callable[[QueueKey], bool],
        leads_in: Callable[[], int | None],
        resets: Callable[[], Resets],
    ) -> None:
        """`takes`: whether there is such a queue. `leads_in`: see `DoorMember`. `resets`: see
        `LogResets`."""
        self.takes = takes
        self._resets = resets
        self._leads_in = leads_in
        self.term: int | None = None
        """In which this member is master; None: it is not."""
        self.next_offsets: dict[QueueKey, int] = {}
        """Behind the last message of each queue in the whole log."""
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
                "the broker becomes master once all that came before is dispatched",
                retry_after_ms=RETRY_MS,
            )
        if batch is self.checked:
            return
        if int(batch.sizes.min()) < BODY_OFFSET + LEAST_RECORD_BYTES:
            raise MessageIllegal("an entry is too short to be a message record")
        records = records_of(batch)
        if not (records.columns.good.all() and records.bodies_good().all()):
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
        offsets = np.empty(len(records), np.int64)
        for queue, rows in records.queues:
            begin = self.next_offsets.get(queue, 0)
            self.next_offsets[queue] = begin + len(rows)
            offsets[rows] = np.arange(begin, begin + len(rows))
        # Time goes back at a reset of the log's clock only: messages are looked for by halving.
        last_ms = counted_ms(self._last_position, self._last_time_ms, self._resets())
        self._last_time_ms = max(time_ms, last_ms)
        places = positions + BODY_OFFSET
        self._last_position = int(places[-1])
        records.stamp(offsets, places, self._last_time_ms, self.store_host)
        return Filled(first.index, offsets, places, self._last_time_ms)
