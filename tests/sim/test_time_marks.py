"""Time marks where clocks are wrong and leaders change; `marked_times` watches every run with marks."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import partial

import pytest

from quorumlog.entry import AppendReceipt, EntryKind
from quorumlog.errors import WrongLastIndex
from quorumlog.log_state.control_entries import ControlEntry, TimeMark
from quorumlog.log_state.log_state import Reset
from quorumlog.node import log_clock
from quorumlog.node.log_clock import MARK_INTERVAL_MS
from quorumlog.node.log_states import controls_of
from quorumlog.node.member_changes import MemberOperation
from quorumlog.node.operator_orders import ResetOutcome
from quorumlog.node.reading import MarkOutcome
from quorumlog.store.time_marks import Mark
from quorumlog.testing.member import SimMember
from quorumlog.testing.wall_clock import BEGINNING_MS
from sim.log.checkers.marked_times import MarkedTimes
from sim.log.faults.wall_clocks import YEAR_MS
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario
from tests.sim.test_log_begin import boundaries, drop, fill
from tests.sim.test_member_scenarios import make

MARKED = replace(QUIET, time_marks=True)
HEARTBEAT_MS = QUIET.consensus.heartbeat_interval_ms


def marks_of(member: SimMember) -> dict[int, int]:
    """Index -> time, of its whole log."""
    store = member.node.store
    batches = store.control_batches(store.begin.index + 1, store.end.index + 1)
    entries = [entry for batch in batches for entry in controls_of(batch)]
    return {e.index: e.body.time_ms for e in entries if isinstance(e.body, TimeMark)}


def true_ms(scene: Scenario) -> int:
    return BEGINNING_MS + int(scene.cluster.now_ms)


def set_clocks(scene: Scenario, jump_ms: float, *members: SimMember) -> None:
    for member in members:
        member.wall_clock.set(scene.cluster.now_ms, jump_ms=jump_ms)


def append_for(scene: Scenario, duration_ms: float, every_ms: float = 100) -> None:
    until_ms = scene.cluster.now_ms + duration_ms
    while scene.cluster.now_ms < until_ms:
        scene.append()
        scene.run_for(every_ms)


def test_data_is_marked_with_its_time_once_a_second_at_most() -> None:
    scene = Scenario(profile=MARKED)
    scene.run_for(ELECTION_MS)
    began_ms = true_ms(scene)
    append_for(scene, 5_000)
    marks = marks_of(scene.await_leader())
    assert [marks_of(member) for member in scene.members] == [marks] * 3
    times = list(marks.values())
    assert 4 <= len(times) <= 6
    assert times[0] in range(began_ms - 2 * HEARTBEAT_MS, began_ms + 1)
    assert all(b - a >= MARK_INTERVAL_MS for a, b in itertools.pairwise(times))
    for member in scene.members:
        assert member.node.log_time_ms() == times[-1]


def test_nothing_is_written_while_nobody_appends() -> None:
    scene = Scenario(profile=MARKED)
    scene.append()
    scene.run_for(10_000)
    ends = [member.node.store.end.index for member in scene.members]
    scene.run_for(60_000)
    assert [member.node.store.end.index for member in scene.members] == ends
    scene.append()
    *_, last = marks_of(scene.await_leader()).values()
    assert true_ms(scene) - last < 4 * HEARTBEAT_MS


def test_an_append_that_is_refused_leaves_no_mark() -> None:
    """A writer that is wrong again and again would fill the log with the time."""
    scene = Scenario(profile=MARKED)
    scene.append()
    leader = scene.await_leader()
    end_index = leader.node.store.end.index
    scene.run_for(5_000)
    asked = scene.ask(leader, expected_last=end_index + 7)
    scene.until(lambda: asked.returned_ms >= 0, "a refusal")
    assert isinstance(asked.outcome, WrongLastIndex), asked.outcome
    assert leader.node.store.end.index == end_index


def test_who_expects_the_last_entry_is_let_in_behind_a_mark() -> None:
    scene = Scenario(profile=MARKED)
    scene.append()
    leader = scene.await_leader()
    last_index = leader.node.store.end.index
    scene.run_for(5_000)
    asked = scene.ask(leader, expected_last=last_index)
    scene.until(lambda: asked.returned_ms >= 0, "a receipt")
    assert isinstance(asked.outcome, AppendReceipt), asked.outcome
    assert asked.outcome.first_index == asked.outcome.last_index == last_index + 2
    assert last_index + 1 in marks_of(leader)


@pytest.mark.parametrize("jump_ms", [20 * YEAR_MS, -20 * YEAR_MS])
@pytest.mark.parametrize("is_leader", [True, False])
def test_one_bad_clock_moves_nothing(jump_ms: int, is_leader: bool) -> None:
    scene = Scenario(profile=MARKED)
    scene.append()
    wrong = scene.await_leader() if is_leader else scene.followers()[0]
    wrong.wall_clock.is_right = False
    set_clocks(scene, jump_ms, wrong)
    append_for(scene, 4_000)
    for time_ms in marks_of(scene.await_leader()).values():
        assert abs(true_ms(scene) - time_ms) < 6_000
    assert len(marks_of(scene.await_leader())) >= 3


def test_marks_stand_still_while_clocks_are_behind_them() -> None:
    """Over a change of leaders, too: an entry is never older than one before it."""
    scene = Scenario(profile=MARKED)
    scene.run_for(ELECTION_MS)
    append_for(scene, 2_500)
    old = scene.await_leader()
    before = marks_of(old)
    set_clocks(scene, -120_000, *scene.members)
    scene.hand_over(old, scene.followers()[0])
    append_for(scene, 5_000)
    assert marks_of(scene.await_leader()) == before
    (problem,) = scene.await_leader().node.problems()
    assert re.search(r"ahead of the clocks of a quorum \(now 11\d s\)", problem), problem
    set_clocks(scene, +121_000, *scene.members)
    scene.run_for(2 * HEARTBEAT_MS)
    scene.append()
    assert scene.await_leader().node.problems() == ()
    times = list(marks_of(scene.await_leader()).values())
    assert len(times) == len(before) + 1
    assert times == sorted(times)


def test_a_mark_waits_for_a_quorum_of_clocks() -> None:
    """Two of three tell theirs: the lower one counts."""
    scene = Scenario(profile=MARKED)
    leader = scene.await_leader()
    here, away = scene.followers()
    scene.append()
    away.kill()
    set_clocks(scene, -1_000_000, here)
    before = marks_of(leader)
    append_for(scene, 3_000)
    assert marks_of(leader) == before
    set_clocks(scene, 1_000_000, here)
    append_for(scene, 1_200)
    assert len(marks_of(leader)) > len(before)


def test_no_mark_is_written_that_a_member_cannot_read() -> None:
    scene = Scenario(profile=MARKED, start=False)
    scene.members[0].level = 0
    for member in scene.members:
        member.start()
    append_for(scene, 3_000)
    assert not marks_of(scene.await_leader())
    assert scene.await_leader().node.log_time_ms() is None


def test_a_member_that_is_down_does_not_stop_the_time_of_a_log_that_has_one() -> None:
    """A leader that has not heard of it since its own start knows what the log says of all."""
    scene = Scenario(profile=MARKED)
    scene.run_for(ELECTION_MS)
    scene.append()
    away = scene.followers()[0]
    away.kill()
    others = [member for member in scene.members if member is not away]
    for member in others:
        member.kill()
    for member in others:
        member.start()
    scene.await_leader(*others)
    append_for(scene, 2_500)
    assert len(marks_of(scene.await_leader())) >= 2


def test_a_clock_that_ran_ahead_moves_nothing_even_where_it_is_alone() -> None:
    """Of a group that shrinks. Of one it is the quorum, and says a year more than can have gone by."""
    scene = Scenario(profile=MARKED)
    scene.append()
    left, other, *_ = scene.followers()
    leader = scene.await_leader()
    left.wall_clock.is_right = False
    set_clocks(scene, YEAR_MS, left)
    make(scene, MemberOperation.REMOVE, other.member_id)
    append_for(scene, 3_000)
    for time_ms in marks_of(scene.await_leader()).values():
        assert abs(true_ms(scene) - time_ms) < 6_000
    scene.hand_over(leader, left)
    append_for(scene, 3_000)
    for time_ms in marks_of(left).values():
        assert abs(true_ms(scene) - time_ms) < 12_000
    make(scene, MemberOperation.REMOVE, leader.member_id)
    append_for(scene, 3_000)
    for time_ms in marks_of(left).values():
        assert abs(true_ms(scene) - time_ms) < 12_000
    (problem,) = left.node.problems()
    assert "quorumlog clock reset" in problem
    make(scene, MemberOperation.ADD, leader.member_id, "10.0.0.9:1")
    scene.make_whole()


def test_a_log_that_took_a_wrong_time_is_led_back_by_a_reset() -> None:
    """Its clocks were wrong when it began, and nobody could know. What stands in front of the reset
    counts as appended then; `marked_times` asks each member all over its log."""
    scene = Scenario(profile=MARKED)
    for member in scene.members:
        member.wall_clock.is_right = False
    set_clocks(scene, YEAR_MS, *scene.members)
    scene.run_for(4 * HEARTBEAT_MS)  # a quorum's clocks are known
    append_for(scene, 3_000)
    set_clocks(scene, -YEAR_MS, *scene.members)
    for member in scene.members:
        member.wall_clock.is_right = True
    append_for(scene, 3_000)
    leader = scene.await_leader()
    wrong = marks_of(leader)
    (problem,) = leader.node.problems()
    assert "quorumlog clock reset" in problem
    found: list[ResetOutcome] = []
    leader.enter(lambda: leader.node.orders.reset_clock(found.append))
    scene.until(lambda: found, "a reset")
    (reset,) = found
    assert isinstance(reset, Reset), reset
    assert abs(reset.time_ms - true_ms(scene)) < 4 * HEARTBEAT_MS
    append_for(scene, 3_000)
    assert leader.node.problems() == ()
    marks = marks_of(leader)
    assert len(marks) >= len(wrong) + 2
    assert max(time_ms for index, time_ms in marks.items() if index > reset.index) <= true_ms(scene)
    asked: list[MarkOutcome] = []
    for index in (*wrong, reset.index):
        leader.enter(partial(leader.node.marks.at_index, index, asked.append))
    scene.until(lambda: len(asked) == len(wrong) + 1, "times")
    assert {mark.time_ms for mark in asked if isinstance(mark, Mark)} == {reset.time_ms}
    scene.make_whole()


def test_while_its_clocks_jump_a_log_writes_no_mark_and_afterwards_it_goes_on() -> None:
    scene = Scenario(profile=MARKED)
    append_for(scene, 2_500)
    before = marks_of(scene.await_leader())
    for member in scene.members:
        member.wall_clock.is_right = False
    set_clocks(scene, 10 * YEAR_MS, *scene.members)
    append_for(scene, 1_000)
    scene.hand_over(scene.await_leader(), scene.followers()[0])
    append_for(scene, 3_000)
    leader = scene.await_leader()
    assert marks_of(leader) == before, "who has seen a mark being written knows, too"
    (problem,) = leader.node.problems()
    assert "a day ahead" in problem
    set_clocks(scene, -10 * YEAR_MS, *scene.members)
    for member in scene.members:
        member.wall_clock.is_right = True
    append_for(scene, 2_500)
    assert len(marks_of(scene.await_leader())) >= len(before) + 2
    assert scene.await_leader().node.problems() == ()
    scene.make_whole()


def test_of_two_machines_with_members_of_one_id_each_has_a_clock() -> None:
    """The mark is above that of the one, and was told by the other."""
    scene = Scenario(profile=MARKED)
    scene.run_for(1_000)  # followers' clocks are known
    scene.append()
    leader = scene.await_leader()
    twin = scene.cluster.add_twin(leader)
    set_clocks(scene, -5_000.0, twin, *scene.followers())
    (index, time_ms), *_ = marks_of(leader).items()
    mark = ControlEntry(index, EntryKind.TIME, TimeMark(time_ms), leader.node.raft.term)
    MarkedTimes(scene.cluster)._look(leader, mark, time_ms)


def test_a_mark_may_be_sent_that_the_log_of_its_leader_has_dropped_meanwhile() -> None:
    """The push was read from a file."""
    scene = Scenario(profile=MARKED)
    scene.run_for(1_000)
    fill(scene)
    leader = scene.await_leader()
    (index, time_ms), *_ = marks_of(leader).items()
    mark = ControlEntry(index, EntryKind.TIME, TimeMark(time_ms), leader.node.raft.term)
    drop(scene, leader, boundaries(leader)[-1])
    assert leader.node.store.begin.index > index
    MarkedTimes(scene.cluster)._look(leader, mark, time_ms)


def test_marks_of_last_month_are_none_that_were_just_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member gets them from one that does not know yet that they were committed."""
    monkeypatch.setattr(log_clock, "HELD_MS", 20_000)
    scene = Scenario(profile=MARKED)
    scene.append()
    scene.run_for(1_000)
    behind, away = scene.followers()
    behind.kill()
    append_for(scene, 5_000)
    leader = scene.await_leader()
    leader.kill()
    away.kill()
    set_clocks(scene, 30 * 24 * 3_600_000, *scene.members)
    leader.start()
    behind.start()
    scene.until(lambda: marks_of(behind).keys() >= marks_of(leader).keys(), "what it lacks")
    scene.run_for(4 * HEARTBEAT_MS)  # and the leader knows
    scene.hand_over(leader, behind)
    before = marks_of(behind)
    append_for(scene, 30_000, every_ms=1_000)
    assert scene.await_leader() is behind
    assert marks_of(behind).keys() > before.keys()
