"""HangingDisks: a disk of which no sync returns for a while, longer too than a leader waits for it.

Drawn from a stream of its own, so that it moves nothing of the runs that have none of it.
"""

from __future__ import annotations

from functools import partial

from quorumlog.node.ledger_node import HANGS_AFTER_MS
from quorumlog.testing.faults.fault_context import FaultContext
from quorumlog.testing.member import SimMember
from quorumlog.testing.profile import HANGING_DISK

EVERY_MS = 3_000.0


class HangingDisks:
    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self._random = context.cluster.stream("hanging disks")

    def begin(self) -> None:
        if self._cluster.profile.has_hanging_disks:
            self._cluster.at(self._random.expovariate(1 / EVERY_MS), self._strike)

    def stop(self) -> None:
        for member in self._cluster.members:
            member.hang(False)

    def _strike(self) -> None:
        if not self._cluster.is_faulty:
            return
        up = [member for member in self._cluster.members if member.is_up]
        leading = [member for member in up if member.node.raft.role.value == "leader"]
        chosen = leading if leading and self._random.random() < 0.6 else up
        if chosen:
            member = self._random.choice(chosen)
            self._context.note(HANGING_DISK, member.member_id)
            member.hang(True)
            lasts_ms = self._random.choice((0.1, 0.5, 1.5)) * HANGS_AFTER_MS * self._random.random()
            self._cluster.at(lasts_ms, partial(self._end, member, member.process))
        self.begin()

    @staticmethod
    def _end(member: SimMember, process: int) -> None:
        if member.process == process:
            member.hang(False)
