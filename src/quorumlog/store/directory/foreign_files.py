"""What a directory holds that is no member's: a new member leaves it alone."""

from __future__ import annotations

from quorumlog.config import STAGING_FOLDER
from quorumlog.errors import ConfigError
from quorumlog.store.disk import Disk
from quorumlog.store.files.applying_file import APPLYING_NAME
from quorumlog.store.files.damaged_ranges import DAMAGED_NAME
from quorumlog.store.files.durable_file import DURABLE_NAME
from quorumlog.store.files.hard_state_file import CURRTERM_NAME, HARD_STATE_NAME
from quorumlog.store.files.member_file import MEMBER_NAME
from quorumlog.store.files.snapshot_file import SNAPSHOTS_NAME
from quorumlog.store.files.start_file import START_NAME
from quorumlog.store.files.state_files import STATES_NAME
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME
from quorumlog.store.repair.set_aside import SET_ASIDE_NAME

LOCK_NAME = "lock"
RESTORING_NAME = "restoring"
"""The file `member` to be, of a directory that is being restored."""

OWN_FOLDERS = frozenset(
    {DATA_NAME, INDEX_NAME, SET_ASIDE_NAME, STATES_NAME, SNAPSHOTS_NAME, APPLYING_NAME}
)
OWN_NAMES = (
    OWN_FOLDERS
    | {STAGING_FOLDER}
    | frozenset(
        name + suffix
        for name in (
            MEMBER_NAME,
            HARD_STATE_NAME,
            CURRTERM_NAME,
            DURABLE_NAME,
            DAMAGED_NAME,
            START_NAME,
            LOCK_NAME,
        )
        for suffix in ("", ".tmp")
    )
)


def _is_member(disk: Disk, path: str) -> bool:
    try:
        return MEMBER_NAME in disk.list(path)
    except OSError:
        return False


def refuse_foreign(disk: Disk, path: str) -> None:
    """Raise ConfigError unless the directory is a member's, empty, or an unfinished creation of ours."""
    names = set(disk.list(path))
    if MEMBER_NAME in names:
        return
    if RESTORING_NAME in names:
        raise ConfigError(
            f"{path} is of a restore that did not come to its end; restore again, or empty it"
        )
    # An unfinished creation never got as far as a segment: `member` comes before the first one.
    for folder in (DATA_NAME, INDEX_NAME):
        held = disk.list(f"{path}/{folder}") if folder in names else []
        if held:
            raise ConfigError(
                f"{path} holds a log ({folder}/{held[0]}) but no file {path}/member: it was"
                " written by other software, such as a Java DLedger member, or lost that file. Such a"
                " directory is opened read-only, by inspect, verify and read; choose another directory"
            )
    # Of the group beside this one, which is opened behind it.
    others = {"lost+found", STAGING_FOLDER}
    foreign = sorted(name for name in names - OWN_NAMES - others if not name.startswith("."))
    if CURRTERM_NAME in names and LOCK_NAME not in names:
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
