"""ReadQuestions: linearizable reads of a member that follows.

It asks the leader for a read index, and grants what waits once it has committed that itself. What
arrives while a question is on its way waits for the next one: the round that answers this one may have
begun before.
"""

from __future__ import annotations

from collections import deque

from quorumlog.consensus.member_state import MemberState
from quorumlog.consensus.messages import ReadIndexRequest, ReadIndexResponse
from quorumlog.consensus.outbox import Outbox
from quorumlog.consensus.ready import ReadGrant
from quorumlog.entry import Replica


class ReadQuestions:
    """To one leader in one term; one that is lost meanwhile and found again has not changed."""

    def __init__(self, state: MemberState, outbox: Outbox, repeat_ms: float) -> None:
        self._state = state
        self._outbox = outbox
        self._repeat_ms = repeat_ms
        self._followed: tuple[Replica | None, int] = (None, -1)
        self._waiting: list[int] = []
        """Reads that no question was asked for yet."""
        self._asked: list[int] = []
        """Those that the question on its way is for; empty: none is."""
        self._number = 0
        """Of the newest question of this process."""
        self._asked_ms = 0.0
        self._answered: deque[tuple[int, list[int]]] = deque()
        """(index, reads): to be granted once that is committed here."""

    def follow(self, leader: Replica | None, term: int) -> None:
        """Whoever waits for an answer of another one learns it from the change of role."""
        if leader is not None and (leader, term) != self._followed:
            self._followed = leader, term
            self._waiting, self._asked = [], []
            self._answered.clear()

    def request(self, number: int) -> None:
        self._waiting.append(number)

    @property
    def is_idle(self) -> bool:
        """Nothing is to be asked or granted: of most turns."""
        return not (self._waiting or self._answered)

    def ask(self) -> None:
        """One question for all that have come since the one before was asked."""
        if self._waiting and not self._asked and self._state.leader is not None:
            self._asked, self._waiting = self._waiting, []
            self._number += 1
            self._send()

    def repeat_if_lost(self) -> None:
        """The leader is heard, and has not answered for long: a connection may have taken it along."""
        if self._asked and self._state.now_ms - self._asked_ms >= self._repeat_ms:
            self._send()

    def _send(self) -> None:
        state = self._state
        assert state.leader is not None
        self._asked_ms = state.now_ms
        question = ReadIndexRequest(sender=state.member, term=state.term, number=self._number)
        self._outbox.send(state.leader, question)

    def on_response(self, response: ReadIndexResponse) -> None:
        if self._asked and response.number == self._number:
            self._answered.append((response.index, self._asked))
            self._asked = []

    def take_grants(self) -> list[ReadGrant]:
        granted: list[ReadGrant] = []
        while self._answered and self._answered[0][0] <= self._state.committed_index:
            index, numbers = self._answered.popleft()
            granted += [ReadGrant(number, index) for number in numbers]
        return granted
