"""BatchFormer: which appends may be queued, when a batch forms of those that are, and what is proposed.

An append becomes part of the next batch when no sync is on its way, or when a full push has gathered:
while the disk works, the next batch forms by itself (group commit without a timer). Where several
writers are at work, the batch also waits as long as every further look at the sockets brings more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB, GroupConfig
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Role
from quorumlog.entry import EntryId, EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import (
    BadRequest,
    BodyTooLarge,
    DiskFull,
    LeaderNotReady,
    LedgerError,
    NotLeader,
    PendingFull,
)
from quorumlog.header_array import Int64Array
from quorumlog.log_state.control_entries import ControlBody, Membership, encode_body, kind_of
from quorumlog.node.pending_appends import PendingAppend, PendingAppends
from quorumlog.node.transfers import Transfers
from quorumlog.node.writing.append_conditions import AppendConditions, Unmet
from quorumlog.node.writing.flusher import Flusher
from quorumlog.node.writing.log_writer import LogWriter, Promised
from quorumlog.node.writing.memberships import membership_of
from quorumlog.node.writing.producer_sessions import Judged, ProducerSessions
from quorumlog.node.writing.time_marks import TimeMarks
from quorumlog.store.ledger_store import LedgerStore

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
        config: GroupConfig,
        raft: RaftNode,
        store: LedgerStore,
        pending: PendingAppends,
        writer: LogWriter,
        flusher: Flusher,
        transfers: Transfers,
        conditions: AppendConditions,
        sessions: ProducerSessions,
        time_marks: TimeMarks,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self.configure(config)
        self._raft = raft
        self._store = store
        self._pending = pending
        self._writer = writer
        self._flusher = flusher
        self._transfers = transfers
        self._conditions = conditions
        self._sessions = sessions
        self._time_marks = time_marks
        self._wall_clock_ms = wall_clock_ms
        self._is_gathering = False
        """As decided last, see `_gathers`; meaningless while none is queued."""
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
            raise PendingFull(
                f"{waiting} bytes wait for commit (max_uncommitted_bytes"
                f" {self._config.max_uncommitted_bytes})",
                retry_after_ms=20,
            )

    def not_leader(self) -> LedgerError:
        config = self._config
        leader = self._raft.leader or self._raft.successor
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
        self._is_gathering = False
        if self._transfers.holds_appends:
            return False
        if pending.queued_bytes >= self._config.consensus.push_limit_bytes:
            return True
        if now_ms < pending.queued_since_ms + self._config.linger_ms:
            return False
        if now_ms - pending.queued_since_ms >= QUEUE_WAIT_MS:
            return True  # a hung disk of the leader's own: the followers' may be well
        if self._flusher.holds_appends or 2 * len(pending.queued) < pending.proposed_count:
            return False
        self._is_gathering = self._gathers()
        return not self._is_gathering

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

    @property
    def is_gathering(self) -> bool:
        """The next batch waits for one more turn, which comes at once: the last one brought appends."""
        return self._is_gathering and bool(self._pending.queued)

    def next_wakeup_ms(self, now_ms: float) -> float:
        """When to ask `may_form` again, unless it gathers. A flush that ends brings a turn itself."""
        if not self._pending.queued:
            return NEVER
        lingers_until_ms = self._pending.queued_since_ms + self._config.linger_ms
        return lingers_until_ms if now_ms < lingers_until_ms else NEVER

    def form(self, now_ms: float) -> None:
        """Propose the oldest queued appends as one batch, or refuse all that is queued. A time mark that
        is due goes in front, in the same batch: it costs no write of its own, and stands in no log
        without the data that it is for."""
        if self._raft.role is not Role.LEADER:
            self._pending.refuse_queued(self.not_leader())
            return
        self._gathered = self._gathering_turns = 0
        appends = self._pending.take_queued(BATCH_BYTES)
        self._last_batch_appends = len(appends)
        mark = self._time_marks.due(now_ms) if self._config.time_marks else None
        in_front = [] if mark is None else [EntryBatch.control(EntryKind.TIME, encode_body(mark))]
        judged: list[Judged] = []
        unmet: list[Unmet] = []
        plain = [each for each in appends if each.place is None and each.expected_last is None]
        are_plain = len(plain) == len(appends)
        if not are_plain:
            appends, judged = self._sessions.judge(appends)
            appends, unmet = self._conditions.judge(appends, len(in_front))
        if not appends:
            self._conditions.refuse(unmet)
            self._sessions.answer(judged)
            return
        batches = in_front + [b for a in appends for b in (a.lead, a.batch) if b is not None]
        batch = batches[0] if len(batches) == 1 else EntryBatch.concatenate(batches)
        try:
            positions = self._plan(batch)
            first = self._raft.propose(batch.count, size_bytes=batch.total_bytes)
        except LedgerError as error:
            # Nothing queued behind a refused append may get in before it: streams keep their order.
            held_back = [each.append for each in unmet] + [each.append for each in judged]
            for append in [*appends, *held_back]:
                append.answer(error)
            self._pending.refuse_queued(error)
            return
        self._fill(appends, batch, len(in_front), first, positions)
        has_leads = not are_plain and any(append.lead is not None for append in appends)
        has_controls = bool(in_front) or has_leads
        self._writer.promised.append(Promised(first.index, batch, positions, has_controls))
        first_data = EntryId(first.index + len(in_front), first.term)
        self._pending.propose(appends, first_data)
        self._conditions.proposed(first_data, batch.count - len(in_front))
        self._conditions.refuse(unmet)
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
                    time_ms = self._time_marks.stamp_ms(self._wall_clock_ms())
                filled = append.filler.fill(
                    batch.slice(start, stop),
                    EntryId(first.index + start, first.term),
                    positions[start:stop],
                    time_ms,
                )
                if append.filled is not None:
                    append.filled(filled)
            start = stop

    def propose_control(self, body: ControlBody) -> EntryId:
        """Propose a control entry, behind all that is proposed already; the log's state says what comes
        of it. Raises what `RaftNode.propose`, `LogStateKeeper.admit_own` and, of a membership,
        `MembershipChange.check` raise."""
        assert not self._writer.promised, "what was proposed before is not carried out"
        if self._raft.role is not Role.LEADER:
            raise self.not_leader()
        kind = kind_of(body)
        leaving = {each.member_id for each in body.old} if isinstance(body, Membership) else set()
        if isinstance(body, Membership):
            leaving -= {each.member_id for each in (*body.new, *body.learners)}
        self._writer.log_state.admit_own(kind, leaving)
        batch = EntryBatch.control(kind, encode_body(body))
        positions = self._store.plan(
            batch.sizes, control=batch.may_use_reserve, sparing=not batch.is_small_control
        )
        if isinstance(body, Membership):
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
