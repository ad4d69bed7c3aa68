"""A cluster is founded once: every founding list that anybody ever stores is the same."""

from __future__ import annotations

from quorumlog.entry import Replica
from quorumlog.sim.checkers.checker import Checker, Violation
from quorumlog.sim.checkers.view import CheckedCluster, CheckedMember


class OneGroup(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._founding: tuple[Replica, ...] = ()

    def turned(self, member: CheckedMember) -> None:
        """What a disk has refused to store, nobody was told of."""
        founding = member.node.directory.formation.founding
        if not founding or founding == self._founding:
            return
        if self._founding:
            raise Violation(
                f"{member.replica} has stored the founding list {founding}; the group was founded by"
                f" {self._founding}"
            )
        self._founding = founding

    started = turned
    stopped = turned
    """What was founded in the turn that it died in may have been told."""
