"""What `quorumlog inspect` shows of a directory; reads everything, changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from quorumlog.entry import Formation, Replica
from quorumlog.errors import ConfigError
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.files.backup_file import BACKUP_NAME, BackupRecord, load_backup
from quorumlog.store.files.start_file import START_NAME
from quorumlog.store.ledger_store import DamagedRange, SpaceTaken
from quorumlog.store.log.segment_list import DATA_NAME, INDEX_NAME
from quorumlog.store.log.segment_view import list_segment_files
from quorumlog.store.offline.directory_reader import DirectoryReader
from quorumlog.store.offline.log_begin import StartRow, StateRow, start_row, state_rows
from quorumlog.store.offline.log_extent import Damage
from quorumlog.store.offline.verification import Progress, check_entries, damaged_to_json

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SegmentRow:
    file: str
    """Relative to the directory."""
    first_index: int
    last_index: int
    first_term: int
    last_term: int
    """-1 if the last entry cannot be read."""
    bytes_used: int
    """By entries, without the blank record behind them."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """`to_json` gives the object of `quorumlog inspect --json`. Indices are -1 where there is none."""

    directory: str
    is_java: bool
    in_use: bool
    group: str
    member_id: str
    directory_id: str
    formation: Formation
    ledger_begin_index: int
    ledger_end_index: int
    ledger_end_term: int
    current_term: int
    """-1 if the hard state is unreadable."""
    voted_for: Replica | None
    committed_index: int
    """As proven by the checkpoint."""
    durable_index: int
    segment_bytes: int
    index_segment_bytes: int
    space: SpaceTaken
    segments: tuple[SegmentRow, ...]
    start: StartRow | None
    """Where the log begins once its first entries are gone."""
    states: tuple[StateRow, ...]
    """In front of segments."""
    damage: tuple[Damage, ...]
    damaged: tuple[DamagedRange, ...]
    """What the member has noted to be lost, and fetches from others once it runs."""
    tail: str
    backup: BackupRecord | None = None
    """The directory is no member's, but a backup."""

    def to_json(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "format": "dledger" if self.is_java else "quorumlog",
            "in_use": self.in_use,
            "group": self.group,
            "member_id": self.member_id,
            "directory_id": self.directory_id,
            "formation": {
                "cluster_id": self.formation.cluster_id,
                "founding": [voter._asdict() for voter in self.formation.founding],
                "pending": [voter._asdict() for voter in self.formation.pending],
            },
            "ledger_begin_index": self.ledger_begin_index,
            "ledger_end_index": self.ledger_end_index,
            "ledger_end_term": self.ledger_end_term,
            "current_term": self.current_term,
            "voted_for": self.voted_for.member_id if self.voted_for else None,
            "committed_index": self.committed_index,
            "durable_index": self.durable_index,
            "segment_bytes": self.segment_bytes,
            "index_segment_bytes": self.index_segment_bytes,
            "log_disk_bytes": self.space.disk_bytes,
            "log_apparent_bytes": self.space.apparent_bytes,
            "segments": [asdict(segment) for segment in self.segments],
            "start": self.start and self.start._asdict(),
            "states": [state._asdict() for state in self.states],
            "damage": [
                {
                    "file": damage.path,
                    "position": damage.position,
                    "index": damage.index,
                    "stop_index": damage.stop_index,
                    "problem": damage.problem,
                }
                for damage in self.damage
            ],
            "damaged": [damaged_to_json(each) for each in self.damaged],
            "tail": self.tail,
            "backup": None if self.backup is None else _backup_to_json(self.backup),
        }


def inspect_directory(
    disk: Disk, path: str, *, verify_entries: bool = True, progress: Progress | None = None
) -> Inspection:
    """`verify_entries` False: only damage that shows while opening is listed. Raises ConfigError if
    `path` holds no log, StoreFailure if its file `member` is damaged."""
    with DirectoryReader(disk, path) as reader:
        damage = check_entries(reader, progress).damage if verify_entries else reader.damage
        state = reader.hard_state
        return Inspection(
            directory=path,
            is_java=reader.is_java,
            in_use=reader.in_use,
            group=reader.group,
            member_id=reader.member_id,
            directory_id=reader.directory_id,
            formation=reader.formation,
            ledger_begin_index=reader.ledger_begin_index,
            ledger_end_index=reader.ledger_end_index,
            ledger_end_term=reader.ledger_end_term,
            current_term=state.term if state else -1,
            voted_for=state.voted_for if state else None,
            committed_index=reader.committed_index,
            durable_index=reader.durable_index,
            segment_bytes=reader.segment_bytes,
            index_segment_bytes=reader.index_segment_bytes,
            space=_space_taken(disk, path),
            segments=tuple(_segment_row(reader, number) for number in range(len(reader.segments))),
            start=_looked_at(f"{path}/{START_NAME}", lambda: start_row(disk, path, reader.start)),
            states=() if reader.is_java else state_rows(disk, path, reader.header_at),
            damage=tuple(damage),
            damaged=reader.damaged,
            tail=reader.tail,
            backup=_looked_at(f"{path}/{BACKUP_NAME}", lambda: load_backup(disk, path)),
        )


def _backup_to_json(record: BackupRecord) -> dict[str, Any]:
    cut = record.cut
    return {
        "cluster_id": record.cluster_id,
        "last_index": -1 if cut is None else cut.index,
        "time_ms": record.time_ms,
        "taken_ms": record.taken_ms,
        "release": record.release,
    }


def _looked_at(path: str, look: Callable[[], T]) -> T:
    try:
        return look()
    except OSError as error:
        raise ConfigError(refusal(path, "read", error)) from error


def _space_taken(disk: Disk, path: str) -> SpaceTaken:
    disk_bytes = apparent_bytes = 0
    for folder in (DATA_NAME, INDEX_NAME):
        for segment in list_segment_files(disk, path, folder):
            try:
                file = disk.open(f"{path}/{segment.name}", writable=False)
            except (FileNotFoundError, PermissionError):
                continue  # a running member has just cut it off, or what is wrong is said elsewhere
            except OSError as error:
                raise ConfigError(refusal(f"{path}/{segment.name}", "measured", error)) from error
            with closing(file):
                disk_bytes += file.space_bytes()
                apparent_bytes += segment.size_bytes
    return SpaceTaken(disk_bytes, apparent_bytes)


def _segment_row(reader: DirectoryReader, number: int) -> SegmentRow:
    segment = reader.segments[number]
    last = reader.last_header_of(number)
    last_term, bytes_used = -1, segment.size_bytes
    if last is not None:
        last_term, bytes_used = last.term, last.pos + last.size - segment.position
    return SegmentRow(
        file=segment.name,
        first_index=segment.first_index,
        last_index=reader.last_index_of(number),
        first_term=segment.first_term,
        last_term=last_term,
        bytes_used=bytes_used,
    )
