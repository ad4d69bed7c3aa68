"""Linearizable reads: how a member knows that it holds every acknowledged entry."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from quorumlog.consensus.elector import LeaderElector
from quorumlog.consensus.member_state import MemberState, Outbox
from quorumlog.consensus.messages import HeartbeatRequest, ReadIndexRequest, ReadIndexResponse
from quorumlog.consensus.ready import ReadGrant, Role
from quorumlog.entry import Replica
from quorumlog.errors import LeaderNotReady, NotLeader

# ---------------------------------------------------------------- ReadIndex
# Linearizable reads without writing (Raft paper, section 8; Ongaro's thesis, 6.4).
#
# A read may be served at the committed index of the moment it was asked for, once a majority has
# answered a heartbeat round that began later: then no newer leader can have committed anything before
# the read was asked for. Reads that arrive while a round is on its way share the next one.


class PendingQuestion(NamedTuple):
    """`number`: of this member's own read, or of the question of the follower `asker`."""

    number: int
    asker: Replica | None
    read_index: int
    """Everything acknowledged before it was asked is at or below."""


class ReadIndex:
    """The reads of one term of leadership, in the order they were asked for."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[PendingQuestion, int]] = deque()
        """(read, round): to be granted once `round` is confirmed and its index committed."""
        self._term_first_index = 0
        self._round_on_its_way = 0
        self._confirmed_round = 0

    def open_term(self, first_index: int) -> None:
        """A leader knows the committed index only once it has committed an entry of its own term."""
        self.drop_all()
        self._term_first_index = first_index
        self._round_on_its_way = 0
        self._confirmed_round = 0

    def drop_all(self) -> None:
        """Leadership is lost: waiting reads learn it from the change of role."""
        self._waiting.clear()

    def request(
        self, number: int, committed_index: int, current_round: int, asker: Replica | None = None
    ) -> None:
        index = max(committed_index, self._term_first_index)
        self._waiting.append((PendingQuestion(number, asker, index), current_round + 1))

    def forget(self, asker: Replica) -> None:
        """The follower's process has restarted: its read numbers may repeat."""
        self._waiting = deque(each for each in self._waiting if each[0].asker != asker)

    @property
    def is_idle(self) -> bool:
        """No read waits, as in most turns."""
        return not self._waiting

    def round_needed(self, current_round: int) -> bool:
        return (
            bool(self._waiting)
            and self._waiting[-1][1] > current_round
            and self._confirmed_round >= self._round_on_its_way
        )

    def on_round_started(self, number: int) -> None:
        self._round_on_its_way = number

    def confirm(self, round_number: int) -> None:
        """A majority has answered this round or a later one."""
        self._confirmed_round = max(self._confirmed_round, round_number)

    def take_granted(self, committed_index: int) -> list[PendingQuestion]:
        granted = []
        while (
            self._waiting
            and self._waiting[0][1] <= self._confirmed_round
            and self._waiting[0][0].read_index <= committed_index
        ):
            granted.append(self._waiting.popleft()[0])
        return granted


# ---------------------------------------------------------------- ReadQuestions
# Linearizable reads of a member that follows.
#
# It asks the leader for a read index, and grants what waits once it has committed that itself. What
# arrives while a question is on its way waits for the next one: the round that answers this one may
# have begun before.


class ReadQuestions:
    """To one leader in one term; one that is lost meanwhile and found again has not changed."""

    def __init__(self, state: MemberState, outbox: Outbox, repeat_ms: float) -> None:
        self._state = state
        self._outbox = outbox
        self._repeat_ms = repeat_ms
        self._followed: tuple[Replica | None, int] = (None, -1)
        self._waiting: list[int] = []
        """Reads that no question was asked for yet."""
        self._pending: list[int] = []
        """Those that the question on its way is for; empty: none is."""
        self._number = 0
        """Of the newest question of this process."""
        self._asked_ms = 0.0
        self._answers: deque[tuple[int, list[int]]] = deque()
        """(index, reads): to be granted once that is committed here."""

    def follow(self, leader: Replica | None, term: int) -> None:
        """Reads that wait for another leader's answer learn it from the change of role."""
        if leader is not None and (leader, term) != self._followed:
            self._followed = leader, term
            self._waiting, self._pending = [], []
            self._answers.clear()

    def request(self, number: int) -> None:
        self._waiting.append(number)

    @property
    def is_idle(self) -> bool:
        """Nothing is to be asked or granted: of most turns."""
        return not (self._waiting or self._answers)

    def ask(self) -> None:
        """One question for all that have come since the one before was asked."""
        if self._waiting and not self._pending and self._state.leader is not None:
            self._pending, self._waiting = self._waiting, []
            self._number += 1
            self._send()

    def repeat_if_lost(self) -> None:
        """The leader is heard, and has not answered for long: a connection may have taken it along."""
        if self._pending and self._state.now_ms - self._asked_ms >= self._repeat_ms:
            self._send()

    def _send(self) -> None:
        state = self._state
        assert state.leader is not None
        self._asked_ms = state.now_ms
        question = ReadIndexRequest(sender=state.member, term=state.term, number=self._number)
        self._outbox.send(state.leader, question)

    def on_response(self, response: ReadIndexResponse) -> None:
        if self._pending and response.number == self._number:
            self._answers.append((response.index, self._pending))
            self._pending = []

    def take_grants(self) -> list[ReadGrant]:
        granted: list[ReadGrant] = []
        while self._answers and self._answers[0][0] <= self._state.committed_index:
            index, numbers = self._answers.popleft()
            granted += [ReadGrant(number, index) for number in numbers]
        return granted


# ---------------------------------------------------------------- Freshness
# Since when this member may have missed something. No message is sent for it.
#
# A leader whose round of heartbeats a quorum has answered led when it sent that round: all that anybody
# had acknowledged by then is at or below what it has committed, once that is an entry of its own term.
# Its heartbeats tell both, the round and the index, and a member that has committed so far is as fresh.
#
# What a follower does not know is when a round was *sent*: by its own clock, heartbeats may have been
# on their way for long. But each names the newest round that this member had answered by then. So it
# was sent after that answer, whose time this member has noted; the age that follows is a little too
# high, and never too low. No clock is compared with another one.

MOST_ROUNDS = 64
"""Remembered of each kind: rounds are confirmed within a few. A dropped round makes the age higher."""


class ReadFreshness:
    """Times in milliseconds of this member's own clock."""

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self._since_ms = -math.inf
        self._index = -1
        """Committed then. Async mode may take it back."""
        self._followed: tuple[Replica, int] | None = None
        """(leader, term) that the next four are about."""
        self._newest_round = 0
        self._answered_ms: dict[int, float] = {}
        """When this member answered a round, oldest first."""
        self._rounds: deque[tuple[int, float]] = deque()
        """(round, a time before it was sent), in the order of rounds."""
        self._reported: deque[tuple[int, float]] = deque()
        """(committed index of the leader, since when): fresh once that is committed here."""
        self._tells = False
        """The present leader's release serves its followers' questions, too."""

    @property
    def leader_tells(self) -> bool:
        """The leader has announced in a heartbeat that it answers read requests."""
        return self._tells and self._followed == (self._state.leader, self._state.term)

    def since_ms(self) -> float:
        """Every entry acknowledged before this time is at or below this member's committed index; -inf
        while unknown."""
        while self._reported and self._reported[0][0] <= self._state.committed_index:
            self._settle(*self._reported.popleft())
        if self._state.committed_index < self._index:
            self._since_ms, self._index = -math.inf, -1
        return self._since_ms

    def _settle(self, index: int, since_ms: float) -> None:
        if since_ms > self._since_ms:
            self._since_ms, self._index = since_ms, index

    def on_confirmed(self, sent_ms: float) -> None:
        """This member leads, and a quorum has answered a round that it sent then."""
        state = self._state
        if state.has_committed_in_its_term:
            self._settle(state.committed_index, sent_ms)

    def on_heartbeat(self, request: HeartbeatRequest) -> None:
        """Of the leader that this member follows; it is answered in this turn."""
        followed = (request.sender, request.term)
        if followed != self._followed:
            self.since_ms()  # what the one before has told holds all the same
            self._followed = followed
            self._newest_round = 0
            self._answered_ms = {}
            self._rounds.clear()
            self._reported.clear()
        self._tells = request.confirmed_round >= 0
        if request.answered_round >= 0 and request.round > self._newest_round:
            self._newest_round = request.round
            self._note_round(request)
        since_ms = self._sent_after(request.confirmed_round)
        if since_ms > -math.inf:
            if len(self._reported) >= MOST_ROUNDS:
                self._reported.pop()  # those in front come true first
            self._reported.append((request.committed_index, since_ms))

    def _note_round(self, request: HeartbeatRequest) -> None:
        answered_ms = self._answered_ms
        sent_after_ms = answered_ms.get(request.answered_round)
        if sent_after_ms is not None:
            self._rounds.append((request.round, sent_after_ms))
            if len(self._rounds) > MOST_ROUNDS:
                self._rounds.popleft()
        for number in [n for n in answered_ms if n < request.answered_round]:
            del answered_ms[number]
        if len(answered_ms) >= MOST_ROUNDS:
            del answered_ms[next(iter(answered_ms))]
        answered_ms[request.round] = self._state.now_ms

    def _sent_after(self, confirmed_round: int) -> float:
        """A time before that round was sent; -inf: it is not known."""
        rounds = self._rounds
        while len(rounds) > 1 and rounds[1][0] <= confirmed_round:
            rounds.popleft()
        return rounds[0][1] if rounds and rounds[0][0] <= confirmed_round else -math.inf


# ---------------------------------------------------------------- Reads
# Linearizable reads of a member, whatever it is; and how fresh it is without one.


class LinearizableReads:
    def __init__(
        self, state: MemberState, outbox: Outbox, elector: LeaderElector, heartbeat_interval_ms: int
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._elector = elector
        self._retry_ms = heartbeat_interval_ms
        self._read_index = ReadIndex()
        self._questions = ReadQuestions(state, outbox, heartbeat_interval_ms)
        self._freshness = ReadFreshness(state)
        self._number = 0
        self.may_grant = False
        """`take_grants` may have something to do: not so in most turns."""

    # ---------------------------------------------------------------- what is asked for

    def request(self) -> int:
        """A linearizable read of this member: the number is returned in `Ready.read_grants`, or never if
        the leader changes first. Raises LeaderNotReady if there is no leader, or it cannot be asked, and
        NotLeader if only the leader itself can be."""
        state = self._state
        if state.role is not Role.LEADER:
            if state.leader is None:
                raise LeaderNotReady(
                    f"{state.member.member_id}, {state.role.value} in term {state.term}, knows no leader"
                    " that it could ask",
                    retry_after_ms=self._retry_ms,
                )
            if not self._freshness.leader_tells:
                raise NotLeader(
                    f"{state.member.member_id} does not know whether {state.leader.member_id}, the"
                    " leader, serves reads of followers; an earlier release does not: ask the leader"
                    " itself",
                    leader_id=state.leader.member_id,
                    retry_after_ms=self._retry_ms,
                )
        self._number += 1
        self.may_grant = True
        if state.role is Role.LEADER:
            self._read_index.request(self._number, state.committed_index, self._elector.round)
        else:
            self._questions.request(self._number)
        return self._number

    @property
    def now_ms(self) -> float:
        """Of this turn, by the clock that `fresh_since_ms` counts by."""
        return self._state.now_ms

    def fresh_since_ms(self) -> float:
        """See `ReadFreshness.since_ms`."""
        return self._freshness.since_ms()

    @property
    def knows_commit(self) -> bool:
        """True if this member's committed index covers all entries committed before it started: it
        leads, or its log has reached the committed index that a leader sent."""
        state = self._state
        if state.role is Role.LEADER:
            return state.has_committed_in_its_term
        return self.fresh_since_ms() > -math.inf

    # ---------------------------------------------------------------- what arrives

    def on_question(self, request: ReadIndexRequest) -> None:
        """Of a member that takes this one for its leader."""
        state = self._state
        if state.role is Role.LEADER and request.term == state.term:
            self.may_grant = True
            current = self._elector.round
            self._read_index.request(request.number, state.committed_index, current, request.sender)

    def on_connected(self, replica: Replica) -> None:
        self._read_index.forget(replica)

    def on_answer(self, response: ReadIndexResponse) -> None:
        if response.sender == self._state.leader and response.term == self._state.term:
            self.may_grant = True
            self._questions.on_response(response)

    def on_heartbeat(self, request: HeartbeatRequest) -> None:
        """Of the leader that this member follows now."""
        self._freshness.on_heartbeat(request)
        self._questions.repeat_if_lost()
        self.may_grant = True

    def on_round_answered(self) -> None:
        """Of this leader: a member has answered a round of its heartbeats."""
        confirmed_round = self._elector.confirmed_round
        self._read_index.confirm(confirmed_round)
        sent_ms = self._elector.answers.sent_ms_of(confirmed_round)
        if sent_ms is not None:
            self._freshness.on_confirmed(sent_ms)

    # ---------------------------------------------------------------- transitions

    def on_transition(self) -> None:
        """Role, term or leader have changed."""
        self.may_grant = True
        if self._state.role is not Role.LEADER:
            self._read_index.drop_all()
        self._questions.follow(self._state.leader, self._state.term)

    def open_term(self) -> None:
        """Of a new leader, before it appends its no-op."""
        self._read_index.open_term(self._state.runs.end_index + 1)
        self.on_round_answered()

    def take_grants(self) -> tuple[ReadGrant, ...]:
        """Of this member's own reads; a leader answers its followers. Begins a round, or asks, if a read
        waits for it."""
        state = self._state
        if state.role is not Role.LEADER:
            self.may_grant = not self._questions.is_idle
            if not self.may_grant:
                return ()
            self._questions.ask()
            return tuple(self._questions.take_grants())
        self.may_grant = not self._read_index.is_idle
        if not self.may_grant:
            return ()
        if self._read_index.round_needed(self._elector.round):
            self._elector.start_round()
            self._read_index.on_round_started(self._elector.round)
            self.on_round_answered()
        grants = []
        for number, asker, index in self._read_index.take_granted(state.committed_index):
            if asker is None:
                grants.append(ReadGrant(number, index))
            else:
                answer = ReadIndexResponse(
                    sender=state.member, term=state.term, number=number, index=index
                )
                self._outbox.send(asker, answer)
        return tuple(grants)
