"""Drops: the first segments of a log go. In memory at once, on the store's thread; the files are deleted
in another, after the file `start` says that they are no part of the log any more."""

from __future__ import annotations

from contextlib import suppress

from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, is_lack_of_space, refusal
from quorumlog.store.files.damaged_ranges import DamagedRanges
from quorumlog.store.ledger_store import LogStart
from quorumlog.store.log.entry_index import IndexSegments, LogEnds
from quorumlog.store.log.segment_list import SegmentList
from quorumlog.store.log.segment_scan import INDEX_UNIT_BYTES


class Drops:
    def __init__(
        self,
        disk: Disk,
        start: LogStart | None,
        data: SegmentList,
        index: IndexSegments,
        damaged: DamagedRanges,
    ) -> None:
        self.start = start
        self._disk = disk
        self._data = data
        self._index = index
        self._damaged = damaged
        self._undeleted: list[str] = []
        """Oldest first."""

    @property
    def are_deleted(self) -> bool:
        """Is nothing left to be deleted? Any thread."""
        return not self._undeleted

    def drop_before(self, start: LogStart, ends: LogEnds) -> None:
        begin = start.point
        assert ends.begin.index < begin.index < ends.durable.index, (ends.begin, begin, ends.durable)
        assert begin.position % self._data.segment_bytes == 0, (begin, self._data.segment_bytes)
        assert not start.replaces, start
        assert self._data.file_at(begin.position) is not None, (begin, self._data.bases)
        # In this order: a reader that misses a segment already sees the log begin behind it.
        ends.begin, self.start = begin, start
        ends.truncations += 1
        self._damaged.drop_before(begin, self._data.name_of(begin.position))
        self._undeleted += self._data.drop_before(begin.position)
        self._undeleted += self._index.drop_before((begin.index + 1) * INDEX_UNIT_BYTES)

    def delete(self) -> None:
        """Any thread, one at a time. What a full disk does not let go stays for the next time. Raises
        StoreFailure."""
        try:
            for path in tuple(self._undeleted):
                with suppress(FileNotFoundError):  # somebody made space by hand
                    self._disk.unlink(path)
                self._undeleted.remove(path)
            for folder in (self._data.directory, self._index.directory):
                self._disk.sync_directory(folder)
        except OSError as error:
            # A file system that writes elsewhere needs space to delete.
            if not is_lack_of_space(error):
                raise StoreFailure(refusal(self._data.directory, "made shorter", error)) from error
