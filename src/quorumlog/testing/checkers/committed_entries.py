"""What is committed stays: each index gets one (term, chain) for ever, whoever says so.

Looked at whenever a member's committed index has moved, and once after each of its starts. The chain
at that index vouches for everything below it (committed_log.py).
"""

from __future__ import annotations

from quorumlog.entry import Replica
from quorumlog.testing.checkers.checker import Checker, Violation
from quorumlog.testing.checkers.committed_log import CommittedLog, EntryMark, mark_at
from quorumlog.testing.checkers.view import CheckedCluster, CheckedMember


class CommittedEntries(Checker):
    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log
        self._looked: dict[Replica, int] = {}
        """The committed index of each directory's process that was last compared."""

    def started(self, member: CheckedMember) -> None:
        self._looked.pop(member.replica, None)

    def look_at(self, member: CheckedMember) -> None:
        """Compare what the member says to be committed, and note what nobody has said before."""
        index = member.node.committed_index
        self._log.told_index = max(self._log.told_index, index)
        if index == self._looked.get(member.replica, -1):
            return
        known_index = min(index, self._log.end_index)
        if known_index >= 0:
            held = mark_at(member.node.store, known_index)
            if held is None:
                return  # unreadable here: the next index may not be
            if held != self._log.at(known_index) and not self._is_replaced(member, known_index):
                self._looked[member.replica] = index
                return
        self._looked[member.replica] = index
        for new_index in range(self._log.end_index + 1, index + 1):
            mark = mark_at(member.node.store, new_index)
            if mark is None:
                shown = mark_at(member.node.store, index)
                if shown is not None:
                    self._log.claim(index, shown)
                return
            self._log.append(mark, member.node.raft.term)

    turned = look_at
    stopped = look_at
    """What it told others in the turn that killed it counts."""

    def _is_replaced(self, member: CheckedMember, index: int) -> bool:
        """Raise Violation unless a power loss explains the difference; True if the member speaks for
        the later leader, whose log counts from now on."""
        first_index, held = self._first_difference(member, index)
        known = self._log.at(first_index)
        term, committed_in = member.node.raft.term, self._log.committed_in(first_index)
        if first_index < self._log.safe_stop_index:
            raise Violation(
                f"entry {first_index} was committed in term {committed_in} as {known}; {member.replica}"
                f" in term {term} holds {held} there and says that {index} is committed (async lost"
                f" from: {self._log.forgotten_from})"
            )
        if term <= committed_in:
            return False
        self._log.replace_from(first_index)
        return True

    def _first_difference(self, member: CheckedMember, index: int) -> tuple[int, EntryMark | None]:
        """`index` is one; the lowest one that can be read."""
        store = member.node.store
        held = mark_at(store, index)
        while index > 0:
            below = mark_at(store, index - 1)
            if below is None or below == self._log.at(index - 1):
                break
            index, held = index - 1, below
        return index, held
