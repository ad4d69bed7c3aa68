"""The small files of a data directory beside the log, each in its format."""

from __future__ import annotations

import posixpath
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import NamedTuple, Self, TypeVar

import msgspec
from isal.isal_zlib import crc32

from quorumlog.entry import EntryKind, Formation, HardState, Replica, SetBack
from quorumlog.errors import DirectoryDamaged, DiskFull, StoreFailure
from quorumlog.figures import now
from quorumlog.log_state.control_entries import LEVELS
from quorumlog.log_state.users import UserOrder
from quorumlog.store.disk import (
    Disk,
    disk_work,
    is_lack_of_space,
    is_no_damage,
    reason_of,
    refusal,
    was_lack_of_space,
)
from quorumlog.store.log_points import LOG_ORIGIN, DamagedRange, LogPoint, LogStart
from quorumlog.store.slot_file import (
    PAYLOAD_BYTES,
    SlotFile,
    payload_bytes_of,
    read_payload,
    read_slots,
    unreadable_slots,
)

T = TypeVar("T")

# ----------------------------------------------------------------
# Small text files that are replaced as a whole: written beside, then renamed over the old one. A crash
# may leave `NAME.tmp`, which nobody reads and the next write removes.


def read_file(disk: Disk, path: str) -> bytes | None:
    """The whole content, or None if there is no such file."""
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError:
        return None
    with closing(file):
        return file.pread(file.size(), 0)


def read_readable(disk: Disk, path: str) -> tuple[bytes | None, str]:
    """As `read_file`, for an optional file: None and a problem if the disk cannot read it. Raises
    OSError if that is no damage."""
    try:
        return read_file(disk, path), ""
    except OSError as error:
        if is_no_damage(error):
            raise
        return None, f"cannot be read: {reason_of(error)}"


def replace_file(disk: Disk, path: str, data: bytes, *, synced: bool) -> None:
    """Raises OSError; the old content is whole then. `synced`: first content, then name are on disk when
    this returns, so that the name never points to an empty file."""
    _write_new(disk, f"{path}.tmp", data, synced=synced)
    disk.rename(f"{path}.tmp", path)
    if synced:
        disk.sync_directory(posixpath.dirname(path))


def _write_new(disk: Disk, path: str, data: bytes, *, synced: bool) -> None:
    if disk.exists(path):
        disk.unlink(path)
    with closing(disk.open(path, create=True)) as file:
        file.pwritev([data], 0)
        if synced:
            file.sync()


def _sealed(value: object) -> bytes:
    """As JSON, and a second line with the CRC-32 of the first."""
    line = msgspec.json.encode(value)
    return line + f"\ncrc32={crc32(line):08x}\n".encode()


def _unsealed(data: bytes) -> bytes:
    """The first line. Raises ValueError."""
    line, _, rest = data.partition(b"\n")
    if rest != f"crc32={crc32(line):08x}\n".encode():
        raise ValueError("its CRC does not match")
    return line


def _unusable(path: str, problem: str, advice: str) -> DirectoryDamaged:
    return DirectoryDamaged(
        f"{path} cannot be used: {problem} (position 0). {advice}", path=path, position=0
    )


def _load(disk: Disk, path: str, decode: Callable[[bytes], T], advice: str) -> T | None:
    """None if there is no such file. Raises DirectoryDamaged if it cannot be used."""
    try:
        data = read_file(disk, path)
        return None if data is None else decode(data)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_no_damage(error):
            raise
        raise _unusable(path, reason_of(error), advice) from error


def _save(disk: Disk, path: str, data: bytes) -> None:
    """On disk when this returns. Raises StoreFailure; the old content is whole then."""
    with disk_work(path, "written"):
        replace_file(disk, path, data, synced=True)


def parse_properties(text: str) -> dict[str, str]:
    """`key=value` lines as Java's Properties writes them for plain ASCII values. A last line without a
    line feed was cut off by a crash, and is left out."""
    pairs = (line.partition("=") for line in text[: text.rfind("\n") + 1].splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals and key[:1] not in "#!"}


# ---------------------------------------------------------------- The file `member`
# Whose directory this is. Two lines of text, the second with the CRC-32 of the first:
#
#     {"version":1,"group":"default","member_id":"n0","directory_id":"5f...", ...}
#     crc32=0c4a1f2e
#
# The file is written last when a directory is made, so a directory without it was never used. It
# changes as the group forms, when the directory gets a new id because it forgot what it had promised or
# is older than it was, and before the log gets its first entry of a kind above NOOP (version 2) or
# loses its first entries (version 3): the same record of a directory that may hold such entries, and a
# file `start`. Version 4 lasts while the directory is made the only voter of a new cluster
# (member_directory.py). Version 5 is 3, of a log that may also hold entries of the kinds
# of level 6, and version 6 is 5, of one that may also say who the users are. A release that does not
# know them refuses it by the number, and so takes nothing of it for damage.

MEMBER_NAME = "member"
MEMBER_VERSION = 6
"""The newest that this software knows."""
VERSION_WITH_CONTROL_ENTRIES, VERSION_WITH_START, VERSION_WITH_RECOVERY = 2, 3, 4
VERSION_WITH_KINDS_OF_LEVEL_6, VERSION_WITH_USERS = 5, 6


class Recovery(msgspec.Struct, frozen=True):
    """The two entries appended after `end_index` to the log of a directory that becomes the only voter
    of a new cluster: a no-op and the membership."""

    end_index: int
    end_term: int
    end_chain: int
    term: int
    """Of the two entries, and of the hard state."""
    membership: bytes
    """The body of the second one."""
    version: int = 1
    """Of the record before: a release that does not know the kinds that the log may hold is refused by
    it, too. Earlier releases do not say it."""


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One data directory. Sizes in bytes."""

    group: str
    member_id: str
    directory_id: str
    segment_bytes: int
    index_segment_bytes: int
    checked: bool = True
    """Entries carry both digests; a 0 where a digest belongs is damage."""
    formation: Formation = Formation()
    version: int = 1
    """2: the log may hold entries of kinds above NOOP; 3: it may also begin after a `start`;
    4: it is being recovered; 5: it may also hold kinds of level 6; 6: and users."""
    recovery: Recovery | None = None
    """To be carried out first by the next start."""
    kind: str = ""
    """The product that the directory is of (directory_kind.py); "": not known."""
    set_back: SetBack | None = None
    """As a leader has reported. If the id is still its own, the next start draws another. Earlier
    releases leave it out when they write the file."""
    users: bool = False
    """The log has or had users: while they are not known, all clients are refused."""
    joins: bool = False
    """It is new in a group that had formed, and does not know yet what had been committed."""


def version_of(level: int, *, has_start: bool) -> int:
    """Of the record of a directory whose log's state has this level."""
    if level >= LEVELS[EntryKind.USERS]:
        return VERSION_WITH_USERS
    if level >= LEVELS[EntryKind.CLOCK]:
        return VERSION_WITH_KINDS_OF_LEVEL_6
    return VERSION_WITH_START if has_start else VERSION_WITH_CONTROL_ENTRIES


class _Stored(msgspec.Struct, omit_defaults=True):
    """The fields of a record and of its formation, in their order; the last ones are not written where
    they say nothing."""

    version: int
    group: str
    member_id: str
    directory_id: str
    segment_bytes: int
    index_segment_bytes: int
    checked: bool
    pending: tuple[Replica, ...]
    founding: tuple[Replica, ...]
    cluster_id: str
    pending_id: str | None = None
    """None: of earlier releases, which do not write it."""
    level: int = 0
    """Of the formation."""
    recovery: Recovery | None = None
    kind: str = ""
    set_back: SetBack | None = None
    users: bool = False
    joins: bool = False


def encode_member(record: MemberRecord) -> bytes:
    *own, formation, version, recovery, kind, set_back, users, joins = msgspec.structs.astuple(record)
    assert (recovery is not None) == (version == VERSION_WITH_RECOVERY), record
    fields = (version, *own, *formation, recovery, kind, set_back, users, joins)
    return _sealed(_Stored(*fields))


def decode_member(data: bytes) -> MemberRecord:
    """Raises ValueError with the reason."""
    stored = msgspec.json.decode(_unsealed(data), type=_Stored)
    if not 1 <= stored.version <= MEMBER_VERSION:
        raise ValueError(f"its version is {stored.version}, this software knows 1 to {MEMBER_VERSION}")
    if (stored.recovery is not None) != (stored.version == VERSION_WITH_RECOVERY):
        raise ValueError(f"its version is {stored.version}, but fields are missing")
    stored.pending_id = stored.pending_id or ""
    fields = {name: getattr(stored, name) for name in stored.__struct_fields__}
    formation = Formation(*(fields.pop(name) for name in Formation._fields))
    return MemberRecord(**fields, formation=formation)


def load_member(disk: Disk, directory: str) -> MemberRecord | None:
    """None if there is no such file. Raises DirectoryDamaged if it cannot be used."""
    advice = (
        "Put back a copy of this file, or move the whole directory away: the member then starts as a new"
        " one and is fed the log by the others"
    )
    return _load(disk, f"{directory}/{MEMBER_NAME}", decode_member, advice)


def save_member(disk: Disk, directory: str, record: MemberRecord) -> None:
    """On disk when this returns. Raises StoreFailure; the old content is whole then."""
    _save(disk, f"{directory}/{MEMBER_NAME}", encode_member(record))


# ---------------------------------------------------------------- The file `admin-bootstrap`
# Who is to become an administrator, left in the directory of a stopped member: two lines as of `member`,
# the first a JSON array of a UserOrder, whose bytes are base64.

FIRST_ADMIN_NAME = "admin-bootstrap"


def save_first_admin(disk: Disk, directory: str, order: UserOrder) -> None:
    """On disk when this returns. Raises OSError."""
    replace_file(disk, f"{directory}/{FIRST_ADMIN_NAME}", _sealed(order), synced=True)


def load_first_admin(disk: Disk, directory: str) -> UserOrder | None:
    """None if there is no such file. Raises DirectoryDamaged."""
    return _load(
        disk,
        f"{directory}/{FIRST_ADMIN_NAME}",
        lambda data: msgspec.json.decode(_unsealed(data), type=UserOrder),
        "Stop the member and write it again (quorumlog init-admin)",
    )


def delete_first_admin(disk: Disk, directory: str) -> None:
    """Raises StoreFailure."""
    path = f"{directory}/{FIRST_ADMIN_NAME}"
    with disk_work(path, "deleted"):
        if disk.exists(path):
            disk.unlink(path)
            disk.sync_directory(directory)


# ---------------------------------------------------------------- HardStateFile
# Term and vote, which must survive a crash for elections to be safe.
#
# `hardstate` is a slot file (slot_file.py) with this payload, big-endian:
#
#     offset  bytes  field
#          0      8  term
#          8      1  1 if a vote was given in this term, else 0
#          9      1  length m of the member id
#         10      1  length d of the directory id
#         11      m  member id voted for, UTF-8
#       11+m      d  directory id voted for, UTF-8
#
# Every change is in both slots, synced, before the reply that depends on it leaves: any one good slot
# is enough.
#
# `currterm` is the same of a Java member, whose directory is only read (docs/formats.md, currterm).

HARD_STATE_NAME = "hardstate"
CURRTERM_NAME = "currterm"
HARD_STATE_MAGIC = b"qlhard 1"
UNKNOWN_DIRECTORY_ID = "?"

_HEAD = struct.Struct(">qBBB")


def encode_hard_state(state: HardState) -> bytes:
    """Raises ValueError if the ids voted for do not fit into a slot."""
    vote = state.voted_for
    if vote is None:
        return _HEAD.pack(state.term, 0, 0, 0)
    member_id, directory_id = vote.member_id.encode(), vote.directory_id.encode()
    if max(len(member_id), len(directory_id)) > 255 or (
        _HEAD.size + len(member_id) + len(directory_id) > PAYLOAD_BYTES
    ):
        raise ValueError(f"a vote for {vote} does not fit into {PAYLOAD_BYTES} bytes")
    return _HEAD.pack(state.term, 1, len(member_id), len(directory_id)) + member_id + directory_id


def decode_hard_state(payload: bytes) -> HardState:
    term, has_vote, member_bytes, directory_bytes = _HEAD.unpack_from(payload)
    if not has_vote:
        return HardState(term, None)
    middle = _HEAD.size + member_bytes
    member_id = payload[_HEAD.size : middle].decode()
    return HardState(term, Replica(member_id, payload[middle : middle + directory_bytes].decode()))


def read_currterm(disk: Disk, directory: str) -> HardState | None:
    """The contents of `currterm`, or None if it is missing, unreadable or not whole."""
    data, _ = read_readable(disk, f"{directory}/{CURRTERM_NAME}")
    if data is None:
        return None
    values = parse_properties(data.decode(errors="replace"))
    term = values.get("currTerm", "")
    if not term.isascii() or not term.isdigit():
        return None
    voted_for = values.get("voteLeader", "")
    return HardState(int(term), Replica(voted_for, UNKNOWN_DIRECTORY_ID) if voted_for else None)


def read_hard_state(disk: Disk, directory: str) -> HardState | None:
    """The hard state that a member would start with; for a Java directory its `currterm`. None if a
    `hardstate` has no good slot, or if there is neither file."""
    path = f"{directory}/{HARD_STATE_NAME}"
    if not disk.exists(path):
        return read_currterm(disk, directory)
    payload = read_payload(disk, path, HARD_STATE_MAGIC)
    return None if payload is None else decode_hard_state(payload)


class HardStateFile:
    def __init__(self, slots: SlotFile) -> None:
        self._slots = slots

    @classmethod
    def create(cls, disk: Disk, directory: str, state: HardState) -> Self:
        """New files that hold `state`, synced; the caller syncs the directory."""
        path = f"{directory}/{HARD_STATE_NAME}"
        return cls(SlotFile.create(disk, path, HARD_STATE_MAGIC, encode_hard_state(state)))

    @classmethod
    def open(cls, disk: Disk, directory: str) -> Self:
        """Raises FileNotFoundError; a file without a good slot opens, and `load` says None."""
        path = f"{directory}/{HARD_STATE_NAME}"
        return cls(SlotFile.open(disk, path, HARD_STATE_MAGIC))

    def load(self) -> HardState | None:
        """None if no slot is good."""
        payload = self._slots.payload
        return None if payload is None else decode_hard_state(payload)

    def save(self, state: HardState) -> None:
        """On disk, in both slots, when this returns. Raises StoreFailure."""
        before = self.load()
        if before is not None:
            assert state.term >= before.term, (state, before)
            if state.term == before.term and before.voted_for is not None:
                assert state.voted_for == before.voted_for, (state, before)
        self._slots.write_both_synced(encode_hard_state(state))

    def close(self) -> None:
        self._slots.close()


# ---------------------------------------------------------------- The file `checkpoint`
# How far the log was known to be committed (docs/formats.md, checkpoint).
#
#     endIndex=1999
#     committedIndex=1999
#     committedTerm=3
#     committedChain=2882400001
#
# The first two keys are DLedger's, and all that a Java member writes. A member believes its own
# checkpoint only if the log holds exactly the entry that the last three lines name; after a loss of
# data another entry may stand at that index, and calling that one committed would be a lie.

CHECKPOINT_NAME = "checkpoint"


class Checkpoint(NamedTuple):
    """Of a Java member: term -1 and chain 0."""

    end_index: int
    committed_index: int
    committed_term: int
    committed_chain: int


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    keys = ("endIndex", "committedIndex", "committedTerm", "committedChain")
    return "".join(f"{key}={value}\n" for key, value in zip(keys, checkpoint, strict=True)).encode()


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    """None if it does not say which index is committed."""
    values = parse_properties(data.decode(errors="replace"))
    try:
        return Checkpoint(
            int(values.get("endIndex", -1)),
            int(values["committedIndex"]),
            int(values.get("committedTerm", -1)),
            int(values.get("committedChain", 0)),
        )
    except (KeyError, ValueError):
        return None


def load_checkpoint(disk: Disk, directory: str) -> Checkpoint | None:
    """None if it says nothing usable: nothing depends on having one."""
    data, _ = read_readable(disk, f"{directory}/{CHECKPOINT_NAME}")
    return None if data is None else decode_checkpoint(data)


def save_checkpoint(disk: Disk, directory: str, checkpoint: Checkpoint) -> None:
    """Not synced: a start proves it against the log. Raises OSError."""
    path = f"{directory}/{CHECKPOINT_NAME}"
    replace_file(disk, path, encode_checkpoint(checkpoint), synced=False)


# ---------------------------------------------------------------- The file `start`
# Where the log begins that no longer has its first entries. Absent: at index 0.
#
#     payload of a slot (slot_file.py, here of 128 KiB, or so many times that as the record needs)
#     offset  bytes  field
#          0      4  size    of what follows, big-endian
#          4   size  MessagePack: [[index, term, chain, position], record, replaces, owed_index]
#
# It is on disk, in both slots, before the first segment below it goes; what a crash leaves there, the
# next start of the process removes.

START_NAME = "start"
START_MAGIC = b"qlstrt 1"
START_SECTOR_BYTES = 128 << 10
"""Reserved when the file is made, so that a full disk can be made emptier."""
_MOST_TIMES = 256
MOST_START_BYTES = _MOST_TIMES * START_SECTOR_BYTES
"""A start that is longer is none: 32 MiB, which a member that is given one has in memory. With
100,000 sessions that all have full receipts it is about 10 MB (log_state.py)."""

_SIZE = struct.Struct(">I")


def encode_start(start: LogStart) -> bytes:
    data = msgspec.msgpack.encode(start)
    return _SIZE.pack(len(data)) + data


def decode_start(payload: bytes) -> LogStart:
    """Raises ValueError with the reason."""
    (size,) = _SIZE.unpack_from(payload)
    start = msgspec.msgpack.decode(payload[_SIZE.size : _SIZE.size + size], type=LogStart)
    point = start.point
    # An installed log may begin at index 0, and one that took over what was there before at a position.
    is_origin = point.index == LOG_ORIGIN.index and point.position >= 0
    if not is_origin and min(point.index, point.term, point.chain, point.position) < 0:
        raise ValueError(f"no entry can be {point}")
    return start


def sector_bytes_for(payload: bytes) -> int:
    """The length of a slot that it fits into. Raises DiskFull."""
    times = 1
    while payload_bytes_of(START_SECTOR_BYTES * times) < len(payload):
        times *= 2
    if times > _MOST_TIMES:
        raise DiskFull(
            f"a start is too long{now(f'{len(payload)} bytes')}; end readers or sessions of the log"
        )
    return START_SECTOR_BYTES * times


def sector_bytes_of(disk: Disk, path: str) -> int:
    """The length of the slots of a file, from its size. Raises OSError."""
    times, rest = divmod(disk.size_of(path), 2 * START_SECTOR_BYTES)
    is_made_so = not rest and 0 < times <= _MOST_TIMES and not times & (times - 1)
    return START_SECTOR_BYTES * (times if is_made_so else 1)


def good_start_slots(disk: Disk, directory: str) -> int:
    """How many of the two are good. Raises OSError."""
    path = f"{directory}/{START_NAME}"
    with closing(disk.open(path, writable=False)) as file:
        return len(read_slots(file, START_MAGIC, sector_bytes_of(disk, path)))


def unreadable_start_slots(disk: Disk, directory: str) -> list[tuple[int, str]]:
    """(position, problem) of those that the disk cannot read. Raises OSError."""
    path = f"{directory}/{START_NAME}"
    return unreadable_slots(disk, path, sector_bytes_of(disk, path)) if disk.exists(path) else []


WITHOUT_START = (
    "Put back a copy of this file, or move the whole directory away: the member then starts as a new one"
    " and is fed by the others; the only one of a group begins anew from a backup (quorumlog restore)"
)


def unusable_start(path: str, problem: str) -> DirectoryDamaged:
    return _unusable(path, problem, WITHOUT_START)


def load_start(disk: Disk, directory: str) -> LogStart | None:
    """None if there is no such file. Raises DirectoryDamaged if neither slot is good, as the log's begin
    is recorded nowhere else; StoreFailure."""
    path = f"{directory}/{START_NAME}"
    try:
        payload = read_payload(disk, path, START_MAGIC, sector_bytes_of(disk, path))
        if payload is None:
            raise ValueError("neither slot is good")
        return decode_start(payload)
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_no_damage(error):
            raise StoreFailure(refusal(path, "opened", error)) from error
        raise unusable_start(path, reason_of(error)) from error
    except ValueError as error:
        raise unusable_start(path, str(error)) from error


def save_start(disk: Disk, directory: str, start: LogStart) -> None:
    """On disk, in both slots and under its name, when this returns. Any thread, one at a time.

    Raises DiskFull: the old start is in force, on disk as well. Raises StoreFailure: either may be in
    force, and a member that continued could acknowledge entries that the next start deletes.
    """
    path = f"{directory}/{START_NAME}"
    payload = encode_start(start)
    sector_bytes = sector_bytes_for(payload)
    with disk_work(path, "written"):
        held_bytes = sector_bytes_of(disk, path) if disk.exists(path) else 0
        if sector_bytes > held_bytes:
            _replace(disk, path, payload, sector_bytes)
        # The name may be in the cache only: a start that was killed before it had synced it.
        with disk_work(directory, "synced"):
            disk.sync_directory(directory)
        if sector_bytes <= held_bytes:
            _overwrite(disk, path, payload, held_bytes)


def _overwrite(disk: Disk, path: str, payload: bytes, sector_bytes: int) -> None:
    with closing(SlotFile.open(disk, path, START_MAGIC, sector_bytes)) as slots:
        old = slots.payload
        try:
            slots.write_both_synced(payload)
        except StoreFailure as failure:
            if old is None or not was_lack_of_space(failure):
                raise
            # A slot that could not be synced may count all the same: taken back, or the member stops.
            slots.write_both_synced(old)
            raise DiskFull(f"no space to drop the first entries: {failure}") from failure


def _replace(disk: Disk, path: str, payload: bytes, sector_bytes: int) -> None:
    """Where there is no file yet, or one with shorter slots."""
    temporary = f"{path}.tmp"
    try:
        SlotFile.create(disk, temporary, START_MAGIC, payload, sector_bytes).close()
        disk.rename(temporary, path)
    except (StoreFailure, OSError) as failure:
        with suppress(OSError):
            disk.unlink(temporary)
        if was_lack_of_space(failure):
            raise DiskFull(f"no space to drop the first entries: {failure}") from failure
        raise


# ---------------------------------------------------------------- The file `backup`
# What makes a directory a backup, and up to where it is one. Two lines of text, the second with the
# CRC-32 of the first:
#
#     {"version":1,"group":"default","cluster_id":"5f...","cut":[1999,3,2882400001,503104], ...}
#     crc32=0c4a1f2e
#
# It is the first file of a backup and is replaced as a whole once a cut is complete and verified.
# Entries after the cut are those of a backup that was interrupted; the next one goes on after them.
# No member starts on a directory that has this file.

BACKUP_NAME = "backup"
BACKUP_VERSION = 1


class BackupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The fields are the keys of the file, in this order."""

    version: int = BACKUP_VERSION
    group: str
    cluster_id: str
    cut: LogPoint | None = None
    """The last entry of the backup; None until the first one is complete."""
    record: bytes = b""
    """The state of the log at the cut; empty if unknown to this release."""
    time_ms: int | None = None
    """The last time mark up to the cut; None if the log has none."""
    taken_ms: int = 0
    """When the cut was complete, by the clock of the machine that took it."""
    release: str = ""
    """That took it."""


def encode_backup(record: BackupRecord) -> bytes:
    return _sealed(record)


def decode_backup(data: bytes) -> BackupRecord:
    """Raises ValueError with the reason."""
    record = msgspec.json.decode(_unsealed(data), type=BackupRecord)
    if record.version != BACKUP_VERSION:
        raise ValueError(f"its version is {record.version}, this software knows {BACKUP_VERSION}")
    return record


def load_backup(disk: Disk, directory: str) -> BackupRecord | None:
    """None if there is no such file. Raises DirectoryDamaged if it cannot be used."""
    advice = "Put back a copy of this file, or take a backup into another directory"
    return _load(disk, f"{directory}/{BACKUP_NAME}", decode_backup, advice)


def save_backup(disk: Disk, directory: str, record: BackupRecord) -> None:
    """On disk when this returns. Raises StoreFailure; the old content is whole then."""
    _save(disk, f"{directory}/{BACKUP_NAME}", encode_backup(record))


# ---------------------------------------------------------------- DamagedRanges
# Which entries at or below the durable point this member's disk no longer holds as written.
#
# Such a range is neither cut nor served. The member keeps its log end and what is known of the range
# (the points at both ends, the terms between), until another member's copy has taken its place
# (rewriting.py).
#
#   DIR/damaged      the ranges, two lines of text; absent while there is none
#                      [[[11,1,91823,2976],[12,1,77112,3224],[[12,1]],"data/0...","chain_crc ..."], ...]
#                      crc32=0c4a1f2e
#
# The file is synced before anything is written over the damage: at the next start it keeps a segment
# that was made again, all zeros, from passing for a healthy one. On a full disk the ranges are kept in
# memory until there is space, and a start in between looks for them again.

DAMAGED_NAME = "damaged"
FORMER_DAMAGED_NAME = "healing"
"""Of the first releases, which nothing reads any more."""


def load_damaged(
    disk: Disk, directory: str, end: LogPoint, start: LogStart | None, begin_path: str
) -> tuple[DamagedRange, ...] | None:
    """The ranges that an earlier start or run found, in order; None if the file cannot be used. Raises
    OSError if that is no damage.

    `end`: the durable point. Ranges above it were cut since, by an unfinished truncation: it lowers the
    durable point first, which is then the new end of a range that it cuts. Ranges below `start` are no
    longer part of the log, whose first segment is `begin_path`.
    """
    if start is not None and start.replaces:
        return ()
    ranges = _read_ranges(disk, f"{directory}/{DAMAGED_NAME}")
    if ranges is None:
        return None
    kept = tuple(
        each if each.last.index <= end.index else each.up_to(end)
        for each in ranges
        if each.first_index <= end.index
    )
    return kept if start is None else _behind(kept, start.point, begin_path)


def _behind(
    ranges: Iterable[DamagedRange], begin: LogPoint, begin_path: str
) -> tuple[DamagedRange, ...]:
    """What is left of them in a log that begins behind `begin`, which is with a segment."""
    return tuple(
        each.behind(begin, begin_path) if each.before.index <= begin.index else each
        for each in ranges
        if each.last.index > begin.index
    )


def _read_ranges(disk: Disk, path: str) -> tuple[DamagedRange, ...] | None:
    data, problem = read_readable(disk, path)
    if data is None:
        return None if problem else ()
    try:
        return msgspec.json.decode(_unsealed(data), type=tuple[DamagedRange, ...])
    except ValueError:
        return None


class DamagedRanges:
    """The ranges in order. Any thread may read; a writer that overwrites a range holds `lock`, maybe for
    a whole sync: `add` does not take it."""

    def __init__(self, disk: Disk, directory: str, ranges: Iterable[DamagedRange]) -> None:
        self.lock = threading.RLock()
        self.ranges = tuple(ranges)
        self.is_saved = False
        """The file names all of `ranges`."""
        self.problem = ""
        """Why it does not, if there was no space for it."""
        self._change = threading.Lock()
        """Held for a change of `ranges` and nothing else."""
        self._disk = disk
        self._directory = directory

    def at(self, index: int) -> DamagedRange | None:
        return next((each for each in self.ranges if each.holds(index)), None)

    def ending_at(self, index: int) -> DamagedRange | None:
        """The range whose last entry this is: its chain is known though its bytes are not."""
        return next((each for each in self.ranges if each.last.index == index), None)

    def run_around(self, damaged: DamagedRange) -> tuple[LogPoint, LogPoint]:
        """The ends of the ranges that touch this one and each other: between them no byte counts."""
        ranges, before, last = self.ranges, damaged.before, damaged.last
        for each in reversed(ranges):
            if each.before.index < before.index <= each.last.index:
                before = each.before
        for each in ranges:
            if each.before.index <= last.index < each.last.index:
                last = each.last
        return before, last

    def stop_before(self, first_index: int, stop_index: int) -> int:
        """Where a read from `first_index` on, which is good itself, has to stop."""
        return min([stop_index, *(r.first_index for r in self.ranges if r.first_index > first_index)])

    def add(self, found: Iterable[DamagedRange]) -> tuple[DamagedRange, ...]:
        """In memory at once; `save` brings it to disk. One that overlaps known ones becomes one with
        them. Returns the ranges that are new or larger."""
        with self._change:
            before = self.ranges
            for new in found:
                apart = [each for each in self.ranges if not each.overlaps(new)]
                for known in self.ranges:
                    if known.overlaps(new):
                        new = known.joined(new)
                self.ranges = tuple(sorted((*apart, new), key=lambda each: each.first_index))
            changed = tuple(each for each in self.ranges if each not in before)
            if changed:
                self.is_saved = False
            return changed

    def replace(self, repaired: DamagedRange, left: Iterable[DamagedRange]) -> None:
        """Of a range only `left` is still damaged; nothing changes if it was joined with another."""
        with self._change:
            if repaired in self.ranges:
                ranges = [each for each in self.ranges if each != repaired]
                self.ranges = tuple(sorted((*ranges, *left), key=lambda each: each.first_index))

    def truncate_to(self, end: LogPoint) -> bool:
        """Forget ranges that a cut removes; True if there were any. `end`: the last entry that stays."""
        with self._change:
            before = self.ranges
            self.ranges = tuple(
                each.up_to(end) if each.holds(end.index) else each
                for each in before
                if each.first_index <= end.index
            )
            return self.ranges != before

    def drop_before(self, begin: LogPoint, begin_path: str) -> None:
        """Forget ranges before the log's begin, after `begin`; a start does so by itself."""
        with self._change:
            ranges = _behind(self.ranges, begin, begin_path)
            if ranges != self.ranges:
                self.ranges, self.is_saved = ranges, False

    def save(self) -> bool:
        """The ranges as they are now, on disk when this returns. False: there is no space for them, and
        the file names none that is no longer damaged. Raises StoreFailure."""
        path = f"{self._directory}/{DAMAGED_NAME}"
        with self.lock:
            with self._change:
                ranges, self.is_saved = self.ranges, True
            with disk_work(path, "written"):
                try:
                    self._write(path, ranges)
                    self.problem = ""
                except OSError as error:
                    if not is_lack_of_space(error):
                        raise
                    self.is_saved = False
                    self.problem = (
                        f"{path} cannot be written ({reason_of(error)}): which entries are damaged is"
                        " known in memory only, and has to be found again by a restart; make space on"
                        " the disk"
                    )
                    # Other entries may take the place of what a cut took out of the list.
                    if not set(_read_ranges(self._disk, path) or ()).issubset(ranges):
                        self._write(path, ())
            return not self.problem

    def _write(self, path: str, ranges: tuple[DamagedRange, ...]) -> None:
        if ranges:
            replace_file(self._disk, path, _sealed(ranges), synced=True)
        elif self._disk.exists(path):
            self._disk.unlink(path)
            self._disk.sync_directory(self._directory)


# ---------------------------------------------------------------- The files `states/POSITION`
# The state of the log before each segment, so that a start need not read the log to know it.
#
#     b"QLBS", CRC-32 of what follows (4 bytes, big-endian)
#     MessagePack: [[index, term, chain, position], record]
#
# `position` is that of the segment, and the file's name. What is there is a help: it counts only where
# this log holds the very entry that it names, and may be missing.

STATES_NAME = "states"
STATE_MAGIC = b"QLBS"
_NAME_DIGITS = 20
_CRC = struct.Struct(">I")
_HEAD_BYTES = len(STATE_MAGIC) + _CRC.size


def encode_state(state: LogStart) -> bytes:
    data = msgspec.msgpack.encode((state.point, state.record))
    return STATE_MAGIC + _CRC.pack(crc32(data)) + data


def decode_state(data: bytes) -> LogStart | None:
    """None if it is incomplete or damaged."""
    body = data[_HEAD_BYTES:]
    if data[:_HEAD_BYTES] != STATE_MAGIC + _CRC.pack(crc32(body)):
        return None
    try:
        return msgspec.msgpack.decode(body, type=LogStart)
    except msgspec.MsgspecError:
        return None


def state_name(position: int) -> str:
    return f"{position:0{_NAME_DIGITS}d}"


def _path(directory: str, position: int) -> str:
    return f"{directory}/{STATES_NAME}/{state_name(position)}"


def _temporary(directory: str, position: int) -> str:
    return f"{_path(directory, position)}.tmp"


def saved_positions(disk: Disk, directory: str) -> list[int]:
    """In order. Raises OSError."""
    names = disk.list(f"{directory}/{STATES_NAME}")
    return sorted(int(n) for n in names if len(n) == _NAME_DIGITS and n.isascii() and n.isdigit())


def stage_state(disk: Disk, directory: str, state: LogStart) -> None:
    """On disk when this returns, under a temporary name. Raises OSError."""
    folder = f"{directory}/{STATES_NAME}"
    if not disk.exists(folder):
        disk.make_directory(folder)
        disk.sync_directory(directory)
    _write_new(disk, _temporary(directory, state.point.position), encode_state(state), synced=True)


def place_state(disk: Disk, directory: str, position: int) -> None:
    """The staged state counts from now on; the name is not synced. Raises OSError."""
    disk.rename(_temporary(directory, position), _path(directory, position))


def forget_staged(disk: Disk, directory: str, position: int) -> None:
    with suppress(OSError):
        disk.unlink(_temporary(directory, position))


def save_state(disk: Disk, directory: str, state: LogStart) -> None:
    """On disk when this returns. Raises OSError."""
    stage_state(disk, directory, state)
    place_state(disk, directory, state.point.position)
    disk.sync_directory(f"{directory}/{STATES_NAME}")


def load_state(disk: Disk, directory: str, position: int) -> LogStart | None:
    """None if it cannot be used."""
    data, _ = read_readable(disk, _path(directory, position))
    state = None if data is None else decode_state(data)
    return state if state is not None and state.point.position == position else None


def delete_states(disk: Disk, directory: str, positions: list[int]) -> None:
    """Their names are not synced. Raises OSError."""
    for position in positions:
        with suppress(IsADirectoryError):  # it is no state, and the next start sets it aside
            disk.unlink(_path(directory, position))
