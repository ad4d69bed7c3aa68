"""CatchUpPace: how much a follower far behind is sent while the leader takes appends.

At full speed it cost 256 writers half of their throughput. So while appends come in, such a follower
gets two bytes for each byte appended, which makes up for a lag in the time in which it arose, and a
configured rate beside that; while none do, all that it can take.
"""

from __future__ import annotations

from quorumlog.config import MIB
from quorumlog.entry import Replica

BYTES_PER_APPENDED_BYTE = 2
SAVED_PIECES = 8
"""Saved up at least, and what the largest turn of appends has earned: it must outlast a burst."""
MOST_SAVED_BYTES = 64 * MIB
BUSY_MS = 50.0
"""The leader takes appends, if the last one is not older."""


class CatchUpPace:
    def __init__(
        self, least_bytes_per_second: int, piece_bytes: int, now_ms: float, end_position: int
    ) -> None:
        self._least_bytes_per_ms = least_bytes_per_second / 1000
        self._saved_bytes = SAVED_PIECES * piece_bytes
        self._now_ms = now_ms
        self._end_position = end_position
        self._busy_until_ms = now_ms
        self._earned_bytes = 0.0
        """What a follower might have been sent while this member led, had it always been busy."""
        self._spent_bytes: dict[Replica, float] = {}
        """As far as what each was sent reaches on that scale; what it left unused counts up to
        `_saved_bytes`."""

    def configure(self, least_bytes_per_second: int) -> None:
        self._least_bytes_per_ms = least_bytes_per_second / 1000

    def begin(self, now_ms: float, end_position: int) -> None:
        """This member leads from now on: what others have appended is no load of its own."""
        self._now_ms = now_ms
        self._end_position = end_position

    def observe(self, now_ms: float, end_position: int) -> None:
        """With each turn of a leader. `end_position`: where the log ends now; so what was appended."""
        appended_bytes = end_position - self._end_position
        elapsed_ms = now_ms - self._now_ms
        self._now_ms = now_ms
        self._end_position = end_position
        self._earned_bytes += self._least_bytes_per_ms * elapsed_ms
        if appended_bytes > 0:
            earned_bytes = BYTES_PER_APPENDED_BYTE * appended_bytes
            self._earned_bytes += earned_bytes
            self._saved_bytes = max(self._saved_bytes, min(earned_bytes, MOST_SAVED_BYTES))
            self._busy_until_ms = now_ms + BUSY_MS

    def is_open(self, replica: Replica) -> bool:
        return self.next_ms(replica) <= self._now_ms

    def next_ms(self, replica: Replica) -> float:
        """When the next piece may be read for this follower, if nothing is appended until then."""
        ahead_bytes = self._spent_bytes.get(replica, 0.0) - self._earned_bytes
        if ahead_bytes <= 0 or self._now_ms >= self._busy_until_ms:
            return self._now_ms
        return min(self._now_ms + ahead_bytes / self._least_bytes_per_ms, self._busy_until_ms)

    def spend(self, replica: Replica, size_bytes: int) -> None:
        """A piece of this size is read for it now."""
        spent_bytes = self._earned_bytes - self._saved_bytes
        if self._now_ms < self._busy_until_ms:
            spent_bytes = max(spent_bytes, self._spent_bytes.get(replica, 0.0))
        self._spent_bytes[replica] = spent_bytes + size_bytes
