"""Readable logs: no member has an entry of a level of the format that its release does not know. Who
was removed, or is no member yet, may be sent some; its release refuses them."""

from __future__ import annotations

from quorumlog.testing.promises import CheckedMember, Checker, Violation


class ReadableLogs(Checker):
    def turned(self, member: CheckedMember) -> None:
        state, members = member.node.log_state.appended, member.node.raft.status().membership.members()
        if state is not None and state.level > member.level and member.replica in members:
            raise Violation(
                f"{member.replica} has entries of level {state.level}, and its release knows up to"
                f" level {member.level}"
            )

    started = turned
