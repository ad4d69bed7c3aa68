"""The file `backup`: what makes a directory a backup, and up to where it is one. Two lines of text, the
second with the CRC-32 of the first:

    {"version":1,"group":"default","cluster_id":"5f...","cut":[1999,3,2882400001,503104], ...}
    crc32=0c4a1f2e

It is the first file of a backup and is replaced as a whole once a cut is complete and verified. Entries
behind the cut are those of a backup that was interrupted; the next one goes on behind them. No member
starts on a directory that has this file.
"""

from __future__ import annotations

import msgspec
from isal.isal_zlib import crc32

from quorumlog.errors import DirectoryDamaged, StoreFailure
from quorumlog.store.disk import Disk, is_no_damage, reason_of, refusal
from quorumlog.store.files.replaced_file import read_file, replace_file
from quorumlog.store.ledger_store import LogPoint

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
    """The state of the log at the cut; empty if this release cannot tell it."""
    time_ms: int | None = None
    """The last time mark up to the cut; None if the log has none."""
    taken_ms: int = 0
    """When the cut was complete, by the clock of the machine that took it."""
    release: str = ""
    """That took it."""


def encode_backup(record: BackupRecord) -> bytes:
    line = msgspec.json.encode(record)
    return line + f"\ncrc32={crc32(line):08x}\n".encode()


def decode_backup(data: bytes) -> BackupRecord:
    """Raises ValueError saying what is wrong."""
    line, _, rest = data.partition(b"\n")
    if rest != f"crc32={crc32(line):08x}\n".encode():
        raise ValueError("its CRC does not match")
    record = msgspec.json.decode(line, type=BackupRecord)
    if record.version != BACKUP_VERSION:
        raise ValueError(f"its version is {record.version}, this software knows {BACKUP_VERSION}")
    return record


def load_backup(disk: Disk, directory: str) -> BackupRecord | None:
    """None if there is no such file. Raises DirectoryDamaged if it cannot be used."""
    path = f"{directory}/{BACKUP_NAME}"
    try:
        data = read_file(disk, path)
        return None if data is None else decode_backup(data)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_no_damage(error):
            raise
        raise DirectoryDamaged(
            f"{path} cannot be used: {reason_of(error)} (position 0). Put back a copy of this file, or"
            " take a backup into another directory",
            path=path,
            position=0,
        ) from error


def save_backup(disk: Disk, directory: str, record: BackupRecord) -> None:
    """On disk when this returns. Raises StoreFailure; the old content is whole then."""
    path = f"{directory}/{BACKUP_NAME}"
    try:
        replace_file(disk, path, encode_backup(record), synced=True)
    except OSError as error:
        raise StoreFailure(refusal(path, "written", error)) from error
