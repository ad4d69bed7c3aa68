"""ReadIndex: linearizable reads without writing (Raft paper, section 8; Ongaro's thesis, 6.4).

A read may be served at the committed index of the moment it was asked for, once a majority has
answered a heartbeat round that began later: then no newer leader can have committed anything before
the read was asked for. Reads that arrive while a round is on its way share the next one.
"""

from __future__ import annotations

from collections import deque

from quorumlog.consensus.ready import ReadGrant


class ReadIndex:
    """The reads of one term of leadership, in the order they were asked for."""

    def __init__(self) -> None:
        self._next_number = 1
        self._waiting: deque[tuple[int, int, int]] = deque()
        """(number, index, round): to be granted once `round` is confirmed and `index` committed."""
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
        """Leadership is lost: whoever waits learns it from the change of role."""
        self._waiting.clear()

    def request(self, committed_index: int, current_round: int) -> int:
        number = self._next_number
        self._next_number += 1
        index = max(committed_index, self._term_first_index)
        self._waiting.append((number, index, current_round + 1))
        return number

    def round_needed(self, current_round: int) -> bool:
        return (
            bool(self._waiting)
            and self._waiting[-1][2] > current_round
            and self._confirmed_round >= self._round_on_its_way
        )

    def on_round_started(self, number: int) -> None:
        self._round_on_its_way = number

    def confirm(self, round_number: int) -> None:
        """A majority has answered this round or a later one."""
        self._confirmed_round = max(self._confirmed_round, round_number)

    def take_grants(self, committed_index: int) -> tuple[ReadGrant, ...]:
        grants = []
        while (
            self._waiting
            and self._waiting[0][2] <= self._confirmed_round
            and self._waiting[0][1] <= committed_index
        ):
            number, index, _ = self._waiting.popleft()
            grants.append(ReadGrant(number, index))
        return tuple(grants)
