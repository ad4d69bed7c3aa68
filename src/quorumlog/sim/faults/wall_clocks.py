"""WallClocks: a few members' wall clocks are wrong, by years too: fewer than a quorum of the
founders, and spare members may be among them. They jump, stand still and run backwards, and stay wrong
when faults have stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimCluster

MOST_SKEW_MS = 400
"""Of a clock that is right."""
YEAR_MS = 365 * 24 * 3_600_000
JUMPS_MS = (1_000, 60_000, 3_600_000, YEAR_MS, 20 * YEAR_MS, 60 * YEAR_MS)
CHANGE_EVERY_MS = 1_500.0


class WallClocks:
    """What is drawn for them moves nothing else of a seed's run."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.stream("wall clocks")

    def begin(self) -> None:
        members = self._cluster.members
        if not self._cluster.profile.time_marks:
            return
        for member in members:
            member.wall_clock.set(0.0, jump_ms=self._random.randint(-MOST_SKEW_MS, MOST_SKEW_MS))
        founders = self._cluster.profile.size
        wrong = self._random.sample(members, self._random.randint(0, (founders - 1) // 2))
        for member in wrong:
            member.wall_clock.is_right = False
        self._change()

    def _change(self) -> None:
        cluster, draw = self._cluster, self._random
        for member in cluster.members:
            if not member.wall_clock.is_right and draw.random() < 0.5:
                jump_ms = draw.choice(JUMPS_MS) * draw.choice((-1, 1))
                rate = draw.choice((1.0, 1.0, 0.0, 100.0, -1.0))
                member.wall_clock.set(cluster.now_ms, jump_ms=jump_ms, rate=rate)
                cluster.trace.count("fault: wall clock")
        cluster.at(draw.expovariate(1 / CHANGE_EVERY_MS), self._change)
