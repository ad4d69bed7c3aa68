"""What a start looks at before it opens the log: promises that are lost, names of earlier releases, and
small files that it makes again."""

from __future__ import annotations

import msgspec

from quorumlog.config import StoreConfig
from quorumlog.entry import HardState
from quorumlog.errors import DirectoryDamaged
from quorumlog.figures import now
from quorumlog.store.disk import Disk
from quorumlog.store.files.damaged_ranges import DAMAGED_NAME, EARLIER_DAMAGED_NAME
from quorumlog.store.files.durable_file import DURABLE_NAME, DurableFile
from quorumlog.store.files.hard_state_file import HARD_STATE_NAME, HardStateFile, read_currterm
from quorumlog.store.files.member_file import VERSION_WITH_START, MemberRecord, save_member
from quorumlog.store.files.slot_file import SLOT_BYTES
from quorumlog.store.files.start_file import START_NAME, WITHOUT_START
from quorumlog.store.repair.set_aside import EARLIER_SET_ASIDE_NAME, SET_ASIDE_NAME, SetAside
from quorumlog.store.repair.survey_files import lacks_start


def forgotten_promises(disk: Disk, path: str, record: MemberRecord) -> list[str]:
    """Why the directory must not speak for its old self, as sentences; empty if it may."""
    found = record.set_back
    is_set_back = found is not None and found.directory_id == record.directory_id
    return [*_lost_files(disk, path), *([set_back_sentence(path, record)] if is_set_back else [])]


def set_back_sentence(path: str, record: MemberRecord) -> str:
    """Empty if it was never told so."""
    found = record.set_back
    if found is None:
        return ""
    return (
        f"{path} was found older than it had been: an older copy of it was put back, or its disk lost"
        " what it had synced"
        f"{now(f'acknowledged entry {found.acknowledged_index}, held up to {found.held_index}')}"
    )


def _lost_files(disk: Disk, path: str) -> list[str]:
    """Of those that hold promises."""
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


def rename_earlier(disk: Disk, path: str, config: StoreConfig) -> None:
    """Give what an earlier release has written the names of this one; on disk when this returns. A file
    `healing` takes the place of `damaged` (damaged_ranges.py); a folder `quarantine` beside `set-aside`
    is kept in there."""
    names = set(disk.list(path))
    earlier = {EARLIER_DAMAGED_NAME, EARLIER_SET_ASIDE_NAME} & names
    if EARLIER_DAMAGED_NAME in earlier:
        disk.rename(f"{path}/{EARLIER_DAMAGED_NAME}", f"{path}/{DAMAGED_NAME}")
    if {EARLIER_SET_ASIDE_NAME, SET_ASIDE_NAME} <= names:
        SetAside(disk, path, config).take(f"{path}/{EARLIER_SET_ASIDE_NAME}", EARLIER_SET_ASIDE_NAME)
    elif EARLIER_SET_ASIDE_NAME in earlier:
        disk.rename(f"{path}/{EARLIER_SET_ASIDE_NAME}", f"{path}/{SET_ASIDE_NAME}")
    if earlier:
        disk.sync_directory(path)


def check_start(disk: Disk, path: str, record: MemberRecord) -> MemberRecord:
    """The record as it has to be. Raises DirectoryDamaged if the log has lost its first entries and
    nothing tells which."""
    has_start = disk.exists(f"{path}/{START_NAME}")
    if has_start and record.version < VERSION_WITH_START:
        # A copy of the file was put back that is older than the start.
        record = msgspec.structs.replace(record, version=VERSION_WITH_START)
        save_member(disk, path, record)
    if lacks_start(disk, path, record):
        raise DirectoryDamaged(
            f"{path}/{START_NAME} is missing, and with it where the log begins, whose first entries are"
            f" gone (position 0). {WITHOUT_START}",
            path=f"{path}/{START_NAME}",
            position=0,
        )
    return record


def open_or_make_durable(disk: Disk, path: str) -> DurableFile:
    """A point that cannot be read starts again at the origin: then the whole log is verified."""
    try:
        file = DurableFile.open(disk, path)
    except FileNotFoundError:
        pass
    else:
        if file.load() is not None:
            return file
        file.close()
    file = DurableFile.create(disk, path)
    disk.sync_directory(path)
    return file


def open_or_make_hard_state(disk: Disk, path: str, least_term: int) -> HardStateFile:
    """State that cannot be read starts again without a vote, at `least_term` or what `currterm` says."""
    try:
        file = HardStateFile.open(disk, path)
    except FileNotFoundError:
        pass
    else:
        state = file.load()
        if state is not None:
            # After a crash the slots may be in the page cache only.
            file.save(state)
            return file
        file.close()
    java = read_currterm(disk, path)
    file = HardStateFile.create(disk, path, HardState(max(least_term, java.term if java else 0), None))
    disk.sync_directory(path)
    return file
