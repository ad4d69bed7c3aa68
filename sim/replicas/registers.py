"""Simulated registers: what each coordinator promises, and no more, with a clock of its own.

Ways to it delay and lose requests and answers; here stands what becomes of leases. All end late, none
early, and a new leader gives each its full time again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from quorumlog.broker.failover import (
    NO_HOLDER,
    RELAYS_PER_LEASE,
    CoordinatorAnswer,
    CoordinatorRequest,
    CoordinatorSnapshot,
    ElectionRecord,
    GrantedLease,
    PutRecord,
    Renew,
)
from sim.replicas.machines import Clock

if TYPE_CHECKING:
    from sim.replicas.world import World

COORDINATOR = "coordinator"

LEADER_CHANGE_MS = 15_000.0
ETCD_LATE_MS = 500.0


class SimRegister:
    """Our key-value store: a lease ends when its time is over."""

    relays_renewals = False

    def __init__(
        self,
        world: World,
        lease_ms: int,
        taking: Callable[[ElectionRecord], None],
        changing: Callable[[ElectionRecord], None],
    ) -> None:
        """`lease_ms`: that brokers ask for. `taking`: told of each leadership in the moment that it
        begins; `changing`: of each record."""
        self._world = world
        self._lease_ms = lease_ms
        self._taking = taking
        self._changing = changing
        self.has_faults = True
        self._clock = Clock(world.clock, world.random)
        self._numbers = count(1)
        self._ttl_ms: dict[int, int] = {}
        self._ends_ms: dict[int, float] = {}
        """Of each lease, by the own clock."""
        self.revision = 0
        self.record: ElectionRecord | None = None
        self._holder = NO_HOLDER
        self.last_put_ms = 0.0
        """When one was asked for."""
        self.watchers: dict[str, Callable[[], None]] = {}
        """Told of each change soon, but for what is lost on the way."""
        self._change_leader()

    def ask(
        self, sender: str, request: CoordinatorRequest, answer: Callable[[CoordinatorAnswer], None]
    ) -> None:
        """The answer may never come, and the request may be carried out although it does not."""
        if isinstance(request, PutRecord):
            self.last_put_ms = self._world.clock.now_ms

        def arrive() -> None:
            if self._passes(sender, request):
                found = request.ask(self)
                self._world.send(COORDINATOR, sender, lambda: answer(found))

        self._world.send(sender, COORDINATOR, arrive)

    @property
    def holder(self) -> int:
        return self._holder if self._stands(self._holder) else NO_HOLDER

    # ---------------------------------------------------------------- as Coordinator

    def read(self) -> CoordinatorSnapshot:
        record = None if self.record is None else self.record.encode()
        return CoordinatorSnapshot(self.revision, record, self.holder)

    def grant(self, ttl_ms: int) -> GrantedLease:
        lease = next(self._numbers)
        self._ttl_ms[lease] = self._granted_ms(ttl_ms)
        self._begin(lease)
        return GrantedLease(lease, self._ttl_ms[lease])

    def put(self, revision: int, record: bytes, lease: int, *, takes: bool) -> int | None:
        holder = NO_HOLDER if takes else lease
        if revision != self.revision or self.holder != holder or not self._stands(lease):
            return None
        held = ElectionRecord.decode(record)
        if takes:
            self._taking(held)
        self._changing(held)
        self.revision += 1
        self.record = held
        self._holder = lease
        self._tell()
        return self.revision

    def renew(self, lease: int) -> int:
        if not self._stands(lease):
            return 0
        self._renew(lease)
        return self._ttl_ms[lease]

    def revoke(self, lease: int) -> None:
        if self._ends_ms.pop(lease, None) is not None:
            self._ended(lease)

    def _tell(self) -> None:
        random = self._world.random
        for name, changed in self.watchers.items():
            if not self.has_faults or random.random() < 0.8:
                self._world.send(COORDINATOR, name, changed)

    def _ended(self, lease: int) -> None:
        if lease == self._holder and not self._stands(lease):
            self._holder = NO_HOLDER
            self._tell()

    # ---------------------------------------------------------------- what differs

    def _passes(self, sender: str, request: CoordinatorRequest) -> bool:
        return True

    def _granted_ms(self, ttl_ms: int) -> int:
        return ttl_ms

    def _end_ms(self, ttl_ms: int) -> float:
        """Of a lease that has its full time now."""
        return self._clock() + ttl_ms

    def _renew(self, lease: int) -> None:
        self._begin(lease)

    # ---------------------------------------------------------------- leases

    def _begin(self, lease: int) -> None:
        ends_ms = max(self._ends_ms.get(lease, 0.0), self._end_ms(self._ttl_ms[lease]))
        self._ends_ms[lease] = ends_ms
        left_ms = self._clock.true_ms(ends_ms - self._clock())
        self._world.clock.at(left_ms + 1.0, lambda: self._ended(lease))

    def _stands(self, lease: int) -> bool:
        return self._clock() < self._ends_ms.get(lease, 0.0)

    def _change_leader(self) -> None:
        for lease in filter(self._stands, list(self._ends_ms)):
            self._begin(lease)
        self._world.clock.at(
            self._world.random.uniform(0.2, 2.0) * LEADER_CHANGE_MS, self._change_leader
        )


class SimEtcd(SimRegister):
    """Counts whole seconds, and looks for leases that have ended twice a second."""

    def _granted_ms(self, ttl_ms: int) -> int:
        return -(-ttl_ms // 1000) * 1000

    def _end_ms(self, ttl_ms: int) -> float:
        return super()._end_ms(ttl_ms) + self._world.random.uniform(0.0, ETCD_LATE_MS)


@dataclass(slots=True)
class Follower:
    """A server of ZooKeeper, which a broker is connected to."""

    cut_until_ms: float = 0.0
    """It hears its clients until then, and not its leader."""
    touched: set[int] = field(default_factory=set)
    """Sessions that it has heard of, and the leader has not."""


class SimZooKeeper(SimRegister):
    """Sessions end at a tick of the leader, which learns of them with each ping of a follower: twice a
    tick. A leader that has been replaced answers reads for a while."""

    relays_renewals = True

    def __init__(
        self,
        world: World,
        lease_ms: int,
        taking: Callable[[ElectionRecord], None],
        changing: Callable[[ElectionRecord], None],
    ) -> None:
        self._tick_ms = lease_ms / RELAYS_PER_LEASE
        self._followers: dict[str, Follower] = {}
        self._before = CoordinatorSnapshot(0, None, NO_HOLDER)
        super().__init__(world, lease_ms, taking, changing)
        self._ping()
        self._cut()

    def read(self) -> CoordinatorSnapshot:
        found = super().read()
        is_old = self.has_faults and self._world.random.random() < 1 / 20
        return self._before if is_old else found

    def put(self, revision: int, record: bytes, lease: int, *, takes: bool) -> int | None:
        before = super().read()
        done = super().put(revision, record, lease, takes=takes)
        if done is not None:
            self._before = before
        return done

    def _passes(self, sender: str, request: CoordinatorRequest) -> bool:
        follower = self._followers.setdefault(sender, Follower())
        if isinstance(request, Renew | PutRecord):
            follower.touched.add(request.lease)
        return self._hears_leader(follower)

    def _hears_leader(self, follower: Follower) -> bool:
        return not self.has_faults or self._world.clock.now_ms >= follower.cut_until_ms

    def _end_ms(self, ttl_ms: int) -> float:
        return (super()._end_ms(ttl_ms) // self._tick_ms + 1) * self._tick_ms

    def _renew(self, lease: int) -> None:
        """With the next ping."""

    def _ping(self) -> None:
        for follower in self._followers.values():
            if self._hears_leader(follower):
                for lease in filter(self._stands, follower.touched):
                    self._begin(lease)
                follower.touched.clear()
        self._world.clock.at(self._clock.true_ms(self._tick_ms / 2), self._ping)

    def _cut(self) -> None:
        random = self._world.random
        for follower in self._followers.values():
            if random.random() < 1 / 4:
                follower.cut_until_ms = (
                    self._world.clock.now_ms + random.uniform(0.1, 2.0) * self._lease_ms
                )
        self._world.clock.at(random.uniform(0.2, 2.0) * self._lease_ms, self._cut)


REGISTERS = (SimRegister, SimEtcd, SimZooKeeper)
