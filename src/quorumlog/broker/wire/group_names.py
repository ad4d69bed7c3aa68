"""Names of topics and groups, permissions, and delay levels, as RocketMQ has them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quorumlog.broker.messages.record import check_topic
from quorumlog.errors import BadRequest

RETRY_PREFIX, DLQ_PREFIX = "%RETRY%", "%DLQ%"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""A queue for each delay level; what lies in it has the same delay, so the oldest is due first."""

UNDELIVERED_TOPIC = "%UNDELIVERED%"
"""Where a delayed message ends up whose topic was deleted meanwhile."""

READ, WRITE = 4, 2
"""Bits of a permission."""
MOST_QUEUES = 10_000
MOST_NAME_BYTES = 120
"""Of a group, whose topics have a prefix before it."""

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LEVELS = 18
FIRST_RETRY_LEVEL = 3
MOST_RETRIES = 16
"""Then a message goes to the group's %DLQ% topic."""

REAL_TOPIC, REAL_QUEUE, DELAY = "REAL_TOPIC", "REAL_QID", "DELAY"
RETRY_TOPIC, ORIGIN_MESSAGE_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"
"""Names of properties, as Java has them."""


def delays_ms(text: str = DELAY_LEVELS) -> tuple[int, ...]:
    """Of the levels 1 to 18. Raises BadRequest."""
    try:
        delays = tuple(int(word[:-1]) * _UNITS[word[-1]] for word in text.split())
    except (KeyError, ValueError):
        delays = ()
    if len(delays) != LEVELS:
        raise BadRequest(f"the delay levels are {LEVELS} words, as in {DELAY_LEVELS!r}, not {text!r}")
    return delays


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def is_system_topic(topic: str) -> bool:
    """Made and ended by the broker alone."""
    return topic in (SCHEDULE_TOPIC, UNDELIVERED_TOPIC) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def check_topic_name(topic: str) -> None:
    """Of a topic that people make. Raises BadRequest."""
    check_topic(topic)
    if is_system_topic(topic) or "%" in topic or "|" in topic:
        raise BadRequest(
            f"the topic {topic!r} has a name that the broker keeps for itself: no % and no |"
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
