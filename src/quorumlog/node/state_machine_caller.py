"""StateMachineCaller: the state machines of a member, and how the log comes to bind them.

A leader that has a machine which its log does not bind writes the MACHINE entry that does; from there on
every member that has the machine applies the entries of its channel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import MachinesResponse, SnapshotRequest
from quorumlog.consensus.ready import Role
from quorumlog.entry import AppendReceipt, SnapshotId
from quorumlog.errors import LeaderNotReady, LedgerError, PendingFull, UnknownMachine
from quorumlog.log_state.control_entries import MOST_MACHINES, VERSION_LEVEL, MachineBinding
from quorumlog.log_state.log_state import LogState, Machine, SteppedOver
from quorumlog.measures import Taken
from quorumlog.node.installing import SnapshotFetcher
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.machine_driver import (
    Answer,
    AppendCallback,
    MachineDriver,
    Question,
    Reply,
    unknown_results,
)
from quorumlog.node.machine_runner import MachineFactory, MachineRunner, version_of
from quorumlog.node.pending_appends import AppendOutcome, PendingAppends, SessionPlace
from quorumlog.node.ports import EntryStamper, Member
from quorumlog.node.step_overs import HandOver, MachineHoldings, StepOvers
from quorumlog.state_machine import Applied, StateMachine
from quorumlog.store.snapshots import NOTHING, Applying, SnapshotsUnavailable

NEVER = float("inf")
BIND_RETRY_MS = 500
MOST_BEHIND = 65_536
"""Entries that a machine may lag the commit before appends for it are refused."""
NOT_ALL_RUN = "not every state machine runs here"


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


class StateMachineCaller:
    def __init__(
        self,
        factories: Mapping[str, MachineFactory],
        member: Member,
        log_state: LogStateKeeper,
        pending: PendingAppends,
        fetcher: SnapshotFetcher,
        transfer: Callable[[str, Callable[[object], None], str], None],
        held: Collection[str] = (),
    ) -> None:
        """`transfer`: `LedgerNode.transfer`. `held`: names of machines that are not run here, though
        they could be."""
        self._member = member
        self._log_state = log_state
        self._held = {name: member.directory.applying_file(name).found for name in held}
        needs_all = {
            name
            for name, factory in factories.items()
            if not getattr(factory, "may_leave_out", StateMachine.may_leave_out)
        }
        factories = {name: each for name, each in factories.items() if name not in self._held}
        self._versions = {name: version_of(factory) for name, factory in factories.items()}
        self.fillers: dict[str, EntryStamper] = {
            name: filler
            for name, factory in factories.items()
            if (filler := getattr(factory, "filler", None)) is not None
        }
        self._drivers = {
            name: MachineDriver(name, factory, member, pending, fetcher, partial(self._heeds_all, name))
            for name, factory in factories.items()
        }
        self.is_any_here = bool(self._drivers)
        """This member was started with a state machine."""
        self.hand_over = HandOver(
            member,
            self._needs,
            self._running,
            lambda member_id: transfer(member_id, lambda outcome: None, NOT_ALL_RUN),
            self._holdings,
        )
        self.step_overs = StepOvers(member, log_state, needs_all, self._holdings, self._saved)
        self._now_ms = self._next_bind_ms = 0.0
        self._unbound = ""
        """Why the log does not bind a machine of this leader."""
        self._committed_index = -1
        """As of the last turn; on this member's disk, too."""
        self._bound: tuple[Machine, ...] | None = None
        """By the state of the log that was looked at last, and what follows from it."""
        self._bindings: dict[str, Machine] = {}
        self._not_here: list[Machine] = []
        """Those that the log binds, and that are held back, or without which this member was started."""
        self._all_bound: tuple[Machine, ...] | None = None
        """A leader has nothing to add to these."""

    # ---------------------------------------------------------------- the loop

    def tick(self, now_ms: float, committed_index: int) -> None:
        """`committed_index`: as in `MachineDriver.tick`."""
        if self.step_overs.under_way is not None:
            self.step_overs.tick(now_ms)
        state = self._look()
        if not self._drivers and not self._not_here:
            return
        self._committed_index = committed_index
        orders = () if state is None else state.stepped_over
        for name, driver in self._drivers.items():
            driver.tick(now_ms, self._bindings.get(name), committed_index, orders)
        needs = self._not_running()
        self._member.raft.on_machines(run=not needs)
        self.hand_over.tick(now_ms, needs)

    def _look(self) -> LogState | None:
        """At what the log binds, as far as it is committed."""
        state = self._log_state.committed
        bound = () if state is None else state.machines
        if bound is not self._bound:
            self._bound, self._bindings = bound, {each.name: each for each in bound}
            self._not_here = [each for each in bound if each.name not in self._drivers]
        return state

    def expire(self, now_ms: float) -> None:
        """See `MachineDriver.expire`: all that happens here while the member is stopped."""
        for driver in self._drivers.values():
            driver.expire(now_ms)

    def _not_running(self) -> dict[str, int]:
        """And up to where it has run elsewhere, if it does. Behind `_look`."""
        found = {}
        for name, driver in self._drivers.items():
            if driver.stopped is not None:
                found[name] = driver.stopped.last_index
            elif driver.lacking and name in self._bindings:
                found[name] = self._member.directory.store.begin.index
        for machine in self._not_here:
            found[machine.name] = machine.index - 1
        return found

    def _needs(self) -> dict[str, int]:
        self._look()
        return self._not_running()

    def _holdings(self) -> MachineHoldings:
        state, holds = self._log_state.committed, {}
        bound = [] if state is None else [machine.name for machine in state.machines]
        for name in sorted({*bound, *self._drivers, *self._held}):
            driver = self._drivers.get(name)
            noted = self._held.get(name, NOTHING).first_index - 1
            held_index = noted if driver is None else driver.held_index
            with suppress(SnapshotsUnavailable):
                saved = self._member.directory.snapshots.indices_of(name)
                held_index = max([held_index, *saved])
            holds[name] = held_index
        return MachineHoldings(holds, self._member.directory.store.begin.index)

    def save_us(self) -> dict[str, Taken]:
        """How long saves of each took, in microseconds."""
        return {name: each.save_us.taken() for name, each in self._drivers.items()}

    def _running(self) -> dict[str, int]:
        return {name: each.applied_index for name, each in self._drivers.items() if each.is_running}

    def next_wakeup_ms(self) -> float:
        wakeup = self.hand_over.next_ms
        if self.step_overs.under_way is not None:
            wakeup = min(wakeup, self.step_overs.next_wakeup_ms())
        for driver in self._drivers.values():
            wakeup = min(wakeup, driver.next_wakeup_ms())
        if self._member.raft.role is Role.LEADER:
            state = self._log_state.appended
            if (state is None or state.machines is not self._all_bound) and self._missing():
                wakeup = min(wakeup, self._next_bind_ms)
        return wakeup

    def _missing(self) -> list[MachineBinding]:
        """What a leader would have to write."""
        state = self._log_state.appended
        if state is None:
            return []
        missing = []
        for name, version in self._versions.items():
            binding = state.machine(name)
            channel = state.free_channel() if binding is None else binding.channel
            bound = 0 if binding is None else binding.version
            if bound < version and version > 1 and not self._log_state.may_say(VERSION_LEVEL):
                version = 1
            if channel is not None and bound < version:
                missing.append(MachineBinding(name, channel, version))
        if not missing:
            self._all_bound = state.machines
        return missing

    def bind(self, now_ms: float) -> None:
        """Called before the turn's writes are synced: a leader writes the missing bindings to its
        log."""
        self._now_ms = now_ms
        if now_ms < self._next_bind_ms or not self._drivers or self._member.raft.role is not Role.LEADER:
            return
        self._next_bind_ms = now_ms + BIND_RETRY_MS
        self._unbound = ""
        state = self._log_state.appended
        if state is not None and state.free_channel() is None:
            unbound = [name for name in self._versions if state.machine(name) is None]
            if unbound:
                self._unbound = (
                    f"the state machine {unbound[0]} is not bound: the log binds {MOST_MACHINES} others,"
                    " for good"
                )
        for missing in self._missing()[:1]:  # the next one needs a channel of its own
            try:
                self._member.propose_control(missing)
            except LedgerError as error:
                self._unbound = f"the state machine {missing.name} is not bound yet: {error}"
                if self._log_state.is_noting:  # which takes a sync
                    self._next_bind_ms = now_ms
            else:
                self._next_bind_ms = now_ms

    # ---------------------------------------------------------------- appends and questions

    def admit(
        self,
        batch: EntryBatch,
        machine: str,
        deadline_ms: float,
        done: AppendCallback,
        place: SessionPlace | None = None,
    ) -> AppendCallback:
        """Give the entries of an append to a machine; returns the callback for its outcome. Raises
        UnknownMachine, LeaderNotReady, PendingFull and the errors of the machine's filler."""
        batch.set_channel(self._channel_of(machine))
        if machine in self.fillers:
            self.fillers[machine].check(batch)
        driver = self._drivers[machine]

        def committed(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendReceipt) and place is not None:
                driver.ask_results(place.producer, outcome, deadline_ms, done)
            elif isinstance(outcome, AppendReceipt) and driver.stopped is not None:
                done(unknown_results(outcome, driver.problem))
            elif isinstance(outcome, AppendReceipt):
                driver.results.committed(outcome, deadline_ms, done)
            else:
                done(outcome)

        return committed

    def _channel_of(self, name: str) -> int:
        driver = self._driver(name)
        state = self._log_state.appended
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

    def _heeds_all(self, name: str) -> bool:
        state = self._log_state.appended
        own = [] if state is None else [each for each in state.stepped_over if each.name == name]
        return state is not None and self._drivers[name].heeds(own)

    def _saved(self, name: str) -> list[int]:
        """Those that a running machine has given up may still lie there, or be on their way out."""
        driver = self._drivers.get(name)
        if driver is not None and driver.is_running:
            return driver.snapshots.indices
        going = [] if driver is None else driver.snapshots.going
        with suppress(SnapshotsUnavailable):
            found = self._member.directory.snapshots.indices_of(name)
            return [index for index in found if index not in going]
        return []

    def _driver(self, name: str) -> MachineDriver:
        driver = self._drivers.get(name)
        if name in self._held:
            raise UnknownMachine(
                f"the state machine {name} is held back on {self._member.config.member_id}"
                " (--hold-machine) and carries out nothing there: hand leadership to a member that runs"
                " it, or restart this one without that option"
            )
        if driver is None:
            known = ", ".join(sorted(self._drivers)) or "none"
            raise UnknownMachine(
                f"the leader runs no state machine {name!r} (it runs: {known}); start every member with"
                " it"
            )
        if driver.stopped is not None:
            raise UnknownMachine(f"{driver.problem}; hand leadership to a member where it runs")
        if driver.lacking:
            raise LeaderNotReady(driver.problem, retry_after_ms=500)
        return driver

    def ask(
        self,
        name: str,
        question: bytes,
        timeout_ms: int,
        done: Callable[[Answer], None],
        owner: object = None,
    ) -> None:
        """`done` gets an answer that covers every entry acknowledged before this call: a majority
        confirms this leader, then the machine applies the entries committed by then."""
        deadline_ms = self._now_ms + timeout_ms

        def confirmed(refusal: LedgerError | None) -> None:
            if refusal is not None:
                done(refusal)
            else:
                self._ask(name, question, deadline_ms, done, owner)

        self._member.confirm_leadership(confirmed, owner)

    def ask_here(
        self,
        name: str,
        question: bytes,
        timeout_ms: int,
        done: Callable[[Answer], None],
        owner: object = None,
    ) -> None:
        """`done` gets an answer that covers every entry committed on this member now."""
        self._ask(name, question, self._now_ms + timeout_ms, done, owner)

    def _ask(
        self,
        name: str,
        question: bytes,
        deadline_ms: float,
        done: Callable[[Answer], None],
        owner: object,
    ) -> None:
        try:
            driver = self._driver(name)
        except LedgerError as error:
            done(error)
            return

        def on_answer(answer: Reply | LedgerError, applied_index: int) -> None:
            if isinstance(answer, LedgerError):
                done(answer)
            else:
                assert isinstance(answer, bytes), answer
                done((answer, applied_index))

        index = self._member.raft.committed_index
        query = partial(MachineRunner.query, question=question)
        driver.ask(Question(index, query, deadline_ms, on_answer, owner))

    def discard(self, owner: object) -> None:
        for driver in self._drivers.values():
            driver.discard(owner)

    # ---------------------------------------------------------------- what happens to the log

    def log_cut(self, index: int, *, lost_committed: bool) -> None:
        """See `MachineDriver.log_cut`."""
        for driver in self._drivers.values():
            driver.log_cut(index, lost_committed=lost_committed)

    def close(self, reason: str) -> None:
        self.step_overs.close(reason)
        for driver in self._drivers.values():
            driver.close(reason)

    # ---------------------------------------------------------------- what others ask

    def snapshot_bound(self) -> int | None:
        """The log may begin after this entry, not further on, as far as machines are concerned. None:
        the log binds none."""
        return min(self.snapshot_bounds().values(), default=None)

    def snapshot_bounds(self) -> dict[str, int]:
        """By machine: entries after its second newest verified snapshot are still needed."""
        state = self._log_state.appended
        if state is None:
            return {"(not known yet)": -1}
        return {machine.name: self._bound_of(machine, state.stepped_over) for machine in state.machines}

    def _bound_of(self, machine: Machine, orders: tuple[SteppedOver, ...]) -> int:
        driver = self._drivers.get(machine.name)
        own = [each for each in orders if each.name == machine.name]
        # Without two snapshots, or with such as hold what is to be left out, it is built from its first
        # entry on.
        bound = None if driver is None or not driver.heeds(own) else driver.snapshots.bound
        return machine.index - 1 if bound is None else bound

    # ---------------------------------------------------------------- for other members

    def on_response(self, response: MachinesResponse) -> None:
        self.step_overs.on_response(response)
        self.hand_over.on_response(response)

    def runs(self, name: str) -> bool:
        return name in self._drivers

    def good_snapshots(self, index: int, named: tuple[SnapshotId, ...] = ()) -> tuple[SnapshotId, ...]:
        """One snapshot of each machine with entries up to this one: one `named` before, or the newest,
        which stays for a while."""
        known = {each.name: each for each in named if each.index >= index}
        found = [driver.good_snapshot(index, known.get(name)) for name, driver in self._drivers.items()]
        return tuple(each for each in found if each is not None)

    def snapshot_for(self, request: SnapshotRequest) -> SnapshotId | None:
        """The very one that is asked for, or the newest good one; None: there is none."""
        driver, wanted = self._drivers.get(request.name), request.wanted
        if driver is None:
            return None
        if wanted is not None and driver.holds_snapshot(wanted):
            return wanted
        return driver.good_snapshot(request.least_index)

    def at_rest(self) -> list[tuple[str, Applied, MachineRunner]]:
        """To compare members: the machines that are at rest."""
        found = [(name, driver.at_rest) for name, driver in self._drivers.items()]
        return [(name, *rest) for name, rest in found if rest is not None]

    def status(self) -> tuple[MachineStatus, ...]:
        state = self._log_state.committed
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
        state = self._look()
        found += [
            f"the state machine {name} is held back on this member (--hold-machine): its commands and"
            " questions are refused here, and leadership goes to a member that runs it, if there is one;"
            f" {_way_out(name, applying, state)}restart without --hold-machine {name}"
            for name, applying in sorted(self._held.items())
        ]
        found += [
            f"this member was started without the state machine {machine.name}, which the log binds: it"
            " carries out no commands of it, and hands leadership to a member that does; restart it with"
            f" {machine.name}"
            for machine in self._not_here
            if machine.name not in self._held
        ]
        return [problem for problem in found if problem]


def _way_out(name: str, applying: Applying, state: LogState | None) -> str:
    """What to do before a machine that is held back is run again."""
    if not applying.is_under_way:
        return ""
    ended = f"its last run here ended while it applied {applying}"
    if applying.stop_index - applying.first_index > 1:
        return f"{ended}, and the next one applies entry by entry, and so finds the one: "
    orders = () if state is None else state.stepped_over
    if (name, applying.first_index) in [(each.name, each.index) for each in orders]:
        return f"{ended}, which it leaves out from now on: "
    return (
        f"{ended}: mend the machine, or have it leave that entry out (quorumlog machine step-over"
        f" {name} {applying.first_index}), then "
    )
