"""The file `member`: whose directory this is. Two lines of text, the second with the CRC-32 of the
first:

    {"version":1,"group":"default","member_id":"n0","directory_id":"5f...", ...}
    crc32=0c4a1f2e

The file is written last when a directory is made, so a directory without it was never used. It changes
as the group forms, when the directory gets a new id because it forgot what it had promised or is older
than it was, and before the log gets its first entry of a kind above NOOP (version 2) or loses its first
entries (version 3): the same record of a directory that may hold such entries, and a file `start`.
Version 4 lasts while the
directory is made the only voter of a new cluster (directory/recovered_directory.py). Version 5 is 3, of
a log that may also hold entries of the kinds of level 6. A release that does not know them refuses it by
the number, and so takes nothing of it for damage.
"""

from __future__ import annotations

import msgspec
from isal.isal_zlib import crc32

from quorumlog.entry import EntryKind, Formation, Replica, SetBack
from quorumlog.errors import DirectoryDamaged, StoreFailure
from quorumlog.log_state.control_entries import LEVELS
from quorumlog.store.disk import Disk, is_no_damage, reason_of, refusal
from quorumlog.store.files.replaced_file import read_file, replace_file

MEMBER_NAME = "member"
MEMBER_VERSION = 5
"""The newest that this software knows."""
VERSION_WITH_CONTROL_ENTRIES, VERSION_WITH_START, VERSION_WITH_RECOVERY = 2, 3, 4
VERSION_WITH_KINDS_OF_LEVEL_6 = 5


class Recovery(msgspec.Struct, frozen=True):
    """What the log of a directory gets that becomes the only voter of a new cluster: two entries behind
    `end_index`, a no-op and who votes."""

    end_index: int
    end_term: int
    end_chain: int
    term: int
    """Of the two entries, and of the hard state."""
    membership: bytes
    """The body of the second one."""
    version: int = 1
    """Of the record before: whoever does not know the kinds that the log may hold is refused behind it,
    too. Earlier releases do not say it."""


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
    """2: the log may hold entries of kinds above NOOP; 3: it may also begin behind a `start`;
    4: it is being recovered; 5: it may also hold kinds of level 6."""
    recovery: Recovery | None = None
    """What the next start has to carry out before anything else."""
    kind: str = ""
    """The product that the directory is of (directory_kind.py); "": not known."""
    set_back: SetBack | None = None
    """What a leader has told. Is the id still its own, the next start draws another. Earlier releases
    leave it out when they write the file."""


def version_of(level: int, *, has_start: bool) -> int:
    """Of the record of a directory whose log's state has this level."""
    if level >= LEVELS[EntryKind.CLOCK]:
        return VERSION_WITH_KINDS_OF_LEVEL_6
    return VERSION_WITH_START if has_start else VERSION_WITH_CONTROL_ENTRIES


class _Stored(msgspec.Struct):
    """The fields of a record and of its formation, in their order."""

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
    pending_id: str = ""
    """Earlier releases do not write it."""
    level: int | msgspec.UnsetType = msgspec.UNSET
    """Of the formation; not written where it is 0."""
    recovery: Recovery | msgspec.UnsetType = msgspec.UNSET
    kind: str | msgspec.UnsetType = msgspec.UNSET
    set_back: SetBack | msgspec.UnsetType = msgspec.UNSET


def encode_member(record: MemberRecord) -> bytes:
    *own, formation, version, recovery, kind, set_back = msgspec.structs.astuple(record)
    assert (recovery is not None) == (version == VERSION_WITH_RECOVERY), record
    stored = _Stored(version, *own, *formation)
    stored.level = formation.level or msgspec.UNSET
    if recovery is not None:
        stored.recovery = recovery
    if kind:
        stored.kind = kind
    if set_back is not None:
        stored.set_back = set_back
    line = msgspec.json.encode(stored)
    return line + f"\ncrc32={crc32(line):08x}\n".encode()


def decode_member(data: bytes) -> MemberRecord:
    """Raises ValueError saying what is wrong."""
    line, _, rest = data.partition(b"\n")
    if rest != f"crc32={crc32(line):08x}\n".encode():
        raise ValueError("its CRC does not match")
    stored = msgspec.json.decode(line, type=_Stored)
    if not 1 <= stored.version <= MEMBER_VERSION:
        raise ValueError(f"its version is {stored.version}, this software knows 1 to {MEMBER_VERSION}")
    fields = msgspec.structs.asdict(stored)
    fields["level"] = fields["level"] or 0
    formation = Formation(*(fields.pop(name) for name in Formation._fields))
    recovery = fields.pop("recovery")
    kind = fields.pop("kind") or ""
    set_back = fields.pop("set_back") or None
    if (recovery is not msgspec.UNSET) != (stored.version == VERSION_WITH_RECOVERY):
        raise ValueError(f"its version is {stored.version}, and what belongs to it is not there")
    return MemberRecord(
        **fields, formation=formation, recovery=recovery or None, kind=kind, set_back=set_back
    )


def load_member(disk: Disk, directory: str) -> MemberRecord | None:
    """None if there is no such file. Raises DirectoryDamaged if it cannot be used."""
    path = f"{directory}/{MEMBER_NAME}"
    try:
        data = read_file(disk, path)
        return None if data is None else decode_member(data)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_no_damage(error):
            raise
        raise DirectoryDamaged(
            f"{path} cannot be used: {reason_of(error)} (position 0). Put back a copy of this file, or"
            " move the whole directory away: the member then starts as a new one and is fed the log by"
            " the others",
            path=path,
            position=0,
        ) from error


def save_member(disk: Disk, directory: str, record: MemberRecord) -> None:
    """On disk when this returns. Raises StoreFailure; the old content is whole then."""
    path = f"{directory}/{MEMBER_NAME}"
    try:
        replace_file(disk, path, encode_member(record), synced=True)
    except OSError as error:
        raise StoreFailure(refusal(path, "written", error)) from error
