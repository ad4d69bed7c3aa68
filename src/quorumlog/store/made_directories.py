"""Directories that are made of others: backups and restored ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from quorumlog.entry import Formation, HardState
from quorumlog.errors import ConfigError, DirectoryDamaged, StoreFailure
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.log_state.log_state import LogState, decode_state
from quorumlog.store.directory_kind import LOCK_NAME, RESTORING_NAME, DirectoryKind, refuse_foreign
from quorumlog.store.disk import Disk, DiskLock, refusal
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.store.member_directory import (
    CopiedLog,
    clear_files,
    copy_config,
    lock_directory,
    make_files,
    refusals_named,
    save_promises,
    sync_names_above,
)
from quorumlog.store.state_files import (
    MEMBER_NAME,
    VERSION_WITH_CONTROL_ENTRIES,
    BackupRecord,
    MemberRecord,
    encode_member,
    load_backup,
    load_member,
    replace_file,
    save_backup,
    save_member,
    version_of,
)

# ---------------------------------------------------------------- BackupDirectory
# A directory that a log is copied into, time and again.
#
#     backup       first: from here on it is a backup, whatever comes
#     start, hardstate, durable, data, index
#     member       the log can be opened
#     ...          entries, synced
#     backup       replaced: the cut is complete
#
# A process that is killed at any step leaves the cut as it was. What lies after it goes on being of
# use.


@contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise ConfigError(refusal(path, "used for a backup", error)) from error
    except OSError as error:
        raise StoreFailure(refusal(path, "used for a backup", error)) from error


class BackupDirectory:
    """A context manager; one process at a time has it open."""

    def __init__(self, disk: Disk, path: str) -> None:
        """The existing backup, or a new directory. Raises ConfigError (it holds something else, or is in
        use), DirectoryDamaged, StoreFailure."""
        self.path = path = path.rstrip("/") or "/"
        self._disk = disk
        self.record: BackupRecord | None = None
        """None: nothing was begun."""
        self.log: CopiedLog | None = None
        """None: no entry was ever copied."""
        self.sizes = (0, 0)
        """segment_bytes and index_segment_bytes, once there is a log."""
        with _named(path):
            disk.make_directory(path)
            refuse_foreign(disk, path, DirectoryKind.BACKUP)
            self._lock = self._locked()
            try:
                self.record = load_backup(disk, path)
                self._open()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> BackupDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None
        self._lock.release()

    # ---------------------------------------------------------------- opening

    def _locked(self) -> DiskLock:
        try:
            return self._disk.lock(f"{self.path}/{LOCK_NAME}")
        except BlockingIOError as error:
            raise ConfigError(
                f"{self.path} is in use: another backup goes there (it holds {self.path}/{LOCK_NAME});"
                " wait for its end, or name another directory"
            ) from error

    def _open(self) -> None:
        member = load_member(self._disk, self.path) if self.record is not None else None
        if member is None:
            if self.record is not None and self.record.cut is not None:
                raise self._damaged(MEMBER_NAME, "is missing")
            return
        self.sizes = (member.segment_bytes, member.index_segment_bytes)
        try:
            self.log = CopiedLog.open(self._disk, self.path, copy_config(*self.sizes))
        except FileNotFoundError as error:
            raise self._damaged("durable", "is missing") from error
        self._check_cut()

    def _check_cut(self) -> None:
        """What was complete once still is. Raises DirectoryDamaged."""
        assert self.log is not None and self.record is not None, self.path
        for damaged in self.log.store.damaged:
            raise self._damaged(damaged.path, str(damaged), damaged.before.position)
        cut, end = self.record.cut, self.log.end
        if cut is None:
            return
        if end.index < cut.index:
            raise self._damaged(
                "data", f"ends at entry {end.index}, before the cut at entry {cut.index}"
            )
        point = self.log.store.point_on_disk(cut.index)
        if (point.term, point.chain) != (cut.term, cut.chain):
            raise self._damaged("data", f"holds another entry {cut.index} than the one of the cut")

    def _damaged(self, name: str, problem: str, position: int = 0) -> DirectoryDamaged:
        return DirectoryDamaged(
            f"{self.path}/{name} {problem} (position {position}): the backup is damaged; take one into"
            " another directory, and check the rest of this one with quorumlog verify",
            path=f"{self.path}/{name}",
            position=position,
        )

    # ---------------------------------------------------------------- copying

    @property
    def cut(self) -> LogPoint | None:
        return self.record.cut if self.record is not None else None

    def begin(
        self,
        group: str,
        cluster_id: str,
        segment_bytes: int,
        index_segment_bytes: int,
        start: LogStart | None,
    ) -> CopiedLog:
        """A log that begins at index 0, or after `start`. Files of an earlier incomplete one are
        deleted."""
        assert self.cut is None, self.record
        config = copy_config(segment_bytes, index_segment_bytes)
        if self.log is not None:
            self.log.close()
            self.log = None
        record = BackupRecord(group=group, cluster_id=cluster_id)
        with _named(self.path):
            clear_files(self._disk, self.path)
            save_backup(self._disk, self.path, record)
            sync_names_above(self._disk, self.path)
            make_files(self._disk, self.path, start)
            member = MemberRecord(
                group=group,
                member_id="",
                directory_id="",
                segment_bytes=segment_bytes,
                index_segment_bytes=index_segment_bytes,
                formation=Formation(cluster_id=cluster_id),
                version=version_of(1, has_start=start is not None),
            )
            save_member(self._disk, self.path, member)
            self.record, self.sizes = record, (segment_bytes, index_segment_bytes)
            self.log = CopiedLog.open(self._disk, self.path, config)
        return self.log

    def _refuse_releases_before(self, record: bytes) -> None:
        state, member = decode_state(record), load_member(self._disk, self.path)
        level = state.level if isinstance(state, LogState) else LEVEL
        assert member is not None, self.path
        version = version_of(level, has_start=member.version > VERSION_WITH_CONTROL_ENTRIES)
        if member.version < version:
            save_member(self._disk, self.path, msgspec.structs.replace(member, version=version))

    def complete(self, record: bytes, time_ms: int | None, taken_ms: int, release: str) -> BackupRecord:
        """All that was copied is the backup from now on; on disk when this returns."""
        assert self.log is not None and self.record is not None, self.path
        self.log.sync()
        cut = self.log.end
        done = msgspec.structs.replace(
            self.record, cut=cut, record=record, time_ms=time_ms, taken_ms=taken_ms, release=release
        )
        with _named(self.path):
            save_promises(self._disk, self.path, HardState(max(cut.term, 0), None), cut)
            self._refuse_releases_before(record)
            save_backup(self._disk, self.path, done)
        self.record = done
        return done


# ---------------------------------------------------------------- RestoredDirectory
# The data directory of a member of a new cluster, made from a backup.
#
#     restoring    first: the file `member` to be; no member starts here
#     start, hardstate, durable, data, index
#     ...          entries, synced
#     hardstate, checkpoint
#     member       last: the same as `restoring`, which goes
#
# A process that is killed before the last step leaves a directory that no member starts on, and that
# the next restore clears.


def check_target(disk: Disk, path: str) -> None:
    """Raises ConfigError unless a member can be restored there: it is empty, or does not exist, or is
    left from an interrupted restore."""
    with refusals_named(path):
        names = set(disk.list(path))
    if RESTORING_NAME in names and MEMBER_NAME not in names:
        return
    held = sorted(
        name for name in names - {LOCK_NAME, "lost+found"} if not name.startswith(f"{RESTORING_NAME}.")
    )
    if MEMBER_NAME in names:
        raise ConfigError(
            f"{path} is not empty, it is a member's directory; name an empty one. If a restore"
            " that was interrupted has made it, and no member was started on it, remove it and"
            " repeat that restore: its members belong together, and are made anew"
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
        """A log that begins at index 0, or after `start`."""
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
