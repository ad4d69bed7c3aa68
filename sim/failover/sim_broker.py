"""SimBroker: a broker as failover sees it: a log of one byte a message, a disk, and slaves that follow.

The rules, the acknowledgements and the histories of epochs are the product's; files and sockets are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorumlog.broker.epochs.epoch_history import Epoch, EpochHistory, judge
from quorumlog.broker.failover.failover_rules import Answer, FailoverRules
from quorumlog.broker.failover.failover_steps import (
    Ask,
    BrokerStep,
    Follow,
    Lead,
    Promise,
    StopAcknowledging,
    WaitFor,
)
from quorumlog.broker.message_log import Role
from quorumlog.broker.replication.protocol.acknowledgements import Acknowledgements, Mark
from quorumlog.broker.replication.roles import BrokerAddress, SlaveState
from sim.failover.world import Clock

if TYPE_CHECKING:
    from sim.failover.failover_run import FailoverRun

TICK_MS = 50.0
PUSH_MS = 10.0
REQUEST_TIMEOUT_MS = 700.0
SILENCE_MS = 1_500.0
MOST_PUSHED = 20
CAUGHT_UP = 8
"""A slave that lacks fewer messages is caught up."""


@dataclass(slots=True)
class SimDisk:
    """What a power loss leaves."""

    directory_id: str
    log: list[int] = field(default_factory=list)
    """Numbers of messages, by offset. Behind `flushed` it may be lost."""
    flushed: int = 0
    epoch: int = 0
    history: EpochHistory = field(default_factory=EpochHistory)


@dataclass(slots=True)
class Session:
    """Of a slave that follows, at the master."""

    number: int
    mark: Mark
    sent: int
    heard_ms: float


class SimBroker:
    def __init__(self, run: FailoverRun, broker_id: str) -> None:
        self._run = run
        self._world = run.world
        self.id = broker_id
        self.clock = Clock(run.world)
        self.disk = SimDisk(f"{broker_id}-1")
        self.incarnation = 0
        self.is_up = False
        self.is_paused = False
        self._held: list[Callable[[], None]] = []
        """What comes while it is paused."""
        self.start()

    # ---------------------------------------------------------------- as OwnBroker

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress(self.id, f"{self.id}:1", f"{self.id}:2")

    @property
    def directory_id(self) -> str:
        return self.disk.directory_id

    @property
    def epoch(self) -> int:
        return self.disk.epoch

    @property
    def log_epoch(self) -> int:
        return self.disk.history.epoch.number

    @property
    def max_offset(self) -> int:
        return len(self.disk.log)

    @property
    def fenced_by(self) -> int:
        return self._fenced_by

    def slaves(self) -> list[SlaveState]:
        found = []
        for broker_id, session in self._sessions.items():
            mark = session.mark
            silent = self.clock.now_ms - session.heard_ms > SILENCE_MS
            lag = self.max_offset - mark.acknowledged_offset
            found.append(
                SlaveState(
                    id=broker_id,
                    directory_id=mark.directory_id,
                    is_connected=not silent,
                    written_offset=mark.written_offset,
                    flushed_offset=mark.flushed_offset,
                    lag_bytes=lag,
                    lag_ms=0,
                    is_caught_up=not silent and lag < CAUGHT_UP,
                    holds_confirmed=mark.acknowledged_offset >= self.confirm_offset,
                )
            )
        return found

    # ---------------------------------------------------------------- the process

    def start(self) -> None:
        self.is_up = True
        self.incarnation += 1
        self.role = Role.SLAVE
        self._refuses = True
        self._fenced_by = 0
        self.acknowledgements = Acknowledgements(self.id, self._run.in_sync_replicas, 0)
        self._sessions: dict[str, Session] = {}
        self._begun_at = 0
        self._pending: dict[int, int] = {}
        """Messages that wait for their acknowledgement, by offset."""
        self._confirmed = 0
        self._master: BrokerAddress | None = None
        self._session = 0
        """Of the own, as a slave: what belongs to another one is not heard."""
        self._is_welcome = False
        self._heard_ms = self.clock.now_ms
        self.rules = FailoverRules(
            self,
            self._run.options,
            self.clock.now_ms,
            relays_renewals=self._run.coordinator.relays_renewals,
        )
        self._tick()
        self._push()

    def later(self, true_ms: float, act: Callable[[], None]) -> None:
        """In this process; when it goes on, if it is paused then."""
        incarnation = self.incarnation

        def run() -> None:
            if self.incarnation != incarnation or not self.is_up:
                return
            if self.is_paused:
                self._held.append(run)
            else:
                act()

        self._world.at(true_ms, run)

    def stop(self, *, loses_power: bool) -> None:
        self.is_up = self.is_paused = False
        self._held.clear()
        if loses_power:
            kept = self._world.random.randint(self.disk.flushed, len(self.disk.log))
            del self.disk.log[kept:]
        self.disk.flushed = len(self.disk.log)  # a start flushes what it finds

    def wipe(self) -> None:
        """Its directory is made anew. It is down."""
        self._run.wiped.append(self.disk)
        self.disk = SimDisk(f"{self.id}-{self.incarnation + 1}")

    def go_on(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for act in held:
            act()

    # ---------------------------------------------------------------- rules and coordinator

    def _tick(self) -> None:
        self.rules.tick(self.clock.now_ms)
        self._act()
        if self.role is Role.SLAVE and self.clock.now_ms - self._heard_ms > SILENCE_MS:
            self._connect()
        self.later(self.clock.true_ms(TICK_MS), self._tick)

    def _act(self) -> None:
        for step in self.rules.take_steps():
            if isinstance(step, Ask):
                self._ask(step)
            elif isinstance(step, StopAcknowledging | WaitFor):
                self._do(step)
            else:
                self._on_disk(step)

    def _ask(self, ask: Ask) -> None:
        open_requests = {ask.number}

        def answered(answer: Answer, error: str = "") -> None:
            if ask.number in open_requests:
                open_requests.clear()
                self.rules.answered(ask.number, answer, self.clock.now_ms, error)
                self._act()

        incarnation = self.incarnation

        def arrive(answer: Answer) -> None:
            if self.incarnation == incarnation:
                self.later(0.0, lambda: answered(answer))

        self._run.coordinator.ask(self.id, ask.request, arrive)
        self.later(self.clock.true_ms(REQUEST_TIMEOUT_MS), lambda: answered(None, "no answer"))

    def _on_disk(self, step: BrokerStep) -> None:
        """The disk takes its time, and a crash may come before it."""
        self._leave()
        self.later(self._world.random.uniform(0.5, 40.0), lambda: self._do(step))

    def _do(self, step: BrokerStep) -> None:
        now_ms = self.clock.now_ms
        if isinstance(step, StopAcknowledging):
            self._refuses = True
            self._pending.clear()
        elif isinstance(step, WaitFor):
            self.acknowledgements.in_sync_set = step.in_sync_set
            self._advance()
        elif isinstance(step, Promise):
            self.disk.epoch = max(self.disk.epoch, step.epoch)
            self.rules.promised(step.epoch, now_ms)
        elif isinstance(step, Lead):
            self._become_master(step)
            self.rules.leads(step.epoch, now_ms)
        else:
            self._become_slave(step)
        self._act()

    # ---------------------------------------------------------------- as master

    def _become_master(self, step: Lead) -> None:
        if self.rules.epoch != step.epoch or not self.rules.may_acknowledge(self.clock.now_ms):
            return  # the lease has ended while the disk was busy
        disk = self.disk
        disk.flushed = len(disk.log)
        disk.epoch = max(disk.epoch, step.epoch)
        disk.history = disk.history.begun(Epoch(step.epoch, self.directory_id), len(disk.log))
        self._begun_at = len(disk.log)
        self.role = Role.ASYNC_MASTER if self._run.in_sync_replicas == 1 else Role.SYNC_MASTER
        self._sessions.clear()
        self._pending.clear()
        self._fenced_by = 0
        confirmed = self._confirmed
        self.acknowledgements = Acknowledgements(self.id, self._run.in_sync_replicas, confirmed)
        self.acknowledgements.in_sync_set = step.in_sync_set
        self._refuses = False
        self._run.promises.leads(self, step.epoch)

    @property
    def confirm_offset(self) -> int:
        if self.role is Role.SLAVE:
            return self._confirmed
        return min(self.disk.flushed, self.acknowledgements.confirmed_offset)

    @property
    def serves(self) -> bool:
        """Consumers read here. A new master serves once it has confirmed what it began with: consumers
        of the old one may have seen all of that."""
        is_master = self.role is not Role.SLAVE and not self._refuses
        leads = is_master and self.rules.may_acknowledge(self.clock.now_ms)
        return leads and self.confirm_offset >= self._begun_at

    def put(self, number: int) -> None:
        if self.role is Role.SLAVE or self._refuses or self.acknowledgements.missing(set()):
            return
        if not self.rules.may_acknowledge(self.clock.now_ms):
            return
        self._pending[len(self.disk.log)] = number
        self.disk.log.append(number)
        self._flush()

    def _flush(self) -> None:
        end, history = len(self.disk.log), self.disk.history

        def flushed() -> None:
            if self.disk.history == history:  # it was not cut meanwhile
                self.disk.flushed = max(self.disk.flushed, min(end, len(self.disk.log)))
                self._report()
                self._acknowledge()

        self.later(self._world.random.uniform(0.2, 15.0), flushed)

    def _advance(self) -> None:
        self.acknowledgements.own_offset = self.disk.flushed
        self.acknowledgements.advance()

    def _acknowledge(self) -> None:
        if self.role is Role.SLAVE or self._refuses:
            return
        self._advance()
        for offset in [o for o in self._pending if o < self.confirm_offset]:
            number = self._pending[offset]
            if self.rules.may_acknowledge(self.clock.now_ms):
                del self._pending[offset]
                self._run.promises.acknowledged(self, offset, number)

    def _push(self) -> None:
        if self.role is not Role.SLAVE:
            for broker_id, session in self._sessions.items():
                batch = self.disk.log[session.sent : session.sent + MOST_PUSHED]
                self._send_push(broker_id, session, batch)
                session.sent += len(batch)
        self.later(self.clock.true_ms(PUSH_MS), self._push)

    def _send_push(self, broker_id: str, session: Session, batch: list[int]) -> None:
        number, offset, epoch = session.number, session.sent, self.log_epoch
        confirmed = self.confirm_offset
        self._run.say(
            self, broker_id, lambda slave: slave.pushed(number, epoch, offset, batch, confirmed)
        )

    def hello(self, broker_id: str, number: int, slave: SimDisk, directory_id: str) -> None:
        """A slave wants to follow."""
        if self.role is Role.SLAVE:
            return
        history, end, epoch = self.disk.history, len(self.disk.log), self.log_epoch
        mark = self.acknowledgements.connected(broker_id, directory_id)
        held = self._sessions.get(broker_id)
        if held is not None and held.number > number:
            return
        self._sessions[broker_id] = Session(number, mark, 1 << 62, self.clock.now_ms)
        self._run.say(self, broker_id, lambda slave: slave.welcome(number, epoch, history, end))

    def refused(self, promised_epoch: int) -> None:
        """A slave has promised a newer epoch."""
        if self.role is not Role.SLAVE and promised_epoch > self.log_epoch:
            self._fenced_by = promised_epoch
            self._refuses = True

    def reported(self, broker_id: str, number: int, epoch: int, flushed: int) -> None:
        """A slave has so much on its disk."""
        session = self._sessions.get(broker_id)
        if self.role is Role.SLAVE or session is None or session.number != number:
            return
        if epoch != self.log_epoch:
            return
        session.heard_ms = self.clock.now_ms
        if session.sent == 1 << 62:
            session.sent = flushed  # its first word: here it goes on
        self.acknowledgements.report(session.mark, flushed, flushed, flushed)
        self._acknowledge()

    # ---------------------------------------------------------------- as slave

    def _leave(self) -> None:
        """Nothing of the old master is heard any more."""
        self._session = 0
        self._is_welcome = False
        self._master = None

    def _become_slave(self, step: Follow) -> None:
        if step.epoch < self.disk.epoch:
            self.rules.follows(step.epoch, f"epoch {self.disk.epoch} was promised")
            return
        self.disk.epoch = step.epoch
        self.role = Role.SLAVE
        self._refuses = True
        self._fenced_by = 0
        self._pending.clear()
        self._sessions.clear()
        self._master = step.master
        self.rules.follows(step.epoch)
        self._connect()

    def _connect(self) -> None:
        self._heard_ms = self.clock.now_ms
        self._is_welcome = False
        if self._master is None:
            return
        number = self._session = self._run.session_number()
        own, directory_id = self.disk, self.disk.directory_id
        self._run.say(
            self, self._master.id, lambda master: master.hello(self.id, number, own, directory_id)
        )

    def welcome(self, number: int, epoch: int, history: EpochHistory, end: int) -> None:
        if number != self._session or self.role is not Role.SLAVE:
            return
        if epoch < self.disk.epoch:
            promised = self.disk.epoch
            if self._master is not None:
                self._run.say(self, self._master.id, lambda master: master.refused(promised))
            return
        disk = self.disk
        verdict = judge(disk.history, len(disk.log), history, end, directory_id=disk.directory_id)
        if verdict.problem:
            return  # a person would read it; a newer epoch may end it
        if verdict.cuts:
            self._run.promises.cuts(self, verdict.common_offset)
            del disk.log[verdict.common_offset :]
            disk.flushed = min(disk.flushed, len(disk.log))
            self._world.note(self.id, "cut")
        disk.epoch = epoch
        disk.history = history.held(len(disk.log)) if disk.log else EpochHistory()
        self._told_history = history
        self._told_epoch = epoch
        self._heard_ms = self.clock.now_ms
        self._is_welcome = True
        self._flush()

    def pushed(self, number: int, epoch: int, offset: int, batch: list[int], confirmed: int) -> None:
        if number != self._session or not self._is_welcome or epoch < self.disk.epoch:
            return
        disk = self.disk
        if offset > len(disk.log) or offset + len(batch) < len(disk.log):
            if offset < 1 << 62:
                self._connect()  # something between was lost
            return
        self._heard_ms = self.clock.now_ms
        fresh = batch[len(disk.log) - offset :]
        disk.log += fresh
        if disk.log:
            disk.history = self._told_history.held(len(disk.log))
        self._confirmed = max(self._confirmed, min(confirmed, len(disk.log)))
        if fresh:
            self._flush()
        else:
            self._report()

    def _report(self) -> None:
        if self.role is not Role.SLAVE or not self._is_welcome or self._master is None:
            return
        number, epoch, flushed = self._session, self._told_epoch, self.disk.flushed
        self._run.say(
            self, self._master.id, lambda master: master.reported(self.id, number, epoch, flushed)
        )
