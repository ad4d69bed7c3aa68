"""Who gets a vote by a joint entry has caught up: it holds what the leader's log was two election
time-outs ago. A voter that lacks more would hold up every commit.

By rounds (`consensus/replication.py`) it held all that the log was when a round began which
ended in time, and the next one has not lasted longer than it may.
"""

from __future__ import annotations

from collections import deque

from quorumlog.consensus.ready import Role
from quorumlog.entry import Replica
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation


class _Lead:
    """What a leader's log was, as long as it leads one term."""

    def __init__(self, term: int, membership_index: int) -> None:
        self.term = term
        self.membership_index = membership_index
        self.ends: deque[tuple[float, int]] = deque()
        """(time by its clock, last index), ascending."""


class CaughtUpVoters(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        consensus = cluster.profile.consensus
        self._span_ms = 2 * (consensus.election_timeout_ms + consensus.heartbeat_interval_ms)
        self._leads: dict[Replica, _Lead] = {}

    def stopped(self, member: CheckedMember) -> None:
        self._leads.pop(member.replica, None)

    def turned(self, member: CheckedMember) -> None:
        raft = member.node.raft
        if raft.role is not Role.LEADER:
            self._leads.pop(member.replica, None)
            return
        status = member.node.status()
        lead = self._leads.get(member.replica)
        if lead is None or lead.term != raft.term:
            lead = self._leads[member.replica] = _Lead(raft.term, status.membership_index)
        elif status.membership_index > lead.membership_index:
            lead.membership_index = status.membership_index
            for voter in status.membership.new:
                if voter not in status.membership.old:
                    if any(old.member_id == voter.member_id for old in status.membership.old):
                        self.cluster.trace.count("members: a directory is replaced")
                    self._check(member, lead, voter)
        lead.ends.append((member.local_ms, raft.ledger_end.index))
        while len(lead.ends) > 1 and lead.ends[1][0] < member.local_ms - self._span_ms:
            lead.ends.popleft()

    def _check(self, leader: CheckedMember, lead: _Lead, voter: Replica) -> None:
        holder = next((each for each in self.cluster.members if each.replica == voter), None)
        if holder is None or not holder.is_up or self.cluster.profile.is_async:
            return  # what it held, and lost behind the leader's back, nobody can tell
        since_ms, end_index = lead.ends[0]
        held_index = holder.node.store.end.index
        if held_index < end_index:
            raise Violation(
                f"{leader.replica} gives {voter} a vote, which holds entries up to {held_index}; the log"
                f" ended with {end_index} at {since_ms:g} ms, and it is {leader.local_ms:g} ms"
            )
