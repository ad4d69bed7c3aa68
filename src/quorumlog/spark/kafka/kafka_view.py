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
    kafka_schema,
)
from quorumlog.spark.options import (
    KAFKA,
    READ_INDEX,
    VIEW,
    LedgerDataLoss,
    LedgerOptions,
    boolean,
    check_columns,
    columns_of,
    fields_of,
    name_of,
    option,
    parsers_of,
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


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = tuple(part.strip() for part in text.split(",") if part.strip())
    return topics or (name_of(name, ""),)


@dataclass(frozen=True)
class KafkaView(EntryView):
    topics: tuple[str, ...] = option((), topic=_topics, subscribe=_topics)
    """Empty: all topics."""
    topic_pattern: str = option("", subscribePattern=pattern_of)
    """A regular expression for whole names of topics; empty: `topics` is used."""
    columns: tuple[str, ...] = option((), columns=columns_of(COLUMNS))
    include_headers: bool = option(False, includeHeaders=boolean)

    def schema_of(self, options: LedgerOptions) -> StructType:
        return kafka_schema(self.columns or (COLUMNS if self.include_headers else DEFAULT_COLUMNS))

    def check_schema(self, schema: StructType, options: LedgerOptions) -> None:
        check_columns(schema, COLUMN_TYPES, f"view {KAFKA}")

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
    from quorumlog.spark.sources.server_source import client_of

    client = client_of(options).client

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


_OWN = parsers_of(KafkaView)
_NOT_HERE = ("archive", "pushdown", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
_ALL = {**_OWN, **parsers_of(LedgerOptions), **_OWN}
_KNOWN = {key: parser for key, parser in _ALL.items() if parser.name not in _NOT_HERE}


class KafkaOptions(NamedTuple):
    ledger: LedgerOptions
    view: KafkaView

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KafkaOptions:
        """Raises ConfigError naming the option."""
        values = fields_of(options, _KNOWN, f"of view {KAFKA}", (VIEW,))
        of_view = {parser.field for parser in _OWN.values()} & values.keys()
        view = KafkaView(**{name: values.pop(name) for name in sorted(of_view)})
        if view.topics and view.topic_pattern:
            raise ConfigError("options topic and subscribePattern exclude each other; give one")
        for name in ("starting", "ending"):
            if isinstance(values.get(name), Mapping):
                raise ConfigError(
                    f"option {name}Offsets of view {KAFKA} is earliest, latest or an index of the log,"
                    " which has all topics in one order: give that, or a time (startingTimestamp,"
                    " endingTimestamp), and choose by the column offset"
                )
        ledger = LedgerOptions.of(values)
        if ledger.servers:
            # The begin is the leader's then, whose machine knows the offsets after it. That of another
            # member may be earlier.
            ledger = replace(ledger, read_consistency=READ_INDEX, max_staleness_ms=-1)
        return cls(ledger, view)
