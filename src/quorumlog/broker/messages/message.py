"""What applications send and get: values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MIB = 1 << 20
MAX_BODY_BYTES = 4 * MIB - 64 * 1024
"""Of a message that is taken in. Larger ones that are stored already are served all the same."""
MAX_PROPERTIES_BYTES = 32_767
RETRY_PROPERTIES_BYTES = 1024
"""Of these, for what a retry adds: names of topics, a message id, a delay level."""
MAX_TOPIC_BYTES = 255

TAGS, KEYS, UNIQ_KEY, WAIT, DELAY = "TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY"
"""Names of properties, as Java has them."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""A queue for each delay level; what lies in it has the same delay, so the oldest is due first."""
_NAMED = frozenset((TAGS, KEYS, UNIQ_KEY, WAIT))


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send. `keys` are words without spaces, found again by `query`."""

    topic: str
    body: bytes
    tags: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    """Stored as it is, of the application's own meaning."""
    wait: bool = True
    """False: it is acknowledged once it is written, and waits for neither flush nor slaves."""


class StoredMessage(NamedTuple):
    """One message as it stands in a store."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    """Of the whole record."""
    body: bytes
    tags: str
    keys: tuple[str, ...]
    properties: dict[str, str]
    """All of them, those of tags and keys included."""
    born_time_ms: int
    store_time_ms: int
    born_host: str
    store_host: str
    flag: int
    sys_flag: int
    reconsume_times: int
    prepared_transaction_offset: int
    message_id: str
    """Hexadecimal, of the store's address and the physical offset."""


class PutStatus(Enum):
    """Outcomes of a put, by RocketMQ's names."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Written, and not known to be on disk."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    """The store stops: what became of it is not known."""


class PutResult(NamedTuple):
    """Where a batch stands: its messages follow each other in the queue."""

    status: PutStatus
    queue_offset: int
    """Of the first message."""
    physical_offset: int
    message_count: int
    store_time_ms: int
    positions: npt.NDArray[np.int64] | None = None
    """Physical offset of each, where the records do not lie one right behind the other."""


def properties_of(message: Message, uniq_key: str = "") -> str:
    """As they are stored: `name 0x01 value 0x02` for each. Raises ValueError."""
    if not (message.properties or message.tags or message.keys or uniq_key) and message.wait:
        return ""
    pairs = dict(message.properties)
    for name in pairs:
        if name in _NAMED:
            raise ValueError(f"the property {name} has an argument of its own")
    if message.tags:
        pairs[TAGS] = message.tags
    if message.keys:
        if isinstance(message.keys, str):
            raise ValueError(f"keys are a list of words, not one text: write keys=[{message.keys!r}]")
        if any(key.split() != [key] for key in message.keys):
            raise ValueError(f"keys are words without spaces, not {list(message.keys)!r}")
        pairs[KEYS] = " ".join(message.keys)
    if uniq_key:
        pairs[UNIQ_KEY] = uniq_key
    if not message.wait:
        pairs[WAIT] = "false"
    text = "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()])
    if text.count("\x01") != len(pairs) or text.count("\x02") != len(pairs) or "" in pairs:
        raise ValueError("a property has no name, or the character 0x01 or 0x02 in it")
    return text


def parse_properties(text: str) -> dict[str, str]:
    """Of a record; the last 0x02 may be missing, as in what some releases of RocketMQ wrote."""
    pairs = (pair.partition("\x01") for pair in text.split("\x02") if pair)
    return {name: value for name, separator, value in pairs if separator}
