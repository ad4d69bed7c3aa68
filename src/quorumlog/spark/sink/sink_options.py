"""Options of `format("quorumlog")` where it is written to."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from quorumlog.config import DEFAULT_GROUP, MIB
from quorumlog.errors import ConfigError
from quorumlog.net.tls import ClientTls
from quorumlog.spark.option_values import (
    ALIASES,
    TLS_PARSERS,
    by_name,
    fields_of,
    name_of,
    number_of,
    one_of,
    servers_of,
    tls_of,
)
from quorumlog.spark.options import OPTION_NAMES
from quorumlog.staging import BatchRules
from quorumlog.staging.commits import checked_sink_id

_logger = logging.getLogger(__name__)

RAW, JSON, ARROW = "raw", "json", "arrow"
ERROR, KEEP, SKIP = "error", "keep", "skip"
ENTRIES, MESSAGES = "entries", "messages"


class SinkOptions(msgspec.Struct, frozen=True):
    """What a query asked for."""

    servers: str = ""
    group: str = DEFAULT_GROUP
    producer_id: str = ""
    """Under which the log remembers what was written; empty: a name of its own for one `df.write`."""
    batch_id: int = -1
    """Of `df.write`; -1: not given."""
    body_format: str = ""
    """Empty: `raw` if the schema says what the body is."""
    rows_per_entry: int = 1000
    batch_differs: str = ERROR
    batch_order: str = ERROR
    """Of `df.write`: `skip` leaves out batches below the newest that stands."""
    reset_producer: str = ""
    batch_bytes: int = 2 * MIB
    timeout_ms: int = 30_000
    view: str = ENTRIES
    topic: str = ""
    """Of messages; empty: each row names its own."""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    @property
    def tls(self) -> ClientTls | None:
        """Raises ConfigError."""
        return tls_of(self.tls_ca, self.tls_cert, self.tls_key)

    @property
    def writes_messages(self) -> bool:
        return self.view == MESSAGES

    @property
    def rules(self) -> BatchRules:
        return BatchRules(
            keeps_what_stands=self.batch_differs == KEEP,
            skips_older=self.batch_order == SKIP,
            reset_query_id=self.reset_producer or None,
        )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Raises ConfigError naming the option, its value and what is valid."""
        given = fields_of(
            options, _PARSERS, "where format quorumlog is written to", READ_ONLY | SPARK_OPTIONS
        )
        parsed = cls(**given)
        if not parsed.servers:
            raise ConfigError(
                "writing format quorumlog needs option servers (host:port,host:port,...): rows go"
                " through running members, and never into a directory"
            )
        if parsed.topic and not parsed.writes_messages:
            raise ConfigError("option topic is for view messages; rows become entries of the log else")
        if parsed.writes_messages and parsed.body_format:
            raise ConfigError("option bodyFormat is for entries; a message has the body that a row has")
        return parsed

    @staticmethod
    def to_write(options: Mapping[str, str]) -> SinkOptions:
        """Where it is known that rows are written, and nothing is read. Raises ConfigError."""
        for key in options:
            if key.lower() in READ_ONLY and ALIASES.get(key.lower(), key.lower()) not in _PARSERS:
                _logger.warning("option %s is for reading, and is ignored where rows are written", key)
        return SinkOptions.parse(options)

    def check_for_batch(self) -> None:
        """Raises ConfigError."""
        if bool(self.producer_id) != (self.batch_id >= 0):
            raise ConfigError(
                "options producerId and batchId go together: a batch that is written again under the"
                " same two is in the log once. Without both, each write is a new one"
            )

    def check_for_stream(self) -> None:
        """Raises ConfigError."""
        if not self.producer_id:
            raise ConfigError(
                "writeStream needs option producerId, a name of this query's own: the log remembers"
                " under it which micro-batches it has"
            )
        if self.batch_id >= 0:
            raise ConfigError("option batchId is for df.write; a streaming query numbers its batches")
        if self.batch_order != ERROR:
            raise ConfigError("option batchOrder is for df.write: an older checkpoint is an error")


def _sink_id(name: str, text: str) -> str:
    return checked_sink_id(name_of(name, text))


_PARSERS = by_name(
    (
        ("servers", "servers", servers_of),
        ("group", "group", name_of),
        ("subscribe", "group", name_of),
        ("producerId", "producer_id", _sink_id),
        ("batchId", "batch_id", number_of(0, 2**62)),
        ("bodyFormat", "body_format", one_of(RAW, JSON, ARROW)),
        ("rowsPerEntry", "rows_per_entry", number_of(1, 1_000_000)),
        ("batchDiffers", "batch_differs", one_of(ERROR, KEEP)),
        ("batchOrder", "batch_order", one_of(ERROR, SKIP)),
        ("resetProducer", "reset_producer", name_of),
        ("batchBytes", "batch_bytes", number_of(1, 8 * MIB)),
        ("timeoutMs", "timeout_ms", number_of(1, 2**31 - 1)),
        ("view", "view", one_of(ENTRIES, MESSAGES)),
        ("topic", "topic", name_of),
        *TLS_PARSERS,
    )
)
assert {entry[1] for entry in _PARSERS.values()} == set(SinkOptions.__struct_fields__)

SINK_ONLY = frozenset(
    name.lower()
    for name in (
        "producerId",
        "batchId",
        "bodyFormat",
        "rowsPerEntry",
        "batchDiffers",
        "batchOrder",
        "resetProducer",
    )
)
READ_ONLY = frozenset(name.lower() for name in OPTION_NAMES) - frozenset(_PARSERS)
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "path"})
"""Spark's own, which it hands over with the rest."""
