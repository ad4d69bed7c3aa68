"""FailoverRun: two to five brokers, a coordinator, producers, consumers and faults; then none of those,
and a group that must become whole."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from quorumlog.broker.failover.failover_rules import FailoverOptions
from quorumlog.broker.message_log import Role
from quorumlog.testing.cluster import NotWhole
from sim.failover.promises import Promises
from sim.failover.sim_broker import SimBroker, SimDisk
from sim.failover.sim_registers import REGISTERS, SimRegister
from sim.failover.world import COORDINATOR, World

FAULTS = (
    "kill",
    "power loss",
    "pause",
    "cut",
    "one-way cut",
    "cut off",
    "coordinator cut",
    "wipe",
    "resign",
)
FAULTS_MS = 60_000.0
WHOLE_MS = 40_000.0
FAULT_EVERY_MS = 3_000.0
PUT_MS, READ_MS = 25.0, 20.0


@dataclass(slots=True)
class FailoverResult:
    seed: int
    failure: str = ""
    """Empty, or what was violated, with the place."""
    counts: Counter[str] = field(default_factory=Counter)
    trace_hash: int = 0


class FailoverRun:
    def __init__(
        self,
        seed: int,
        faults: Sequence[str] = FAULTS,
        tell: Callable[[str], None] | None = None,
        *,
        options: FailoverOptions | None = None,
        in_sync_replicas: int = 0,
        register: type[SimRegister] | None = None,
        brokers: str = "",
    ) -> None:
        """`options`, `in_sync_replicas`, `register`, `brokers` (a letter each): drawn if not given."""
        self.world = World(seed, tell)
        random = self.world.random
        names = brokers or random.choice(("ab", "abc", "abc", "abcde"))
        self.in_sync_replicas = in_sync_replicas or min(random.choice((1, 2, 2, 3)), len(names))
        self.options = options or FailoverOptions(
            lease_ms=random.choice((1_000, 3_000)), in_sync_timeout_ms=random.choice((300, 1_500))
        )
        self._faults = faults
        self._sessions = count(1)
        self._messages = count(1)
        self._has_faults = bool(faults)
        self.brokers: dict[str, SimBroker] = {}
        self.wiped: list[SimDisk] = []
        self.promises = Promises(self)
        made = register or random.choice(REGISTERS)
        lease_ms = self.options.lease_ms
        told = (self.promises.takes, self.promises.may_lead)
        self.coordinator = made(self.world, lease_ms, *told, has_faults=bool(faults))
        for broker_id in names:
            self.brokers[broker_id] = SimBroker(self, broker_id)
        self._put()
        self._read()
        if faults:
            self.world.at(FAULT_EVERY_MS, self._fault)

    def session_number(self) -> int:
        return next(self._sessions)

    def say(self, sender: SimBroker, receiver: str, act: Callable[[SimBroker], None]) -> None:
        broker = self.brokers[receiver]
        incarnation = broker.incarnation

        def arrive() -> None:
            if broker.is_up and broker.incarnation == incarnation:
                broker.later(0.0, lambda: act(broker))

        self.world.send(sender.id, receiver, arrive)

    # ---------------------------------------------------------------- work

    def _put(self) -> None:
        broker = self.world.random.choice(list(self.brokers.values()))
        number = next(self._messages)
        if broker.is_up:
            broker.later(0.0, lambda: broker.put(number))
        self.world.at(PUT_MS, self._put)

    def _read(self) -> None:
        for broker in self.brokers.values():
            if not broker.is_up or broker.is_paused:
                continue
            if broker.rules.may_acknowledge(broker.clock.now_ms):
                self.promises.believes(broker)
            if broker.serves:
                self.promises.read(broker)
        self.world.at(READ_MS, self._read)

    # ---------------------------------------------------------------- faults

    def _fault(self) -> None:
        if not self._has_faults:
            return
        random = self.world.random
        kind = random.choice(self._faults)
        broker = random.choice([*self.brokers.values(), *self._leaders()])
        lasts_ms = random.choice((50.0, 600.0, 2_500.0, 6_000.0))
        if kind == "wipe" and len(self._whole()) < len(self.brokers):
            kind = "kill"  # two copies at once are more than is promised
        if broker.is_up and not broker.is_paused:
            self.world.note(broker.id, kind)
            self._befall(kind, broker, lasts_ms)
        self.world.at(random.uniform(0.2, 2.0) * FAULT_EVERY_MS, self._fault)

    def _leaders(self) -> list[SimBroker]:
        return [b for b in self.brokers.values() if b.is_up and b.role is not Role.SLAVE]

    def _befall(self, kind: str, broker: SimBroker, lasts_ms: float) -> None:
        if kind == "pause":
            broker.is_paused = True
            incarnation = broker.incarnation

            def go_on() -> None:
                if broker.incarnation == incarnation and broker.is_up:
                    broker.go_on()

            self.world.at(lasts_ms, go_on)
        elif kind == "resign":
            broker.rules.resign(broker.clock.now_ms)
        elif kind in ("kill", "power loss", "wipe"):
            broker.stop(loses_power=kind == "power loss")
            if kind == "wipe":
                broker.wipe()
            self.world.at(lasts_ms, broker.start)
        else:
            self._cut(kind, broker, lasts_ms)

    def _cut(self, kind: str, broker: SimBroker, lasts_ms: float) -> None:
        others = [broker_id for broker_id in self.brokers if broker_id != broker.id]
        if kind == "coordinator cut":
            others = [COORDINATOR]
        elif kind == "cut off":
            others = [*others, COORDINATOR]
        else:
            others = [self.world.random.choice(others)]
        ways = [(broker.id, other) for other in others]
        if kind != "one-way cut":
            ways += [(other, broker.id) for other in others]
        self.world.cut.update(ways)
        self.world.at(lasts_ms, lambda: self.world.cut.difference_update(ways))

    # ---------------------------------------------------------------- the end

    def _whole(self) -> list[SimBroker]:
        """Brokers that are in sync, by the coordinator."""
        record = self.coordinator.record
        if record is None:
            return []
        return [
            broker
            for broker in self.brokers.values()
            if broker.is_up and record.in_sync.get(broker.id) == broker.directory_id
        ]

    def heal(self) -> None:
        self._has_faults = False
        self.world.cut.clear()
        self.coordinator.has_faults = False
        for broker in self.brokers.values():
            if not broker.is_up:
                broker.start()
            elif broker.is_paused:
                broker.go_on()

    def become_whole(self) -> None:
        """Raises NotWhole, Violation."""
        self.heal()
        stop_ms = self.world.now_ms + WHOLE_MS
        while len(self._whole()) < len(self.brokers) or not self.coordinator.holder:
            if self.world.now_ms > stop_ms:
                problems = {broker.id: broker.rules.problem for broker in self.brokers.values()}
                raise NotWhole(f"{self.coordinator.record}, {problems}")
            self.world.run_until(self.world.now_ms + 100)
        before = len(self.promises.acknowledgements)
        while len(self.promises.acknowledgements) < before + 10:
            if self.world.now_ms > stop_ms:
                raise NotWhole("nothing is acknowledged any more")
            self.world.run_until(self.world.now_ms + 100)
        for broker in self._whole():
            self.promises.holds_all(broker)


def run_failover(
    seed: int,
    *,
    faults: Sequence[str] = FAULTS,
    faults_ms: float = FAULTS_MS,
    tell: Callable[[str], None] | None = None,
    register: type[SimRegister] | None = None,
) -> FailoverResult:
    """Same seed and arguments, same run. Raises nothing."""
    result = FailoverResult(seed)
    try:
        run = FailoverRun(seed, faults, tell, register=register)
        result.counts = run.world.trace.counts
        run.world.run_until(faults_ms)
        run.become_whole()
        result.trace_hash = run.world.trace.hash
    except Exception:  # whatever it is, this run has failed, and the others go on
        result.failure = traceback.format_exc()
    return result
