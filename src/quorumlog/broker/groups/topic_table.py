"""GroupTopics: which queues a broker has, by the replicated state, and what may be done with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quorumlog.broker.errors import TopicNotPermitted
from quorumlog.broker.groups.group_machine import GroupFeed
from quorumlog.broker.groups.group_state import Topic
from quorumlog.broker.message_log import PutOutcome
from quorumlog.broker.messages.record_batch import QueueKey, RecordBatch
from quorumlog.broker.serving.broker_service import Puts
from quorumlog.broker.wire.group_names import READ, WRITE


class GroupTopics:
    """A `TopicTable`, of what this member has applied. Any thread."""

    def __init__(self, feed: GroupFeed) -> None:
        self._feed = feed
        self._looked_at: Mapping[str, Topic] = {}
        self._not_writable: set[str] = set()
        """Of those."""

    def takes(self, key: QueueKey) -> bool:
        topic = self._feed.state.topics.get(key.topic)
        return topic is not None and 0 <= key.queue_id < topic.queues

    def counts(self) -> Mapping[str, int]:
        return {name: topic.queues for name, topic in self._feed.state.topics.items()}

    def begin(self, key: QueueKey) -> int | None:
        topic = self._feed.state.topics.get(key.topic)
        if topic is None or not 0 <= key.queue_id < topic.queues:
            return None
        return topic.begins[key.queue_id]

    def begin_to_read(self, key: QueueKey) -> int | None:
        """Raises TopicNotPermitted."""
        topic = self._feed.state.topics.get(key.topic)
        if topic is not None and not topic.perm & READ:
            raise TopicNotPermitted(f"topic {key.topic} may not be read: its permission says so")
        return self.begin(key)

    def check_writes(self, records: RecordBatch) -> None:
        """On the loop. Raises TopicNotPermitted."""
        topics = self._feed.state.topics
        if topics is not self._looked_at:
            self._looked_at = topics
            self._not_writable = {name for name, topic in topics.items() if not topic.perm & WRITE}
        if not self._not_writable or not len(records) or not records.columns.good.all():
            return
        for key, _ in records.queues:
            if key.topic in self._not_writable:
                raise TopicNotPermitted(f"topic {key.topic} takes no messages: its permission says so")


class CheckedPuts:
    """`Puts` of topics that may be written to."""

    def __init__(self, puts: Puts, topics: GroupTopics) -> None:
        self._puts = puts
        self._topics = topics

    def add(self, records: RecordBatch, waits: bool, answer: Callable[[PutOutcome], None]) -> None:
        try:
            self._topics.check_writes(records)
        except TopicNotPermitted as refusal:
            answer(refusal)
            return
        self._puts.add(records, waits, answer)
