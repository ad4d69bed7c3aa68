"""OldCopies: a directory that was found older than it was never speaks, and never counts, again.

And none is found so that has kept what it acknowledged.
"""

from __future__ import annotations

from quorumlog.entry import Replica
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation


class OldCopies(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._put_back: set[str] = set()
        """Members of whose directory an older copy was put back at some time."""
        self._notified: set[Replica] = set()
        self._found: dict[Replica, dict[Replica, None]] = {}
        """By the finder, in the life of its present process."""

    def started(self, member: CheckedMember) -> None:
        self._found.pop(member.replica, None)
        if member.replica in self._notified:
            raise Violation(f"{member.replica} speaks again, after it was told that it is an older copy")

    def put_back(self, member: CheckedMember) -> None:
        self._put_back.add(member.member_id)
        self._notified = {replica for replica in self._notified if replica.member_id != member.member_id}

    def set_back(self, member: CheckedMember) -> None:
        self._notified.add(member.replica)

    def turned(self, member: CheckedMember) -> None:
        raft = member.node.raft
        found = self._found.setdefault(member.replica, {})
        for replica in [each for each in raft._state.set_back if each not in found]:
            found[replica] = None
            if replica.member_id not in self._put_back and not self.cluster.profile.has_lossy_disks:
                raise Violation(f"{member.replica} finds {replica} older than it was, and it is not")
        answers, marks = raft._elector.answers, raft.replication.acks
        for replica in found:
            if marks.mark_of(replica) >= 0 or answers.round_of(replica):
                raise Violation(f"{member.replica} counts {replica}, which it has found an older copy")
