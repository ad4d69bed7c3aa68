"""OldLog: the commit log of a classic store below a replicated log, in one space of offsets with it. Its
files lie in the folder `commitlog` of the member's directory, and end where the first entry lies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from quorumlog.broker.store.log_files import LogRecords, open_file_list, read_records
from quorumlog.broker.wire import OldLogRequest, OldLogResponse
from quorumlog.errors import BadRequest, DirectoryDamaged, StoreFailure
from quorumlog.store.disk import Disk, disk_work
from quorumlog.store.state_files import read_readable

FOLDER_NAME = "commitlog"
RECORD_NAME = "taken-over"
BLOCK_BYTES = 16 << 20
PIECE_BYTES = 1 << 20
"""Of an answer to a later member at most."""


class FileDigest(msgspec.Struct, frozen=True):
    position: int
    sha256: str
    blocks: list[int]
    """CRC-32 of each 16 MiB."""


class OldTopic(msgspec.Struct, frozen=True, array_like=True):
    name: str
    queues: int
    perm: int


class OldGroup(msgspec.Struct, frozen=True, array_like=True):
    """A consumer group."""

    name: str
    offsets: list[tuple[str, int, int]]
    """(topic, queue, number of the next message that it wants)."""


class OldState(msgspec.Struct, frozen=True):
    """The initial topics and groups of the replicated log."""

    topics: list[OldTopic]
    groups: list[OldGroup]
    delayed: dict[int, int]
    """By delay level: the first message of its queue that is not delivered yet."""


class TakenOver(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file `taken-over` of a member's directory, in JSON."""

    end_position: int
    """Where the replicated log begins."""
    file_bytes: int
    files: list[FileDigest]
    state: OldState | None = None
    """None: an earlier release took it over, and knew nothing of it."""
    queues: list[tuple[str, int, int]] = []
    """(topic, queue, number of its next message): those of which the old log has no message any more."""

    @property
    def digest(self) -> str:
        """Of all: members whose old logs differ by a byte, or whose states do, have another one."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class _Versioned(msgspec.Struct, frozen=True):
    """With a state: a release that does not know it finds no `files` and refuses the record, instead of
    beginning with other topics than the other members."""

    version: int = 1
    record: TakenOver | None = None


VERSION = 2


def encode_record(record: TakenOver) -> bytes:
    is_plain = record.state is None and not record.queues
    stored = record if is_plain else _Versioned(VERSION, record)
    return msgspec.json.format(msgspec.json.encode(stored))


def decode_record(data: bytes) -> TakenOver:
    """Raises msgspec.MsgspecError."""
    found = msgspec.json.decode(data, type=_Versioned)
    if found.version > VERSION:
        raise msgspec.ValidationError(f"it is of version {found.version}, of a later release")
    return found.record or msgspec.json.decode(data, type=TakenOver)


def first_difference(one: TakenOver, other: TakenOver) -> str:
    """In a sentence; empty: they are the same."""
    if one.file_bytes != other.file_bytes:
        return f"the files have {one.file_bytes} and {other.file_bytes} bytes"
    ours = {file.position: file for file in one.files}
    theirs = {file.position: file for file in other.files}
    for position in sorted(ours.keys() | theirs.keys()):
        mine, his = ours.get(position), theirs.get(position)
        if mine is None or his is None:
            return f"only one of them has a file at {position}"
        if mine.sha256 != his.sha256:
            for number, (a, b) in enumerate(zip(mine.blocks, his.blocks, strict=True)):
                if a != b:
                    at = position + number * BLOCK_BYTES
                    return f"they differ in the {BLOCK_BYTES} bytes from {at} on"
    if one.end_position != other.end_position:
        return "they end at different positions"
    if one.queues != other.queues:
        return "they know of other queues: copy the folder consumequeue of one store to all of them"
    if one.state == other.state:
        return ""
    mine_state, his_state = one.state, other.state
    what = "topics, groups or delays"
    if mine_state is not None and his_state is not None:
        parts = {
            "topics": mine_state.topics != his_state.topics,
            "groups and their offsets": mine_state.groups != his_state.groups,
            "the delayed messages that were delivered": mine_state.delayed != his_state.delayed,
        }
        what = " and ".join(name for name, differs in parts.items() if differs)
    return f"{what} are not the same: copy the folder config of one store to all of them"


def taken_over(disk: Disk, directory: str) -> TakenOver | None:
    """None: the member has no old log. Raises DirectoryDamaged, StoreFailure."""
    path = f"{directory}/{RECORD_NAME}"
    with disk_work(path, "read"):
        if not disk.exists(path):
            return None
        data, _ = read_readable(disk, path)
    try:
        return decode_record(data or b"")
    except msgspec.MsgspecError as error:
        raise DirectoryDamaged(
            f"{path} is damaged: {error}; copy it from another member", path=path, position=0
        ) from None


class OldLog:
    """Read-only; any thread."""

    def __init__(self, disk: Disk, directory: str, record: TakenOver) -> None:
        """Raises ConfigError, StoreFailure."""
        self.record = record
        self._files = open_file_list(
            disk, f"{directory}/{FOLDER_NAME}", record.file_bytes, option="segment_bytes", writable=False
        )
        first = record.files[0].position if record.files else record.end_position
        if self._files.first_position > first:
            raise StoreFailure(
                f"{directory}/{FOLDER_NAME} begins at {self._files.first_position}, and the old commit"
                f" log at {first}: restore the files from another member"
            )
        if self._files.end_position != record.end_position:
            raise StoreFailure(
                f"{directory}/{FOLDER_NAME} ends at {self._files.end_position}, and the replicated log"
                f" begins at {record.end_position}: restore the files from another member"
            )

    @property
    def first_position(self) -> int:
        return self._files.first_position

    @property
    def end_position(self) -> int:
        return self.record.end_position

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        """Raises OSError."""
        return self._files.pread(min(size_bytes, self.end_position - position), position)

    def records(self) -> Iterator[LogRecords]:
        """All of them. Raises StoreFailure where one is none."""
        position = self.first_position
        while position < self.end_position:
            found, stop = read_records(self._files, position, self.end_position)
            if found is None:
                raise StoreFailure(f"the old commit log has no record at {position} ({stop.value})")
            yield found
            position = found.next_position

    def close(self) -> None:
        self._files.close()


def piece_of(old: OldLog | None, request: OldLogRequest) -> OldLogResponse:
    """For a later member. Raises BadRequest, OSError."""
    if old is None:
        return OldLogResponse()
    if not request.size_bytes:
        return OldLogResponse(record=encode_record(old.record))
    stop = request.position + request.size_bytes
    if not old.first_position <= request.position < stop <= old.end_position:
        raise BadRequest(f"the old commit log has no bytes from {request.position} to {stop}")
    if request.size_bytes > PIECE_BYTES:
        raise BadRequest(f"a piece of the old commit log has at most {PIECE_BYTES} bytes")
    return OldLogResponse(data=old.read_bytes(request.position, request.size_bytes))
