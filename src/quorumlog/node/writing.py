"""How entries come to the log: batches are formed, checked, written, and synced."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB, GroupConfig, StoreConfig
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.ready import AppendOrder, Envelope, Ready, Role
from quorumlog.entry import Durability, EntryId, EntryKind
from quorumlog.entry_header import HEADER_BYTES, unpack_header
from quorumlog.errors import (
    BadRequest,
    BodyTooLarge,
    DirectoryDamaged,
    DiskFull,
    IndexOutOfRange,
    LeaderNotReady,
    LedgerError,
    NotLeader,
    ProtocolViolation,
    RangeDamaged,
    StoreFailure,
    WrongLastIndex,
)
from quorumlog.header_array import Int64Array
from quorumlog.log_state.control_entries import ControlBody, MembershipEntry, encode_body, kind_of
from quorumlog.measures import Histogram
from quorumlog.node.log_clock import TimeMarks
from quorumlog.node.log_states import LogStateKeeper, membership_of
from quorumlog.node.pending_appends import PendingAppend, PendingAppends
from quorumlog.node.ports import Member, raise_failure
from quorumlog.node.producer_sessions import Judged, ProducerSessions
from quorumlog.node.repair import Repairer
from quorumlog.node.sending import RecentBatches
from quorumlog.node.transfers import Transfers
from quorumlog.store.flush import Flush
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import Examination, LogPoint

# ---------------------------------------------------------------- AppendConditions
# Appends that are wanted only after a certain entry (`expected_last`).
#
# Judged where the batch is proposed, against the leader's whole log: what is not committed yet comes
# before it as well. Only data counts; a no-op that another election has put after the expected entry
# is none of the writer's business.
#
# An append that is let in needs no more care: it commits together with everything before it, or not at
# all. A refusal does. The leader may have been replaced without knowing, or what it judged by may never
# commit. So it is answered once a majority has confirmed the leader, as for a linearizable read (Raft
# paper, section 8), and the entry that speaks against the append is committed.


class AppendConditions:
    def __init__(self, member: Member) -> None:
        self._member = member
        self._raft, self._store = member.raft, member.store
        self._term = -1
        """In which this member led when `_last_index` was true: a leader cuts nothing of its log."""
        self._last_index = -1
        """Of the last data entry that this leader holds or has proposed."""
        self._is_looking = False

    def proposed(self, first: EntryId, count: int) -> None:
        self._term, self._last_index = first.term, first.index + count - 1

    def judge(
        self, appends: Sequence[PendingAppend], in_front: int
    ) -> tuple[list[PendingAppend], list[Judged]]:
        """Which appends are admitted and which not, as if appended in this order after `in_front`
        control entries. One that cannot be judged before the end of the log is read is refused here and
        may be retried."""
        if all(append.expected_last is None for append in appends):
            return list(appends), []
        met: list[PendingAppend] = []
        unmet: list[Judged] = []
        is_known = self._term == self._raft.term
        last_index, next_index = self._last_index, self._raft.ledger_end.index + 1 + in_front
        for append in appends:
            expected = append.expected_last
            if expected is not None and not is_known:
                self._look()
                append.answer(
                    LeaderNotReady("a new leader is reading the end of its log", retry_after_ms=5)
                )
                continue
            if expected is not None and not last_index <= expected < next_index:
                wrong = _wrong(expected, last_index, next_index)
                unmet.append(Judged(append, wrong, last_index))
                continue
            assert append.batch is not None
            met.append(append)
            next_index += append.entry_count
            is_known, last_index = True, next_index - 1
        return met, unmet

    def _look(self) -> None:
        """Read beside the loop: the end of a log that was opened a moment ago is in no memory."""
        if self._is_looking:
            return
        self._is_looking = True
        read = partial(last_data_index, self._store, self._raft.ledger_end.index)
        self._member.host.read_later(read, partial(self._looked, self._raft.term))

    def _looked(self, term: int, result: int | StoreFailure | LedgerError) -> None:
        self._is_looking = False
        if isinstance(result, DirectoryDamaged):
            self._member.found(result)
        elif isinstance(result, RangeDamaged | IndexOutOfRange):
            return  # it is being repaired, or was cut by another leader: the next append asks again
        elif isinstance(result, StoreFailure | LedgerError):
            raise result
        elif self._term < term:
            self._term, self._last_index = term, result


def last_data_index(store: LedgerStore, end_index: int) -> int:
    """Index of the last entry up to `end_index` that is no control entry; the begin of the log, -1 of a
    new one, if it holds none. Runs in any thread. Raises as `LedgerStore.read_from` does."""
    begin_index = store.begin.index
    for index in range(end_index, begin_index, -1):
        _, batch = store.read_from(index, index + 1, 1)
        if int(batch.headers()["magic"][0]) == EntryKind.NORMAL:
            return index
    return begin_index


def _wrong(expected: int, actual: int, next_index: int) -> WrongLastIndex:
    where = "the log holds no data" if actual < 0 else f"the last data entry is {actual}"
    if expected >= next_index:
        where = f"the log ends at {next_index - 1}; {where}"
    return WrongLastIndex(
        f"expected_last is {expected}, but {where}; nothing was written",
        expected=expected,
        actual=actual,
    )


# ---------------------------------------------------------------- BatchFormer
# Which appends may be queued, when a batch forms of those that are, and what is proposed.
#
# An append becomes part of the next batch when no sync is on its way, or when a full push has gathered:
# while the disk works, the next batch forms by itself (group commit without a timer). Where several
# writers are at work, the batch also waits as long as every further look at the sockets brings more.

NEVER = float("inf")
BATCH_BYTES = 4 * MIB
"""Queued appends join one batch until it is this large; a larger single request is one batch."""
GATHERING_TURNS = 6
"""At most so many turns in a row may bring more appends before their batch forms."""
QUEUE_WAIT_MS = 100
"""No append waits longer for the batch before it."""


class BatchFormer:
    def __init__(
        self,
        member: Member,
        pending: PendingAppends,
        writer: LogWriter,
        flusher: Flusher,
        transfers: Transfers,
        conditions: AppendConditions,
        sessions: ProducerSessions,
        time_marks: TimeMarks,
    ) -> None:
        self.configure(member.config)
        self._raft, self._store, self._host = member.raft, member.store, member.host
        self._pending = pending
        self._writer = writer
        self._flusher = flusher
        self._transfers = transfers
        self._conditions = conditions
        self._sessions = sessions
        self._time_marks = time_marks
        self.is_gathering = False
        """The next batch waits for one more turn, which comes at once: the last one brought appends. As
        decided last; meaningless while none is queued."""
        self._gathered = 0
        """Appends queued when it was last decided to wait."""
        self._gathering_turns = 0
        self._last_batch_appends = 0

    def configure(self, config: GroupConfig) -> None:
        self._config = config
        self._append_limit_bytes = config.storage.append_limit_bytes  # worked out once, asked by each

    def check(self, batch: EntryBatch) -> None:
        """Raises the refusal of an append that must not be queued, ProtocolViolation if its headers
        contradict its sizes."""
        if self._raft.role is not Role.LEADER:
            raise self.not_leader()
        if batch.count == 0:
            raise BadRequest("an append needs at least one entry")
        batch.check_encoding(normal_only=True)
        largest = batch.total_bytes if batch.count == 1 else int(batch.sizes.max())
        limit = self._append_limit_bytes
        if largest > limit:
            raise BodyTooLarge(
                f"a body of {largest - HEADER_BYTES} bytes is over the limit of {limit - HEADER_BYTES}"
                " (max_entry_bytes and segment_bytes, less the header)"
            )
        waiting = self._pending.proposed_bytes + self._pending.queued_bytes
        if waiting and waiting + batch.total_bytes > self._config.max_uncommitted_bytes:
            raise self._pending.full(self._config.max_uncommitted_bytes)

    def not_leader(self) -> LedgerError:
        config = self._config
        leader = self._raft.leader or self._raft.transfer.successor
        if leader is None or leader.member_id == config.member_id:
            waits_for = self._raft.status().waits_for
            reason = f" ({waits_for})" if waits_for else ""
            return LeaderNotReady(
                f"{config.member_id} knows no leader of group {config.group}{reason}",
                retry_after_ms=20,
            )
        configured = {member.member_id: str(member) for member in config.members}
        named = {**configured, **dict(self._raft.status().membership.addresses)}
        return NotLeader(
            f"{config.member_id} does not lead; {leader.member_id} does",
            leader_id=leader.member_id,
            leader_address=named.get(leader.member_id),
        )

    def may_form(self, now_ms: float) -> bool:
        """Something is queued: whether its batch forms in this turn.

        It waits while a flush is on its way, and while most appends are on theirs: writers that wait for
        answers would otherwise drift apart into ever smaller batches.
        """
        pending = self._pending
        self.is_gathering = False
        if self._transfers.holds_appends or self._waits_for_note(now_ms):
            return False
        if pending.queued_bytes >= self._config.consensus.push_limit_bytes:
            return True
        if now_ms < pending.queued_since_ms + self._config.linger_ms:
            return False
        if now_ms - pending.queued_since_ms >= QUEUE_WAIT_MS:
            return True  # a hung disk of the leader's own: the followers' may be well
        if self._flusher.holds_appends or 2 * len(pending.queued) < pending.proposed_count:
            return False
        self.is_gathering = self._gathers()
        return not self.is_gathering

    def _waits_for_note(self, now_ms: float) -> bool:
        """A time mark that is due may be written in a moment; a hung disk keeps nobody waiting."""
        is_patient = now_ms - self._pending.queued_since_ms < QUEUE_WAIT_MS
        return is_patient and self._writer.log_state.is_noting

    def _gathers(self) -> bool:
        """Whether the batch waits for one more turn: the last one has brought appends. A single writer
        is not kept waiting."""
        queued = len(self._pending.queued)
        several = queued > 1 or self._last_batch_appends > 1
        if several and queued > self._gathered and self._gathering_turns < GATHERING_TURNS:
            self._gathered = queued
            self._gathering_turns += 1
            return True
        return False

    def next_wakeup_ms(self, now_ms: float) -> float:
        """Something is queued: when to ask `may_form` again. A flush that ends brings a turn itself."""
        if self.is_gathering:
            return now_ms
        lingers_until_ms = self._pending.queued_since_ms + self._config.linger_ms
        return lingers_until_ms if now_ms < lingers_until_ms else NEVER

    def form(self, now_ms: float) -> None:
        """Propose the oldest queued appends as one batch, or refuse all that is queued. A due time mark
        is written first, in the same batch: it costs no write of its own, and no log has it without its
        data."""
        if self._raft.role is not Role.LEADER:
            self._pending.refuse_queued(self.not_leader())
            return
        mark = self._time_marks.due(now_ms) if self._config.time_marks else None
        if mark is None and self._waits_for_note(now_ms):
            return
        self._gathered = self._gathering_turns = 0
        appends = self._pending.take_queued(BATCH_BYTES)
        self._last_batch_appends = len(appends)
        in_front = [] if mark is None else [EntryBatch.control(EntryKind.TIME, encode_body(mark))]
        judged: list[Judged] = []
        are_plain = True
        for append in appends:
            if append.place is not None or append.expected_last is not None:
                are_plain = False
                break
        if not are_plain:
            appends, judged = self._sessions.judge(appends)
            appends, unmet = self._conditions.judge(appends, len(in_front))
            judged = [*unmet, *judged]
        if not appends:
            self._sessions.answer(judged)
            return
        only = appends[0].batch if len(appends) == 1 and are_plain and not in_front else None
        if only is not None:
            batch = only
        else:
            batch = EntryBatch.concatenate(
                in_front + [b for a in appends for b in (a.lead, a.batch) if b is not None]
            )
        try:
            positions = self._plan(batch)
            first = self._raft.propose(batch.count, size_bytes=batch.total_bytes)
        except LedgerError as error:
            # Nothing queued after a refused append may get in before it: streams keep their order.
            for append in [*appends, *(each.append for each in judged)]:
                append.answer(error)
            self._pending.refuse_queued(error)
            return
        if only is None or appends[0].filler is not None:
            self._fill(appends, batch, len(in_front), first, positions)
        has_leads = not are_plain and any(append.lead is not None for append in appends)
        has_controls = bool(in_front) or has_leads
        self._writer.promised.append(Promised(first.index, batch, positions, has_controls))
        first_data = EntryId(first.index + len(in_front), first.term)
        self._pending.propose(appends, first_data)
        self._conditions.proposed(first_data, batch.count - len(in_front))
        if not are_plain:
            self._sessions.answer(judged)

    def _fill(
        self,
        appends: Sequence[PendingAppend],
        batch: EntryBatch,
        in_front: int,
        first: EntryId,
        positions: Int64Array,
    ) -> None:
        """`batch` holds the entries of all these, `in_front` others before them."""
        start, time_ms = in_front, None
        for append in appends:
            assert append.batch is not None
            start += append.lead is not None
            stop = start + append.batch.count
            if append.filler is not None:
                if time_ms is None:  # the clocks are asked once a batch
                    time_ms = self._time_marks.stamp_ms(self._host.wall_clock_ms())
                is_all = stop - start == batch.count
                filled = append.filler.fill(
                    batch if is_all else batch.slice(start, stop),
                    EntryId(first.index + start, first.term),
                    positions[start:stop],
                    time_ms,
                )
                if append.filled is not None:
                    append.filled(filled)
            start = stop

    def propose_control(self, body: ControlBody) -> EntryId:
        """Propose a control entry after all proposed ones; the log's state holds its result. Raises as
        `RaftNode.propose`, `LogStateKeeper.admit_own` and, for a membership, `MembershipChange.check`
        do."""
        assert not self._writer.promised, "earlier proposals are not carried out"
        if self._raft.role is not Role.LEADER:
            raise self.not_leader()
        kind = kind_of(body)
        batch = EntryBatch.control(kind, encode_body(body))
        positions = self._store.plan(
            batch.sizes, control=batch.may_use_reserve, sparing=not batch.is_small_control
        )
        # After that: where there is no space, nothing is written that an earlier release does not read.
        self._writer.log_state.admit_own(kind, body if isinstance(body, MembershipEntry) else None)
        if isinstance(body, MembershipEntry):
            entry = self._raft.members.propose(membership_of(body), size_bytes=batch.total_bytes)
        else:
            entry = self._raft.propose(1, kind, size_bytes=batch.total_bytes)
        self._writer.promised.append(Promised(entry.index, batch, positions, has_controls=True))
        return entry

    def _plan(self, batch: EntryBatch) -> Int64Array:
        """Raises DiskFull."""
        try:
            return self._store.plan(batch.sizes)
        except DiskFull as error:
            self._writer.refuse(batch.sizes, error)
            raise


# ----------------------------------------------------------------
# What a follower checks of a push before its core sees it.


def check_entries(message: PushEntryRequest) -> None:
    """Raises ProtocolViolation if the entries of an APPEND do not match the message."""
    batch = message.batch
    if not isinstance(batch, EntryBatch) or batch.count == 0 or batch.count != message.count:
        raise ProtocolViolation(f"an APPEND of {message.count} entries without their bytes")
    if message.previous.index != message.first_index - 1:
        raise ProtocolViolation(
            f"an APPEND from {message.first_index} on names {message.previous.index} as previous"
        )
    batch.check_encoding()
    batch.check_sequence(message.first_index, message.previous_chain)
    if batch.term_runs() != message.term_runs:
        raise ProtocolViolation("an APPEND whose entries are of terms other than it announces")
    if message.cold:
        batch.check_bodies()


def end_before(order: AppendOrder, term: int) -> LogPoint:
    """The entry before the first that a push brings, as the leader has it; `term` is that entry's.

    Where the push begins a segment, the entry before may end anywhere in the segment in front: then this
    is the end of that segment, as where a damaged range ends.
    """
    batch, first_index = order.batch, order.first_index
    assert isinstance(batch, EntryBatch), f"the entries from {first_index} on are this member's own"
    place = first_index - order.push_first_index
    starts = batch.starts
    first = unpack_header(batch.buffer, int(starts[place]))
    assert first.index == first_index, (first, order)
    chain = order.push_previous_chain
    if place:
        chain = unpack_header(batch.buffer, int(starts[place - 1])).chain_crc
    return LogPoint(first_index - 1, term, chain, first.pos)


def shares_log(message: PushEntryRequest, index: int, store: LedgerStore) -> bool | None:
    """Entry `index` is held here and by the sender, of the same term: are both logs the same up to it?
    None if that has to be read first.

    They are not where a directory was put back from an older copy and has led a term twice.
    """
    point = store.point_in_memory(index)
    if point is None:
        # Who sends a damaged range again compares the chain beyond it.
        return True if store.damaged_at(index) is not None else None
    ours = point.chain
    theirs = message.previous_chain
    if index > message.previous.index:
        theirs = int(message.batch.headers()["chain_crc"][index - message.first_index])
    return ours == theirs


def check_positions(batch: EntryBatch, positions: Int64Array) -> None:
    """Positions are equal on all members. Raises ProtocolViolation where the leader's are others."""
    if not batch.lies_at(positions):
        raise ProtocolViolation(
            f"entries from index {batch.first_index} on lie elsewhere in the leader's log: members of"
            " one group need the same segment_bytes, or its file is damaged: run `quorumlog verify`"
        )


# ---------------------------------------------------------------- Flusher
# What is on disk, who waits for it, and the lazy writes that nobody waits for.
#
# One flush runs at a time: it notes the newest Ready carried out, syncs every file dirtied up to it,
# and then reports its number (`on_durable`), which lets the messages go that waited for it. Under
# `flush = async` a Ready is reported as soon as it is written, and the flush runs after; but while the
# newest membership entry is not synced, all is reported as under `sync`: those whom a removal left
# would after a power loss know of the old list alone, and those removed of the new one, and none leads.

MOST_UNSYNCED_BYTES = 16 * MIB
MOST_UNSYNCED_ENTRIES = 32_768
"""Under `flush = async` a flush is due after so many, regardless of time: after it comes a step of space
for the next appends (`LedgerStore.space_ahead`), which the loop has to make if it comes late."""


class Flusher:
    def __init__(self, member: Member, now_ms: float) -> None:
        self._config = config = member.config.storage
        self._on_damage = member.found
        self._directory = directory = member.directory
        self._raft, self._store, self._host = member.raft, member.store, member.host
        self._is_sync = directory.durability is Durability.SYNC
        self._carried_number = 0
        """Newest Ready carried out."""
        self._durable_number = 0
        """Newest Ready reported; never above `_carried_number`."""
        self._after_durable: deque[tuple[int, Envelope]] = deque()
        """Messages that wait for the sync of their Ready, in order."""
        self._task: Flush | None = None
        self._task_number = -1
        """Newest Ready of the flush that began last."""
        self.waits_since_ms: float | None = None
        """When the flush that is on its way was asked for; None: there is none."""
        self._next_flush_ms = now_ms
        self._point_unsynced = False
        """A sync has ended whose durable point is written but not synced itself."""
        self._next_point_sync_ms = now_ms
        self._next_checkpoint_ms = now_ms + config.checkpoint_interval_ms
        self._checkpointed_index = directory.committed_index

    def configure(self, config: StoreConfig) -> None:
        self._config = config

    @property
    def holds_appends(self) -> bool:
        """A flush is on its way that the next acknowledgements wait for: let the next batch gather."""
        return self._is_sync and self._task is not None

    @property
    def has_more(self) -> bool:
        """Entries were written, or messages wait, since the flush in progress began."""
        return bool(self._after_durable) or self._task_number != self._carried_number

    @property
    def is_idle(self) -> bool:
        """Everything carried out has been reported."""
        return self._task is None and self._durable_number == self._carried_number

    def carried_out(self, ready: Ready) -> None:
        """Everything that this Ready writes has been handed to the operating system."""
        assert ready.number == self._carried_number + 1, (ready.number, self._carried_number)
        self._carried_number = ready.number
        for envelope in ready.messages_after_durable:
            self._after_durable.append((ready.number, envelope))

    def flush_or_report(self, now_ms: float) -> bool:
        """Start the flush that is due, or report entries that need none; True if something was
        reported."""
        if not (self._is_sync or self._syncs_first):
            if self._task is None and (now_ms >= self._next_flush_ms or self._is_much_unsynced):
                self._next_flush_ms = now_ms + self._config.flush_interval_ms
                self._start(now_ms)
            return self._report(self._carried_number)
        is_due = self._task is None and self._durable_number < self._carried_number
        if is_due and not self._start(now_ms):
            return self._report(self._carried_number)
        return False

    @property
    def _syncs_first(self) -> bool:
        return self._is_sync or self._raft.log.memberships.newest_index > self._store.durable.index

    @property
    def _is_much_unsynced(self) -> bool:
        end, durable = self._store.end, self._store.durable
        return (
            end.position - durable.position >= MOST_UNSYNCED_BYTES
            or end.index - durable.index >= MOST_UNSYNCED_ENTRIES
        )

    def _start(self, now_ms: float) -> bool:
        task = self._store.begin_sync()
        if task is None:
            return False
        self._task, self.waits_since_ms = task, now_ms
        self._task_number = number = self._carried_number
        self._host.flush_later(task.run, lambda result: self._flushed(task, number, result))
        return True

    def _flushed(self, task: Flush, number: int, result: StoreFailure | None) -> None:
        if isinstance(result, StoreFailure):
            raise result
        assert self._task is task
        self._task = self.waits_since_ms = None
        self._store.finish_sync(task)
        self._point_unsynced = True
        if number > self._durable_number:
            self._report(number)
        space = self._store.space_ahead()
        if space is not None:
            self._host.flush_later(space, raise_failure)
        outgrown = self._store.outgrown_cache()
        if outgrown is not None:
            self._host.read_later(outgrown, raise_failure)

    def _report(self, number: int) -> bool:
        assert self._durable_number <= number <= self._carried_number, (
            self._durable_number,
            number,
            self._carried_number,
        )
        if number == self._durable_number:
            return False
        self._durable_number = number
        self._raft.on_durable(number)
        waiting = self._after_durable
        while waiting and waiting[0][0] <= number:
            envelope = waiting.popleft()[1]
            if self._raft.pushes.may_leave(envelope):
                self._host.send(envelope)
        return True

    def run_timers(self, now_ms: float, durable_committed_index: int) -> None:
        """Sync the durable point and write the checkpoint when they are due."""
        if self._point_unsynced and now_ms >= self._next_point_sync_ms:
            self._next_point_sync_ms = now_ms + self._config.durable_sync_interval_ms
            self._point_unsynced = False
            self._host.flush_later(self._directory.sync_durable_point, raise_failure)
        if durable_committed_index > self._checkpointed_index and now_ms >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = now_ms + self._config.checkpoint_interval_ms
            write = self._checkpoint(durable_committed_index)
            self._checkpointed_index = min(durable_committed_index, self._store.durable.index)
            self._host.read_later(write, self._checkpoint_written)

    def next_wakeup_ms(self, durable_committed_index: int) -> float:
        wakeup = NEVER
        if self._point_unsynced:
            wakeup = self._next_point_sync_ms
        if durable_committed_index > self._checkpointed_index:
            wakeup = min(wakeup, self._next_checkpoint_ms)
        behind = self._store.end.index > self._store.durable.index
        if not self._is_sync and behind and self._task is None:
            wakeup = min(wakeup, self._next_flush_ms)
        return wakeup

    def close(self, durable_committed_index: int, *, clean: bool) -> None:
        """Give the directory back; `clean`: everything synced and the checkpoint written first.

        Raises StoreFailure if a sync fails, after the directory is given back.
        """
        try:
            if clean:
                self._finish(durable_committed_index)
        except BaseException:
            self._directory.close(False)
            raise
        self._directory.close(clean)

    def _finish(self, durable_committed_index: int) -> None:
        if self._task is not None:
            # It ran while the loop was being stopped, and nobody was told what came of it.
            if not self._task.done:
                raise StoreFailure("the last flush has failed: its entries may not be on disk")
            self._store.finish_sync(self._task)
        task = self._store.begin_sync()
        if task is not None:
            task.run()
            self._store.finish_sync(task)
        if durable_committed_index > self._checkpointed_index:
            # Without one the next start knows less of what is committed, and nothing else.
            with suppress(DirectoryDamaged):
                self._checkpoint(durable_committed_index)()

    def _checkpoint(self, durable_committed_index: int) -> Callable[[], None]:
        """Work for any thread. Never above what is on disk, which under `flush = async` is behind what a
        quorum holds, and never a damaged entry. Raises DirectoryDamaged if the entry cannot be read."""
        store, index = self._store, min(durable_committed_index, self._store.durable.index)
        damaged = store.damaged_at(index)
        known = store.point_in_memory(index) if damaged is None else damaged.before
        if known is not None:
            point = known
            return lambda: self._directory.write_checkpoint(point)
        term = self._raft.term_at(index)

        def read_and_write() -> None:
            with suppress(IndexOutOfRange, RangeDamaged):  # since then; the next one will do
                point = store.point_on_disk(index)
                if point.term == term:  # under `flush = async` another entry may have come there
                    self._directory.write_checkpoint(point)

        return read_and_write

    def _checkpoint_written(self, result: Any) -> None:
        if isinstance(result, DirectoryDamaged):
            self._on_damage(result)
        else:
            raise_failure(result)


# ---------------------------------------------------------------- LogWriter
# What enters this member's log and what is cut from it.
#
#     a push has come          its bytes are checked and its space is reserved, before the core sees it
#     the core orders a cut    the store is cut, and what of the end was in memory is forgotten
#     the core orders entries  a push, an own proposal or a no-op is written where it was planned
#
# Nothing that the core orders may fail for lack of space.

MOST_WAITING = 64
"""Pushes that wait for their place in the log to be read; more of them come when they are sent again."""


class _Look(NamedTuple):
    entry_index: int
    truncations: int
    """`LedgerStore.truncations` before."""
    point: LogPoint | None
    """None: damaged, or unreadable."""
    is_close: bool
    examination: Examination | None
    """None also if the entry is not durable yet."""


class Promised(NamedTuple):
    """Proposed entries of this leader."""

    first_index: int
    batch: EntryBatch
    positions: Int64Array
    has_controls: bool


class LogWriter:
    def __init__(
        self, member: Member, recent: RecentBatches, repairer: Repairer, log_state: LogStateKeeper
    ) -> None:
        self._raft, self._store, self._host = member.raft, member.store, member.host
        self._recent = recent
        self._repairer = repairer
        self.log_state = log_state
        self._receive_again = member.receive
        self._is_looking = False
        self._waiting: list[PushEntryRequest] = []
        """Pushes whose place in the log has to be read first."""
        self._look: _Look | None = None
        """What was read for those that come again just now."""
        self._contradiction: _Look | None = None
        """A push has contradicted it: refused on its connection, when its sender repeats it."""
        self._planned: EntryBatch | None = None
        """A push that the store has planned for: nothing was appended or cut since."""
        self.promised: deque[Promised] = deque()
        """Proposals whose AppendOrder has not come yet."""
        self.disk_full = ""
        """Why data was refused for lack of space; empty again once the very same would be taken. Were it
        so once less is taken, leaders with full disks would hand over to each other without end."""
        self._refused_sizes: Int64Array | None = None
        self.batch_records, self.batch_bytes = Histogram(), Histogram()
        """Of appends."""

    def is_sound_where_it_meets(self, message: PushEntryRequest) -> bool:
        """Check the last entry that this log shares with a push, while the next one still proves its
        chain: where the push cuts, the log's end is taken from that entry, and on a mismatch this disk
        may be the wrong one. False: the message is handled again once the entry is read, or must be
        resent.

        Raises ProtocolViolation if the sender holds other entries.
        """
        if message.push is PushType.APPEND:
            check_entries(message)
            end, previous = self._store.end, message.previous
            continues = previous.index == end.index and previous.term == end.term
            if continues and message.previous_chain == end.chain and self._look is None:
                self._contradiction = None
                return True
        shared_index = self._raft.pushes.last_shared_index(message)
        if shared_index is None:
            return True
        look, self._contradiction = self._look or self._contradiction, None
        if look is not None and (look.entry_index, look.truncations) != (
            shared_index,
            self._store.truncations,
        ):
            look = None
        cuts = self._raft.pushes.conflict_of(message) is not None
        shares = message.push is PushType.TRUNCATE or shares_log(message, shared_index, self._store)
        if shares and not cuts:
            return True
        if look is None or ((cuts or shares is False) and not look.is_close):
            self._look_at(shared_index, message, is_close=cuts or shares is False)
            return False
        if look.examination is not None and self._repairer.settle(look.examination):
            return bool(shares)  # else it comes again, and finds a damaged range
        if not shares:
            raise ProtocolViolation(
                f"{message.sender.member_id} holds other entries up to index {shared_index} than this"
                " member: run `quorumlog verify` on both data directories"
            )
        return True

    def _look_at(self, index: int, message: PushEntryRequest, *, is_close: bool) -> None:
        """Then let the message come again. `is_close`: compare data, index and bodies of the entry and
        the one after it, too."""
        self._let_wait(message)
        if self._is_looking:
            return
        self._is_looking = True
        store, truncations = self._store, self._store.truncations

        def look() -> _Look:
            point, close, examination = None, is_close, None
            try:
                point = store.point_on_disk(index)
            except DirectoryDamaged:
                close = True
            except (RangeDamaged, IndexOutOfRange):
                pass  # the terms are known all the same; or cut meanwhile
            if close and store.begin.index < index <= store.durable.index:
                examination = store.examine(index, index + 2)
            return _Look(index, truncations, point, close, examination)

        self._host.read_later(look, self._looked)

    def _let_wait(self, message: PushEntryRequest) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(message)

    def _looked(self, result: _Look | StoreFailure | LedgerError) -> None:
        self._is_looking = False
        if isinstance(result, DirectoryDamaged):
            self._waiting = []
            self._repairer.unbounded(result)
            return
        if isinstance(result, StoreFailure | LedgerError):
            raise result
        if result.point is not None:
            self._store.remember(result.point, result.truncations)
        self._look = result
        self.receive_waiting()
        self._look = None

    def receive_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            try:
                self._receive_again(message)
            except ProtocolViolation:
                self._contradiction = self._look

    def has_room_for(self, message: PushEntryRequest) -> bool:
        """Reserve space for the entries of an APPEND and for all that waits for them. False also where
        it comes again once a note is on disk (`LogStateKeeper.is_noting`).

        Raises ProtocolViolation where they lie elsewhere in the sender's log.
        """
        batch, end, previous = message.batch, self._store.end, message.previous
        is_at_end = previous.index == end.index and previous.term == end.term
        if not is_at_end and self._raft.pushes.last_shared_index(message) == message.last_index:
            return True  # it is all here; the answer to its first copy was lost
        waiting = [push.batch for push in self._raft.pushes.waiting_pushes]
        try:
            if not self.log_state.admit(batch):
                self._let_wait(message)
                return False
            try:
                positions = self._plan_together([batch, *waiting])
            except DiskFull:
                if not waiting:
                    raise
                # A no-op must not be refused for the data that waits behind it.
                self._raft.pushes.drop_waiting_pushes()
                waiting = []
                positions = self._plan_together([batch])
        except DiskFull as error:
            self.refuse(batch.sizes, error)
            return False
        if is_at_end:
            check_positions(batch, positions[: batch.count])
            if not waiting:
                self._planned = batch
        return True

    def refuse(self, sizes: Int64Array, error: DiskFull) -> None:
        self.disk_full = str(error)
        self._refused_sizes = sizes

    def look_for_space(self) -> None:
        """Would the refused entries fit now? Between turns only: no entries wait for their plan."""
        if self._refused_sizes is None:
            return
        self._planned = None
        try:
            self._store.plan(self._refused_sizes)
        except DiskFull:
            return
        self.disk_full, self._refused_sizes = "", None

    def _plan_together(self, batches: list[EntryBatch]) -> Int64Array:
        """Raises DiskFull. What no election needs leaves the reserve of the no-ops alone. Data in front
        of an entry that lets segments go is let in with it: else a full disk would stay so."""
        first = batches[0]
        sizes = first.sizes if len(batches) == 1 else np.concatenate([b.sizes for b in batches])
        try:
            if not first.may_use_reserve:
                return self._store.plan(sizes)
            return self._store.plan(
                sizes,
                control=all(batch.may_use_reserve for batch in batches),
                sparing=not all(batch.is_small_control for batch in batches),
            )
        except DiskFull:
            if not any(batch.frees_space for batch in batches):
                raise
            return self._store.plan(sizes, control=True, sparing=True)

    def truncate_from(self, index: int, appends: tuple[AppendOrder, ...]) -> None:
        """Cut all entries from `index` on; `appends` are the same Ready's writes after the cut."""
        damaged = self._store.damaged_at(index - 1)
        end = None
        if damaged is not None:
            assert appends, f"entry {index - 1} is damaged, and nothing follows the cut after it"
            end = end_before(appends[0], damaged.term_at(index - 1))
        self._store.truncate_from(index, end)
        self._planned = None
        self._recent.truncate_from(index)
        self.log_state.truncate_from(index)

    def append(self, order: AppendOrder) -> None:
        previous, has_controls = self._store.end, True
        if order.batch is not None:
            batch: EntryBatch = order.batch
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
                first_index, batch, positions, has_controls = self.promised.popleft()
                assert first_index == order.first_index, (first_index, order.first_index)
            assert batch.count == order.count, (batch.count, order.count)
            batch.stamp(order.first_index, order.term, positions, previous.chain)
        self._store.append(batch)
        self.batch_records.add(batch.count)
        self.batch_bytes.add(batch.total_bytes)
        self._planned = None
        self._recent.add(batch, previous.chain)
        boundaries = self._store.boundaries.crossed(previous, batch)
        if boundaries or has_controls:
            self.log_state.append(batch, boundaries)

    def _plan_promised(self, batch: EntryBatch) -> Int64Array:
        """Positions of entries that the core counts on already: a push that was taken, a no-op.

        A cut may have given back the space that they need, but the watermark would refuse it: so they
        are placed by the rule for no-ops.
        """
        try:
            return self._store.plan(batch.sizes, control=True)
        except DiskFull as error:
            raise StoreFailure(f"space that was set aside for entries is gone: {error}") from error
