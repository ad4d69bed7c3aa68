"""Reads: linearizable reads of a member, whatever it is; and how fresh it is without one."""

from __future__ import annotations

import math

from quorumlog.consensus.election.leader_elector import LeaderElector
from quorumlog.consensus.member_state import MemberState
from quorumlog.consensus.messages import HeartbeatRequest, ReadIndexRequest, ReadIndexResponse
from quorumlog.consensus.outbox import Outbox
from quorumlog.consensus.reading.freshness import Freshness
from quorumlog.consensus.reading.read_index import ReadIndex
from quorumlog.consensus.reading.read_questions import ReadQuestions
from quorumlog.consensus.ready import ReadGrant, Role
from quorumlog.entry import Replica
from quorumlog.errors import LeaderNotReady, NotLeader


class Reads:
    def __init__(
        self, state: MemberState, outbox: Outbox, elector: LeaderElector, heartbeat_interval_ms: int
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._elector = elector
        self._retry_ms = heartbeat_interval_ms
        self._read_index = ReadIndex()
        self._questions = ReadQuestions(state, outbox, heartbeat_interval_ms)
        self._freshness = Freshness(state)
        self._number = 0
        self.may_grant = False
        """`take_grants` may have something to do: not so in most turns."""

    # ---------------------------------------------------------------- what is asked for

    def request(self) -> int:
        """A linearizable read of this member: the number comes back in `Ready.read_grants`, or never if
        the leader changes first. Raises LeaderNotReady where nobody leads, or cannot be asked, and
        NotLeader where only the leader itself can be."""
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
                    f"{state.member.member_id} has not heard from {state.leader.member_id}, the leader,"
                    " that it answers its followers; an earlier release does not: ask the leader itself",
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
        """See `Freshness.since_ms`."""
        return self._freshness.since_ms()

    @property
    def knows_commit(self) -> bool:
        """What was committed before this member began to run is at or below its committed index: it
        leads, or a leader has told it how far the log is committed, and the log has come there."""
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
        """Of this leader: somebody has answered a round of its heartbeats."""
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
        """Of this member's own reads; a leader answers its followers. Begins a round, or asks, where
        somebody waits for it."""
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
