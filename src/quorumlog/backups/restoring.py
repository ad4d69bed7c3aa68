"""Restoring a backup: the data directories of the members of a new cluster.

    ... entries of the backup, up to the chosen one      byte for byte
    NOOP, MEMBERSHIP of the next term                    alike on each member; between them a USERS that
                                                         leaves users out, where the backup has any

It has a cluster id of its own, so that no member of the old cluster takes it for its own; and the new
members vote by the membership at the end of their log, as by the list that they were founded with. Their
first leader is elected in a term above. A batch of a producer that the chosen end cuts is closed by the
entries of another term.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing

import msgspec

from quorumlog.backups.folding import state_at_end
from quorumlog.batch import EntryBatch
from quorumlog.config import MemberAddress, check_name, parse_members
from quorumlog.entry import EntryKind, Formation, Replica
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.log_state.control_entries import (
    LEVEL,
    MOST_RUNS,
    MembershipEntry,
    encode_body,
)
from quorumlog.log_state.log_state import (
    EMPTY,
    LogState,
    Reset,
    Resets,
    counted_ms,
    decode_state,
    said_ms,
)
from quorumlog.log_state.users import UsersChange
from quorumlog.store.directory_kind import DirectoryKind, kind_of_machines
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.log_points import LOG_ORIGIN, LogPoint, LogStart
from quorumlog.store.made_directories import RestoredDirectory, check_target
from quorumlog.store.member_directory import CopiedLog, draw_directory_id
from quorumlog.store.segment_view import UNIT_CHUNK
from quorumlog.store.state_files import (
    BACKUP_NAME,
    MEMBER_NAME,
    BackupRecord,
    MemberRecord,
    load_backup,
    load_start,
    version_of,
)

Progress = Callable[[int, int], None]
"""Called with (entries done, entries in all)."""


class RestoredMember(msgspec.Struct, frozen=True):
    member_id: str
    address: str
    directory: str
    directory_id: str


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A new cluster, to be started. Its log holds the backup's up to `last_index`."""

    group: str
    cluster_id: str
    members: tuple[RestoredMember, ...]
    first_index: int
    last_index: int
    last_term: int
    last_chain: int
    membership_index: int
    """Of the membership entry, the last of the log."""
    segment_bytes: int
    index_segment_bytes: int
    lost_machines: tuple[str, ...] = ()
    """State machines that began before `first_index`: a backup has no snapshots, and the entries that
    they were made of are gone."""
    left_users_out: bool = False
    """The backup had users, and this cluster has none: nobody may do anything yet."""


def restore(
    backup: str | os.PathLike[str],
    members: str | Sequence[MemberAddress],
    directories: Mapping[str, str | os.PathLike[str]],
    *,
    last_index: int | None = None,
    time_ms: int | None = None,
    with_users: bool = False,
    report: Progress = lambda done, in_all: None,
    disk: Disk | None = None,
    draw_id: Callable[[], str] = draw_directory_id,
) -> Restored:
    """Make the data directory of each of `members` (`n0=host:port,...`) from the backup in the
    directory `backup`. `directories`: by member id; empty or missing ones.

    `last_index`: the last restored entry; `time_ms`: restore entries appended up to this time, in
    milliseconds since 1970. Otherwise the whole backup. `with_users`: restore the backup's users,
    including any that were removed since; otherwise the new cluster refuses clients until it has an
    administrator.

    Raises ConfigError, DirectoryDamaged with file and position if the backup is damaged, StoreFailure,
    DiskFull. After an error no member starts on the unfinished directory; remove the finished ones and
    repeat the call."""
    disk = disk or OsDisk()
    addresses = parse_members(members) if isinstance(members, str) else tuple(members)
    for member in addresses:
        check_name("the id of a member", member.member_id)
    path = os.fspath(backup)
    targets = {member_id: os.fspath(target) for member_id, target in directories.items()}
    _check_directories(disk, path, addresses, targets)
    with closing(_Backup(disk, path)) as source:
        stop_index = source.stop_index(last_index, time_ms)
        restoring = _Restoring(disk, source, addresses, targets, draw_id, with_users)
        return restoring.run(stop_index, report)


def _check_directories(
    disk: Disk, backup: str, addresses: Sequence[MemberAddress], directories: Mapping[str, str]
) -> None:
    ids = [member.member_id for member in addresses]
    missing = [member_id for member_id in ids if member_id not in directories]
    unknown = [member_id for member_id in directories if member_id not in ids]
    if missing:
        raise ConfigError(f"no directory is named for {', '.join(missing)}; every member needs one")
    if unknown:
        raise ConfigError(f"{', '.join(unknown)} is no member of the list ({', '.join(ids)})")
    paths = [disk.real_path(path) for path in (*directories.values(), backup)]
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"{path} is named twice; every member needs a directory of its own")
    for path in paths:
        for outer in paths:
            if path.startswith(f"{outer.rstrip('/')}/"):
                raise ConfigError(
                    f"{path} lies in {outer}, which is another directory of this command;"
                    " name one beside it"
                )
    for path in directories.values():
        check_target(disk, path.rstrip("/") or "/")


class _Backup:
    """A backup that is complete, to be read up to its cut."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path = path.rstrip("/") or "/"
        record = load_backup(disk, path)
        if record is None:
            raise ConfigError(f"{path} is no backup: it has no file {BACKUP_NAME!r}")
        if record.cut is None:
            raise ConfigError(f"{path} is a backup that was never complete; take it again")
        self.record: BackupRecord = record
        self.cut: LogPoint = record.cut
        self.start: LogStart | None = load_start(disk, path)
        self.begin_state = EMPTY
        self.reader = DirectoryReader(disk, path)
        try:
            self._check()
        except BaseException:
            self.reader.close()
            raise

    def close(self) -> None:
        self.reader.close()

    @property
    def begin(self) -> LogPoint:
        return LOG_ORIGIN if self.start is None else self.start.point

    def _check(self) -> None:
        """What opening it shows. The entries are looked at as they are restored."""
        reader = self.reader
        if reader.is_java:  # which reads as one without digests
            raise DirectoryDamaged(
                f"{self.path}/{MEMBER_NAME} is missing (position 0): the backup is damaged; put back a"
                " copy of this file",
                path=f"{self.path}/{MEMBER_NAME}",
                position=0,
            )
        lost = [each for each in reader.damage if each.index < 0 or each.index <= self.cut.index]
        if lost:
            raise reader.refusal(lost[0])
        if reader.ledger_end_index < self.cut.index:
            raise self._damaged(
                f"the log ends at entry {reader.ledger_end_index}, and the backup goes up to"
                f" {self.cut.index}"
            )
        header = reader.header_at(self.cut.index)
        if (header.term, header.chain_crc) != (self.cut.term, self.cut.chain):
            raise self._damaged(f"entry {self.cut.index} is not the one that {BACKUP_NAME} names")
        if self.start is not None:
            state = decode_state(self.start.record)
            if not isinstance(state, LogState):
                raise ConfigError(f"{self.path}: the state of the log where it begins: {state.reason}")
            self.begin_state = state

    def _damaged(self, problem: str) -> DirectoryDamaged:
        return DirectoryDamaged(
            f"{self.path}: {problem} (position {self.reader.end.position}); restore from another backup",
            path=self.path,
            position=self.reader.end.position,
        )

    # ---------------------------------------------------------------- up to where

    def stop_index(self, last_index: int | None, time_ms: int | None) -> int:
        """After the last entry that is restored. Raises ConfigError."""
        if last_index is not None and time_ms is not None:
            raise ConfigError("an index and a time exclude each other; name one of them")
        if time_ms is not None:
            return self._stop_of_time(time_ms)
        if last_index is None:
            return self.cut.index + 1
        if not self.begin.index <= last_index <= self.cut.index:
            raise ConfigError(
                f"index {last_index} is not in the backup, which goes from {self.begin.index + 1} to"
                f" {self.cut.index}"
            )
        return last_index + 1

    def _stop_of_time(self, time_ms: int) -> int:
        """The index of the first time mark that counts as after that time; no later one is before."""
        if self.record.time_ms is None:
            raise ConfigError(f"{self.path} has no time marks; choose an index instead")
        stop_index = self.cut.index + 1
        resets: Resets = ()
        for index, kind, mark_ms in self._marks_backwards():
            if kind == EntryKind.CLOCK:
                resets = (Reset(index, mark_ms), *resets)[-MOST_RUNS:]
            if counted_ms(index, mark_ms, resets) <= time_ms:
                return stop_index
            stop_index = index
        begin_ms = self.begin_state.time_ms
        if begin_ms is not None and counted_ms(self.begin.index, begin_ms, resets) <= time_ms:
            return stop_index
        where = (
            f"the first time mark in {self.path} is of a later time, at index {stop_index}"
            if stop_index <= self.cut.index
            else f"{self.path} begins at index {self.begin.index + 1}, at a later time"
        )
        raise ConfigError(f"{where}; choose a later one, or an index")

    def _marks_backwards(self) -> Iterator[tuple[int, int, int]]:
        """(index, kind, milliseconds) of the time marks and resets up to the cut, the last one first."""
        stop = self.cut.index + 1
        while stop > self.begin.index + 1:
            first = max(stop - UNIT_CHUNK, self.begin.index + 1)
            batches = self.reader.batches(first, stop, check_bodies=False)
            with_controls = [batch for batch in batches if batch.log_state_positions()]
            for batch in reversed(with_controls):
                for at in reversed(batch.log_state_positions()):
                    kind = int(batch.headers()["magic"][at])
                    mark_ms = said_ms(kind, batch.body(at))
                    if mark_ms is not None:
                        yield batch.first_index + at, kind, mark_ms
            stop = first


class _Restoring:
    def __init__(
        self,
        disk: Disk,
        source: _Backup,
        addresses: Sequence[MemberAddress],
        directories: Mapping[str, str],
        draw_id: Callable[[], str],
        with_users: bool,
    ) -> None:
        self._source = source
        self._with_users = with_users
        self._addresses = sorted(addresses, key=lambda member: member.member_id)
        self._replicas = tuple(Replica(member.member_id, draw_id()) for member in self._addresses)
        self._formation = Formation(self._replicas, self._replicas, draw_id(), level=LEVEL)
        self._targets = [
            RestoredDirectory(disk, directories[replica.member_id], self._record_of(replica))
            for replica in self._replicas
        ]

    def _record_of(self, replica: Replica) -> MemberRecord:
        reader, state = self._source.reader, decode_state(self._source.record.record)
        level = state.level if isinstance(state, LogState) else LEVEL
        machines = state.machines if isinstance(state, LogState) else ()
        kind = kind_of_machines(each.name for each in machines)
        return MemberRecord(
            group=self._source.record.group,
            member_id=replica.member_id,
            directory_id=replica.directory_id,
            segment_bytes=reader.segment_bytes,
            index_segment_bytes=reader.index_segment_bytes,
            formation=self._formation,
            version=version_of(level, has_start=self._source.start is not None),
            kind="" if kind is DirectoryKind.LOG else kind.stored,
            users=not isinstance(state, LogState) or state.users.is_on,
        )

    def run(self, stop_index: int, report: Progress) -> Restored:
        source = self._source
        with ExitStack() as stack:
            for target in self._targets:
                stack.enter_context(target)
            for target in self._targets:
                target.begin(source.start)
            first_index = source.begin.index + 1
            for batch in source.reader.batches(first_index, stop_index):
                for target in self._targets:
                    target.log.append(batch)
                report(batch.last_index + 1 - first_index, stop_index - first_index)
            last = self._targets[0].log.end
            state = state_at_end(self._targets[0].log.store)
            has_users = isinstance(state, LogState) and state.users.is_on
            leaves_users_out = has_users and not self._with_users
            for target in self._targets:
                self._close_log(target.log, max(last.term, 0) + 1, leaves_users_out=leaves_users_out)
                target.prepare(target.log.end.term)
                self._check_state(target)
            end = self._targets[0].log.end
            assert all(target.log.end == end for target in self._targets), end
            for target in self._targets:
                target.complete()
        return Restored(
            group=source.record.group,
            cluster_id=self._formation.cluster_id,
            members=tuple(
                RestoredMember(each.member_id, str(each), target.path, target.record.directory_id)
                for each, target in zip(self._addresses, self._targets, strict=True)
            ),
            first_index=first_index,
            last_index=last.index,
            last_term=last.term,
            last_chain=last.chain,
            membership_index=end.index,
            segment_bytes=source.reader.segment_bytes,
            index_segment_bytes=source.reader.index_segment_bytes,
            lost_machines=tuple(each.name for each in source.begin_state.machines),
            left_users_out=leaves_users_out,
        )

    def _check_state(self, target: RestoredDirectory) -> None:
        """Raises ConfigError: a member that cannot know the state of its log would never lead."""
        state = state_at_end(target.log.store)
        if not isinstance(state, LogState):
            raise ConfigError(
                f"{self._source.path}: {state.reason}; choose an index below it, or restore with the"
                " release that has written it"
            )
        assert state.membership_index == target.log.end.index, (state, target.log.end)

    def _close_log(self, log: CopiedLog, term: int, *, leaves_users_out: bool) -> None:
        """A no-op is the first entry of every term."""
        addresses = tuple((each.member_id, str(each)) for each in self._addresses)
        membership = MembershipEntry(self._replicas, self._replicas, addresses=addresses)
        last = [(EntryKind.MEMBERSHIP, encode_body(membership))]
        if leaves_users_out:
            last.insert(0, (EntryKind.USERS, encode_body(UsersChange(clears=True))))
        for kind, body in ((EntryKind.NOOP, b""), *last):
            log.append_own(EntryBatch.control(kind, body), term)
