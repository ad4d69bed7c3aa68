"""TopicRetention: a topic may keep its messages shorter than the log does. What is older is not shown
any more, by an entry of the master; its bytes go with the log's segments.

How old a message is, the clocks of a quorum say, as far as the log believes them: by the master's
alone, which may jump, what was just sent could be old. Nothing is hidden while too few have told theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.broker.groups.group_log import GroupLog
from quorumlog.broker.groups.group_state import GroupState
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.wire.group_commands import Command, OffsetRow, TrimQueues

LOOK_INTERVAL_MS = 10_000.0


class TopicRetention:
    """On the loop of the master."""

    def __init__(
        self,
        log: GroupLog,
        propose: Callable[[Command], None],
        interval_ms: float = LOOK_INTERVAL_MS,
    ) -> None:
        self._log = log
        self._propose = propose
        self._interval_ms = interval_ms
        self._next_look_ms = 0.0

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
