"""Names of topics and groups, permissions, and delay levels, as RocketMQ has them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quorumlog.broker.config import DELAY_LEVELS
from quorumlog.broker.messages.message import SCHEDULE_TOPIC
from quorumlog.broker.messages.record import check_topic
from quorumlog.errors import BadRequest

RETRY_PREFIX, DLQ_PREFIX = "%RETRY%", "%DLQ%"
UNDELIVERED_TOPIC = "%UNDELIVERED%"
"""Where a delayed message ends up whose topic was deleted meanwhile."""

GROUPS_TOPIC = "%GROUPS%"
"""Of a classic broker: commands of topics and groups in one queue, snapshots of what follows from them
in the other."""
COMMANDS_QUEUE, SNAPSHOTS_QUEUE = 0, 1

SYSTEM_PREFIX = "%"
"""Of the broker's own topics and producer sessions."""

MOST_NEW_TOPIC_BYTES = 127
READ, WRITE = 4, 2
"""Bits of a permission."""
MOST_QUEUES = 10_000
MOST_NAME_BYTES = 120
"""Of a group, whose topics have a prefix before it."""

MOST_TOPICS, MOST_GROUPS = 100_000, 10_000
"""That a master lets in: every member holds them all. A topic that was deleted counts, since its name is
remembered; each group has two of its own."""
MOST_QUEUES_IN_ALL = 1_000_000
"""Of all topics: one that is named in forty bytes may have ten thousand."""

LEVELS = len(DELAY_LEVELS.split())
"""Of delays: 18."""
FIRST_RETRY_LEVEL = 3
MOST_RETRIES = 16
"""Then a message goes to the group's %DLQ% topic."""

REAL_TOPIC, REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
RETRY_TOPIC, ORIGIN_MESSAGE_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"
"""Names of properties, as Java has them."""
DLQ_CAUSE, DLQ_ATTEMPT = "DLQ_CAUSE", "DLQ_ATTEMPT"
"""Of ours, in a dead letter: what the last attempt ended with, and how many there were."""


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def is_system_topic(topic: str) -> bool:
    """Made and ended by the broker alone."""
    own = (SCHEDULE_TOPIC, UNDELIVERED_TOPIC, GROUPS_TOPIC)
    return topic in own or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def check_topic_name(topic: str) -> None:
    """Of a topic that people make. Raises BadRequest."""
    check_topic(topic)
    if is_system_topic(topic) or "%" in topic or "|" in topic:
        raise BadRequest(
            f"the topic {topic!r} has a name that the broker keeps for itself: no % and no |"
        )


def check_new_topic_name(topic: str) -> None:
    """Of one that is about to be made: one that is there may be longer. Raises BadRequest."""
    check_topic(topic)
    if len(topic) > MOST_NEW_TOPIC_BYTES:
        raise BadRequest(
            f"the name of a new topic has up to {MOST_NEW_TOPIC_BYTES} bytes, not {len(topic)}: clients"
            " of RocketMQ take no longer one, and RocketMQ 4 cannot read its messages"
        )


def check_group_name(group: str) -> None:
    """Raises BadRequest."""
    good = all(c.isascii() and (c.isalnum() or c in "_-") for c in group)
    if not good or not 0 < len(group) <= MOST_NAME_BYTES:
        raise BadRequest(
            f"a consumer group has 1 to {MOST_NAME_BYTES} letters, digits, _ and -, not {group!r}"
        )


PERMISSIONS: Mapping[str, int] = MappingProxyType({"r": READ, "w": WRITE, "rw": READ | WRITE})
PERMISSION_NAMES: Mapping[int, str] = MappingProxyType({v: k for k, v in PERMISSIONS.items()} | {0: "-"})
