"""ReadIndex: linearizable reads without writing (Raft paper, section 8; Ongaro's thesis, 6.4).

A read may be served at the committed index of the moment it was asked for, once a majority has
answered a heartbeat round that began later: then no newer leader can have committed anything before
the read was asked for. Reads that arrive while a round is on its way share the next one.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from quorumlog.entry import Replica


class Asked(NamedTuple):
    """`number`: of this member's own read, or of the question of the follower `asker`."""

    number: int
    asker: Replica | None
    read_index: int
    """Everything acknowledged before it was asked is at or below."""


class ReadIndex:
    """The reads of one term of leadership, in the order they were asked for."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Asked, int]] = deque()
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
        """Leadership is lost: whoever waits learns it from the change of role."""
        self._waiting.clear()

    def request(
        self, number: int, committed_index: int, current_round: int, asker: Replica | None = None
    ) -> None:
        index = max(committed_index, self._term_first_index)
        self._waiting.append((Asked(number, asker, index), current_round + 1))

    def forget(self, asker: Replica) -> None:
        """What this follower asks now is another process' question, perhaps under the same number."""
        self._waiting = deque(each for each in self._waiting if each[0].asker != asker)

    @property
    def is_idle(self) -> bool:
        """Nobody waits: of most turns."""
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

    def take_granted(self, committed_index: int) -> list[Asked]:
        granted = []
        while (
            self._waiting
            and self._waiting[0][1] <= self._confirmed_round
            and self._waiting[0][0].read_index <= committed_index
        ):
            granted.append(self._waiting.popleft()[0])
        return granted
