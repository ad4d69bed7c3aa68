"""A later member of a group that has taken a classic store over: it is made before it starts, of what
a member's broker sends of the old commit log, file by file. Its replicated log begins where those of the
others do, without an entry, and the leader feeds it.

Whoever starts on an empty directory instead never comes to vote: the first entry lies elsewhere in its
log, and it takes none.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quorumlog.broker.client.blocking_broker_client import BrokerClient
from quorumlog.broker.old_log import BLOCK_BYTES, PIECE_BYTES, FileDigest, TakenOver, decode_record
from quorumlog.broker.takeover import copy_old_log, start_behind
from quorumlog.config import StoreConfig
from quorumlog.errors import ConfigError, ProtocolViolation
from quorumlog.store.directory_kind import DirectoryKind
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.made_directories import RestoredDirectory
from quorumlog.store.member_directory import draw_directory_id
from quorumlog.store.state_files import VERSION_WITH_START, MemberRecord


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
