"""With `retention = archived` no member deletes what no archive of its own log has taken."""

from __future__ import annotations

from quorumlog.errors import LedgerError, StoreFailure
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Violation
from sim.log.checkers.log_checker import LogChecker
from sim.log.operations import ClientMove


class ArchivedSegments(LogChecker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._ends: set[tuple[int, int]] = set()
        """(position, chain of the entry before it) of all that archives have ever said."""
        self._begins: dict[str, int] = {}

    def reader_asked(self, request: ClientMove) -> None:
        move = request.move
        if move.position is not None and move.last_chain is not None:
            self._ends.add((move.position, move.last_chain))

    def turned(self, member: CheckedMember) -> None:
        if self.cluster.profile.storage.retention != "archived" or self.cluster.profile.is_async:
            return
        store, name = member.node.store, str(member.replica)
        first_index = store.begin.index + 1
        if first_index > self._begins.setdefault(name, 0):
            self._begins[name] = first_index
            if not any(self._is_of(member, *end) for end in self._ends if end[0] >= first_index):
                raise Violation(
                    f"the log of {name} begins at {first_index}, and no archive that reaches that far"
                    " ends with the chain of that log"
                )

    def _is_of(self, member: CheckedMember, position: int, chain: int) -> bool:
        store = member.node.store
        if position - 1 > store.end.index:
            return True  # it was given the start of the log, and lacks that entry still
        try:
            return store.point_on_disk(position - 1).chain == chain
        except (LedgerError, StoreFailure):
            return True  # it cannot be looked at
