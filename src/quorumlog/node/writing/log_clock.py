"""LogClock: how far a quorum's clocks are believed. Values in, values out: it reads no clock itself.

A time that the clocks of a quorum have reached may still be wrong by years, where one wrong server set
them all. What a member knows by itself is how long its own monotonic clock has run since it saw the last
time mark:

    seen live      the mark came as it was written. A time more than a day above (the mark + what the
                   monotonic clock has run since) is believed by nobody, however long it lasts
    found          the mark was there at the start, or came with older entries: it may be of last year.
                   A later time is believed once the clocks of a quorum have held it for ten minutes
    none           a log without a mark believes any time

`quorumlog clock reset` (a CLOCK entry) is a mark, too, and so the way out of all of this.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_AHEAD_MS = 24 * 3_600_000
"""Clocks may be corrected by so much, or be wrong by it."""
HELD_MS = 10 * 60_000
AGREES_MS = 60_000
"""So far a time that is held may move against the monotonic clock."""
MOST_SEEN = 16
"""Marks that are remembered, in case the newest are cut off again."""


class SeenMark(NamedTuple):
    at_index: int
    time_ms: int
    seen_ms: float
    """By this member's monotonic clock: it was written then, or before."""
    is_live: bool


class _Held(NamedTuple):
    time_ms: int
    since_ms: float


class LogClock:
    def __init__(self) -> None:
        self._seen: list[SeenMark] = []
        """By index; those that the log does not hold any more are found out by the next one."""
        self._held: _Held | None = None
        """A time that is not believed yet, and since when the clocks have told it."""

    def see(self, index: int, time_ms: int, now_ms: float, *, is_live: bool) -> None:
        """The last mark of this member's log, whenever it is looked at. `is_live`: it is being written
        just now."""
        while self._seen and self._seen[-1].at_index > index:
            self._seen.pop()
        if self._seen and self._seen[-1][:2] == (index, time_ms):
            return
        self._seen.append(SeenMark(index, time_ms, now_ms, is_live))
        del self._seen[:-MOST_SEEN]

    def look(self, clock_ms: int, now_ms: float) -> None:
        """`clock_ms`: of a quorum, as this leader knows it now; -1: not known, or this is no leader."""
        last = self._seen[-1] if self._seen else None
        if clock_ms < 0 or last is None or last.is_live or clock_ms <= _bound_ms(last, now_ms):
            self._held = None
            return
        held = self._held
        if held is None or abs(clock_ms - held.time_ms - (now_ms - held.since_ms)) > AGREES_MS:
            self._held = _Held(clock_ms, now_ms)

    def believes(self, clock_ms: int, now_ms: float) -> bool:
        """Whether a mark may say so. `look` has been told of this time."""
        if not self._seen or clock_ms <= _bound_ms(self._seen[-1], now_ms):
            return True
        return self._held is not None and now_ms - self._held.since_ms >= HELD_MS

    def time_ms(self, clock_ms: int, now_ms: float) -> int:
        """What time it is, for ages: never above what is believed. -1: not known."""
        if clock_ms < 0 or self.believes(clock_ms, now_ms):
            return clock_ms
        last = self._seen[-1]
        return int(last.time_ms + now_ms - last.seen_ms) if last.is_live else -1

    @property
    def is_waiting(self) -> bool:
        """A time that the clocks tell will be believed if they hold it."""
        return self._held is not None


def _bound_ms(last: SeenMark, now_ms: float) -> float:
    return last.time_ms + (now_ms - last.seen_ms) + MOST_AHEAD_MS
