"""The log's clock: which clocks are believed, and when a time mark is written."""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Role
from quorumlog.entry import EntryKind
from quorumlog.errors import LedgerError
from quorumlog.figures import now
from quorumlog.log_state.control_entries import MOST_MS, TimeMark
from quorumlog.log_state.log_state import LogState
from quorumlog.node.log_states import LogStateKeeper

# ---------------------------------------------------------------- LogClock
# How far a quorum's clocks are believed. Values in, values out: it reads no clock itself.
#
# A time that the clocks of a quorum have reached may still be wrong by years, where one wrong server
# set them all. What a member knows by itself is how long its own monotonic clock has run since it saw
# the last time mark:
#
#     seen live      the mark came as it was written. A time more than a day above (the mark + what the
#                    monotonic clock has run since) is believed by nobody, however long it lasts
#     found          the mark was there at the start, or came with older entries: it may be of last year.
#                    A later time is believed once the clocks of a quorum have held it for ten minutes
#     none           a log without a mark believes any time
#
# `quorumlog clock reset` (a CLOCK entry) is a mark, too, and so the way out of all of this.

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


class _HeldTime(NamedTuple):
    time_ms: int
    since_ms: float


class LogClock:
    def __init__(self) -> None:
        self._seen: list[SeenMark] = []
        """By index; those that the log does not hold any more are found out by the next one."""
        self._held: _HeldTime | None = None
        """A time that is not accepted yet, and since when the clocks have shown it."""

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
            self._held = _HeldTime(clock_ms, now_ms)

    def believes(self, clock_ms: int, now_ms: float) -> bool:
        """Whether a mark may carry this time, which `look` has seen."""
        if not self._seen or clock_ms <= _bound_ms(self._seen[-1], now_ms):
            return True
        return self._held is not None and now_ms - self._held.since_ms >= HELD_MS

    def time_ms(self, clock_ms: int, now_ms: float) -> int:
        """The time for ages: never above the believed time. -1: not known."""
        if clock_ms < 0 or self.believes(clock_ms, now_ms):
            return clock_ms
        last = self._seen[-1]
        return int(last.time_ms + now_ms - last.seen_ms) if last.is_live else -1

    @property
    def is_waiting(self) -> bool:
        """The clocks report a time that will be believed if they keep to it."""
        return self._held is not None


def _bound_ms(last: SeenMark, now_ms: float) -> float:
    return last.time_ms + (now_ms - last.seen_ms) + MOST_AHEAD_MS


# ---------------------------------------------------------------- TimeMarks
# When a leader writes a time mark, and what it says.
#
# Entries carry no time of their own. A TIME entry stands before the first data that is written a
# second or more after the mark before it, as a quorum of clocks has it, and holds for all that follows.
# So nothing is written while nobody appends, and there is no timer.
#
# A mark is a time that the wall clocks of a quorum have reached: one that runs years ahead moves
# nothing, and one that stands still keeps nothing from moving. Within a run of the log, its uncommitted
# end included, marks rise: where the clocks say less than the last mark, none is written until they
# have passed it. What they say a day too early is no mark either (`LogClock`): a quorum's may be wrong,
# too.

MARK_INTERVAL_MS = 1000
"""Between two marks, by their times."""
LOOK_MS = 50
"""So long the clocks are not asked again where a mark is not due: a batch must not pay for it."""
NOTABLE_S = 60
"""Seconds by which a quorum of clocks may lag the last mark before it is reported."""
WAY_OUT = "set the members' clocks right, then let the log take their time with quorumlog clock reset"


class TimeMarks:
    def __init__(self, raft: RaftNode, log_state: LogStateKeeper) -> None:
        self._raft = raft
        self._log_state = log_state
        self._clock = LogClock()
        self._now_ms = self._next_due_ms = self._next_look_ms = 0.0

    def written(self, state: LogState) -> None:
        """A mark, or a reset, was appended in this turn."""
        assert state.time_ms is not None, state
        index, raft = state.time_index, self._raft
        # What an earlier leader wrote may be of last month, and its being committed nobody has told yet.
        is_live = index > raft.leader_committed_index and raft.term_at(index) == raft.term
        self._clock.see(index, state.time_ms, self._now_ms, is_live=is_live)

    def tick(self, now_ms: float) -> None:
        """Each turn begins so."""
        self._now_ms = now_ms
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + LOOK_MS
            self._look()

    def _look(self) -> int:
        """What the clocks of a quorum say; -1: not known, or this is no leader."""
        state = self._log_state.appended
        if state is not None and state.time_ms is not None:
            self._clock.see(state.time_index, state.time_ms, self._now_ms, is_live=False)
        clock_ms = self._raft.answers.quorum_clock_ms() if self._raft.role is Role.LEADER else -1
        self._clock.look(clock_ms, self._now_ms)
        return clock_ms

    @property
    def log_clock_ms(self) -> int:
        """The time for ages of entries, as far as this leader believes the clocks of
        a quorum; -1: not known."""
        return self._clock.time_ms(self._look(), self._now_ms)

    def stamp_ms(self, wall_clock_ms: int) -> int:
        """The time stamped into data: this machine's clock, unless the log's time is
        well below it. Where the log's is not known, the clock is as good as anything."""
        log_ms = self.log_clock_ms
        is_near = log_ms < 0 or wall_clock_ms <= log_ms + NOTABLE_S * 1000
        return wall_clock_ms if is_near else log_ms

    def due(self, now_ms: float) -> TimeMark | None:
        """The mark for the entries that this leader is about to write. None: the last one is recent
        enough, too few clocks are known, or a member's release does not know marks."""
        if now_ms < self._next_due_ms:
            return None
        clock_ms, state = self._look(), self._log_state.appended
        if state is None or not 0 <= clock_ms <= MOST_MS:
            return None
        last_ms = state.time_ms
        if last_ms is not None and clock_ms < last_ms + MARK_INTERVAL_MS:
            self._next_due_ms = now_ms + LOOK_MS
            return None
        if not self._clock.believes(clock_ms, self._now_ms):
            return None
        mark = TimeMark(clock_ms)
        try:
            self._log_state.admit_own(EntryKind.TIME)
        except LedgerError:
            return None
        return mark

    @property
    def problem(self) -> str:
        """In a sentence, of a leader; empty if there is none."""
        clock_ms, state = self._look(), self._log_state.appended
        if state is None or state.time_ms is None or clock_ms < 0:
            return ""
        ahead_s = (state.time_ms - clock_ms) / 1000
        if ahead_s > NOTABLE_S:
            return (
                f"the time of the log is ahead of the clocks of a quorum{now(f'{ahead_s:.0f} s')}, and"
                f" does not advance until they have passed it: {WAY_OUT}"
            )
        if self._clock.believes(clock_ms, self._now_ms):
            return ""
        ahead = f"the clocks of a quorum are a day ahead of the log or more{now(f'{-ahead_s:.0f} s')}"
        if self._clock.is_waiting:
            return (
                f"{ahead}: nothing is deleted by age, and no time mark written, until they have been so"
                f" for ten minutes; if they are wrong, {WAY_OUT}"
            )
        return f"{ahead}: no time mark is written as long as they are; {WAY_OUT}"
