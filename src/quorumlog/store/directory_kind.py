"""The product that a directory belongs to, checked by every command before it writes, reads or locks
anything there. Each product keeps its files in directories of its own and refuses those of the others: a
key-value store served as a plain log would take foreign entries and serve no key, and a group's member
served as a store by itself would acknowledge entries that its group never sees.

The file `member` names it (state_files.py). In a directory of an earlier release the product's other
files show it; without any, the first store or broker that starts on it claims it. A message store, ours
or a Java broker's, is recognized by its folders.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from quorumlog.config import STAGING_FOLDER
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.store.disk import Disk
from quorumlog.store.durable_file import DURABLE_NAME
from quorumlog.store.recovery import SET_ASIDE_NAME
from quorumlog.store.segments import DATA_NAME, INDEX_NAME
from quorumlog.store.snapshots import APPLYING_NAME, SNAPSHOTS_NAME
from quorumlog.store.state_files import (
    BACKUP_NAME,
    CURRTERM_NAME,
    DAMAGED_NAME,
    HARD_STATE_NAME,
    MEMBER_NAME,
    START_NAME,
    STATES_NAME,
    load_member,
)

LOCK_NAME = "lock"
RESTORING_NAME = "restoring"
"""The file `member` to be, of a directory that is being restored."""
CONVERTING_NAME = "converting"
"""The commit log to be, of a store that `broker convert` is making."""
JAVA_LEDGER_PREFIX = "dledger-"
"""Of the folder of the replicated log below a Java broker's storePathRootDir."""
_COMMIT_LOG_NAME, _QUEUES_NAME = "commitlog", "consumequeue"
_STORE_NAMES = frozenset({_QUEUES_NAME, "flushed", "queues", "replica"})
"""What is made after the commit log."""

OWN_FOLDERS = frozenset(
    {DATA_NAME, INDEX_NAME, SET_ASIDE_NAME, STATES_NAME, SNAPSHOTS_NAME, APPLYING_NAME}
)
_OWN_FILES = (
    MEMBER_NAME,
    HARD_STATE_NAME,
    CURRTERM_NAME,
    DURABLE_NAME,
    DAMAGED_NAME,
    START_NAME,
    LOCK_NAME,
)
OWN_NAMES = OWN_FOLDERS | {STAGING_FOLDER, *_OWN_FILES, *(f"{name}.tmp" for name in _OWN_FILES)}
"""Of a member."""


class DirectoryKind(Enum):
    """Name in the file `member` (with a `-`: of no member); description; command that opens it; what to
    do if none does."""

    MEMBER = "", "the directory of a member of a log", "quorumlog serve"
    """Nothing says of which product."""
    LOG = "log", "the directory of a member of a log", "quorumlog serve"
    STORE = "kv", "the directory of a member of a key-value store", "quorumlog kv serve"
    LOG_BROKER = (
        "broker",
        "the directory of a broker on a replicated log",
        "quorumlog broker serve --role dledger",
    )
    BROKER = "-broker", "the message store of a broker", "quorumlog broker serve"
    BACKUP = "-backup", "a backup", "quorumlog restore"
    JAVA_BROKER = (
        "-java-broker",
        "the store of a Java broker in DLedger mode",
        "",
        "quorumlog broker convert makes a classic store of it; name another directory",
    )
    JAVA_LOG = (
        "-java-log",
        "a log without a file member",
        "",
        "it was written by other software, such as a Java DLedger member, or lost that file. Such a"
        " directory is opened read-only, by inspect, verify and read; choose another directory",
    )
    DERIVED = (
        "-derived",
        "the folder of queues and index of a broker on a replicated log",
        "",
        "its broker creates it again at each start; name the directory above it",
    )
    RESTORE = (
        "-restore",
        "of a restore or takeover that did not come to its end",
        "",
        "repeat it, or empty the directory",
    )
    CONVERSION = (
        "-conversion",
        "of a conversion that did not come to its end",
        "",
        "empty the directory, and convert again",
    )

    def __init__(self, stored: str, title: str, command: str, advice: str = "") -> None:
        self.stored = stored
        self.title = title
        self.command = command
        self.advice = advice or f"name another directory, or use {command}"

    @property
    def is_of_member(self) -> bool:
        return not self.stored.startswith("-")


_OF_MACHINE = {"kv": DirectoryKind.STORE, "messages": DirectoryKind.LOG_BROKER}
"""By a state machine that this product alone runs."""
_OF_FILE = {
    "kv-rocksdb": DirectoryKind.STORE,
    "messages": DirectoryKind.LOG_BROKER,
    "taken-over": DirectoryKind.LOG_BROKER,
}
"""By a file or folder beside the file `member`."""


def kind_of_machines(names: Iterable[str]) -> DirectoryKind:
    """Kind of the directory of a member that runs these state machines."""
    found = [_OF_MACHINE[name] for name in names if name in _OF_MACHINE]
    return found[0] if found else DirectoryKind.LOG


def kind_of(disk: Disk, path: str) -> DirectoryKind | None:
    """None: nothing here says it. Raises OSError, ConfigError for a kind of a later release."""
    names = disk.list(path)
    if BACKUP_NAME in names:
        return DirectoryKind.BACKUP
    if MEMBER_NAME in names:
        return _kind_of_member(disk, path, names)
    if RESTORING_NAME in names:
        return DirectoryKind.RESTORE
    ledgers = [name for name in names if name.startswith(JAVA_LEDGER_PREFIX)]
    if any(disk.exists(f"{path}/{each}/{DATA_NAME}") for each in ledgers):
        return DirectoryKind.JAVA_BROKER
    if _COMMIT_LOG_NAME in names:
        return DirectoryKind.BROKER
    if CONVERTING_NAME in names:
        return DirectoryKind.CONVERSION
    if _QUEUES_NAME in names:
        return DirectoryKind.DERIVED if disk.exists(f"{path}/../{MEMBER_NAME}") else None
    # An unfinished creation never got as far as a segment: `member` comes before the first one.
    if any(disk.list(f"{path}/{folder}") for folder in (DATA_NAME, INDEX_NAME) if folder in names):
        return DirectoryKind.JAVA_LOG
    return None


def _kind_of_member(disk: Disk, path: str, names: list[str]) -> DirectoryKind:
    try:
        record = load_member(disk, path)
    except DirectoryDamaged:
        record = None  # who opens it says so
    stored = "" if record is None else record.kind
    known = {kind.stored: kind for kind in DirectoryKind if kind.is_of_member}
    if stored not in known:
        raise ConfigError(
            f"{path} is of a kind that this release does not know ({stored!r}, file"
            f" {path}/{MEMBER_NAME}): start the release that made it, or a later one"
        )
    kind = known[stored]
    beside = [_OF_FILE[name] for name in names if name in _OF_FILE]
    return beside[0] if beside and kind is DirectoryKind.MEMBER else kind


def refuse_other_kinds(disk: Disk, path: str, own: DirectoryKind, *also: DirectoryKind) -> None:
    """For commands that only read. Raises ConfigError for a directory of another product or a later
    release, OSError."""
    found = kind_of(disk, path)
    if found is None or found in (own, *also):
        return
    if found.is_of_member and own.is_of_member and DirectoryKind.MEMBER in (found, own):
        return
    raise ConfigError(f"{path} is {found.title}, not {own.title}: {found.advice}")


def refuse_foreign(disk: Disk, path: str, own: DirectoryKind) -> None:
    """For commands that write. Raises ConfigError unless the directory is its own, empty, not there, or
    an unfinished creation; OSError."""
    refuse_other_kinds(disk, path, own)
    names = set(disk.list(path))
    if kind_of(disk, path) is not None:
        return  # its own
    if own is DirectoryKind.BROKER and (parts := sorted(_STORE_NAMES & names)):
        raise ConfigError(
            f"{path} holds {parts[0]} of a message store, and no folder {_COMMIT_LOG_NAME}: a new"
            " store there would assign its offsets again. If the commit log is elsewhere"
            " (storePathCommitLog) or its disk is not mounted, mount or link it there; else restore it,"
            " or choose an empty directory"
        )
    # Of the group beside a member, which is opened after it; and what a file system keeps itself.
    known = {"lost+found", LOCK_NAME} | (OWN_NAMES if own.is_of_member else set())
    if own is DirectoryKind.BACKUP:
        known |= {f"{BACKUP_NAME}.tmp"}
    foreign = sorted(name for name in names - known if not name.startswith("."))
    if own.is_of_member and CURRTERM_NAME in names and LOCK_NAME not in names:
        foreign.append(CURRTERM_NAME)
    members = [name for name in foreign if _is_member(disk, f"{path}/{name}")]
    if members:
        raise ConfigError(
            f"{path} holds the directories of members ({', '.join(members)}); name one of"
            " them, or an empty directory"
        )
    if foreign:
        raise ConfigError(
            f"{path} holds files of other software ({foreign[0]}); choose an empty directory"
        )


def _is_member(disk: Disk, path: str) -> bool:
    try:
        return MEMBER_NAME in disk.list(path)
    except OSError:
        return False
