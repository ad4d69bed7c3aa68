"""GroupStream: the offsets of one group under a streaming query.

Spark takes an offset that goes back without a word, so that is looked after here.
"""

from __future__ import annotations

from contextlib import closing

from quorumlog.errors import ConfigError
from quorumlog.spark.offsets import IndexRange, LedgerDataLoss, LogBounds, resolve, skip_lost_entries
from quorumlog.spark.options import LedgerOptions
from quorumlog.spark.partitions import LedgerPartition
from quorumlog.spark.reading import SourceOpener, planned
from quorumlog.spark.sources.ledger_source import LedgerSource


class GroupStream:
    def __init__(self, options: LedgerOptions, opener: SourceOpener) -> None:
        """`options` are of one group."""
        self._options = options
        self._opener = opener
        self._target: int | None = None
        """Where a query ends that reads what is available now."""
        self.end_index: int | None = None
        """As the log was told to end last."""

    def initial(self) -> int:
        """Raises LedgerDataLoss, IndexOutOfRange, ConfigError as a batch query does."""
        options = self._options
        with closing(self._opener(options)) as source:
            bounds = source.bounds()
            if options.starting_timestamp_ms >= 0:
                first_index = source.index_at(options.starting_timestamp_ms)
                return min(max(first_index, bounds.begin_index), bounds.stop_index)
        stated = resolve(
            options.starting_offsets, "latest", bounds, fail_on_data_loss=options.fail_on_data_loss
        )
        return stated.first_index

    def end_with_what_is_there(self) -> None:
        with closing(self._opener(self._options)) as source:
            self._target = self._bounds_of(source).stop_index

    @property
    def has_target(self) -> bool:
        return self._target is not None

    def available(self, first_index: int) -> int:
        """Up to where the log may be read that was read up to `first_index`. Raises LedgerDataLoss if it
        ends below, Unreachable after `timeoutMs`."""
        with closing(self._opener(self._options)) as source:
            bounds = self._bounds_of(source, first_index)
        if bounds.stop_index < first_index:
            raise LedgerDataLoss(
                f"the checkpoint goes on at offset {first_index}, and group {bounds.group!r} ends at"
                f" {bounds.stop_index}: these are the servers of another log, or of one that was"
                " restored to an earlier point",
                ledger_begin_index=bounds.begin_index,
                committed_index=bounds.stop_index - 1,
            )
        if self._target is None:
            return bounds.stop_index
        return max(first_index, min(bounds.stop_index, self._target))

    def within_bytes(self, first_index: int, stop_index: int, most_bytes: int) -> int:
        """The highest stop up to which the entries from `first_index` on have at most `most_bytes`; one
        more than `first_index` at least, so that a large entry does not end the query."""
        with closing(self._opener(self._options)) as source:
            return _within_bytes(source, first_index, stop_index, source.bounds(stop_index), most_bytes)

    def planned(self, first_index: int, stop_index: int) -> list[LedgerPartition]:
        """Raises LedgerDataLoss if some of it is gone and `failOnDataLoss` is true."""
        options = self._options
        assert first_index <= stop_index, f"a micro-batch from {first_index} to {stop_index}"
        if first_index == stop_index:
            return []
        with closing(self._opener(options)) as source:
            bounds = self._bounds_of(source)
            if first_index < bounds.begin_index:
                first_index = skip_lost_entries(
                    first_index,
                    min(bounds.begin_index, stop_index),
                    bounds,
                    fail_on_data_loss=options.fail_on_data_loss,
                )
            return planned(options, source, bounds, IndexRange(first_index, stop_index))

    def commit_reader(self, index: int) -> None:
        with closing(self._opener(self._options)) as source:
            source.commit_reader(self._options.reader, index)

    def _bounds_of(self, source: LedgerSource, reached: int = 0) -> LogBounds:
        bounds = source.bounds(reached)
        self.end_index = bounds.stop_index
        return bounds


def checked_groups(start: dict[str, int], groups: list[str]) -> dict[str, int]:
    """An offset, as numbers, in the order of `groups`. Raises ConfigError for other groups."""
    if set(start) != set(groups):
        raise ConfigError(
            f"the checkpoint is of group {' and '.join(map(repr, sorted(start)))}, the options name"
            f" {' and '.join(map(repr, groups))}: a query keeps its groups, others need a checkpoint of"
            " their own"
        )
    return {group: int(start[group]) for group in groups}


def shared(available: dict[str, int], most: int) -> dict[str, int]:
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
