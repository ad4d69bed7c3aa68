"""Flush: one group commit, taken on the store's thread and run in another."""

from __future__ import annotations

import sys
import threading

from quorumlog.store.durable_file import DurableFile, DurablePoint
from quorumlog.store.log_points import LogPoint
from quorumlog.store.segment import Segment


class DurableRecord:
    """The file `durable` and the lock under which a flush records and a truncation lowers."""

    def __init__(self, file: DurableFile) -> None:
        self.file = file
        self.lock = threading.Lock()
        self.index_synced_limit = sys.maxsize
        """No higher `index_synced_position` is recorded: from there on a start looks at every entry."""

    def limit_index(self, position: int) -> None:
        """Above this position a start must not trust the index, synced or not."""
        with self.lock:
            self.index_synced_limit = position
            recorded = self._recorded()
            if recorded.index_synced_position > position:
                self.file.record_both_synced(DurablePoint(recorded.point, position))

    def lower(self, cut: LogPoint, flush: Flush | None) -> None:
        """Lower both slots to the cut, synced, also for a flush under way. The recorded value is read
        from the file: a finished flush may not be adopted yet."""
        with self.lock:
            if flush is not None:
                flush.limit(cut)
            recorded = self._recorded()
            if recorded.point.index >= cut.index and recorded.point != cut:
                synced = min(recorded.index_synced_position, cut.position)
                self.file.record_both_synced(DurablePoint(cut, synced))

    def bring_to_both_slots(self) -> None:
        with self.lock:
            self.file.record_both_synced(self._recorded())

    def _recorded(self) -> DurablePoint:
        recorded = self.file.load()
        assert recorded is not None, "the durable file has no point"
        return recorded


class Flush:
    """One flush: everything appended or truncated before `LedgerStore.begin_sync` was called. Only `run`
    may be called off the store's thread."""

    def __init__(
        self,
        end: LogPoint,
        index_synced_position: int,
        data_files: list[Segment],
        index_files: list[Segment],
        durable: DurableRecord,
        *,
        seals: bool,
    ) -> None:
        """`index_synced_position`: its value once `index_files` are synced. `seals`: a data segment came
        to its end since the last flush. Takes the files; `run` releases them."""
        self.end = end
        self.done = False
        self._cut: LogPoint | None = None
        self._index_synced_position = index_synced_position
        # The index first: a sealed segment's units must be on disk before its last bytes are.
        self._files = [*index_files, *data_files]
        self._durable = durable
        self._seals = seals
        for file in self._files:
            taken = file.acquire()
            assert taken, file.path

    def run(self) -> None:
        """fdatasync every file touched, then record the durable point; any thread. A file that was
        truncated away meanwhile is still open, so syncing it is harmless. Raises StoreFailure: the
        member must stop, nothing retries a failed sync."""
        try:
            for file in self._files:
                file.sync()
        finally:
            for file in self._files:
                file.release()
        with self._durable.lock:
            synced_position = min(self.index_synced_position, self._durable.index_synced_limit)
            self._durable.file.record(DurablePoint(self.point, synced_position))
            self.done = True
        if self._seals:
            self._durable.file.sync()

    def limit(self, cut: LogPoint) -> None:
        """A truncation to `cut` was issued: record nothing above it. Call it with the durable lock
        held."""
        self._cut = cut if self._cut is None else min(self._cut, cut)

    @property
    def point(self) -> LogPoint:
        """On disk, and still in the log."""
        return self.end if self._cut is None else min(self.end, self._cut)

    @property
    def index_synced_position(self) -> int:
        return min(self._index_synced_position, self.point.position)
