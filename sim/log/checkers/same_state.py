"""Same state: members whose logs end with the same entry, or that have committed up to it, or have saved
the state before a segment there, make the same of the control entries up to there, to the byte."""

from __future__ import annotations

from quorumlog.entry import EntryId, Replica
from quorumlog.log_state.log_state import AnyState, LogState
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation


class SameState(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._seen: dict[tuple[Replica, str], tuple[AnyState, int]] = {}
        """(state, index) that was looked at last."""
        self._records: dict[EntryId, tuple[bytes, Replica]] = {}
        """An entry -> the state up to it, and who was the first to say so."""

    def started(self, member: CheckedMember) -> None:
        for saved in member.node.store.boundaries.saved():
            entry = saved.point.entry_id
            self._compare(entry, saved.record, member.replica, "saved")

    def turned(self, member: CheckedMember) -> None:
        node = member.node
        states = node.log_state.states
        if states is not None:
            self._look(member, "whole", states.appended, node.store.end.index)
            self._look(member, "committed", states.committed, states.committed_index)

    def _look(self, member: CheckedMember, which: str, state: AnyState, index: int) -> None:
        if (state, index) == self._seen.get((member.replica, which)) or not isinstance(state, LogState):
            return
        self._seen[member.replica, which] = state, index
        entry = EntryId(index, member.node.raft.term_at(index))
        self._compare(entry, state.encode(), member.replica, which)

    def _compare(self, entry: EntryId, record: bytes, replica: Replica, which: str) -> None:
        known, first = self._records.setdefault(entry, (record, replica))
        if known != record:
            raise Violation(
                f"up to entry {entry} the {which} log of {replica} leads to the state {record!r},"
                f" by {first} to {known!r}"
            )
