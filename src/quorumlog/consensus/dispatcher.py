"""Leader: the questions and pushes to one member, and when it is asked again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.log import TermRuns
from quorumlog.consensus.member_state import MemberState, Outbox
from quorumlog.consensus.messages import (
    InstallResult,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
)
from quorumlog.consensus.ready import PushOrder, Role
from quorumlog.entry import NO_ENTRY, Replica, SetBack

# ----------------------------------------------------------------
# The automaton of an EntryDispatcher, from which the picture in the documents is made.


class DispatcherState(Enum):
    __hash__ = object.__hash__  # by identity, without a call in Python

    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"
    COMMIT = "COMMIT"
    INSTALL = "INSTALL"


class DispatcherEvent(Enum):
    __hash__ = object.__hash__

    BEGUN = "a term begins, or a directory is connected that was away when it began"
    MISSED = "the follower does not hold the compared entry"
    MATCHED = "the compared entry is held, and nothing above it is known to differ"
    MATCHED_BELOW_CONFLICT = "the compared entry is held, the one above it is another"
    CUT = "the follower has cut conflicting entries above the match, or will at the next push"
    INCONSISTENT = "the follower does not hold the entry before a push or a cut"
    LOG_GREW = "there are entries to send, or to send again"
    CAUGHT_UP = "everything has been sent"
    BELOW_BEGIN = "the entries the follower lacks are no longer in this log: it gets the start"
    INSTALLED = "the follower has the start, held it already, or reconnects"


TRANSITIONS: dict[tuple[DispatcherState, DispatcherEvent], DispatcherState] = {
    (DispatcherState.COMPARE, DispatcherEvent.MISSED): DispatcherState.COMPARE,
    (DispatcherState.COMPARE, DispatcherEvent.MATCHED): DispatcherState.APPEND,
    (DispatcherState.COMPARE, DispatcherEvent.MATCHED_BELOW_CONFLICT): DispatcherState.TRUNCATE,
    (DispatcherState.COMPARE, DispatcherEvent.BELOW_BEGIN): DispatcherState.INSTALL,
    (DispatcherState.INSTALL, DispatcherEvent.INSTALLED): DispatcherState.COMPARE,
    (DispatcherState.TRUNCATE, DispatcherEvent.CUT): DispatcherState.APPEND,
    (DispatcherState.TRUNCATE, DispatcherEvent.INCONSISTENT): DispatcherState.COMPARE,
    (DispatcherState.APPEND, DispatcherEvent.CAUGHT_UP): DispatcherState.COMMIT,
    (DispatcherState.APPEND, DispatcherEvent.LOG_GREW): DispatcherState.APPEND,
    (DispatcherState.APPEND, DispatcherEvent.INCONSISTENT): DispatcherState.COMPARE,
    (DispatcherState.COMMIT, DispatcherEvent.LOG_GREW): DispatcherState.APPEND,
    (DispatcherState.COMMIT, DispatcherEvent.INCONSISTENT): DispatcherState.COMPARE,
    **{(state, DispatcherEvent.BEGUN): DispatcherState.COMPARE for state in DispatcherState},
}


# ---------------------------------------------------------------- PushWindow
# The pushes to one member that are on their way, and how long it may be silent.

MAX_BACK_OFF = 16
"""A silence is borne for so many times `push_resend_ms` at most."""


class PushWindow:
    __slots__ = ("_least_timeout_ms", "_timed", "allowed_ms", "pushes", "size_bytes")

    def __init__(self, push_resend_ms: float) -> None:
        self.pushes: deque[tuple[int, int]] = deque()
        """(last index, bytes) of each push on its way, in order."""
        self.size_bytes = 0
        self._least_timeout_ms = push_resend_ms
        self.allowed_ms = push_resend_ms
        """How long pushes may stay unanswered: twice as long after each time that it was in vain, until
        a push was timed."""
        self._timed: tuple[int, float] | None = None
        """(last index, when it left) of one push on its way: twice what its answer takes is allowed."""

    def clear(self) -> None:
        self.drop_from(0)
        self.forget_silence()

    def add(self, last_index: int, size_bytes: int, now_ms: float) -> None:
        """A push was sent."""
        if self._timed is None:
            self._timed = (last_index, now_ms)
        self.pushes.append((last_index, size_bytes))
        self.size_bytes += size_bytes

    def acknowledge(self, index: int, now_ms: float) -> None:
        """Everything up to `index` is on the follower's disk."""
        if self._timed is not None and self._timed[0] <= index:
            took_ms = now_ms - self._timed[1]
            self._timed = None
            self._be_patient_for(2 * took_ms)
        while self.pushes and self.pushes[0][0] <= index:
            self.size_bytes -= self.pushes.popleft()[1]
        assert self.size_bytes >= 0, self.size_bytes

    def drop_from(self, index: int) -> None:
        """Forget the pushes of this entry and later ones; they are timed anew when sent again."""
        while self.pushes and self.pushes[-1][0] >= index:
            self.size_bytes -= self.pushes.pop()[1]
        if self._timed is not None and self._timed[0] >= index:
            self._timed = None

    def back_off(self) -> None:
        """It was silent for `allowed_ms`."""
        self._be_patient_for(2 * self.allowed_ms)

    def forget_silence(self) -> None:
        self.allowed_ms = self._least_timeout_ms

    def _be_patient_for(self, duration_ms: float) -> None:
        least_ms = self._least_timeout_ms
        self.allowed_ms = min(max(least_ms, duration_ms), MAX_BACK_OFF * least_ms)


# ---------------------------------------------------------------- MatchSearch
# Where the last entry that a leader's log and a follower's have in common can be at most.
#
# Each refusal of a COMPARE rules out a whole term, ours or the follower's, so the number of rounds is
# bounded by the number of terms (Raft paper, end of section 5.3). Only a follower whose log begins
# higher is asked further up, once: where its log begins.


class MatchSearch:
    def __init__(self, runs: TermRuns) -> None:
        self._runs = runs
        self.index = -1
        """The entry to compare next."""
        self._their_begin = -1
        """The follower's log begins after this entry, as far as it has said so."""
        self.conflict_seen = False
        """Above the match the follower holds an entry of another term, which is to be cut."""

    def begin(self, index: int) -> None:
        self.index = index
        self._their_begin = -1
        self.conflict_seen = False

    @property
    def is_at_bottom(self) -> bool:
        return self.index <= max(self._runs.before_begin.index, self._their_begin)

    def go_up(self, refusal: PushEntryResponse) -> bool:
        """False unless the follower's log begins above the entry at `index`, with one that is held here.
        That one it can compare, and none below it."""
        begin_index = refusal.begin.index
        if not self.index < begin_index <= self._runs.end_index:
            return False
        self.index = self._their_begin = begin_index
        self.conflict_seen = False
        return True

    def stay_above_begin(self) -> bool:
        """Our log begins higher than before; True if that moved the search."""
        before, self.index = self.index, max(self.index, self._runs.before_begin.index)
        if self.index == before:
            return False
        self.conflict_seen = False
        return True

    def go_below(self, refusal: PushEntryResponse) -> None:
        """The follower does not hold the entry at `index`."""
        if self.go_up(refusal):
            return
        if refusal.begin.index <= self._runs.end_index and refusal.conflict_term >= 0:
            self.conflict_seen = True
        # The search stops at the higher begin.
        bottom = max(self._runs.before_begin.index, self._their_begin)
        self.index = max(self.most_held(refusal), bottom)

    def most_held(self, refusal: PushEntryResponse) -> int:
        """The last entry that the follower can have in common with this leader: below `index`."""
        runs = self._runs
        if refusal.begin.index > runs.end_index:
            candidate = -1  # no entry is in both
        elif refusal.conflict_term < 0:
            candidate = refusal.ledger_end_index
        else:
            # The follower's last entry of our kind, if we hold entries of the conflicting term.
            held = runs.last_index_of(refusal.conflict_term)
            candidate = refusal.conflict_first_index - 1
            if held is not None and candidate <= held < self.index:
                candidate = held
        return min(candidate, self.index - 1)

    def compare_index(self, committed_index: int) -> int:
        """The entry at `index` is common. If it is our last one and not committed, it is pushed again:
        only an answer to an APPEND counts, and that to its first push may have been lost."""
        runs = self._runs
        is_last = self.index == runs.end_index and not self.is_at_bottom
        return self.index - 1 if is_last and self.index > committed_index else self.index


# ---------------------------------------------------------------- EntryDispatcher
# The leader's side of replication to one other member.
#
# It first finds the last entry that both logs hold (COMPARE), has the follower cut what is known to
# differ above it (TRUNCATE), then streams everything from there on (APPEND) and, when nothing is left
# to send, only tells how far the log is committed (COMMIT). A follower that lacks deleted entries gets
# the start of this log (INSTALL) and is compared again.

NEVER = float("inf")
NOTHING = range(0)
ASKED_IN_VAIN = 3
"""After so many questions without answers or moving bytes a push goes again with each further one."""


class EntryDispatcher:
    """Feeds one directory. Lives as long as this process; `begin` starts it anew for a term.

    Invariants while in APPEND or COMMIT: every entry up to `compare_index` and up to `match_index` is
    on the follower's disk (up to `compare_index` it may be damaged: only `match_index` counts);
    `max(match_index, compare_index) < write_index`; pushes on their way lie between the two.
    """

    def __init__(
        self,
        config: ConsensusConfig,
        state: MemberState,
        outbox: Outbox,
        to: Replica,
        on_held_at_most: Callable[[Replica, int], None],
        on_set_back: Callable[[Replica, SetBack], None],
    ) -> None:
        """`on_held_at_most(to, index)`: it was found to hold nothing of ours above this entry.
        `on_set_back(to, found)`: and it has acknowledged more in this term, as synced."""
        self._config = config
        self._on_held_at_most = on_held_at_most
        self._on_set_back = on_set_back
        self._state = state
        self._outbox = outbox
        self.to = to
        self.state = DispatcherState.COMPARE
        self.term = -1
        self._search = MatchSearch(state.runs)
        self.compare_index = -1
        """Last common entry as COMPARE found it, on the follower's disk; -1 also while unknown."""
        self.match_index = -1
        """Highest index acknowledged by an APPEND since then."""
        self._acknowledged_index = -1
        """Highest index that it acknowledged as synced in this term."""
        self.is_proven = True
        """On this connection it has shown that it still holds that."""
        self._write_index = 0
        """The next entry to send."""
        self._window = PushWindow(config.push_resend_ms)
        self._order: PushOrder | None = None
        """Given out and not reported yet. Outlives terms and connections: no second one before."""
        self._order_counts = False
        """The report of `_order` still means something: no rewind came between."""
        self._question = 0
        """Serial number of the COMPARE or TRUNCATE that waits for an answer; a question that is sent
        again keeps it, so that the answer of a slow disk still counts. 0: none waits."""
        self._next_question = 1
        self._resend_at_ms = 0.0
        """When what is not answered by then may be lost. Moves with every acknowledgement."""
        self._again = NOTHING
        """Sent before, known or feared to be lost: go once more, beside what is on its way."""
        self._arrival_question = 0
        """Number of the oldest COMMIT whose answer shows losses: nothing was sent again since."""
        self._unanswered = 0
        """So many of them were not answered, by that, an acknowledgement or bytes that moved since."""
        self.arrived_index = -1
        """Last entry received there, on disk or not, by its newest answer on this connection."""
        self._paused_until_ms: float | None = None
        """The follower refused (disk full, too far ahead, not formed), or a push could not be made:
        quiet until the first heartbeat from then on, whatever is answered or moves meanwhile."""
        self.lacks_space = False
        """Its disk had no room for the last push that it answered."""
        self.refuses_start = False
        """It could not take the start of the log when it was offered last."""
        self._committed_sent = -1
        """-1: it is sent at the next occasion, whatever it may know."""
        self.commit_due_ms = NEVER
        """When to ask for the next order for the sake of a COMMIT. It waits for a push that says the
        same: under load one comes within a round trip, and a message of its own would cost each follower
        a wake-up for every batch."""
        self.diverged_at = -1
        """A cut at this index was refused with DIVERGED_BELOW_COMMIT; -1: no."""

    # ---------------------------------------------------------------- life

    @property
    def held_index(self) -> int:
        """Up to here it is known to hold this leader's log."""
        return max(self.match_index, self.compare_index)

    @property
    def active(self) -> bool:
        """This member leads the term, and `to` is connected."""
        state = self._state
        return (
            state.role is Role.LEADER and state.term == self.term and self._outbox.is_connected(self.to)
        )

    def begin(self, write_index: int) -> None:
        """Start at COMPARE with the entry before `write_index`, in the leader's current term.

        At an election `write_index` is the leader's `ledger_end_index` + 1 of that moment (DLedger
        began at a stale end and had followers drop their whole log; docs/divergence.md, W1).
        """
        if self.term != self._state.term:
            self.term, self._acknowledged_index = self._state.term, -1
        self.is_proven = self._acknowledged_index < 0
        self.lacks_space = self.refuses_start = False
        self._committed_sent = -1
        self.diverged_at = -1
        self._fire(DispatcherEvent.BEGUN)
        self._compare_from(write_index - 1)

    def stop(self) -> None:
        self._order_counts = False

    def reconnect(self) -> None:
        """The follower is connected again: messages in flight were lost."""
        self.is_proven = self._acknowledged_index < 0
        self._committed_sent = -1
        self._paused_until_ms = None
        self._window.forget_silence()
        self._unanswered, self.arrived_index = 0, -1
        if self.state is DispatcherState.INSTALL:
            self._compare_again()  # it may have come back with the start
        elif self._question:
            self._put_question()
        elif self.state in (DispatcherState.APPEND, DispatcherState.COMMIT):
            self._rewind()
            # Does it still hold what these pushes follow? Without it they would wait there, unanswered.
            self._ask_what_arrived()

    # ---------------------------------------------------------------- work

    def next_order(self) -> PushOrder | None:
        """Send the next COMPARE or COMMIT, or return the next push as an order."""
        commit_due_ms, self.commit_due_ms = self.commit_due_ms, NEVER
        state = self._state
        if (
            self._paused_until_ms is not None
            or state.role is not Role.LEADER
            or state.term != self.term
            or self.to not in self._outbox.connected
        ):
            return None
        if self.state is DispatcherState.COMPARE or self.state is DispatcherState.TRUNCATE:
            if not self._question:
                self._question, self._next_question = self._next_question, self._next_question + 1
                self._put_question()
            return None
        if self.state is DispatcherState.INSTALL:
            return None
        if self._again and self._order is None:
            again = range(max(self._again.start, self.held_index + 1), self._again.stop)
            if again:
                return self._give_order(again.start, again.stop, self._config.push_limit_bytes)
        end_index = state.runs.end_index
        if self._write_index <= end_index:
            if self.state is DispatcherState.COMMIT:
                self._fire(DispatcherEvent.LOG_GREW)
            return self._push(end_index)
        if self._order is not None:
            return None
        if self.state is DispatcherState.APPEND:
            self._fire(DispatcherEvent.CAUGHT_UP)
        if self._committed_sent < self._state.committed_index:
            now_ms = self._state.now_ms
            if self._committed_sent >= 0:
                commit_due_ms = min(commit_due_ms, now_ms + self._config.commit_delay_ms)
                if now_ms < commit_due_ms:
                    self.commit_due_ms = commit_due_ms
                    return None
            self._committed_sent = self._state.committed_index
            if not self._window.pushes:
                self._resend_at_ms = now_ms + self._config.push_resend_ms
            self._say(PushType.COMMIT, self.held_index)
        return None

    def _push(self, end_index: int) -> PushOrder | None:
        config = self._config
        window_bytes = config.push_limit_bytes if self.lacks_space else config.push_window_bytes
        room = window_bytes - self._window.size_bytes
        if self._order is not None or (room <= 0 and self._window.pushes):
            return None
        assert self.held_index < self._write_index, (self.match_index, self._write_index)
        return self._give_order(self._write_index, end_index + 1, max(room, 1))

    def _give_order(self, first_index: int, stop_index: int, room_bytes: int) -> PushOrder:
        self._committed_sent = self._state.committed_index
        self._order_counts = True
        self._order = PushOrder(
            to=self.to,
            term=self.term,
            previous=self._state.runs.id_at(first_index - 1),
            first_index=first_index,
            stop_index=stop_index,
            limit_bytes=min(self._config.push_limit_bytes, room_bytes),
            committed_index=self._state.committed_index,
        )
        return self._order

    def on_pushed(self, last_index: int, size_bytes: int) -> bool:
        """The order was carried out as far as `last_index`. True: it may have another one at once."""
        order = self._order
        assert order is not None, last_index
        assert order.first_index <= last_index < order.stop_index, (order, last_index)
        self._order = None
        if not self._order_counts:
            return True
        if last_index < self._write_index:
            # It was sent before, and has its place in the window.
            self._again = range(max(self._again.start, last_index + 1), self._again.stop)
            self._wait_for_answer()
            return True
        self._write_index = last_index + 1
        state = self._state
        if not self._window.pushes:
            self._resend_at_ms = state.now_ms + self._window.allowed_ms
        self._window.add(last_index, size_bytes, state.now_ms)
        return last_index < state.runs.end_index or bool(self._again)

    def on_push_failed(self) -> None:
        """The order could not be carried out; it is repeated after the time-out. Earlier pushes are
        still in flight."""
        assert self._order is not None, self.to
        self._order = None
        if self._order_counts:
            self._pause()

    def on_bytes_moved(self) -> None:
        """The follower's machine acknowledges bytes, so a COMPARE is not lost but queued after the
        pushes. Pushes keep their time-out: those bytes may belong to newer pushes that wait for a
        dropped one."""
        self._unanswered = 0

    def tick(self) -> None:
        """Called with every heartbeat: messages unanswered past the time-out may be lost."""
        now_ms = self._state.now_ms
        if not self.active:
            return
        if self._paused_until_ms is not None:
            if now_ms < self._paused_until_ms:
                return
            self._paused_until_ms = None
        if now_ms < self._resend_at_ms:
            return
        if self._question:
            self._put_question()
        elif self._window.pushes:
            self._look_into_silence()
        elif not self.is_proven and self.state is DispatcherState.COMMIT:
            self._ask_what_arrived()
        elif self.state is DispatcherState.COMMIT:
            self._committed_sent = -1  # once more: a follower that restarted verifies its log by it

    def _look_into_silence(self) -> None:
        """A slow disk and a slow link are silent, too, and to send more makes them no faster. So it is
        asked what has arrived, less often each time; if nothing at all comes back and no bytes move, the
        first push goes once more with each further question. The others wait there for that one."""
        self._window.back_off()
        if self._unanswered >= ASKED_IN_VAIN:
            self._again = range(self.held_index + 1, self._window.pushes[0][0] + 1)
        self._ask_what_arrived()

    def _ask_what_arrived(self) -> None:
        """A COMMIT that goes after the pushes, names the entry that should be next, and is answered at
        once, before the disk has anything."""
        self._wait_for_answer()
        self._committed_sent = self._state.committed_index
        self._unanswered += 1
        number, self._next_question = self._next_question, self._next_question + 1
        self._say(PushType.COMMIT, self.held_index, number, self._write_index)

    def _rewind(self) -> None:
        """What was sent and is not known to be held is lost, and goes again."""
        self._order_counts = False
        self._again = NOTHING
        self._arrival_question = self._next_question
        self._write_index = self.held_index + 1
        self._window.drop_from(self._write_index)
        if self._write_index <= self._state.runs.end_index:
            self._fire(DispatcherEvent.LOG_GREW)

    def _wait_for_answer(self) -> None:
        self._resend_at_ms = self._state.now_ms + self._window.allowed_ms

    def _pause(self) -> None:
        self._paused_until_ms = self._state.now_ms + self._config.push_resend_ms

    # ---------------------------------------------------------------- answers

    def on_response(self, response: PushEntryResponse) -> int:
        """Returns the index that an APPEND has newly acknowledged, -1 if it is none."""
        if not self.active:
            return -1
        if response.push is PushType.APPEND:
            return self._on_append_response(response)
        if response.push is PushType.COMMIT:
            return self._on_commit_response(response)
        if response.number != self._question or not self._question:
            return -1  # the answer to a question that is no longer asked
        self._question = 0
        if response.result is PushResult.DIVERGED_BELOW_COMMIT:
            self.diverged_at = self.compare_index + 1
            self._pause()
        elif response.result is PushResult.NOT_FORMED:
            # It is told of the founding list by now; ask again with the next heartbeat.
            self._paused_until_ms = self._state.now_ms
        elif response.result not in (PushResult.SUCCESS, PushResult.INCONSISTENT_STATE):
            self._pause()
        elif self.state is DispatcherState.COMPARE:
            self._on_compare_response(response)
        elif response.result is PushResult.SUCCESS:
            self._begin_append(DispatcherEvent.CUT)
        else:
            self._fire(DispatcherEvent.INCONSISTENT)
            self._compare_from(self._state.runs.end_index)
        return -1

    def _on_compare_response(self, response: PushEntryResponse) -> None:
        if self._finds_set_back(response):
            return
        if response.result is PushResult.SUCCESS:
            self.compare_index = self._search.compare_index(self._state.committed_index)
            if self._search.conflict_seen:
                self._fire(DispatcherEvent.MATCHED_BELOW_CONFLICT)
            else:
                self._begin_append(DispatcherEvent.MATCHED)
        elif self._search.is_at_bottom and not self._search.go_up(response):
            self._fire(DispatcherEvent.BELOW_BEGIN)
        else:
            self._search.go_below(response)
            self._on_held_at_most(self.to, self._search.index)
            self._fire(DispatcherEvent.MISSED)

    def _finds_set_back(self, response: PushEntryResponse) -> bool:
        """The question was asked after all acknowledgements that count, and no leader of another term
        has had this directory cut its log: it would have left this term. Of entries below the begin of
        its log it says nothing."""
        held_index = response.ledger_end_index
        if response.result is not PushResult.SUCCESS and response.begin == NO_ENTRY:
            held_index = min(held_index, self._search.most_held(response))
        if held_index >= self._acknowledged_index:
            return False
        self._on_set_back(self.to, SetBack(self.to.directory_id, self._acknowledged_index, held_index))
        return True

    def _on_commit_response(self, response: PushEntryResponse) -> int:
        """It says what has arrived; or it lacks what it has acknowledged, or what COMPARE found: find
        out what it does hold."""
        if self.state not in (DispatcherState.APPEND, DispatcherState.COMMIT):
            return -1
        if response.result is PushResult.RECEIVED:
            if response.number >= self._arrival_question:
                self.is_proven = True
                self._unanswered = 0
                self.arrived_index = response.index
                self._again = range(response.index + 1, min(response.first_index, self._write_index))
                self._arrival_question = self._next_question if self._again else response.number + 1
        else:
            self._fire(DispatcherEvent.INCONSISTENT)
            self._compare_from(self.held_index, response)
        return -1

    def _on_append_response(self, response: PushEntryResponse) -> int:
        if self.state not in (DispatcherState.APPEND, DispatcherState.COMMIT):
            return -1
        if response.result is PushResult.SUCCESS:
            if not self.match_index < response.index <= self._state.runs.end_index:
                return -1
            self.match_index = response.index
            self.is_proven = True
            if self._outbox.syncs(self.to):
                self._acknowledged_index = max(self._acknowledged_index, self.match_index)
            self._unanswered = 0
            self.lacks_space = False
            self.diverged_at = -1
            self._window.acknowledge(self.match_index, self._state.now_ms)
            self._wait_for_answer()
            self._write_index = max(self._write_index, self.match_index + 1)
            return self.match_index
        if response.first_index <= self.held_index:
            return -1  # the refusal of a push that was sent again and taken meanwhile
        if response.result is PushResult.INCONSISTENT_STATE:
            self._fire(DispatcherEvent.INCONSISTENT)
            self._compare_from(min(response.first_index - 1, self._state.runs.end_index), response)
        else:
            if response.result is PushResult.DIVERGED_BELOW_COMMIT:
                self.diverged_at = response.first_index
            self.lacks_space = response.result is PushResult.DISK_FULL
            self._rewind()
            self._pause()
        return -1

    @property
    def is_installing(self) -> bool:
        """It is to get the start of this log now."""
        is_wanted = self.state is DispatcherState.INSTALL
        return is_wanted and self._paused_until_ms is None and self.active

    def on_install_answered(self, result: InstallResult) -> None:
        if not self.is_installing:
            return
        self.refuses_start = result is InstallResult.REFUSED
        if result is InstallResult.HELD:
            self._compare_again()
        elif result is not InstallResult.MORE:
            if result is InstallResult.DIVERGED_BELOW_COMMIT:
                self.diverged_at = max(0, self._state.runs.before_begin.index)
            self._pause()

    def _compare_again(self) -> None:
        self._fire(DispatcherEvent.INSTALLED)
        self._compare_from(self._state.runs.end_index)

    # ---------------------------------------------------------------- questions

    def _compare_from(self, index: int, refusal: PushEntryResponse | None = None) -> None:
        """`refusal`: it was found not to hold the entry at `index`."""
        self._search.begin(index)
        if refusal is not None:
            self._search.go_below(refusal)
        self._on_held_at_most(self.to, self._search.index)
        if self._search.index < self._acknowledged_index:
            # What was refused may be older than that. The answer to a question about it is not.
            self._search.begin(max(self._acknowledged_index, self._state.runs.before_begin.index))
        self.compare_index = -1
        self.match_index = -1
        self._write_index = self._search.index + 1
        self._window.clear()
        self._order_counts = False
        self._again = NOTHING
        self._arrival_question = self._next_question
        self._unanswered = 0
        self.arrived_index = -1
        self._question = 0
        self._paused_until_ms = None

    def on_begin_raised(self) -> None:
        """The entries that the follower lacks may be deleted: ask for the last deleted one."""
        begin_index = self._state.runs.before_begin.index
        if self.state is DispatcherState.COMPARE:
            if self._search.stay_above_begin():
                self._question = 0
        elif self.held_index < begin_index and self.state is not DispatcherState.INSTALL:
            self._fire(DispatcherEvent.INCONSISTENT)
            self._compare_from(begin_index)

    def _begin_append(self, event: DispatcherEvent) -> None:
        self._fire(event)
        self.is_proven = True
        self._write_index = self.compare_index + 1
        self._resend_at_ms = self._state.now_ms + self._config.push_resend_ms

    def _put_question(self) -> None:
        self._resend_at_ms = self._state.now_ms + self._config.push_resend_ms
        if self.state is DispatcherState.COMPARE:
            self._say(PushType.COMPARE, self._search.index, self._question)
        else:
            # Both ids at the cut are named: the last entry that may stay and the first of ours above it.
            # A follower that holds both cuts nothing, so a late copy of this message does no harm.
            cut = self._state.runs.id_at(self.compare_index + 1)
            runs = ((cut.index, cut.term),)
            self._say(PushType.TRUNCATE, self.compare_index, self._question, cut.index, runs)

    def _say(
        self,
        push: PushType,
        previous_index: int,
        number: int = 0,
        first_index: int = -1,
        runs: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Without entries; an answer is expected where there is a `number`."""
        state = self._state
        message = PushEntryRequest(
            sender=state.member,
            term=state.term,
            push=push,
            committed_index=state.committed_index,
            number=number,
            previous=state.runs.id_at(previous_index),
            first_index=first_index,
            term_runs=runs,
        )
        self._outbox.send(self.to, message)

    def _fire(self, event: DispatcherEvent) -> None:
        if self._state.observer is not None:
            self._state.observer(f"dispatcher: {self.state.value} {event.name}")
        self.state = TRANSITIONS[self.state, event]

    @property
    def has_sent_all(self) -> bool:
        """All entries that its log lacks are in flight."""
        is_all = self._write_index > self._state.runs.end_index and not self._again
        return is_all and self._order is None

    @property
    def lacks_nothing(self) -> bool:
        """It holds every entry of the leader."""
        return self.held_index >= self._state.runs.end_index
