"""Leader completeness: whoever leads a term holds everything that was committed in earlier ones.

(Raft paper, figure 3 and section 5.4.) A member may still win a term that the others have left behind,
and lack what they commit in a later one.
"""

from __future__ import annotations

from quorumlog.consensus.ready import Role
from quorumlog.entry import Replica
from quorumlog.testing.promises import (
    CheckedCluster,
    CheckedMember,
    Checker,
    CommittedLog,
    Violation,
    mark_at,
)


class LeaderCompleteness(Checker):
    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log
        self._led: dict[Replica, int] = {}
        """The last term in which each directory was found leading."""

    def turned(self, member: CheckedMember) -> None:
        raft = member.node.raft
        if raft.role is not Role.LEADER or self._led.get(member.replica) == raft.term:
            return
        self._led[member.replica] = raft.term
        log = self._log
        index = min(log.last_committed_before(raft.term), log.safe_stop_index - 1)
        if index < 0:
            return
        store = member.node.store
        held = mark_at(store, index)
        is_unreadable = held is None and index <= store.end.index
        if held != log.at(index) and not is_unreadable:
            raise Violation(
                f"{member.replica} leads term {raft.term} without entry {index}, which was committed in"
                f" term {log.committed_in(index)} as {log.at(index)}: its log holds {held} there and"
                f" ends at {store.end.index}"
            )
