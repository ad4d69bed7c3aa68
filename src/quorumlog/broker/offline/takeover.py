"""Members of a group that takes a classic store over."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from isal.isal_zlib import crc32

from quorumlog.batch import EntryBatch
from quorumlog.broker.client.blocking_broker_client import BrokerClient
from quorumlog.broker.message import blank_record
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.offline.old_log import (
    BLOCK_BYTES,
    FOLDER_NAME,
    PIECE_BYTES,
    RECORD_NAME,
    FileDigest,
    TakenOver,
    decode_record,
    encode_record,
)
from quorumlog.broker.offline.old_state import OldMessages, OldReport, old_state
from quorumlog.broker.store.java_store import read_java_config
from quorumlog.broker.store.log_files import LogEnd
from quorumlog.config import MemberAddress, StoreConfig
from quorumlog.entry import EntryKind, Formation, Replica
from quorumlog.errors import ConfigError, ProtocolViolation, StoreFailure
from quorumlog.log_state.control_entries import LEVEL, Membership, encode_body
from quorumlog.log_state.log_state import EMPTY
from quorumlog.store.directory_kind import DirectoryKind
from quorumlog.store.disk import Disk, OsDisk, refusal
from quorumlog.store.ledger_store import LogPoint, LogStart
from quorumlog.store.made_directories import RestoredDirectory
from quorumlog.store.member_directory import draw_directory_id
from quorumlog.store.segments import segment_name
from quorumlog.store.state_files import VERSION_WITH_START, MemberRecord, replace_file

# ---------------------------------------------------------------- Takeover
# A member's directory made of a stopped classic store. The old commit log stays as it is below the
# first entry, closed with a blank record; the replicated log begins at index 0 where it ends.
#
# Each member is made on its own machine, from its own copy of the store. What a group is known by
# follows from the digest of the old log and the list of members: members whose old logs differ by a
# byte are of different clusters, and never take a message from each other.

_ID_DIGITS = 32


class Takeover(NamedTuple):
    record: TakenOver
    report: OldReport


def take_over(
    store: str,
    data_dir: str,
    member_id: str,
    members: Sequence[MemberAddress],
    *,
    group: str = "default",
    without_config: bool = False,
    disk: Disk | None = None,
) -> Takeover:
    """`store` is read, and left as it is. `without_config`: see `old_state`. Raises ConfigError where it
    runs, is damaged or was not stopped, or where `data_dir` is not empty; DiskFull, StoreFailure."""
    disk = OsDisk() if disk is None else disk
    if member_id not in [each.member_id for each in members]:
        raise ConfigError(f"--id {member_id} is not in --members")
    with OfflineStore(store, disk) as old:
        record, report, end_position = _survey(old, store, disk, without_config=without_config)
        index_bytes = StoreConfig(segment_bytes=record.file_bytes).index_segment_bytes
        names = ",".join(sorted(f"{m.member_id}={m.host}:{m.port}" for m in members))
        seed = f"{record.digest} {group} {names}"
        replicas = tuple(
            Replica(m.member_id, _id_of(seed, m.member_id))
            for m in sorted(members, key=lambda member: member.member_id)
        )
        (own,) = [each for each in replicas if each.member_id == member_id]
        formation = Formation(replicas, replicas, _id_of(seed, "cluster"), level=LEVEL)
        member = MemberRecord(
            group=group,
            member_id=member_id,
            directory_id=own.directory_id,
            segment_bytes=record.file_bytes,
            index_segment_bytes=index_bytes,
            formation=formation,
            version=VERSION_WITH_START,
            kind=DirectoryKind.LOG_BROKER.stored,
        )
        with RestoredDirectory(disk, data_dir, member) as target:
            target.begin(start_behind(record))
            addresses = tuple((each.member_id, str(each)) for each in members)
            membership = Membership(replicas, replicas, addresses=addresses)
            target.log.append_own(EntryBatch.noop(), 1)
            body = encode_body(membership)
            target.log.append_own(EntryBatch.control(EntryKind.MEMBERSHIP, body), 1)
            copy_old_log(
                disk,
                data_dir,
                record,
                lambda file: _content(old, file.position, end_position, record.end_position),
            )
            target.prepare(1)
            target.complete()
    return Takeover(record, report)


def _id_of(seed: str, name: str) -> str:
    return hashlib.sha256(f"{seed} {name}".encode()).hexdigest()[:_ID_DIGITS]


def _survey(
    old: OfflineStore, path: str, disk: Disk, *, without_config: bool
) -> tuple[TakenOver, OldReport, int]:
    """And where the log ends. Raises ConfigError."""
    if not old.is_clean:
        raise ConfigError(
            f"{path} was not stopped cleanly: start its broker once more and stop it, so that its log is"
            " recovered"
        )
    config = read_java_config(disk, path)
    end, held = LogEnd(old.files.first_position), OldMessages()
    for found in old.walk(end):
        held.add(found.records)
    if end.problem:
        raise ConfigError(
            f"the record at {end.position} of {path} {end.problem}: recover the store first"
        )
    old.refuse_missing_files(end)
    held.expired = {
        key: floor for key, floor in old.queues.floors().items() if floor and key not in held.ends
    }
    queues = [(*key, end_offset) for key, end_offset in sorted(held.expired.items())]
    state, report = old_state(path, config, held, without_config=without_config)
    files = []
    stop = end.position
    closed = -(-stop // old.file_bytes) * old.file_bytes
    for base in range(old.files.first_position, closed, old.file_bytes):
        sha, blocks = hashlib.sha256(), list[int]()
        for data in _content(old, base, stop, closed):
            sha.update(data)
            blocks.append(crc32(data))
        files.append(FileDigest(base, sha.hexdigest(), blocks))
    return TakenOver(closed, old.file_bytes, files, state, queues), report, stop


def _content(old: OfflineStore, base: int, stop: int, closed: int) -> Iterator[bytes]:
    """Blocks of a file as it stands below the replicated log: behind the last record a blank, and
    zeros."""
    blank = blank_record(closed - stop) if stop < closed else b""
    for at in range(base, base + old.file_bytes, BLOCK_BYTES):
        size = min(BLOCK_BYTES, base + old.file_bytes - at)
        data = bytearray(old.files.pread(max(min(size, stop - at), 0), at).ljust(size, b"\0"))
        first, last = max(stop, at), min(stop + len(blank), at + size)
        if first < last:
            data[first - at : last - at] = blank[first - stop : last - stop]
        yield bytes(data)


def start_behind(record: TakenOver) -> LogStart:
    """Of the replicated log."""
    return LogStart(LogPoint(-1, -1, 0, record.end_position), EMPTY.encode())


def copy_old_log(
    disk: Disk, data_dir: str, record: TakenOver, blocks_of: Callable[[FileDigest], Iterable[bytes]]
) -> None:
    """`blocks_of`: a file in blocks of BLOCK_BYTES. On disk when this returns. Raises StoreFailure, also
    where a file is not the one of the record."""
    folder = f"{data_dir}/{FOLDER_NAME}"
    try:
        disk.make_directory(folder)
        for name in disk.list(folder):
            disk.unlink(f"{folder}/{name}")  # of an earlier attempt: what is not written here is a hole
        for each in record.files:
            digest = hashlib.sha256()
            file = disk.open(f"{folder}/{segment_name(each.position)}", create=True)
            try:
                file.set_size(record.file_bytes)
                for number, data in enumerate(blocks_of(each)):
                    digest.update(data)
                    if data.strip(b"\0"):
                        file.pwritev([data], number * BLOCK_BYTES)
                file.sync()
            finally:
                file.close()
            if digest.hexdigest() != each.sha256:
                raise StoreFailure(
                    f"the file at {each.position} of the old commit log is another one than its digest"
                    " says: nothing was made of it"
                )
        disk.sync_directory(folder)
        path = f"{data_dir}/{RECORD_NAME}"
        replace_file(disk, path, encode_record(record), synced=True)
    except OSError as error:
        raise StoreFailure(refusal(data_dir, "written", error)) from error


# ----------------------------------------------------------------
# A later member of a group that has taken a classic store over: it is made before it starts, of what a
# member's broker sends of the old commit log, file by file. Its replicated log begins where those of
# the others do, without an entry, and the leader feeds it.
#
# Whoever starts on an empty directory instead never comes to vote: the first entry lies elsewhere in
# its log, and it takes none.


def make_later_member(
    broker: BrokerClient,
    data_dir: str,
    member_id: str,
    *,
    group: str = "default",
    disk: Disk | None = None,
) -> TakenOver:
    """`broker`: of any member that runs. Raises ConfigError where its group has taken no store over or
    `data_dir` is not empty; what the broker refuses with; StoreFailure, DiskFull. What is half done then
    is cleared by the next call."""
    disk = OsDisk() if disk is None else disk
    data = broker.old_log().record
    if not data:
        raise ConfigError(
            f"the group of {broker.server} has taken no store over: a new member starts on an empty"
            " directory"
        )
    try:
        record = decode_record(data)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(
            f"{broker.server} tells no record of an old commit log: {error}"
        ) from None
    member = MemberRecord(
        group=group,
        member_id=member_id,
        directory_id=draw_directory_id(),
        segment_bytes=record.file_bytes,
        index_segment_bytes=StoreConfig(segment_bytes=record.file_bytes).index_segment_bytes,
        version=VERSION_WITH_START,
        kind=DirectoryKind.LOG_BROKER.stored,
    )

    def blocks_of(file: FileDigest) -> Iterator[bytes]:
        stop = file.position + record.file_bytes
        for at in range(file.position, stop, BLOCK_BYTES):
            yield b"".join(
                broker.old_log(piece, min(PIECE_BYTES, at + BLOCK_BYTES - piece, stop - piece)).data
                for piece in range(at, min(at + BLOCK_BYTES, stop), PIECE_BYTES)
            )

    with RestoredDirectory(disk, data_dir, member) as target:
        target.begin(start_behind(record))
        copy_old_log(disk, data_dir, record, blocks_of)
        target.complete()
    return record
