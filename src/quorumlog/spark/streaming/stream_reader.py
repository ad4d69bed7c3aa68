"""LedgerStreamReader: a streaming query's offsets and micro-batches.

An offset has one of each group (see `group_stream`). One reader lives beside the driver for as long as
the query runs; the workers get copies of it, with the options and nothing open.

A restarted query may name other groups than its checkpoint. One that is new begins with the log's first
entry, behind a micro-batch that says so; one that is gone ends. A micro-batch that was planned before
the restart is read as it was planned, whatever groups are named by now.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quorumlog.arrow import TIME_COLUMN
from quorumlog.errors import ConfigError
from quorumlog.spark.options import LedgerOptions
from quorumlog.spark.reading import GroupFinder, SourceOpener, read_partition
from quorumlog.spark.rows import check_schema
from quorumlog.spark.short_errors import in_short
from quorumlog.spark.sources.ledger_source import open_source, served_groups
from quorumlog.spark.streaming.group_stream import GroupStream, StreamOffset, offsets_of, shared

POLL_S = 0.1
"""So long a query that has everything waits for new entries before Spark asks again."""
_PAUSE_S = 0.01
FIND_S = 5.0
"""So long the groups that `subscribePattern` found last are those that there are."""


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self,
        options: LedgerOptions,
        schema: StructType,
        opener: SourceOpener = open_source,
        served: GroupFinder = served_groups,
    ) -> None:
        """Raises ConfigError if `schema` is not made of our columns, or an option is for batches."""
        check_schema(schema, options.columns)
        if not options.servers:
            raise ConfigError(
                "a stream reads from running members (option servers); a directory (option path)"
                " or an archive alone does not grow: read it with spark.read"
            )
        for name, is_given in (
            ("endingOffsets", options.ending_offsets != "latest"),
            ("endingTimestamp", options.ending_timestamp_ms is not None),
            ("endingOffsetsByTimestamp", options.ending_timestamps is not None),
        ):
            if is_given:
                raise ConfigError(f"option {name} is for spark.read; a stream has no end")
        self._options = options = options.of_stream()
        self._schema = schema
        self._opener = opener
        self._served = served
        self._streams = {each.served_group: GroupStream(each, opener) for each in options.by_group()}
        self._former: dict[str, GroupStream] = {}
        """Groups of the checkpoint that are not named, or not found yet."""
        self._find_at = -math.inf
        self._batched_at = time.monotonic()
        """When there was something for a micro-batch last."""

    # ---------------------------------------------------------------- offsets

    @in_short
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raises LedgerDataLoss, IndexOutOfRange, ConfigError as a batch query does."""
        self._find_groups()
        return _stored({group: stream.initial() for group, stream in self._streams.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The options' limits, of which Spark takes one; `latestOffset` applies them all."""
        options = self._options
        if options.max_offsets:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes:
            return ReadMaxBytes(options.max_bytes)
        if options.min_offsets:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    @in_short
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Raises LedgerDataLoss if a log is another one than that of `start`, Unreachable after
        `timeoutMs`."""
        has_target = any(stream.has_target for stream in self._streams.values())
        if not has_target:
            self._find_groups()
        begun = self._begun(start)
        if len(begun) < len(self._streams):
            return _stored(
                {
                    group: begun[group] if group in begun else stream.begin_with_the_log()
                    for group, stream in self._streams.items()
                }
            )
        if not all(offset.has_begun for offset in begun.values()):
            return _stored({group: self._streams[group].begin(at.index) for group, at in begun.items()})
        indices = {group: offset.index for group, offset in begun.items()}
        polling_ends = time.monotonic() + POLL_S
        while True:
            available = {group: self._streams[group].available(at) for group, at in begun.items()}
            ends = self._limited(indices, available, limit, is_last=has_target)
            if ends != indices:
                self._batched_at = time.monotonic()
                return _stored(
                    {
                        group: self._streams[group].marked(end)
                        if end > begun[group].index
                        else begun[group]
                        for group, end in ends.items()
                    }
                )
            if has_target or time.monotonic() >= polling_ends:
                return start if len(start) == len(begun) else _stored(begun)
            time.sleep(_PAUSE_S)

    def _find_groups(self) -> None:
        """Those that `subscribePattern` takes by now."""
        options, now = self._options, time.monotonic()
        if options.group_pattern and now >= self._find_at:
            self._find_at = now + FIND_S
            found = options.subscribed_to(self._served(options)).by_group()
            self._streams = {
                each.served_group: self._streams.get(each.served_group)
                or GroupStream(each, self._opener)
                for each in found
            }

    def _begun(self, start: dict[str, Any]) -> dict[str, StreamOffset]:
        """Of the groups that are named, those that the checkpoint has, in order of name. Raises
        ConfigError if it has none of them, or has others and `failOnDataLoss` is true."""
        offsets = offsets_of(start)
        begun = {group: offsets[group] for group in self._streams if group in offsets}
        former = [group for group in offsets if group not in begun]
        named, has = (
            " and ".join(map(repr, groups)) or "none that is served"
            for groups in (self._streams, offsets)
        )
        if offsets and not begun:
            raise ConfigError(
                f"the checkpoint is of group {has}, the options name {named}: another group needs a"
                " checkpoint of its own"
            )
        if former and self._options.fail_on_data_loss:
            raise ConfigError(
                f"the checkpoint is of group {has}, the options name {named}: what follows in"
                f" {' and '.join(map(repr, former))} would not be read. Name it again, or set"
                " failOnDataLoss=false to go on without it"
            )
        return begun

    def _stream_of(self, group: str) -> GroupStream:
        stream = self._streams.get(group) or self._former.get(group)
        if stream is None:
            stream = GroupStream(self._options.of_former_group(group), self._opener)
            self._former[group] = stream
        return stream

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the logs ended when they were asked last: with the offset of a micro-batch it is the
        lag."""
        ends = {group: stream.end_index for group, stream in self._streams.items()}
        known = {group: {"index": end} for group, end in ends.items() if end is not None}
        return known if len(known) == len(ends) else None

    @in_short
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._find_groups()
        for stream in self._streams.values():
            stream.end_with_what_is_there()

    def _limited(
        self, begun: dict[str, int], available: dict[str, int], limit: ReadLimit, *, is_last: bool
    ) -> dict[str, int]:
        """Where the micro-batch that begins at `begun` ends; there, if it has to wait."""
        options = self._options
        if isinstance(limit, ReadAllAvailable):  # a trigger that wants everything at once
            return available
        counts = {group: available[group] - first_index for group, first_index in begun.items()}
        if not is_last and sum(counts.values()) < options.min_offsets:
            waited_ms = (time.monotonic() - self._batched_at) * 1000
            if waited_ms < options.max_trigger_delay_ms:
                return begun
        if options.max_offsets:
            counts = shared(counts, options.max_offsets)
        ends = {group: begun[group] + count for group, count in counts.items()}
        if options.max_bytes:
            total = sum(counts.values())
            for group, count in counts.items():
                if count:
                    part = max(options.max_bytes * count // total, 1)
                    ends[group] = self._streams[group].within_bytes(begun[group], ends[group], part)
        has_times = any(name.lower() == TIME_COLUMN for name in self._schema.names)
        if len(ends) > 1 and ends != available and has_times:
            return self._together(begun, available, ends)
        return ends

    def _together(
        self, begun: dict[str, int], available: dict[str, int], ends: dict[str, int]
    ) -> dict[str, int]:
        """`ends`, but no group gets ahead of what another one has left, by append time: a watermark that
        young rows of one group have lifted would drop the old rows of the other."""
        last_ms = {
            group: self._streams[group].time_ms_before(end)
            for group, end in ends.items()
            if begun[group] < end
        }
        left = [time_ms for group, time_ms in last_ms.items() if ends[group] < available[group]]
        # In front of a log's first time mark rows have no time (-1), and no watermark drops them. Any
        # time may come behind them, so the others wait with all rows that have one.
        until_ms = min(left, default=max(last_ms.values(), default=-1))
        for group, time_ms in last_ms.items():
            if time_ms > until_ms:
                ends[group] = self._streams[group].index_after(until_ms, begun[group], ends[group])
        return ends

    # ---------------------------------------------------------------- micro-batches

    @in_short
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Also of a range that was planned before a restart. Raises LedgerDataLoss if some of it is
        gone and `failOnDataLoss` is true."""
        begun, ends = offsets_of(start), offsets_of(end)
        return [
            part
            for group, ended in ends.items()
            if group in begun
            for part in self._stream_of(group).planned(begun[group], ended)
        ]

    @in_short
    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything below `end`: known one micro-batch late, and at a restart."""
        if self._options.reader:
            for group, offset in offsets_of(end).items():
                self._stream_of(group).commit_reader(offset.index)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `read_partition`."""
        return read_partition(self._options, self._schema, self._opener, partition)


def _stored(offsets: dict[str, StreamOffset]) -> dict[str, Any]:
    return {group: offset.stored() for group, offset in offsets.items()}
