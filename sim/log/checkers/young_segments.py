"""Young segments: no leader lets go, for its age, what is young by the time that has really gone by, and
a quorum of clocks that jumps by years makes nothing older.

A clock that is off by less than a day is taken for one that is put right, so it counts as true here.
"""

from __future__ import annotations

from bisect import bisect_left

from quorumlog.consensus.messages import PushEntryRequest
from quorumlog.consensus.ready import Envelope
from quorumlog.log_state.control_entries import Keep
from quorumlog.node.log_clock import MOST_AHEAD_MS
from quorumlog.node.log_states import controls_of
from quorumlog.node.retention import HOUR_MS
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation
from quorumlog.testing.wall_clock import BEGINNING_MS

SLACK_MS = 60_000
"""An entry was appended somewhat before it was known to be committed."""


class YoungSegments(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        storage = cluster.profile.storage
        is_age_alone = not storage.retention_bytes and not storage.compact_behind_snapshots
        self._reserved_ms = storage.file_reserved_hours * HOUR_MS if is_age_alone else 0
        """0: something else is a reason, too, and nothing is judged."""
        self._committed: list[tuple[int, float]] = []
        """(index, earliest time that it may be taken for) of the highest that was known, ascending."""

    def _times_ms(self) -> tuple[float, float]:
        """The earliest and the latest time that may be taken for the true one now."""
        true_ms = BEGINNING_MS + self.cluster.now_ms
        clocks_ms = [each.wall_clock.read_ms(self.cluster.now_ms) for each in self.cluster.members]
        near = [true_ms, *(ms for ms in clocks_ms if abs(ms - true_ms) < MOST_AHEAD_MS)]
        return min(near), max(near)

    def turned(self, member: CheckedMember) -> None:
        index = member.node.committed_index
        if self._reserved_ms and index > (self._committed[-1][0] if self._committed else -1):
            self._committed.append((index, self._times_ms()[0]))

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        message = envelope.message
        if not self._reserved_ms or not isinstance(message, PushEntryRequest) or message.batch is None:
            return
        for entry in controls_of(message.batch):
            if isinstance(entry.body, Keep) and not entry.body.forced:
                self._look(member, entry.body.keep_from_index)

    def _look(self, member: CheckedMember, keep_from_index: int) -> None:
        at = bisect_left(self._committed, (keep_from_index - 1, 0.0))
        if keep_from_index == 0 or at == len(self._committed):
            return
        index, appended_ms = self._committed[at]
        age_ms = self._times_ms()[1] - appended_ms
        if age_ms + SLACK_MS < self._reserved_ms:
            raise Violation(
                f"{member.replica} lets go what lies below {keep_from_index}; of that, entries up to"
                f" {index} are {age_ms / 1000:.1f} s old, and all is kept for"
                f" {self._reserved_ms / 1000:.0f} s"
            )
