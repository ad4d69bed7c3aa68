"""RestoredDirectory: the data directory of a member of a new cluster, made from a backup.

    restoring    first: the file `member` to be; no member starts here
    start, hardstate, durable, data, index
    ...          entries, synced
    hardstate, checkpoint
    member       last: the same as `restoring`, which goes

A process that is killed before the last step leaves a directory that no member starts on, and that the
next restore clears.
"""

from __future__ import annotations

from quorumlog.entry import HardState
from quorumlog.errors import ConfigError
from quorumlog.store.directory.copied_log import (
    CopiedLog,
    clear_files,
    copy_config,
    make_files,
    save_promises,
)
from quorumlog.store.directory.member_directory import (
    lock_directory,
    refusals_named,
    sync_names_above,
)
from quorumlog.store.directory_kind import LOCK_NAME, RESTORING_NAME
from quorumlog.store.disk import Disk
from quorumlog.store.files.member_file import MEMBER_NAME, MemberRecord, encode_member
from quorumlog.store.files.replaced_file import replace_file
from quorumlog.store.ledger_store import LogStart


def check_target(disk: Disk, path: str) -> None:
    """Raises ConfigError unless a member can be restored there: it is empty, or does not exist, or is
    what an interrupted restore has left."""
    with refusals_named(path):
        names = set(disk.list(path))
    if RESTORING_NAME in names and MEMBER_NAME not in names:
        return
    held = sorted(
        name for name in names - {LOCK_NAME, "lost+found"} if not name.startswith(f"{RESTORING_NAME}.")
    )
    if MEMBER_NAME in names:
        raise ConfigError(
            f"{path} is not empty, it is a member's directory; name an empty one. If a restore that was"
            " interrupted has made it, and nobody was started on it, remove it and repeat that restore:"
            " its members belong together, and are made anew"
        )
    if held:
        raise ConfigError(f"{path} is not empty (it holds {held[0]}); name an empty directory")


class RestoredDirectory:
    """A context manager; one process at a time has it open. All calls raise ConfigError and
    StoreFailure; DiskFull."""

    def __init__(self, disk: Disk, path: str, record: MemberRecord) -> None:
        """`record`: of the member to be. Nothing is written but the lock."""
        self.path = path = path.rstrip("/") or "/"
        self.record = record
        self._disk = disk
        self._log: CopiedLog | None = None
        with refusals_named(path):
            check_target(disk, path)
            disk.make_directory(path)
            self._lock = lock_directory(disk, path)

    def __enter__(self) -> RestoredDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        self._lock.release()

    @property
    def log(self) -> CopiedLog:
        assert self._log is not None, self.path
        return self._log

    def begin(self, start: LogStart | None) -> None:
        """A log that begins at index 0, or behind `start`."""
        disk, path = self._disk, self.path
        with refusals_named(path):
            check_target(disk, path)
            replace_file(disk, f"{path}/{RESTORING_NAME}", encode_member(self.record), synced=True)
            sync_names_above(disk, path)
            clear_files(disk, path)
            make_files(disk, path, start)
            config = copy_config(self.record.segment_bytes, self.record.index_segment_bytes)
            self._log = CopiedLog.open(disk, path, config)

    def prepare(self, term: int) -> None:
        """All that was written is committed, and no vote was given in `term`. On disk when this
        returns."""
        self.log.sync()
        with refusals_named(self.path):
            save_promises(self._disk, self.path, HardState(term, None), self.log.end)

    def complete(self) -> None:
        """From now on it is a member's. On disk when this returns."""
        with refusals_named(self.path):
            # Not renamed: one of the two is there on any file system, at any moment.
            member = encode_member(self.record)
            replace_file(self._disk, f"{self.path}/{MEMBER_NAME}", member, synced=True)
            self._disk.unlink(f"{self.path}/{RESTORING_NAME}")
            self._disk.sync_directory(self.path)
