"""CleanCommitLogService: deletes the oldest files of a commit log, by age, hour and disk ratio."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime

from quorumlog.broker.commit_log.commit_log import CommitLog
from quorumlog.broker.commit_log.log_recovery import first_time_ms
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.store.disk import Disk

log = logging.getLogger("quorumlog.broker")
_HOUR_MS = 3_600_000


class CleanCommitLogService:
    def __init__(
        self,
        disk: Disk,
        root: str,
        commit_log: CommitLog,
        config: MessageStoreConfig,
        wall_clock: Callable[[], float],
    ) -> None:
        self.interval_ms = config.clean_resource_interval
        self.holds_from: Callable[[], int] = lambda: sys.maxsize
        """Files from this position on stay, however old they are. Any thread."""
        self.dropping: Callable[[int], list[str]] = lambda position: []
        """Called before the log begins there; returns the paths of files that go with it."""
        self.dropped: Callable[[], None] = lambda: None
        """There is space."""
        self.dispatched_offset: Callable[[], int] = lambda: commit_log.max_offset
        self.is_full = False
        """Messages are refused while the disk is above the warning level."""
        self._disk = disk
        self._root = root
        self._commit_log = commit_log
        self._config = config
        self._wall_clock = wall_clock

    def run_once(self) -> None:
        config = self._config
        used = 100 * self._disk.usage(self._root).used_ratio
        if self.is_full != (used > config.disk_space_warning_level_ratio):
            self.is_full = not self.is_full
            log.warning(
                "the disk is %.0f%% full: messages are %s", used, ("taken", "refused")[self.is_full]
            )
        now_ms = self._wall_clock()
        in_time = datetime.fromtimestamp(now_ms / 1000, UTC).hour in config.delete_hours()
        force = used > config.disk_space_clean_forcibly_ratio
        if not (in_time or used > config.disk_max_used_space_ratio):
            return
        files = self._commit_log.files
        reserved_ms = config.file_reserved_time * _HOUR_MS
        keep_from = files.first_position
        # The newest file with records stays, and one that is being flushed or dispatched.
        commit_log = self._commit_log
        last = files.base_of(
            min(
                commit_log.flushed_offset,
                commit_log.confirm_offset,
                self.dispatched_offset(),
                max(self.holds_from(), files.first_position),
            )
        )
        for base in files.bases[: config.delete_file_batch_max]:
            stop = base + files.segment_bytes
            if stop > last:
                break
            newest_ms = first_time_ms(files, stop)
            if not force and not 0 <= newest_ms < now_ms - reserved_ms:
                break
            keep_from = stop
        if keep_from > files.first_position:
            self.drop_before(keep_from)

    def drop_before(self, position: int) -> None:
        behind = self.dropping(position)
        for path in self._commit_log.files.drop_before(position):
            self._disk.unlink(path)
            # Before the next: a loss of power would leave a file in front of a gap.
            self._disk.sync_directory(self._commit_log.files.directory)
            log.info("deleted %s", path)
        for path in behind:
            self._disk.unlink(path)
        self.dropped()
