"""No member deletes what a reader holds, what the log does not let go, or what a follower lacks that is
within its budget."""

from __future__ import annotations

from quorumlog.consensus.ready import Role
from quorumlog.errors import LedgerError, StoreFailure
from quorumlog.log_state.control_entries import Hold
from quorumlog.log_state.log_state import LogState
from quorumlog.node.log_states import membership_of
from quorumlog.store.log_points import LogStart
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation


class HeldSegments(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._committed: tuple[int, LogState] | None = None
        """Of the member that knew of most."""
        self._end_position = 0
        """Of the longest log that there ever was."""

    def turned(self, member: CheckedMember) -> None:
        if not self.cluster.profile.has_retention or self.cluster.profile.is_async:
            return
        node = member.node
        self._end_position = max(self._end_position, node.store.end.position)
        states = node.log_state.states
        if states is not None and isinstance(states.committed, LogState):
            known = self._committed
            if known is None or known[0] < states.committed_index:
                self._committed = states.committed_index, states.committed
        if self._committed is not None:
            self._look(member, self._committed[1])

    def _look(self, member: CheckedMember, state: LogState) -> None:
        first_index = member.node.store.begin.index + 1
        if first_index > state.keep_from_index:
            raise Violation(
                f"the log of {member.replica} begins at {first_index}, and by what is committed nothing"
                f" from {state.keep_from_index} on may be deleted"
            )
        for reader in state.readers:
            if reader.hold is not Hold.NONE and first_index > reader.position:
                raise Violation(
                    f"the log of {member.replica} begins at {first_index}; reader {reader.name} holds"
                    f" what lies from {reader.position} on"
                )

    def replacing(self, member: CheckedMember, start: LogStart) -> None:
        profile, node = self.cluster.profile, member.node
        if not profile.has_retention or profile.is_async or node.raft.role is Role.OBSERVER:
            return
        membership = None if self._committed is None else self._committed[1].membership
        if membership is not None and not membership_of(membership).is_voter(member.replica):
            return  # it was removed while it was away
        try:
            position = node.store.point_on_disk(node.committed_index).position
        except (LedgerError, StoreFailure):
            return  # who cannot read its own log is to be judged by nothing here
        lacks_bytes = self._end_position - position
        if lacks_bytes < profile.retention_follower_budget_bytes:
            raise Violation(
                f"{member.replica} is given the start of the log at {start.point.index + 1}; it lacks"
                f" {lacks_bytes} bytes at most, and up to {profile.retention_follower_budget_bytes} it"
                " is waited for"
            )
