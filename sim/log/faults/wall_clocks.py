"""WallClocks: a few members' wall clocks are wrong, by years too: fewer than a quorum of the
founders, and spare members may be among them. They jump, stand still and run backwards, and stay wrong
when faults have stopped.

Where `clocks_jump` all the others are years ahead together now and then, as from a time server that is
wrong, and right again a little later. An operator may reset the clock of the log then."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from quorumlog.node.operator_orders import ResetOutcome

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

MOST_SKEW_MS = 400
"""Of a clock that is right."""
YEAR_MS = 365 * 24 * 3_600_000
JUMPS_MS = (1_000, 60_000, 3_600_000, YEAR_MS, 20 * YEAR_MS, 60 * YEAR_MS)
CHANGE_EVERY_MS = 1_500.0
JUMP_EVERY_MS = 6_000.0
AHEAD_MS = 1_500.0


class WallClocks:
    """What is drawn for them moves nothing else of a seed's run."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.stream("wall clocks")
        self._jumps = cluster.stream("clock jumps")
        self._jumped: dict[SimMember, float] = {}
        """By how much each is ahead that will be right again."""

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
        if self._cluster.profile.clocks_jump:
            self._cluster.at(self._jumps.expovariate(1 / JUMP_EVERY_MS), self._jump)

    def stop(self) -> None:
        self._come_back()

    def _jump(self) -> None:
        cluster, draw = self._cluster, self._jumps
        if not cluster.is_faulty:
            return
        self._come_back()
        jump_ms = draw.choice((1, 10, 60)) * YEAR_MS
        for member in cluster.members:
            if member.wall_clock.is_right:
                self._jumped[member] = jump_ms
                member.wall_clock.is_right = False
                member.wall_clock.was_ahead = True
                member.wall_clock.set(cluster.now_ms, jump_ms=jump_ms)
        cluster.trace.count("fault: all wall clocks jump")
        cluster.at(draw.expovariate(1 / AHEAD_MS), self._come_back)
        cluster.at(draw.expovariate(1 / JUMP_EVERY_MS), self._jump)

    def _come_back(self) -> None:
        jumped, self._jumped = self._jumped, {}
        for member, jump_ms in jumped.items():
            member.wall_clock.set(self._cluster.now_ms, jump_ms=-jump_ms)
            member.wall_clock.is_right = True
        if jumped and self._jumps.random() < 0.5:
            self._cluster.at(self._jumps.uniform(500, 3000), self._reset)

    def _reset(self) -> None:
        """Asked of everybody: who leads does it."""
        cluster = self._cluster
        if self._jumped or not cluster.is_faulty:
            return
        for member in cluster.members:
            if member.is_up:
                member.enter(partial(self._ask, member))

    def _ask(self, member: SimMember) -> None:
        def done(outcome: ResetOutcome) -> None:
            self._cluster.trace.count(f"clock reset: {type(outcome).__name__}")

        member.node.orders.reset_clock(done)

    def _change(self) -> None:
        cluster, draw = self._cluster, self._random
        for member in cluster.members:
            if not member.wall_clock.is_right and draw.random() < 0.5:
                jump_ms = draw.choice(JUMPS_MS) * draw.choice((-1, 1))
                rate = draw.choice((1.0, 1.0, 0.0, 100.0, -1.0))
                member.wall_clock.set(cluster.now_ms, jump_ms=jump_ms, rate=rate)
                cluster.trace.count("fault: wall clock")
        cluster.at(draw.expovariate(1 / CHANGE_EVERY_MS), self._change)
