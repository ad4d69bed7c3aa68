"""`quorumlog recover DIR`: go on with a directory that forgot what it had promised.

In a larger group such a directory gets a new id by itself and is fed by the others. A group of one has
nobody to ask: the operator decides that what the log still holds is the truth.
"""

from __future__ import annotations

from quorumlog.config import StoreConfig
from quorumlog.entry import HardState
from quorumlog.errors import ConfigError
from quorumlog.store.directory.member_directory import (
    check_start,
    forgotten_files,
    lock_directory,
    open_or_make_durable,
    refusals_named,
    rename_earlier,
)
from quorumlog.store.disk import Disk
from quorumlog.store.file_ledger_store import FileLedgerStore
from quorumlog.store.files.backup_file import BACKUP_NAME
from quorumlog.store.files.durable_file import read_durable_point
from quorumlog.store.files.hard_state_file import (
    HARD_STATE_NAME,
    HardStateFile,
    read_currterm,
    read_hard_state,
)
from quorumlog.store.files.member_file import MemberRecord, load_member


def check_recoverable(disk: Disk, path: str) -> bool:
    """Whether anything is to be made again; opens nothing for writing.

    Raises ConfigError (not a member's directory, or of a larger group), StoreFailure.
    """
    path = path.rstrip("/") or "/"
    with refusals_named(path):
        _load_only_member(disk, path)
        # Without the file `read_hard_state` would answer with Java's copy, which no start trusts.
        return (
            not disk.exists(f"{path}/{HARD_STATE_NAME}")
            or read_hard_state(disk, path) is None
            or read_durable_point(disk, path) is None
        )


def nothing_to_do(path: str) -> str:
    return f"{path}: hard state and durable point are readable; nothing to do"


def recover_directory(disk: Disk, path: str) -> list[str]:
    """Make an unreadable `hardstate` or `durable` again; returns what was done, in sentences.

    The log is verified as at a start and its good prefix kept. The new term is above every term that can
    still be seen, without a vote. Raises ConfigError (not a member's directory, of a larger group, in
    use), DirectoryDamaged, StoreFailure.
    """
    path = path.rstrip("/") or "/"
    with refusals_named(path):
        record = _load_only_member(disk, path)
        lock = lock_directory(disk, path)
        try:
            forgotten = forgotten_files(disk, path)
            if not forgotten:
                return [nothing_to_do(path)]
            lines = [f"{problem}: made again" for problem in forgotten]
            config = StoreConfig(
                segment_bytes=record.segment_bytes, index_segment_bytes=record.index_segment_bytes
            )
            check_start(disk, path, record)
            rename_earlier(disk, path, config)
            durable_file = open_or_make_durable(disk, path)
            store, recovery = FileLedgerStore.recover(disk, path, config, durable_file)
            end = store.end
            lines += [*recovery.lines, f"the log ends at index {end.index}, term {end.term}"]
            store.close()
            lines.append(_raise_term(disk, path, end.term))
            return lines
        finally:
            lock.release()


def _load_only_member(disk: Disk, path: str) -> MemberRecord:
    """The record of a group of one. In a larger group the directory would keep its id and vote for a
    log that lacks what it had acknowledged: the others must feed it instead."""
    if disk.exists(f"{path}/{BACKUP_NAME}"):
        raise ConfigError(f"{path} is a backup and no member's directory; take it again instead")
    record = load_member(disk, path)
    if record is None:
        raise ConfigError(
            f"{path} has no file 'member': it is not a directory that a member used; name one"
        )
    voters = max(record.formation.founding, record.formation.pending, key=len)
    if len(voters) > 1:
        names = ", ".join(voter.member_id for voter in voters)
        raise ConfigError(
            f"{path} belongs to a group of {len(voters)} ({names}): start the member, it becomes an"
            " observer and is fed by the others; `recover` is only for a group of one"
        )
    return record


def _raise_term(disk: Disk, path: str, end_term: int) -> str:
    """Above every term seen: a vote that was given and forgotten can then do no harm."""
    seen = [end_term, 0]
    java = read_currterm(disk, path)
    if java is not None:
        seen.append(java.term)
    try:
        file = HardStateFile.open(disk, path)
    except FileNotFoundError:
        old = None
    else:
        old = file.load()
        file.close()
    if old is not None:
        seen.append(old.term)
    state = HardState(max(seen) + 1, None)
    HardStateFile.create(disk, path, state).close()
    disk.sync_directory(path)
    return f"{path}/{HARD_STATE_NAME} begins again at term {state.term}"
