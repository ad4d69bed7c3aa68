"""Marked times: what the log takes for the time rises, and comes from no clock that is wrong.

Of every TIME entry that a leader sends: its own log knows no later time, so marks never fall within a
log. It is not above every clock that is right: those are a quorum at least, and it has to be a time that
a quorum has reached. (Below them it may be, for as long as answers take or clocks of a minority stand
still.) Within a term marks are a second apart, and data lies between two of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from quorumlog.consensus.messages import PushEntryRequest
from quorumlog.consensus.ready import Envelope
from quorumlog.log_state.control_entries import ControlEntry, TimeMark
from quorumlog.log_state.log_state import LogState
from quorumlog.node.writing.log_state_reading import controls_of
from quorumlog.node.writing.time_marks import MARK_INTERVAL_MS
from quorumlog.sim.checkers.checker import Checker, Violation
from quorumlog.sim.checkers.view import CheckedCluster, CheckedMember


class MarkedTimes(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._marks: dict[int, list[tuple[int, int]]] = {}
        """Term -> (index, time), by index: the leader of a term has one log."""

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, PushEntryRequest) and message.batch is not None:
            for entry in controls_of(message.batch):
                if isinstance(entry.body, TimeMark):
                    self._look(member, entry, entry.body.time_ms)

    def _look(self, member: CheckedMember, entry: ControlEntry, time_ms: int) -> None:
        term = member.node.raft.term_at(entry.index)
        marks = self._marks.setdefault(term, [])
        at = bisect_left(marks, (entry.index, time_ms))
        if marks[at : at + 1] == [(entry.index, time_ms)]:
            return
        what = f"the time mark {time_ms} of entry ({entry.index}, {term}) on {member.replica}"
        states = member.node.log_state.states
        state = None if states is None else states.appended
        if isinstance(state, LogState) and state.time_index < entry.index:
            raise Violation(f"{what} is below the one of entry {state.time_index}, {state.time_ms}")
        clocks = {
            each.member_id: each.wall_clock.read_ms(self.cluster.now_ms)
            for each in self.cluster.members
            if each.wall_clock.is_right
        }
        if time_ms > max(clocks.values()):
            raise Violation(f"{what} is above every clock that is right: {clocks}")
        for before, after in zip(marks[at - 1 : at], [(entry.index, time_ms)], strict=False):
            self._look_at_pair(what, before, after)
        for after in marks[at : at + 1]:
            self._look_at_pair(what, (entry.index, time_ms), after)
        insort(marks, (entry.index, time_ms))

    @staticmethod
    def _look_at_pair(what: str, before: tuple[int, int], after: tuple[int, int]) -> None:
        if after[0] < before[0] + 2:
            raise Violation(f"{what}: {before} and {after} have no data between them")
        if after[1] < before[1] + MARK_INTERVAL_MS:
            raise Violation(f"{what}: {before} and {after} of one term are closer than a second")
