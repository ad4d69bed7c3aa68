"""A world in which more goes wrong: directories are lost, slaves forgotten, brokers start late and with
other settings, the operator and the brokers each see other ones, and two operators are at work at once.

Some of that loses what was acknowledged for good, and a switch must then be refused, or say what goes
with --unsafe. So each switch is looked at for itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from unittest.mock import patch

from quorumlog.broker.client.switch_rules import rank_of
from quorumlog.broker.client.switching import SwitchReport, switch_surveyed
from quorumlog.broker.message_log import PutOutcome, PutRequest, Role
from quorumlog.broker.messages.message import PutResult
from quorumlog.broker.wire.broker_messages import ReplicaRequest, ReplicaResponse
from quorumlog.errors import LedgerError, Unreachable
from tests.broker.replication import replica_world
from tests.broker.replication.replica_world import (
    Broker,
    OperatorGone,
    SimulatedAsked,
    World,
)
from tests.broker.store.store_making import SMALL, is_ok, numbered, records_of


class SeenByOperator(SimulatedAsked):
    """But for those that it does not reach."""

    def __init__(self, world: HarshWorld, is_gone_at: int = -1) -> None:
        self._harsh = world
        away = world.away
        world.away = away | world.hidden
        try:
            super().__init__(world, is_gone_at)
        finally:
            world.away = away

    def _call(self, asked: str, request: ReplicaRequest) -> ReplicaResponse:
        if asked in self._harsh.hidden:
            raise Unreachable(f"{asked} is not reached")
        return super()._call(asked, request)


class Undecided(Exception):
    """The run ends: nobody can say what may be lost."""


class HarshWorld(World):
    def __init__(self, seed: int, brokers: int = 3) -> None:
        self.hidden: set[str] = set()
        """Not reached by the operator."""
        self.parted: set[frozenset[str]] = set()
        """Pairs that do not reach each other."""
        self.options: dict[str, int] = {}
        self.offsets: dict[int, tuple[int, int]] = {}
        """Of what is acknowledged: the epoch, and where its record begins."""
        self.alone: dict[int, str] = {}
        """Who has acknowledged what without anybody else."""
        self.given_up: set[int] = set()
        self.last_unsafe = 0
        """Epoch of the last switch that gave something up."""
        self.wipes = 0
        self.is_past_lost = False
        self.reigns: dict[int, tuple[str, str]] = {}
        """Who is the master of which epoch."""
        super().__init__(seed, brokers)
        random = self.random
        for name in list(self.brokers)[1:]:
            if random.random() < 0.2:
                self.brokers[name].crash(random, power=False)
        for name in self.brokers:
            if random.random() < 0.3:
                self.options[name] = random.choice((1, 2, 3))

    # ---------------------------------------------------------------- what is different

    @property
    def most_wipes(self) -> int:
        return 1 if len(self.brokers) < 5 else 2

    def start(self, name: str) -> None:
        """With its settings."""
        config = replace(SMALL, in_sync_replicas=self.options.get(name, 0))
        with patch.object(replica_world, "SMALL", config):
            self.brokers[name].start()

    def connect(self, name: str) -> None:
        slave = self.brokers[name].replica
        told = None if slave is None else slave.master
        if told is not None and frozenset((name, told.ha_address)) in self.parted:
            return
        super().connect(name)

    def part(self, name: str, other: str) -> None:
        """Or no more."""
        self.parted ^= {frozenset((name, other))}
        for slave, wire in list(self.wires.items()):
            if frozenset((slave, wire.master)) in self.parted:
                self.cut(slave)

    def put(self, broker: Broker) -> None:
        number, epoch = self.number, broker.living.history.log_epoch
        self.number += 1

        def done(outcome: PutOutcome) -> None:
            if is_ok(outcome):
                assert isinstance(outcome, PutResult)
                if epoch < self.last_unsafe:
                    return  # by brokers that were given up, and do not know it
                self.acknowledged.append(number)
                self.offsets[number] = epoch, outcome.physical_offset
                if broker.replica is None or broker.living.in_sync_replicas == 1:
                    self.alone[number] = broker.name

        batch = records_of(numbered(number, 1, size=self.random.choice((10, 100, 600))))
        broker.living.store.commit_log.put([PutRequest(batch, True, done)])

    def wipe(self, name: str) -> None:
        """Whoever starts it again lets it follow the newest master that there is: it has forgotten what
        it promised, and an older one would count it."""
        others = [b for b in self.brokers.values() if b.name != name and b.replica is not None]
        others.sort(key=lambda b: (b.living.reign_epoch, b.living.role is not Role.SLAVE))
        if not others or others[-1].living.reign_epoch < max(self.reigns, default=0):
            return
        self.story.append(f"{name} loses its directory")
        self.wipes += 1
        kept = [each for each in self.acknowledged if self.alone.get(each) != name]
        self.is_past_lost |= len(kept) < len(self.acknowledged)
        self.acknowledged = kept
        broker = self.brokers[name]
        broker.crash(self.random, power=False)
        broker.empty(others[-1])

    def forget(self, name: str) -> None:
        broker = self.brokers[name].replica
        newest = max(self.reigns, default=0)
        if broker is None or not broker.record.counted or broker.reign_epoch < newest:
            return
        forgotten = self.random.choice(broker.record.counted).id
        wire = self.wires.get(forgotten)
        is_lost = wire is None or wire.master != name
        if is_lost and self.wipes >= self.most_wipes:
            return
        with suppress(LedgerError):
            self.guarded(name, partial(broker.forget, forgotten))
            self.story.append(f"{name} forgets {forgotten}")
            if is_lost:
                self.wipe(forgotten)

    def numbers_of(self, name: str) -> set[int]:
        """In its log, whoever has confirmed them."""
        log = self.brokers[name].living.store.commit_log
        position, numbers = log.min_offset, set[int]()
        while (found := log.read(position, log.max_offset)) is not None:
            numbers |= {int(message.body[:6]) for message in found.records.messages()}
            position = found.next_position
        return numbers

    def check(self) -> None:
        """What consumers see is of one past until something of it is lost for good."""
        for broker in self.masters:
            reign = broker.living.history.log_epoch
            who = broker.name, broker.living.directory_id
            held = self.reigns.setdefault(reign, who)
            assert self.last_unsafe or held == who, f"two masters of epoch {reign}: {who}, {held}"
        if not self.last_unsafe and not self.is_past_lost:
            super().check()

    def switch(self, to: str, *, unsafe: bool = False, is_gone_at: int = -1) -> str:
        meanwhile = self.meanwhile
        if unsafe:
            self.meanwhile = lambda: None
        try:
            asked = SeenByOperator(self, is_gone_at)
            before = set(self.acknowledged)
            report = switch_surveyed(asked, to, unsafe=unsafe)
        except OperatorGone:
            self.story.append(f"who switches to {to} is killed")
            return "gone"
        except LedgerError as error:
            self.story.append(f"no switch to {to}: {error}")
            if unsafe:
                # It may have been done, and nobody has heard what was lost.
                raise Undecided from error
            return str(error)
        finally:
            self.meanwhile = meanwhile
        self.switches += 1
        self.story.append(f"switch to {to}{', unsafe' if unsafe else ''}: {report}")
        self._judge(report, before, unsafe)
        return ""

    def _judge(self, report: SwitchReport, before: set[int], unsafe: bool) -> None:
        name = report.master
        if self.brokers[name].replica is None:
            return
        held = self.numbers_of(name)
        lacking = {
            each
            for each in self.acknowledged
            if each not in held and self.offsets[each][0] < report.epoch
        }
        if not unsafe:
            assert not lacking, f"a switch to {name} loses {sorted(lacking)}"
            return
        lost = report.lost
        for each in lacking & before:
            assert lost is not None and self.offsets[each][1] >= lost.first_offset, (
                f"{name} lacks {each} at {self.offsets[each]}, and it was said: {lost}"
            )
        if lost is not None or lacking:
            self.last_unsafe = report.epoch
            self.acknowledged = [each for each in self.acknowledged if each not in lacking]
            # Who was gone without was lost for good.
            for other in report.unreachable:
                if other != name:
                    self.wipe(other)

    def settle(self) -> Broker:
        self.hidden.clear()
        self.parted.clear()
        for name, broker in self.brokers.items():
            if broker.replica is None:
                self.start(name)
        try:
            return super().settle()
        except AssertionError as error:
            if "do not become the same" not in str(error) or not self.is_hopeless:
                raise
        asked = SimulatedAsked(self)
        best = max(asked.answers.values(), key=rank_of)
        self.story.append("hopeless")
        self.switch(best.id, unsafe=True)
        return super().settle()

    @property
    def is_hopeless(self) -> bool:
        """A directory is lost that may have held what nobody else has: only --unsafe goes on."""
        return self.wipes > 0
