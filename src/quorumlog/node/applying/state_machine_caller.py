"""StateMachineCaller: the state machines of a member, and how the log comes to bind them.

A leader that has a machine which its log does not bind writes the MACHINE entry that does; from there on
every member that has the machine applies the entries of its channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from quorumlog.batch import EntryBatch
from quorumlog.config import GroupConfig
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Role
from quorumlog.entry import AppendReceipt, EntryId
from quorumlog.errors import LeaderNotReady, LedgerError, PendingFull, UnknownMachine
from quorumlog.log_state.control_entries import ControlBody, MachineBinding
from quorumlog.log_state.log_state import LogState, Machine
from quorumlog.node.applying.awaited_results import Done
from quorumlog.node.applying.machine_driver import Answer, MachineDriver, Question
from quorumlog.node.applying.machine_opening import MachineFactory
from quorumlog.node.pending_appends import AppendOutcome, PendingAppends
from quorumlog.node.ports import Host
from quorumlog.node.reading.confirmations import Confirmed
from quorumlog.node.repair.repairer import Repairer
from quorumlog.node.writing.log_state_keeper import LogStateKeeper
from quorumlog.state_machine import Applied, StateMachine
from quorumlog.store.directory.opened_directory import MemberDirectory
from quorumlog.store.ledger_store import ColdRange

NEVER = float("inf")
BIND_RETRY_MS = 500
MOST_BEHIND = 65_536
"""Entries that a machine may be behind the commit before appends for it are refused."""


class MachineStatus(NamedTuple):
    name: str
    channel: int
    """0: the log does not bind it."""
    version: int
    """That the log has gone over to."""
    applied_index: int
    snapshot_index: int
    """Of the newest; -1: there is none."""
    problem: str


class Member(Protocol):
    """What the machines need of their `LedgerNode`."""

    config: GroupConfig
    directory: MemberDirectory
    raft: RaftNode
    log_state: LogStateKeeper
    repairer: Repairer

    def readable_range(
        self, first_index: int, stop_index: int, limit_bytes: int
    ) -> EntryBatch | ColdRange: ...

    def propose_control(self, body: ControlBody) -> EntryId: ...

    def confirm_leadership(self, done: Confirmed, owner: object = None) -> None: ...


def version_of(factory: MachineFactory) -> int:
    """Of a class that makes machines, or of whatever else says it."""
    version = getattr(factory, "version", StateMachine.version)
    assert isinstance(version, int) and version > 0, (factory, version)
    return version


class StateMachineCaller:
    def __init__(
        self,
        factories: Mapping[str, MachineFactory],
        member: Member,
        host: Host,
        pending: PendingAppends,
    ) -> None:
        self._member = member
        self._versions = {name: version_of(factory) for name, factory in factories.items()}
        self._drivers = {
            name: MachineDriver(
                name,
                factory,
                member.directory,
                host,
                member.config.storage,
                member.readable_range,
                pending,
                member.repairer.found,
            )
            for name, factory in factories.items()
        }
        self._now_ms = self._next_bind_ms = 0.0
        self._unbound = ""
        """Why the log does not bind a machine of this leader."""
        self._committed_index = -1
        """As of the last turn; on this member's disk, too."""

    # ---------------------------------------------------------------- the loop

    def tick(self, now_ms: float, committed_index: int) -> None:
        """`committed_index`: as in `MachineDriver.tick`."""
        if not self._drivers:
            return
        self._committed_index = committed_index
        state = self._state(committed=True)
        for driver in self._drivers.values():
            binding = None if state is None else state.machine(driver.name)
            driver.tick(now_ms, binding, committed_index)

    def next_wakeup_ms(self) -> float:
        wakeup = min([driver.next_wakeup_ms() for driver in self._drivers.values()], default=NEVER)
        if self._drivers and self._member.raft.role is Role.LEADER and self._missing():
            wakeup = min(wakeup, self._next_bind_ms)
        return wakeup

    def _state(self, *, committed: bool) -> LogState | None:
        states = self._member.log_state.states
        if states is None:
            return None
        state = states.committed if committed else states.appended
        return state if isinstance(state, LogState) else None

    def _missing(self) -> list[MachineBinding]:
        """What a leader would have to write."""
        state = self._state(committed=False)
        if state is None:
            return []
        missing = []
        for name, version in self._versions.items():
            binding = state.machine(name)
            channel = state.free_channel() if binding is None else binding.channel
            if channel is not None and (binding is None or binding.version < version):
                missing.append(MachineBinding(name, channel, version))
        return missing

    def bind(self, now_ms: float) -> None:
        """Before what the turn writes is synced: a leader writes what its log lacks."""
        self._now_ms = now_ms
        if not self._drivers or self._member.raft.role is not Role.LEADER or now_ms < self._next_bind_ms:
            return
        self._next_bind_ms = now_ms + BIND_RETRY_MS
        self._unbound = ""
        for missing in self._missing()[:1]:  # the next one needs a channel of its own
            try:
                self._member.propose_control(missing)
            except LedgerError as error:
                self._unbound = f"the state machine {missing.name} is not bound yet: {error}"
            else:
                self._next_bind_ms = now_ms

    # ---------------------------------------------------------------- appends and questions

    def admit(self, batch: EntryBatch, machine: str, deadline_ms: float, done: Done) -> Done:
        """Give the entries of an append to a machine, or to none (""): returns who is to be told of its
        outcome. Raises UnknownMachine, LeaderNotReady, PendingFull."""
        if not machine:
            batch.set_channel(0)
            return done
        batch.set_channel(self._channel_of(machine))
        results = self._drivers[machine].results

        def committed(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendReceipt):
                results.committed(outcome, deadline_ms, done)
            else:
                done(outcome)

        return committed

    def _channel_of(self, name: str) -> int:
        driver = self._driver(name)
        state = self._state(committed=False)
        binding = None if state is None else state.machine(name)
        if binding is None:
            why = self._unbound or f"the log does not bind the state machine {name} yet"
            raise LeaderNotReady(why, retry_after_ms=20)
        if driver.is_running and self._committed_index - driver.applied_index > MOST_BEHIND:
            raise PendingFull(
                f"{name} has applied entries up to {driver.applied_index} of {self._committed_index}",
                retry_after_ms=50,
            )
        return binding.channel

    def _driver(self, name: str) -> MachineDriver:
        driver = self._drivers.get(name)
        if driver is None:
            known = ", ".join(sorted(self._drivers)) or "none"
            raise UnknownMachine(
                f"the leader runs no state machine {name!r} (it runs: {known}); start every member with"
                " it"
            )
        if driver.stopped is not None:
            raise UnknownMachine(f"{driver.problem}; hand leadership to a member where it runs")
        return driver

    def ask(
        self,
        name: str,
        question: bytes,
        timeout_ms: int,
        done: Callable[[Answer], None],
        owner: object = None,
    ) -> None:
        """`done` gets the answer that follows from all that was acknowledged before this call, at least:
        a majority confirms this leader, then the machine applies what was committed by then."""
        deadline_ms = self._now_ms + timeout_ms

        def confirmed(refusal: LedgerError | None) -> None:
            if refusal is not None:
                done(refusal)
                return
            try:
                driver = self._driver(name)
            except LedgerError as error:
                done(error)
                return
            index = self._member.raft.committed_index
            driver.ask(Question(index, question, deadline_ms, done, owner))

        self._member.confirm_leadership(confirmed, owner)

    def ask_here(
        self,
        name: str,
        question: bytes,
        timeout_ms: int,
        done: Callable[[Answer], None],
        owner: object = None,
    ) -> None:
        """`done` gets the answer of this member's machine, however far it has applied."""
        try:
            driver = self._driver(name)
        except LedgerError as error:
            done(error)
            return
        driver.ask(Question(-1, question, self._now_ms + timeout_ms, done, owner))

    def discard(self, owner: object) -> None:
        for driver in self._drivers.values():
            driver.discard(owner)

    # ---------------------------------------------------------------- what happens to the log

    def lost_committed(self, index: int) -> None:
        """Async mode: entries from `index` on, which a machine may have applied, are gone."""
        for driver in self._drivers.values():
            driver.lost_committed(index)

    def close(self, reason: str) -> None:
        for driver in self._drivers.values():
            driver.close(reason)

    # ---------------------------------------------------------------- what others ask

    def snapshot_bound(self) -> int | None:
        """The log may begin behind this entry, not further on, as far as machines are concerned: what
        follows the second newest verified snapshot of each is still needed. None: the log binds none."""
        state = self._state(committed=False)
        if state is None:
            return -1
        bounds = [self._bound_of(machine) for machine in state.machines]
        return min(bounds, default=None)

    def _bound_of(self, machine: Machine) -> int:
        driver = self._drivers.get(machine.name)
        bound = None if driver is None else driver.snapshots.bound
        # Without two snapshots it is built from its first entry on.
        return machine.index - 1 if bound is None else bound

    def at_rest(self) -> list[tuple[str, Applied, StateMachine]]:
        """For who compares members: those whose state is not under way."""
        found = [(name, driver.at_rest) for name, driver in self._drivers.items()]
        return [(name, *rest) for name, rest in found if rest is not None]

    def status(self) -> tuple[MachineStatus, ...]:
        state = self._state(committed=True)
        rows = []
        for driver in self._drivers.values():
            bound = None if state is None else state.machine(driver.name)
            channel, version = (0, 0) if bound is None else (bound.channel, bound.version)
            applied_index, newest = driver.applied_index, driver.snapshots.newest_index
            rows.append(
                MachineStatus(driver.name, channel, version, applied_index, newest, driver.problem)
            )
        return tuple(rows)

    def problems(self) -> list[str]:
        found = [self._unbound, *(driver.problem for driver in self._drivers.values())]
        return [problem for problem in found if problem]
