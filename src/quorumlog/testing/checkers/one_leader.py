"""Election safety: at most one leader a term (Raft paper, figure 3)."""

from __future__ import annotations

from quorumlog.consensus.messages import HeartbeatRequest, PushEntryRequest, TakeLeadershipRequest
from quorumlog.consensus.ready import Envelope, Ready, Role
from quorumlog.entry import Replica
from quorumlog.testing.checkers.checker import Checker, Violation
from quorumlog.testing.checkers.view import CheckedCluster, CheckedMember

ONLY_FROM_LEADERS = (HeartbeatRequest, PushEntryRequest, TakeLeadershipRequest)


class OneLeader(Checker):
    """Who says that it leads, and who sends what only leaders send."""

    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._leaders: dict[int, Replica] = {}

    def ready(self, member: CheckedMember, ready: Ready) -> None:
        change = ready.role_change
        if change is not None and change.role is Role.LEADER:
            self._note(member, change.term, "becomes leader")

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, ONLY_FROM_LEADERS):
            self._note(member, message.term, f"sends {type(message).__name__}")

    def _note(self, member: CheckedMember, term: int, what: str) -> None:
        leader = self._leaders.setdefault(term, member.replica)
        if leader != member.replica:
            raise Violation(f"{member.replica} {what} in term {term}, whose leader is {leader}")
