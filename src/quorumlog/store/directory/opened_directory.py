"""MemberDirectory: a member's directory, once it is open (member_directory.py)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from quorumlog.config import StoreConfig
from quorumlog.entry import Durability, Formation, HardState, SetBack
from quorumlog.errors import DiskFull, StoreFailure
from quorumlog.store.disk import Disk, DiskFile, DiskLock, is_lack_of_space, refusal, was_lack_of_space
from quorumlog.store.files.applying_file import ApplyingFile
from quorumlog.store.files.checkpoint_file import CHECKPOINT_NAME, Checkpoint, save_checkpoint
from quorumlog.store.files.durable_file import DurableFile
from quorumlog.store.files.hard_state_file import HardStateFile
from quorumlog.store.files.member_file import (
    VERSION_WITH_CONTROL_ENTRIES,
    VERSION_WITH_START,
    MemberRecord,
    save_member,
    version_of,
)
from quorumlog.store.files.snapshot_file import SnapshotFiles
from quorumlog.store.files.start_file import save_start
from quorumlog.store.ledger_store import LedgerStore, LogPoint, LogStart


@contextmanager
def _lack_of_space_named() -> Iterator[None]:
    try:
        yield
    except StoreFailure as failure:
        if was_lack_of_space(failure):
            raise DiskFull(f"no space to note what the log may hold: {failure}") from failure
        raise


class MemberDirectory:
    """Made by `open_member_directory`. All calls come from the thread that owns the member, except
    `save_promises`, `write_checkpoint` and `sync_durable_point`."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        lock: DiskLock,
        record: MemberRecord,
        hard_state_file: HardStateFile,
        durable_file: DurableFile,
        store: LedgerStore,
        config: StoreConfig,
    ) -> None:
        hard_state = hard_state_file.load()
        assert hard_state is not None, path
        self.path = path
        self.directory_id = record.directory_id
        self.formation = record.formation
        self.hard_state = hard_state
        self.store: LedgerStore = store
        self.snapshots = SnapshotFiles(disk, path)
        self._kept_open: list[DiskFile] = []
        self.durability = Durability.SYNC if config.flush == "sync" else Durability.ASYNC
        self.committed_index = -1
        """Proven by the checkpoint at the start; -1 otherwise. Does not move afterwards."""
        self.renewed = ""
        """Why the directory got another id, at this start, or as it was found older than it had been; ""
        if it is the one it was."""
        self.report: tuple[str, ...] = ()
        """What this start did, and what an operator may want to change, in sentences."""
        self.unreadable: tuple[str, ...] = ()
        """What the disk could not read at this start and nothing depended on: a disk that fails."""
        self._disk = disk
        self._lock = lock
        self._record = record
        self._hard_state_file = hard_state_file
        self._durable_file = durable_file
        self._checkpoint_problem = ""
        self._checkpoint_lock = threading.Lock()

    @property
    def disk(self) -> Disk:
        return self._disk

    def save_hard_state(self, state: HardState) -> None:
        """On disk when this returns. Raises StoreFailure."""
        self._hard_state_file.save(state)
        self.hard_state = state

    def save_formation(self, formation: Formation) -> None:
        """On disk when this returns. Raises StoreFailure."""
        old = self.formation
        if old.founding:
            assert formation.founding == old.founding, (formation, old)
            assert formation.cluster_id == old.cluster_id, (formation, old)
        self._record = msgspec.structs.replace(self._record, formation=formation)
        save_member(self._disk, self.path, self._record)
        self.formation = formation

    def set_back(self, found: SetBack) -> None:
        """On disk when this returns: whoever opens the directory next draws it another id. Raises
        StoreFailure."""
        self._record = msgspec.structs.replace(self._record, set_back=found)
        save_member(self._disk, self.path, self._record)

    def count_again(self) -> None:
        """It is a voter: that it was set back is no news any more. Raises StoreFailure."""
        if self._record.set_back is not None:
            self.renewed = ""
            self._record = msgspec.structs.replace(self._record, set_back=None)
            with suppress(DiskFull), _lack_of_space_named():
                save_member(self._disk, self.path, self._record)

    def save_promises(self, state: HardState | None, formation: Formation | None) -> None:
        """Those that are given are on disk when this returns. Any thread, while no other one asks for
        anything of this directory but its log. Raises StoreFailure."""
        if state is not None:
            self.save_hard_state(state)
        if formation is not None:
            self.save_formation(formation)

    def save_start(self, start: LogStart) -> Callable[[], None]:
        """Where the log is to begin: work for any thread. Once it has returned that is on disk, and
        `store.drop_before` may follow; a start of the process in between makes up for it.

        Both raise DiskFull, and the log begins where it did; StoreFailure, and nobody knows where.
        """
        self._refuse_releases_before(VERSION_WITH_START)
        return functools.partial(self._save_start, start)

    def _save_start(self, start: LogStart) -> None:
        # Without this a log whose power fails could seem to end below its start.
        self._durable_file.sync()
        save_start(self._disk, self.path, start)

    @property
    def may_hold_control_entries(self) -> bool:
        """Of kinds above NOOP. False: the log of this directory has none."""
        return self._record.version >= VERSION_WITH_CONTROL_ENTRIES

    def may_hold(self, level: int) -> bool:
        """Entries of the kinds of this level, which is above 0."""
        return self._record.version >= version_of(level, has_start=False)

    def allow_control_entries(self, level: int = 1) -> None:
        """On disk when this returns, and only then may one of a kind of this level be written. Raises
        DiskFull, StoreFailure; nothing has changed then."""
        self._refuse_releases_before(version_of(level, has_start=False))

    def _refuse_releases_before(self, version: int) -> None:
        """They would take what is dropped, and entries of kinds that they do not know, for damage."""
        if self._record.version < version:
            record = msgspec.structs.replace(self._record, version=version)
            with _lack_of_space_named():
                save_member(self._disk, self.path, record)
            self._record = record

    def write_checkpoint(self, committed: LogPoint) -> None:
        """`committed` must be at or below the durable point. Lack of space is a problem, no error.
        Any thread."""
        end, durable = self.store.end, self.store.durable
        if committed.index > durable.index:
            # Only async mode may cut below a committed entry, here while this waited for its thread.
            assert self.durability is Durability.ASYNC, (committed, durable)
            return
        self._hard_state_file.retry_currterm()
        checkpoint = Checkpoint(end.index, committed.index, committed.term, committed.chain)
        try:
            with self._checkpoint_lock:
                save_checkpoint(self._disk, self.path, checkpoint)
        except OSError as error:
            problem = refusal(f"{self.path}/{CHECKPOINT_NAME}", "written", error)
            if not is_lack_of_space(error):
                raise StoreFailure(problem) from error
            self._checkpoint_problem = problem
        else:
            self._checkpoint_problem = ""

    def sync_durable_point(self) -> None:
        """Due every `durable_sync_interval_ms`; cheap if nothing changed; any thread."""
        self._durable_file.sync()

    def used_ratio(self) -> float:
        """The share of its file system that is in use; any thread. Raises StoreFailure."""
        try:
            return self._disk.usage(self.path).used_ratio
        except OSError as error:
            raise StoreFailure(refusal(self.path, "measured", error)) from error

    def problems(self) -> tuple[str, ...]:
        """What could not be written for lack of space, in sentences."""
        problems = (self._hard_state_file.problem, self._checkpoint_problem)
        return (*filter(None, problems), *self.unreadable)

    def applying_file(self, machine: str) -> ApplyingFile:
        """Of that state machine; open at most until `close`."""
        return ApplyingFile(self._disk, self.path, machine, self._kept_open.append)

    def close(self, clean: bool) -> None:
        """`clean`: everything is on disk when this returns. Otherwise as if the process were killed."""
        try:
            if clean:
                self._finish()
        finally:
            for file in self._kept_open:
                file.close()
            self.store.close()
            self._hard_state_file.close()
            self._lock.release()

    def _finish(self) -> None:
        task = self.store.begin_sync()
        if task is not None:
            task.run()
            self.store.finish_sync(task)
        # Into both slots: should one be damaged while nobody runs, the other must not be older.
        durable = self._durable_file.load()
        assert durable is not None, self.path
        self._durable_file.record_both_synced(durable)
        try:
            self._disk.sync_directory(self.path)  # the names of `currterm` and `checkpoint`
        except OSError as error:
            raise StoreFailure(refusal(self.path, "synced", error)) from error
