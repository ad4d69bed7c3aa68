"""LinkFaults: data that comes slowly, in bursts, or not at all, while heartbeats pass; until `stop`.

Drawn from a stream of its own, so that it moves nothing of the runs that have none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, product

from quorumlog.testing.faults.fault_context import FaultContext
from quorumlog.testing.network.pipe import Pipe
from quorumlog.testing.network.sim_link import Direction
from quorumlog.testing.profile import random_beside


class LinkFaults:
    def __init__(self, context: FaultContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self._profile = context.profile
        self._random = random_beside(context.random, "links")
        self._kinds: dict[str, Callable[[], Callable[[Pipe], None]]] = {
            "throttled link": self._throttle,
            "bursty link": self._burst,
            "black hole": self._swallow,
        }
        self._numbers = count(1)
        self._newest: dict[Direction, int] = {}
        """Number of the fault that each way has: the end of an older one ends nothing."""

    def begin(self) -> None:
        if self._profile.link_kinds:
            after_ms = self._random.expovariate(1 / self._profile.link_fault_every_ms)
            self._cluster.at(after_ms, self._strike)

    def stop(self) -> None:
        for pipe in self._cluster.network.pipes.values():
            pipe.limits(None)

    def _strike(self) -> None:
        if not self._cluster.is_faulty:
            return
        kind, ways = self._random.choice(self._profile.link_kinds), self._ways()
        number = next(self._numbers)
        self._context.note(kind, str(ways))
        limit = self._kinds[kind]()
        timeout_ms = self._profile.consensus.election_timeout_ms
        lasts_ms = self._random.choice((1, 4, 12)) * timeout_ms * self._random.uniform(0.5, 1)
        for way in ways:
            self._newest[way] = number
            limit(self._cluster.network.pipes[way])
            self._cluster.at(lasts_ms, partial(self._end, way, number))
        self.begin()

    def _end(self, way: Direction, number: int) -> None:
        if self._newest[way] == number:
            self._cluster.network.pipes[way].limits(None)

    def _ways(self) -> list[Direction]:
        """From one member to some others, from these to it, or both; often from the leader to all."""
        members = self._cluster.members
        leading = [m for m in members if m.is_up and m.node.raft.role.value == "leader"]
        chosen = self._random.choice(members)
        me = (leading[0] if leading and self._random.random() < 0.6 else chosen).member_id
        others = [member.member_id for member in members if member.member_id != me]
        if self._random.random() < 0.5:
            others = self._random.sample(others, self._random.randint(1, len(others)))
        outward, inward = list(product([me], others)), list(product(others, [me]))
        return self._random.choice((outward, inward, outward + inward))

    # ---------------------------------------------------------------- what a way is like then

    def _throttle(self) -> Callable[[Pipe], None]:
        bytes_per_ms = self._random.choice((1.0, 5.0, 30.0))
        room_bytes = self._random.choice((500, 10_000, None))
        return lambda pipe: pipe.limits(bytes_per_ms, room_bytes=room_bytes)

    def _burst(self) -> Callable[[Pipe], None]:
        burst_ms = self._random.choice((0.2, 1.0)) * self._profile.consensus.election_timeout_ms
        return lambda pipe: pipe.limits(None, burst_ms=burst_ms)

    def _swallow(self) -> Callable[[Pipe], None]:
        largest_bytes = self._random.choice((200, 400, 1_000))
        return lambda pipe: pipe.limits(None, largest_bytes=largest_bytes)
