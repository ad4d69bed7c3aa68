"""Options of the view of messages, parsed and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quorumlog.config import MIB
from quorumlog.errors import ConfigError
from quorumlog.net.tls import ClientTls
from quorumlog.spark.messages.queue_offsets import EARLIEST, LATEST, QueueOffsets, parse_queue_offsets
from quorumlog.spark.option_values import (
    as_kafkas,
    duration_ms,
    name_of,
    one_of,
    pattern_of,
    servers_of,
    tls_of,
)
from quorumlog.spark.options import ALIASES

VIEW = "view"
MESSAGES = "messages"
_NAMES = (
    "view", "path", "servers", "topic", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "columns", "partitionBytes", "maxRecordsPerPartition", "pushdown",
    "failOnDataLoss", "timeoutMs", "subscribe", "subscribePattern", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "consumerGroup", "tlsCa", "tlsCert", "tlsKey",
)  # fmt: skip
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
        names = {name.lower(): name for name in _NAMES}
        given: dict[str, Any] = {}
        for key, value in options.items():
            text = str(value).strip()
            name = names.get(ALIASES.get(key.lower(), key.lower()))
            match name:
                case None:
                    valid = ", ".join(_NAMES)
                    raise ConfigError(f"unknown option {key!r} of view messages; valid are {valid}")
                case "path":
                    local = text.removeprefix("file://").removeprefix("file:")
                    given["path"] = os.path.abspath(local) if local else ""
                case "servers":
                    given["servers"] = servers_of(name, text)
                case "startingOffsets":
                    given["starting_offsets"] = parse_queue_offsets(name, text)
                case "endingOffsets":
                    given["ending_offsets"] = parse_queue_offsets(name, text)
                case "failOnDataLoss":
                    given["fail_on_data_loss"] = one_of("true", "false")(name, text) == "true"
                case "timeoutMs":
                    given["timeout_ms"] = max(_number(name, text), 1)
                case "topic" | "subscribe":
                    if "topics" in given:
                        raise ConfigError(
                            "options topic and subscribe are two names of one thing; give one"
                        )
                    given["topics"] = tuple(part.strip() for part in text.split(",") if part.strip())
                case "startingTimestamp":
                    given["begin_ms"] = _number(name, text)
                case "endingTimestamp":
                    given["end_ms"] = _number(name, text)
                case "columns":
                    given["columns"] = _columns(text)
                case "partitionBytes":
                    given["partition_bytes"] = max(_number(name, text), 1)
                case "maxRecordsPerPartition":
                    given["partition_records"] = max(_number(name, text), 1)
                case "pushdown":
                    given["pushdown"] = text.lower() == "true"
                case "subscribePattern":
                    given["topic_pattern"] = pattern_of(name, text)
                case "maxOffsetsPerTrigger":
                    given["max_offsets"] = max(_number(name, text), 1)
                case "minOffsetsPerTrigger":
                    given["min_offsets"] = _number(name, text)
                case "maxTriggerDelay":
                    given["max_trigger_delay_ms"] = duration_ms(name, text)
                case "consumerGroup":
                    given["consumer_group"] = name_of(name, text)
                case "tlsCa" | "tlsCert" | "tlsKey":
                    given[f"tls_{name[3:].lower()}"] = name_of(name, text)
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


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"option {name} must be a whole number, not {text!r}")
    return int(text)


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for name in names:
        if name not in COLUMNS:
            raise ConfigError(
                f"option columns: unknown column {name!r}; valid are {', '.join(COLUMNS)}"
                f"{as_kafkas(name, COLUMNS)}"
            )
    if not names or len(set(names)) != len(names):
        raise ConfigError("option columns names no column, or one twice")
    return names
