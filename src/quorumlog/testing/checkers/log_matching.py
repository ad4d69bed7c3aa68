"""Log matching: two logs that hold an entry of the same index and term are the same up to it.

Looked at where logs end (Raft paper, figure 3). It holds in async mode too: no member leads again in
a term that it held before a restart, so no id is ever given twice.
"""

from __future__ import annotations

from quorumlog.entry import Replica
from quorumlog.store.ledger_store import LogPoint
from quorumlog.testing.checkers.checker import Checker, Violation
from quorumlog.testing.checkers.view import CheckedCluster, CheckedMember


class LogMatching(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._ends: dict[Replica, LogPoint] = {}
        self._chains: dict[tuple[int, int], tuple[int, Replica]] = {}
        """(index, term) -> chain, and whose log was the first to end there."""

    def turned(self, member: CheckedMember) -> None:
        end = member.node.store.end
        if end is self._ends.get(member.replica):
            return
        self._ends[member.replica] = end
        chain, first = self._chains.setdefault((end.index, end.term), (end.chain, member.replica))
        if chain != end.chain:
            raise Violation(
                f"{member.replica} and {first} both hold entry {end.index} of term {end.term}, but not"
                f" the same log up to it: chains {end.chain:#x} and {chain:#x}"
            )

    started = turned
