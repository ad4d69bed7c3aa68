"""A term begins with a candidate that votes for itself in it; nobody else brings one into the world.

So whoever stores a term stores one that a candidate has opened, and whoever votes votes for a member
that asks to be elected in that very term. A pre-vote does neither (Ongaro's thesis, 9.6).
"""

from __future__ import annotations

from quorumlog.consensus.ready import Ready
from quorumlog.entry import Replica
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation


class TermOrigin(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._candidates: dict[int, set[Replica]] = {0: set()}
        """Who has voted for itself, by term; a new directory holds term 0."""

    def ready(self, member: CheckedMember, ready: Ready) -> None:
        state = ready.hard_state
        if state is None:
            return
        if state.voted_for == member.replica:
            self._candidates.setdefault(state.term, set()).add(member.replica)
        candidates = self._candidates.get(state.term)
        if candidates is None:
            raise Violation(f"{member.replica} stores {state}, a term for which nobody has stood")
        if state.voted_for is not None and state.voted_for not in candidates:
            raise Violation(f"{member.replica} stores {state}; candidates in that term are {candidates}")
