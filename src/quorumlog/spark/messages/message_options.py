"""Options of the view of messages, parsed and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from quorumlog.config import MIB
from quorumlog.errors import ConfigError
from quorumlog.net.tls import ClientTls
from quorumlog.spark.messages.queue_offsets import EARLIEST, LATEST, QueueOffsets, parse_queue_offsets
from quorumlog.spark.option_values import (
    TLS_PARSERS,
    boolean,
    by_name,
    columns_of,
    duration_ms,
    fields_of,
    name_of,
    number_of,
    pattern_of,
    servers_of,
    tls_of,
)

VIEW = "view"
MESSAGES = "messages"
STREAM_OPTIONS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "consumerGroup")
COLUMNS = (
    "topic", "queue", "offset", "keys", "tags", "properties", "born_time", "store_time", "body",
    "physical_offset", "flag", "sys_flag", "reconsume_times",
)  # fmt: skip
DEFAULT_COLUMNS = COLUMNS[:9]


def is_message_view(options: Mapping[str, str]) -> bool:
    """Raises ConfigError for a view that there is not."""
    views = [str(value) for key, value in options.items() if key.lower() == VIEW]
    if views and views[0] not in (MESSAGES, "entries"):
        raise ConfigError(f"option view must be entries or messages, not {views[0]!r}")
    return views == [MESSAGES]


@dataclass(frozen=True, slots=True)
class MessageOptions:
    path: str = ""
    """Directory of a stopped store, readable at this path by every Spark worker."""
    servers: str = ""
    """Addresses of brokers, of which the master is asked."""
    starting_offsets: QueueOffsets = EARLIEST
    ending_offsets: QueueOffsets = LATEST
    """Exclusive."""
    fail_on_data_loss: bool = True
    timeout_ms: int = 30_000
    topics: tuple[str, ...] = ()
    """Empty: all."""
    begin_ms: int = 0
    end_ms: int = 2**62
    """Stored then or before."""
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    partition_bytes: int = 128 * MIB
    partition_records: int = 1_000_000
    """Of a broker's queue."""
    pushdown: bool = False
    topic_pattern: str = ""
    """A regular expression: topics whose whole name it matches; empty: `topics` counts."""
    max_offsets: int = 0
    """Of a micro-batch; 0: no limit."""
    min_offsets: int = 0
    max_trigger_delay_ms: int = 15 * 60_000
    consumer_group: str = ""
    """That a stream commits its progress as; empty: none."""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    @property
    def tls(self) -> ClientTls | None:
        """Raises ConfigError."""
        return tls_of(self.tls_ca, self.tls_cert, self.tls_key)

    def wants(self, topic: str) -> bool:
        if self.topic_pattern:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return not self.topics or topic in self.topics

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> MessageOptions:
        """Raises ConfigError naming the option."""
        given = fields_of(options, _PARSERS, "of view messages", (VIEW,))
        parsed = cls(**given)
        for what in ("starting", "ending"):
            if (
                f"{what}_offsets" in given
                and {"starting": "begin_ms", "ending": "end_ms"}[what] in given
            ):
                raise ConfigError(f"options {what}Offsets and {what}Timestamp exclude each other")
        if parsed.topics and parsed.topic_pattern:
            raise ConfigError("options topic and subscribePattern exclude each other; give one")
        if not parsed.topics and not parsed.topic_pattern:
            # As with Kafka's assign: queues that are named are what is asked for.
            named = [each for each in (parsed.starting_offsets, parsed.ending_offsets) if each.by_queue]
            topics = {topic for each in named for topic, _ in each.by_queue}
            parsed = replace(parsed, topics=tuple(sorted(topics)))
        if bool(parsed.path) == bool(parsed.servers):
            raise ConfigError(
                "view messages needs option path (the directory of a stopped store) or option servers"
                " (HOST:PORT,... of brokers), one of both"
            )
        return parsed


def _path(name: str, text: str) -> str:
    local = text.removeprefix("file://").removeprefix("file:")
    return os.path.abspath(local) if local else ""


def _topics(name: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_COUNT = number_of(1, 2**62)
_PARSERS = by_name(
    (
        ("path", "path", _path),
        ("servers", "servers", servers_of),
        ("topic", "topics", _topics),
        ("subscribe", "topics", _topics),
        ("subscribePattern", "topic_pattern", pattern_of),
        ("startingOffsets", "starting_offsets", parse_queue_offsets),
        ("endingOffsets", "ending_offsets", parse_queue_offsets),
        ("startingTimestamp", "begin_ms", number_of(0, 2**62)),
        ("endingTimestamp", "end_ms", number_of(0, 2**62)),
        ("columns", "columns", columns_of(COLUMNS)),
        ("partitionBytes", "partition_bytes", _COUNT),
        ("maxRecordsPerPartition", "partition_records", _COUNT),
        ("pushdown", "pushdown", boolean),
        ("failOnDataLoss", "fail_on_data_loss", boolean),
        ("timeoutMs", "timeout_ms", number_of(1, 2**31 - 1)),
        ("maxOffsetsPerTrigger", "max_offsets", _COUNT),
        ("minOffsetsPerTrigger", "min_offsets", number_of(0, 2**62)),
        ("maxTriggerDelay", "max_trigger_delay_ms", duration_ms),
        ("consumerGroup", "consumer_group", name_of),
        *TLS_PARSERS,
    )
)
