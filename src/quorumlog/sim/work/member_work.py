"""MemberWork: somebody who changes the members of a simulated cluster, again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.consensus.membership import Membership
from quorumlog.consensus.ready import Role
from quorumlog.errors import LedgerError
from quorumlog.node.member_changes import MemberChange, MemberOutcome, MemberVerb

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimCluster

EVERY_MS = 700.0


class MemberWork:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.stream("member work")

    def begin(self) -> None:
        self._cluster.at(self._random.expovariate(1 / EVERY_MS), self._work)

    def _work(self) -> None:
        if not self._cluster.is_faulty:
            return
        self.begin()
        members = self._cluster.members
        leading = [m for m in members if m.is_up and m.node.raft.role is Role.LEADER]
        if not leading:
            return
        leader = self._random.choice(leading)
        change = self._draw(leader.node.status().membership)
        self._cluster.trace.note(
            self._cluster.now_ms, "members", f"{change} asked of {leader.member_id}"
        )

        def done(outcome: MemberOutcome) -> None:
            how = type(outcome).__name__ if isinstance(outcome, LedgerError) else "done"
            self._cluster.trace.count(f"members: {change.verb} {how}")

        leader.enter(lambda: leader.node.members.request(change, done))

    def _draw(self, membership: Membership) -> MemberChange:
        """Most make sense, and groups become smaller and larger again."""
        random = self._random
        ids = self._cluster.member_ids
        voters = [voter.member_id for voter in membership.new]
        learners = [learner.member_id for learner in membership.learners]
        away = [i for i in ids if i not in voters and i not in learners]
        kind = random.random()
        if learners and kind < 0.4:
            return MemberChange(MemberVerb.PROMOTE, random.choice(learners))
        if away and kind < 0.7:
            member_id = random.choice(away)
            return MemberChange(
                MemberVerb.ADD, member_id, address=f"10.0.0.1:{1000 + ids.index(member_id)}"
            )
        if kind < 0.95:
            return MemberChange(MemberVerb.REMOVE, random.choice(voters))
        verb = random.choice(tuple(MemberVerb))
        return MemberChange(verb, random.choice(ids), address=f"10.0.0.2:{random.randint(1, 9)}")
