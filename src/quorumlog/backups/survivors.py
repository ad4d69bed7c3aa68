"""The remaining directories of a cluster that has lost its majority, read only: the best log, and its
state."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quorumlog.consensus.membership import Membership
from quorumlog.entry import Replica
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.log_state.control_entries import MembershipEntry as MembershipBody
from quorumlog.node.log_states import controls_of, membership_of
from quorumlog.store.directory_kind import LOCK_NAME, RESTORING_NAME
from quorumlog.store.directory_reader import DirectoryReader, StoredMarks
from quorumlog.store.disk import Disk
from quorumlog.store.durable_file import DURABLE_NAME
from quorumlog.store.snapshots import SnapshotFiles, SnapshotsUnavailable
from quorumlog.store.state_files import BACKUP_NAME, HARD_STATE_NAME


class Survivor(msgspec.Struct, frozen=True, kw_only=True):
    """One directory. Indices name entries; -1: none."""

    directory: str
    group: str
    member_id: str
    directory_id: str
    cluster_id: str
    first_index: int
    last_index: int
    last_term: int
    committed_index: int
    """Known to be committed, as this directory proves it."""
    owed_index: int = -1
    """Its log was installed, and the group had committed entries up to here then."""
    term: int
    """The newest that it has seen."""
    forgotten: tuple[str, ...]
    """Files with promises that are lost: it is no voter any more."""
    damage: tuple[str, ...]
    """Everything else that is wrong with it, in sentences."""
    snapshots_ahead: tuple[str, ...] = ()
    """State machines that cannot be rebuilt here, in sentences: their snapshots hold entries that this
    log lacks."""

    @property
    def replica(self) -> Replica:
        return Replica(self.member_id, self.directory_id)


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    cluster_id: str
    """Of the cluster that has lost its majority."""
    best: Survivor
    survivors: tuple[Survivor, ...]
    voters: tuple[Replica, ...]
    """Everybody whose answer may count by the best log."""
    missing: tuple[Replica, ...]
    """Those voters that are not among the survivors, or lost votes and acknowledgements."""
    is_needed: bool
    """False: the survivors are a majority, and nothing is lost."""
    committed_index: int
    """All of the best log up to here is known to be committed."""
    term: int
    """The newest that any of them has seen."""
    address: str
    """Of the best one's member, where the log names it."""

    @property
    def uncertain(self) -> tuple[int, int] | None:
        """(first, last) of the entries that are kept and may never have been committed."""
        first, last = self.committed_index + 1, self.best.last_index
        return (first, last) if first <= last else None

    @property
    def lost(self) -> tuple[int, int] | None:
        """(first, last) of the entries that were committed for certain and are not in the best log: as a
        survivor has it that was given a log and not all of it yet, or whose own log is damaged."""
        known = max(max(each.owed_index, each.committed_index) for each in self.survivors)
        return (self.best.last_index + 1, known) if known > self.best.last_index else None


def look_at(disk: Disk, directories: Sequence[str]) -> RecoveryPlan:
    """Nothing is written. Raises ConfigError (for the operator to fix), DirectoryDamaged,
    StoreFailure."""
    paths = [path.rstrip("/") or "/" for path in directories]
    real = [disk.real_path(path) for path in paths]
    for path, real_path in zip(paths, real, strict=True):
        if real.count(real_path) > 1:
            raise ConfigError(f"{path} is named twice; name each directory once")
        _check_kind(disk, path)
    survivors = tuple(_survivor(disk, path) for path in paths)
    _check_identities(survivors)
    best = max(survivors, key=_rank)
    with DirectoryReader(disk, best.directory) as reader:
        committed_index = max(_proven_in(disk, reader, each) for each in survivors)
        memberships = _memberships(disk, reader, committed_index)
    alive = [each.replica for each in survivors if not each.forgotten]
    voters = tuple(dict.fromkeys(v for membership in memberships for v in membership.voters()))
    addresses = dict(memberships[-1].addresses)
    return RecoveryPlan(
        group=best.group,
        cluster_id=best.cluster_id,
        best=best,
        survivors=survivors,
        voters=voters,
        missing=tuple(voter for voter in voters if voter not in alive),
        is_needed=not all(membership.has_quorum(alive) for membership in memberships),
        committed_index=committed_index,
        term=max(each.term for each in survivors),
        address=addresses.get(best.member_id, ""),
    )


def _rank(survivor: Survivor) -> tuple[int, int, bool, bool, int]:
    """As voters compare logs; of those that are alike the one with the fewest troubles."""
    return (
        survivor.last_term,
        survivor.last_index,
        not survivor.damage,
        not survivor.forgotten,
        survivor.committed_index,
    )


def _check_kind(disk: Disk, path: str) -> None:
    try:
        names = disk.list(path)
    except NotADirectoryError as error:
        raise ConfigError(f"{path} is not a directory; name the data directory of a member") from error
    if BACKUP_NAME in names:
        raise ConfigError(
            f"{path} is a backup and no member's directory; quorumlog restore makes a cluster of it"
        )
    if RESTORING_NAME in names:
        raise ConfigError(f"{path} is of a restore that did not come to its end; restore again")
    if disk.is_locked(f"{path}/{LOCK_NAME}"):
        raise ConfigError(
            f"{path} is in use (something holds {path}/{LOCK_NAME}); stop that member first"
        )


def _survivor(disk: Disk, path: str) -> Survivor:
    with DirectoryReader(disk, path) as reader:
        if reader.is_java:
            raise ConfigError(
                f"{path} has no file 'member': it is not a directory that a member used; name one"
            )
        if not reader.formation.founding:
            raise ConfigError(
                f"{path} has never belonged to a group that formed: it holds nothing that was"
                " acknowledged. Leave it out"
            )
        promises = (HARD_STATE_NAME, DURABLE_NAME)
        forgotten = [f"{path}/{d.path} {d.problem}" for d in reader.damage if d.path in promises]
        damage = [str(reader.refusal(each)) for each in reader.damage if each.path not in promises]
        damage += [
            f"{path}: entries {each.first_index} .. {each.stop_index - 1} are damaged"
            for each in reader.damaged
        ]
        return Survivor(
            directory=path,
            group=reader.group,
            member_id=reader.member_id,
            directory_id=reader.directory_id,
            cluster_id=reader.formation.cluster_id,
            first_index=reader.ledger_begin_index,
            last_index=reader.ledger_end_index,
            last_term=reader.ledger_end_term,
            committed_index=reader.committed_index,
            owed_index=-1 if reader.start is None else reader.start.owed_index,
            term=max(
                0, reader.ledger_end_term, 0 if reader.hard_state is None else reader.hard_state.term
            ),
            forgotten=tuple(forgotten),
            damage=tuple(damage),
            snapshots_ahead=_snapshots_ahead(disk, path, reader),
        )


def _snapshots_ahead(disk: Disk, path: str, reader: DirectoryReader) -> tuple[str, ...]:
    """Of a log that was being installed: a snapshot comes before the entries up to it do. It is adopted
    where the log holds the very entry that it names, and with this log it never will be."""
    if reader.begin.index < 0:
        return ()  # all that a machine follows from is here
    try:
        found = SnapshotFiles(disk, path).oldest_of_all()
    except SnapshotsUnavailable as unavailable:
        return (str(unavailable),)
    return tuple(
        f"{path}: the state machine {name} cannot continue with this log: its oldest snapshot is of"
        f" entry {oldest}, and the log ends with {reader.ledger_end_index} and begins with"
        f" {reader.ledger_begin_index}"
        for name, oldest in sorted(found.items())
        if oldest > reader.ledger_end_index
    )


def _check_identities(survivors: Sequence[Survivor]) -> None:
    first = survivors[0]
    for other in survivors[1:]:
        if (other.group, other.cluster_id) != (first.group, first.cluster_id):
            raise ConfigError(
                f"{other.directory} is of group {other.group}, cluster {other.cluster_id}, and"
                f" {first.directory} of group {first.group}, cluster {first.cluster_id}; name the"
                " directories of one cluster"
            )


def _proven_in(disk: Disk, reader: DirectoryReader, survivor: Survivor) -> int:
    """How much of this log is committed, as another directory proves it; -1 if it does not hold what is
    committed there."""
    if survivor.directory == reader.path:
        return survivor.committed_index
    index = survivor.committed_index
    if not max(reader.begin.index, survivor.first_index - 1) < index <= reader.ledger_end_index:
        return -1
    try:
        own = reader.header_at(index)
        with DirectoryReader(disk, survivor.directory) as other:
            proof = other.header_at(index)
    except DirectoryDamaged:
        return -1
    return index if (own.term, own.chain_crc) == (proof.term, proof.chain_crc) else -1


def _memberships(disk: Disk, reader: DirectoryReader, committed_index: int) -> list[Membership]:
    """The one at the last entry known to be committed, and those after it."""
    founding = reader.formation.founding
    if reader.ledger_begin_index < 0:
        return [Membership.of(founding)]
    log = StoredMarks(disk, reader)
    state, first_index = log.newest_state(max(committed_index, log.begin_index))
    batches = log.control_batches(first_index, reader.ledger_end_index + 1)
    entries = [entry for batch in batches for entry in controls_of(batch)]
    found = [(state.membership_index, state.membership)]
    found += [(each.index, each.body) for each in entries if isinstance(each.body, MembershipBody)]
    newest_committed = max((at for at, _ in found if at <= committed_index), default=-1)
    return [
        Membership.of(founding) if body is None else membership_of(body)
        for at, body in found
        if at >= newest_committed
    ]
