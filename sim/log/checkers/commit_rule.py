"""A leader commits by counting only what is of its own term (Raft paper, section 5.4.2 and figure 8).

Runs in which breaking this rule loses an entry are rare; breaking it is not.
"""

from __future__ import annotations

from quorumlog.consensus.ready import Role
from quorumlog.entry import Replica
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation, mark_at


class CommitRule(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._led: dict[Replica, tuple[int, int]] = {}
        """(term, committed index) at the end of the last turn, of those that led then."""

    def started(self, member: CheckedMember) -> None:
        self._led.pop(member.replica, None)

    def turned(self, member: CheckedMember) -> None:
        raft, committed_index = member.node.raft, member.node.committed_index
        if raft.role is not Role.LEADER:
            self._led.pop(member.replica, None)
            return
        # What rose in the turn of the election may still have been heard from the leader before.
        term, before_index = self._led.get(member.replica, (-1, -1))
        self._led[member.replica] = (raft.term, committed_index)
        if term != raft.term or committed_index == before_index:
            return
        held = mark_at(member.node.store, committed_index)
        if held is not None and held.term != raft.term:
            raise Violation(
                f"{member.replica} leads term {raft.term} and has moved its committed index from"
                f" {before_index} to {committed_index}, an entry of term {held.term}"
            )
