"""LedgerSource: where a query's entries come from."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from quorumlog.batch import EntryBatch
from quorumlog.log_state.log_state import Resets
from quorumlog.spark.options import LedgerOptions, LogBounds
from quorumlog.spark.partitions import EntryPoint, LedgerPartition, RangeCheck, Readers


class LedgerSource(Protocol):
    """The planner reads bounds, members and positions; a task its batches."""

    def bounds(self, reached: int = 0) -> LogBounds:
        """The entries that may be read now. Called once a plan. `reached`: the log was read up to this
        offset (exclusive) before, so a member with less lags."""

    def readers(self) -> Readers:
        """As of the call of `bounds`."""

    def points_of(self, indices: Sequence[int]) -> list[EntryPoint]:
        """Of entries within the bounds, or of the one just below the planned range if it is held."""

    def follow(self, partition: LedgerPartition) -> None:
        """In a task, which has no plan: ask the members that the plan found, at their addresses."""

    def time_ms_at(self, index: int) -> int:
        """When a committed entry counts as appended, in milliseconds since 1970; -1: no time mark at or
        before it."""

    def clock_resets(self) -> Resets:
        """Of the log's clock, by index."""

    def batches(self, check: RangeCheck, *, heads: bool = False) -> Generator[EntryBatch]:
        """The entries of `check.partition`, each batch accepted by `check`, until it is complete.
        `heads`: bodies are not used, and may be left out or unchecked."""

    def chain_before(self, index: int) -> int | None:
        """`chain_crc` of the committed entry before `index`; None: none, or no longer held."""

    def cluster_id(self) -> str:
        """Of the log. One that was restored from a backup has another."""

    def begin_reader(self, name: str, index: int, *, hold: bool) -> None:
        """The cluster keeps this reader from now on: a new one begins at `index`. `hold`: entries that
        it has not committed are not deleted except by force."""

    def commit_reader(self, name: str, index: int) -> None:
        """All below `index` is done with; the cluster keeps that under this name."""

    def note_skipped(self, name: str, first_index: int, stop_index: int) -> None:
        """Entries that reader `name` skipped, since they are deleted: the cluster counts them. A failure
        is only logged."""

    def close(self) -> None: ...


def served_groups(options: LedgerOptions) -> list[str]:
    """The names of all groups that the servers have. Raises Unreachable, RequestTimeout."""
    from quorumlog.spark.sources.server_source import groups_at

    return groups_at(options)


def open_source(options: LedgerOptions) -> LedgerSource:
    """Imports only the source's modules: a worker starts faster."""
    if options.archive:
        from quorumlog.spark.sources.union_source import UnionSource

        return UnionSource(options, _live_source)
    return _live_source(options)


def _live_source(options: LedgerOptions) -> LedgerSource:
    if options.path:
        from quorumlog.spark.sources.directory_source import DirectorySource

        return DirectorySource(options)
    from quorumlog.spark.sources.server_source import ServerSource

    return ServerSource(options)
