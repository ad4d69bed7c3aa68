"""Leadership goes where machines run; and a machine that is to leave an entry out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import MachinesRequest, MachinesResponse
from quorumlog.consensus.ready import Envelope, Role
from quorumlog.entry import EntryId, EntryKind, Replica
from quorumlog.errors import (
    BadRequest,
    DirectoryDamaged,
    IndexOutOfRange,
    LeaderNotReady,
    LedgerError,
    OutcomeUnknown,
    StepOverRefused,
    StoreFailure,
    UnknownMachine,
)
from quorumlog.header_array import CHAIN, LOW_32
from quorumlog.log_state.control_entries import MOST_STEPPED_OVER, StepOver
from quorumlog.log_state.log_state import Machine
from quorumlog.node.installing import MACHINES_LEVEL
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.machine_runner import entries_of
from quorumlog.node.ports import Member

NEVER = float("inf")
ASK_INTERVAL_MS = 1_000
MOST_INTERVAL_MS = 60_000
"""Reached by doubling: an application's mistake may stay for long."""


class MachineHoldings(NamedTuple):
    holds: Mapping[str, int]
    """By machine that is known here: the last entry whose effects were ever here, according to the
    files."""
    begin_index: int
    """The entry before the first of the log here."""


class HandOver:
    def __init__(
        self,
        member: Member,
        needs: Callable[[], Mapping[str, int]],
        running: Callable[[], Mapping[str, int]],
        transfer: Callable[[str], None],
        holds: Callable[[], MachineHoldings],
    ) -> None:
        """`needs`: machines that do not run here, and the entry that a successor must have applied;
        `running`: those that do, and their applied index; `holds`: answers other members' requests."""
        self._replica, self._raft, self._host = member.replica, member.raft, member.host
        self._needs = needs
        self._running = running
        self._transfer = transfer
        self._holds = holds
        self._interval_ms = float(ASK_INTERVAL_MS)
        self.next_ms = NEVER

    def tick(self, now_ms: float, needs: Mapping[str, int]) -> None:
        if not needs or self._raft.role is not Role.LEADER:
            self.next_ms, self._interval_ms = NEVER, float(ASK_INTERVAL_MS)
        elif self.next_ms == NEVER:
            self.next_ms = now_ms
        if now_ms < self.next_ms:
            return
        self.next_ms = now_ms + self._interval_ms
        self._interval_ms = min(2 * self._interval_ms, MOST_INTERVAL_MS)
        too_old = self._host.members_below(MACHINES_LEVEL)
        for peer in self._raft.status().peers:
            if peer.is_voter and peer.replica.member_id not in too_old:
                request = MachinesRequest(sender=self._replica, term=self._raft.term)
                self._host.send(Envelope(peer.replica, request))

    def on_request(self, request: MachinesRequest) -> None:
        holdings = self._holds()
        response = MachinesResponse(
            sender=self._replica,
            term=self._raft.term,
            applied=tuple(self._running().items()),
            holds=tuple(holdings.holds.items()),
            begin_index=holdings.begin_index,
        )
        self._host.send(Envelope(request.sender, response))

    def on_response(self, response: MachinesResponse) -> None:
        needs, applied = self._needs(), dict(response.applied)
        if (
            needs
            and self._raft.role is Role.LEADER
            and response.term == self._raft.term
            and all(applied.get(name, -1) >= index for name, index in needs.items())
            and applied.keys() >= self._running().keys()
        ):
            self._transfer(response.sender.member_id)


# ----------------------------------------------------------------
# StepOvers: an operator has a state machine leave an entry out, with a STEP_OVER entry in the log.
#
# The leader finds that entry, and asks every member what its machine holds: where it holds the entry,
# what came of that has been seen, and it would be built anew. So that is refused, unless it is asked for
# all the same; and a member that does not answer may hold it.


ASK_AGAIN_MS = 300
ANSWERS_WITHIN_MS = 2_000
"""A member that has not answered by then counts as silent."""
RETRY_MS = 200

StepOverOutcome = int | LedgerError
"""Index of the STEP_OVER entry, which is committed; or why there is none, or OutcomeUnknown."""
StepOverCallback = Callable[[StepOverOutcome], None]


class _UnderWay:
    def __init__(self, name: str, index: int, unsafe: bool, term: int, done: StepOverCallback) -> None:
        self.name = name
        self.index = index
        self.unsafe = unsafe
        self.term = term
        self.done = done
        self.chain: int | None = None
        """Of the entry, once it was found."""
        self.answers: dict[Replica, MachineHoldings] = {}
        self.ask_at_ms = -NEVER
        self.until_ms = NEVER
        self.entry: EntryId | None = None
        """The one that says it, once it is in the log."""


class StepOvers:
    def __init__(
        self,
        member: Member,
        log_state: LogStateKeeper,
        needs_all: Collection[str],
        holds: Callable[[], MachineHoldings],
        saved: Callable[[str], Collection[int]],
    ) -> None:
        """`needs_all`: names of machines that cannot skip an entry; `holds`: of this member; `saved`: by
        machine, the entries of its snapshots here that are not deleted before the next turn."""
        self._member = member
        self._log_state = log_state
        self._needs_all = needs_all
        self._holds = holds
        self._saved = saved
        self.under_way: _UnderWay | None = None

    def request(self, name: str, index: int, unsafe: bool, done: StepOverCallback) -> None:
        """`done` gets one outcome, once the entries it depends on are committed and this member
        leads."""
        self._member.confirm_leadership(lambda refusal: self._begin(name, index, unsafe, done, refusal))

    def _begin(
        self, name: str, index: int, unsafe: bool, done: StepOverCallback, refusal: LedgerError | None
    ) -> None:
        member = self._member
        if refusal is None and self.under_way is not None:
            refusal = LeaderNotReady("another entry is being stepped over", retry_after_ms=RETRY_MS)
        if refusal is not None:
            done(refusal)
            return
        try:
            machine = self._machine(name)
            if name in self._needs_all:
                raise StepOverRefused(
                    f"{name} cannot leave an entry out, since later entries depend on each of them: fix"
                    " the cause of the stop, or restore a backup (quorumlog restore)"
                )
            state = self._log_state.committed_state()
            for order in state.stepped_over:
                if (order.name, order.index) == (name, index):
                    done(order.ordered_at_index)
                    return
            if not machine.index < index <= member.raft.committed_index:
                raise BadRequest(
                    f"entry {index} is not a command of {name}: its commands follow entry"
                    f" {machine.index}, and the log is committed up to {member.raft.committed_index}"
                )
            self._log_state.admit_own(EntryKind.STEP_OVER)
            batch = member.readable_range(index, index + 1, 1)
        except IndexOutOfRange:
            done(
                StepOverRefused(
                    f"entry {index} is no longer in the log of the leader, so nothing could be built"
                    " without it: restore a backup (quorumlog restore)"
                )
            )
            return
        except LedgerError as error:
            done(error)
            return
        step = self.under_way = _UnderWay(name, index, unsafe, member.raft.term, done)
        if isinstance(batch, EntryBatch):
            self._read(step, machine, batch)
        else:
            cold, store = batch, member.store
            member.host.read_later(
                lambda: store.read_from(*cold, once=True)[1],
                lambda result: self._read(step, machine, result),
            )

    def _machine(self, name: str) -> Machine:
        """Raises UnknownMachine, LeaderNotReady."""
        state = self._log_state.committed_state()
        machine = state.machine(name)
        if machine is None:
            known = ", ".join(each.name for each in state.machines) or "none"
            raise UnknownMachine(f"the log binds no state machine {name!r} (it binds: {known})")
        return machine

    def _read(
        self, step: _UnderWay, machine: Machine, result: EntryBatch | StoreFailure | LedgerError
    ) -> None:
        if step is not self.under_way:
            return
        if isinstance(result, DirectoryDamaged):
            self._member.found(result)
            damaged = f"entry {step.index} is damaged here, and is being repaired"
            self._end(LeaderNotReady(damaged, retry_after_ms=RETRY_MS))
        elif isinstance(result, LedgerError):
            self._end(result)
        elif isinstance(result, StoreFailure):
            raise result
        else:
            entry = result.slice(0, 1)
            if not entries_of(entry, machine.channel).count:
                self._end(BadRequest(f"entry {step.index} is not a command of {step.name}"))
                return
            step.chain = int(entry.words()[CHAIN][0] & LOW_32)

    def _others(self) -> list[Replica]:
        """Voters and learners."""
        members = self._member.raft.status().membership.members()
        return sorted(each for each in members if each != self._member.replica)

    # ---------------------------------------------------------------- the loop

    def tick(self, now_ms: float) -> None:
        step, raft = self.under_way, self._member.raft
        if step is None:
            return
        if raft.role is not Role.LEADER or raft.term != step.term:
            self._lose(step)
        elif step.entry is not None:
            if raft.committed_index >= step.entry.index:
                self._end(step.entry.index)
        elif step.chain is not None:
            self._ask(step, now_ms)

    def _ask(self, step: _UnderWay, now_ms: float) -> None:
        if step.until_ms == NEVER:
            step.until_ms = now_ms + ANSWERS_WITHIN_MS
        silent = [each for each in self._others() if each not in step.answers]
        if not silent or now_ms >= step.until_ms:
            self._judge(step, silent)
        elif now_ms >= step.ask_at_ms:
            step.ask_at_ms = now_ms + ASK_AGAIN_MS
            for replica in silent:
                request = MachinesRequest(sender=self._member.replica, term=step.term)
                self._member.host.send(Envelope(replica, request))

    def on_response(self, response: MachinesResponse) -> None:
        step = self.under_way
        holds = dict(response.holds)
        if step is not None and response.term == step.term and step.name in holds:
            step.answers[response.sender] = MachineHoldings(holds, response.begin_index)

    def next_wakeup_ms(self) -> float:
        step = self.under_way
        return NEVER if step is None or step.entry is not None else min(step.ask_at_ms, step.until_ms)

    def _judge(self, step: _UnderWay, silent: list[Replica]) -> None:
        answers = {**step.answers, self._member.replica: self._holds()}
        holding = [
            each.member_id
            for each, answer in sorted(answers.items())
            if answer.holds.get(step.name, -1) >= step.index
        ]
        try:
            if holding and not step.unsafe:
                raise StepOverRefused(
                    f"entry {step.index} was applied to {step.name} on {', '.join(holding)}, so it ended"
                    " no member there; to leave it out anyway, even if it was read, and build"
                    " the machine anew without it: quorumlog machine step-over --unsafe"
                )
            if silent and not step.unsafe:
                raise StepOverRefused(
                    f"no answer from {', '.join(each.member_id for each in silent)}, where entry"
                    f" {step.index} may have been applied to {step.name}: start the members that do not"
                    f" run (quorumlog serve --hold-machine {step.name}), or go without (quorumlog"
                    " machine step-over --unsafe)"
                )
            self._check_room(min(answer.begin_index for answer in answers.values()), bool(silent))
            self._check_rebuilt(step)
            assert step.chain is not None
            step.entry = self._member.propose_control(StepOver(step.name, step.index, step.chain))
        except LedgerError as error:
            self._end(error)

    def _check_rebuilt(self, step: _UnderWay) -> None:
        """Raises StepOverRefused where nothing here tells what the machine was before the entry."""
        machine, begin_index = self._machine(step.name), self._member.store.begin.index
        if begin_index < machine.index or self._holds().holds.get(step.name, -1) < step.index:
            return
        if not any(begin_index <= index < step.index for index in self._saved(step.name)):
            raise StepOverRefused(
                f"the state of {step.name} before entry {step.index} is not known here: the log begins"
                f" at index {begin_index + 1}, and no snapshot is of an earlier entry: restore a backup"
                " (quorumlog restore)"
            )

    def _check_room(self, begin_index: int, is_any_silent: bool) -> None:
        """Those are forgotten that lie below where the log may begin, if there are too many; but then no
        member may hold any of them. Raises StepOverRefused."""
        state = self._log_state.appended_state()
        if len(state.stepped_over) < MOST_STEPPED_OVER:
            return
        gone = [each.index for each in state.stepped_over if each.index < state.keep_from_index]
        if not gone or is_any_silent or max(gone) > begin_index:
            raise StepOverRefused(
                f"the machines of this log leave out {MOST_STEPPED_OVER} entries already, and no more"
                " until every member's log begins after one of them (docs/retention.md)"
            )

    # ---------------------------------------------------------------- the end

    def _lose(self, step: _UnderWay) -> None:
        if step.entry is None:
            refusal = self._member.refusal_unless_leading()
            self._end(refusal or LeaderNotReady("leadership has changed", retry_after_ms=RETRY_MS))
        else:
            self._end(OutcomeUnknown("leadership was lost; the entry may still be stepped over"))

    def close(self, reason: str) -> None:
        if self.under_way is not None:
            self._end(OutcomeUnknown(f"{reason}; the entry may still be stepped over"))

    def _end(self, outcome: StepOverOutcome) -> None:
        step, self.under_way = self.under_way, None
        assert step is not None
        step.done(outcome)
