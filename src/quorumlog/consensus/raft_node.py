"""RaftNode: the core's interface. Inputs change the core at once; `ready()` returns the effects.

    node.advance(now_ms)            every turn begins with the time
    node.step(message)              a received message; then proposals, disk and network reports
    ready = node.ready()            carried out by `node/ledger_node.py`, in the order of ready.py

This file only connects the parts, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.elector import LeaderElector
from quorumlog.consensus.forming import Forming
from quorumlog.consensus.handler import EntryHandler
from quorumlog.consensus.inbox import Inbox
from quorumlog.consensus.leadership_transfer import LeadershipTransfer
from quorumlog.consensus.log import DamagedIndices, LogChanges, TermRuns
from quorumlog.consensus.member_state import MemberState, Outbox
from quorumlog.consensus.membership_change import MembershipChange
from quorumlog.consensus.messages import AnyMessage, InstallResult, PushEntryRequest, PushResult
from quorumlog.consensus.reads import LinearizableReads
from quorumlog.consensus.ready import MemberStatus, PushOrder, Ready, Role, RoleChange
from quorumlog.consensus.replication import Replication
from quorumlog.entry import EntryId, EntryKind, Formation, HardState, Replica
from quorumlog.errors import LeaderNotReady, LeaderTransferring, NotLeader


class RaftNode:
    """The consensus of one member. Single-threaded, deterministic: same inputs, same outputs."""

    def __init__(
        self,
        config: ConsensusConfig,
        member: Replica,
        member_ids: Sequence[str],
        *,
        formation: Formation,
        hard_state: HardState,
        term_runs: Sequence[tuple[int, int]],
        before_begin: EntryId,
        ledger_end_index: int,
        committed_index: int,
        async_mode: bool,
        random: Random,
        now_ms: float,
        damaged: Sequence[tuple[int, int]] = (),
        owed_index: int = -1,
        level: int = 0,
    ) -> None:
        """Everything given here is on disk. `member_ids`: the configured ones, this member's included.
        `committed_index`: of the checkpoint, -1 if nothing. `term_runs`: ((first_index, term), ...) of
        the log after `before_begin`. `damaged`: ((first_index, stop_index), ...) of damaged entries.
        `owed_index`: the log was installed, and up to here the group had committed entries then.
        `level`: of the log's format, the newest that this member reports to know.
        """
        self.log = LogChanges(
            TermRuns(before_begin, term_runs, ledger_end_index), DamagedIndices(damaged)
        )
        self._state = MemberState(
            member, formation.founding, hard_state, self.log, committed_index, now_ms
        )
        self._state.owed_index = -1 if async_mode else owed_index
        self._async_mode = async_mode
        self._outbox = Outbox()
        self._elector = LeaderElector(config, self._state, self._outbox, random)
        self.answers = self._elector.answers
        self._handler = EntryHandler(
            self._state,
            self._outbox,
            max_waiting_pushes=config.max_waiting_pushes,
            async_mode=async_mode,
        )
        self.pushes = self._handler
        self._config = config
        self.replication = Replication(config, self._state, self._outbox, self._elector)
        self.transfer = LeadershipTransfer(
            config, self._state, self._outbox, self._elector, self.replication
        )
        self.members = MembershipChange(
            config,
            self._state,
            self._elector,
            self.replication,
            self.transfer,
            self._check_may_propose,
        )
        self.reads = LinearizableReads(
            self._state, self._outbox, self._elector, config.heartbeat_interval_ms
        )
        self._forming = Forming(config, self._state, self._outbox, random, member_ids, formation, level)
        self._ready_number = 0
        self._reported_committed_index = committed_index
        self._reported_role = (self._state.role, self._state.term, self._state.leader)
        self._inbox = Inbox(
            self._state,
            self._elector,
            self._handler,
            self.replication,
            self.transfer,
            self.reads,
            self._forming,
        )
        self._state.on_transition = self._on_transition
        self._elector.start()
        self._forming.start()

    def observe(self, observer: Callable[[str], None]) -> None:
        """Set an observer: called with the name of each dispatcher step and of other events that no
        Ready shows."""
        self._state.observer = observer

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def leader(self) -> Replica | None:
        return self._state.leader

    @property
    def committed_index(self) -> int:
        return self._state.committed_index

    @property
    def leader_committed_index(self) -> int:
        """The committed index that the leader of this term last reported; entries above it are still
        being replicated."""
        is_leader = self._state.role is Role.LEADER
        return self._state.committed_index if is_leader else self._handler.leader_committed_index

    @property
    def ledger_end(self) -> EntryId:
        return self._state.ledger_end

    @property
    def begin(self) -> EntryId:
        """The entry before the first that is compared or pushed. While a drop comes to disk the store
        still holds entries below."""
        return self._state.runs.before_begin

    def term_at(self, index: int) -> int:
        return self._state.runs.term_at(index)

    @property
    def connected(self) -> tuple[Replica, ...]:
        return self._outbox.connected

    def advance(self, now_ms: float, clock_ms: int = -1) -> None:
        """Set the time; every turn begins with it, so that a process that was stopped notices before it
        answers. `clock_ms`: the wall clock, unchecked."""
        state = self._state
        assert now_ms >= state.now_ms, (now_ms, state.now_ms)
        state.now_ms, state.clock_ms = now_ms, clock_ms
        if state.role is Role.UNFORMED:
            self._forming.advance()
        elif self._elector.advance():
            if self.replication.is_kept_from_committing:
                self._elector.step_down_without_commit()
                return
            if self.replication.progress.gives_up():
                self._elector.step_down_unheard()
                return
            self.transfer.tick()
            if state.is_unfit_leader:
                self.transfer.hand_over_unfit()
            self.replication.tick()
        if now_ms >= self.replication.commit_due_ms:
            self.replication.push_due = True

    def next_wakeup_ms(self) -> float:
        """When `advance` next has something to do; may be infinite."""
        if self._state.role is Role.UNFORMED:
            return min(self._elector.next_wakeup_ms(), self._forming.next_wakeup_ms())
        return min(self._elector.next_wakeup_ms(), self.replication.commit_due_ms)

    # ---------------------------------------------------------------- messages

    def step(self, message: AnyMessage, *, refuse: PushResult | None = None) -> None:
        """`refuse`: the entries of this APPEND cannot be taken (DISK_FULL); its sender counts as heard
        and is answered so. Messages of a directory that is not connected now are dropped: they were
        under way when the connection was lost, or it was found older than it was."""
        if message.sender not in self._outbox.connected:
            return
        if refuse is None:
            self._inbox.steps[type(message)](message)
        else:
            assert isinstance(message, PushEntryRequest), message
            self._inbox.on_push_request(message, refuse)

    # ---------------------------------------------------------------- requests

    def propose(self, count: int, kind: EntryKind = EntryKind.NORMAL, *, size_bytes: int = 0) -> EntryId:
        """Take the next `count` indices for entries of the current term; the id of the first.
        `size_bytes`: of all of them together.

        Raises NotLeader, LeaderNotReady, LeaderTransferring, or DiskFull while too many followers
        refused earlier entries for these to be committed; nothing has changed then.
        """
        assert count > 0 and kind is not EntryKind.MEMBERSHIP, (count, kind)
        self._check_may_propose(frees_space=kind is EntryKind.KEEP)
        return self.replication.append(count, kind, size_bytes)

    def _check_may_propose(self, *, frees_space: bool = False) -> None:
        self._check_leading()
        if not frees_space:
            self.replication.check_that_most_have_space()
        target = self.transfer.target
        if target is not None:
            raise LeaderTransferring(
                f"leadership is being handed over to {target.member_id}",
                leader_id=self._state.member.member_id,
                retry_after_ms=self._config.heartbeat_interval_ms,
            )

    def request_read(self) -> int:
        """See `LinearizableReads.request`; of the leader alone. Raises NotLeader or LeaderNotReady."""
        self._check_leading()
        return self.reads.request()

    def transfer_leadership(self, member_id: str, reason: str = "") -> None:
        """Begin to hand over, for a `reason` in words; raises as `check_transfer`."""
        self._check_leading()
        self.transfer.begin(member_id, reason)

    def check_transfer(self, member_id: str) -> None:
        """Raises TransferFailed, LeaderTransferring, NotLeader or LeaderNotReady."""
        self._check_leading()
        self.transfer.check(member_id)

    def _check_leading(self) -> None:
        state = self._state
        if state.role is Role.LEADER:
            return
        if state.leader is None:
            raise LeaderNotReady(
                f"{state.member.member_id}, {state.role.value} in term {state.term}, knows no leader",
                retry_after_ms=self._config.min_vote_interval_ms,
            )
        raise NotLeader(
            f"{state.member.member_id} does not lead, {state.leader.member_id} does",
            leader_id=state.leader.member_id,
        )

    # ---------------------------------------------------------------- reports

    def on_durable(self, ready_number: int) -> None:
        """Everything that Readys 1 .. `ready_number` wrote is on disk."""
        assert ready_number <= self._ready_number, (ready_number, self._ready_number)
        if self.log.on_durable(ready_number) and self._state.role is Role.LEADER:
            self.replication.mark_own_disk()
            self.transfer.ask_if_caught_up()

    def on_damaged(self, first_index: int, stop_index: int) -> None:
        """The bytes of these entries turned out to be damaged on this member's disk."""
        assert first_index < stop_index <= self._state.runs.end_index + 1, (first_index, stop_index)
        self.log.damaged.add(first_index, stop_index)
        self._elector.on_damage_changed()
        if self._state.role is Role.LEADER:
            self.replication.unmark_own_disk()
            self.transfer.hand_over_unfit()

    def on_repaired(self, still_damaged: Sequence[tuple[int, int]]) -> None:
        """Entries are on disk again, but for these (first_index, stop_index)."""
        self.log.damaged.replace(still_damaged)
        self._elector.on_damage_changed()
        if self._state.role is Role.LEADER:
            self.replication.mark_own_disk()
            self.transfer.ask_if_caught_up()
        else:
            self._handler.release_withheld()

    def on_log_state(self, *, is_known: bool) -> None:
        """Called whenever this member learns or loses the state of its control entries. Without it, it
        votes and takes entries, but neither campaigns nor leads."""
        self._state.knows_log_state = is_known
        self._elector.on_fitness_changed()

    def on_machines(self, *, run: bool) -> None:
        """Whether all state machines of the group that this member has run here."""
        self._state.runs_machines = run

    def drop_before(self, begin: EntryId) -> None:
        """The log is to begin after this entry, which is committed and on disk: nothing at or below it
        is compared, pushed or cut from now on."""
        assert begin.index <= self._state.committed_index, (begin, self._state.committed_index)
        self.log.drop_before(begin)
        if self._state.role is Role.LEADER:
            self.replication.on_begin_raised()

    def on_space(self, lacks_space: bool) -> None:
        """Whether data found room on this member's disk, each time that this changes."""
        self._state.lacks_space = lacks_space
        if lacks_space and self._state.role is Role.LEADER:
            self.transfer.hand_over_unfit()

    def on_disk(self, *, hangs: bool) -> None:
        """Whether a sync of this member's has been under way for far too long, each time that this
        changes. While it has, this member does not campaign, and takes over no leadership."""
        self._state.disk_hangs = hangs
        self._elector.on_fitness_changed()

    def hear_of_leader(self, leader: Replica, term: int) -> None:
        """A leader known from a message that cannot be taken yet; used to redirect clients."""
        if self._state.leader is None and term >= self._state.term:
            self.transfer.successor = leader

    def on_install_answered(self, replica: Replica, result: InstallResult) -> None:
        if self._state.role is Role.LEADER:
            self.replication.on_install_answered(replica, result)

    def judge_install(self, begin: EntryId, leader: Replica) -> InstallResult | None:
        """See `EntryHandler.judge_install`; of the leader that this member follows."""
        assert leader == self._state.leader, (leader, self._state.leader)
        return self._handler.judge_install(begin, leader)

    def on_bytes_moved(self, replica: Replica) -> None:
        """See `Host.replicas_with_moving_data`."""
        if self._state.role is Role.LEADER and self._outbox.is_connected(replica):
            self.replication.on_bytes_moved(replica)

    def on_connected(self, replica: Replica, *, syncs: bool = False) -> None:
        """`syncs`: the peer acknowledges only synced entries."""
        assert replica != self._state.member, replica
        if replica in self._state.set_back:
            return  # the next heartbeat tells it
        self._outbox.connect(replica, syncs=syncs)
        self._forming.on_connected(replica)
        self._elector.on_connected(replica)
        self.reads.on_connected(replica)
        if self._state.role is Role.LEADER:
            self.replication.on_connected(replica, may_be_set_back=self._async_mode)

    def on_connection_lost(self, replica: Replica, *, is_gone: bool) -> None:
        """`is_gone`: dialling the control connection again was refused. Reported in addition to the
        loss."""
        if is_gone:
            self._elector.on_connection_lost(replica)
        self._outbox.disconnect(replica)
        self.replication.on_connection_lost(replica)

    # ---------------------------------------------------------------- transitions

    def _on_transition(self, old_role: Role, old_term: int, old_leader: Replica | None) -> None:
        state = self._state
        if old_role is Role.UNFORMED:
            self._elector.start()
        if old_leader != state.leader:
            self.transfer.on_leader_changed(old_leader)
        if old_term != state.term:
            self._handler.begin()
        self.reads.on_transition()
        if old_role is Role.LEADER:
            self.transfer.stop()
            self.replication.stop()
        if state.role is Role.LEADER:
            self._open_term()

    def _open_term(self) -> None:
        """Nothing older commits without an entry of the leader's own."""
        self._elector.open_term()
        self.transfer.open_term()
        self.reads.open_term()
        self.replication.begin()
        self.replication.append(1, EntryKind.NOOP, size_bytes=0)

    def ready(self) -> Ready | None:
        """The effects to carry out now, or None. Each Ready is returned once."""
        state, outbox, log, forming = self._state, self._outbox, self.log, self._forming
        if not (
            outbox.messages
            or outbox.after_durable
            or log.changed
            or (self.replication.push_due and state.role is Role.LEADER)
            or state.committed_index != self._reported_committed_index
            or (state.role, state.term, state.leader) != self._reported_role
            or log.memberships.changes != self.members.settled_changes
            or state.reported is not self.members.settled_reported
            or state.hard_state_changed
            or self.reads.may_grant
            or forming.changed
        ):
            return None
        self.members.settle_role()
        pushes: tuple[PushOrder, ...] = ()
        grants = self.reads.take_grants() if self.reads.may_grant else ()
        if state.role is Role.LEADER:
            pushes = self.replication.next_orders()
        role = (state.role, state.term, state.leader)
        if not (
            outbox.messages
            or outbox.after_durable
            or pushes
            or log.changed
            or state.committed_index != self._reported_committed_index
            or role != self._reported_role
            or state.hard_state_changed
            or grants
            or forming.changed
        ):
            return None
        assert state.committed_index <= state.runs.end_index, (state.committed_index, state.ledger_end)
        self._ready_number += 1
        role_change = None
        if role != self._reported_role:
            leader_id = state.leader.member_id if state.leader else None
            role_change = RoleChange(state.role, state.term, leader_id, state.because)
            self._reported_role = role
            state.because = ""
        truncate_from, loses_committed, appends = log.take(self._ready_number)
        ready = Ready(
            number=self._ready_number,
            committed_index=state.committed_index,
            hard_state=state.hard_state if state.hard_state_changed else None,
            formation=forming.formation if forming.changed else None,
            truncate_from=truncate_from,
            loses_committed=loses_committed,
            append=appends,
            messages=tuple(outbox.messages),
            messages_after_durable=tuple(outbox.after_durable),
            pushes=pushes,
            read_grants=grants,
            role_change=role_change,
        )
        self._reported_committed_index = state.committed_index
        state.hard_state_changed = False
        forming.changed = False
        outbox.messages.clear()
        outbox.after_durable.clear()
        return ready

    def status(self) -> MemberStatus:
        state = self._state
        runs = state.runs
        leads = state.role is Role.LEADER
        own_problems = tuple(p for p in (self._handler.problem, self._forming.problem) if p)
        target = self.transfer.target
        return MemberStatus(
            replica=state.member,
            role=state.role,
            term=state.term,
            voted_for=state.voted_for,
            leader=state.leader,
            ledger_begin_index=-1 if runs.end == runs.before_begin else runs.before_begin.index + 1,
            ledger_end=state.ledger_end,
            durable_index=self.log.durable_index,
            committed_index=state.committed_index,
            membership=state.membership,
            membership_index=self.log.memberships.newest_index,
            transferring_to=target.member_id if target else None,
            waits_for=self._forming.waits_for(),
            problems=(*own_problems, *(self.replication.problems() if leads else ())),
            peers=self.replication.peers() if leads else (),
            answered_ms_ago=self._elector.answers.ages_ms() if leads else {},
        )
