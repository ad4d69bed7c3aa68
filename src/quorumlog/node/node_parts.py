"""NodeParts: the parts of a member and their connections; no behaviour."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from quorumlog.config import MIB, GroupConfig
from quorumlog.consensus.messages import AnyPeerMessage, SnapshotRequest
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.entry import Durability, EntryId, Replica, SnapshotId
from quorumlog.errors import LedgerError
from quorumlog.log_state.control_entries import ControlBody
from quorumlog.node.first_admin import FirstAdmin
from quorumlog.node.installing import LogDrops, LogReplacement, SnapshotFetcher
from quorumlog.node.log_clock import TimeMarks
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.member_changes import MemberChanges
from quorumlog.node.operator_orders import OperatorOrders
from quorumlog.node.pending_appends import PendingAppends
from quorumlog.node.ports import Host
from quorumlog.node.producer_sessions import ProducerSessions
from quorumlog.node.reader_moves import ReaderMoves
from quorumlog.node.reading import Confirmations, Confirmed, MarkFinder, ReadableLog, ReaderLags
from quorumlog.node.repair import Repairer, Scrubber
from quorumlog.node.retention import Retention
from quorumlog.node.sending import CatchUpPace, InstallSender, PushSender, RecentBatches, SnapshotSender
from quorumlog.node.transfers import Transfers
from quorumlog.node.writing import AppendConditions, BatchFormer, Flusher, LogWriter
from quorumlog.store.member_directory import MemberDirectory

PAUSE_MS = 20.0
"""Short beside a heartbeat, long beside the turns of an append."""


class Housekeeping:
    def __init__(self) -> None:
        self._ticks: Sequence[Callable[[float], None]] = ()
        self._wakeups: Sequence[Callable[[], float]] = ()
        self._due_ms = 0.0
        self._has_missed = False
        """A turn went by since they were asked: when they are due by themselves may have changed."""

    def take_over(
        self, ticks: Sequence[Callable[[float], None]], wakeups: Sequence[Callable[[], float]]
    ) -> None:
        """`ticks` do the work that is due, in this order; `wakeups` give its time, by the clock."""
        self._ticks, self._wakeups = ticks, wakeups

    def stir(self) -> None:
        self._due_ms = 0.0

    def tick(self, now_ms: float) -> bool:
        """At the end of each turn; True if the parts were asked."""
        if now_ms < self._due_ms:
            self._has_missed = True
            return False
        self._due_ms = now_ms + PAUSE_MS
        self._has_missed = False
        for tick in self._ticks:
            tick(now_ms)
        # What they have to do by the clock keeps its time: a scrub has its pace.
        self._due_ms = min(self._due_ms, self._next_by_clock_ms())
        return True

    def next_wakeup_ms(self) -> float:
        if self._has_missed:
            return self._due_ms
        return self._next_by_clock_ms()

    def _next_by_clock_ms(self) -> float:
        return min([wakeup() for wakeup in self._wakeups])


# ---------------------------------------------------------------- NodeParts: the parts of a member and
# their connections; no behaviour.


RECENT_BYTES = 16 * MIB
"""Newest entries kept in memory for pushes and tailing readers."""


class Machines(Protocol):
    """The interface of the state machines to the other parts."""

    def good_snapshots(self, index: int, named: tuple[SnapshotId, ...]) -> tuple[SnapshotId, ...]: ...

    def snapshot_for(self, request: SnapshotRequest) -> SnapshotId | None: ...

    def runs(self, name: str) -> bool: ...


class Carrier(Protocol):
    """The interface of the node to its parts."""

    config: GroupConfig
    directory: MemberDirectory
    committed_index: int
    durable_committed_index: int

    @property
    def machines(self) -> Machines: ...

    def carry_out_all(self) -> None: ...
    def hold(self, save: Callable[[], None], then: Callable[[LedgerError | None], None]) -> None: ...

    def receive(self, message: AnyPeerMessage) -> None: ...

    def propose_control(self, body: ControlBody) -> EntryId: ...

    def confirm_leadership(self, done: Confirmed, owner: object = None) -> None: ...

    def refusal_unless_leading(self) -> LedgerError | None: ...


class NodeParts:
    def __init__(
        self,
        node: Carrier,
        config: GroupConfig,
        directory: MemberDirectory,
        host: Host,
        rng: random.Random,
        now_ms: float,
    ) -> None:
        store, replica = directory.store, Replica(config.member_id, directory.directory_id)
        in_memory = directory.durability is Durability.MEMORY
        term_runs = store.term_runs()  # which may find damage, so before the ranges are taken
        self.raft = RaftNode(
            config.consensus,
            replica,
            [m.member_id for m in config.members],
            formation=directory.formation,
            hard_state=directory.hard_state,
            term_runs=term_runs,
            before_begin=store.begin.entry_id,
            ledger_end_index=store.end.index,
            committed_index=directory.committed_index,
            async_mode=directory.durability is Durability.ASYNC,
            random=rng,
            now_ms=now_ms,
            damaged=[(each.first_index, each.stop_index) for each in store.damaged],
            owed_index=-1 if store.start is None else store.start.owed_index,
            level=host.level,
        )
        self.housekeeping = Housekeeping()
        self.pending = PendingAppends()
        self.recent = RecentBatches(RECENT_BYTES)
        self.repairer = Repairer(
            replica,
            self.raft,
            store,
            host,
            node.carry_out_all,
            lambda: directory.hard_state.term,
            lambda start: self.drops.give_up_below(start, node.durable_committed_index),
            self.housekeeping.stir,
        )
        self.log_state = LogStateKeeper(
            directory,
            self.raft,
            host,
            self.repairer.found,
            self.housekeeping.stir,
            lambda state: self.time_marks.written(state),
            lambda: self.writer.receive_waiting(),
        )
        self.writer = LogWriter(
            self.raft, store, self.recent, self.repairer, self.log_state, host, node.receive
        )
        self.pace = CatchUpPace(
            config.catch_up_bytes_per_second,
            config.consensus.push_limit_bytes,
            now_ms,
            store.end.position,
        )
        self.pushes = PushSender(
            replica, self.raft, store, self.recent, host, self.pace, self.repairer.found
        )
        self.installs = InstallSender(
            replica,
            config.consensus,
            self.raft,
            store,
            host,
            self.pace,
            lambda index, named: node.machines.good_snapshots(index, named),
        )
        snapshots = directory.snapshots
        self.snapshots = SnapshotSender(
            replica,
            config.consensus.push_limit_bytes,
            self.raft,
            snapshots,
            host,
            self.pace,
            lambda request: node.machines.snapshot_for(request),
        )
        self.fetcher = SnapshotFetcher(
            replica,
            self.raft,
            snapshots,
            host,
            float(config.consensus.push_resend_ms),
            self.housekeeping.stir,
        )
        self.scrubber = Scrubber(
            0 if in_memory else config.storage.scrub_bytes_per_second,
            config.storage.scrub_start_delay_ms,
            store,
            host,
            self.repairer,
            now_ms,
            self.housekeeping.stir,
        )
        self.flusher = Flusher(config.storage, directory, self.raft, host, now_ms, self.repairer.found)
        self.transfers = Transfers(self.raft, self.pending, config.consensus.election_timeout_ms)
        conditions = AppendConditions(
            self.raft, store, self.pending, host, node.confirm_leadership, self.repairer
        )
        self.sessions = ProducerSessions(
            self.raft, self.pending, self.log_state, host, node, node.carry_out_all
        )
        self.time_marks = TimeMarks(self.raft, self.log_state)
        self.former = BatchFormer(
            config,
            self.raft,
            store,
            self.pending,
            self.writer,
            self.flusher,
            self.transfers,
            conditions,
            self.sessions,
            self.time_marks,
            host.wall_clock_ms,
        )
        self.members = MemberChanges(
            config,
            self.raft,
            self.transfers,
            self.log_state,
            node.propose_control,
            node.refusal_unless_leading,
        )
        self.orders = OperatorOrders(
            self.raft,
            self.log_state,
            node.refusal_unless_leading,
            node.propose_control,
            config.consensus.election_timeout_ms,
        )
        self.drops = LogDrops(directory, self.raft, host, node.carry_out_all)
        self.replacement = LogReplacement(
            replica,
            directory,
            config.storage.segment_bytes,
            self.raft,
            host,
            node.carry_out_all,
            node.hold,
            self.fetcher,
            lambda name: node.machines.runs(name),
            lambda: self.drops.is_under_way,
        )
        self.confirmations = Confirmations(self.raft)
        self.readers = ReaderMoves(
            store,
            self.log_state,
            node.refusal_unless_leading,
            node.propose_control,
            node.confirm_leadership,
        )
        self.readable = ReadableLog(self.raft, store, self.recent, config.member_id)
        self.lags = ReaderLags(store, host, self.repairer.found)
        self.marks = MarkFinder(
            store,
            host,
            lambda: (self.log_state.committed, node.committed_index),
            self.repairer.found,
        )

    def with_housekeeping(
        self,
        retention: Retention,
        own: tuple[Callable[[float], None], Callable[[], float]],
        machines: Callable[[], float],
        first_admin: FirstAdmin,
    ) -> Housekeeping:
        """Work for the pauses between the turns of appends. `own`: the node's."""
        ticks = (
            own[0],
            self.installs.tick,
            self.snapshots.tick,
            self.transfers.tick,
            self.members.tick,
            self.fetcher.tick,
            self.log_state.tick,
            self.repairer.tick,
            self.scrubber.tick,
            self.drops.tick,
            retention.tick,
            first_admin.tick,
        )
        wakeups = (
            own[1],
            machines,
            self.installs.next_wakeup_ms,
            self.snapshots.next_wakeup_ms,
            self.transfers.next_wakeup_ms,
            self.fetcher.next_wakeup_ms,
            self.log_state.next_wakeup_ms,
            self.repairer.next_wakeup_ms,
            self.scrubber.next_wakeup_ms,
            retention.next_wakeup_ms,
            first_admin.next_wakeup_ms,
        )
        self.housekeeping.take_over(ticks, wakeups)
        return self.housekeeping
