"""SegmentDrops: now and then a member lets its first segments go, as retention would have it, up to any
boundary whose state is saved."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from quorumlog.errors import DiskFull

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

EVERY_MS = 1_000.0


class SegmentDrops:
    def __init__(self, cluster: SimCluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random

    def begin(self) -> None:
        if self._cluster.profile.drops_segments:
            self._again()

    def _again(self) -> None:
        self._cluster.at(self._random.expovariate(1 / EVERY_MS), self._strike)

    def _strike(self) -> None:
        if not self._cluster.clients_work:
            return
        up = self._cluster.up()
        if up:
            member = self._random.choice(up)
            member.enter(lambda: self.drop(member))
        self._again()

    def drop(self, member: SimMember) -> None:
        """In a turn."""
        node, store = member.node, member.node.store
        last_index = node.durable_committed_index - 1
        bound = node.machines.snapshot_bound()
        if bound is not None:
            last_index = min(last_index, bound)
        saved = [
            start
            for start in store.boundaries.saved()
            if store.begin.index < start.point.index <= last_index
        ]
        if not saved:
            return
        newest = self._random.random() < 0.7
        start = saved[0] if newest else self._random.choice(saved)
        try:
            if node.drops.begin(start):
                member.note("drops", lambda: f"what lies up to {start.point}")
                self._cluster.trace.count("drop: segments")
        except DiskFull:
            self._cluster.trace.count("drop: no space")
