"""LedgerNode: feeds the core, carries its Readys out, and knows who waits for what.

Inputs arrive one at a time (`advance`, `receive`, `append`, `connected`, ...); `turn` then does all
that they caused. Every turn begins with `advance`, so that a process that was stopped learns of it
before it answers anything.

An append becomes part of the next batch when no sync is on its way, or when a full push has gathered:
while the disk works, the next batch forms by itself (group commit without a timer). Where several
writers are at work, the batch also waits as long as every further look at the sockets brings more.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import numpy as np

from quorumlog.batch import EntryBatch, Int64Array
from quorumlog.config import MIB, GroupConfig
from quorumlog.consensus.messages import (
    AnyPeerMessage,
    PushEntryRequest,
    PushResult,
    PushType,
    RangeRequest,
    RangeResponse,
)
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import AppendOrder, MemberStatus, Ready, Role, RoleChange
from quorumlog.entry import Durability, EntryKind, Voter
from quorumlog.errors import (
    BadRequest,
    BodyTooLarge,
    DirectoryDamaged,
    DiskFull,
    IndexOutOfRange,
    LeaderNotReady,
    LedgerError,
    NotLeader,
    PendingFull,
    ProtocolViolation,
    RangeDamaged,
    StoreFailure,
    TransferFailed,
)
from quorumlog.node.flusher import Flusher
from quorumlog.node.healer import Healer
from quorumlog.node.pending_appends import AppendOutcome, PendingAppend, PendingAppends
from quorumlog.node.ports import World
from quorumlog.node.push_sender import (
    PushSender,
    check_positions,
    checked_entries,
    end_before,
    shares_log,
)
from quorumlog.node.recent_batches import RecentBatches
from quorumlog.node.scrubber import Scrubber, ScrubStatus
from quorumlog.store.ledger_store import LogRange
from quorumlog.store.member_directory import MemberDirectory

RECENT_BYTES = 16 * MIB
"""Newest entries kept in memory for pushes and tailing readers; a fixed part of a member's memory."""
BATCH_BYTES = 4 * MIB
"""Queued appends join one batch until it is this large; a larger single request is one batch."""
EXPIRY_INTERVAL_MS = 100
GATHERING_TURNS = 6
"""At most so many turns in a row may bring more appends before their batch forms."""
QUEUE_WAIT_MS = 100
"""No append waits longer for the batch before it."""

TransferOutcome = RoleChange | LedgerError


class LedgerNode:
    def __init__(
        self,
        config: GroupConfig,
        directory: MemberDirectory,
        world: World,
        rng: random.Random,
        now_ms: float,
    ) -> None:
        self.config = config
        self.directory = directory
        self.store = directory.store
        self.voter = Voter(config.member_id, directory.directory_id)
        self._world = world
        term_runs = self.store.term_runs()  # which may find damage, so before the ranges are taken
        self.raft = RaftNode(
            config.consensus,
            self.voter,
            [m.member_id for m in config.members],
            formation=directory.formation,
            hard_state=directory.hard_state,
            term_runs=term_runs,
            before_begin=self.store.begin.entry_id,
            ledger_end_index=self.store.end.index,
            committed_index=directory.committed_index,
            async_mode=directory.durability is Durability.ASYNC,
            random=rng,
            now_ms=now_ms,
            quarantined=[(q.first_index, q.stop_index) for q in self.store.quarantined],
        )
        self.committed_index = directory.committed_index
        self.applied_index = directory.committed_index
        """Entries up to here are committed and on this member's own disk; never above either."""
        self.lost_committed_from: int | None = None
        """Async mode: lowest index at which a new leader ordered acknowledged entries away."""
        self._now_ms = now_ms
        self._pending = PendingAppends()
        self._planned: EntryBatch | None = None
        """A push that the store has planned for: nothing was appended or cut since."""
        self._is_gathering = False
        """The next batch waits for one more turn, see `_gathers`."""
        self._gathered = 0
        """Appends queued when it was last decided to wait; 0 while no batch waits."""
        self._gathering_turns = 0
        self._last_batch_appends = 0
        self._promised: deque[tuple[int, EntryBatch, Int64Array]] = deque()
        """(first index, batch, positions) of proposals whose AppendOrder has not come yet."""
        self._recent = RecentBatches(RECENT_BYTES)
        self.healer = Healer(
            self.voter,
            self.raft,
            self.store,
            world,
            self._carry_out_all,
            lambda: directory.hard_state.term,
        )
        self._pushes = PushSender(
            self.voter, self.raft, self.store, self._recent, world, self.healer.found
        )
        in_memory = directory.durability is Durability.MEMORY
        self._scrubber = Scrubber(
            0 if in_memory else config.storage.scrub_bytes_per_second,
            config.storage.scrub_start_delay_ms,
            self.store,
            world,
            self.healer,
            now_ms,
        )
        self._flusher = Flusher(config.storage, directory, self.raft, world, now_ms)
        self._transfers: list[Callable[[TransferOutcome], None]] = []
        self._next_expiry_ms = now_ms
        self.disk_full = ""
        """Why the last append was refused for lack of space; empty again once one succeeds."""

    # ---------------------------------------------------------------- inputs

    def advance(self, now_ms: float) -> None:
        self._now_ms = now_ms
        self.raft.advance(now_ms)

    def receive(self, message: AnyPeerMessage) -> None:
        """A message of another member. Raises ProtocolViolation if its bytes are not what it says."""
        if isinstance(message, RangeRequest):
            self.healer.on_request(message)
            return
        if isinstance(message, RangeResponse):
            self.healer.on_response(message)
            return
        refuse = None
        if isinstance(message, PushEntryRequest) and message.push in (
            PushType.APPEND,
            PushType.TRUNCATE,
        ):
            # Two pushes of one turn: the second is checked against the end that the first has made.
            self._carry_out_all()
            if not self._is_sound_where_it_meets(message):
                return  # as if it had been lost on the way
            if message.push is PushType.APPEND and not self._has_room_for(message):
                refuse = PushResult.DISK_FULL
        self.raft.step(message, refuse=refuse)

    def _is_sound_where_it_meets(self, message: PushEntryRequest) -> bool:
        """Look at the last entry that this log shares with a push, while the one behind still proves its
        chain: where the push cuts, the log's end is taken from that entry, and where it does not agree
        with the sender's, it may be this disk that is wrong. False: the message has to come again.

        Raises ProtocolViolation if the sender holds other entries.
        """
        if message.push is PushType.APPEND:
            checked_entries(message)
        shared_index = self.raft.last_shared_index(message)
        if shared_index is None:
            return True
        cuts = self.raft.conflict_of(message) is not None
        shares = message.push is PushType.TRUNCATE or shares_log(message, shared_index, self.store)
        if shares and not cuts:
            return True
        try:
            is_damaged = self._examine(shared_index)
        except DirectoryDamaged as damage:
            self.healer.unbounded(damage)
            return False
        if not shares and not is_damaged:
            raise ProtocolViolation(
                f"{message.sender.member_id} holds other entries up to index {shared_index} than this"
                " member: run `quorumlog verify` on both data directories"
            )
        return True

    def _examine(self, index: int) -> bool:
        """On this thread; True if something was damaged there, and is in quarantine now."""
        if not self.store.begin.index < index <= self.store.durable.index:
            return False
        return self.healer.settle(self.store.examine(index, index + 2)) is True

    def _has_room_for(self, message: PushEntryRequest) -> bool:
        """Check the entries of an APPEND and reserve space for them and for all that waits for them."""
        batch = message.entries
        waiting = [push.entries for push in self.raft.waiting_pushes()]
        try:
            try:
                positions = self._plan_together([batch, *waiting])
            except DiskFull:
                if not waiting:
                    raise
                # They will be sent again. A no-op must not be refused for the data that waits behind it.
                self.raft.drop_waiting_pushes()
                waiting = []
                positions = self._plan_together([batch])
        except DiskFull as error:
            self.disk_full = str(error)
            return False
        self.disk_full = ""
        if message.previous == self.store.end.entry_id:
            check_positions(batch, positions[: batch.count])
            if not waiting:
                self._planned = batch
        return True

    def _plan_together(self, batches: list[EntryBatch]) -> Int64Array:
        """Raises DiskFull. Data among them leaves the reserve of the no-ops alone."""
        sizes = batches[0].sizes if len(batches) == 1 else np.concatenate([b.sizes for b in batches])
        return self.store.plan(sizes, control=all(batch.is_control for batch in batches))

    def append(
        self,
        batch: EntryBatch,
        timeout_ms: int,
        done: Callable[[AppendOutcome], None],
        owner: object = None,
    ) -> None:
        """Queue unstamped entries in a writable buffer; `done` gets exactly one outcome.

        `timeout_ms` 0 means the configured `append_timeout_ms`.

        Raises ProtocolViolation if the headers contradict the sizes.
        """
        try:
            self._check_append(batch)
        except LedgerError as error:
            done(error)
            return
        deadline = self._now_ms + (timeout_ms or self.config.append_timeout_ms)
        self._pending.queue(PendingAppend(batch, deadline, done, owner), self._now_ms)

    def discard_appends_of(self, owner: object) -> None:
        """Forget what `owner` queued and is not proposed yet; its `done` is not called."""
        self._pending.discard(owner)

    def connected(self, member_id: str, directory_id: str) -> None:
        self.raft.on_connected(member_id, directory_id)
        self.healer.connected(Voter(member_id, directory_id))

    def connection_lost(self, member_id: str, is_gone: bool) -> None:
        self.raft.on_connection_lost(member_id, is_gone=is_gone)
        self.healer.connection_lost(member_id)

    def transfer(self, to_member_id: str, done: Callable[[TransferOutcome], None]) -> None:
        """Hand leadership to a member; `done` gets the role change that followed, or why not."""
        try:
            self.raft.transfer_leadership(to_member_id)
        except LedgerError as error:
            done(error)
            return
        self._transfers.append(done)

    # ---------------------------------------------------------------- outputs

    def turn(self) -> None:
        """Carry out all that the inputs since the last turn caused."""
        self._carry_out_all()
        self._is_gathering = False
        while self._pending.queued and self._may_form_batch():
            self._form_batch()
            self._carry_out_all()
        while self._flusher.flush_or_report(self._now_ms):
            self._apply()
            self._carry_out_all()
        self._apply()
        self._keep_house()

    def next_wakeup_ms(self) -> float:
        wakeup = min(
            self.raft.next_wakeup_ms(),
            self._flusher.next_wakeup_ms(self.applied_index),
            self.healer.next_wakeup_ms(),
            self._scrubber.next_wakeup_ms(),
        )
        if self._is_gathering:
            return self._now_ms
        if self._pending.proposed_count or self._pending.queued:
            wakeup = min(wakeup, self._next_expiry_ms)
        if self._pending.queued and self.config.linger_ms:
            lingers_until_ms = self._pending.queued_since_ms + self.config.linger_ms
            if self._now_ms < lingers_until_ms:
                wakeup = min(wakeup, lingers_until_ms)
        return wakeup

    def status(self) -> MemberStatus:
        return self.raft.status()

    def scrub_status(self) -> ScrubStatus:
        return self._scrubber.status(self._now_ms)

    def problems(self) -> tuple[str, ...]:
        status = self.raft.status()
        problems = [*status.problems, *self.directory.problems()]
        if self.directory.renewed and status.role is Role.OBSERVER:
            problems.append(self.directory.renewed)
        if self.disk_full:
            problems.append(self.disk_full)
        problems += self.healer.problems()
        if self.lost_committed_from is not None:
            problems.append(
                f"entries from index {self.lost_committed_from} on, acknowledged under flush = async,"
                " were lost in a power failure and replaced by a later leader's"
            )
        return tuple(problems)

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way to the disk."""
        return self._flusher.is_idle

    # ---------------------------------------------------------------- reading

    def readable_range(
        self, first_index: int, stop_index: int, limit_bytes: int
    ) -> EntryBatch | LogRange:
        """Committed entries from `first_index` on: bytes if they are in memory, else where they lie.

        `stop_index` -1 means all that is committed. Raises IndexOutOfRange, RangeDamaged if they are in
        quarantine here, and LeaderNotReady where the answer is "no more" or "up to here" while a new
        leader does not know yet what earlier leaders have acknowledged.
        """
        begin = self.store.begin.index + 1
        if (first_index > self.committed_index or stop_index < 0) and self._opens_its_term():
            raise LeaderNotReady(
                f"{self.config.member_id} has led term {self.raft.term} for an instant only",
                retry_after_ms=5,
            )
        if first_index < begin or first_index > self.committed_index:
            raise IndexOutOfRange(
                f"index {first_index} is not between ledger_begin_index {begin} and committed_index"
                f" {self.committed_index}",
                ledger_begin_index=begin,
                committed_index=self.committed_index,
            )
        readable = self.committed_index + 1
        stop_index = readable if stop_index < 0 else min(stop_index, readable)
        recent = self._recent.take(first_index, stop_index, limit_bytes)
        if recent is not None:
            return recent.batch
        try:
            return self.store.range_of(first_index, stop_index, limit_bytes)
        except DirectoryDamaged as damage:
            # Where a range begins is asked of the entry in front of it, whose header may be damaged.
            self.healer.found(damage)
            raise RangeDamaged(str(damage)) from damage

    def _opens_its_term(self) -> bool:
        """This leader's no-op is not committed yet: entries that it holds may be, unknown to it."""
        if self.raft.role is not Role.LEADER:
            return False
        committed = self.committed_index
        return committed < 0 or self.raft.term_at(committed) != self.raft.term

    # ---------------------------------------------------------------- appending

    def _check_append(self, batch: EntryBatch) -> None:
        if self.raft.role is not Role.LEADER:
            raise self._not_leader()
        if batch.count == 0:
            raise BadRequest("an append needs at least one entry")
        batch.check_encoding(normal_only=True)
        largest = batch.total_bytes if batch.count == 1 else int(batch.sizes.max())
        limit = self.config.storage.entry_limit_bytes
        if largest > limit:
            raise BodyTooLarge(
                f"a body of {largest - 48} bytes is over the limit of {limit - 48}"
                " (max_entry_bytes and segment_bytes, less the header)"
            )
        waiting = self._pending.proposed_bytes + self._pending.queued_bytes
        if waiting and waiting + batch.total_bytes > self.config.max_uncommitted_bytes:
            raise PendingFull(
                f"{waiting} bytes wait for commit (max_uncommitted_bytes"
                f" {self.config.max_uncommitted_bytes})",
                retry_after_ms=20,
            )

    def refusal_unless_leading(self) -> LedgerError | None:
        return None if self.raft.role is Role.LEADER else self._not_leader()

    def _not_leader(self) -> LedgerError:
        leader = self.raft.leader
        if leader is None or leader.member_id == self.config.member_id:
            waits_for = self.raft.status().waits_for
            reason = f" ({waits_for})" if waits_for else ""
            return LeaderNotReady(
                f"{self.config.member_id} knows no leader of group {self.config.group}{reason}",
                retry_after_ms=20,
            )
        address = next((str(m) for m in self.config.members if m.member_id == leader.member_id), None)
        return NotLeader(
            f"{self.config.member_id} does not lead; {leader.member_id} does",
            leader_id=leader.member_id,
            leader_address=address,
        )

    def _may_form_batch(self) -> bool:
        """The next batch forms while a flush is on its way, and while most appends are on theirs:
        writers that wait for answers would otherwise drift apart into ever smaller batches."""
        pending = self._pending
        if pending.queued_bytes >= self.config.consensus.push_limit_bytes:
            return True
        if self._now_ms < pending.queued_since_ms + self.config.linger_ms:
            return False
        if self._now_ms - pending.queued_since_ms >= QUEUE_WAIT_MS:
            return True  # a hung disk of the leader's own: the followers' may be well
        if self._flusher.holds_appends or 2 * len(pending.queued) < pending.proposed_count:
            return False
        self._is_gathering = self._gathers()
        return not self._is_gathering

    def _gathers(self) -> bool:
        """Whether the batch waits for one more turn: the last one has brought appends, and the writers
        that were answered together are still coming. A writer by itself is not kept waiting."""
        queued = len(self._pending.queued)
        several = queued > 1 or self._last_batch_appends > 1
        if several and queued > self._gathered and self._gathering_turns < GATHERING_TURNS:
            self._gathered = queued
            self._gathering_turns += 1
            return True
        return False

    def _form_batch(self) -> None:
        if self.raft.role is not Role.LEADER:
            self._pending.refuse_queued(self._not_leader())
            return
        self._gathered = self._gathering_turns = 0
        appends = self._pending.take_queued(BATCH_BYTES)
        self._last_batch_appends = len(appends)
        batches = [a.batch for a in appends if a.batch is not None]
        batch = batches[0] if len(batches) == 1 else EntryBatch.concatenate(batches)
        try:
            positions = self.store.plan(batch.sizes)
            first = self.raft.propose(batch.count)
        except LedgerError as error:
            if isinstance(error, DiskFull):
                self.disk_full = str(error)
            # Nothing queued behind a refused append may get in before it: streams keep their order.
            for append in appends:
                append.answer(error)
            self._pending.refuse_queued(error)
            return
        self.disk_full = ""
        self._promised.append((first.index, batch, positions))
        self._pending.propose(appends, first)

    # ---------------------------------------------------------------- carrying out

    def _carry_out_all(self) -> None:
        while (ready := self.raft.ready()) is not None:
            self._carry_out(ready)

    def _carry_out(self, ready: Ready) -> None:
        # 1
        if ready.hard_state is not None:
            self.directory.save_hard_state(ready.hard_state)
        if ready.formation is not None:
            self.directory.save_formation(ready.formation)
        # 2
        if ready.truncate_from is not None:
            self._truncate(ready.truncate_from, ready.append, ready.loses_committed)
        # 3
        for order in ready.append:
            self._append(order)
        # 4
        for envelope in ready.messages:
            self._world.send(envelope)
        for push in ready.pushes:
            self._pushes.push(push)
        # 5: the flush itself is asked for once the turn has written everything
        self._flusher.carried_out(ready)
        # 6
        if ready.role_change is not None:
            self._role_changed(ready.role_change)
        if ready.committed_index > self.committed_index or ready.loses_committed:
            self.committed_index = ready.committed_index
            if self.raft.role is Role.LEADER:
                self._pending.complete(
                    ready.committed_index, self._world.weakest_durability(self.directory.durability)
                )
            self._world.committed(ready.committed_index)
        self._apply()

    def _truncate(self, index: int, appends: tuple[AppendOrder, ...], loses_committed: bool) -> None:
        assert loses_committed or index > self.committed_index, (index, self.committed_index)
        if loses_committed:
            lowest = self.lost_committed_from
            self.lost_committed_from = index if lowest is None else min(lowest, index)
            self.applied_index = min(self.applied_index, index - 1)
            self._world.lost_committed(index)
        quarantined = next((q for q in self.store.quarantined if q.holds(index - 1)), None)
        end = None
        if quarantined is not None:
            assert appends, f"entry {index - 1} is in quarantine, and nothing follows the cut behind it"
            end = end_before(appends[0], quarantined.term_at(index - 1))
        self.store.truncate_from(index, end)
        self._planned = None
        self._recent.truncate_from(index)

    def _append(self, order: AppendOrder) -> None:
        previous_chain = self.store.end.chain
        if order.entries is not None:
            batch: EntryBatch = order.entries
            skip = order.first_index - order.push_first_index
            if skip or order.count != batch.count:
                batch = batch.slice(skip, skip + order.count)
            if batch is not self._planned:
                self._plan_promised(batch)
        else:
            if order.kind is EntryKind.NOOP:
                batch = EntryBatch.noop()
                positions = self._plan_promised(batch)
            else:
                first_index, batch, positions = self._promised.popleft()
                assert first_index == order.first_index, (first_index, order.first_index)
            assert batch.count == order.count, (batch.count, order.count)
            batch.stamp(order.first_index, order.term, positions, previous_chain)
        self.store.append(batch)
        self._planned = None
        self._recent.add(batch, previous_chain)

    def _plan_promised(self, batch: EntryBatch) -> Int64Array:
        """Positions of entries that the core counts on already: a push that was taken, a no-op.

        A cut that came before them gave back more space than they need, but the watermark would refuse
        it: so they are placed by the rule for no-ops.
        """
        try:
            return self.store.plan(batch.sizes, control=True)
        except DiskFull as error:
            raise StoreFailure(f"space that was set aside for entries is gone: {error}") from error

    def _role_changed(self, change: RoleChange) -> None:
        if change.role is not Role.LEADER:
            # Several inputs may lie between two Readys: an index that commits now may already hold
            # another leader's entry, so nothing proposed here is completed by index any more.
            self._pending.lose(
                "leadership was lost before the entries were committed; they may still commit",
                self._not_leader(),
            )
            self._promised.clear()
        self._world.role_changed(change)
        if self._transfers and change.role is Role.FOLLOWER and change.leader_id is not None:
            self._end_transfers(change)

    def _apply(self) -> None:
        applied = min(self.committed_index, self.raft.durable_index)
        if applied > self.applied_index:
            self.applied_index = applied
            self.raft.on_applied(applied)

    # ---------------------------------------------------------------- by the clock

    def _keep_house(self) -> None:
        if self._now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = self._now_ms + EXPIRY_INTERVAL_MS
            self._pending.expire(self._now_ms)
        if (
            self._transfers
            and self.raft.status().transferring_to is None
            and self.raft.role is Role.LEADER
        ):
            self._end_transfers(
                TransferFailed("the member did not take over within an election time-out")
            )
        try:
            self._flusher.keep_house(self._now_ms, self.applied_index)
        except DirectoryDamaged as damage:
            self.healer.found(damage)
        self.healer.tick(self._now_ms)
        self._scrubber.tick(self._now_ms)

    def _end_transfers(self, outcome: TransferOutcome) -> None:
        transfers, self._transfers = self._transfers, []
        for done in transfers:
            done(outcome)

    def close(self, *, clean: bool) -> None:
        """Give the directory back. `clean`: everything synced and the checkpoint written first."""
        self._pending.lose("the member is stopping; the entries may still commit", self._not_leader())
        self._end_transfers(TransferFailed("the member is stopping"))
        self._flusher.close(self.applied_index, clean=clean)
