"""Opening everything that one member keeps (`quorumlog.store` draws it), in the right order.

A data directory, not a name, is what voted and acknowledged. So a directory that forgot its term and
vote, or what it has on disk, must not speak for its old self: it draws a new directory id, synced before
anything else is made again, and its member is a new one that the others feed. Nobody could feed a group
of one, which therefore refuses to start and names the command (recovered_directory.py).
"""

from __future__ import annotations

import errno
import posixpath
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from quorumlog.config import GroupConfig, StoreConfig
from quorumlog.entry import Durability, HardState
from quorumlog.errors import ConfigError, DirectoryDamaged, StoreFailure
from quorumlog.store.directory.made_again import (
    check_start,
    forgotten_promises,
    open_or_make_durable,
    open_or_make_hard_state,
    rename_earlier,
    set_back_sentence,
)
from quorumlog.store.directory.opened_directory import MemberDirectory
from quorumlog.store.directory.proven_commit import proven_commit
from quorumlog.store.directory.recovered_directory import finish_recovery
from quorumlog.store.directory_kind import LOCK_NAME, DirectoryKind, refuse_foreign
from quorumlog.store.disk import Disk, DiskLock, reason_of, refusal
from quorumlog.store.file_ledger_store import FileLedgerStore
from quorumlog.store.files.checkpoint_file import CHECKPOINT_NAME
from quorumlog.store.files.durable_file import DurableFile
from quorumlog.store.files.hard_state_file import (
    CURRTERM_NAME,
    HARD_STATE_NAME,
    HardStateFile,
)
from quorumlog.store.files.member_file import (
    MEMBER_NAME,
    MemberRecord,
    load_member,
    save_member,
)
from quorumlog.store.files.replaced_file import read_readable
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME
from quorumlog.store.memory_disk import MemoryDisk

__all__ = ["MemberDirectory", "open_directory_of", "open_member_directory"]

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

    Raises ConfigError (what a person must change), DirectoryDamaged (damage at or below the durable
    point that cannot be bounded, or a group of one that forgot what it promised), StoreFailure (the disk
    refuses).
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
                        f"{renewed}. In a group of one no other member can replace what is lost; to go"
                        f" on with what the log holds, run: quorumlog recover --unsafe {path}",
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
    """Turn what the operating system says while a directory is opened into our own errors."""
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
    """The names of the directory and of all above it, whoever has made them, and of the symbolic links
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
    for folder in (DATA_NAME, INDEX_NAME):
        disk.make_directory(f"{path}/{folder}")
        disk.sync_directory(f"{path}/{folder}")
    HardStateFile.create(disk, path, HardState(0, None)).close()
    DurableFile.create(disk, path).close()
    disk.sync_directory(path)
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
    renewed = msgspec.structs.replace(record, directory_id=directory_id, formation=formation)
    save_member(disk, path, renewed)
    return renewed


def _open_recovered(
    disk: Disk, path: str, lock: DiskLock, record: MemberRecord, config: StoreConfig, renewed: str
) -> MemberDirectory:
    disk.sync_directory(path)  # a name may be in the cache only
    record = check_start(disk, path, record)
    rename_earlier(disk, path, config)
    absent = [
        f"{path}/{name} {problem}; it counts as absent and is written again"
        for name in (CURRTERM_NAME, CHECKPOINT_NAME)
        if (problem := read_readable(disk, f"{path}/{name}")[1])
    ]
    with ExitStack() as opened:
        durable_file = open_or_make_durable(disk, path)
        opened.callback(durable_file.close)
        durable_file.directory_id = record.directory_id
        store, recovery = FileLedgerStore.recover(disk, path, config, durable_file)
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
