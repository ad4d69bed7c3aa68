"""Segments that go while leaders change, readers hold and followers are away.

The mutants (tests/mutants/) run some of these as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quorumlog.consensus.ready import Role
from quorumlog.errors import DiskFull
from quorumlog.log_state.control_entries import Hold, Keep
from quorumlog.log_state.log_state import Reader
from quorumlog.node.ledger_node import HANGS_AFTER_MS
from quorumlog.node.machine_driver import PIN_MS
from quorumlog.node.member_changes import MemberOperation
from quorumlog.node.reader_moves import MovedReader, ReaderMove
from quorumlog.node.retention import FED_PATIENCE_MS
from quorumlog.testing.faults import make_room
from quorumlog.testing.member import SimMember
from quorumlog.testing.profile import SimulationProfile
from sim.log.faults.wall_clocks import YEAR_MS
from sim.log.operations import ClientMove
from sim.log.work.readers import SimReader
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario
from tests.sim.test_installs import SMALL
from tests.sim.test_member_scenarios import make
from tests.sim.test_state_machines import MachineScenario

HOUR_MS = 3_600_000
REPLACED = "install: a log is replaced"


def keeping(budget_bytes: int = 1 << 30, **storage: Any) -> SimulationProfile:
    """All but the newest segment may go."""
    return replace(
        SMALL,
        storage=replace(SMALL.storage, **{"retention_bytes": 1, **storage}),
        has_retention=True,
        retention_follower_budget_bytes=budget_bytes,
    )


def reader_of(scene: Scenario, name: str) -> SimReader:
    return next(reader for reader in scene.world.readers if reader.name == name)


def ask(scene: Scenario, member: SimMember, move: ReaderMove) -> ClientMove:
    reader = reader_of(scene, move.name)
    reader._target = member.member_id
    return reader.ask(move)


def moved(scene: Scenario, move: ReaderMove) -> MovedReader:
    asked = ask(scene, scene.await_leader(), move)
    scene.until(lambda: asked.outcome is not None, "answer to a reader")
    assert isinstance(asked.outcome, MovedReader), asked.outcome
    return asked.outcome


def begin_of(member: SimMember) -> int:
    return member.node.store.begin.index + 1


def test_no_segment_goes_that_a_reader_holds() -> None:
    scene = Scenario(profile=keeping())
    scene.append(3)
    moved(scene, ReaderMove("billing", hold=Hold.READER, opens=True))
    moved(scene, ReaderMove("billing", 3))
    scene.append(60)
    scene.run_for(5_000)
    assert [begin_of(member) for member in scene.members] == [0, 0, 0]
    moved(scene, ReaderMove("billing", 40))
    scene.run_for(5_000)
    assert {begin_of(member) for member in scene.members} == {begin_of(scene.members[0])}
    assert 0 < begin_of(scene.members[0]) <= 40
    scene.make_whole()


def test_what_a_leader_has_said_and_no_majority_knows_deletes_nothing() -> None:
    """Its successor lets a reader hold what it would have let go."""
    scene = Scenario(profile=keeping(retention_bytes=0))
    scene.append(60)
    old = scene.await_leader()
    others = scene.followers()
    scene.cut([old], others)
    old.enter_node("propose_control", Keep(40))
    new = scene.await_leader(*others)
    asked = ask(scene, new, ReaderMove("billing", hold=Hold.READER, opens=True))
    scene.until(lambda: asked.outcome is not None, "answer to a reader")
    assert isinstance(asked.outcome, MovedReader), asked.outcome
    assert (asked.outcome.position, asked.outcome.hold) == (0, Hold.READER)
    scene.run_for(3_000)
    scene.heal()
    scene.make_whole()
    assert [begin_of(member) for member in scene.members] == [0, 0, 0]


def fed_and_silent() -> tuple[Scenario, SimMember, SimMember]:
    """(scene, leader, a follower that lost its directory, has got a part of the log, and hangs)."""
    profile = keeping(budget_bytes=0, retention="off")
    consensus = replace(profile.consensus, push_limit_bytes=600, push_window_bytes=600)
    scene = Scenario(profile=replace(profile, consensus=consensus))
    scene.append(80)
    leader, wiped = scene.await_leader(), scene.followers()[0]
    wiped.wipe()
    wiped.start()
    scene.until(lambda: wiped.node.store.end.index > 0, "fed member")
    scene.cut([leader], [wiped])  # it hangs, and is connected
    assert wiped.node.store.end.index < 40
    config = replace(leader.config, storage=keeping().storage)
    leader.enter_node("configure", config)
    scene.ask_and_wait(leader)
    scene.run_for(5_000)
    assert 0 <= begin_of(leader) < 40
    return scene, leader, wiped


def test_a_member_that_is_being_fed_is_waited_for() -> None:
    scene, leader, wiped = fed_and_silent()
    scene.heal()
    scene.until(lambda: wiped.node.store.end == leader.node.store.end, "one log", within_ms=60_000)
    assert not scene.cluster.trace.counts[REPLACED]
    scene.run_for(5_000)
    assert begin_of(leader) > 40


def test_a_member_that_is_fed_and_takes_nothing_is_waited_for_a_minute() -> None:
    """It answers heartbeats, so it may hang for ever."""
    scene, leader, wiped = fed_and_silent()
    scene.heal()
    wiped.hang(True)
    end_index = wiped.node.store.end.index
    scene.ask_and_wait(leader)
    scene.run_for(FED_PATIENCE_MS + 10_000)
    assert begin_of(leader) > end_index + 1, "it is waited for without a bound"
    wiped.hang(False)
    scene.make_whole()


def test_a_member_that_is_fed_and_takes_nothing_is_waited_for_no_longer_by_the_next_leader() -> None:
    """It was connected before that one was elected."""
    scene, old, wiped = fed_and_silent()
    new = next(member for member in scene.members if member not in (old, wiped))
    new.enter_node("configure", replace(new.config, storage=keeping().storage))
    wiped.hang(True)
    end_index = wiped.node.store.end.index
    scene.heal()
    scene.hand_over(old, new)
    scene.ask_and_wait(new)
    scene.run_for(FED_PATIENCE_MS + 10_000)
    assert scene.leader() is new
    assert begin_of(new) > end_index + 1, "it is waited for without a bound"
    wiped.hang(False)
    scene.make_whole()


def test_who_was_removed_while_it_was_away_is_waited_for_by_nobody() -> None:
    scene = Scenario(profile=keeping())
    scene.append(3)
    away = scene.followers()[0]
    address = dict(away.node.members.addresses())[away.member_id]
    away.kill()
    make(scene, MemberOperation.REMOVE, away.member_id)
    for _ in range(60):
        scene.ask_and_wait(scene.await_leader())
    scene.until(lambda: begin_of(scene.await_leader()) > 0, "segments that go")
    away.start()
    make(scene, MemberOperation.ADD, away.member_id, address)
    scene.until(lambda: away.is_up and begin_of(away) > 0, "a log that is replaced")


def test_a_reader_stands_where_it_was_told_whoever_leads() -> None:
    scene = Scenario(profile=keeping())
    scene.append(20)
    moved(scene, ReaderMove("billing", opens=True))
    old, others = scene.await_leader(), scene.followers()
    scene.cut([old], others)
    asked = ask(scene, old, ReaderMove("billing", 15))
    new = scene.await_leader(*others)
    scene.run_for(ELECTION_MS)
    assert not isinstance(asked.outcome, MovedReader)
    again = ask(scene, new, ReaderMove("billing", opens=True))
    scene.until(lambda: again.outcome is not None, "answer to a reader")
    scene.heal()
    scene.make_whole()


def test_a_late_copy_of_a_seek_moves_no_reader() -> None:
    """It has gone back and come to the same place again when the seek is delivered once more."""
    scene = Scenario(profile=keeping())
    scene.append(20)
    stand = moved(scene, ReaderMove("billing", 15, opens=True))
    seek = ReaderMove("billing", 4, seeks_from=15, last_index=stand.last_index)
    assert moved(scene, seek).position == 4
    assert moved(scene, ReaderMove("billing", 15)).position == 15
    reader_of(scene, "billing").copy(seek)
    scene.run_for(1_000)
    assert moved(scene, ReaderMove("billing", opens=True)).position == 15


def test_a_late_copy_of_an_end_leaves_the_reader_of_the_same_name() -> None:
    """Its own has gone; another consumer has begun under that name."""
    scene = Scenario(profile=keeping())
    scene.append(20)
    first = moved(scene, ReaderMove("billing", hold=Hold.READER, opens=True, seen_index=-1))
    end = ReaderMove("billing", ends=True, seen_index=first.seen_index)
    ended = moved(scene, end)
    opening = ReaderMove("billing", 5, Hold.READER, opens=True, seen_index=ended.seen_index)
    assert moved(scene, opening).position == 5
    reader_of(scene, "billing").copy(end)
    scene.run_for(1_000)
    assert [(r.position, r.hold) for r in _readers(scene)] == [(5, Hold.READER)]


def test_a_late_copy_of_an_opening_makes_no_reader_again() -> None:
    """Nobody would read under that name, and it would hold the log until a disk is full."""
    scene = Scenario(profile=keeping())
    scene.append(20)
    opening = ReaderMove("billing", hold=Hold.READER, opens=True, seen_index=-1)
    stand = moved(scene, opening)
    moved(scene, ReaderMove("billing", ends=True, seen_index=stand.seen_index))
    reader_of(scene, "billing").copy(opening)
    scene.run_for(1_000)
    assert _readers(scene) == ()
    scene.append(30)
    scene.run_for(2_000)  # the state in front of a later segment is saved, and a start begins there
    for member in scene.members:
        member.kill()
        member.start()
    scene.await_leader()
    reader_of(scene, "billing")._target = scene.await_leader().member_id
    reader_of(scene, "billing").copy(opening)
    scene.run_for(1_000)
    assert _readers(scene) == ()


def test_a_late_copy_of_a_commit_does_not_lead_past_what_was_sought() -> None:
    scene = Scenario(profile=keeping())
    scene.append(20)
    stand = moved(scene, ReaderMove("billing", opens=True, seen_index=-1))
    commit = ReaderMove("billing", 15, seen_index=stand.seen_index)
    stand = moved(scene, commit)
    seek = ReaderMove("billing", 4, seeks_from=15, last_index=stand.last_index)
    assert moved(scene, seek).position == 4
    reader_of(scene, "billing").copy(commit)
    scene.run_for(1_000)
    assert [reader.position for reader in _readers(scene)] == [4]


def test_what_a_reader_skips_is_counted_once_whoever_leads() -> None:
    scene = Scenario(profile=keeping())
    scene.append(20)
    moved(scene, ReaderMove("billing", 12, opens=True))
    skip = ReaderMove("billing", skipped=(3, 9))
    moved(scene, skip)
    old = scene.await_leader()
    old.stop()
    scene.run_for(ELECTION_MS)
    reader_of(scene, "billing")._target = scene.await_leader().member_id
    reader_of(scene, "billing").copy(skip)
    moved(scene, ReaderMove("billing", skipped=(7, 11)))
    assert [(each.position, each.skipped_entries) for each in _readers(scene)] == [(12, 8)]
    old.start()
    scene.make_whole()


def _readers(scene: Scenario) -> tuple[Reader, ...]:
    return scene.await_leader().node.log_state.committed_state().readers


def test_what_is_deleted_is_in_an_archive_of_the_very_log() -> None:
    scene = Scenario(profile=keeping(retention="archived"))
    scene.append(60)
    moved(scene, ReaderMove("audit", hold=Hold.ARCHIVE, opens=True))
    moved(scene, ReaderMove("audit", 20))  # and does not say with which chain it ends
    scene.run_for(5_000)
    chain = scene.members[0].node.store.point_on_disk(39).chain
    moved(scene, ReaderMove("audit", 40, last_chain=chain ^ 1))
    scene.run_for(5_000)
    assert {begin_of(member) for member in scene.members} == {0}
    moved(scene, ReaderMove("audit", 40, last_chain=chain))
    scene.run_for(5_000)
    assert {0 < begin_of(member) <= 40 for member in scene.members} == {True}
    scene.make_whole()


def test_a_full_disk_does_not_take_what_a_follower_lacks_within_its_budget() -> None:
    scene = Scenario(profile=keeping(retention_bytes=1 << 30, disk_space_ratio_to_force_clean=1e-9))
    away = scene.followers()[0]
    scene.append(20)
    away.stop()
    scene.run_for(ELECTION_MS)
    scene.append(60)
    scene.run_for(5_000)
    away.start()
    scene.make_whole()
    assert not scene.cluster.trace.counts[REPLACED]
    scene.append(5)
    scene.run_for(5_000)
    assert begin_of(scene.await_leader()) > 20


def test_a_leader_passes_a_follower_that_lacks_more_and_it_comes_back() -> None:
    scene = Scenario(profile=keeping(budget_bytes=2048))
    away = scene.followers()[0]
    scene.append(5)
    away.stop()
    scene.run_for(ELECTION_MS)
    scene.append(150)
    scene.run_for(5_000)
    away.start()
    scene.make_whole()
    assert scene.cluster.trace.counts[REPLACED] == 1
    assert begin_of(away) > 5


def _configure_all(scene: Scenario, **options: Any) -> None:
    for member in scene.members:
        member.enter_node("configure", replace(member.node.config, **options))
    scene.run_for(2_000)


def _set_clocks(scene: Scenario, jump_ms: int) -> None:
    for member in scene.members:
        member.wall_clock.set(scene.cluster.now_ms, jump_ms=jump_ms)
    scene.run_for(2_000)  # until every clock is told


def test_a_segment_that_was_written_without_time_marks_does_not_go_too_young() -> None:
    """They were switched off for most of a day, and on again."""
    scene = Scenario(profile=replace(keeping(retention_bytes=0, file_reserved_hours=2), time_marks=True))
    scene.append(3)
    _configure_all(scene, time_marks=False)
    _set_clocks(scene, 20 * HOUR_MS)
    scene.append(60)
    _configure_all(scene, time_marks=True)
    scene.append(3)
    scene.run_for(5_000)
    assert {begin_of(member) for member in scene.members} == {0}
    _set_clocks(scene, 2 * HOUR_MS)
    scene.run_for(5_000)
    assert min(begin_of(member) for member in scene.members) > 40
    scene.make_whole()


def test_clocks_that_jump_together_by_years_make_nothing_old() -> None:
    """`young_segments` watches: as of one time server that all members ask."""
    scene = Scenario(profile=replace(keeping(retention_bytes=0, file_reserved_hours=2), time_marks=True))
    scene.append(60)
    scene.run_for(2_000)
    scene.append(20)
    for member in scene.members:
        member.wall_clock.is_right = False
    _set_clocks(scene, 10 * YEAR_MS)
    scene.append(40)
    scene.run_for(5_000)
    assert {begin_of(member) for member in scene.members} == {0}
    _set_clocks(scene, -10 * YEAR_MS)
    for member in scene.members:
        member.wall_clock.is_right = True
    scene.append(3)
    assert scene.await_leader().node.problems() == ()
    _set_clocks(scene, HOUR_MS)
    scene.run_for(5_000)
    assert {begin_of(member) for member in scene.members} == {0}
    _set_clocks(scene, HOUR_MS)
    scene.run_for(5_000)
    assert min(begin_of(member) for member in scene.members) > 60
    scene.make_whole()


def test_the_scenario_keeps_everything_where_nothing_is_configured() -> None:
    assert not QUIET.storage.deletes


def fill(member: SimMember) -> None:
    """With what is somebody else's: no more data is taken, until something is deleted there."""
    member.disk.write_file("/else", bytes(1 << 22))
    usage = member.disk.usage("/")
    member.disk.capacity_bytes = int((usage.total_bytes - usage.free_bytes) / 0.9)


def grow(scene: Scenario) -> None:
    for _ in range(100):
        scene.ask_and_wait(scene.await_leader(), body_bytes=3_000)


def fed_and_full(budget_bytes: int) -> tuple[Scenario, SimMember]:
    """A follower has lost its directory, and has no room for all that the others have."""
    sizes = {"segment_bytes": 32768, "index_segment_bytes": 2048}
    profile = keeping(budget_bytes=budget_bytes, retention="off", **sizes)
    consensus = replace(profile.consensus, push_limit_bytes=7_000, push_window_bytes=7_000)
    scene = Scenario(profile=replace(profile, consensus=consensus))
    leader, wiped = scene.await_leader(), scene.followers()[0]
    grow(scene)
    wiped.wipe()
    wiped.start()
    scene.until(lambda: wiped.node.store.end.index > 80, "fed member")
    fill(wiped)
    scene.until(lambda: bool(wiped.node._writer.disk_full), "a disk that is full")
    for member in (leader, *scene.followers()):
        storage = replace(member.config.storage, retention="on")
        member.enter_node("configure", replace(member.config, storage=storage))
    return scene, wiped


def test_a_member_that_is_fed_and_has_no_space_is_waited_for_within_its_budget() -> None:
    """Else the others' logs would grow behind it for ever. The start of the log frees what it has."""
    scene, wiped = fed_and_full(budget_bytes=0)
    leader = scene.await_leader()
    grow(scene)
    scene.run_for(5_000)
    assert begin_of(leader) > 100, "it is waited for without a bound"
    scene.until(
        lambda: wiped.is_up and wiped.node.store.end == leader.node.store.end,
        "one log, on a disk that stayed as it was",
        within_ms=60_000,
    )
    assert scene.cluster.trace.counts[REPLACED]
    scene.make_whole()


def test_a_member_that_is_fed_and_has_no_space_has_its_budget() -> None:
    scene, wiped = fed_and_full(budget_bytes=1 << 30)
    grow(scene)
    scene.run_for(5_000)
    assert begin_of(scene.await_leader()) <= wiped.node.store.end.index + 1
    scene.make_whole()


def test_two_full_disks_of_three_get_what_frees_them() -> None:
    """Appends are refused then. What lets the oldest segments go is none, nor what is in front of it."""
    sizes = {"segment_bytes": 32768, "index_segment_bytes": 2048}
    scene = Scenario(profile=keeping(retention="off", **sizes))
    grow(scene)
    for member in scene.followers():
        fill(member)
    leader = scene.await_leader()
    on_its_way = scene.ask(leader, body_bytes=3_000, timeout_ms=60_000)
    scene.until(lambda: bool(leader.node.raft.replication.too_many_full), "full disks")
    refused = scene.ask(leader, body_bytes=3_000)
    scene.until(lambda: refused.outcome is not None, "refusal")
    assert isinstance(refused.outcome, DiskFull)
    for member in scene.members:
        storage = replace(member.config.storage, retention="on")
        member.enter_node("configure", replace(member.config, storage=storage))
    scene.until(lambda: min(map(begin_of, scene.members)) > 0, "segments that go")
    scene.until(lambda: on_its_way.is_committed, "what was on its way")
    scene.until(lambda: not leader.node.raft.replication.too_many_full, "space")
    scene.ask_and_wait(leader, body_bytes=3_000)
    scene.make_whole()


def test_no_segment_goes_that_a_reader_holds_for_disks_that_hang() -> None:
    """They make no space meanwhile, and are not full."""
    consensus = replace(QUIET.consensus, heartbeat_interval_ms=400)
    scene = Scenario(profile=replace(keeping(), consensus=consensus))
    scene.append(3)
    moved(scene, ReaderMove("billing", 3, hold=Hold.READER, opens=True))
    scene.append(60)
    leader = scene.await_leader()
    for member in scene.followers():
        member.hang(True)
    asked = [scene.ask(leader, timeout_ms=60_000)]
    scene.run_for(HANGS_AFTER_MS + 1_000)
    asked += [scene.ask(leader, body_bytes=900, timeout_ms=60_000) for _ in range(20)]
    scene.run_for(3_000)
    assert any(member.node._writer.disk_full for member in scene.followers())
    for member in scene.members:
        member.hang(False)
    scene.run_for(10_000)
    assert [begin_of(member) for member in scene.members] == [0, 0, 0]
    assert all(each.is_committed for each in asked)
    scene.make_whole()


def test_a_member_that_has_no_space_for_a_snapshot_is_waited_for_within_its_budget() -> None:
    """It is to get the start of the log, and cannot take what goes with it."""
    profile = keeping(budget_bytes=0, snapshot_entries=5)
    scene = MachineScenario(profile=replace(profile, runs_machines=True))
    wiped = scene.followers()[0]
    wiped.kill()
    scene.commands(60)
    scene.until(lambda: begin_of(scene.await_leader()) > 0, "a begin")
    wiped.wipe()
    wiped.start()
    scene.until(lambda: wiped.node.raft.role is Role.OBSERVER, "an observer", step_ms=0.1)
    usage = wiped.disk.usage("/")
    wiped.disk.capacity_bytes = usage.total_bytes - usage.free_bytes
    end_index = scene.await_leader().node.store.end.index
    scene.commands(60)
    scene.run_for(PIN_MS + 5_000)  # as long as the snapshots stay that it was offered
    assert wiped.node.store.end.index == -1
    assert begin_of(scene.await_leader()) > end_index, "it is waited for without a bound"
    assert any("no space for the snapshots" in each for each in wiped.node.problems())
    make_room(wiped)
    scene.make_whole()
