"""KafkaView: planning of a query: the entries with records, and the offsets of the records.

A query reads ranges of the log, as the view of entries does: an offset of a stream is an index of the
log, and every check of a range applies here, too. Offsets of records are assigned when an entry is
applied; a duplicate batch, or one without a topic, has none. So planning asks the leader's state machine
for the valid batches, and each task gets those of its range. A repeated task has the same rows, whatever
was deleted meanwhile.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from pyspark.sql.types import StructType

from quorumlog.errors import ConfigError, IndexOutOfRange, UnknownMachine
from quorumlog.kafka.places import MACHINE_NAME, Ask, BatchPlaces, find_places, topic_names
from quorumlog.spark.kafka.record_rows import (
    COLUMN_TYPES,
    COLUMNS,
    DEFAULT_COLUMNS,
    KafkaRows,
    schema_of,
)
from quorumlog.spark.options import (
    ALIASES,
    KAFKA,
    OPTION_NAMES,
    READ_INDEX,
    VIEW,
    LedgerDataLoss,
    LedgerOptions,
    boolean,
    by_name,
    check_view_schema,
    columns_of,
    fields_of,
    name_of,
    pattern_of,
)
from quorumlog.spark.partitions import LedgerPartition
from quorumlog.spark.reading import Encoder, EntryView
from quorumlog.spark.sources.ledger_source import LedgerSource, open_source

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class KafkaPartition(LedgerPartition):
    places: BatchPlaces | None = None
    """The batches in the partition's range."""


@dataclass(frozen=True)
class KafkaView(EntryView):
    topics: tuple[str, ...] = ()
    """Empty: all topics."""
    topic_pattern: str = ""
    """A regular expression for whole names of topics; empty: `topics` is used."""
    columns: tuple[str, ...] = ()
    include_headers: bool = False

    @property
    def schema(self) -> StructType:
        return schema_of(self.columns or (COLUMNS if self.include_headers else DEFAULT_COLUMNS))

    def check_schema(self, schema: StructType, options: LedgerOptions) -> None:
        check_view_schema(schema, COLUMN_TYPES, KAFKA)

    def check_log(self, options: LedgerOptions) -> None:
        ask = _ask_of(options, 0)
        self._check_topics(options, find_places(ask, self._wanted(ask), 0, 0).missing)

    def planned(
        self, options: LedgerOptions, parts: Sequence[LedgerPartition]
    ) -> Sequence[LedgerPartition]:
        """Raises LedgerDataLoss, ConfigError."""
        if not parts:
            return parts
        ask = _ask_of(options, parts[-1].stop_index)
        with closing(open_source(options)) as source:
            source.follow(parts[0])
            edges = _edges_of(options, source, parts)
        if not edges:
            return []
        edges[-1] += 1
        found = find_places(ask, self._wanted(ask), edges[0], edges[-1])
        self._check_topics(options, found.missing)
        if found.begin_position > edges[0]:
            _lost(options, parts[0])
        cuts = np.searchsorted(found.places.positions, edges).tolist()
        return [
            KafkaPartition(**vars(part), places=found.places.slice(first, stop))
            for part, first, stop in zip(parts, cuts, cuts[1:], strict=False)
            if first < stop
        ]

    def encoder(self, options: LedgerOptions, schema: StructType, partition: LedgerPartition) -> Encoder:
        assert isinstance(partition, KafkaPartition), partition
        assert partition.places is not None, partition
        return KafkaRows(schema, partition.places, options.batch_bytes)

    def _wanted(self, ask: Ask) -> list[str] | None:
        if not self.topic_pattern:
            return [*self.topics] or None
        return [name for name in topic_names(ask) if re.fullmatch(self.topic_pattern, name)]

    def _check_topics(self, options: LedgerOptions, missing: Sequence[str]) -> None:
        """Raises ConfigError."""
        if not missing:
            return
        what = f"group {options.served_group!r} has no topic {', '.join(missing)}"
        if options.fail_on_data_loss:
            raise ConfigError(
                f"{what}: name others (quorumlog kafka topic list shows them), or set"
                " failOnDataLoss=false to continue without it"
            )
        _logger.warning("%s; failOnDataLoss=false, continuing without it", what)


def _edges_of(
    options: LedgerOptions, source: LedgerSource, parts: Sequence[LedgerPartition]
) -> list[int]:
    """Positions of the first entry of each partition and of the last one of all; of deleted entries that
    of the next one that the log has. Empty if all are deleted. Raises LedgerDataLoss."""
    begin_index, stop_index = parts[0].first_index, parts[-1].stop_index
    indices = [*(part.first_index for part in parts), stop_index - 1]
    while begin_index < stop_index:
        try:
            points = source.points_of([max(index, begin_index) for index in indices])
        except IndexOutOfRange:
            found = source.bounds(stop_index).begin_index
            if found <= begin_index:
                raise
            _lost(options, parts[0])
            begin_index = found
        else:
            return [point.position for point in points]
    return []


def _lost(options: LedgerOptions, part: LedgerPartition) -> None:
    """Raises LedgerDataLoss if `failOnDataLoss` is true."""
    gone = (
        f"entries from index {part.first_index} of group {part.group!r} on were deleted meanwhile, or"
        " before the leader's copy of the topics was taken"
    )
    if options.fail_on_data_loss:
        raise LedgerDataLoss(
            f"{gone}. Run the query again, begin later (startingOffsets), or set failOnDataLoss=false to"
            " leave them out",
            ledger_begin_index=part.first_index,
        )
    _logger.warning("%s; failOnDataLoss=false, continuing without them", gone)


def _ask_of(options: LedgerOptions, stop_index: int) -> Ask:
    """Queries the state machine, once it has applied the entries before `stop_index`."""
    if options.path:
        from quorumlog.spark.kafka.stopped_topics import stopped_machine

        return stopped_machine(options.path, stop_index).query
    from quorumlog.spark.sources.server_source import MEMBER_TIMEOUT_MS, shared_client

    client, _ = shared_client(
        *(options.servers, options.served_group, options.tls, options.as_user),
        min(MEMBER_TIMEOUT_MS, options.timeout_ms),
    )

    def ask(question: bytes) -> bytes:
        try:
            return client.ask(MACHINE_NAME, question, timeout_ms=options.timeout_ms)
        except UnknownMachine as error:
            raise ConfigError(
                f"group {options.served_group!r} has no topics of Kafka: {error}. Option servers of view"
                " kafka names the log's own ports; its members are started with --kafka"
            ) from None

    return ask


# ---------------------------------------------------------------- options


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = tuple(part.strip() for part in text.split(",") if part.strip())
    return topics or (name_of(name, ""),)


_PARSERS = by_name(
    (
        ("topic", "topics", _topics),
        ("subscribe", "topics", _topics),
        ("subscribePattern", "topic_pattern", pattern_of),
        ("columns", "columns", columns_of(COLUMNS)),
        ("includeHeaders", "include_headers", boolean),
    )
)
_NOT_HERE = (
    "archive",
    "subscribe",
    "subscribePattern",
    "columns",
    "pushdown",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
)
_OF_LOG = tuple(name for name in OPTION_NAMES if name not in _NOT_HERE)
_KNOWN = frozenset((*_PARSERS, *(name.lower() for name in _OF_LOG), *ALIASES))


class KafkaOptions(NamedTuple):
    ledger: LedgerOptions
    view: KafkaView

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KafkaOptions:
        """Raises ConfigError naming the option."""
        given = {key: value for key, value in options.items() if key.lower() != VIEW}
        for key in given:
            if key.lower() not in _KNOWN:
                valid = ", ".join((*(name for name, _, _ in _PARSERS.values()), *_OF_LOG))
                raise ConfigError(f"unknown option {key!r} of view {KAFKA}; valid are {valid}")
        own, of_log = (
            {k: v for k, v in given.items() if (k.lower() in _PARSERS) is it} for it in (True, False)
        )
        view = KafkaView(**fields_of(own, _PARSERS, f"of view {KAFKA}"))
        if view.topics and view.topic_pattern:
            raise ConfigError("options topic and subscribePattern exclude each other; give one")
        ledger = LedgerOptions.parse(of_log)
        for name, stated in (
            ("startingOffsets", ledger.starting_offsets),
            ("endingOffsets", ledger.ending_offsets),
        ):
            if isinstance(stated, dict):
                raise ConfigError(
                    f"option {name} of view {KAFKA} is earliest, latest or an index of the log, which"
                    " has all topics in one order: give that, or a time (startingTimestamp,"
                    " endingTimestamp), and choose by the column offset"
                )
        if ledger.servers:
            # The begin is the leader's then, whose machine knows the offsets after it. That of another
            # member may be earlier.
            ledger = replace(ledger, read_consistency=READ_INDEX, max_staleness_ms=-1)
        return cls(ledger, view)
