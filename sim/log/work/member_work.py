"""MemberWork: somebody who changes the members of a simulated cluster, again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.errors import LedgerError
from quorumlog.node.member_changes import MemberChange, MemberOperation, MemberOutcome

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

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
        leading = self._cluster.leading()
        if not leading:
            return
        leader = self._random.choice(leading)
        change = self._draw(leader)
        self._cluster.trace.note(
            self._cluster.now_ms, "members", f"{change} asked of {leader.member_id}"
        )

        def done(outcome: MemberOutcome) -> None:
            how = type(outcome).__name__ if isinstance(outcome, LedgerError) else "done"
            self._cluster.trace.count(f"members: {change.operation} {how}")

        def ask() -> None:
            if self._is_fair(leader, change):
                leader.node.members.request(change, done)

        leader.enter(ask)

    def _is_fair(self, leader: SimMember, change: MemberChange) -> bool:
        """Nobody can tell from within which directories are lost."""
        fairness = self._cluster.faults.context.fairness
        if fairness is None or not fairness.lost:
            return True
        tried: list[MemberOutcome] = []
        leader.node.members.request(change._replace(dry_run=True), tried.append)
        is_fair = all(isinstance(each, LedgerError) or fairness.allows(each) for each in tried)
        if not is_fair:
            self._cluster.trace.count("members: a change that the lost ones do not allow")
        return is_fair

    def _draw(self, leader: SimMember) -> MemberChange:
        """Most make sense, and groups become smaller and larger again."""
        random = self._random
        membership = leader.node.status().membership
        fairness = self._cluster.faults.context.fairness
        if fairness is not None and fairness.lost and random.random() < 0.4:
            connected = leader.node.raft.connected
            here = {each.member_id for each in connected if each not in membership.members()}
            wiped = [v.member_id for v in membership.new if v not in connected and v.member_id in here]
            if wiped:
                return MemberChange(MemberOperation.REPLACE, random.choice(wiped))
        ids = self._cluster.member_ids
        voters = [voter.member_id for voter in membership.new]
        learners = [learner.member_id for learner in membership.learners]
        away = [i for i in ids if i not in voters and i not in learners]
        kind = random.random()
        if learners and kind < 0.4:
            return MemberChange(MemberOperation.PROMOTE, random.choice(learners))
        if away and kind < 0.7:
            member_id = random.choice(away)
            return MemberChange(
                MemberOperation.ADD, member_id, address=f"10.0.0.1:{1000 + ids.index(member_id)}"
            )
        if kind < 0.95:
            return MemberChange(MemberOperation.REMOVE, random.choice(voters))
        operation = random.choice(tuple(MemberOperation))
        return MemberChange(operation, random.choice(ids), address=f"10.0.0.2:{random.randint(1, 9)}")
