"""LedgerNode: feeds the core, carries its Readys out, and tracks pending requests.

Inputs arrive one at a time (`advance` first, then `receive`, `append`, `connected`, ...); then `turn`
carries out their effects.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB, GroupConfig
from quorumlog.consensus.messages import (
    AnyPeerMessage,
    FirstAdminRequest,
    HeartbeatRequest,
    InstallRequest,
    InstallResponse,
    MachinesRequest,
    MachinesResponse,
    PeerMessage,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
    RangeRequest,
    RangeResponse,
    SnapshotRequest,
    SnapshotResponse,
)
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import MemberStatus, Ready, Role, RoleChange
from quorumlog.entry import Durability, EntryId, Replica
from quorumlog.errors import (
    DirectoryDamaged,
    LeaderNotReady,
    LedgerError,
    ProtocolViolation,
    StoreFailure,
)
from quorumlog.log_state.control_entries import ControlBody
from quorumlog.log_state.users import KEY_BYTES
from quorumlog.measures import Taken
from quorumlog.node.first_admin import FirstAdmin
from quorumlog.node.housekeeping import PAUSE_MS, Housekeeping
from quorumlog.node.installing import LogDrops, LogReplacement, SnapshotFetcher
from quorumlog.node.known_users import KnownUsers
from quorumlog.node.log_clock import TimeMarks
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.machine_runner import MachineFactory
from quorumlog.node.member_changes import MemberChanges
from quorumlog.node.operator_orders import OperatorOrders
from quorumlog.node.pending_appends import AppendOutcome, PendingAppend, PendingAppends, SessionPlace
from quorumlog.node.ports import DirectorySetBack, Host, raise_failure
from quorumlog.node.producer_sessions import ProducerSessions
from quorumlog.node.reader_moves import ReaderMoves
from quorumlog.node.reading import Confirmations, Confirmed, MarkFinder, ReadableLog, ReaderLags
from quorumlog.node.repair import Repairer, Scrubber, ScrubStatus
from quorumlog.node.retention import Retention
from quorumlog.node.sending import (
    CatchUpPace,
    Feeding,
    InstallSender,
    PushSender,
    RecentBatches,
    SnapshotSender,
)
from quorumlog.node.state_machine_caller import StateMachineCaller
from quorumlog.node.transfers import TransferOutcome, Transfers
from quorumlog.node.writing import AppendConditions, BatchFormer, Flusher, LogWriter
from quorumlog.store.log_points import ColdRange
from quorumlog.store.member_directory import MemberDirectory

RECENT_BYTES = 16 * MIB
"""Newest entries kept in memory for pushes and tailing readers."""
EXPIRY_INTERVAL_MS = 100
SPACE_INTERVAL_MS = 1000
"""A full disk is asked so often whether it has space again."""
HANGS_AFTER_MS = 5_000
"""A sync that has not returned for so long will not soon: a member with such a disk should not lead."""
MOST_HELD_BACK = 64
"""Messages kept while a promise is on its way to the disk; more of them count as lost on the way."""


class Measures(NamedTuple):
    committed: Taken
    """How long appends of clients took, in microseconds."""
    batch_records: Taken
    """Of this member's writes, as leader and as follower."""
    batch_bytes: Taken
    pending: int
    """Appends that are not committed yet."""
    pending_bytes: int


class LedgerNode:
    def __init__(
        self,
        config: GroupConfig,
        directory: MemberDirectory,
        host: Host,
        rng: random.Random,
        now_ms: float,
        on_ready: Callable[[Ready], None] | None = None,
        machines: Mapping[str, MachineFactory] | None = None,
        held_machines: Collection[str] = (),
    ) -> None:
        """`on_ready` sees every Ready before it is carried out, and changes nothing. `held_machines`:
        names of those of `machines` that are not run."""
        self.config = config
        self.directory = directory
        self.store = store = directory.store
        self.replica = Replica(config.member_id, directory.directory_id)
        self.host = host
        self._on_ready = on_ready
        self.housekeeping = Housekeeping()
        self.committed_index = directory.committed_index
        self.durable_committed_index = directory.committed_index
        """Entries up to here are committed and on this member's own disk; never above either."""
        term_runs = store.term_runs()  # which may find damage, so before the ranges are taken
        self.raft = RaftNode(
            config.consensus,
            self.replica,
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
        self._pending = PendingAppends()
        recent = RecentBatches(RECENT_BYTES)
        self.drops = LogDrops(self)
        self.repairer = Repairer(self, self.drops.give_up_below)
        self.log_state = log_state = LogStateKeeper(
            self,
            lambda state: self._time_marks.written(state),
            lambda: self._writer.receive_waiting(),
        )
        self._time_marks = TimeMarks(self.raft, log_state)
        self._writer = LogWriter(self, recent, self.repairer, log_state)
        self._pace = CatchUpPace(self, now_ms)
        self._pushes = PushSender(self, recent, self._pace)
        self._installs = InstallSender(
            self, self._pace, lambda index, named: self.machines.good_snapshots(index, named)
        )
        self._snapshots = SnapshotSender(
            self, self._pace, lambda request: self.machines.snapshot_for(request)
        )
        self._fetcher = SnapshotFetcher(self)
        self._scrubber = Scrubber(self, self.repairer, self._scrub_bytes_per_second, now_ms)
        self._flusher = Flusher(self, now_ms)
        self._transfers = Transfers(self.raft, self._pending, config.consensus.election_timeout_ms)
        self.sessions = ProducerSessions(self, self._pending, log_state)
        self._former = BatchFormer(
            self,
            self._pending,
            self._writer,
            self._flusher,
            self._transfers,
            AppendConditions(self),
            self.sessions,
            self._time_marks,
        )
        self.members = MemberChanges(self, self._transfers, log_state)
        self.orders = OperatorOrders(self, log_state)
        self._replacement = LogReplacement(
            self, self._fetcher, self.drops, lambda name: self.machines.runs(name)
        )
        self.confirmations = Confirmations(self.raft)
        self.readers = ReaderMoves(self, log_state)
        self._readable = ReadableLog(self, recent)
        self.lags = ReaderLags(self)
        self.marks = MarkFinder(self, log_state)
        self.users = KnownUsers(self, log_state)
        self.first_admin = FirstAdmin(
            self, log_state, self.orders, self.users, lambda: rng.randbytes(KEY_BYTES)
        )
        self.machines = StateMachineCaller(
            machines or {},
            self,
            log_state,
            self._pending,
            self._fetcher,
            self.transfer,
            held_machines,
        )
        self.retention = Retention(
            self,
            log_state,
            self.drops,
            now_ms,
            self.machines.snapshot_bounds,
            self._time_marks,
            self._installs.installed,
        )
        self._beside: dict[type, Callable[[Any], object]] = {
            RangeRequest: self.repairer.on_request,
            RangeResponse: lambda response: self.repairer.on_response(response, self._now_ms),
            InstallRequest: self._replacement.on_request,
            InstallResponse: lambda response: self._installs.on_response(response, self._now_ms),
            SnapshotRequest: self._snapshots.on_request,
            SnapshotResponse: self._fetcher.on_response,
            MachinesRequest: self.machines.hand_over.on_request,
            MachinesResponse: self.machines.on_response,
            FirstAdminRequest: self.first_admin.on_request,
        }
        """Messages that are not for the core."""
        self.housekeeping.take_over(
            ticks=(
                self._tick,
                self._installs.tick,
                self._snapshots.tick,
                self._transfers.tick,
                self.members.tick,
                self._fetcher.tick,
                log_state.tick,
                self.repairer.tick,
                self._scrubber.tick,
                self.drops.tick,
                self.retention.tick,
                self.first_admin.tick,
            ),
            wakeups=(
                self._next_tick_ms,
                self.machines.next_wakeup_ms,
                self._installs.next_wakeup_ms,
                self._snapshots.next_wakeup_ms,
                self._transfers.next_wakeup_ms,
                self._fetcher.next_wakeup_ms,
                log_state.next_wakeup_ms,
                self.repairer.next_wakeup_ms,
                self._scrubber.next_wakeup_ms,
                self.retention.next_wakeup_ms,
                self.first_admin.next_wakeup_ms,
            ),
        )
        self.lost_committed_from: int | None = None
        """Async mode: lowest index at which a new leader ordered acknowledged entries away."""
        self._held: Callable[[LedgerError | None], None] | None = None
        """What happens once a term, a vote, a founding list or another log is on the disk. Until it is
        there no Ready is carried out, and the core hears nothing: it must not get ahead of the store."""
        self._held_since_ms = now_ms
        self._noting_since_ms: float | None = None
        self._held_back: list[Callable[[], None]] = []
        """What came for the core meanwhile, in order."""
        self._messages_held_back = 0
        self._disk_hangs = self._reported_disk_full = False
        """As last reported to the core and the store."""
        self._has_written = False
        """The turn has, and did not end before."""
        self._has_put_off = False
        """The last one to the next one, what there is to apply."""
        self._now_ms = self._next_clock_ms = now_ms
        self._clock_ms = -1
        """This machine's wall clock, of the last time that it was asked."""
        self._next_expiry_ms = self._next_space_ms = self._next_data_look_ms = now_ms

    def configure(self, config: GroupConfig) -> None:
        """Other values of `config.RELOADABLE`; the rest is as it was. Between turns."""
        self.config = config
        self.members.configure(config)
        self.store.configure(config.storage)
        self._former.configure(config)
        self._flusher.configure(config.storage)
        self._pace.configure(config.catch_up_bytes_per_second)
        self._scrubber.configure(self._scrub_bytes_per_second, self._now_ms)
        self.housekeeping.stir()

    @property
    def _scrub_bytes_per_second(self) -> int:
        in_memory = self.directory.durability is Durability.MEMORY
        return 0 if in_memory else self.config.storage.scrub_bytes_per_second

    # ---------------------------------------------------------------- inputs

    def advance(self, now_ms: float) -> None:
        self._now_ms = now_ms
        if self._held is not None:
            return
        if now_ms >= self._next_clock_ms:
            self._next_clock_ms = now_ms + PAUSE_MS
            self._clock_ms = self.host.wall_clock_ms()
            self._time_marks.tick(now_ms)
        self.raft.advance(now_ms, self._clock_ms)
        if now_ms >= self._next_data_look_ms and self.raft.role is Role.LEADER:
            self._next_data_look_ms = now_ms + self.config.consensus.heartbeat_interval_ms
            for replica in self.host.replicas_with_moving_data():
                self.raft.on_bytes_moved(replica)

    def receive(self, message: AnyPeerMessage) -> None:
        """A message of another member. Raises ProtocolViolation if its bytes do not match its header,
        and BeginsAnew."""
        is_push, beside = isinstance(message, PushEntryRequest), self._beside.get(type(message))
        changes_the_log = (
            isinstance(message, PushEntryRequest)
            and message.push is not PushType.COMMIT
            and message.push is not PushType.COMPARE
        )
        if changes_the_log or beside is not None:
            # Two pushes of one turn: the second is checked against the end that the first has made.
            self.carry_out_all()
        if self._held is not None:
            self._hold_back(message)
            return
        if isinstance(message, HeartbeatRequest) and message.set_back is not None:
            if message.set_back.directory_id == self.replica.directory_id:
                self.hold(partial(self.directory.set_back, message.set_back), self._begin_anew)
            return
        if beside is not None:
            beside(message)
            self.housekeeping.stir()
            return
        refuse = None
        if isinstance(message, PushEntryRequest) and changes_the_log:
            if not self._writer.is_sound_where_it_meets(message) or self.drops.must_wait(message):
                return  # it comes again once its place is read, or as if it had been lost on the way
            if message.push is PushType.APPEND and not self._writer.has_room_for(message):
                if self._disk_hangs or self.log_state.is_noting:
                    return  # no answer, as of one whose sync hangs: leaders make full disks emptier
                refuse = PushResult.DISK_FULL
        any_message: Any = message
        self.raft.step(any_message, refuse=refuse)
        if is_push and self.directory.may_hold_control_entries:
            self.carry_out_all()  # it may say who votes: nobody is counted before that is known

    def _hold_back(self, message: AnyPeerMessage) -> None:
        if isinstance(message, HeartbeatRequest):
            self.raft.hear_of_leader(message.sender, message.term)  # for clients, who need it now
        if self._messages_held_back < MOST_HELD_BACK:
            self._messages_held_back += 1
            self._held_back.append(partial(self._receive_late, message))

    def _receive_late(self, message: AnyPeerMessage) -> None:
        with suppress(ProtocolViolation):  # its connection is refused when the sender repeats it
            self.receive(message)

    def may_wait(self, message: PeerMessage) -> bool:
        """The message may be handled in a later turn: a follower's acknowledgement of entries already
        committed."""
        return (
            isinstance(message, PushEntryResponse)
            and message.index <= self.committed_index
            and self.raft.replication.may_wait(message)
            and self.raft.transfer.target is None
        )

    @property
    def waits_for_others(self) -> bool:
        """True on a leader if its own sync commits nothing before a follower acknowledges."""
        return (
            self.raft.replication.waits_for_others
            and not self._pending.queued
            and not self._flusher.has_more
            and self.durable_committed_index == self.committed_index
            and self._held is None
        )

    def finish(self, done: Callable[[Any], None], result: Any) -> None:
        """The host hands over the result of work outside the loop, for the requester."""
        self.carry_out_all()
        if self._held is not None:
            self._held_back.append(partial(self.finish, done, result))
        else:
            done(result)

    def append(
        self,
        batch: EntryBatch,
        timeout_ms: int,
        done: Callable[[AppendOutcome], None],
        owner: object = None,
        expected_last: int | None = None,
        place: SessionPlace | None = None,
        machine: str = "",
        filled: Callable[[object], None] | None = None,
        awaits_results: bool = True,
    ) -> None:
        """Queue unstamped entries in a writable buffer; `done` gets exactly one outcome.

        `timeout_ms`: see `deadline_ms`. `expected_last`, `place`, `machine`: see AppendRequest.
        `filled`: see PendingAppend. `awaits_results`: answered once the machine has applied it, and not
        already once it is committed.
        Raises ProtocolViolation if the headers contradict the sizes.
        """
        deadline_ms = self._now_ms + (timeout_ms or self.config.append_timeout_ms)
        try:
            self._former.check(batch)
            if not machine:
                batch.set_channel(0)
            else:
                admitted = self.machines.admit(batch, machine, deadline_ms, done, place)
                done = admitted if awaits_results else done
        except LedgerError as error:
            done(error)
            return
        append = PendingAppend(batch, deadline_ms, done, owner, expected_last, place)
        if machine:
            append.filler, append.filled = self.machines.fillers.get(machine), filled
        self._pending.queue(append, self._now_ms)

    def deadline_ms(self, timeout_ms: int) -> float:
        """0: by the configured `append_timeout_ms`."""
        return self._now_ms + (timeout_ms or self.config.append_timeout_ms)

    def propose_control(self, body: ControlBody) -> EntryId:
        """See `BatchFormer.propose_control`."""
        self.carry_out_all()
        if self._held is not None:
            raise LeaderNotReady(
                "the term of this leader is not on its disk yet", retry_after_ms=SPACE_INTERVAL_MS
            )
        entry = self._former.propose_control(body)
        self.carry_out_all()  # the store has one plan at a time
        return entry

    def found(self, damage: DirectoryDamaged) -> None:
        self.repairer.found(damage)

    def discard_requests_of(self, owner: object) -> None:
        """Forget its unproposed appends and pending confirmations, without an outcome."""
        self._pending.discard(owner)
        self.readers.discard(owner)
        self.machines.discard(owner)
        self.confirmations.discard(owner)

    def connected(self, replica: Replica) -> None:
        if self._held is not None:
            self._held_back.append(partial(self.connected, replica))
            return
        self.housekeeping.stir()
        self.raft.on_connected(replica, syncs=self.host.syncs(replica))
        self.repairer.connected(replica)
        self._fetcher.connected(replica)

    def connection_lost(self, replica: Replica, is_gone: bool) -> None:
        if self._held is not None:
            self._held_back.append(partial(self.connection_lost, replica, is_gone))
            return
        self.housekeeping.stir()
        self.raft.on_connection_lost(replica, is_gone=is_gone)
        self.repairer.connection_lost(replica)
        self._fetcher.connection_lost(replica)
        self._snapshots.connection_lost(replica)

    def transfer(
        self, to_member_id: str, done: Callable[[TransferOutcome], None], why: str = "as was asked for"
    ) -> None:
        """See `Transfers.request`."""
        self._transfers.request(to_member_id, self._now_ms, done, why)
        self.housekeeping.stir()

    def find_successor(self, done: Callable[[str], None]) -> None:
        """See `Transfers.find_successor`."""
        self._transfers.find_successor(self._now_ms, done)
        self.housekeeping.stir()

    def confirm_leadership(self, done: Confirmed, owner: object = None) -> None:
        """`done` gets None once a majority has confirmed that this member leads, and an entry of its
        term is committed: every entry acknowledged before this call, by any leader, is then at or below
        `committed_index` (Raft paper, section 8). Or it gets the refusal of a deposed leader."""
        refusal = self.refusal_unless_leading()
        if refusal is not None:
            done(refusal)
            return
        self.confirmations.request(done, owner)

    # ---------------------------------------------------------------- outputs

    def turn(self) -> bool:
        """`write`, and then `apply`."""
        did_more = self.write()
        if self.machines.is_any_here:
            self.apply()
        return did_more

    def apply(self) -> None:
        """Pass committed entries to the state machines, after the messages of `write` have left. A
        follower that has begun a sync applies in the next turn, which the end of the sync triggers:
        writes beside a sync are slow, and the acknowledgement would wait for them."""
        if not self._has_written:
            return
        begins_sync = self._flusher.waits_since_ms == self._now_ms
        self._has_put_off = begins_sync and not self._has_put_off and self.raft.role is not Role.LEADER
        if not self._has_put_off:
            self.machines.tick(self._now_ms, self.durable_committed_index)

    def write(self) -> bool:
        """True if it did more than the log's own traffic asks for: see Housekeeping."""
        self._has_written = False
        self.carry_out_all()
        if self._held is not None:
            self._turn_while_held()
            return True
        now_ms = self._now_ms
        self._look_at_disk()
        if self.machines.is_any_here:
            self.machines.bind(now_ms)
        if self.readers.queue:
            self.readers.tick(now_ms)
        while self._pending.queued and self._former.may_form(now_ms):
            self._former.form(now_ms)
            self.carry_out_all()
        if bool(self._writer.disk_full) != self._reported_disk_full:
            self._reported_disk_full = not self._reported_disk_full
            self.raft.on_space(self._reported_disk_full)
            self.carry_out_all()
        while self._flusher.flush_or_report(now_ms):
            self.carry_out_all()
        if self.durable_committed_index < self.committed_index:
            index = min(self.committed_index, self.raft.log.durable_index)
            self.durable_committed_index = max(self.durable_committed_index, index)
        if self._former.is_gathering and self._pending.queued:
            return False  # these can wait for the next turn, which comes at once
        self._has_written = True
        has_pushed = self._pushes.waiting and self._pushes.tick(now_ms)
        self._flusher.run_timers(now_ms, self.durable_committed_index)
        has_ticked_all = self.housekeeping.tick(now_ms)
        if has_ticked_all or has_pushed:
            self.carry_out_all()
        return has_ticked_all

    def _tick(self, now_ms: float) -> None:
        self._pushes.observe(now_ms)
        self.users.tick(now_ms)
        if not self.machines.is_any_here:
            self.machines.tick(now_ms, self.durable_committed_index)
        if self._writer.disk_full and now_ms >= self._next_space_ms:
            self._next_space_ms = now_ms + SPACE_INTERVAL_MS
            self._writer.look_for_space()
        if now_ms >= self._next_expiry_ms:
            self._expire()

    def _next_tick_ms(self) -> float:
        wakeup = self._next_space_ms if self._writer.disk_full else float("inf")
        return min(wakeup, self._next_expiry_ms) if self._pending.has_any else wakeup

    def _turn_while_held(self) -> None:
        """Clients are sent on, and `status` is answered."""
        self.machines.expire(self._now_ms)
        if self.raft.role is not Role.LEADER:
            self._lose_leadership()
        elif self._now_ms >= self._next_expiry_ms:
            self._expire()

    def _look_at_disk(self) -> None:
        if not self.log_state.is_noting:
            self._noting_since_ms = None
        elif self._noting_since_ms is None:
            self._noting_since_ms = self._now_ms
        since_ms = self.disk_waits_since_ms
        hangs = since_ms is not None and self._now_ms - since_ms >= HANGS_AFTER_MS
        if hangs != self._disk_hangs:
            self._disk_hangs = hangs
            self.store.make_no_space(hangs)
            self.raft.on_disk(hangs=hangs)

    @property
    def disk_waits_since_ms(self) -> float | None:
        """When the oldest sync began that has not returned, on the core's clock; None: there is none."""
        held_ms = None if self._held is None else self._held_since_ms
        since_ms = (self._flusher.waits_since_ms, self._noting_since_ms, held_ms)
        return min((each for each in since_ms if each is not None), default=None)

    def next_wakeup_ms(self) -> float:
        if self._held is not None:
            # The end of the sync brings a turn. Meanwhile appends expire, and problems are looked at.
            return self._now_ms + (EXPIRY_INTERVAL_MS if self._pending.has_any else SPACE_INTERVAL_MS)
        flush_ms = self._flusher.next_wakeup_ms(self.durable_committed_index)
        wakeup = min(self.raft.next_wakeup_ms(), flush_ms, self.housekeeping.next_wakeup_ms())
        if self._pushes.waiting:
            wakeup = min(wakeup, self._pushes.next_wakeup_ms())
        if self.machines.is_any_here:
            wakeup = min(wakeup, self.machines.next_wakeup_ms())
        if self.readers.queue:
            wakeup = min(wakeup, self.readers.next_wakeup_ms())
        if self._pending.queued:
            wakeup = min(wakeup, self._former.next_wakeup_ms(self._now_ms))
        return wakeup

    def status(self) -> MemberStatus:
        return self.raft.status()

    def feeding(self, to: Replica) -> Feeding | None:
        """Of a member that this leader sends entries out of files, or a snapshot, after which the log
        comes; None: it is sent neither."""
        snapshot = self._snapshots.feeding(to)
        if snapshot is None or self.raft.role is not Role.LEADER:
            return self._pushes.feeding(to)
        log_bytes = self.store.end.position - self.store.begin.position
        return snapshot._replace(behind_bytes=snapshot.behind_bytes + log_bytes)

    @property
    def log_clock_ms(self) -> int:
        """See `TimeMarks.log_clock_ms`; of a leader."""
        return self._time_marks.log_clock_ms

    def log_time_ms(self) -> int | None:
        """The last committed time mark; None: there is none, or the log's state is not known."""
        mark = self.marks.newest
        return None if mark is None else mark.time_ms

    def scrub_status(self) -> ScrubStatus:
        return self._scrubber.status(self._now_ms)

    @property
    def lacks_space(self) -> str:
        """Why an append was refused and would be now; empty: it would not be."""
        return self._writer.disk_full or self.raft.replication.space_problem

    @property
    def measures(self) -> Measures:
        pending, writer = self._pending, self._writer
        return Measures(
            pending.committed.taken(),
            writer.batch_records.taken(),
            writer.batch_bytes.taken(),
            len(pending.queued) + pending.proposed_count,
            pending.queued_bytes + pending.proposed_bytes,
        )

    def problems(self) -> tuple[str, ...]:
        problems = [*self.raft.status().problems, *self.directory.problems()]
        if self.directory.renewed and self.raft.role is Role.OBSERVER:
            problems.append(self.directory.renewed)
        if self._writer.disk_full:
            problems.append(self._writer.disk_full)
        problems += [*self.repairer.problems(), *self.machines.problems()]
        own = (
            self.log_state.problem,
            self.drops.problem,
            self._replacement.problem,
            self.retention.problem,
            self.members.problem,
            self.members.lost_majority,
            self._time_marks.problem,
            self.first_admin.problem,
        )
        problems += [*filter(None, own), *self._installs.problems(), *self._fetcher.problems()]
        problems += self._snapshots.problems(self._now_ms)
        if self.lost_committed_from is not None:
            problems.append(
                f"entries from index {self.lost_committed_from} on, acknowledged under flush = async,"
                " were lost in a power failure and replaced by a later leader's"
            )
        return tuple(problems)

    @property
    def is_held(self) -> bool:
        """See `hold`."""
        return self._held is not None

    @property
    def is_idle(self) -> bool:
        return self._flusher.is_idle and not self.is_held

    @property
    def is_left_out(self) -> bool:
        """True if, by its own knowledge, it is no member and no leader sends it entries: it was removed.
        A learner only waits for a leader."""
        raft = self.raft
        if raft.role is not Role.OBSERVER or raft.leader is not None:
            return False
        return self.replica not in raft.status().membership.members()

    def refusal_unless_leading(self) -> LedgerError | None:
        return None if self.raft.role is Role.LEADER else self._former.not_leader()

    # ---------------------------------------------------------------- reading

    def readable_range(
        self, first_index: int, stop_index: int, limit_bytes: int
    ) -> EntryBatch | ColdRange:
        """See `ReadableLog.find`."""
        return self._readable.find(first_index, stop_index, limit_bytes, self.committed_index)

    # ---------------------------------------------------------------- carrying out

    def carry_out_all(self) -> None:
        """Except effects that wait for term, vote or founding list to be on disk, and all after them."""
        while self._held is None and (ready := self.raft.ready()) is not None:
            if self._on_ready is not None:
                self._on_ready(ready)
            # 1
            if ready.hard_state is not None or ready.formation is not None:
                save = partial(self.directory.save_promises, ready.hard_state, ready.formation)
                self.hold(save, partial(self._saved, ready))
            else:
                self._carry_out(ready)

    def hold(self, save: Callable[[], None], then: Callable[[LedgerError | None], None]) -> None:
        """Nothing happens until `save` is done, which nothing else may overtake. Raises BeginsAnew, as
        `then` may."""
        assert self._held is None, "something is held"
        self._held, self._held_since_ms = then, self._now_ms
        self.host.promise_later(save, self._promised)

    def _saved(self, ready: Ready, refusal: LedgerError | None) -> None:
        assert refusal is None, refusal
        self._carry_out(ready)

    def _begin_anew(self, refusal: LedgerError | None) -> None:
        assert refusal is None, refusal
        raise DirectorySetBack

    def _promised(self, result: StoreFailure | LedgerError | None) -> None:
        if isinstance(result, StoreFailure):
            raise result
        then, self._held = self._held, None
        assert then is not None, "nothing was held"
        then(result)
        self.advance(self._now_ms)
        held_back, self._held_back, self._messages_held_back = self._held_back, [], 0
        for enter in held_back:
            enter()

    def _carry_out(self, ready: Ready) -> None:
        """But for its first step. A refusal from within is no answer for the client that happened to
        ask: a part of it is carried out, and the core is ahead of the store."""
        try:
            self._carry_out_steps(ready)
        except LedgerError as error:
            raise StoreFailure(f"an effect of the core was refused: {error}") from error

    def _carry_out_steps(self, ready: Ready) -> None:
        # 2
        if ready.truncate_from is not None:
            if ready.loses_committed:
                self._lose_committed(ready.truncate_from)
            else:
                assert ready.truncate_from > self.committed_index, ready.truncate_from
                self.machines.log_cut(ready.truncate_from, lost_committed=False)
            self._writer.truncate_from(ready.truncate_from, ready.append)
        # 3
        for order in ready.append:
            self._writer.append(order)
        # 4
        for envelope in ready.messages:
            self.host.send(envelope)
        for push in ready.pushes:
            self._pushes.push(push)
        # 5: the flush itself is asked for once the turn has written everything
        self._flusher.carried_out(ready)
        # 6
        if ready.role_change is not None:
            self._role_changed(ready.role_change)
        if ready.committed_index > self.committed_index or ready.loses_committed:
            self.committed_index = ready.committed_index
            self.log_state.commit(ready.committed_index)
            if self.raft.role is Role.LEADER:
                self._pending.complete(
                    ready.committed_index,
                    self.host.weakest_durability(self.directory.durability),
                    self._now_ms,
                )
                self.readers.commit(ready.committed_index)
                self.orders.commit(ready.committed_index)
            self.host.committed(ready.committed_index)
        for grant in ready.read_grants:
            assert grant.index <= self.committed_index, (grant, self.committed_index)
            self.confirmations.grant(grant.number)

    def _lose_committed(self, index: int) -> None:
        lowest = self.lost_committed_from
        self.lost_committed_from = index if lowest is None else min(lowest, index)
        self.durable_committed_index = min(self.durable_committed_index, index - 1)
        self.machines.log_cut(index, lost_committed=True)
        self.host.lost_committed(index)

    def _role_changed(self, change: RoleChange) -> None:
        if change.role is Role.LEADER:
            self.confirmations.refuse(self._former.not_leader())
        else:
            self._lose_leadership()
            self._writer.promised.clear()
            if change.role is Role.FOLLOWER and self.directory.was_set_back:
                self.host.promise_later(self.directory.count_again, raise_failure)
        self.housekeeping.stir()
        self.host.role_changed(change)
        self._transfers.role_changed(change)
        self.members.role_changed(change)

    def _lose_leadership(self) -> None:
        """Answers waiting requests with the new leader, if it is known."""
        refusal = self._former.not_leader()
        self.confirmations.refuse(refusal)
        # Several inputs may lie between two Readys: an index that commits now may already hold
        # another leader's entry, so nothing proposed here is completed by index any more.
        self._pending.lose(
            "leadership was lost before the entries were committed; they may still commit", refusal
        )
        self.readers.lose(refusal)
        self.orders.lose()

    def _expire(self) -> None:
        self._next_expiry_ms = self._now_ms + EXPIRY_INTERVAL_MS
        self._pending.expire(self._now_ms)

    def answer_all(self, reason: str) -> None:
        """Waiting requests get the refusal that nothing more comes of them here."""
        self._pending.lose(f"{reason}; the entries may still commit", self._former.not_leader())
        self.confirmations.refuse(self._former.not_leader())
        self.readers.lose(self._former.not_leader())
        self.orders.lose()
        self._transfers.close()
        self.members.close()
        self.machines.close(reason)

    def close(self, *, clean: bool) -> None:
        """Give the directory back. `clean`: everything synced and the checkpoint written first."""
        self.answer_all("the member is stopping")
        self._flusher.close(self.durable_committed_index, clean=clean)
