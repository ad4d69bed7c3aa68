"""SimCoordinator: a coordinator that does what it promises, with a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from quorumlog.broker.failover.coordinator import NO_HOLDER, ElectionRecord, Granted, Standing
from quorumlog.broker.failover.failover_rules import Answer
from quorumlog.broker.failover.failover_steps import (
    Change,
    Grant,
    Read,
    Renew,
    Request,
    Revoke,
    Take,
)
from quorumlog.broker.failover.simulated.world import COORDINATOR, Clock, World


class SimCoordinator:
    def __init__(
        self,
        world: World,
        taking: Callable[[ElectionRecord], None],
        changing: Callable[[ElectionRecord], None],
    ) -> None:
        """`taking`: told of each leadership in the moment that it begins; `changing`: of each record."""
        self._world = world
        self._taking = taking
        self._changing = changing
        self._clock = Clock(world)
        self._numbers = count(1)
        self._ttl_ms: dict[int, float] = {}
        self._ends_ms: dict[int, float] = {}
        """Of each lease, by the own clock."""
        self.revision = 0
        self.record: ElectionRecord | None = None
        self._holder = NO_HOLDER

    def ask(self, sender: str, request: Request, answer: Callable[[Answer], None]) -> None:
        """The answer may never come, and the request may be carried out although it does not."""

        def arrive() -> None:
            found = self._do(request)
            self._world.send(COORDINATOR, sender, lambda: answer(found))

        self._world.send(sender, COORDINATOR, arrive)

    @property
    def holder(self) -> int:
        return self._holder if self._stands(self._holder) else NO_HOLDER

    def _stands(self, lease: int) -> bool:
        return self._clock.now_ms < self._ends_ms.get(lease, 0.0)

    def _do(self, request: Request) -> Answer:
        if isinstance(request, Read):
            record = None if self.record is None else self.record.encode()
            return Standing(self.revision, record, self.holder)
        if isinstance(request, Grant):
            lease = next(self._numbers)
            self._ttl_ms[lease] = request.ttl_ms
            self._ends_ms[lease] = self._clock.now_ms + request.ttl_ms
            return Granted(lease, request.ttl_ms)
        if isinstance(request, Renew):
            if not self._stands(request.lease):
                return 0
            self._ends_ms[request.lease] = self._clock.now_ms + self._ttl_ms[request.lease]
            return int(self._ttl_ms[request.lease])
        if isinstance(request, Revoke):
            self._ends_ms.pop(request.lease, None)
            return 0
        assert isinstance(request, Take | Change)
        holder = NO_HOLDER if isinstance(request, Take) else request.lease
        if request.revision != self.revision or self.holder != holder or not self._stands(request.lease):
            return None
        if isinstance(request, Take):
            self._taking(request.record)
        self._changing(request.record)
        self.revision += 1
        self.record = request.record
        self._holder = request.lease
        return self.revision
