"""A cluster is founded once: every founding list that anybody ever stores is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.consensus.ready import Ready
from quorumlog.entry import Voter
from quorumlog.sim.checkers.checker import Checker, Violation

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimCluster
    from quorumlog.sim.member import SimMember


class OneGroup(Checker):
    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        self._founding: tuple[Voter, ...] = ()

    def ready(self, member: SimMember, ready: Ready) -> None:
        if ready.formation is None or not ready.formation.founding:
            return
        founding = ready.formation.founding
        self._founding = self._founding or founding
        if founding != self._founding:
            raise Violation(
                f"{member.voter} stores the founding list {founding}; the group was founded by"
                f" {self._founding}"
            )
