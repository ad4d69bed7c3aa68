"""What a directory is for. Each product keeps its files in directories of its own and refuses those of
the others: a store that is served as a plain log takes entries of anybody and serves no key.

The file `member` says it (member_file.py). A directory of an earlier release does not say it; the files
of a product beside it do, or nothing does, and the first store or broker that starts on it has it then.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.store.disk import Disk
from quorumlog.store.files.backup_file import BACKUP_NAME
from quorumlog.store.files.member_file import MEMBER_NAME, load_member


class DirectoryKind(Enum):
    """In the file `member`; what it is; which command takes it."""

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

    def __init__(self, stored: str, title: str, command: str) -> None:
        self.stored = stored
        self.title = title
        self.command = command

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
_COMMIT_LOG_NAME = "commitlog"


def kind_of_machines(names: Iterable[str]) -> DirectoryKind:
    """Of a member that runs these state machines."""
    found = [_OF_MACHINE[name] for name in names if name in _OF_MACHINE]
    return found[0] if found else DirectoryKind.LOG


def kind_of(disk: Disk, path: str) -> DirectoryKind | None:
    """None: nothing here says it. Raises OSError, ConfigError for a kind of a later release."""
    names = disk.list(path)
    if BACKUP_NAME in names:
        return DirectoryKind.BACKUP
    if MEMBER_NAME in names:
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
    return DirectoryKind.BROKER if _COMMIT_LOG_NAME in names else None


def refuse_other_kinds(disk: Disk, path: str, own: DirectoryKind) -> None:
    """Raises ConfigError for a directory of another product or a later release, OSError."""
    found = kind_of(disk, path)
    if found in (None, own):
        return
    if found.is_of_member and own.is_of_member and DirectoryKind.MEMBER in (found, own):
        return
    raise ConfigError(
        f"{path} is {found.title}, and not {own.title}: it is for {found.command}; name another"
        " directory, or start that"
    )
