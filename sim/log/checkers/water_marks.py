"""A leader's water mark for a voter is true: the voter's disk holds the leader's log up to there.

A voter that has gone on to a higher term may have dropped it since; what it answered was true then.
"""

from __future__ import annotations

from quorumlog.consensus.ready import Role
from quorumlog.entry import Replica
from quorumlog.testing.promises import (
    CheckedCluster,
    CheckedMember,
    Checker,
    DurableEntries,
    Violation,
    mark_at,
    mark_on,
)


class WaterMarks(Checker):
    """Asynchronous flushing promises nothing of a disk, so nothing is looked at then."""

    def __init__(self, cluster: CheckedCluster, durable: DurableEntries) -> None:
        super().__init__(cluster)
        self._durable = durable
        self._terms: dict[Replica, int] = {}
        """Of each directory at the end of its last turn."""
        self._looked: dict[tuple[Replica, int, Replica], int] = {}
        """(leader, term, voter) -> the mark that was last found true."""

    def stopped(self, member: CheckedMember) -> None:
        self._terms[member.replica] = member.node.raft.term

    def turned(self, member: CheckedMember) -> None:
        raft = member.node.raft
        self._terms[member.replica] = raft.term
        if raft.role is not Role.LEADER or self.cluster.profile.is_async:
            return
        marks = raft.replication.acks
        for voter in raft._state.membership.voters():
            mark, key = marks.mark_of(voter), (member.replica, raft.term, voter)
            if mark > self._looked.get(key, -1):
                self._looked[key] = mark
                if self._terms.get(voter, -1) <= raft.term:
                    self._require(member, voter, mark)

    def _require(self, leader: CheckedMember, voter: Replica, index: int) -> None:
        on_disk = self._durable.on_disk.get(voter)
        ours = mark_at(leader.node.store, index)
        theirs = mark_on(self.cluster, voter, index)
        is_another = ours is not None and theirs is not None and ours != theirs
        if on_disk is None or on_disk.index < index or is_another:
            raise Violation(
                f"{leader.replica}, leader of term {leader.node.raft.term}, has mark {index} for"
                f" {voter}; synced there is {on_disk}, entry {index} is {theirs} there and {ours} here"
            )
