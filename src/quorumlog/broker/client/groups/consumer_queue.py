"""ConsumerQueue: one queue that a consumer reads: what is fetched, handed out, done and committed. No
I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from quorumlog.broker.group_commands import RETRY_PREFIX, RETRY_TOPIC, QueueRow
from quorumlog.broker.message import StoredMessage
from quorumlog.errors import BadRequest

BUFFER_BYTES = 8 << 20
"""A queue is not read further ahead than that."""


@dataclass(slots=True, eq=False)
class ConsumerQueue:
    topic: str
    queue_id: int
    wanted: frozenset[str]
    """Tags; empty: all."""
    next_offset: int
    """To fetch from."""
    done_offset: int
    """All below is done: what a commit says."""
    committed_offset: int
    fetched: deque[StoredMessage] = field(default_factory=deque)
    fetched_bytes: int = 0
    """With what is taken and not finished yet."""
    in_hand: dict[int, StoredMessage] = field(default_factory=dict)
    """Taken, and not finished yet, by offset in their order."""
    is_revoked: bool = False
    """Somebody else reads it by now."""
    is_asked_for: bool = False
    """Somebody else is to have it once nothing of it is in hand: nothing more is taken."""
    waits_for: ConsumerQueue | None = None
    """The same queue as it was read before: nothing is taken as long as something of that is in hand."""

    @property
    def key(self) -> QueueRow:
        return self.topic, self.queue_id

    @property
    def has_room(self) -> bool:
        return self.fetched_bytes < BUFFER_BYTES

    @property
    def can_take(self) -> bool:
        is_free = self.waits_for is None or not self.waits_for.in_hand
        return bool(self.fetched) and not self.is_asked_for and is_free

    def came(self, messages: list[StoredMessage], next_offset: int) -> None:
        for message in messages:
            if not self.wanted or message.tags in self.wanted:
                self.fetched.append(message)
                self.fetched_bytes += message.size_bytes
        self.next_offset = next_offset
        self._advance()

    def take(self) -> StoredMessage:
        """The oldest that was fetched; `finish` or `give_back` follows."""
        message = self.fetched.popleft()
        self.in_hand[message.queue_offset] = message
        return message

    def finish(self, message: StoredMessage) -> bool:
        """In any order. False: it was finished before, and nothing follows from it any more."""
        if self.in_hand.pop(message.queue_offset, None) is None:
            return False
        self.fetched_bytes -= message.size_bytes
        self._advance()
        return True

    def give_back(self, message: StoredMessage) -> None:
        """The one that was taken last: it is the next one again."""
        del self.in_hand[message.queue_offset]
        self.fetched.appendleft(message)

    def drop_fetched(self) -> None:
        """What is not in hand is as if it had not come."""
        if self.fetched:
            self.next_offset = self.fetched[0].queue_offset
            self.fetched_bytes -= sum(each.size_bytes for each in self.fetched)
            self.fetched.clear()

    def _advance(self) -> None:
        """Up to the lowest that is not finished all is done, or not wanted."""
        if self.in_hand:
            following = next(iter(self.in_hand))
        elif self.fetched:
            following = self.fetched[0].queue_offset
        else:
            following = self.next_offset
        self.done_offset = max(self.done_offset, following)


def take_next(
    queues: dict[QueueRow, ConsumerQueue], *, in_order: bool
) -> tuple[ConsumerQueue, StoredMessage] | None:
    """The oldest fetched message of some queue; the queues take turns. `in_order`: of none of which one
    is in hand."""
    for key in list(queues):
        queue = queues[key]
        if queue.can_take and not (in_order and queue.in_hand):
            queues[key] = queues.pop(key)
            return queue, queue.take()
    return None


def wanted_tags(expression: str) -> frozenset[str]:
    """`a || b`; `*` or nothing: all of them. Raises BadRequest where no tag is named."""
    if expression.strip() in ("", "*"):
        return frozenset()
    words = frozenset(word.strip() for word in expression.split("||") if word.strip())
    if not words:
        raise BadRequest(f"a subscription of {expression!r} names no tag: write a || b, or * for all")
    return words


def as_first_sent(message: StoredMessage) -> StoredMessage:
    """A message that comes again has its first topic, as in RocketMQ."""
    if not message.topic.startswith(RETRY_PREFIX):
        return message
    return message._replace(topic=message.properties.get(RETRY_TOPIC, message.topic))
