"""GroupStream: the offsets of one group under a streaming query, and which log they are of.

A query begins with an empty micro-batch. Until a first batch is committed, Spark asks for the initial
offset again at each restart, and `latest` or a log's begin has moved by then; once that empty batch is
committed, the checkpoint says where the query began. The two are told apart by their form:

    initial     next index
    begun       {"index": next index, "chain": chain_crc of the entry before it, "cluster": cluster id}

Chains decide whether a checkpoint is of this log: another chain is another log, or one that was restored
to an earlier point. Spark takes an offset that goes back without a word, so that is looked after here.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from quorumlog.errors import ConfigError
from quorumlog.spark.offsets import IndexRange, LedgerDataLoss, LogBounds, resolve
from quorumlog.spark.options import LedgerOptions
from quorumlog.spark.partitions import LedgerPartition
from quorumlog.spark.reading import SourceOpener, index_from, planned, what_is_left
from quorumlog.spark.sources.ledger_source import LedgerSource

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
            f"the checkpoint has an offset that this release cannot read: {stored!r}. Go on with the"
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
        """As the log was told to end last."""
        self._begin_index = 0
        """And to begin."""

    def initial(self) -> StreamOffset:
        """Raises LedgerDataLoss, IndexOutOfRange, ConfigError as a batch query does."""
        options = self._options
        with closing(self._opener(options)) as source:
            bounds = source.bounds()
            if options.starting_timestamp_ms is not None:
                time_ms = options.starting_timestamp_ms
                return StreamOffset(index_from(source, bounds.begin_index, bounds.stop_index, time_ms))
        stated = resolve(
            options.starting_offsets, "latest", bounds, fail_on_data_loss=options.fail_on_data_loss
        )
        return StreamOffset(stated.first_index)

    def begin(self, index: int) -> StreamOffset:
        """The end of the first micro-batch, or of the first of this release on an older checkpoint. The
        named reader stands there from now on."""
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
            return _within_bytes(source, first_index, stop_index, source.bounds(stop_index), most_bytes)

    def time_ms_before(self, index: int) -> int:
        """When the entry in front of `index` was appended, in milliseconds since 1970; -1: not known, or
        it is gone."""
        if index <= self._begin_index:
            return -1
        with closing(self._opener(self._options)) as source:
            return source.time_ms_at(index - 1)

    def index_after(self, time_ms: int, low: int, high: int) -> int:
        """The first index of [low, high) that was appended later; `high` if there is none. Entries that
        are gone have no time."""
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
                ledger_begin_index=bounds.begin_index,
                committed_index=bounds.stop_index - 1,
            )
        if offset.cluster != cluster:
            _logger.warning(
                "group %r is served by cluster %s, and the checkpoint is of cluster %s; their logs are"
                " the same up to offset %d, so the query goes on",
                *(bounds.group, cluster, offset.cluster, offset.index),
            )
        self._trusted = offset

    def _refuse_another_end(self, bounds: LogBounds, index: int) -> None:
        if bounds.stop_index < index:
            raise LedgerDataLoss(
                f"the checkpoint goes on at offset {index}, and group {bounds.group!r} ends at"
                f" {bounds.stop_index}: these are the servers of another log, or of one that was"
                " restored to an earlier point",
                ledger_begin_index=bounds.begin_index,
                committed_index=bounds.stop_index - 1,
            )

    def _begun_elsewhere(
        self, begun: StreamOffset, end: StreamOffset, bounds: LogBounds
    ) -> list[LedgerPartition]:
        missed = (
            f"the first micro-batch of this query was planned by an earlier release up to offset"
            f" {end.index} of group {bounds.group!r} and not committed, and nobody knows any more where"
            f" it began; startingOffsets means {begun.index} by now"
        )
        if self._options.fail_on_data_loss:
            raise LedgerDataLoss(
                f"{missed}. Begin with a new checkpoint and startingOffsets as an index, or set"
                f" failOnDataLoss=false to go on at {end.index}",
                ledger_begin_index=bounds.begin_index,
                committed_index=bounds.stop_index - 1,
            )
        _logger.warning("%s; failOnDataLoss=false, going on at %d", missed, end.index)
        return []


def offsets_of(stored: dict[str, Any]) -> dict[str, StreamOffset]:
    """By group. Raises ConfigError."""
    return {group: StreamOffset.parse(offset) for group, offset in stored.items()}


K = TypeVar("K")


def shared(available: dict[K, int], most: int) -> dict[K, int]:
    """`most` divided by what each group has; at least one to each that has something."""
    total = sum(available.values())
    if total <= most:
        return available
    return {group: min(count, max(most * count // total, 1)) for group, count in available.items()}


def _within_bytes(
    source: LedgerSource, first_index: int, stop_index: int, bounds: LogBounds, most_bytes: int
) -> int:
    first_index = max(first_index, bounds.begin_index)

    def position_of(index: int) -> int:
        [point] = source.points_of([index])
        return point.position

    stop_position = position_of(first_index) + most_bytes
    low, high = first_index + 1, max(stop_index, first_index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        # An entry ends where the next one begins; of the last one nobody says where.
        ends_at = position_of(middle) if middle < bounds.stop_index else position_of(middle - 1) + 1
        if ends_at <= stop_position:
            low = middle
        else:
            high = middle - 1
    return low
