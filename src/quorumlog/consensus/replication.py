"""The leader's term: dispatchers, acknowledgements and commitment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.dispatcher import NEVER, EntryDispatcher
from quorumlog.consensus.elector import LeaderElector
from quorumlog.consensus.member_state import MemberState, Outbox
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.messages import InstallResult, PushEntryResponse, PushResult, PushType
from quorumlog.consensus.ready import AppendOrder, PeerStatus, PushOrder, Role
from quorumlog.entry import EntryId, EntryKind, Replica, SetBack
from quorumlog.errors import DiskFull
from quorumlog.figures import now

# ----------------------------------------------------------------
# Who has acknowledged how far in this term, and what is therefore committed.
#
# Raft paper, section 5.4.2: only entries of the leader's own term are committed by counting replicas;
# what lies below them is committed with them. (DLedger 0.3 counts entries of older terms, the paper's
# figure 8; docs/divergence.md, W3.)


class QuorumAckChecker:
    """Highest index that each voter has on disk as part of the log of one term; -1: nothing yet. An
    acknowledgement applies to the log of the leader that it was sent to."""

    def __init__(self, term: int, membership: Callable[[], Membership], first_index: int) -> None:
        """`membership`: the one that holds when it is asked; it may change within the term.
        `first_index`: of the no-op that opens the term; nothing below it is counted."""
        self.term = term
        self.first_index = first_index
        self._membership = membership
        self._marks: dict[Replica, int] = {}

    def raise_to(self, replica: Replica, index: int) -> bool:
        """False if the match index stays: an older answer, or a sender that is no voter."""
        if index <= self._marks.get(replica, -1) or not self._membership().is_voter(replica):
            return False
        self._marks[replica] = index
        return True

    def lower_to(self, replica: Replica, index: int) -> None:
        """A disk holds less than was acknowledged: this leader's own by damage, another's by a power
        loss under `flush = async`. Entries committed by then stay committed."""
        mark = self._marks.get(replica)
        if mark is not None and index < mark:
            self._marks[replica] = index

    def forget(self, replica: Replica) -> None:
        self._marks.pop(replica, None)

    def mark_of(self, replica: Replica) -> int:
        return self._marks.get(replica, -1)

    def is_anybody_above(self, index: int, but: Replica) -> bool:
        return any(mark > index and replica != but for replica, mark in self._marks.items())

    @property
    def quorum_index(self) -> int:
        return int(self._membership().quorum_value(self._marks, -1))

    def committed_index(self) -> int:
        """The quorum index if it names an entry of this term, else -1."""
        index = self.quorum_index
        return index if index >= self.first_index else -1


# ---------------------------------------------------------------- CatchUp
# Which members that do not vote yet could, by rounds (Ongaro's thesis, 4.2.1).
#
# A round ends when the member holds what the log's end was when it began, and the next one begins. Who
# ends one within an election time-out, and lacks few bytes, keeps up with what is appended: were it a
# voter, a commit would not have to wait long for it.


class _Round(NamedTuple):
    begun_ms: float
    stop_index: int
    """It ends with this entry."""
    follows_quick_one: bool


class CatchUp:
    def __init__(self, config: ConsensusConfig, state: MemberState) -> None:
        self._config = config
        self._state = state
        self._rounds: dict[Replica, _Round] = {}

    def begin(self) -> None:
        self._rounds.clear()

    def look(self, replica: Replica, held_index: int) -> None:
        """With every heartbeat: it is connected, and known to hold the log up to there."""
        now_ms, end_index = self._state.now_ms, self._state.runs.end_index
        running = self._rounds.get(replica)
        if running is None:
            self._rounds[replica] = _Round(now_ms, end_index, False)
        elif held_index >= running.stop_index:
            self._rounds[replica] = _Round(now_ms, end_index, self._is_quick(running))
        elif not self._is_quick(running):
            self._rounds[replica] = running._replace(follows_quick_one=False)

    def _is_quick(self, running: _Round) -> bool:
        return self._state.now_ms - running.begun_ms <= self._config.election_timeout_ms

    def forget(self, replica: Replica) -> None:
        self._rounds.pop(replica, None)

    def keeps_up(self, replica: Replica) -> bool:
        running = self._rounds.get(replica)
        return running is not None and running.follows_quick_one


# ---------------------------------------------------------------- DataProgress
# Do a leader's entries arrive anywhere, or only its heartbeats?
#
# Heartbeats have a connection of their own and are small. Where a network drops large frames only, or
# the disks of most members hang, everybody goes on to follow a leader that can commit nothing. A member
# *progresses* if its mark rises, if its machine acknowledges bytes of what it is sent (so a slow link
# is progress) unless entries have arrived there that its disk has not taken, or if there is nothing
# that it lacks, or no room for it. A leader under which something is not committed while fewer than a
# majority progress, itself included, steps down.

NAMED_AFTER = 4
"""Election time-outs without progress after which `status` names a member."""
GIVEN_UP_AFTER = 8
"""Election time-outs without a majority that progresses after which a leader steps down: with the
defaults a little longer than the transport needs to give up a dead connection and to dial another."""
MOST_PATIENCE = 8
"""A leader waits twice as long each time that nothing was committed since it stepped down last, up to so
many times `GIVEN_UP_AFTER`."""


class DataProgress:
    """Of the term that this member leads; how often it gave up is remembered beyond."""

    def __init__(self, config: ConsensusConfig, state: MemberState) -> None:
        self._config = config
        self._state = state
        self._progressed_ms: dict[Replica, float] = {}
        """When each other voter, and each observer that was fed, progressed last."""
        self._back_off = 1
        self._gave_up_at_index = -1
        """The committed index at the last step-down."""

    def begin(self) -> None:
        """Elected: every voter counts as having progressed just now."""
        state = self._state
        if state.committed_index > self._gave_up_at_index:
            self._back_off = 1
        self._progressed_ms = dict.fromkeys(state.others(), state.now_ms)

    def on_membership(self) -> None:
        """Others may count from now on."""
        for voter in self._state.others():
            self.on_connected(voter)

    def on_connected(self, replica: Replica) -> None:
        """An observer is new here at first; a returning voter has still to progress."""
        self._progressed_ms.setdefault(replica, self._state.now_ms)

    def note(self, replica: Replica) -> None:
        if replica in self._progressed_ms:
            self._progressed_ms[replica] = self._state.now_ms

    def on_committed(self) -> None:
        self._back_off = 1

    def gives_up(self) -> bool:
        """True once it is time to step down; asked once a heartbeat, and not again in that term."""
        state = self._state
        if state.committed_index >= state.runs.end_index:
            return False
        progressed_ms = {**self._progressed_ms, state.member: state.now_ms}
        silent_ms = state.now_ms - state.membership.quorum_value(progressed_ms)
        if silent_ms < GIVEN_UP_AFTER * self._back_off * self._config.election_timeout_ms:
            return False
        self._back_off = min(2 * self._back_off, MOST_PATIENCE)
        self._gave_up_at_index = state.committed_index
        return True

    def stalled_since_ms(self, replica: Replica) -> float | None:
        """When a connected member that lacks something progressed last, if that is long ago."""
        since_ms = self._progressed_ms.get(replica, self._state.now_ms)
        silent_ms = self._state.now_ms - since_ms
        return since_ms if silent_ms >= NAMED_AFTER * self._config.election_timeout_ms else None


# ---------------------------------------------------------------- LogBytes
# How many bytes of the leader's log lie after an index, as far as that matters.
#
# The core knows of entries only index and term. Who hands over wants to know how long a member would
# take to get what it lacks, and that is a matter of bytes: a thousand entries may be 48 KB or 4 GB.

_STEPS = 64
"""Batches are added up to steps of such a part of the limit, so that many small ones take no memory."""


class LogBytes:
    """Of the entries that this leader has appended in its term; older ones have no size here."""

    def __init__(self, limit_bytes: int) -> None:
        """Sizes are kept up to `limit_bytes` after the end."""
        self._limit_bytes = limit_bytes
        self._step_bytes = limit_bytes // _STEPS
        self._total_bytes = 0
        self._ends: deque[tuple[int, int]] = deque()
        """(last index, bytes of the term up to and with it), of some batches, ascending."""

    def begin(self, end_index: int) -> None:
        self._total_bytes = 0
        self._ends.clear()
        self._ends.append((end_index, 0))

    def append(self, end_index: int, size_bytes: int) -> None:
        self._total_bytes = total_bytes = self._total_bytes + size_bytes
        ends = self._ends
        if len(ends) > 1 and total_bytes - ends[-2][1] <= self._step_bytes:
            ends[-1] = (end_index, total_bytes)
            return
        ends.append((end_index, total_bytes))
        while total_bytes - ends[1][1] > self._limit_bytes:
            ends.popleft()

    def behind(self, index: int) -> int | None:
        """Bytes after entry `index`, or up to a step more; None if they are more than the limit, or if
        entries of older terms are among them."""
        for end_index, end_bytes in reversed(self._ends):
            if end_index <= index:
                lag_bytes = self._total_bytes - end_bytes
                return lag_bytes if lag_bytes <= self._limit_bytes else None
        return None


# ---------------------------------------------------------------- Replication
# What a leader has the others hold, what they acknowledge, and what that commits.
#
# One EntryDispatcher for each other directory brings the log there, the QuorumAckChecker counts the
# match indices of the term. Outside of a term that this member leads nothing here has an effect.

MOST_SET_BACK = 64
"""So many directories that were found older than they were are remembered, the newest."""


class Replication:
    def __init__(
        self, config: ConsensusConfig, state: MemberState, outbox: Outbox, elector: LeaderElector
    ) -> None:
        self._config = config
        self._state = state
        self._log = state.log
        self._outbox = outbox
        self._elector = elector
        self.dispatchers: dict[Replica, EntryDispatcher] = {}
        """One per other voter, and per directory that was fed; kept ordered."""
        self.acks = QuorumAckChecker(-1, lambda: state.membership, 0)
        self.progress = DataProgress(config, state)
        self._catch_up = CatchUp(config, state)
        self.sizes = LogBytes(config.max_transfer_lag_bytes)
        self.push_due = False
        """Something has happened after which a dispatcher may have an order."""
        self._committed_ms = state.now_ms
        """When this leader committed last, or opened its term."""
        self.commit_due_ms = NEVER
        """When a follower has to be sent the committed index, if no push carries it before."""

    def begin(self) -> None:
        """Marks and dispatchers start anew, at the end of the log."""
        state = self._state
        first_index = state.runs.end_index + 1
        self._committed_ms = state.now_ms
        self.acks = QuorumAckChecker(state.term, lambda: state.membership, first_index)
        self.progress.begin()
        self._catch_up.begin()
        self.sizes.begin(first_index - 1)
        for replica in dict.fromkeys((*state.others(), *self._outbox.connected)):
            self._begin_dispatcher(replica, first_index)
            self.progress.on_connected(replica)

    def stop(self) -> None:
        self.commit_due_ms = NEVER
        for dispatcher in self.dispatchers.values():
            dispatcher.stop()

    def on_membership(self) -> None:
        """Another membership holds from the log's end on: its new members are fed, and vote."""
        for replica in self._state.others():
            dispatcher = self.dispatchers.get(replica)
            if dispatcher is None or dispatcher.term != self._state.term:
                self._begin_dispatcher(replica, self._state.runs.end_index + 1)
        self.progress.on_membership()
        self.push_due = True

    def on_connection_lost(self, replica: Replica) -> None:
        self._catch_up.forget(replica)

    def has_caught_up(self, replica: Replica) -> bool:
        """It may become a voter: nothing would have to wait long for it."""
        is_near = self.sizes.behind(self.held_index(replica)) is not None
        return self._outbox.is_connected(replica) and is_near and self._catch_up.keeps_up(replica)

    def _begin_dispatcher(self, replica: Replica, write_index: int) -> None:
        if replica not in self.dispatchers:
            self.dispatchers[replica] = EntryDispatcher(
                self._config,
                self._state,
                self._outbox,
                replica,
                self._on_held_at_most,
                self._on_set_back,
            )
            self.dispatchers = dict(sorted(self.dispatchers.items(), key=lambda item: item[0]))
        self.dispatchers[replica].begin(write_index)

    def on_connected(self, replica: Replica, *, may_be_set_back: bool) -> None:
        """`may_be_set_back`: a power loss may have lost entries that this directory acknowledged."""
        dispatcher = self.dispatchers.get(replica)
        if dispatcher is not None and dispatcher.term == self._state.term and not may_be_set_back:
            dispatcher.reconnect()
        else:
            # A new observer, or one that was away when this term began.
            self._begin_dispatcher(replica, self._state.runs.end_index + 1)
        self.progress.on_connected(replica)
        self.push_due = True

    def tick(self) -> None:
        """With every heartbeat."""
        for dispatcher in self.dispatchers.values():
            dispatcher.tick()
            if dispatcher.active:
                self._catch_up.look(dispatcher.to, dispatcher.held_index)
            if dispatcher.lacks_nothing or dispatcher.lacks_space:
                self.progress.note(dispatcher.to)
        self.push_due = True

    def on_bytes_moved(self, to: Replica) -> None:
        dispatcher = self.dispatchers[to]
        if dispatcher.active:
            dispatcher.on_bytes_moved()
            if dispatcher.arrived_index <= dispatcher.held_index:
                # Else its disk has to do the rest, and a machine takes bytes while that hangs, too.
                self.progress.note(dispatcher.to)

    @property
    def is_kept_from_committing(self) -> bool:
        """This leader may not count its own disk, and the others have not made up for it for an election
        time-out: one of them should lead."""
        state = self._state
        return (
            state.first_unproven_index is not None
            and state.committed_index < state.runs.end_index
            and state.now_ms - self._committed_ms >= self._config.election_timeout_ms
        )

    @property
    def too_many_full(self) -> tuple[Replica, ...]:
        """Followers that have no space, if they are so many that entries could not be committed."""
        full = [each.to for each in self.dispatchers.values() if each.lacks_space]
        if not full:
            return ()
        membership = self._state.membership
        full = [replica for replica in full if membership.is_voter(replica)]
        has_rest = membership.has_quorum([v for v in membership.voters() if v not in full])
        return () if has_rest else tuple(full)

    @property
    def space_problem(self) -> str:
        if not (full := self.too_many_full):
            return ""
        names = ", ".join(voter.member_id for voter in full)
        return f"no space on {names}: too many for entries to be committed without"

    def check_that_most_have_space(self) -> None:
        """Raises DiskFull where they have not."""
        if self.too_many_full:
            raise DiskFull(self.space_problem)

    def append(self, count: int, kind: EntryKind, size_bytes: int) -> EntryId:
        """The next `count` indices become entries of the current term; the id of the first."""
        term = self._state.term
        first_index = self._state.runs.end_index + 1
        self._log.append(
            AppendOrder(
                first_index=first_index,
                count=count,
                term=term,
                kind=kind,
                batch=None,
                push_first_index=first_index,
            ),
            ((first_index, term),),
        )
        self.sizes.append(first_index + count - 1, size_bytes)
        self.push_due = True
        return EntryId(first_index, term)

    def on_begin_raised(self) -> None:
        for dispatcher in self.dispatchers.values():
            dispatcher.on_begin_raised()
        self.push_due = True

    def next_orders(self) -> tuple[PushOrder, ...]:
        """The leader's next pushes; COMPARE and COMMIT messages go into the outbox."""
        if not self.push_due:
            return ()
        orders = []
        self.commit_due_ms = NEVER
        for dispatcher in self.dispatchers.values():
            order = dispatcher.next_order()
            if order is not None:
                orders.append(order)
            if dispatcher.commit_due_ms < self.commit_due_ms:
                self.commit_due_ms = dispatcher.commit_due_ms
        self.push_due = False
        return tuple(orders)

    def on_pushed(self, to: Replica, last_index: int, size_bytes: int) -> None:
        if self.dispatchers[to].on_pushed(last_index, size_bytes):
            self.push_due = True

    def on_push_failed(self, to: Replica) -> None:
        self.dispatchers[to].on_push_failed()
        self.push_due = True

    def on_response(self, response: PushEntryResponse) -> None:
        acknowledged = self.dispatchers[response.sender].on_response(response)
        if acknowledged >= 0:
            self.progress.note(response.sender)  # a learner progresses, too, and may vote soon
            self._on_match_index(response.sender, acknowledged)
        self.push_due = True

    def may_wait(self, response: PushEntryResponse) -> bool:
        """It says of committed entries that they are held, and nothing else waits for that."""
        state, dispatcher = self._state, self.dispatchers.get(response.sender)
        return (
            response.push is PushType.APPEND
            and response.result is PushResult.SUCCESS
            and response.term == state.term
            and state.role is Role.LEADER
            and dispatcher is not None
            and dispatcher.has_sent_all
        )

    def on_install_answered(self, replica: Replica, result: InstallResult) -> None:
        dispatcher = self.dispatchers[replica]
        if dispatcher.active and result is InstallResult.MORE:
            self.progress.note(replica)
        dispatcher.on_install_answered(result)
        self.push_due = True

    def mark_own_disk(self) -> None:
        """This disk holds more than before, or is proven to."""
        unproven = self._state.first_unproven_index
        index = self._log.durable_index
        self._on_match_index(self._state.member, index if unproven is None else min(index, unproven - 1))

    @property
    def waits_for_others(self) -> bool:
        """This leader's own disk alone commits nothing more, however much it holds."""
        state = self._state
        old, new = state.membership.old, state.membership.new
        if state.role is not Role.LEADER or len(old) < 2 or len(new) < 2:
            return False
        return not self.acks.is_anybody_above(state.committed_index, state.member)

    def unmark_own_disk(self) -> None:
        """This disk turned out to hold less than it was counted for."""
        self._committed_ms = self._state.now_ms
        unproven = self._state.first_unproven_index
        if unproven is not None:
            self.acks.lower_to(self._state.member, unproven - 1)

    def _on_held_at_most(self, replica: Replica, index: int) -> None:
        if self.acks.term == self._state.term:
            self.acks.lower_to(replica, index)

    def _on_set_back(self, replica: Replica, found: SetBack) -> None:
        """It may have voted and acknowledged in a higher term, and have forgotten that. So nothing
        that it gets from here makes it whole: it counts in nothing any more."""
        known = self._state.set_back
        known[replica] = found
        if len(known) > MOST_SET_BACK:
            del known[next(iter(known))]
        self.acks.forget(replica)
        self._elector.answers.forget(replica)
        self._outbox.disconnect(replica)
        self.on_connection_lost(replica)
        self._elector.tell_set_back(replica)

    def _on_match_index(self, replica: Replica, index: int) -> None:
        if not self.acks.raise_to(replica, index) or index <= self._state.committed_index:
            return
        committed_index = self.acks.committed_index()
        if committed_index > self._state.committed_index:
            self._state.commit_up_to(committed_index)
            self.progress.on_committed()
            self._committed_ms = self._state.now_ms
            self._elector.on_commit()
            self.push_due = True
            if self._log.damaged:
                self.mark_own_disk()  # what the others have committed needs no proof of its own

    def is_proven(self, replica: Replica) -> bool:
        """It is the directory that it was, as far as this leader can know. Until then it may have been
        put back, and follow this leader only because it has forgotten another one."""
        dispatcher = self.dispatchers.get(replica)
        return dispatcher is None or dispatcher.is_proven

    def held_index(self, replica: Replica) -> int:
        """Up to here the member is known to hold this leader's log."""
        dispatcher = self.dispatchers.get(replica)
        return dispatcher.held_index if dispatcher is not None else -1

    @property
    def connected(self) -> list[EntryDispatcher]:
        return [d for d in self.dispatchers.values() if d.active]

    @property
    def installing(self) -> tuple[Replica, ...]:
        """Of a leader: connected members that are to get the start of this log now."""
        return tuple([d.to for d in self.dispatchers.values() if d.is_installing])

    def problems(self) -> tuple[str, ...]:
        diverged = [
            f"DIVERGED_BELOW_COMMIT: {d.to.member_id} committed another entry at index {d.diverged_at}"
            for d in self.connected
            if d.diverged_at >= 0
        ]
        members = self._state.membership.members()
        older = [
            f"directory {each.directory_id} of {each.member_id} was rolled back: an older"
            " copy was restored, or its disk lost synced data"
            f"{now(f'ends at {found.held_index}, had acknowledged entry {found.acknowledged_index}')};"
            " it has no vote until it is replaced as a new directory, automatically"
            f" (auto_replace_after_ms) or with quorumlog member replace {each.member_id}"
            for each, found in self._state.set_back.items()
            if each in members
        ]
        return (*diverged, *older)

    def peers(self) -> tuple[PeerStatus, ...]:
        return tuple(self._status_of(dispatcher) for dispatcher in self.connected)

    def _status_of(self, dispatcher: EntryDispatcher) -> PeerStatus:
        to, lacks_nothing = dispatcher.to, dispatcher.lacks_nothing
        return PeerStatus(
            replica=to,
            is_voter=self._state.membership.is_voter(to),
            state=dispatcher.state.value,
            compare_index=dispatcher.compare_index,
            match_index=dispatcher.match_index,
            stalled_since_ms=None if lacks_nothing else self.progress.stalled_since_ms(to),
            has_arrived=dispatcher.arrived_index > dispatcher.held_index,
            lacks_nothing=lacks_nothing,
            lacks_space=dispatcher.lacks_space or dispatcher.refuses_start,
        )
