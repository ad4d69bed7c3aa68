"""A cluster is founded once: every founding list that anybody ever stores is the same, and so is the
cluster id stored with it."""

from __future__ import annotations

from quorumlog.entry import Replica
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation


class OneGroup(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._founding: tuple[Replica, ...] = ()
        self._cluster_id = ""

    def turned(self, member: CheckedMember) -> None:
        """What a disk has refused to store, nobody was told of."""
        formation = member.node.directory.formation
        founding, cluster_id = formation.founding, formation.cluster_id
        if not founding or (founding, cluster_id) == (self._founding, self._cluster_id):
            return
        if self._founding:
            raise Violation(
                f"{member.replica} has stored the founding list {founding} and the cluster id"
                f" {cluster_id}; the group was founded by {self._founding} as {self._cluster_id}"
            )
        if not cluster_id:
            raise Violation(f"{member.replica} has stored the founding list {founding} without an id")
        self._founding, self._cluster_id = founding, cluster_id

    started = turned
    stopped = turned
    """What was founded in the turn that it died in may have been told."""
