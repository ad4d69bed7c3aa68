"""HeartbeatAnswers: who has answered this leader, when, which round, and by which clock. The membership
that holds when it is asked says whose answers count."""

from __future__ import annotations

import math

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.member_state import MemberState
from quorumlog.consensus.messages import HeartbeatResponse
from quorumlog.entry import Replica

LONG_AGO_MS = -math.inf


class HeartbeatAnswers:
    """Of the term that this member leads; who would not take over is remembered beyond."""

    def __init__(self, config: ConsensusConfig, state: MemberState) -> None:
        self._config = config
        self._state = state
        self._begun_ms = LONG_AGO_MS
        self._answered_ms: dict[Replica, float] = {}
        self._answered_round: dict[Replica, int] = {}
        self._told_clock: dict[Replica, tuple[int, float]] = {}
        """(what its wall clock said, when that came), of the newest round that each has answered."""
        self._sent_ms: dict[int, float] = {}
        """When each round from the newest confirmed one on was sent."""
        self._kept_back: set[Replica] = set()
        """Who said in its newest answer that it would not take over."""
        self._without_machines: set[Replica] = set()
        """And who that not all state machines run there."""

    def begin(self) -> None:
        """Elected: everybody counts as just heard."""
        self._begun_ms = self._state.now_ms
        self._answered_ms.clear()
        self._answered_round.clear()
        self._told_clock = {}
        self._sent_ms = {}

    def on_round(self, number: int) -> None:
        """It is sent in this turn."""
        self._sent_ms[number] = self._state.now_ms

    def sent_ms_of(self, confirmed_round: int) -> float | None:
        """None: no round is confirmed. Rounds below are asked for no more."""
        for number in [n for n in self._sent_ms if n < confirmed_round]:
            del self._sent_ms[number]
        return self._sent_ms.get(confirmed_round)

    def fresh_round(self, newest_round: int) -> int:
        """The newest that is confirmed, once this leader knows what is committed; 0: none."""
        return self.confirmed_round(newest_round) if self._state.has_committed_in_its_term else 0

    def take(self, response: HeartbeatResponse, newest_round: int, *, counts: bool) -> None:
        """`counts`: it confirms that nobody else leads."""
        if response.accepted:
            keep = self._kept_back.discard if response.takes_over else self._kept_back.add
            keep(response.sender)
            note = (
                self._without_machines.discard if response.runs_machines else self._without_machines.add
            )
            note(response.sender)
            self._answered_ms[response.sender] = self._state.now_ms
            if counts and self.round_of(response.sender) < response.round <= newest_round:
                self._answered_round[response.sender] = response.round
                self._told_clock[response.sender] = response.clock_ms, self._state.now_ms

    def forget(self, replica: Replica) -> None:
        for answers in (self._answered_ms, self._answered_round, self._told_clock):
            answers.pop(replica, None)

    def has_live_quorum(self) -> bool:
        """A majority, this leader included, has answered within the election time-out."""
        state = self._state
        answered_ms = {**self._answered_ms, state.member: state.now_ms}
        silent_ms = state.now_ms - state.membership.quorum_value(answered_ms, self._begun_ms)
        return silent_ms < self._config.election_timeout_ms

    def confirmed_round(self, newest_round: int) -> int:
        """The newest heartbeat round that a majority has answered."""
        state = self._state
        return int(
            state.membership.quorum_value({**self._answered_round, state.member: newest_round}, 0)
        )

    def round_of(self, replica: Replica) -> int:
        """The newest that it has answered; 0: none."""
        return self._answered_round.get(replica, 0)

    def quorum_clock_ms(self) -> int:
        """A time that the wall clocks of a quorum have reached: of three the median. -1 while too few
        have told theirs.

        A clock counts as it was told, however long ago. An older answer can make this late, as a clock
        that stands still does, but never early; and to add this member's own time to it would make
        everything depend on the one clock again.
        """
        state = self._state
        clocks = dict.fromkeys(state.membership.voters(), -1)
        clocks |= {replica: clock_ms for replica, (clock_ms, _) in self._told_clock.items()}
        clocks[state.member] = state.clock_ms
        return int(state.membership.quorum_value(clocks))

    def clocks_ms(self) -> dict[Replica, int]:
        """What the wall clock of each voter that answers says now, by what it has said last."""
        state = self._state
        clocks = {
            voter: int(clock_ms + state.now_ms - told_ms)
            for voter, (clock_ms, told_ms) in self._told_clock.items()
            if clock_ms >= 0 and state.membership.is_voter(voter) and self.is_live(voter)
        }
        if state.membership.is_voter(state.member) and state.clock_ms >= 0:
            clocks[state.member] = state.clock_ms
        return clocks

    def is_live(self, voter: Replica) -> bool:
        answered = self._answered_ms.get(voter, self._begun_ms)
        return self._state.now_ms - answered < self._config.election_timeout_ms

    def ages_ms(self) -> dict[Replica, float]:
        """How long ago each has answered last, of those that have."""
        return {each: self._state.now_ms - at_ms for each, at_ms in self._answered_ms.items()}

    def takes_over(self, voter: Replica) -> bool:
        return voter not in self._kept_back

    def runs_machines(self, voter: Replica) -> bool:
        return voter not in self._without_machines
