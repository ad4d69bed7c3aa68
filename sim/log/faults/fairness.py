"""MembersFairness: which directories may still be lost while members come and go.

Of each half of every membership that may come to hold, a quorum is left that was not wiped, has
forgotten nothing and is not damaged. No change of members is asked for that would leave less.
"""

from __future__ import annotations

from quorumlog.consensus.membership import Membership
from quorumlog.entry import Replica
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker


class MembersFairness(Checker):
    """It looks on as a checker does, and finds nothing wrong."""

    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self.lost: list[Replica] = []
        self._committed = -2, Membership()
        """(index of its entry, membership), the newest that anybody knew to be committed."""
        self._held: dict[Replica, tuple[tuple[int, Membership], ...]] = {}
        """What each log holds, or held when its process ended."""

    def stopped(self, member: CheckedMember) -> None:
        raft = member.node.raft
        if raft.members.are_known:
            self._held[member.replica] = raft._state.log.memberships.held
            self._committed = max(self._committed, raft._state.committed_membership)

    started = stopped

    def lose(self, replica: Replica) -> None:
        self.lost.append(replica)

    def may_lose(self, replica: Replica) -> bool:
        for member in self.cluster.members:
            if member.is_up:
                self.stopped(member)
        index, membership = self._committed
        behind = [each for held in self._held.values() for at, each in held if at > index]
        lost = [*self.lost, replica]
        return all(_is_left(each, lost) for each in (membership, *behind))

    def allows(self, wanted: Membership) -> bool:
        return _is_left(wanted, self.lost)


def _is_left(membership: Membership, lost: list[Replica]) -> bool:
    return membership.has_quorum([voter for voter in membership.voters() if voter not in lost])
