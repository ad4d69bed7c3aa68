"""MatchSearch: where the last entry that a leader's log and a follower's have in common can be at most.

Each refusal of a COMPARE rules out a whole term, ours or the follower's, so the number of rounds is
bounded by the number of terms (Raft paper, end of section 5.3). Only a follower whose log begins higher
is asked further up, once: where its log begins.
"""

from __future__ import annotations

from quorumlog.consensus.log.term_runs import TermRuns
from quorumlog.consensus.messages import PushEntryResponse


class MatchSearch:
    def __init__(self, runs: TermRuns) -> None:
        self._runs = runs
        self.index = -1
        """The entry to compare next."""
        self._their_begin = -1
        """The follower's log begins behind this entry, as far as it has said so."""
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
        """The last entry that the follower can have in common with us. Whatever the answer says, it lies
        below `index`."""
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

    def match_index(self, committed_index: int) -> int:
        """The entry at `index` is common. If it is our last one and not committed, it is pushed again:
        only an answer to an APPEND counts, and that to its first push may have been lost."""
        runs = self._runs
        is_last = self.index == runs.end_index and not self.is_at_bottom
        return self.index - 1 if is_last and self.index > committed_index else self.index
