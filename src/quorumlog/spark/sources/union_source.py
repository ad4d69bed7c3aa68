"""An archive, and the log after it, as one log: below the seam entries come from Parquet, from there on
from members or a directory. Both give the same entries with the same digests, so the plan's chain holds
across the seam as it does between two members.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from quorumlog.batch import EntryBatch
from quorumlog.config import DEFAULT_GROUP
from quorumlog.errors import ConfigError, IndexOutOfRange
from quorumlog.log_state.control_entries import MOST_RUNS
from quorumlog.log_state.log_state import Resets, counted_ms
from quorumlog.pipelines.archive import Archive
from quorumlog.spark.options import LedgerOptions, LogBounds
from quorumlog.spark.partitions import NO_READERS, EntryPoint, LedgerPartition, RangeCheck, Readers

if TYPE_CHECKING:
    from quorumlog.spark.sources.ledger_source import LedgerSource


class UnionSource:
    """Raises ConfigError, DirectoryDamaged where the archive cannot be used."""

    def __init__(
        self, options: LedgerOptions, live_source: Callable[[LedgerOptions], LedgerSource]
    ) -> None:
        self._options = options
        self._archive = Archive.open(options.archive, group=options.group)
        self._live_source = live_source if options.servers or options.path else None
        self._opened: LedgerSource | None = None
        self._followed: LedgerPartition | None = None

    @property
    def _live(self) -> LedgerSource:
        """Opened when it is needed: most tasks read the archive only."""
        if self._live_source is None:
            raise IndexOutOfRange(
                f"{self._archive.path} ends at index {self._archive.stop_index - 1}; later entries are"
                " read with option servers or path beside option archive"
            )
        if self._opened is None:
            self._opened = self._live_source(self._options)
            if self._followed is not None:
                self._opened.follow(self._followed)
        return self._opened

    def bounds(self, reached: int = 0) -> LogBounds:
        """Of both together. Raises ConfigError if they are not one log, or do not meet."""
        archive = self._archive
        if self._live_source is None:
            return LogBounds(archive.group or DEFAULT_GROUP, archive.begin_index, archive.stop_index)
        live = self._live.bounds(reached)
        if not archive.manifest.parts:
            return live
        if archive.group and archive.group != live.group:
            raise ConfigError(
                f"option archive is {archive.path}, of group {archive.group!r}, and the log is of group"
                f" {live.group!r}"
            )
        if archive.stop_index < live.begin_index:
            raise ConfigError(
                f"option archive: {archive.path} ends at index {archive.stop_index - 1}, and the log"
                f" begins at {live.begin_index}: the entries between are in neither. Leave out option"
                " archive, or the other one"
            )
        self._refuse_another_log(live)
        begin_index = min(archive.begin_index, live.begin_index)
        return LogBounds(live.group, begin_index, max(live.stop_index, archive.stop_index))

    def _refuse_another_log(self, live: LogBounds) -> None:
        """An entry that both hold is the same. Where they only meet, the tasks' chains tell."""
        index = min(self._archive.stop_index, live.stop_index) - 1
        if index < max(live.begin_index, self._archive.begin_index):
            return
        [theirs] = self._live.points_of([index])
        if self._archive.point_of(index)[1] != theirs.chain:
            raise ConfigError(
                f"option archive: {self._archive.path} is of another log: entry {index} is another"
                " one there. quorumlog pipeline audit finds where they differ"
            )

    def readers(self) -> Readers:
        return NO_READERS if self._live_source is None else self._live.readers()

    def follow(self, partition: LedgerPartition) -> None:
        self._followed = partition

    def _is_archived(self, index: int) -> bool:
        return self._archive.begin_index <= index < self._archive.stop_index

    def points_of(self, indices: Sequence[int]) -> list[EntryPoint]:
        points = {
            index: EntryPoint(*self._archive.point_of(index))
            for index in indices
            if self._is_archived(index)
        }
        live = [index for index in indices if index not in points]
        if live:
            points.update(zip(live, self._live.points_of(live), strict=True))
        return [points[index] for index in indices]

    def time_ms_at(self, index: int) -> int:
        if not self._is_archived(index):
            return self._live.time_ms_at(index)
        return counted_ms(index, self._archive.time_ms_at(index), self.clock_resets())

    def clock_resets(self) -> Resets:
        """The archive may lack the newest, and the live log those of deleted entries."""
        archived = self._archive.clock_resets()
        if self._live_source is None:
            return archived
        known = {reset.index: reset for reset in (*archived, *self._live.clock_resets())}
        return tuple(known[index] for index in sorted(known)[-MOST_RUNS:])

    def batches(self, check: RangeCheck, *, heads: bool = False) -> Generator[EntryBatch]:
        stop_index = min(check.partition.stop_index, self._archive.stop_index)
        if self._is_archived(check.next_index):
            for batch in self._archive.batches(check.next_index, stop_index):
                check.accept(batch, self._archive.path)
                yield batch
        if not check.is_complete:
            with closing(self._live.batches(check, heads=heads)) as batches:
                yield from batches

    def chain_before(self, index: int) -> int | None:
        if self._is_archived(index - 1):
            return self._archive.point_of(index - 1)[1]
        return self._live.chain_before(index)

    def cluster_id(self) -> str:
        return self._live.cluster_id()

    def begin_reader(self, name: str, index: int, *, hold: bool) -> None:
        # What lies in the archive alone cannot be held.
        self._live.begin_reader(name, max(index, self._live.bounds().begin_index), hold=hold)

    def commit_reader(self, name: str, index: int) -> None:
        self._live.commit_reader(name, index)

    def note_skipped(self, name: str, first_index: int, stop_index: int) -> None:
        self._live.note_skipped(name, first_index, stop_index)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._archive.close()
