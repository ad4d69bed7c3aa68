"""Delayed messages, and those that are older than their topic keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quorumlog.broker.errors import QueueOffsetOutOfRange
from quorumlog.broker.group_commands import (
    LEVELS,
    REAL_QUEUE,
    REAL_TOPIC,
    UNDELIVERED_TOPIC,
    Command,
    OffsetRow,
    TrimQueues,
)
from quorumlog.broker.groups.group_state import GroupState, GroupTopics
from quorumlog.broker.groups.rebalancer import GroupLog
from quorumlog.broker.message import DELAY, SCHEDULE_TOPIC
from quorumlog.broker.record_batch import Int64Array, QueueKey, RecordBatch, moved_records
from quorumlog.broker.store.store_reader import Pulled
from quorumlog.errors import AlreadyCommitted, LedgerError

# ---------------------------------------------------------------- DelayScheduler
# Messages of a delay level go to their topic when they are due.
#
# A delayed message lies in the level's queue of SCHEDULE_TOPIC_XXXX, with the place where it belongs in
# its properties. Who is master copies it there; how far it is, `Releases` of the log below know.
#
# When a message is due follows from its store time and the log's clock: by the clock of one machine
# alone, which may jump, all would be due at once. Whatever it says, a master waits no longer than the
# delay from when it first saw the message there.

BATCH_MESSAGES = 256
BATCH_BYTES = 1 << 20
RETRY_MS = 200.0
SIGHTINGS = 16
"""Of one delay: so much of it a message may be late where clocks have jumped."""


@dataclass(slots=True, eq=False)
class _Level:
    number: int
    begin: int
    next_offset: int | None = None
    """Of the next message to release; None: not asked yet."""
    is_open: bool = False
    """Nothing of an earlier master comes in any more."""
    is_busy: bool = False
    next_look_ms: float = 0.0
    """Nothing is due before."""
    sightings: deque[tuple[int, float]] = field(default_factory=deque)
    """(offset, time): messages below the offset are due then, independent of the wall clock."""

    @property
    def key(self) -> QueueKey:
        return QueueKey(SCHEDULE_TOPIC, self.number - 1)


class DelayScheduler:
    """On the loop."""

    def __init__(self, log: GroupLog, topics: GroupTopics, delays_ms: Sequence[int]) -> None:
        self._log = log
        self._topics = topics
        self._delays_ms = tuple(delays_ms)
        self._levels: dict[int, _Level] = {}
        self.released = 0
        self._now_ms = 0.0

    def lead(self, is_master: bool) -> None:
        """Query again the progress of an earlier master."""
        self._levels.clear()
        if is_master:
            releases = self._log.releases
            releases.lead()
            self._levels = {n: _Level(n, releases.begin_of(n)) for n in range(1, LEVELS + 1)}

    def tick(self, now_ms: float) -> None:
        """`now_ms`: a clock that does not jump."""
        self._now_ms = now_ms
        for number, level in list(self._levels.items()):
            begin = self._log.releases.begin_of(number)
            if level.begin != begin:
                level = self._levels[number] = _Level(number, begin)
            self._sight(level)
            if not level.is_busy and now_ms >= level.next_look_ms:
                self._step(level)

    def _sight(self, level: _Level) -> None:
        queue = self._log.queues.get(level.key)
        stop, delay_ms = (0 if queue is None else queue.max_offset), self._delays_ms[level.number - 1]
        seen = level.sightings
        while seen and level.next_offset is not None and seen[0][0] <= level.next_offset:
            seen.popleft()
        last_stop, last_due_ms = seen[-1] if seen else (level.next_offset or 0, float("-inf"))
        due_ms = self._now_ms + delay_ms
        if stop > last_stop and due_ms - last_due_ms >= delay_ms / SIGHTINGS:
            seen.append((stop, due_ms))

    def _step(self, level: _Level) -> None:
        queue = self._log.queues.get(level.key)
        if queue is None or (level.next_offset is not None and level.next_offset >= queue.max_offset):
            return
        level.is_busy = True
        if level.next_offset is None or not level.is_open:
            self._ask(level, opens=level.next_offset is not None)
        else:
            self._read(level, level.next_offset)

    def _is_stale(self, level: _Level) -> bool:
        """Another role began since."""
        return self._levels.get(level.number) is not level

    def _again(self, level: _Level, at_ms: float) -> None:
        level.is_busy = False
        level.next_look_ms = at_ms

    def _later(self, level: _Level) -> None:
        self._again(level, self._now_ms + RETRY_MS)

    # ---------------------------------------------------------------- what is released already

    def _ask(self, level: _Level, *, opens: bool) -> None:
        def on_offset(answer: int | LedgerError) -> None:
            if self._is_stale(level):
                return
            if isinstance(answer, LedgerError):
                self._later(level)
                return
            level.next_offset, level.is_open = answer, opens
            self._again(level, 0.0)

        releases = self._log.releases
        (releases.open if opens else releases.ask)(level.number, level.begin, on_offset)

    # ---------------------------------------------------------------- what is due

    def _read(self, level: _Level, offset: int) -> None:
        reader = self._log.reader

        def done(outcome: object) -> None:
            if self._is_stale(level):
                return
            if isinstance(outcome, QueueOffsetOutOfRange) and outcome.min_offset > offset:
                self._log.releases.skip(level.number, level.begin, outcome.min_offset)
                self._later(level)
            elif not isinstance(outcome, Pulled) or not len(outcome.records):
                self._later(level)
            else:
                self._release(level, outcome.records)

        self._log.reads.submit(lambda: reader.pull(level.key, offset, BATCH_MESSAGES, BATCH_BYTES), done)

    def _release(self, level: _Level, records: RecordBatch) -> None:
        due_ms = records.columns.store_times_ms + self._delays_ms[level.number - 1]
        clock_ms, now_ms = self._log.due_clock_ms(), self._now_ms
        if clock_ms < 0:
            self._later(level)
            return
        assert level.next_offset is not None and level.is_open
        overdue_stop = max((stop for stop, at_ms in level.sightings if at_ms <= now_ms), default=0)
        count = int(np.searchsorted(np.maximum.accumulate(due_ms), clock_ms, side="right"))
        count = min(max(count, overdue_stop - level.next_offset), len(records))
        if not count:
            at_last_ms = level.sightings[0][1] if level.sightings else now_ms + RETRY_MS
            self._again(level, min(now_ms + float(due_ms[0]) - clock_ms, at_last_ms))
            return
        due = records.select(np.arange(count))
        moved = moved_records(due, *self._targets(due), (REAL_TOPIC, REAL_QUEUE, DELAY))

        def done(error: LedgerError | None) -> None:
            if self._is_stale(level):
                return
            if error is None:
                assert level.next_offset is not None
                level.next_offset += count
                self.released += count
                self._again(level, 0.0)
                return
            level.is_open = False  # whether it is in the log is told when it is opened
            if isinstance(error, AlreadyCommitted):
                self._again(level, 0.0)
            else:
                self._later(level)

        self._log.releases.release(level.number, level.begin, level.next_offset, moved, done)

    def _targets(self, due: RecordBatch) -> tuple[list[tuple[str, int]], Int64Array]:
        """Where they belong, each place once, and which of these is a record's."""
        columns = [due.properties.texts(name, len(due)) for name in (REAL_TOPIC, REAL_QUEUE)]
        pairs = np.rec.fromarrays(columns)
        places, target_of = np.unique(pairs, return_inverse=True)
        targets = []
        for name, number in places.tolist():
            topic, queue = name.decode("utf-8", "replace"), number.decode("utf-8", "replace")
            key = QueueKey(topic, int(queue) if queue.isascii() and queue.isdigit() else 0)
            takes = bool(topic) and topic != SCHEDULE_TOPIC and self._topics.takes(key)
            targets.append((key.topic, key.queue_id) if takes else (UNDELIVERED_TOPIC, 0))
        return targets, target_of.astype(np.int64)


# ---------------------------------------------------------------- TopicRetention
# A topic may keep its messages shorter than the log does. What is older is not shown any more, by an
# entry of the master; its bytes go with the log's segments.
#
# How old a message is, the clocks of a quorum say, as far as the log believes them: by the master's
# alone, which may jump, what was just sent could be old. Nothing is hidden while too few have told
# theirs.

LOOK_INTERVAL_MS = 10_000.0


@dataclass(eq=False)
class TopicRetention:
    """On the loop of the master."""

    _log: GroupLog
    _propose: Callable[[Command], None]
    _interval_ms: float
    _next_look_ms: float = 0.0

    def tick(self, state: GroupState, now_ms: float) -> None:
        if now_ms < self._next_look_ms:
            return
        self._next_look_ms = now_ms + self._interval_ms
        clock_ms = int(self._log.age_clock_ms())
        if clock_ms < 0:
            return
        wanted = [
            (QueueKey(name, queue_id), clock_ms - topic.retention_ms, begin)
            for name, topic in state.topics.items()
            if topic.retention_ms
            for queue_id, begin in enumerate(topic.begins)
        ]
        if not wanted:
            return
        reader = self._log.reader

        def look() -> tuple[OffsetRow, ...]:
            found = [(key, reader.offset_at(key, since_ms), begin) for key, since_ms, begin in wanted]
            return tuple((*key, offset) for key, offset, begin in found if offset > begin)

        def done(outcome: object) -> None:
            if isinstance(outcome, tuple) and outcome:
                self._propose(TrimQueues(outcome))

        self._log.reads.submit(look, done)
