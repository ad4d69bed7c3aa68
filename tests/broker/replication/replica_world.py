"""Brokers on simulated disks, their connections as bytes that come when the world lets them, and an
operator who switches. One seed decides everything."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

from quorumlog.broker.client.switch_rules import rank_of
from quorumlog.broker.client.switching import Asked, switch_surveyed
from quorumlog.broker.message_log import PutOutcome, PutRequest, Role
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.replication.protocol.master_link import MasterLink
from quorumlog.broker.replication.protocol.slave_link import SlaveLink
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.replica_master import DRAIN_MS
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.replication.roles import BrokerAddress
from quorumlog.broker.serving.replica_requests import state_of, work_of
from quorumlog.broker.wire.broker_messages import ReplicaRequest, ReplicaResponse
from quorumlog.errors import LedgerError, OutcomeUnknown, Unreachable
from quorumlog.sim.disk.sim_disk import Crashed, SimDisk
from tests.broker.store.store_making import SMALL, Clock, is_ok, numbered, numbers_in_queue, records_of

ROOT = "store"
KEY = QueueKey("t", 0)
_TIMES = {"heartbeat_ms": 1e12, "silence_ms": 1e15}


class Moments(Clock):
    """A millisecond a call: slaves fall behind by what they lack, not by being looked at."""

    def __call__(self) -> float:
        self.now_ms += 1
        return self.now_ms


class OperatorGone(Exception):
    """The process of a switch is killed between two of its steps."""


class Broker:
    def __init__(self, world: World, name: str, first_role: Role, master: str) -> None:
        self.world = world
        self.name = name
        self.first_role = first_role
        self.first_master = master
        self.disk = SimDisk()
        self.replica: Replica | None = None
        self.seen: list[int] = []
        self.start()

    def start(self) -> None:
        self.disk.crash_countdown = None
        clock = self.world.clock
        store = ReplicaStore(ROOT, SMALL, disk=self.disk, wall_clock=clock, clock=clock, topics={"t": 1})
        address = BrokerAddress(self.name, self.name, self.name)
        self.replica = Replica(store, address, self.first_role, master_ha_address=self.first_master)
        self.replica.role_changed = lambda: self.world.cut(self.name)

    def empty(self, master: Broker | None) -> None:
        assert master is not None
        self.disk, self.seen = SimDisk(), []
        self.first_role, self.first_master = Role.SLAVE, master.name
        self.start()

    @property
    def living(self) -> Replica:
        assert self.replica is not None, self.name
        return self.replica

    def crash(self, random: Random, *, power: bool) -> None:
        self.replica = None
        self.world.cut(self.name)
        if power:
            self.disk.lose_power(random)
        else:
            self.disk.kill()

    def work(self) -> None:
        """What its threads would do."""
        store = self.living.store
        store.flush_once()
        store.reput_once()

    def look(self) -> None:
        """A consumer reads what is shown here."""
        shown = numbers_in_queue(self.living.store)
        common = min(len(shown), len(self.seen))
        assert shown[:common] == self.seen[:common], f"{self.name} shows another past than before"
        if len(shown) > len(self.seen):
            self.seen = shown
        world = self.world
        common = min(len(shown), len(world.shown))
        assert shown[:common] == world.shown[:common], f"{self.name} shows what others do not"
        if len(shown) > len(world.shown):
            world.shown = shown


@dataclass
class Wire:
    """One connection of a slave to its master, and the bytes that are on the way."""

    master: str
    slave: str
    master_link: MasterLink
    slave_link: SlaveLink
    to_master: bytearray = field(default_factory=bytearray)
    to_slave: bytearray = field(default_factory=bytearray)


class SimulatedAsked(Asked):
    """`world.meanwhile`, if it is set, runs before each thing that is asked; the operator may be gone
    then."""

    def __init__(self, world: World, is_gone_at: int = -1) -> None:
        """`is_gone_at`: how many things it asks before it is killed."""
        super().__init__()
        self._world = world
        self._left = is_gone_at
        for name, broker in world.brokers.items():
            if broker.replica is None or name in world.away:
                self.unreachable[name] = "it is down"
                continue
            try:
                self.ask(name)
            except LedgerError as error:
                self.unreachable[name] = str(error)

    def _call(self, asked: str, request: ReplicaRequest) -> ReplicaResponse:
        if self._left == 0:
            raise OperatorGone
        self._left -= 1
        self._world.meanwhile()
        replica = self._world.brokers[asked].replica
        if replica is None or asked in self._world.away:
            raise Unreachable(f"{asked} is down")
        if request.verb:
            work = work_of(replica, request)
            assert work is not None, request
            try:
                work()
            except Crashed:
                broker = self._world.brokers[asked]
                self._world.story.append(f"{asked} crashes in a switch, at {request.verb}")
                broker.crash(self._world.random, power=self._world.random.random() < 0.5)
                raise OutcomeUnknown(f"{asked} is lost") from None
        return state_of(replica, dialect="quorumlog")

    def address_of(self, broker_id: str) -> str:
        return broker_id

    def leap(self) -> int:
        return self._world.random.randrange(1, 1_000)


class World:
    def __init__(self, seed: int, brokers: int = 3) -> None:
        self.random = Random(seed)
        self.clock = Moments()
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens between two steps of an operator."""
        self.brokers: dict[str, Broker] = {}
        self.wires: dict[str, Wire] = {}
        """By slave."""
        self.away: set[str] = set()
        """Reached neither by others nor by the operator, but alive."""
        self.ahead: set[str] = set()
        """Slaves that had more than a master that came back: an operator empties them in the end."""
        self.acknowledged: list[int] = []
        self.shown: list[int] = []
        """The longest past that any consumer has seen."""
        self.number = 0
        self.switches = 0
        self.story: list[str] = []
        for name in "abcde"[:brokers]:
            role, master = (Role.SLAVE, "a") if self.brokers else (Role.SYNC_MASTER, "")
            self.brokers[name] = Broker(self, name, role, master)

    # ---------------------------------------------------------------- connections

    def cut(self, name: str) -> None:
        for slave, wire in list(self.wires.items()):
            if name in (wire.master, wire.slave):
                del self.wires[slave]
                master = self.brokers[wire.master].replica
                if master is not None and wire.master_link.mark is not None:
                    master.slave_lost(wire.master_link.mark, wire.master_link)

    def connect(self, name: str) -> None:
        slave = self.brokers[name].replica
        if slave is None or slave.role is not Role.SLAVE or name in self.wires or name in self.away:
            return
        told = slave.master
        master_name = "" if told is None else told.ha_address
        if master_name not in self.brokers or master_name in self.away:
            return
        master = self.brokers[master_name].replica
        if master is None or not master.is_reigning:
            return
        now = self.clock()
        wire = Wire(
            master_name,
            name,
            MasterLink(master, now, **_TIMES),
            SlaveLink(slave.own_log(), now, **_TIMES),
        )
        self.wires[name] = wire

    def pump(self, name: str, most_bytes: int) -> None:
        """So many bytes arrive, either way."""
        wire = self.wires.get(name)
        if wire is None:
            return
        try:
            self._collect(wire)
            now = self.clock()
            part, wire.to_master = wire.to_master[:most_bytes], wire.to_master[most_bytes:]
            if part:
                wire.master_link.feed(bytes(part), now)
            self._collect(wire)  # what a link says goes out before more of the log
            self._push(wire)
            part, wire.to_slave = wire.to_slave[:most_bytes], wire.to_slave[most_bytes:]
            if part:
                wire.slave_link.feed(bytes(part), now)
            self._work(wire)
            self._collect(wire)
        except LedgerError as error:
            wire.slave_link.close(str(error))
        if self.wires.get(name) is wire and (wire.master_link.closed or wire.slave_link.closed):
            # It has what the master has lost; or it wrote what nobody acknowledged while the master's
            # log was empty, so that they have no epoch in common.
            why = wire.slave_link.closed
            if "lost what it had sent" in why or "shares no epoch" in why:
                self.ahead.add(name)
            self.story.append(f"{name}: {wire.master_link.closed or wire.slave_link.closed}")
            self.cut(name)

    def _collect(self, wire: Wire) -> None:
        for link, buffer in ((wire.master_link, wire.to_slave), (wire.slave_link, wire.to_master)):
            out, link.out = link.out, []
            for each in out:
                buffer += each

    def _push(self, wire: Wire) -> None:
        log = self.brokers[wire.master].living.store.commit_log
        link = wire.master_link
        if link.next_offset < 0 or link.closed:
            return
        end = log.max_offset
        size = min(end, log.files.stop_of(link.next_offset)) - link.next_offset
        size = min(size, self.random.choice((50, 400, 10_000)))
        if size > 0:
            for each in link.data(log.read_bytes(link.next_offset, size)):
                wire.to_slave += each
        else:
            link.confirmed()

    def _work(self, wire: Wire) -> None:
        replica, link = self.brokers[wire.slave].living, wire.slave_link
        work = link.take_work()
        if link.closed or not work:
            return
        if work.follow is not None:
            written = replica.follow(work.follow)
            link.follows(work.follow.start_offset, written.state_version)
        else:
            written = replica.take(work, link.epoch, asks_flush=link.asks_flush)
        link.done(*written, self.clock())

    # ---------------------------------------------------------------- what happens

    @property
    def masters(self) -> list[Broker]:
        return [
            b
            for b in self.brokers.values()
            if b.replica is not None and b.replica.role is not Role.SLAVE
        ]

    def put(self, broker: Broker) -> None:
        number = self.number
        self.number += 1

        def done(outcome: PutOutcome) -> None:
            if is_ok(outcome):
                self.acknowledged.append(number)

        batch = records_of(numbered(number, 1, size=self.random.choice((10, 100, 600))))
        broker.living.store.commit_log.put([PutRequest(batch, True, done)])

    def tick(self) -> None:
        """Time passes; who drained a master may be gone."""
        self.clock.now_ms += self.random.choice((1, 100, DRAIN_MS))
        for broker in self.masters:
            broker.living.end_drain()

    def join(self) -> None:
        for broker in self.masters:
            replica = broker.living
            marks = replica.wanting_to_count()
            if marks or replica.has_let_count:
                self.guarded(broker.name, partial(replica.let_count, marks))

    def forget_replaced(self) -> None:
        """An operator says that the directories that were emptied are lost for good, where the master
        lives."""
        for broker in self.masters:
            for name in broker.living._acks.replaced():
                with suppress(LedgerError):
                    broker.living.forget(name, unsafe=True)

    def switch(self, to: str, *, unsafe: bool = False, is_gone_at: int = -1) -> str:
        """Why it was refused; empty: it was done."""
        try:
            asked = SimulatedAsked(self, is_gone_at)
            switch_surveyed(asked, to, unsafe=unsafe)
        except OperatorGone:
            self.story.append(f"who switches to {to} is killed")
            return "gone"
        except LedgerError as error:
            self.story.append(f"no switch to {to}: {error}")
            return str(error)
        self.switches += 1
        self.story.append(f"switch to {to}")
        return ""

    def guarded(self, name: str, action: Callable[[], None]) -> None:
        """A simulated disk may end the process in the middle of it."""
        try:
            action()
        except Crashed:
            self.story.append(f"{name} crashes in the middle of what it does")
            broker = self.brokers[name]
            broker.crash(self.random, power=self.random.random() < 0.5)

    def check(self) -> None:
        for broker in self.brokers.values():
            if broker.replica is not None:
                broker.look()

    def settle(self) -> Broker:
        """Every fault ends; all brokers become the same."""
        self.away.clear()
        self.meanwhile = lambda: None
        for broker in self.brokers.values():
            broker.disk.crash_countdown = None
            if broker.replica is None:
                broker.start()
        master = None
        self.ahead.clear()
        for _ in range(300):
            newest = SimulatedAsked(self).master()
            # Only for the master that reigns: an older one may still be heard, and what it lacks may be
            # needed to find out who is the next.
            for name in sorted(self.ahead) if newest is not None else ():
                assert newest is not None
                self.story.append(f"{name} is emptied")
                self.brokers[name].crash(self.random, power=False)
                self.brokers[name].empty(self.brokers[newest.id])
            self.ahead.clear()
            for name in self.brokers:
                self.connect(name)
                self.pump(name, 1 << 20)
                self.brokers[name].work()
            self.join()
            self.forget_replaced()
            self.clock.now_ms += DRAIN_MS
            for broker in self.masters:
                broker.living.end_drain()
            asked = SimulatedAsked(self)
            reigning = asked.master()
            if reigning is None:
                best = max(asked.answers.values(), key=rank_of)
                self.switch(best.id)
            else:
                master = self.brokers[reigning.id]
                self.switch(reigning.id)  # whoever missed it is told
                end = master.living.max_offset
                if not end:
                    self.put(master)
                follow = all(name in self.wires for name in self.brokers if name != reigning.id)
                ends = [(b.living.confirm_offset, b.living.max_offset) for b in self.brokers.values()]
                if end and follow and all(each == (end, end) for each in ends):
                    break
        else:
            raise AssertionError(f"the brokers do not become the same: {self.story[-20:]}")
        assert master is not None
        for broker in self.brokers.values():
            broker.work()
        self.check()
        return master
