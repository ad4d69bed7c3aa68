"""MessageBodies: rows as message records, entries of the log that brokers run on. The queues are read
from the log next to the driver, so that no row is staged that brokers would refuse."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import DataType, StructType

from quorumlog.broker.client.broker_calls import UniqKeys
from quorumlog.broker.dledger.message_machine import entries_of
from quorumlog.broker.errors import TopicNotPermitted, UnknownTopic
from quorumlog.broker.group_commands import WRITE, TopicRow, TopicsQuestion, encode, read_answer
from quorumlog.broker.groups.group_state import GROUPS
from quorumlog.broker.message import KEYS, TAGS, UNIQ_KEY, WAIT, Message, encode_records
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.store.dispatch import MESSAGES
from quorumlog.client import connect
from quorumlog.errors import BadRequest, ConfigError, UnknownMachine
from quorumlog.spark.row_bodies import Packed, SinkOptions, parts_of, row_hashes
from quorumlog.staging import RowDigest

MESSAGE_MACHINE = MESSAGES
"""State machine of the log that takes them."""
TYPES: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "queue": ("int", "bigint"),
    "keys": ("array<string>",),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "body": ("binary", "string"),
}
_OWN_PROPERTIES = frozenset((KEYS, TAGS, UNIQ_KEY, WAIT))


def topics_of(options: SinkOptions) -> dict[str, int]:
    """Numbers of queues of the topics that may be written to. Raises ConfigError, or the log's
    refusal."""
    timeout_ms, tls, user = options.timeout_ms, options.tls, options.as_user
    with connect(options.servers, group=options.group, timeout_ms=timeout_ms, tls=tls, user=user) as log:
        try:
            answer = log.ask(GROUPS, encode(TopicsQuestion()))
        except UnknownMachine:
            raise ConfigError(
                f"group {options.group!r} has no topics: option servers of view messages names the"
                " log that brokers run on, where rows are written"
            ) from None
    rows = read_answer(answer, list[TopicRow])
    if options.topic:
        rows = [row for row in rows if row.topic == options.topic]
        if not rows:
            raise UnknownTopic(f"there is no topic {options.topic}")
        if not rows[0].perm & WRITE:
            raise TopicNotPermitted(
                f"topic {options.topic} takes no messages: its permission is read-only"
            )
    return {row.topic: row.queues for row in rows if row.perm & WRITE}


class MessageBodies:
    """Pickled before a row is packed, and then of one task."""

    def __init__(self, schema: StructType, options: SinkOptions, topics: Mapping[str, int]) -> None:
        """Raises ConfigError."""
        self._columns = {field.name.lower(): _checked(field.name, field.dataType) for field in schema}
        self._options = options
        self._topics = dict(topics)
        self._keys: UniqKeys | None = None
        self._turn: Iterator[int] | None = None
        if "body" not in self._columns or ("topic" in self._columns) == bool(options.topic):
            raise ConfigError(
                "view messages is written from a column body, and a column topic or option topic, one"
                f" of both; the rows have {', '.join(schema.fieldNames()) or 'no columns'}"
            )

    def pack(self, rows: pa.RecordBatch) -> Iterator[Packed]:
        """Rows of one queue stay in their order. Raises ConfigError, UnknownTopic, BadRequest,
        BodyTooLarge."""
        if not rows.num_rows:
            return
        if self._keys is None or self._turn is None:
            task = TaskContext.get()
            self._keys = UniqKeys()
            # Tasks must not all begin with the first queue.
            self._turn = itertools.count(0 if task is None else task.partitionId())
        by_queue: dict[tuple[str, int], list[int]] = {}
        messages = []
        values = {
            name.lower(): column.to_pylist()
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        }
        for row in range(rows.num_rows):
            message, queue_id = self._message({name: column[row] for name, column in values.items()})
            messages.append(message)
            by_queue.setdefault((message.topic, queue_id), []).append(row)
        digests = row_hashes(rows)
        now_ms = int(time.time() * 1000)
        for (_, queue_id), found in by_queue.items():
            keys = self._keys.take(len(found))
            encoded = encode_records([messages[row] for row in found], queue_id, now_ms, keys)
            first = 0
            for part in parts_of(
                entries_of(RecordBatch.contiguous(*encoded)), self._options.batch_bytes
            ):
                own = np.array(found[first : first + part.count])
                yield Packed(part, RowDigest.of_hashes(digests[own]), part.count)
                first += part.count

    def _message(self, row: Mapping[str, Any]) -> tuple[Message, int]:
        topic, body = row.get("topic", self._options.topic), row["body"]
        if topic is None or body is None:
            raise ConfigError(
                "a message needs a topic and a body, and one of them is null: leave such rows out"
            )
        count = self._topics.get(topic, 0)
        if not count:
            raise UnknownTopic(f"there is no topic {topic!r} that takes messages")
        queue_id = row.get("queue")
        if queue_id is None:
            assert self._turn is not None
            queue_id = next(self._turn) % count
        if not 0 <= queue_id < count:
            raise UnknownTopic(f"topic {topic} has no queue {queue_id}: it has {count}")
        properties = dict(row.get("properties") or ())
        if None in properties.values():
            raise BadRequest(f"a property of a message of topic {topic} is null")
        message = Message(
            topic,
            body.encode() if isinstance(body, str) else body,
            row.get("tags") or "",
            tuple(row.get("keys") or ()),
            {name: value for name, value in properties.items() if name not in _OWN_PROPERTIES},
        )
        return message, queue_id


def _checked(name: str, kind: DataType) -> str:
    """Raises ConfigError."""
    allowed = TYPES.get(name.lower(), ())
    if kind.simpleString() not in allowed:
        ours = ", ".join(f"{each} {' or '.join(types).upper()}" for each, types in TYPES.items())
        raise ConfigError(
            f"column {name} {kind.simpleString().upper()} cannot be written to a message; its columns"
            f" are {ours}"
        )
    return name
