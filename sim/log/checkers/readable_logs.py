"""Readable logs: no member has an entry of a level of the format that its release does not know."""

from __future__ import annotations

from quorumlog.testing.promises import CheckedMember, Checker, Violation


class ReadableLogs(Checker):
    def turned(self, member: CheckedMember) -> None:
        state = member.node.log_state.appended
        if state is not None and state.level > member.level:
            raise Violation(
                f"{member.replica} has entries of level {state.level}, and its release knows up to"
                f" level {member.level}"
            )

    started = turned
