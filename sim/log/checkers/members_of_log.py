"""The core counts by the memberships that the log holds: those of its control entries, none that was
cut."""

from __future__ import annotations

from quorumlog.log_state.log_state import LogState
from quorumlog.node.log_states import membership_of
from quorumlog.testing.promises import CheckedMember, Checker, Violation


class MembersOfLog(Checker):
    def turned(self, member: CheckedMember) -> None:
        states = member.node.log_state.states
        if states is None or not isinstance(states.appended, LogState):
            return
        body, index = states.appended.membership, states.appended.membership_index
        raft = member.node.raft
        found = raft._state.log.memberships.holding_at(raft.ledger_end.index)
        if body is None:
            if found[0] != -1:
                raise Violation(f"{member.replica} counts by {found}; its log names no membership")
        elif found != (index, membership_of(body)):
            raise Violation(f"{member.replica} counts by {found}; its log holds {body} at {index}")
