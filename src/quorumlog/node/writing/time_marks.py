"""TimeMarks: when a leader writes a time mark, and what it says.

Entries carry no time of their own. A TIME entry stands in front of the first data that is written a
second or more after the mark before it, as a quorum of clocks has it, and holds for all that follows. So
nothing is written while nobody appends, and there is no timer.

A mark is a time that the wall clocks of a quorum have reached: one that runs years ahead moves nothing,
and one that stands still keeps nothing from moving. Within the whole log, its uncommitted end included,
marks rise: where the clocks say less than the last mark, none is written until they have passed it.
"""

from __future__ import annotations

from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Role
from quorumlog.entry import EntryKind
from quorumlog.errors import LedgerError
from quorumlog.figures import now
from quorumlog.log_state.control_entries import MOST_MS, TimeMark
from quorumlog.log_state.log_state import LogState
from quorumlog.node.writing.log_state_keeper import LogStateKeeper

MARK_INTERVAL_MS = 1000
"""Between two marks, by what they say."""
LOOK_MS = 50
"""So long the clocks are not asked again where a mark is not due: a batch must not pay for it."""


NOTABLE_MS = 60_000
"""So far a quorum of clocks may fall behind the last mark before somebody should know."""


class TimeMarks:
    def __init__(self, raft: RaftNode, log_state: LogStateKeeper) -> None:
        self._raft = raft
        self._log_state = log_state
        self._next_look_ms = 0.0

    def due(self, now_ms: float) -> TimeMark | None:
        """The mark for what this leader is about to write. None: the last one will do, too few clocks
        are known, or not every member knows of marks."""
        if now_ms < self._next_look_ms:
            return None
        states = self._log_state.states
        clock_ms = self._raft.quorum_clock_ms
        if states is None or not isinstance(states.appended, LogState) or not 0 <= clock_ms <= MOST_MS:
            return None
        last_ms = states.appended.time_ms
        if last_ms is not None and clock_ms < last_ms + MARK_INTERVAL_MS:
            self._next_look_ms = now_ms + LOOK_MS
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
        states = self._log_state.states
        clock_ms = self._raft.quorum_clock_ms if self._raft.role is Role.LEADER else -1
        if states is None or not isinstance(states.appended, LogState) or clock_ms < 0:
            return ""
        ahead_ms = (states.appended.time_ms or 0) - clock_ms
        if ahead_ms <= NOTABLE_MS:
            return ""
        return (
            f"the time of the log is ahead of the clocks of a quorum{now(f'{ahead_ms // 1000} s')}, and"
            " stands still until they have passed it: look at the members' clocks"
        )
