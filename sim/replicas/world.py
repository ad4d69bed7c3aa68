"""World: brokers on simulated disks, their connections as bytes that come when the world lets them, and
who says which of them leads: operators by hand, or a register. One seed decides everything."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TypedDict
from unittest.mock import patch

from msgspec.structs import replace as replace_record

from quorumlog.broker.client.switching import Switch, SwitchReport, shown_by
from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.epochs import Epoch, Run, RunKey, named_by
from quorumlog.broker.errors import SwitchRefused
from quorumlog.broker.failover import FailoverOptions
from quorumlog.broker.message import Message, PutMessageResult, PutStatus, encode_records
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.replication import links as old_dialect
from quorumlog.broker.replication.links import MasterLink, OldMasterLink, SlaveLink
from quorumlog.broker.replication.replica import DRAIN_MS
from quorumlog.broker.store.log_files import BrokerRole, PutOutcome, PutRequest
from quorumlog.errors import LedgerError, OutcomeUnknown
from quorumlog.testing.disk import Crashed, SimDisk
from sim.replicas.machines import SMALL, TICK_MS, Broker, Moments
from sim.replicas.operators import OperatorGone, SimulatedProbe
from sim.replicas.promises import Promises
from sim.replicas.registers import SimRegister
from sim.replicas.users import HEARTBEAT_MS, UserWork


class _Times(TypedDict):
    heartbeat_ms: float
    silence_ms: float


_NO_OPTIONS = FailoverOptions()


class GivenUp(Exception):
    """The run ends: nobody can say what is left."""


@dataclass
class Wire:
    """One connection of a slave to its master, and the bytes that are on the way."""

    master: str
    slave: str
    master_link: MasterLink
    slave_link: SlaveLink
    to_master: bytearray = field(default_factory=bytearray)
    to_slave: bytearray = field(default_factory=bytearray)


class World:
    def __init__(
        self,
        seed: int,
        brokers: int = 3,
        copies: int = 0,
        *,
        config: MessageStoreConfig = SMALL,
        is_harsh: bool = False,
        register: type[SimRegister] | None = None,
        options: FailoverOptions = _NO_OPTIONS,
        has_users: bool = False,
    ) -> None:
        """By hand the first is the master and forms the group with the second; the others are added.
        `is_harsh`: machines differ, and what follows from something may take its time; a script wants
        each step to be done."""
        self.random = Random(seed)
        self.is_harsh = is_harsh
        self.clock = Moments(0.0 if is_harsh else 1.0)
        self.config = replace(config, in_sync_replicas=copies)
        self.user_work = UserWork(self, seed) if has_users else None
        if has_users:
            self.config = replace(self.config, ha_send_heartbeat_interval=HEARTBEAT_MS)
        self.options = options
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens between two steps of an operator."""
        self.brokers: dict[str, Broker] = {}
        self.directories: dict[str, SimDisk] = {}
        """Disks by directory id, also those that are lost."""
        self.wires: dict[str, Wire] = {}
        """By slave."""
        self.away: set[str] = set()
        """Reached neither by others nor by the operator, nor by the register, but alive."""
        self.parted: set[frozenset[str]] = set()
        """Pairs that do not reach each other."""
        self.hidden: set[str] = set()
        """Not reached by the operator, and without the register."""
        self.old: set[str] = set()
        """Slaves that speak as the release before, and to such a one."""
        self.refused: set[str] = set()
        """Slaves that cannot follow with what they have."""
        self.too_old: set[str] = set()
        """Of those, whose tail parts from what its master has deleted by age."""
        self.number = 0
        self.is_quiet = False
        self.counts = Counter[str]()
        self.most_wipes = self.random.choice((0, 0, 1, 2))
        self.forced_share = self.random.choice((0.1, 0.1, 0.1, 1.0))
        self.loses_some_power = self.config.is_sync_flush
        self.story: list[str] = []
        self.is_past_given_up = False
        """With --unsafe: what was seen may go."""
        self.register: SimRegister | None = None
        self.promises = Promises(self)
        if register is not None:
            callbacks = (self.promises.takes, self.promises.may_lead)
            self.register = register(self, options.lease_ms, *callbacks)
        for name in "abcde"[:brokers]:
            is_first = register is None and not self.brokers
            role = BrokerRole.SYNC_MASTER if is_first else BrokerRole.SLAVE
            master = "" if is_first or register is not None else "a"
            self.brokers[name] = Broker(self, name, role, master)

    @property
    def acknowledged(self) -> list[int]:
        return self.promises.acknowledged

    @property
    def loses_power(self) -> bool:
        """Where one goes down: what was acknowledged outlives it."""
        return self.loses_some_power and self.random.random() < 0.5

    def __str__(self) -> str:
        return "; ".join(
            f"{name}: "
            + (
                "down"
                if (replica := b.replica) is None
                else f"{replica.role.value} {replica.record.promised} {replica.min_offset}"
                f" {replica.confirm_offset} {replica.max_offset} {replica.history}"
            )
            for name, b in self.brokers.items()
        )

    def tell(self, what: str, detail: str = "") -> None:
        self.counts[what] += 1
        self.story.append(f"{what} {detail}")

    # ---------------------------------------------------------------- connections

    def send(self, sender: str, receiver: str, act: Callable[[], None]) -> None:
        """A request to the register, or its answer; most are fast, and one in thirty is not."""
        random, name = self.random, sender if sender in self.brokers else receiver

        def arrive() -> None:
            if name not in self.away | self.hidden:
                act()

        is_slow = random.random() < 1 / 30
        self.clock.at(random.uniform(20.0, 2_500.0) if is_slow else random.uniform(0.1, 8.0), arrive)

    def cut(self, name: str) -> None:
        for slave, wire in list(self.wires.items()):
            if name in (wire.master, wire.slave):
                del self.wires[slave]
                self._lost(wire)

    def _lost(self, wire: Wire) -> None:
        """Its master hears of it, perhaps late."""
        broker = self.brokers[wire.master]
        link, mark = wire.master_link, wire.master_link.mark
        if broker.replica is None or mark is None:
            return
        lost = partial(broker.living.slave_lost, mark, link)
        if self.is_harsh and self.random.random() < 0.3:
            broker.later(self.random.choice((5.0, 300.0)), lost)
        else:
            lost()

    def connect(self, name: str) -> None:
        broker = self.brokers[name]
        slave = broker.replica
        if (
            slave is None
            or slave.role is not BrokerRole.SLAVE
            or name in self.wires
            or name in self.away
        ):
            return
        known_master = slave.master
        master_name = "" if known_master is None else known_master.ha_address
        if master_name not in self.brokers or master_name in self.away:
            return
        if frozenset((name, master_name)) in self.parted:
            return
        master = self.brokers[master_name].replica
        if master is None or not master.is_leading or not self.brokers[master_name].is_running:
            return
        self.write_received(broker)
        now = broker.clock()
        heartbeat_ms = 1e12 if self.user_work is None else HEARTBEAT_MS
        never: _Times = {"heartbeat_ms": heartbeat_ms, "silence_ms": 1e15}
        link = SlaveLink(slave.own_log(), now, **never)
        if name in self.old:
            with patch.object(old_dialect, "VERSION", ""):
                link = OldMasterLink(slave.own_log(), now, **never)
        self.wires[name] = Wire(
            master_name,
            name,
            MasterLink(master, self.brokers[master_name].clock(), **never),
            link,
        )

    def pump(self, name: str, most_bytes: int) -> None:
        """So many bytes arrive, either way."""
        wire = self.wires.get(name)
        if wire is None:
            return
        try:
            self._collect(wire)
            chunks = self.random.choice((1, 1, 8)) if self.is_harsh else 1
            if self.brokers[wire.master].is_running:
                now = self.brokers[wire.master].clock()
                wire.master_link.tick(now)
                part, wire.to_master = wire.to_master[:most_bytes], wire.to_master[most_bytes:]
                if part:
                    wire.master_link.feed(bytes(part), now)
                self._collect(wire)  # what a link says goes out before more of the log
                for _ in range(chunks):
                    self._push(wire)
            if self.brokers[wire.slave].is_running:
                now = self.brokers[wire.slave].clock()
                wire.slave_link.tick(now)
                part, wire.to_slave = wire.to_slave[:most_bytes], wire.to_slave[most_bytes:]
                if part:
                    wire.slave_link.feed(bytes(part), now)
                self._work(wire)
            self._collect(wire)
        except LedgerError as error:
            wire.slave_link.close(str(error))
        if self.wires.get(name) is wire and (wire.master_link.closed or wire.slave_link.closed):
            if "empt" in wire.slave_link.closed:
                self.refused.add(name)
                if "begins at" in wire.slave_link.closed:
                    self.too_old.add(name)
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
            body = log.read_bytes(link.next_offset, size)
            if not body:
                link.close("retention has deleted messages that the slave lacks")
                return
            for each in link.data(body):
                wire.to_slave += each
        else:
            link.confirmed()

    def _work(self, wire: Wire) -> None:
        slave = self.brokers[wire.slave]
        if slave.received is None:
            work = wire.slave_link.take_work()
            if wire.slave_link.closed or not work:
                return
            slave.received = (wire.slave_link, work)
            if self.is_harsh and self.random.random() < (0.9 if slave.is_slow else 0.2):
                return  # its disk is busy
        self.write_received(slave)

    def write_received(self, slave: Broker) -> None:
        """Also what came over a connection that is lost since."""
        if slave.received is None:
            return
        (link, work), slave.received = slave.received, None
        try:
            if work.follow is not None:
                written = slave.living.follow(work.follow)
                link.follows(work.follow.start_offset)
            else:
                written = slave.living.take(work, link.epoch, asks_flush=link.asks_flush)
            link.done(*written, slave.clock())
        except LedgerError as error:
            link.close(str(error))

    # ---------------------------------------------------------------- what happens

    @property
    def masters(self) -> list[Broker]:
        return [
            b for b in self.brokers.values() if b.is_running and b.living.role is not BrokerRole.SLAVE
        ]

    def put(self, broker: Broker) -> None:
        number = self.number
        self.number += 1

        def done(outcome: PutOutcome) -> None:
            if isinstance(outcome, PutMessageResult) and outcome.status is PutStatus.PUT_OK:
                self.promises.was_acknowledged(broker, outcome, number)

        sizes = (0, 100, 600) if self.config.file_reserved_time else (600, 1_500, 3_000)
        body = b"%06d" % number + bytes(self.random.choice(sizes))
        encoded = encode_records([Message("t", body)], 0, int(self.clock.now_ms))
        batch = RecordBatch.contiguous(*encoded)
        broker.living.store.commit_log.put([PutRequest(batch, True, done)])

    def tick(self) -> None:
        """Time passes; who drained a master may be gone."""
        self.clock.advance(self.random.choice((1, 100, DRAIN_MS)))
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

    def guarded(self, name: str, action: Callable[[], None]) -> None:
        """A simulated disk may end the process in the middle of it."""
        try:
            action()
        except Crashed:
            self.tell("crashes", name)
            self.brokers[name].crash(self.random, power=self.loses_power)

    def retain(self, broker: Broker) -> None:
        """Old files of its log go."""
        files, before = broker.living.store.commit_log.files, broker.living.min_offset
        self.guarded(broker.name, broker.living.store.cleaner.run_once)
        # Of what is deleted, though its process has crashed in the middle of that.
        if files.first_position > before:
            self.tell("deleted by age", broker.name)
        self.promises.expired_below = max(self.promises.expired_below, files.first_position)

    def check(self) -> None:
        for broker in self.brokers.values():
            if broker.replica is None:
                continue
            if not self.is_past_given_up:
                self.promises.look(broker)
            runs = broker.replica.record.history
            if runs and runs[-1] is not broker.last_run:
                broker.last_run = runs[-1]
                self.promises.leads(broker)
            if self.register is not None:
                self.promises.believes(broker)

    # ---------------------------------------------------------------- by hand

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
            listed = replica.history.copy_list
            assert listed is not None
            self.tell("list changes", f"{name}: {listed.copies} of {listed.ids}")

    def switch(
        self, to: str, *, without: Collection[str] = (), unsafe: bool = False, is_gone_at: int = -1
    ) -> str:
        """Why it was refused; empty: it was done."""
        try:
            probe = SimulatedProbe(self, is_gone_at)
            report = Switch(probe, to, without=without, unsafe=unsafe).run()
        except OperatorGone:
            self.tell("operators killed", f"in a switch to {to}")
            return "gone"
        except LedgerError as error:
            self.story.append(f"no switch to {to}: {error}")
            return str(error)
        self.tell("switches", f"to {to}: {report}")
        return ""

    def form_group(self) -> None:
        """By hand: all of them are on the list."""
        for name in self.brokers:
            self.turns(12)
            master = self.brokers["a"].living
            listed = master.history.copy_list
            if listed is not None and name not in listed.ids:
                self.refusing(master.add, name)
        self.turns(12)

    def upgrade(self) -> None:
        """As if all had been of the release before until now: their records name no leaders."""
        listed = self.brokers["a"].living.history.copy_list
        for broker in self.brokers.values():
            replica = broker.living
            triples = old_dialect.triples_of(replica.record.history)
            runs = [Run(number, "", run, start) for number, run, start in triples]
            runs[0] = replace_record(runs[0], copy_list=listed)
            promised, confirmed = Epoch(1, ""), RunKey()
            replica._save(
                replace_record(replica.record, promised=promised, confirmed=confirmed, history=runs)
            )
        for broker in self.brokers.values():
            broker.crash(self.random, power=False)
            broker.start()

    def upgrade_slave(self, name: str) -> None:
        """It speaks as this release from now on."""
        self.old.discard(name)
        broker = self.brokers[name]
        if broker.replica is not None:
            self.tell("upgrades", name)
            broker.crash(self.random, power=False)
            self.guarded(name, broker.start)

    # ---------------------------------------------------------------- the end

    def quiet(self) -> None:
        """No fault from here on."""
        for name in sorted(self.old):
            self.upgrade_slave(name)
        self.is_quiet = True
        for some in (self.away, self.hidden, self.parted, self.refused):
            some.clear()
        self.meanwhile = lambda: None
        if self.register is not None:
            self.register.has_faults = False
        for broker in self.brokers.values():
            broker.disk.crash_countdown = None
            broker.is_slow = False
            if broker.is_paused:
                broker.go_on()

    def turn(self, names: Collection[str]) -> None:
        """Everything that is on its way among these arrives."""
        for name in names:
            if self.brokers[name].replica is not None:
                self.connect(name)
                self.pump(name, 1 << 20)
                self.brokers[name].work()
        self.note()
        if self.register is not None:
            self.clock.advance(TICK_MS)
            return
        self.clock.advance(DRAIN_MS)
        for broker in self.masters:
            broker.living.end_drain()

    def turns(self, rounds: int) -> None:
        for _ in range(rounds):
            self.turn(list(self.brokers))

    def lead(self) -> Broker | None:
        """The operator's commands, as they say it themselves, until somebody leads. None: nobody may."""
        for _ in range(3):
            probe = SimulatedProbe(self)
            master = probe.master()
            newest = max((a.epoch, a.leader) for a in probe.answers.values())
            if master is not None and (master.epoch, master.leader) == newest:
                self.switch(master.id)  # whoever missed it is told
                return self.brokers[master.id]
            order = sorted(probe.answers.values(), key=lambda a: shown_by(a).rank, reverse=True)
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
        self.start_all()
        for _ in range(3):  # what is written is flushed, in a while
            self.turn(list(self.brokers))
        if not self.serves():
            self._needs_an_emptied_one()
            self.give_up()
            if not self.serves():
                self._needs_an_emptied_one()
                raise AssertionError(f"nothing is acknowledged: {self.story[-20:]}")
        for _ in range(60):
            leader = self.lead()
            assert leader is not None, self.story[-10:]
            listed = leader.living.history.copy_list
            assert listed is not None
            for name in sorted(self.refused):
                directory_id = self.brokers[name].living.directory_id
                if self.is_past_given_up and directory_id in listed.directories:
                    raise GivenUp(f"{name} is needed, and lacks what both had: it went by age")
                is_needed = directory_id in listed.directories and name not in self.too_old
                assert not is_needed, f"{name} cannot follow"
                self.brokers[name].empty(leader.name)
            self.refused.clear()
            self.too_old.clear()
            self.turn(list(self.brokers))
            if self.is_same(leader):
                break
        else:
            raise AssertionError(f"the brokers do not become the same: {self}")
        for broker in self.brokers.values():
            broker.work()
        self.check()
        return leader

    def _needs_an_emptied_one(self) -> None:
        """Raises GivenUp: somebody has to empty a directory, which is on the list."""
        if self.too_old or (self.is_past_given_up and self.refused):
            raise GivenUp(f"{sorted(self.refused)} are needed, and what all had is deleted by age")

    def start_all(self) -> None:
        for broker in self.brokers.values():
            if broker.replica is None:
                broker.start()

    def is_same(self, leader: Broker) -> bool:
        end = leader.living.max_offset
        return all(
            (b.living.confirm_offset, b.living.max_offset) == (end, end) for b in self.brokers.values()
        )

    def give_up(self) -> None:
        """Directories are lost that are needed to know what was acknowledged: only --unsafe goes on."""
        assert self.counts["wipes"], f"everybody is there, and nobody may lead: {self.story[-20:]}"
        probe = SimulatedProbe(self)
        best = max(probe.answers.values(), key=lambda answer: shown_by(answer).rank)
        leader = probe.master() or best
        assert not self.force(leader.id), self.story[-10:]

    def force(self, to: str) -> str:
        """A switch with --unsafe, and --without whoever does not answer. Why it was refused."""
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        is_harsh, self.is_harsh = self.is_harsh, False
        probe = SimulatedProbe(self)
        try:
            why, without = "", set[str]()
            try:
                report = Switch(probe, to, unsafe=True).run()
            except SwitchRefused as refused:
                without = set(re.findall(r"--without (\w+)", str(refused)))
                if "is the master already" in str(refused):
                    there = {answer.directory_id for answer in probe.answers.values()}
                    named = named_by(probe.shown())
                    without = {peer.id for one, peer in named.items() if one not in there}
                why = str(refused)
                if not without:
                    raise
                report = Switch(probe, to, without=without, unsafe=True).run()
        except OutcomeUnknown as unknown:
            raise GivenUp(f"nobody has heard what was lost: {unknown}") from None
        except LedgerError as error:
            self.story.append(f"no switch to {to}, unsafe: {error}")
            return str(error)
        finally:
            self.meanwhile, self.is_harsh = meanwhile, is_harsh
        self.tell("unsafe switches", f"to {to} without {sorted(without)}: {report}; {why}")
        for name in sorted(without):
            if name not in probe.answers:
                self.counts["wipes"] += 1
                self.brokers[name].empty(to)  # it will never be switched to
        if report.lost is None:
            self._led_on(report)
            return ""
        self.counts["unsafe switches that may lose"] += 1
        self.is_past_given_up = True
        self.promises.given_up(report.lost.first_offset, self.brokers[to])
        return ""

    def _led_on(self, report: SwitchReport) -> None:
        broker = self.brokers[report.master]
        if broker.replica is not None:
            self.promises.has_everything(broker)
