"""Brokers on simulated disks, their connections as bytes that come when the world lets them, and
operators who switch, add and remove. One seed decides everything."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from unittest.mock import patch

from quorumlog.broker.client.switching import Asked, SwitchReport, shown_by, switch_surveyed
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.epochs.epoch_history import RunKey
from quorumlog.broker.epochs.epoch_rule import named_by
from quorumlog.broker.errors import SwitchRefused
from quorumlog.broker.message_log import PutOutcome, PutRequest, Role
from quorumlog.broker.messages.message import PutResult
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.replication import replica as replicas
from quorumlog.broker.replication.protocol import old_dialect
from quorumlog.broker.replication.protocol.master_link import MasterLink
from quorumlog.broker.replication.protocol.old_dialect import OldMasterLink
from quorumlog.broker.replication.protocol.slave_link import SlaveLink
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.replica_master import DRAIN_MS
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.replication.roles import BrokerAddress
from quorumlog.broker.serving.replica_requests import state_of, work_of
from quorumlog.broker.wire.broker_messages import ReplicaRequest, ReplicaResponse
from quorumlog.errors import LedgerError, OutcomeUnknown, Unreachable
from quorumlog.testing.disk import Crashed, SimDisk
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
    def __init__(
        self,
        world: World,
        name: str,
        first_role: Role,
        master: str,
        config: MessageStoreConfig = SMALL,
    ) -> None:
        self.world = world
        self.name = name
        self.first_role = first_role
        self.first_master = master
        self.disk = SimDisk()
        self.directories = 0
        self.replica: Replica | None = None
        self.seen: list[int] = []
        self.start(config)

    def start(self, config: MessageStoreConfig = SMALL) -> None:
        self.disk.crash_countdown = None
        self.shown_since_start = 0
        clock = self.world.clock
        store = ReplicaStore(
            ROOT, config, disk=self.disk, wall_clock=clock, clock=clock, topics={"t": 1}
        )
        address = BrokerAddress(self.name, self.name, self.name)
        with patch.object(replicas, "new_directory_id", self.draw_directory_id):
            self.replica = Replica(store, address, self.first_role, master_ha_address=self.first_master)
        self.replica.role_changed = lambda: self.world.cut(self.name)

    def draw_directory_id(self) -> str:
        self.directories += 1
        return f"{self.name}{self.directories}"

    def empty(self, master: str) -> None:
        """Its directory is lost, and another one is there."""
        self.crash(self.world.random, power=False)
        self.disk, self.seen = SimDisk(), []
        self.first_role, self.first_master = Role.SLAVE, master
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
        world = self.world
        if world.is_past_given_up:
            return
        shown = numbers_in_queue(self.living.store)
        common = min(len(shown), len(self.seen))
        assert shown[:common] == self.seen[:common], f"{self.name} shows another past than before"
        assert len(shown) >= self.shown_since_start, f"{self.name} shows less than before"
        self.shown_since_start = len(shown)
        if len(shown) > len(self.seen):
            self.seen = shown
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
            if broker.replica is None or name in world.away or name in world.hidden:
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
        if replica is None or asked in self._world.away or asked in self._world.hidden:
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

    def leap(self) -> int:
        return self._world.random.randrange(1, 1_000)


class World:
    def __init__(self, seed: int, brokers: int = 3, copies: int = 0) -> None:
        """The first is the master and forms the group with the second; the others are added."""
        self.random = Random(seed)
        self.clock = Moments()
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens between two steps of an operator."""
        self.brokers: dict[str, Broker] = {}
        self.wires: dict[str, Wire] = {}
        """By slave."""
        self.away: set[str] = set()
        """Reached neither by others nor by the operator, but alive."""
        self.parted: set[frozenset[str]] = set()
        """Pairs that do not reach each other."""
        self.hidden: set[str] = set()
        """Not reached by the operator."""
        self.old: set[str] = set()
        """Slaves that speak as the release before, and to such a one."""
        self.refused: set[str] = set()
        """Slaves that cannot follow with what they have."""
        self.acknowledged: list[int] = []
        self.offsets: dict[int, int] = {}
        """Where each of them begins in the log."""
        self.shown: list[int] = []
        """The longest past that any consumer has seen."""
        self.is_past_given_up = False
        """With --unsafe: what was seen may go."""
        self.led: dict[RunKey, str] = {}
        """Which directory has begun which run."""
        self.number = 0
        self.switches = self.changes = self.wipes = self.given_up = 0
        self.most_wipes = self.random.choice((0, 0, 1, 2))
        self.story: list[str] = []
        config = replace(SMALL, in_sync_replicas=copies)
        for name in "abcde"[:brokers]:
            role, master = (Role.SLAVE, "a") if self.brokers else (Role.SYNC_MASTER, "")
            self.brokers[name] = Broker(self, name, role, master, config if not master else SMALL)

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
        if frozenset((name, master_name)) in self.parted:
            return
        master = self.brokers[master_name].replica
        if master is None or not master.is_leading:
            return
        now = self.clock()
        link = SlaveLink(slave.own_log(), now, **_TIMES)
        if name in self.old:
            with patch.object(old_dialect, "VERSION", ""):
                link = OldMasterLink(slave.own_log(), now, **_TIMES)
        self.wires[name] = Wire(master_name, name, MasterLink(master, now, **_TIMES), link)

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
            if "shares no epoch" in wire.slave_link.closed:
                self.refused.add(name)
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
        if size > 0 and link.is_of_newest_run:
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
            link.follows(work.follow.start_offset)
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
                assert isinstance(outcome, PutResult)
                self.acknowledged.append(number)
                self.offsets[number] = outcome.physical_offset

        batch = records_of(numbered(number, 1, size=self.random.choice((10, 100, 600))))
        broker.living.store.commit_log.put([PutRequest(batch, True, done)])

    def tick(self) -> None:
        """Time passes; who drained a master may be gone."""
        self.clock.now_ms += self.random.choice((1, 100, DRAIN_MS))
        for broker in self.masters:
            broker.living.end_drain()

    def note(self) -> None:
        """What masters write down from time to time."""
        for broker in self.masters:
            replica = broker.living
            if replica.has_confirmed_run:
                self.guarded(broker.name, replica.note_confirmed)
            elif joining := replica.joining():
                self.guarded(broker.name, partial(self.refusing, replica.add, joining))

    @staticmethod
    def refusing(action: Callable[..., None], *arguments: object) -> None:
        with suppress(LedgerError):
            action(*arguments)

    def change(self, name: str) -> None:
        """Who counts, or how many copies there are."""
        replica, random = self.brokers[name].living, self.random
        listed = replica.history.copy_list
        if listed is None:
            return
        other = random.choice(list(self.brokers))
        before = replica.history
        kind = random.random()
        if kind < 0.5:
            self.guarded(name, partial(self.refusing, replica.add, other))
        elif kind < 0.75:
            self.guarded(name, partial(self.refusing, replica.remove, other))
        else:
            copies = listed.copies + random.choice((-1, 1))
            self.guarded(name, partial(self.refusing, replica.set_copies, copies))
        if self.brokers[name].replica is replica and replica.history != before:
            self.changes += 1
            listed = replica.history.copy_list
            assert listed is not None
            self.story.append(f"{name} writes a list: {listed.copies} of {listed.ids}")

    def switch(
        self, to: str, *, without: Collection[str] = (), unsafe: bool = False, is_gone_at: int = -1
    ) -> str:
        """Why it was refused; empty: it was done."""
        try:
            asked = SimulatedAsked(self, is_gone_at)
            report = switch_surveyed(asked, to, without=without, unsafe=unsafe)
        except OperatorGone:
            self.story.append(f"who switches to {to} is killed")
            return "gone"
        except LedgerError as error:
            self.story.append(f"no switch to {to}: {error}")
            return str(error)
        self.switches += 1
        self.story.append(f"switch to {to}: {report}")
        self.switched(report)
        return ""

    def switched(self, report: SwitchReport) -> None:
        """Nothing that was acknowledged is missing, whoever has acknowledged it and when."""
        broker = self.brokers[report.master]
        if broker.replica is None or report.lost is not None:
            return
        lacking = set(self.acknowledged) - self.numbers_of(report.master)
        epochs = {b.living.epoch for b in self.masters}
        if report.epoch >= max(epochs, default=0):
            assert not lacking, f"a switch to {report.master} loses {sorted(lacking)}"

    def numbers_of(self, name: str) -> set[int]:
        """In its log, whoever has confirmed them."""
        log = self.brokers[name].living.store.commit_log
        position, numbers = log.min_offset, set[int]()
        while (found := log.read(position, log.max_offset)) is not None:
            numbers |= {int(message.body[:6]) for message in found.records.messages()}
            position = found.next_position
        return numbers

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
            if broker.replica is None:
                continue
            broker.look()
            last = broker.living.history.last
            if broker.living.role is not Role.SLAVE and last is not None:
                directory_id = broker.living.directory_id
                assert self.led.setdefault(last.key, directory_id) == directory_id, last
                leaders = {self.led[key] for key in self.led if key[:2] == last.key[:2]}
                assert len(leaders) == 1, f"two lead in {last.epoch}"

    # ---------------------------------------------------------------- the end

    def quiet(self) -> None:
        """No fault from here on."""
        self.away.clear()
        self.hidden.clear()
        self.parted.clear()
        self.refused.clear()
        self.meanwhile = lambda: None
        for broker in self.brokers.values():
            broker.disk.crash_countdown = None

    def turn(self, names: Collection[str]) -> None:
        """Everything that is on its way among these arrives."""
        for name in names:
            if self.brokers[name].replica is not None:
                self.connect(name)
                self.pump(name, 1 << 20)
                self.brokers[name].work()
        self.note()
        self.clock.now_ms += DRAIN_MS
        for broker in self.masters:
            broker.living.end_drain()

    def lead(self) -> Broker | None:
        """The operator's commands, as they say it themselves, until somebody leads. None: nobody may."""
        for _ in range(3):
            asked = SimulatedAsked(self)
            master = asked.master()
            newest = max((a.epoch, a.leader) for a in asked.answers.values())
            if master is not None and (master.epoch, master.leader) == newest:
                self.switch(master.id)  # whoever missed it is told
                return self.brokers[master.id]
            order = sorted(asked.answers.values(), key=lambda a: shown_by(a).rank, reverse=True)
            for answer in order:
                if not self.switch(answer.id):
                    break
        return None

    def serves(self) -> bool:
        """A message is acknowledged after the operator's commands."""
        living = [name for name, broker in self.brokers.items() if broker.replica is not None]
        for _ in range(5):
            leader = self.lead()
            if leader is None:
                return False
            for _ in range(20):
                self.turn(living)
            before = len(self.acknowledged)
            self.put(leader)
            for _ in range(20):
                self.turn(living)
            if len(self.acknowledged) > before:
                self.check()
                return True
        return False

    def settle(self) -> Broker:
        """All brokers become the same. Those that cannot follow, and count for nothing, are emptied."""
        self.quiet()
        for broker in self.brokers.values():
            if broker.replica is None:
                broker.start()
        if not self.serves():
            self.give_up()
            assert self.serves(), f"nothing is acknowledged: {self.story[-20:]}"
        for _ in range(60):
            leader = self.lead()
            assert leader is not None, self.story[-10:]
            listed = leader.living.history.copy_list
            assert listed is not None
            for name in sorted(self.refused):
                directory_id = self.brokers[name].living.directory_id
                assert directory_id not in listed.directories, f"{name} cannot follow"
                self.brokers[name].empty(leader.name)
            self.refused.clear()
            self.turn(list(self.brokers))
            end = leader.living.max_offset
            ends = [(b.living.confirm_offset, b.living.max_offset) for b in self.brokers.values()]
            if all(each == (end, end) for each in ends):
                break
        else:
            raise AssertionError(f"the brokers do not become the same: {ends} {self.story[-20:]}")
        for broker in self.brokers.values():
            broker.work()
        self.check()
        return leader

    def give_up(self) -> None:
        """Directories are lost that are needed to know what was acknowledged: only --unsafe goes on."""
        assert self.wipes, f"everybody is there, and nobody may lead: {self.story[-20:]}"
        asked = SimulatedAsked(self)
        best = max(asked.answers.values(), key=lambda answer: shown_by(answer).rank)
        leader = asked.master() or best
        assert not self.force(leader.id), self.story[-10:]

    def force(self, to: str) -> str:
        """A switch with --unsafe, and --without whoever does not answer. Why it was refused."""
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        asked = SimulatedAsked(self)
        try:
            why, without = "", set[str]()
            try:
                report = switch_surveyed(asked, to, unsafe=True)
            except SwitchRefused as refused:
                without = set(re.findall(r"--without (\w+)", str(refused)))
                if "is the master already" in str(refused):
                    there = {answer.directory_id for answer in asked.answers.values()}
                    named = named_by(asked.shown())
                    without = {peer.id for one, peer in named.items() if one not in there}
                why = str(refused)
                if not without:
                    raise
                report = switch_surveyed(asked, to, without=without, unsafe=True)
        except OutcomeUnknown as unknown:
            raise GivenUp(f"nobody has heard what was lost: {unknown}") from None
        except LedgerError as error:
            self.story.append(f"no switch to {to}, unsafe: {error}")
            return str(error)
        finally:
            self.meanwhile = meanwhile
        self.story.append(f"unsafe switch to {to} without {sorted(without)}: {report}; {why}")
        for name in sorted(without):
            if name not in asked.answers:
                self.wipes += 1
                self.brokers[name].empty(to)  # it will never be switched to
        if report.lost is None:
            self.switched(report)
            return ""
        self.given_up += 1
        self.is_past_given_up = True
        held = self.numbers_of(to)
        for number in [each for each in self.acknowledged if each not in held]:
            assert self.offsets[number] >= report.lost.first_offset, (number, self.offsets, report)
            self.acknowledged.remove(number)
        return ""


class GivenUp(Exception):
    """The run ends: nobody can say what is left."""
