"""Brokers on simulated disks, and the time of their machines."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

from quorumlog.broker.config import SYNC_FLUSH, MessageStoreConfig
from quorumlog.broker.epochs import Peer, Run
from quorumlog.broker.failover import CoordinatorAnswer, CoordinatorRequest, FailoverRules, OnDisk
from quorumlog.broker.replication import replica as replicas
from quorumlog.broker.replication.links import LinkWork, SlaveLink
from quorumlog.broker.replication.replica import BrokerReplica, ReplicaObserver
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.errors import LedgerError
from quorumlog.testing.disk import SimDisk
from sim.replicas.promises import ROOT
from sim.replicas.users import OwnUsers

if TYPE_CHECKING:
    from sim.replicas.world import World

SMALL = MessageStoreConfig(
    flush_disk_type=SYNC_FLUSH,
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    reserve_step_bytes=4096,
    message_index_enable=False,
)
TICK_MS = 50.0
MOST_CLOCK_ERROR = 0.02
"""Two clocks differ by twice as much at most, which is below `CLOCK_DRIFT`."""


class Moments:
    """The one true time, and what is to come. In a script a millisecond passes with each look, so that
    slaves fall behind by what they lack, and not by being looked at."""

    def __init__(self, look_ms: float = 1.0) -> None:
        self.now_ms = 1_700_000_000_000.0
        self._look_ms = look_ms
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def __call__(self) -> float:
        self.now_ms += self._look_ms
        return self.now_ms

    def at(self, delay_ms: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._numbers), act))

    def advance(self, ms: float) -> None:
        stop_ms = self.now_ms + ms
        while self._events and self._events[0][0] <= stop_ms:
            when, _, act = heapq.heappop(self._events)
            self.now_ms = max(self.now_ms, when)
            act()
        self.now_ms = max(self.now_ms, stop_ms)


class Clock:
    """Of one machine, which runs a little faster or slower than others."""

    def __init__(self, moments: Moments, random: Random) -> None:
        self._moments = moments
        self.rate = random.uniform(1 - MOST_CLOCK_ERROR, 1 + MOST_CLOCK_ERROR)

    def __call__(self) -> float:
        return self.rate * self._moments()

    def true_ms(self, local_ms: float) -> float:
        """How long that takes in truth."""
        return local_ms / self.rate


class Broker(ReplicaObserver):
    def __init__(self, world: World, name: str, first_role: BrokerRole, master: str) -> None:
        self.world = world
        self.name = name
        self.first_role = first_role
        self.first_master = master
        self.disk = SimDisk()
        self.clock: Moments | Clock = world.clock
        if world.is_harsh:
            self.clock = Clock(world.clock, world.random)
        self.directories = 0
        self.replica: BrokerReplica | None = None
        self.is_paused = False
        self.is_slow = False
        """Its disk."""
        self.own_users: OwnUsers
        """In a run with users."""
        self.start(world.config if not master else replace(world.config, in_sync_replicas=0))

    def start(self, config: MessageStoreConfig | None = None) -> None:
        world = self.world
        self.disk.crash_countdown = None
        self.is_paused = False
        self.looked = (0, 0)
        """What a consumer here has seen: messages of the queue, and cuts of the log before."""
        self.held: list[Callable[[], None]] = []
        """What comes while it is paused."""
        self.to_do: deque[Callable[[], None]] = deque()
        """For its disk, in this order."""
        self.received: tuple[SlaveLink, LinkWork] | None = None
        """As a slave, and not written yet."""
        self.last_run: Run | None = None
        """The newest that `Promises` knows of."""
        store = ReplicaStore(
            ROOT,
            config or world.config,
            disk=self.disk,
            wall_clock=world.clock,
            clock=self.clock,
            topics={"t": 1},
        )
        me = Peer(id=self.name, address=self.name, ha_address=self.name)
        with patch.object(replicas, "new_directory_id", self.draw_directory_id):
            self.replica = BrokerReplica(
                store,
                me,
                self.first_role,
                master_ha_address=self.first_master,
                is_elected=world.register is not None,
            )
        self.replica.observer = self
        world.directories[self.living.directory_id] = self.disk
        self.elected = None if world.register is None else Elected(self)
        if world.user_work is not None:
            self.own_users = OwnUsers(self)

    def draw_directory_id(self) -> str:
        self.directories += 1
        return f"{self.name}{self.directories}"

    def role_changed(self) -> None:
        """In the product the loop comes to it in a moment, and until then old links live."""
        world, replica = self.world, self.replica
        if not world.is_harsh or world.random.random() < 0.3:
            world.cut(self.name)
            return

        def ended() -> None:
            if self.replica is replica:
                world.cut(self.name)

        self.later(world.random.choice((1.0, 30.0)), ended)

    def empty(self, master: str) -> None:
        """Its directory is lost, and another one is there."""
        self.crash(self.world.random, power=False)
        self.disk = SimDisk()
        self.first_role, self.first_master = BrokerRole.SLAVE, master
        self.start()

    @property
    def living(self) -> BrokerReplica:
        assert self.replica is not None, self.name
        return self.replica

    @property
    def is_running(self) -> bool:
        return self.replica is not None and not self.is_paused

    def crash(self, random: Random, *, power: bool) -> None:
        self.replica = None
        self.world.cut(self.name)
        if power:
            self.disk.lose_power(random)
        else:
            self.disk.kill()

    def later(self, delay_ms: float, act: Callable[[], None]) -> None:
        """In this process; when it goes on, if it is paused then."""
        replica = self.replica

        def run() -> None:
            if self.replica is not replica or replica is None:
                return
            if self.is_paused:
                self.held.append(run)
            else:
                self.world.guarded(self.name, act)

        self.world.clock.at(delay_ms, run)

    def go_on(self) -> None:
        self.is_paused = False
        held, self.held = self.held, []
        for run in held:
            run()

    def work(self) -> None:
        """What its threads would do."""
        if self.to_do:
            self.to_do.popleft()()
        store = self.living.store
        store.flush_once()
        store.reput_once()
        if self.world.user_work is not None:
            self.own_users.turn()


class Elected:
    """As `FailoverService`: its rules, which ask a register and tell the replica."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        world, replica = broker.world, broker.living
        assert world.register is not None
        self._register = world.register
        self.rules = FailoverRules(
            replica,
            world.options,
            broker.clock(),
            self._start,
            relays_renewals=self._register.relays_renewals,
        )
        replica.may_acknowledge = lambda: self.rules.may_acknowledge(broker.clock())
        replica.stop_acknowledging()

        def changed() -> None:
            if broker.replica is replica:
                broker.later(0.0, self._changed)

        self._register.watchers[broker.name] = changed
        broker.later(0.0, self._tick)

    def _changed(self) -> None:
        self.rules.changed(self.broker.clock())

    def _tick(self) -> None:
        self.rules.tick(self.broker.clock())
        self.broker.later(TICK_MS, self._tick)

    def _start(self, step: CoordinatorRequest | OnDisk) -> None:
        if isinstance(step, OnDisk):
            self._carry_out_later(step)
        else:
            self._ask(step)

    def _ask(self, request: CoordinatorRequest) -> None:
        broker, is_open = self.broker, True

        def on_answer(answer: CoordinatorAnswer, error: str = "") -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                self.rules.answered(request, answer, broker.clock(), error)
                self.rules.tick(broker.clock())

        # In the incarnation that has asked: a broker's `later` says so.
        arrived = broker.replica

        def arrive(answer: CoordinatorAnswer) -> None:
            if broker.replica is arrived:
                broker.later(0.0, lambda: on_answer(answer))

        self._register.ask(broker.name, request, arrive)
        timeout_ms = broker.world.options.lease_ms / 4
        broker.later(timeout_ms, lambda: on_answer(None, "no answer in time"))

    def _carry_out_later(self, step: OnDisk) -> None:
        def carry_out() -> None:
            error = ""
            try:
                step.do(self.broker.living)
            except LedgerError as refused:
                error = str(refused)
            self.rules.done(step, self.broker.clock(), error)

        broker = self.broker
        broker.to_do.append(carry_out)
        replica = broker.replica

        def due() -> None:
            if broker.replica is replica and carry_out in broker.to_do:
                broker.to_do.popleft()()

        slow = 20.0 if broker.is_slow else 1.0
        broker.later(slow * broker.world.random.uniform(0.5, 20.0), due)
