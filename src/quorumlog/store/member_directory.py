"""A data directory: its owner, and opening it."""

from __future__ import annotations

import errno
import posixpath
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, TypeVar

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB, GroupConfig, StoreConfig
from quorumlog.entry import Durability, EntryKind, Formation, HardState, Replica, SetBack
from quorumlog.errors import (
    ConfigError,
    DirectoryDamaged,
    DiskFull,
    ProtocolViolation,
    RangeDamaged,
    StoreFailure,
)
from quorumlog.figures import now
from quorumlog.log_state.users import UserOrder
from quorumlog.store.directory_kind import (
    LOCK_NAME,
    OWN_FOLDERS,
    OWN_NAMES,
    DirectoryKind,
    refuse_foreign,
)
from quorumlog.store.disk import (
    Disk,
    DiskFile,
    DiskLock,
    DiskUsage,
    disk_work,
    is_lack_of_space,
    reason_of,
    refusal,
    was_lack_of_space,
)
from quorumlog.store.durable_file import DURABLE_NAME, DurableFile
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.store.recovery_scan import lacks_start
from quorumlog.store.segments import DATA_NAME, INDEX_NAME
from quorumlog.store.slot_file import SLOT_BYTES
from quorumlog.store.snapshots import ApplyingFile, SnapshotFiles
from quorumlog.store.state_files import (
    CHECKPOINT_NAME,
    DAMAGED_NAME,
    FORMER_DAMAGED_NAME,
    HARD_STATE_NAME,
    MEMBER_NAME,
    START_NAME,
    VERSION_WITH_CONTROL_ENTRIES,
    VERSION_WITH_RECOVERY,
    VERSION_WITH_START,
    VERSION_WITH_USERS,
    WITHOUT_START,
    Checkpoint,
    HardStateFile,
    MemberRecord,
    Recovery,
    delete_first_admin,
    encode_checkpoint,
    load_checkpoint,
    load_first_admin,
    load_member,
    load_start,
    read_readable,
    replace_file,
    save_checkpoint,
    save_member,
    save_start,
    version_of,
)

SlotsT = TypeVar("SlotsT", DurableFile, HardStateFile)

# ----------------------------------------------------------------
# What a start looks at before it opens the log: promises that are lost, and small files that it
# makes again.


def forgotten_promises(disk: Disk, path: str, record: MemberRecord) -> list[str]:
    """Why the directory must not act under its old id, as sentences; empty if it may."""
    found = record.set_back
    is_set_back = found is not None and found.directory_id == record.directory_id
    return [*_lost_files(disk, path), *([set_back_sentence(path, record)] if is_set_back else [])]


def set_back_sentence(path: str, record: MemberRecord) -> str:
    """Empty if the directory was never found older than it had been."""
    found = record.set_back
    if found is None:
        return ""
    return (
        f"{path} was rolled back: an older copy of it was restored, or its disk lost synced data"
        f"{now(f'ends at {found.held_index}, had acknowledged entry {found.acknowledged_index}')}"
    )


def _lost_files(disk: Disk, path: str) -> list[str]:
    """Lost files of those that hold votes and acknowledgements."""
    lost = []
    for name, opened in ((HARD_STATE_NAME, HardStateFile.open), (DURABLE_NAME, DurableFile.open)):
        try:
            file = opened(disk, path)
        except FileNotFoundError:
            lost.append(f"{path}/{name} is missing")
            continue
        if file.load() is None:
            lost.append(f"{path}/{name} is unreadable (no good slot at position 0 or {SLOT_BYTES})")
        file.close()
    return lost


def check_start(disk: Disk, path: str, record: MemberRecord) -> MemberRecord:
    """The corrected record. Raises DirectoryDamaged if the log has lost its first entries and no file
    records which; ConfigError for a directory that one of the first releases has left damaged."""
    if disk.exists(f"{path}/{FORMER_DAMAGED_NAME}"):
        raise ConfigError(
            f"{path}/{FORMER_DAMAGED_NAME} is of an early release, and names entries that are damaged:"
            f" rename it to {DAMAGED_NAME}, and start again"
        )
    has_start = disk.exists(f"{path}/{START_NAME}")
    if has_start and record.version < VERSION_WITH_START:
        # A copy of the file was put back that is older than the start.
        record = msgspec.structs.replace(record, version=VERSION_WITH_START)
        save_member(disk, path, record)
    if lacks_start(disk, path, record):
        raise DirectoryDamaged(
            f"{path}/{START_NAME} is missing, the record of the begin of the log, whose first entries"
            f" were deleted (position 0). {WITHOUT_START}",
            path=f"{path}/{START_NAME}",
            position=0,
        )
    return record


def _open_good(opened: Callable[[Disk, str], SlotsT], disk: Disk, path: str) -> SlotsT | None:
    """None: the file is missing, or has no good slot."""
    try:
        file = opened(disk, path)
    except FileNotFoundError:
        return None
    if file.load() is None:
        file.close()
        return None
    return file


def open_or_make_durable(disk: Disk, path: str) -> DurableFile:
    """A point that cannot be read starts again at the origin: then the whole log is verified."""
    file = _open_good(DurableFile.open, disk, path)
    if file is None:
        file = DurableFile.create(disk, path)
        disk.sync_directory(path)
    return file


def open_or_make_hard_state(disk: Disk, path: str, least_term: int) -> HardStateFile:
    """State that cannot be read starts again without a vote, at `least_term`."""
    file = _open_good(HardStateFile.open, disk, path)
    if file is None:
        file = HardStateFile.create(disk, path, HardState(least_term, None))
        disk.sync_directory(path)
    else:
        state = file.load()
        assert state is not None, path
        file.save(state)  # after a crash the slots may be in the page cache only
    return file


# ---------------------------------------------------------------- CopiedLog
# A log that takes entries as another one has stamped them, byte for byte: that of a backup, or of a
# member that is made from one. And what such a directory has beside it.

_CLEARED = OWN_NAMES - OWN_FOLDERS - {LOCK_NAME} | {CHECKPOINT_NAME, f"{CHECKPOINT_NAME}.tmp"}
SYNC_BYTES = 64 * MIB
"""Written at most before it is synced."""


def copy_config(segment_bytes: int, index_segment_bytes: int) -> StoreConfig:
    """Of a log that is not served: it may fill its disk, and uses little memory. Raises
    ConfigError for sizes that no member has."""
    return StoreConfig(
        segment_bytes=segment_bytes,
        index_segment_bytes=index_segment_bytes,
        disk_full_ratio=1.0,
        page_cache_bytes=0,
    )


def make_files(disk: Disk, path: str, start: LogStart | None) -> None:
    """Of a log without entries, all but `member`. On disk when this returns; raises OSError,
    StoreFailure."""
    for folder in (DATA_NAME, INDEX_NAME):
        disk.make_directory(f"{path}/{folder}")
        disk.sync_directory(f"{path}/{folder}")
    if start is not None:
        save_start(disk, path, start)
    HardStateFile.create(disk, path, HardState(0, None)).close()
    DurableFile.create(disk, path).close()
    disk.sync_directory(path)


def clear_files(disk: Disk, path: str) -> None:
    """Everything that makes a directory a log's goes, `member` first. Raises OSError."""
    if disk.exists(f"{path}/{MEMBER_NAME}"):
        disk.unlink(f"{path}/{MEMBER_NAME}")
        disk.sync_directory(path)
    for folder in sorted(OWN_FOLDERS):
        for name in disk.list(f"{path}/{folder}"):
            disk.unlink(f"{path}/{folder}/{name}")
    for name in disk.list(path):
        if name in _CLEARED:
            disk.unlink(f"{path}/{name}")
    disk.sync_directory(path)


def save_promises(disk: Disk, path: str, state: HardState, committed: LogPoint) -> None:
    """Term and vote, and how far the log is committed, which is all of it. On disk when this returns;
    raises OSError, StoreFailure."""
    with closing(HardStateFile.open(disk, path)) as file:
        file.save(state)
    checkpoint = Checkpoint(committed.index, committed.index, committed.term, committed.chain)
    replace_file(disk, f"{path}/{CHECKPOINT_NAME}", encode_checkpoint(checkpoint), synced=True)


def _sync_all(store: LedgerStore, durable_file: DurableFile) -> None:
    """Raises StoreFailure."""
    task = store.begin_sync()
    if task is not None:
        task.run()
        store.finish_sync(task)
    # Into both slots: should one be damaged while nobody runs, the other must not be older.
    durable = durable_file.load()
    assert durable is not None, "the log was recovered"
    durable_file.record_both_synced(durable)


class CopiedLog:
    def __init__(self, store: LedgerStore, durable: DurableFile) -> None:
        """`durable`: which the store closes."""
        self.store = store
        self._durable = durable
        self._unsynced_bytes = 0

    @classmethod
    def open(cls, disk: Disk, path: str, config: StoreConfig) -> CopiedLog:
        """Raises DirectoryDamaged, StoreFailure; FileNotFoundError without a file `durable`."""
        durable = DurableFile.open(disk, path)
        try:
            store, _ = LedgerStore.recover(disk, path, config, durable)
        except BaseException:
            durable.close()
            raise
        return cls(store, durable)

    @property
    def end(self) -> LogPoint:
        return self.store.end

    def append(self, batch: EntryBatch) -> None:
        """Checked entries. Raises ProtocolViolation if they do not go on with the log, byte for byte;
        DiskFull, StoreFailure."""
        store, end = self.store, self.store.end
        first = batch.first_header
        if (first.index, batch.chain_before) != (end.index + 1, end.chain) or first.term < end.term:
            raise ProtocolViolation(
                f"entry {first.index} of term {first.term} does not continue with entry {end.index}"
                f" of term {end.term}"
            )
        if not batch.lies_at(store.plan(batch.sizes)):
            raise ProtocolViolation(
                f"the entries from {first.index} on lie elsewhere than segments of this length put them"
            )
        store.append(batch)
        self._unsynced_bytes += batch.total_bytes
        if self._unsynced_bytes >= SYNC_BYTES:
            self.sync()

    def append_own(self, batch: EntryBatch, term: int) -> None:
        """Unstamped entries, after those that were copied. Raises DiskFull, StoreFailure."""
        store, end = self.store, self.store.end
        positions = store.plan(batch.sizes, control=True)
        batch.stamp(end.index + 1, term, positions, end.chain)
        store.append(batch)

    def sync(self) -> None:
        """Everything is on disk when this returns. Raises StoreFailure."""
        _sync_all(self.store, self._durable)
        give_back: Callable[[], None] | None = self.store.outgrown_cache()
        if give_back is not None:
            give_back()
        self._unsynced_bytes = 0

    def close(self) -> None:
        with suppress(OSError):
            self.store.close()


# ----------------------------------------------------------------
# What a directory proves to be committed, when it is opened.


def proven_commit(disk: Disk, path: str, store: LedgerStore) -> int:
    """The committed index of the checkpoint, or the newest boundary whose state is saved, if the log
    holds exactly that entry; else the entry before the log's begin, which was committed when deleted.
    Raises StoreFailure."""
    saved = next(store.boundaries.saved(), None)
    return max(_checkpointed(disk, path, store), -1 if saved is None else saved.point.index)


def _checkpointed(disk: Disk, path: str, store: LedgerStore) -> int:
    proven = store.begin.index
    checkpoint = load_checkpoint(disk, path)
    if checkpoint is None or not proven <= checkpoint.committed_index <= store.end.index:
        return proven
    index = checkpoint.committed_index
    for _ in range(2):
        try:
            held = store.id_at(index).term == checkpoint.committed_term
            return index if held and store.chain_at(index) == checkpoint.committed_chain else proven
        except RangeDamaged:
            return proven  # nothing here shows that it is this entry
        except DirectoryDamaged as damage:
            store.settle_now(damage)
    return proven


# ----------------------------------------------------------------
# A directory becomes the only voter of a new cluster (`quorumlog recover --unsafe`).
#
#   member       replaced: new ids, and the two entries that the log is to get  <- from here on it is new
#   data, index  cut to where the log ended, then the two entries, synced
#   start        no entries are owed any more: nobody has them
#   hardstate, durable, checkpoint
#   member       replaced: without them
#
# Before the first step it is the directory that it was, and after it the next start goes on with the
# rest: every step may be done again.


def open_log(disk: Disk, path: str, record: MemberRecord) -> CopiedLog:
    """As a start of the member opens it: cuts included. Raises DirectoryDamaged, StoreFailure,
    OSError."""
    config = copy_config(record.segment_bytes, record.index_segment_bytes)
    check_start(disk, path, record)
    open_or_make_durable(disk, path).close()
    return CopiedLog.open(disk, path, config)


def begin_recovery(
    disk: Disk,
    path: str,
    record: MemberRecord,
    directory_id: str,
    formation: Formation,
    recovery: Recovery,
) -> MemberRecord:
    """When this returns, the directory belongs to the new cluster, on disk. Raises StoreFailure: it
    belongs to either the old or the new one."""
    before = record.version if record.recovery is None else record.recovery.version
    begun = msgspec.structs.replace(
        record,
        directory_id=directory_id,
        formation=formation,
        version=VERSION_WITH_RECOVERY,
        recovery=msgspec.structs.replace(recovery, version=before),
    )
    save_member(disk, path, begun)
    return begun


def finish_recovery(disk: Disk, path: str, record: MemberRecord) -> MemberRecord:
    """Once or again; the directory is locked. On disk when this returns. Raises DirectoryDamaged,
    StoreFailure, DiskFull, OSError."""
    recovery = record.recovery
    assert recovery is not None, record
    disk.sync_directory(path)  # the record may be in the cache only
    with closing(open_log(disk, path, record)) as log:
        if log.end.index > recovery.end_index:
            log.store.truncate_from(recovery.end_index + 1)
        end = log.end
        held = (end.index, end.term, end.chain)
        if held != (recovery.end_index, recovery.end_term, recovery.end_chain):
            raise DirectoryDamaged(
                f"{path}: the log ends at entry {end.index} of term {end.term} (position"
                f" {end.position}), and was at entry {recovery.end_index} of term {recovery.end_term}"
                " when it was recovered. Recover another directory, or this one again with"
                f" quorumlog recover --unsafe {path}",
                path=path,
                position=end.position,
            )
        log.append_own(EntryBatch.control(EntryKind.NOOP, b""), recovery.term)
        log.append_own(EntryBatch.control(EntryKind.MEMBERSHIP, recovery.membership), recovery.term)
        log.sync()
        end = log.end
    start = load_start(disk, path)
    if start is not None and start.owed_index >= 0:
        # It would wait for ever for entries of the old cluster before it stands for election.
        save_start(disk, path, msgspec.structs.replace(start, owed_index=-1))
    open_or_make_hard_state(disk, path, recovery.term).close()
    save_promises(disk, path, HardState(recovery.term, None), end)
    done = msgspec.structs.replace(
        record,
        version=max(recovery.version, version_of(1, has_start=start is not None)),
        recovery=None,
    )
    save_member(disk, path, done)
    return done


# ---------------------------------------------------------------- MemberDirectory
# A member's directory, once it is open.


@contextmanager
def _lack_of_space_named() -> Iterator[None]:
    try:
        yield
    except StoreFailure as failure:
        if was_lack_of_space(failure):
            raise DiskFull(f"no space to record the kinds of entries in the log: {failure}") from failure
        raise


class MemberDirectory:
    """Made by `open_member_directory`. Methods that write a file may be called in any thread, all others
    in the thread that owns the member."""

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
        """Actions of this start, and advice to the operator, in sentences."""
        self.unreadable: tuple[str, ...] = ()
        """Unreadable pages at this start that were not needed: a failing disk."""
        self.disk = disk
        self._lock = lock
        self._record = record
        self._record_lock = threading.Lock()
        """Held while the file `member` is written."""
        self._hard_state_file = hard_state_file
        self._durable_file = durable_file
        self._checkpoint_problem = ""
        self._checkpoint_lock = threading.Lock()

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
        me = Replica(self._record.member_id, self.directory_id)
        is_new = bool(formation.cluster_id and not old.cluster_id and me not in formation.founding)
        self._change_record(formation=formation, joins=self._record.joins or is_new)
        self.formation = formation

    def set_back(self, found: SetBack) -> None:
        """On disk when this returns: the next open of the directory draws it another id. Raises
        StoreFailure."""
        self._change_record(set_back=found)

    @property
    def was_set_back(self) -> bool:
        return self._record.set_back is not None

    def count_again(self) -> None:
        """It is a voter: that it was rolled back is no news any more. Raises StoreFailure."""
        self.renewed = ""
        with suppress(DiskFull), _lack_of_space_named():
            self._change_record(set_back=None)

    def save_promises(self, state: HardState | None, formation: Formation | None) -> None:
        """Those that are given are on disk when this returns. No other thread asks for anything of this
        directory meanwhile but its log. Raises StoreFailure."""
        if state is not None:
            self.save_hard_state(state)
        if formation is not None:
            self.save_formation(formation)

    def save_start(self, start: LogStart) -> None:
        """Where the log is to begin. Once this has returned it is on disk, and `store.drop_before` may
        follow; a start of the process in between makes up for it.

        Raises DiskFull, and the log begins where it did; StoreFailure, and the begin is unknown.
        """
        self._refuse_releases_before(VERSION_WITH_START)
        # Without this a log whose power fails could seem to end below its start.
        self._durable_file.sync()
        save_start(self.disk, self.path, start)

    @property
    def may_hold_control_entries(self) -> bool:
        """Of kinds above NOOP. False: the log of this directory has none."""
        return self._record.version >= VERSION_WITH_CONTROL_ENTRIES

    def may_hold(self, level: int, *, users: bool = False) -> bool:
        """May the log hold entries of the kinds of this level, which is above 0? `users`: and one about
        users."""
        is_told = self._record.version >= version_of(level, has_start=False)
        return is_told and (self._record.users or not users)

    def allow_control_entries(self, level: int = 1, *, users: bool = False) -> None:
        """On disk when this returns, and only then may one be written that `may_hold` says. Raises
        DiskFull, StoreFailure; nothing has changed then."""
        if users:
            with _lack_of_space_named():
                self._change_record(VERSION_WITH_USERS, users=True)
        self._refuse_releases_before(version_of(level, has_start=False))

    @property
    def has_users(self) -> bool:
        """The log has users, or has had some."""
        return self._record.users

    @property
    def joins(self) -> bool:
        return self._record.joins

    def has_joined(self) -> None:
        """It has known all that had been committed. Raises StoreFailure."""
        with suppress(DiskFull), _lack_of_space_named():
            self._change_record(joins=False)

    def first_admin(self) -> UserOrder | None:
        """That was left here while the member was stopped. Raises DirectoryDamaged."""
        return load_first_admin(self.disk, self.path)

    def forget_first_admin(self) -> None:
        """Raises StoreFailure."""
        delete_first_admin(self.disk, self.path)

    def _refuse_releases_before(self, version: int) -> None:
        """They would take what is dropped, and entries of kinds that they do not know, for damage."""
        with _lack_of_space_named():
            self._change_record(version)

    def _change_record(self, version: int = 1, **fields: Any) -> None:
        """And no release before `version` opens it. On disk when this returns; raises StoreFailure, and
        nothing has changed."""
        with self._record_lock:
            version = max(self._record.version, version)
            record = msgspec.structs.replace(self._record, version=version, **fields)
            if record != self._record:
                save_member(self.disk, self.path, record)
                self._record = record

    def write_checkpoint(self, committed: LogPoint) -> None:
        """`committed` must be at or below the durable point. Lack of space is a problem, no error.
        Any thread."""
        end, durable = self.store.end, self.store.durable
        if committed.index > durable.index:
            # Only async mode may cut below a committed entry, here while this waited for its thread.
            assert self.durability is Durability.ASYNC, (committed, durable)
            return
        checkpoint = Checkpoint(end.index, committed.index, committed.term, committed.chain)
        try:
            with self._checkpoint_lock:
                save_checkpoint(self.disk, self.path, checkpoint)
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

    def usage(self) -> DiskUsage:
        """Of its file system; any thread. Raises StoreFailure."""
        with disk_work(self.path, "measured"):
            return self.disk.usage(self.path)

    def problems(self) -> tuple[str, ...]:
        """Writes that failed for lack of space, in sentences."""
        return (*filter(None, [self._checkpoint_problem]), *self.unreadable)

    def applying_file(self, machine: str) -> ApplyingFile:
        """The file of that state machine; open at most until `close`."""
        return ApplyingFile(self.disk, self.path, machine, self._kept_open.append)

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
        _sync_all(self.store, self._durable_file)
        with disk_work(self.path, "synced"):
            self.disk.sync_directory(self.path)  # the name of `checkpoint`


# ----------------------------------------------------------------
# Opening everything that one member keeps (`quorumlog.store` draws it), in the right order.
#
# A data directory, not a name, is what voted and acknowledged. So a directory that forgot its term and
# vote, or what it has on disk, must not speak for its old self: it draws a new directory id, synced
# before anything else is made again, and its member is a new one that the others feed. Nobody could
# feed a group of one, which therefore refuses to start and names the command.

_OTHERS = 0o077
"""Of a mode: what others than the owner may do."""
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL)

MAX_MEMBER_ID_BYTES = 255
"""A vote for the member has to fit into a slot of `hardstate`."""


def draw_directory_id() -> str:
    return secrets.token_hex(16)


def open_directory_of(
    config: GroupConfig,
    disk: Disk,
    *,
    kind: DirectoryKind = DirectoryKind.MEMBER,
    draw_id: Callable[[], str] = draw_directory_id,
) -> MemberDirectory:
    """The directory that a member is configured to have: `data_dir` on `disk`, or for `store = "memory"`
    a new one on a disk in memory, unless `disk` is one. Raises as `open_member_directory`."""
    in_memory = config.store == "memory"
    directory = open_member_directory(
        MemoryDisk() if in_memory and not isinstance(disk, MemoryDisk) else disk,
        "memory" if in_memory else config.data_dir,
        group=config.group,
        member_id=config.member_id,
        config=config.storage,
        group_size=len(config.members),
        kind=kind,
        draw_id=draw_id,
    )
    if in_memory:
        directory.durability = Durability.MEMORY
        directory.renewed = "a member in memory has a new directory at every start"
    return directory


def open_member_directory(
    disk: Disk,
    path: str,
    *,
    group: str,
    member_id: str,
    config: StoreConfig,
    group_size: int,
    kind: DirectoryKind = DirectoryKind.MEMBER,
    draw_id: Callable[[], str] = draw_directory_id,
) -> MemberDirectory:
    """Open a directory, recover its log, or make a new one where there is none.

    Raises ConfigError (for the operator to fix), DirectoryDamaged (unbounded damage at or below the
    durable point, or a group of one that lost its vote), StoreFailure (the disk fails).
    """
    path = path.rstrip("/") or "/"
    if len(member_id.encode()) > MAX_MEMBER_ID_BYTES:
        raise ConfigError(
            f"--id {member_id} is longer than {MAX_MEMBER_ID_BYTES} bytes; choose a shorter"
        )
    with refusals_named(path):
        _make(disk, path)
        refuse_foreign(disk, path, kind)
        lock = lock_directory(disk, path)
    try:
        with refusals_named(path):
            record = load_member(disk, path)
            if record is None:
                refuse_foreign(disk, path, kind)
                # The name of the lock: a start that finds our files without it takes them for foreign.
                disk.sync_directory(path)
                sync_names_above(disk, path)
                record = _create(disk, path, group, member_id, config, draw_id(), kind)
                renewed = "the directory was empty"
            else:
                _check_record(path, record, group, member_id, config)
                record = _of_kind(disk, path, record, kind)
                if record.recovery is not None:
                    record = finish_recovery(disk, path, record)
                renewed = ", ".join(forgotten_promises(disk, path, record))
                if renewed and group_size == 1:
                    raise DirectoryDamaged(
                        f"{renewed}. In a group of one no other member can replace lost entries; to"
                        f" continue with the rest of the log, run: quorumlog recover --unsafe {path}",
                        path=path,
                        position=0,
                    )
                if renewed:
                    record = _renew(disk, path, record, draw_id())
            return _open_recovered(disk, path, lock, record, config, renewed)
    except BaseException:
        lock.release()
        raise


@contextmanager
def refusals_named(path: str) -> Iterator[None]:
    """Turn errors of the operating system while a directory is opened into our own."""
    try:
        yield
    except PermissionError as error:
        raise ConfigError(
            f"{path}: no permission for {error.filename or path}; make it writable for the"
            " user that runs this member, or choose another directory"
        ) from error
    except (NotADirectoryError, FileExistsError) as error:
        raise ConfigError(
            f"{path} is not a directory: a part of the path {error.filename or path} is a"
            " file; choose another directory, or move that file away"
        ) from error
    except OSError as error:
        raise StoreFailure(refusal(path, "opened", error)) from error


def lock_directory(disk: Disk, path: str) -> DiskLock:
    """Raises ConfigError if another process holds it."""
    try:
        return disk.lock(f"{path}/{LOCK_NAME}")
    except BlockingIOError as error:
        raise ConfigError(
            f"{path} is in use by another process (it holds {path}/{LOCK_NAME}); stop that"
            " member first, or choose another directory"
        ) from error


def _make(disk: Disk, path: str) -> None:
    """Their names are synced once it is known to be a new one."""
    if not disk.exists(path):
        try:
            disk.make_directory(path)
        except (PermissionError, NotADirectoryError, FileExistsError):
            raise
        except OSError as error:
            if error.errno == errno.EROFS:
                raise
            raise ConfigError(f"{path} cannot be made: {reason_of(error)}; choose another") from error
    disk.list(path)  # raises NotADirectoryError


def sync_names_above(disk: Disk, path: str) -> None:
    """The names of the directory and of all above it, old ones too, and of the symbolic links
    that lead there: without its name everything in it would be gone."""
    for name in dict.fromkeys((path, disk.real_path(path))):
        while (parent := posixpath.dirname(name)) != name:
            try:
                disk.sync_directory(parent or ".")
            except OSError as error:
                # Nothing is made where this process may not even look.
                if error.errno not in _NOT_OURS:
                    raise
            name = parent


def _open_to_others(disk: Disk, path: str) -> tuple[str, ...]:
    """A directory that an operator or an earlier release has made is used as it is."""
    mode = disk.mode_of(path)
    if not mode & _OTHERS:
        return ()
    return (
        f"{path} is open to other users of this machine (mode {mode:04o}); chmod -R go-rwx {path} keeps"
        " them out",
    )


def _create(
    disk: Disk,
    path: str,
    group: str,
    member_id: str,
    config: StoreConfig,
    directory_id: str,
    kind: DirectoryKind,
) -> MemberRecord:
    """`member` comes last: it promises that everything before it is complete and on disk."""
    make_files(disk, path, None)
    record = MemberRecord(
        group=group,
        member_id=member_id,
        directory_id=directory_id,
        segment_bytes=config.segment_bytes,
        index_segment_bytes=config.index_segment_bytes,
        kind=kind.stored,
    )
    save_member(disk, path, record)
    return record


def _of_kind(disk: Disk, path: str, record: MemberRecord, kind: DirectoryKind) -> MemberRecord:
    """A directory of an earlier release becomes one of this product. A plain log may be a store or a
    broker whose machine was forgotten at this start: it stays what it was."""
    if record.kind or kind in (DirectoryKind.MEMBER, DirectoryKind.LOG):
        return record
    record = msgspec.structs.replace(record, kind=kind.stored)
    save_member(disk, path, record)
    return record


def _check_record(
    path: str, record: MemberRecord, group: str, member_id: str, config: StoreConfig
) -> None:
    for option, stored, wanted in (
        ("--group", record.group, group),
        ("--id", record.member_id, member_id),
        ("segment_bytes", record.segment_bytes, config.segment_bytes),
        ("index_segment_bytes", record.index_segment_bytes, config.index_segment_bytes),
    ):
        if stored != wanted:
            raise ConfigError(
                f"{path} was made with {option} {stored}, not {wanted} (file"
                f" {path}/{MEMBER_NAME}); change {option}, or choose another directory"
            )
    if not record.checked:
        raise ConfigError(f"{path} holds entries without checksums and is only read; choose another")


def _renew(disk: Disk, path: str, record: MemberRecord, directory_id: str) -> MemberRecord:
    """The new id is on disk before any file is made again: otherwise a crash in between would leave
    a directory that looks whole and speaks for its old self."""
    formation = record.formation._replace(pending=(), pending_id="")
    joins = bool(formation.cluster_id)
    renewed = msgspec.structs.replace(
        record, directory_id=directory_id, formation=formation, joins=joins
    )
    save_member(disk, path, renewed)
    return renewed


def _open_recovered(
    disk: Disk, path: str, lock: DiskLock, record: MemberRecord, config: StoreConfig, renewed: str
) -> MemberDirectory:
    disk.sync_directory(path)  # a name may be in the cache only
    record = check_start(disk, path, record)
    checkpoint = f"{path}/{CHECKPOINT_NAME}"
    _, problem = read_readable(disk, checkpoint)
    absent = [f"{checkpoint} {problem}; it counts as absent and is written again"] if problem else []
    with ExitStack() as opened:
        durable_file = open_or_make_durable(disk, path)
        opened.callback(durable_file.close)
        durable_file.directory_id = record.directory_id
        store, recovery = LedgerStore.recover(disk, path, config, durable_file)
        opened.callback(store.close)
        hard_state_file = open_or_make_hard_state(disk, path, max(store.end.term, 0))
        opened.callback(hard_state_file.close)
        directory = MemberDirectory(
            disk, path, lock, record, hard_state_file, durable_file, store, config
        )
        if directory.hard_state.term < store.end.term:
            raise DirectoryDamaged(
                f"{path}/{HARD_STATE_NAME} is of term {directory.hard_state.term}, but the log holds"
                f" entries of term {store.end.term} (position 0): an old copy of the file was put"
                " back. Move the whole directory away: the member then starts as a new one and is fed"
                " the log by the others",
                path=f"{path}/{HARD_STATE_NAME}",
                position=0,
            )
        directory.renewed = renewed or set_back_sentence(path, record)
        directory.report = (*_open_to_others(disk, path), *absent, *recovery.lines)
        directory.unreadable = (*absent, *recovery.rewritten)
        directory.committed_index = proven_commit(disk, path, store)
        opened.pop_all()
        return directory
