"""Marked times: what the log takes for the time rises, and comes from no clock that is wrong.

Of every TIME entry that a leader sends: its own log knows no later time, so marks never fall within a
log. It is not above every clock that is right, unless those that are wrong are a quorum by themselves
of the voters whom the log names before it: it is a time that a quorum has reached, and a group may
shrink to those with wrong clocks. (Below the right ones it may be, for as long as answers take or clocks
of a minority stand still.) Within a term marks are a second apart, and data lies between two of them, or
a segment got its time while nobody appended.

In the end each member is asked, at places all over its log, which mark holds there and which one held at
a time, and finds what a look at every entry finds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise

from quorumlog.consensus.messages import PushEntryRequest
from quorumlog.consensus.ready import Envelope
from quorumlog.log_state.control_entries import MOST_MS, ClockReset, ControlEntry, TimeMark
from quorumlog.log_state.log_state import LogState, decode_state
from quorumlog.node.log_clock import MARK_INTERVAL_MS
from quorumlog.node.log_states import controls_of
from quorumlog.node.reading import StoredLog
from quorumlog.store.time_marks import (
    Mark,
    mark_at_index,
    mark_at_time,
    mark_of,
)
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Checker, Violation

PLACES = 40


class MarkedTimes(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._marks: dict[int, list[tuple[int, int]]] = {}
        """Term -> (index, time), by index: the leader of a term has one log."""
        self._resets: set[tuple[int, int]] = set()
        """(term, index) of CLOCK entries."""
        self._terms_have_one_log = True

    def put_back(self, member: CheckedMember) -> None:
        """It may vote once more in a term, for another leader."""
        self._terms_have_one_log = False

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, PushEntryRequest) and message.batch is not None:
            for entry in controls_of(message.batch):
                if isinstance(entry.body, ClockReset):
                    self._resets.add((entry.term, entry.index))
            for entry in controls_of(message.batch):
                if isinstance(entry.body, TimeMark):
                    self._look(member, entry, entry.body.time_ms)

    def _look(self, member: CheckedMember, entry: ControlEntry, time_ms: int) -> None:
        term = entry.term  # its log may have dropped it while the push waited for a file
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
            each.place: each.wall_clock.read_ms(self.cluster.now_ms)
            for each in self.cluster.members
            if each.wall_clock.is_right
        }
        if time_ms > max(clocks.values(), default=0) and not self._may_be_wrong(member, entry.index):
            raise Violation(f"{what} is above every clock that is right: {clocks}")
        near = [*marks[max(at - 1, 0) : at], (entry.index, time_ms), *marks[at : at + 1]]
        for before, after in pairwise(near):
            if not any((term, index) in self._resets for index in range(before[0], after[0])):
                self._look_at_pair(what, before, after)
        insort(marks, (entry.index, time_ms))

    def _may_be_wrong(self, member: CheckedMember, index: int) -> bool:
        """Where the log began anew after the mark, nobody here knows who counted."""
        held_index, membership = member.node.raft._state.log.memberships.holding_at(index)
        wrong_ids = {
            each.member_id
            for each in self.cluster.members
            if not each.wall_clock.is_right or each.wall_clock.was_ahead
        }
        wrong = [voter for voter in membership.voters() if voter.member_id in wrong_ids]
        return held_index > index or membership.has_quorum(wrong)

    def made_whole(self) -> None:
        for member in self.cluster.members:
            if member.is_up and not member.node.store.damaged:
                self._ask(member)

    @staticmethod
    def _ask(member: CheckedMember) -> None:
        store, stop_index = member.node.store, member.node.committed_index + 1
        state = member.node.log_state.committed
        assert state is not None, member
        log, first_index = StoredLog(store, state.clock_resets), store.begin.index + 1
        start = None if store.start is None else decode_state(store.start.record)
        first = mark_of(start) if isinstance(start, LogState) else None
        marks = [] if first is None else [first]
        for batch in store.control_batches(first_index, stop_index):
            marks += [
                Mark(entry.index, entry.body.time_ms)
                for entry in controls_of(batch)
                if isinstance(entry.body, TimeMark | ClockReset)
            ]
        later_ms = {each.index: each.time_ms for each in state.clock_resets}
        marks = [
            Mark(at, min(time_ms, *(ms for i, ms in later_ms.items() if i > at), MOST_MS))
            for at, time_ms in ((mark.index, mark.time_ms) for mark in marks)
        ]
        for index in range(first_index, stop_index, 1 + (stop_index - first_index) // PLACES):
            expected = next((mark for mark in reversed(marks) if mark.index <= index), None)
            found = mark_at_index(log, index)
            if found != expected:
                raise Violation(f"at entry {index} {member.replica} finds {found}, not {expected}")
        for mark in marks[:: 1 + len(marks) // PLACES]:
            for time_ms in (mark.time_ms - 1, mark.time_ms):
                expected = next((each for each in reversed(marks) if each.time_ms <= time_ms), None)
                found = mark_at_time(log, time_ms, stop_index)
                if found != expected:
                    raise Violation(f"of {time_ms} {member.replica} finds {found}, not {expected}")

    def _look_at_pair(self, what: str, before: tuple[int, int], after: tuple[int, int]) -> None:
        if not self._terms_have_one_log:
            return
        has_age = self.cluster.profile.storage.file_reserved_hours > 0
        if after[0] < before[0] + 2 and not has_age:
            raise Violation(f"{what}: {before} and {after} have no data between them")
        if after[1] < before[1] + MARK_INTERVAL_MS:
            raise Violation(f"{what}: {before} and {after} of one term are closer than a second")
