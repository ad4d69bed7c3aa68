"""Freshness: since when this member may have missed something. No message is sent for it.

A leader whose round of heartbeats a quorum has answered led when it sent that round: all that anybody
had acknowledged by then is at or below what it has committed, once that is an entry of its own term. Its
heartbeats tell both, the round and the index, and whoever has committed so far is as fresh.

What a follower does not know is when a round was *sent*: by its own clock, heartbeats may have been on
their way for long. But each names the newest round that this member had answered by then. So it was sent
after that answer, whose time this member has noted; the age that follows is a little too high, and never
too low. No clock is compared with another one.
"""

from __future__ import annotations

import math
from collections import deque

from quorumlog.consensus.member_state import MemberState
from quorumlog.consensus.messages import HeartbeatRequest
from quorumlog.entry import Replica

MOST_ROUNDS = 64
"""Remembered of each kind: rounds are confirmed within a few. What falls out makes the age higher."""


class Freshness:
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
        self._told: deque[tuple[int, float]] = deque()
        """(committed index of the leader, since when): fresh once that is committed here."""
        self._tells = False
        """So does who is followed: it is of a release that answers its followers' questions, too."""

    @property
    def leader_tells(self) -> bool:
        """The leader has said in a heartbeat that it answers questions."""
        return self._tells and self._followed == (self._state.leader, self._state.term)

    def since_ms(self) -> float:
        """All that anybody had acknowledged before is at or below the committed index of this member;
        -inf while nothing is known."""
        while self._told and self._told[0][0] <= self._state.committed_index:
            self._settle(*self._told.popleft())
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
            self._told.clear()
        self._tells = request.confirmed_round >= 0
        if request.answered_round >= 0 and request.round > self._newest_round:
            self._newest_round = request.round
            self._note_round(request)
        since_ms = self._sent_after(request.confirmed_round)
        if since_ms > -math.inf:
            if len(self._told) >= MOST_ROUNDS:
                self._told.pop()  # those in front come true first
            self._told.append((request.committed_index, since_ms))

    def _note_round(self, request: HeartbeatRequest) -> None:
        answered = self._answered_ms
        sent_after_ms = answered.get(request.answered_round)
        if sent_after_ms is not None:
            self._rounds.append((request.round, sent_after_ms))
            if len(self._rounds) > MOST_ROUNDS:
                self._rounds.popleft()
        for number in [n for n in answered if n < request.answered_round]:
            del answered[number]
        if len(answered) >= MOST_ROUNDS:
            del answered[next(iter(answered))]
        answered[request.round] = self._state.now_ms

    def _sent_after(self, confirmed_round: int) -> float:
        """A time before that round was sent; -inf: it is not known."""
        rounds = self._rounds
        while len(rounds) > 1 and rounds[1][0] <= confirmed_round:
            rounds.popleft()
        return rounds[0][1] if rounds and rounds[0][0] <= confirmed_round else -math.inf
