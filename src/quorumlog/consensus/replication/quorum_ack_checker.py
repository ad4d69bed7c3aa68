"""Who has acknowledged how far in this term, and what is therefore committed.

Raft paper, section 5.4.2: only entries of the leader's own term are committed by counting replicas;
what lies below them is committed with them. (DLedger 0.3 counts entries of older terms, the paper's
figure 8; docs/divergence.md, W3.)
"""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.consensus.membership import Membership
from quorumlog.entry import Replica


class PeerWaterMarks:
    """Highest index that each voter has on disk as part of this term's log; -1: nothing yet."""

    def __init__(self, term: int, membership: Callable[[], Membership]) -> None:
        """`membership`: the one that holds when it is asked; it may change within the term."""
        self.term = term
        self._membership = membership
        self._marks: dict[Replica, int] = {}

    def raise_to(self, replica: Replica, index: int) -> bool:
        """False if the mark stays: an older answer, or a sender that is no voter."""
        if index <= self._marks.get(replica, -1) or not self._membership().is_voter(replica):
            return False
        self._marks[replica] = index
        return True

    def lower_to(self, replica: Replica, index: int) -> None:
        """A disk turned out to hold less than it was counted for: this leader's own for damage, another
        one for a power loss under `flush = async`. What was committed by then stays committed."""
        mark = self._marks.get(replica)
        if mark is not None and index < mark:
            self._marks[replica] = index

    def forget(self, replica: Replica) -> None:
        self._marks.pop(replica, None)

    def mark_of(self, replica: Replica) -> int:
        return self._marks.get(replica, -1)

    @property
    def quorum_index(self) -> int:
        return int(self._membership().quorum_value(self._marks, -1))


class QuorumAckChecker:
    """Of one term: an acknowledgement speaks of the log of the leader that it was given to."""

    def __init__(self, term: int, membership: Callable[[], Membership], first_index: int) -> None:
        """`first_index`: of the no-op that opens the term; nothing below it is counted."""
        self.marks = PeerWaterMarks(term, membership)
        self.first_index = first_index

    def committed_index(self) -> int:
        """The quorum index if it names an entry of this term, else -1."""
        index = self.marks.quorum_index
        return index if index >= self.first_index else -1
