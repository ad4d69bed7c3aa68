"""A stopped directory looked at in full, and described."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry import Formation, Replica
from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.store.directory_reader import (
    Damage,
    DirectoryReader,
    StartRow,
    StateRow,
    start_row,
    state_rows,
)
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.log_points import DamagedRange, SpaceTaken
from quorumlog.store.segment_view import list_segment_files
from quorumlog.store.segments import (
    BLANK_BYTES,
    BLANK_MAGIC,
    DATA_NAME,
    INDEX_NAME,
    INDEX_UNIT_BYTES,
    blank_record,
    index_units_of,
    segment_name,
)
from quorumlog.store.state_files import BACKUP_NAME, START_NAME, BackupRecord, load_backup

# ----------------------------------------------------------------
# Every entry of a directory checked, and directories compared with each other.
#
# Structure, chain and body of each entry; the blank record that ends each segment; of our own
# directories also the index as far as it is known to be synced. A torn tail is no damage: the next
# start cuts it.

Progress = Callable[[int, int], None]
"""Called with (entries done, entries in all) every few megabytes."""

DAMAGE_LIMIT = 100
"""After so many damaged places a check gives up looking for more."""


@dataclass(slots=True)
class EntryCheck:
    checked: int = 0
    unchecked: int = 0
    """Entries without digests (written by a Java member): only their structure was checked."""
    damage: list[Damage] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verification:
    """`to_json` gives one directory's line of `quorumlog verify --json`."""

    directory: str
    entries: int
    checked: int
    unchecked: int
    chain_crc: int
    """Of the last entry; 0 where entries carry no digests."""
    problem: str
    """The first thing that is wrong; "" if nothing is."""
    ledger_begin_index: int
    ledger_end_index: int
    damage: tuple[Damage, ...] = ()
    damaged: tuple[DamagedRange, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        facts = {key: value for key, value in asdict(self).items() if key != "damage"}
        return facts | {"ok": self.ok, "damaged": [damaged_to_json(each) for each in self.damaged]}


class Comparison(msgspec.Struct, frozen=True):
    directories: tuple[str, ...]
    end_indices: tuple[int, ...]
    """A directory that ends before others is shorter, which is no difference."""
    first_index: int
    stop_index: int
    """The compared range; empty if the logs have no index in common."""
    first_difference: int | None
    committed_index: int
    """The lowest of their committed indices: at or below it a difference is a broken promise, above
    it an uncommitted end that the group would still settle."""

    @property
    def ok(self) -> bool:
        return self.first_difference is None


# ---------------------------------------------------------------- one directory


def verify_directory(disk: Disk, path: str, progress: Progress | None = None) -> Verification:
    """Works on a running member too. Raises ConfigError if `path` holds no log."""
    try:
        reader = DirectoryReader(disk, path)
    except StoreFailure as error:
        return Verification(path, 0, 0, 0, 0, str(error), -1, -1)
    with reader:
        found = check_entries(reader, progress)
        return Verification(
            directory=path,
            entries=reader.entry_count,
            checked=found.checked,
            unchecked=found.unchecked,
            chain_crc=reader.end.chain,
            problem=describe_damage(found.damage)
            or ", ".join(map(describe_damaged, reader.damaged))
            or _backup_problem(disk, reader),
            ledger_begin_index=reader.ledger_begin_index,
            ledger_end_index=reader.ledger_end_index,
            damage=tuple(found.damage),
            damaged=reader.damaged,
        )


def _backup_problem(disk: Disk, reader: DirectoryReader) -> str:
    """Why nothing can be restored from this backup; "" of one that is complete, and of what is none."""
    try:
        record = load_backup(disk, reader.path)
    except StoreFailure as error:
        return str(error)
    except OSError as error:
        raise ConfigError(refusal(f"{reader.path}/{BACKUP_NAME}", "read", error)) from error
    if record is None:
        is_backup = not reader.is_java and not reader.member_id  # no member is without a name
        return f"{BACKUP_NAME}: is missing, which records the end of the backup" if is_backup else ""
    if record.cut is None:
        return "is a backup that was never complete; take it again"
    if reader.ledger_end_index < record.cut.index:
        return f"ends at entry {reader.ledger_end_index}, and the backup goes up to {record.cut.index}"
    header = reader.header_at(record.cut.index)
    if (header.term, header.chain_crc) != (record.cut.term, record.cut.chain):
        return f"entry {record.cut.index} is not the one that {BACKUP_NAME} names"
    return ""


def describe_damage(damage: Sequence[Damage]) -> str:
    if not damage:
        return ""
    first = damage[0]
    more = f"; and {len(damage) - 1} more" if len(damage) > 1 else ""
    return f"{first.path}: {first.problem} ({first.place}){more}"


def describe_damaged(damaged: DamagedRange) -> str:
    terms = ", ".join(f"{term} from {first}" for first, term in damaged.term_runs)
    return (
        f"{damaged}; known: stop index {damaged.stop_index}, term {terms}, chain"
        f" {damaged.before.chain:08x} before and {damaged.last.chain:08x} at the last"
    )


def damaged_to_json(damaged: DamagedRange) -> dict[str, Any]:
    """One element of `damaged` in the objects of `inspect` and `verify`."""
    return {
        "first_index": damaged.first_index,
        "stop_index": damaged.stop_index,
        "terms": [{"first_index": first, "term": term} for first, term in damaged.term_runs],
        "chain_before": damaged.before.chain,
        "chain_at_last": damaged.last.chain,
        "file": damaged.path,
        "position": damaged.before.position,
        "problem": damaged.problem,
    }


def check_entries(reader: DirectoryReader, progress: Progress | None = None) -> EntryCheck:
    """All damage of a directory: that found on opening, and of every entry, blank and index unit."""
    found = EntryCheck()
    if reader.segments:
        _check_all(reader, found, progress)
        _check_blanks(reader, found)
    found.damage += reader.unreadable_units()
    # What both opening and reading found is one damage, and so is what the member has noted itself.
    known = [(each.index, max(each.stop_index, each.index + 1)) for each in reader.damage]
    known += [(each.first_index, each.stop_index) for each in reader.damaged]
    read = [
        each
        for each in found.damage
        if not any(first <= each.index < stop for first, stop in known if first >= 0)
    ]
    found.damage = sorted([*reader.damage, *read], key=lambda damage: damage.index)
    return found


def _check_all(reader: DirectoryReader, found: EntryCheck, progress: Progress | None) -> None:
    begin, stop = reader.ledger_begin_index, reader.ledger_end_index + 1
    gaps = 0
    for piece in reader.pieces(begin, stop):
        if isinstance(piece, Damage):
            found.damage.append(piece)
            gaps += 1
            if gaps == DAMAGE_LIMIT:
                return
            continue
        _count(reader, piece, found)
        _check_index(reader, piece, found)
        if progress is not None:
            progress(piece.last_index + 1 - begin, stop - begin)


def _check_index(reader: DirectoryReader, batch: EntryBatch, found: EntryCheck) -> None:
    """Units below the position up to which they are synced must be those of the entries."""
    if reader.is_java:
        return  # DLedger makes its index again from the data wherever they disagree
    headers = batch.headers()
    units = reader.units.read(batch.first_index, batch.last_index + 1)
    wrong = units != index_units_of(headers, headers["pos"])
    wrong &= headers["pos"] < reader.index_synced_position
    if bool(wrong.any()) and len(found.damage) < DAMAGE_LIMIT:
        at = int(wrong.argmax())
        index = batch.first_index + at
        count = int(np.count_nonzero(wrong))
        more = f"; and {count - 1} of the next {batch.count - at - 1}" if count > 1 else ""
        unit_position = index * INDEX_UNIT_BYTES
        base = unit_position - unit_position % reader.index_segment_bytes
        name = f"{INDEX_NAME}/{segment_name(base)}"
        problem = f"the index unit of entry {index} is not that of the entry{more}"
        found.damage.append(Damage(name, int(headers["pos"][at]), index, problem))


def _count(reader: DirectoryReader, batch: EntryBatch, found: EntryCheck) -> None:
    carried = batch.count
    if not reader.checked:
        headers = batch.headers()
        carried = int(np.count_nonzero((headers["body_crc"] | headers["chain_crc"]) != 0))
    found.checked += carried
    found.unchecked += batch.count - carried


def _check_blanks(reader: DirectoryReader, found: EntryCheck) -> None:
    """Where the log goes on in the next segment, the rest of this one must say so."""
    for number, segment in enumerate(reader.segments[:-1]):
        header = reader.last_header_of(number)
        if header is None:
            continue  # reported already
        position = header.pos + header.size
        rest_bytes = segment.position + segment.size_bytes - position
        written = reader.read_bytes(position, BLANK_BYTES)
        expected = blank_record(rest_bytes)
        if reader.is_java:  # DLedger never looks at the length
            written, expected = written[:4], expected[:4]
        if written != expected:
            problem = f"no blank record (magic {BLANK_MAGIC}) fills the rest of the segment"
            found.damage.append(Damage(segment.name, position, header.index, problem))


# ---------------------------------------------------------------- several directories


def compare_directories(readers: Sequence[DirectoryReader]) -> Comparison:
    """Verify each first: entries that carry digests are compared by their chain, which is valid for
    undamaged bodies only. Raises DirectoryDamaged if an entry that is needed cannot be read."""
    assert readers
    holding = [reader for reader in readers if reader.segments]
    first = max((reader.ledger_begin_index for reader in holding), default=0)
    stop = min(reader.ledger_end_index for reader in readers) + 1
    differences = [
        _first_difference(readers[0], other, first, stop) for other in readers[1:] if first < stop
    ]
    return Comparison(
        directories=tuple(reader.path for reader in readers),
        end_indices=tuple(reader.ledger_end_index for reader in readers),
        first_index=first,
        stop_index=max(stop, first),
        first_difference=min((found for found in differences if found is not None), default=None),
        committed_index=min(reader.committed_index for reader in readers),
    )


def _first_difference(
    left: DirectoryReader, right: DirectoryReader, first_index: int, stop_index: int
) -> int | None:
    if left.checked and right.checked:
        return _first_difference_by_chain(left, right, first_index, stop_index)
    return _first_difference_by_bytes(left, right, first_index, stop_index)


def _first_difference_by_chain(
    left: DirectoryReader, right: DirectoryReader, first_index: int, stop_index: int
) -> int | None:
    """Chains agree exactly up to the first difference, so that it can be bisected."""

    def differ(index: int) -> bool:
        ours, theirs = left.header_at(index), right.header_at(index)
        return (ours.chain_crc, ours.term) != (theirs.chain_crc, theirs.term)

    if not differ(stop_index - 1):
        return None
    return first_index + bisect_left(range(first_index, stop_index - 1), True, key=differ)


def _first_difference_by_bytes(
    left: DirectoryReader, right: DirectoryReader, first_index: int, stop_index: int
) -> int | None:
    for ours in left.batches(first_index, stop_index):
        first = ours.first_index
        offset = 0
        for theirs in right.batches(first, first + ours.count):
            mine = ours.slice(offset, offset + theirs.count)
            if mine.buffer != theirs.buffer:
                found = _first_unequal(mine, theirs)
                if found is not None:
                    return found
            offset += theirs.count
    return None


def _first_unequal(left: EntryBatch, right: EntryBatch) -> int | None:
    """By index, term, kind and body: positions and digests may differ between kinds of members."""
    ours, theirs = left.headers(), right.headers()
    same = (ours["term"] == theirs["term"]) & (ours["magic"] == theirs["magic"])
    same &= ours["size"] == theirs["size"]
    differing = np.flatnonzero(~same)
    candidates = range(int(differing[0]) if len(differing) else left.count)
    for at in candidates:
        if left.body(at) != right.body(at):
            return left.first_index + at
    return left.first_index + int(differing[0]) if len(differing) else None


# ----------------------------------------------------------------
# What `quorumlog inspect` shows of a directory; reads everything, changes nothing.

T = TypeVar("T")


class SegmentRow(msgspec.Struct, frozen=True):
    file: str
    """Relative to the directory."""
    first_index: int
    last_index: int
    first_term: int
    last_term: int
    """-1 if the last entry cannot be read."""
    bytes_used: int
    """By entries, without the blank record after them."""


class Inspection(msgspec.Struct, frozen=True):
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
    """Before segments."""
    damage: tuple[Damage, ...]
    damaged: tuple[DamagedRange, ...]
    """Ranges recorded as damaged, to be fetched from others once it runs."""
    tail: str
    backup: BackupRecord | None = None
    """The directory is no member's, but a backup."""

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = msgspec.to_builtins(self)
        del facts["is_java"], facts["space"]
        return facts | {
            "format": "dledger" if self.is_java else "quorumlog",
            "formation": {
                "cluster_id": self.formation.cluster_id,
                "founding": [voter._asdict() for voter in self.formation.founding],
                "pending": [voter._asdict() for voter in self.formation.pending],
            },
            "voted_for": self.voted_for.member_id if self.voted_for else None,
            "log_disk_bytes": self.space.disk_bytes,
            "log_apparent_bytes": self.space.apparent_bytes,
            "damaged": [damaged_to_json(each) for each in self.damaged],
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
