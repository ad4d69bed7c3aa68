"""A conditional append stands directly after the entry that it named, but for control entries; and
one that is refused was refused for an entry of data that is there.

From the first follows that of those that name the same entry one succeeds at most. What is in the log
of an append whose outcome nobody knows is held to it as well.
"""

from __future__ import annotations

from quorumlog.errors import WrongLastIndex
from quorumlog.testing.operations import ClientAppend
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, CommittedLog, Violation
from sim.log.checkers.acknowledged_appends import Found, final_entries, first_index_of_final


class ConditionalAppends(Checker):
    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log
        self._begins: set[int] = set()
        """Where the logs of members have begun: where nothing is left but control entries, the last of
        data is not above that."""

    def turned(self, member: CheckedMember) -> None:
        self._begins.add(member.node.store.begin.index)

    def appended(self, append: ClientAppend) -> None:
        error = append.outcome
        if not isinstance(error, WrongLastIndex):
            return
        self.cluster.trace.count("conditional append: refused")
        if error.expected != append.expected_last:
            raise Violation(f"append {append.number} expected {append.expected_last}: {error}")
        if self._log.forgotten_from is not None:
            return  # async mode: what was acknowledged may be gone
        if error.actual > self._log.reported_index:
            raise Violation(
                f"append {append.number} was refused for entry {error.actual}, but entries are committed"
                f" up to {self._log.reported_index} only"
            )
        if error.actual < append.acknowledged_data_index:
            raise Violation(
                f"append {append.number} was told that {error.actual} is the last entry of data, but"
                f" {append.acknowledged_data_index} had been acknowledged when it was called"
            )

    def made_whole(self) -> None:
        if self._log.forgotten_from is not None:
            return
        conditional = [a for a in self.cluster.operations.appends if a.expected_last is not None]
        if not conditional:
            return
        entries = list(final_entries(self.cluster))
        begin_index = first_index_of_final(self.cluster)
        by_body = {entry.body: at for at, entry in enumerate(entries)}
        indices = {entry.index for entry in entries}
        for append in conditional:
            at = by_body.get(append.bodies[0])
            if at != 0 or not begin_index:  # else the entry before it may be gone
                self._check_place(append, entries, at)
            error = append.outcome
            is_left = isinstance(error, WrongLastIndex) and error.actual >= begin_index
            if (
                isinstance(error, WrongLastIndex)
                and is_left
                and error.actual not in indices | self._begins
            ):
                raise Violation(f"append {append.number}: entry {error.actual} is none of data: {error}")

    def _check_place(self, append: ClientAppend, entries: list[Found], at: int | None) -> None:
        """`at`: where among `entries` the first one of `append` is; None: nowhere."""
        if at is None:
            return
        self.cluster.trace.count("conditional append: in the log")
        expected = append.expected_last
        assert expected is not None
        before = entries[at - 1].index if at else -1
        if not before <= expected < entries[at].index:
            raise Violation(
                f"append {append.number} lies at {entries[at].index}, behind entry {before} of data, but"
                f" it was to come directly behind {expected}"
            )
