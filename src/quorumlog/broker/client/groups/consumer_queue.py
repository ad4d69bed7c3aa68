"""ConsumerQueue: one queue that a consumer reads: what is fetched, handed out, done and committed. No
I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from quorumlog.broker.messages.message import StoredMessage
from quorumlog.broker.wire.group_names import RETRY_PREFIX, RETRY_TOPIC
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
    in_hand: int = 0
    """Taken, and not finished yet."""
    is_revoked: bool = False
    """Somebody else reads it by now."""

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.queue_id

    @property
    def has_room(self) -> bool:
        return self.fetched_bytes < BUFFER_BYTES

    def came(self, messages: list[StoredMessage], next_offset: int) -> None:
        for message in messages:
            if not self.wanted or message.tags in self.wanted:
                self.fetched.append(message)
                self.fetched_bytes += message.size_bytes
        self.next_offset = next_offset
        self._skip()

    def take(self) -> StoredMessage:
        """The oldest that was fetched; `finish` follows."""
        self.in_hand += 1
        return self.fetched.popleft()

    def finish(self, message: StoredMessage) -> None:
        """In the order of `take`."""
        self.in_hand -= 1
        self.fetched_bytes -= message.size_bytes
        self.done_offset = max(self.done_offset, message.queue_offset + 1)
        self._skip()

    def _skip(self) -> None:
        """What lies up to the next one that is wanted is done."""
        if not self.in_hand:
            following = self.fetched[0].queue_offset if self.fetched else self.next_offset
            self.done_offset = max(self.done_offset, following)


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
