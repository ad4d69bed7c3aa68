"""A committed entry lies on the disks of a majority when the first member says that it is committed."""

from __future__ import annotations

from quorumlog.entry import Replica
from quorumlog.testing.promises import (
    CheckedCluster,
    CheckedMember,
    Checker,
    CommittedLog,
    DurableEntries,
    Violation,
    mark_on,
)


class QuorumOnDisk(Checker):
    """Asynchronous flushing promises it of no disk, so nothing is looked at then."""

    def __init__(self, cluster: CheckedCluster, log: CommittedLog, durable: DurableEntries) -> None:
        super().__init__(cluster)
        self._log = log
        self._durable = durable
        self._checked_index = -1

    def turned(self, member: CheckedMember) -> None:
        index = self._log.end_index
        if index <= self._checked_index or self.cluster.profile.is_async:
            return
        # An entry may have been counted just before the newest membership was appended.
        state = member.node.raft._state
        if not state.knows_log_state:
            return  # it starts, and who counts is read from its log meanwhile
        self._checked_index = index
        counted_by = (*(m for _, m in state.log.memberships.held[-2:]), state.committed_membership[1])
        voters = tuple(dict.fromkeys(voter for each in counted_by for voter in each.voters()))
        on_disk = self._durable.on_disk
        ends = {voter: on_disk[voter].index for voter in voters if voter in on_disk}
        others = [voter for voter in ends if self._holds_another(voter, index)]
        holders = [voter for voter, end in ends.items() if end >= index and voter not in others]
        if not any(membership.has_quorum(holders) for membership in counted_by):
            raise Violation(
                f"{member.replica} in term {member.node.raft.term} says that entry {index} is committed;"
                f" synced on the voters' disks is {ends} of {len(voters)}; another entry is there at"
                f" {others}"
            )

    def _holds_another(self, voter: Replica, index: int) -> bool:
        """A longer log need not be the same log."""
        held = mark_on(self.cluster, voter, index)
        return held is not None and held != self._log.at(index)
