"""Recovery of a cluster that has lost its majority as a new one: the best log is kept, with one voter.

It has a cluster id of its own, so that no member of the old cluster connects to it; its directory gets a
new id, so that votes and acknowledgements of the old one do not bind it. The other members join as new
ones and receive the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

import msgspec

from quorumlog.backups.folding import state_of
from quorumlog.backups.survivors import RecoveryPlan, look_at
from quorumlog.entry import Formation, Replica
from quorumlog.errors import ConfigError, StoreFailure
from quorumlog.log_state.control_entries import MembershipEntry, encode_body
from quorumlog.log_state.log_state import LogState
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.member_directory import (
    begin_recovery,
    draw_directory_id,
    finish_recovery,
    lock_directory,
    open_log,
    refusals_named,
)
from quorumlog.store.state_files import Recovery, load_member


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """A new cluster of one voter, to be started."""

    group: str
    cluster_id: str
    member_id: str
    directory: str
    directory_id: str
    last_index: int
    """The last entry that was kept."""
    membership_index: int
    """Of the membership entry, the last of the log."""
    term: int


def plan_recovery(
    directories: Sequence[str | os.PathLike[str]], *, disk: Disk | None = None
) -> RecoveryPlan:
    """The result that `recover_cluster` would have for these directories of stopped members. Nothing is
    written. Raises ConfigError (for the operator to fix), DirectoryDamaged, StoreFailure."""
    paths = [os.fspath(path) for path in directories]
    if not paths:
        raise ConfigError("name the data directory of each member that is left")
    with refusals_named(paths[0]):
        return look_at(disk or OsDisk(), paths)


def recover_cluster(
    plan: RecoveryPlan,
    *,
    disk: Disk | None = None,
    draw_id: Callable[[], str] = draw_directory_id,
) -> Recovered:
    """Make the best directory of `plan` the only voter of a new cluster; the others stay as they are.

    Acknowledged entries that this log lacks are lost for good. Raises ConfigError, DirectoryDamaged,
    StoreFailure, DiskFull; the directory is then unchanged, or the next start of its member completes
    it.
    """
    if not plan.is_needed:
        raise ConfigError("the members that are left are a majority: start them, nothing is lost")
    disk, best = disk or OsDisk(), plan.best
    path = best.directory
    with refusals_named(path), ExitStack() as stack:
        stack.callback(lock_directory(disk, path).release)
        record = load_member(disk, path)
        assert record is not None, path
        with closing(open_log(disk, path, record)) as log:
            end = log.end
            if (end.index, end.term) != (best.last_index, best.last_term):
                raise StoreFailure(
                    f"{path}: the log ends at entry {end.index} of term {end.term}, and a moment ago"
                    f" at entry {best.last_index} of term {best.last_term}; look again"
                )
            state = state_of(log.store, plan.committed_index)
        if not isinstance(state, LogState):
            raise ConfigError(
                f"{path}: {state.reason}: no member could lead with this log. Recover another"
                " directory, or restore a backup"
            )
        replica = Replica(best.member_id, draw_id())
        level = record.formation.level
        formation = Formation((replica,), (replica,), draw_id(), level=level)
        addresses = ((best.member_id, plan.address),) if plan.address else ()
        membership = MembershipEntry((replica,), (replica,), addresses=addresses)
        recovery = Recovery(end.index, end.term, end.chain, plan.term + 1, encode_body(membership))
        record = begin_recovery(disk, path, record, replica.directory_id, formation, recovery)
        finish_recovery(disk, path, record)
    return Recovered(
        group=plan.group,
        cluster_id=formation.cluster_id,
        member_id=best.member_id,
        directory=path,
        directory_id=replica.directory_id,
        last_index=end.index,
        membership_index=end.index + 2,
        term=recovery.term,
    )
