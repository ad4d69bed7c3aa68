"""QueueOffsets: where a query of messages begins or ends, by queue, as Kafka's source has it: earliest,
latest, or JSON {"topic": {"0": 100, "1": -2}}, in which -2 is the earliest and -1 the latest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from quorumlog.broker.record_batch import QueueKey
from quorumlog.errors import ConfigError

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    others: int
    """Of queues that are not named."""
    by_queue: Mapping[QueueKey, int] = field(default_factory=dict)

    def of(self, key: QueueKey) -> int:
        """An offset, EARLIEST_OFFSET or LATEST_OFFSET."""
        return self.by_queue.get(key, self.others)


EARLIEST, LATEST = QueueOffsets(EARLIEST_OFFSET), QueueOffsets(LATEST_OFFSET)


def parse_queue_offsets(name: str, text: str) -> QueueOffsets:
    """Raises ConfigError naming the option."""
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    wrong = ConfigError(
        f'option {name} must be earliest, latest or JSON {{"topic": {{"0": offset, ...}}, ...}} with -2'
        f" for the earliest and -1 for the latest, not {text!r}"
    )
    try:
        stated = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(stated, dict) or not stated:
        raise wrong
    found: dict[QueueKey, int] = {}
    for topic, queues in stated.items():
        if not isinstance(queues, dict) or not queues:
            raise wrong
        for queue, offset in queues.items():
            if not (queue.isascii() and queue.isdigit()) or type(offset) is not int or offset < -2:
                raise wrong
            found[QueueKey(topic, int(queue))] = offset
    others = EARLIEST_OFFSET if name.startswith("starting") else LATEST_OFFSET
    return QueueOffsets(others, found)
