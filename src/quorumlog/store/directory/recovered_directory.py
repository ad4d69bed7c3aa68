"""A directory becomes the only voter of a new cluster (`quorumlog recover --unsafe`).

    member       replaced: new ids, and the two entries that the log is to get  <- from here on it is new
    data, index  cut to where the log ended, then the two entries, synced
    start        no entries are owed any more: nobody has them
    hardstate, durable, checkpoint
    member       replaced: without them

Before the first step it is the directory that it was, and after it the next start goes on with the rest:
every step may be done again.
"""

from __future__ import annotations

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind, Formation, HardState
from quorumlog.errors import DirectoryDamaged
from quorumlog.store.directory.copied_log import CopiedLog, copy_config, save_promises
from quorumlog.store.directory.made_again import (
    check_start,
    open_or_make_durable,
    open_or_make_hard_state,
    rename_earlier,
)
from quorumlog.store.disk import Disk
from quorumlog.store.files.member_file import (
    VERSION_WITH_RECOVERY,
    MemberRecord,
    Recovery,
    save_member,
    version_of,
)
from quorumlog.store.files.start_file import load_start, save_start


def open_log(disk: Disk, path: str, record: MemberRecord) -> CopiedLog:
    """As a start of the member opens it: what it would cut is cut. Raises DirectoryDamaged,
    StoreFailure, OSError."""
    config = copy_config(record.segment_bytes, record.index_segment_bytes)
    check_start(disk, path, record)
    rename_earlier(disk, path, config)
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
    """The directory belongs to the new cluster, on disk, when this returns. Raises StoreFailure: it is
    what it was, or this."""
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
    log = open_log(disk, path, record)
    try:
        if log.end.index > recovery.end_index:
            log.store.truncate_from(recovery.end_index + 1)
        end = log.end
        if (end.index, end.term, end.chain) != (
            recovery.end_index,
            recovery.end_term,
            recovery.end_chain,
        ):
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
    finally:
        log.close()
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
