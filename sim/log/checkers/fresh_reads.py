"""A linearizable read of any member misses nothing that was acknowledged before it was asked for, and no
member takes what it knows for fresher than it is.

The second is looked at after every turn, by the member's own clock: that is the one which it counts by.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from quorumlog.testing.operations import ClientAppend
from quorumlog.testing.promises import CheckedCluster, CheckedMember, CommittedLog, Violation
from sim.log.checkers.log_checker import LogChecker
from sim.log.operations import FreshRead


class FreshReads(LogChecker):
    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log
        self._acknowledged: list[int] = []
        """Each highest index that was ever acknowledged, and by each member's clock when that was."""
        self._heard_ms: dict[CheckedMember, list[float]] = {}

    def appended(self, append: ClientAppend) -> None:
        index = self.cluster.operations.acknowledged_index
        if append.is_committed and (not self._acknowledged or index > self._acknowledged[-1]):
            self._acknowledged.append(index)
            for member in self.cluster.members:
                heard_ms = self._heard_ms.setdefault(member, [])
                missed = len(self._acknowledged) - 1 - len(heard_ms)  # by a machine that came later
                heard_ms += [-math.inf] * missed + [member.local_ms]

    def turned(self, member: CheckedMember) -> None:
        since_ms = member.node.raft.reads.fresh_since_ms()
        heard_ms = self._heard_ms.get(member, [])
        before = bisect_left(heard_ms, since_ms)
        if before == 0:
            return
        index = self._acknowledged[before - 1]
        committed_index = member.node.committed_index
        if committed_index < index and not self._is_forgotten(index):
            late_ms = since_ms - heard_ms[bisect_left(self._acknowledged, committed_index + 1)]
            raise Violation(
                f"{member.member_id} takes its {committed_index} for all that was acknowledged"
                f" {member.local_ms - since_ms:.1f} ms ago, but {index} had been by then, for"
                f" {late_ms:.1f} ms"
            )

    def read_freshly(self, read: FreshRead) -> None:
        if read.index < read.acknowledged_index and not self._is_forgotten(read.acknowledged_index):
            raise Violation(
                f"a linearizable read of {read.member_id}, asked for at {read.called_ms} ms, goes to"
                f" {read.index}, but {read.acknowledged_index} had been acknowledged by then"
            )

    def _is_forgotten(self, index: int) -> bool:
        """Async mode: it may be gone."""
        return self._log.forgotten_from is not None and index >= self._log.forgotten_from
