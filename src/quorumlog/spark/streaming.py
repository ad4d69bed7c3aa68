"""Micro-batches: the offsets of one group, and Spark's stream reader for all groups of a query."""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, NoReturn, TypeVar

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
from quorumlog.spark.options import (
    LATEST,
    IndexRange,
    LedgerDataLoss,
    LedgerOptions,
    LogBounds,
    QueryOptions,
)
from quorumlog.spark.partitions import LedgerPartition
from quorumlog.spark.reading import (
    ENTRY_VIEW,
    EntryView,
    GroupFinder,
    LogReader,
    SourceOpener,
    index_from,
    planned,
    stated_range,
    what_is_left,
)
from quorumlog.spark.short_errors import in_short
from quorumlog.spark.sources.ledger_source import LedgerSource, open_source, served_groups

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamOffset:
    """Of one group, as a checkpoint has it."""

    index: int
    chain: int | None = None
    """`chain_crc` of the entry before `index`; None: there is none, or it was not held any more."""
    cluster: str | None = None
    """Id of the cluster; None: an initial offset, or a checkpoint of an earlier release."""

    @property
    def has_begun(self) -> bool:
        return self.cluster is not None

    @classmethod
    def parse(cls, stored: object) -> StreamOffset:
        """Raises ConfigError."""
        if isinstance(stored, dict) and {"index", "chain", "cluster"} <= set(stored):
            chain = stored["chain"]
            return cls(
                int(stored["index"]), None if chain is None else int(chain), str(stored["cluster"])
            )
        if isinstance(stored, int):
            return cls(stored)
        raise ConfigError(
            f"the checkpoint has an offset that this release cannot read: {stored!r}. Continue with the"
            " release that wrote it, or a later one"
        )

    def stored(self) -> Any:
        return asdict(self) if self.has_begun else self.index


class GroupStream:
    def __init__(self, options: LedgerOptions, opener: SourceOpener) -> None:
        """`options` are of one group."""
        self._options = options
        self._opener = opener
        self._target: int | None = None
        """Where a query ends that reads what is available now."""
        self._trusted: StreamOffset | None = None
        """Made or checked by this process last."""
        self.end_index: int | None = None
        """The log's last known end."""
        self._begin_index = 0
        """And to begin."""

    def initial(self) -> StreamOffset:
        """Raises LedgerDataLoss, IndexOutOfRange, ConfigError as a batch query does."""
        with closing(self._opener(self._options)) as source:
            stated = stated_range(self._options, source, source.bounds())
        return StreamOffset(stated.first_index)

    def begin(self, index: int) -> StreamOffset:
        """The end of the first micro-batch, or of the first of this release on an older checkpoint. The
        named reader's position is there from now on."""
        with closing(self._opener(self._options)) as source:
            bounds = self._bounds_of(source, index)
            self._refuse_another_end(bounds, index)
            if self._options.reader:  # what is gone cannot be held, and is a loss when it is planned
                held_index = max(index, bounds.begin_index)
                source.begin_reader(self._options.reader, held_index, hold=self._options.reader_hold)
            return self._marked(source, index)

    def begin_with_the_log(self) -> StreamOffset:
        """The same for a group that a restarted query names for the first time."""
        with closing(self._opener(self._options)) as source:
            index = self._bounds_of(source).begin_index
        return self.begin(index)

    def end_with_what_is_there(self) -> None:
        with closing(self._opener(self._options)) as source:
            self._target = self._bounds_of(source).stop_index

    @property
    def has_target(self) -> bool:
        return self._target is not None

    def available(self, begun: StreamOffset) -> int:
        """Up to where the log may be read that was read up to `begun`. Raises LedgerDataLoss if that is
        of another log, Unreachable after `timeoutMs`."""
        with closing(self._opener(self._options)) as source:
            bounds = self._bounds_of(source, begun.index)
            self._check(source, bounds, begun)
        if self._target is None:
            return bounds.stop_index
        return max(begun.index, min(bounds.stop_index, self._target))

    def marked(self, index: int) -> StreamOffset:
        with closing(self._opener(self._options)) as source:
            return self._marked(source, index)

    def within_bytes(self, first_index: int, stop_index: int, most_bytes: int) -> int:
        """The highest stop up to which the entries from `first_index` on have at most `most_bytes`; one
        more than `first_index` at least, so that a large entry does not end the query."""
        with closing(self._opener(self._options)) as source:
            bounds = source.bounds(stop_index)
            first_index = max(first_index, bounds.begin_index)

            def ends_at(stop: int) -> int:
                # An entry ends where the next one begins; of the last one nobody says where.
                at = min(stop, bounds.stop_index - 1)
                [point] = source.points_of([at])
                return point.position + (stop > at)

            [first] = source.points_of([first_index])
            more = range(first_index + 2, stop_index + 1)
            fitting = bisect_right(more, first.position + most_bytes, key=ends_at)
            return first_index + 1 + fitting

    def time_ms_before(self, index: int) -> int:
        """When the entry before `index` was appended, in milliseconds since 1970; -1: unknown, or
        deleted."""
        if index <= self._begin_index:
            return -1
        with closing(self._opener(self._options)) as source:
            return source.time_ms_at(index - 1)

    def index_after(self, time_ms: int, low: int, high: int) -> int:
        """The first index of [low, high) that was appended later; `high` if there is none. Deleted
        entries have no time."""
        low = min(max(low, self._begin_index), high)
        with closing(self._opener(self._options)) as source:
            return index_from(source, low, high, time_ms + 1)

    def planned(self, begun: StreamOffset, end: StreamOffset) -> list[LedgerPartition]:
        """Raises LedgerDataLoss if some of it is gone and `failOnDataLoss` is true, or if it was planned
        on another log."""
        options = self._options
        if begun.index == end.index or (end.has_begun and not begun.has_begun):
            return []  # where the query begins is all that its first micro-batch says
        with closing(self._opener(options)) as source:
            bounds = self._bounds_of(source, end.index)
            self._check(source, bounds, begun)
            self._check(source, bounds, end)
            first_index = begun.index
            if first_index > end.index:  # the first batch of an earlier release, which was not committed
                return self._begun_elsewhere(begun, end, bounds)
            left = what_is_left(options, source, bounds, IndexRange(first_index, end.index))
            return planned(options, source, bounds, left)

    def commit_reader(self, index: int) -> None:
        with closing(self._opener(self._options)) as source:
            source.commit_reader(self._options.reader, index)

    def _bounds_of(self, source: LedgerSource, reached: int = 0) -> LogBounds:
        bounds = source.bounds(reached)
        self.end_index, self._begin_index = bounds.stop_index, bounds.begin_index
        return bounds

    def _marked(self, source: LedgerSource, index: int) -> StreamOffset:
        self._trusted = StreamOffset(index, source.chain_before(index), source.cluster_id())
        return self._trusted

    def _check(self, source: LedgerSource, bounds: LogBounds, offset: StreamOffset) -> None:
        """Raises LedgerDataLoss if `offset` is of another log, also where `failOnDataLoss` is false: its
        entries do not follow from those that the query has read."""
        self._refuse_another_end(bounds, offset.index)
        if offset == self._trusted or not offset.has_begun:
            return
        chain = source.chain_before(offset.index)
        cluster = source.cluster_id()
        is_gap = chain is None and offset.index > 0
        if (offset.chain is not None and chain is not None and offset.chain != chain) or (
            is_gap and offset.cluster != cluster
        ):
            raise LedgerDataLoss(
                f"the checkpoint is of another log than group {bounds.group!r} is now, or of one that"
                f" was restored: at offset {offset.index} it has chain {offset.chain} of cluster"
                f" {offset.cluster}, and the log chain {chain} of cluster {cluster}. Begin with a new"
                " checkpoint",
                **bounds.named,
            )
        if offset.cluster != cluster:
            _logger.warning(
                "group %r is served by cluster %s, and the checkpoint is of cluster %s; their logs are"
                " the same up to offset %d, so the query continues",
                *(bounds.group, cluster, offset.cluster, offset.index),
            )
        self._trusted = offset

    def _refuse_another_end(self, bounds: LogBounds, index: int) -> None:
        if bounds.stop_index < index:
            raise LedgerDataLoss(
                f"the checkpoint continues at offset {index}, and group {bounds.group!r} ends at"
                f" {bounds.stop_index}: these are the servers of another log, or of one that was"
                " restored to an earlier point",
                **bounds.named,
            )

    def _begun_elsewhere(
        self, begun: StreamOffset, end: StreamOffset, bounds: LogBounds
    ) -> list[LedgerPartition]:
        missed = (
            "the first micro-batch of this query was planned by an earlier release up to offset"
            f" {end.index} of group {bounds.group!r} and not committed, and its first offset is"
            f" unknown; startingOffsets means {begun.index} by now"
        )
        if self._options.fail_on_data_loss:
            raise LedgerDataLoss(
                f"{missed}. Begin with a new checkpoint and startingOffsets as an index, or set"
                f" failOnDataLoss=false to continue at {end.index}",
                **bounds.named,
            )
        _logger.warning("%s; failOnDataLoss=false, continuing at %d", missed, end.index)
        return []


POLL_S = 0.1
"""So long a query that has everything waits for new entries before Spark asks again."""
_PAUSE_S = 0.01


def offsets_of(stored: dict[str, Any]) -> dict[str, StreamOffset]:
    """By group. Raises ConfigError."""
    return {group: StreamOffset.parse(offset) for group, offset in stored.items()}


K = TypeVar("K")


def shared(available: dict[K, int], most: int) -> dict[K, int]:
    """`most` divided in proportion to each group's entries; at least one to each group with any."""
    total = sum(available.values())
    if total <= most:
        return available
    return {group: min(count, max(most * count // total, 1)) for group, count in available.items()}


def limited(
    counts: dict[K, int], options: QueryOptions, batched_at: float, *, is_last: bool
) -> dict[K, int]:
    """How many of these a micro-batch gets; none while it waits for more. `batched_at`: when there was
    something for one last. `is_last`: no more comes."""
    waited_ms = (time.monotonic() - batched_at) * 1000
    is_waiting = not is_last and waited_ms < options.max_trigger_delay_ms
    if is_waiting and sum(counts.values()) < options.min_offsets:
        return dict.fromkeys(counts, 0)
    return shared(counts, options.max_offsets) if options.max_offsets else counts


def default_limit(options: QueryOptions, max_bytes: int = 0) -> ReadLimit:
    """The options' limits, of which Spark takes one; `limited` applies them all."""
    if options.max_offsets:
        return ReadMaxRows(options.max_offsets)
    if max_bytes:
        return ReadMaxBytes(max_bytes)
    return ReadMinRows(options.min_offsets) if options.min_offsets else ReadAllAvailable()


def polls(*, only_once: bool) -> Iterator[None]:
    """When to look for new entries: now, and for a moment again and again."""
    ends = time.monotonic() + POLL_S
    yield
    while not only_once and time.monotonic() < ends:
        time.sleep(_PAUSE_S)
        yield


# ----------------------------------------------------------------
# LedgerStreamReader: a streaming query's offsets and micro-batches.
#
# An offset has one of each group (see `group_stream`). One reader lives beside the driver for as long as
# the query runs; the workers get copies of it, with the options and nothing open.
#
# A restarted query may name other groups than its checkpoint. One that is new begins with the log's
# first entry, after a micro-batch that says so; one that is gone ends. A micro-batch that was planned
# before the restart is read as it was planned, whatever groups are named by now.


FIND_S = 5.0
"""So long the groups that `subscribePattern` found last are those that there are."""


class LedgerStreamReader(LogReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self,
        options: LedgerOptions,
        schema: StructType,
        opener: SourceOpener = open_source,
        served: GroupFinder = served_groups,
        view: EntryView = ENTRY_VIEW,
    ) -> None:
        """Raises ConfigError if `schema` is not made of our columns, or an option is for batches."""
        super().__init__(options.of_stream(), schema, opener, served, view)
        if not options.servers:
            raise ConfigError(
                "a stream reads from running members (option servers); a directory (option path)"
                " or an archive alone does not grow: read it with spark.read"
            )
        if options.ending != LATEST:
            _, (name, _) = options.ends()
            raise ConfigError(f"option {name} is for spark.read; a stream has no end")
        self._streams = {
            each.served_group: GroupStream(each, opener) for each in self._options.by_group()
        }
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
        self._view.check_log(self._options)
        return _stored({group: stream.initial() for group, stream in self._streams.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return default_limit(self._options, self._options.max_bytes)

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
        for _ in polls(only_once=has_target):
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
        return start if len(start) == len(begun) else _stored(begun)

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
            " and ".join(map(repr, groups)) or "no group that exists"
            for groups in (self._streams, offsets)
        )
        if offsets and not begun:
            raise ConfigError(
                f"the checkpoint is of group {has}, the options name {named}: another group needs a"
                " checkpoint of its own"
            )
        if former and self._options.fail_on_data_loss:
            raise ConfigError(
                f"the checkpoint is of group {has}, the options name {named}: the rest of"
                f" {' and '.join(map(repr, former))} would not be read. Name it again, or set"
                " failOnDataLoss=false to continue without it"
            )
        return begun

    def _stream_of(self, group: str) -> GroupStream:
        stream = self._streams.get(group) or self._former.get(group)
        if stream is None:
            stream = GroupStream(self._options.of_former_group(group), self._opener)
            self._former[group] = stream
        return stream

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The last known ends of the logs: with the offset of a micro-batch they give the lag."""
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
        counts = limited(counts, options, self._batched_at, is_last=is_last)
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
        # Before a log's first time mark rows have no time (-1), and no watermark drops them. Any
        # time may come after them, so the others wait with all rows that have one.
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
            for part in self._view.planned(
                self._options, self._stream_of(group).planned(begun[group], ended)
            )
        ]

    @in_short
    def commit(self, end: dict[str, Any]) -> None:
        """Spark is done with everything below `end`: known one micro-batch late, and at a restart."""
        if self._options.reader:
            for group, offset in offsets_of(end).items():
                self._stream_of(group).commit_reader(offset.index)


def _stored(offsets: dict[str, StreamOffset]) -> dict[str, Any]:
    return {group: offset.stored() for group, offset in offsets.items()}


# ----------------------------------------------------------------
# RefusedStream: a streaming query that cannot run, for what its options say.


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises its error at the first call. Where `streamReader` itself raises, PySpark 4.3 trips over the
    reader that it did not get, and the user sees two stacks."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @in_short
    def _refuse(self, *_: Any) -> NoReturn:
        raise self._error

    prepareForTriggerAvailableNow = getDefaultReadLimit = initialOffset = _refuse  # noqa: N815
    latestOffset = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815
