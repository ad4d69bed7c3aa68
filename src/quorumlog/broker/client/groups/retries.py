"""What becomes of a message that could not be worked off: it comes to its group again, later, or lies in
the group's dead letters, from where it can be sent to the group anew. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.broker.client.broker_verbs import Encoded
from quorumlog.broker.group_commands import (
    DLQ_ATTEMPT,
    DLQ_CAUSE,
    FIRST_RETRY_LEVEL,
    LEVELS,
    ORIGIN_MESSAGE_ID,
    REAL_QUEUE,
    REAL_TOPIC,
    RETRY_TOPIC,
    dlq_topic,
    retry_topic,
)
from quorumlog.broker.message import (
    DELAY,
    SCHEDULE_TOPIC,
    StoredMessage,
    encode_again,
    encode_properties,
    properties_that_fit,
)
from quorumlog.errors import BadRequest

MOST_CAUSE_BYTES = 256


class SuspendQueue(Exception):
    """Raised by the handler of an orderly consumer: nothing of this message's queue is worked on for a
    while, then this message again; it counts as no attempt."""

    def __init__(self, pause_ms: int = 1_000) -> None:
        super().__init__(f"the queue is suspended for {pause_ms} ms")
        self.pause_ms = pause_ms


class Again(NamedTuple):
    encoded: Encoded
    problem: str
    """In a sentence, why it goes to the dead letters before its time; empty: it does not."""


def again_of(
    message: StoredMessage, group: str, *, most_retries: int, delay_level: int = 0, cause: str = ""
) -> Again:
    """As it is to be sent: to come again after a delay that grows with each time, or that of
    `delay_level` (1 to 18); after `most_retries` times, and where its properties leave no room for what
    a retry adds, to the group's dead letters. Raises BadRequest."""
    if not 0 <= delay_level <= LEVELS:
        raise BadRequest(f"a delay level is 1 to {LEVELS}, or 0; not {delay_level}")
    properties = dict(message.properties)
    properties.setdefault(RETRY_TOPIC, message.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
    attempt = message.reconsume_times + 1
    is_dead = message.reconsume_times >= most_retries
    level = delay_level or min(FIRST_RETRY_LEVEL + message.reconsume_times, LEVELS)
    problem = ""
    if is_dead:
        topic, queue_id = dlq_topic(group), 0
        added = {DLQ_CAUSE: told_cause(cause), DLQ_ATTEMPT: str(attempt)}
    else:
        topic, queue_id = SCHEDULE_TOPIC, level - 1
        added = {DELAY: str(level), REAL_TOPIC: retry_topic(group), REAL_QUEUE: "0"}
    try:
        data = encode_properties(properties | added)
    except BadRequest as error:
        problem = str(error)
        topic, queue_id = dlq_topic(group), 0
        data = properties_that_fit(message.properties)
    record = encode_again(message, topic, queue_id, data, attempt)
    return Again(Encoded(record, [len(record)], queue_id, topic, True), problem)


def told_cause(cause: str) -> str:
    """As much of it as a property takes."""
    printable = "".join(c if c.isprintable() else " " for c in cause)
    return printable.encode(errors="replace")[:MOST_CAUSE_BYTES].decode(errors="ignore")


def cause_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def revived(message: StoredMessage, group: str) -> Encoded:
    """A dead letter of the group as it is to be sent to the group again, as if for the first time."""
    gone = (DLQ_CAUSE, DLQ_ATTEMPT)
    properties = {name: value for name, value in message.properties.items() if name not in gone}
    topic = retry_topic(group)
    record = encode_again(message, topic, 0, encode_properties(properties), 0)
    return Encoded(record, [len(record)], 0, topic, True)
