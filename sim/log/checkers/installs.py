"""A log makes way only for one whose begin is committed, which it does not hold, and which lies above
all that it has committed itself; and logs begin behind committed entries only."""

from __future__ import annotations

from quorumlog.entry import Replica
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.testing.promises import (
    CheckedCluster,
    CheckedMember,
    Checker,
    CommittedLog,
    EntryMark,
    Violation,
    mark_at,
)


class Installs(Checker):
    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log
        self._begins: dict[Replica, LogPoint] = {}
        """That were looked at last."""

    def replacing(self, member: CheckedMember, start: LogStart) -> None:
        point, node = start.point, member.node
        self._require_committed(member, point)
        held = mark_at(node.store, point.index)
        if held == (point.term, point.chain):
            raise Violation(f"{member.replica} replaces its log by one behind {point}, which it holds")
        if point.index <= node.committed_index and not self.cluster.profile.is_async:
            raise Violation(
                f"{member.replica}, which has committed up to {node.committed_index}, replaces its log"
                f" by one behind {point}"
            )

    def turned(self, member: CheckedMember) -> None:
        begin = member.node.store.begin
        if begin is not self._begins.get(member.replica):
            self._begins[member.replica] = begin
            self._require_committed(member, begin)

    started = turned

    def _require_committed(self, member: CheckedMember, point: LogPoint) -> None:
        if 0 <= point.index < self._log.safe_stop_index:
            committed = self._log.at(point.index)
            if committed != EntryMark(point.term, point.chain):
                raise Violation(f"the log of {member.replica} begins behind {point}, not {committed}")
