"""Control entries where leaders change and disks are damaged; `same_state` watches every run, too."""

from __future__ import annotations

from quorumlog.consensus.ready import Role
from quorumlog.log_state.control_entries import TimeMark, encode_body
from quorumlog.log_state.log_state import LogState
from quorumlog.store.state_files import save_start
from quorumlog.testing.member import SimMember
from tests.sim.scenario import ELECTION_MS, Scenario
from tests.sim.test_scenarios import FORGETFUL, restart_with_flush

MARK = TimeMark(1_234_567_890_123)


def time_of(member: SimMember) -> int | None:
    states = member.node.log_state.states
    return states.appended.time_ms if states and isinstance(states.appended, LogState) else None


def write(scene: Scenario, member: SimMember, mark: TimeMark) -> None:
    member.enter_node("propose_control", mark)
    scene.until(lambda: time_of(member) == mark.time_ms, "state that knows the mark")


def test_what_is_cut_leaves_nothing_in_the_state() -> None:
    scene = Scenario()
    old = scene.await_leader()
    others = scene.followers()
    write(scene, old, TimeMark(1))
    scene.append()
    scene.cut([old], others)
    write(scene, old, TimeMark(1000))
    new = scene.await_leader(*others)
    write(scene, new, TimeMark(10))
    scene.heal()
    scene.make_whole()
    assert [time_of(member) for member in scene.members] == [10, 10, 10]


def test_a_boundary_is_not_believed_before_it_is_committed() -> None:
    """A leader that is alone begins another segment, on its disk only. What it finds there once it is
    started again is no proof."""
    scene = Scenario()
    old = scene.await_leader()
    others = scene.followers()
    write(scene, old, TimeMark(1))
    scene.append()
    scene.cut([old], others)
    for _ in range(2):
        scene.ask(old, 5000)
    write(scene, old, TimeMark(1000))
    store = old.node.store
    scene.until(lambda: store.boundaries.newest(store.durable.index) is not None, "boundary on its disk")
    scene.run_for(100)
    old.kill()
    new = scene.await_leader(*others)
    write(scene, new, TimeMark(10))
    old.start()
    assert old.node.committed_index < old.node.store.end.index
    scene.heal()
    scene.make_whole()
    assert [time_of(member) for member in scene.members] == [10, 10, 10]


def test_the_state_of_a_log_without_its_first_entries_is_that_of_its_start() -> None:
    scene = Scenario()
    write(scene, scene.await_leader(), TimeMark(1))
    for _ in range(4):
        scene.ask_and_wait(scene.await_leader(), 5000)
    scene.append()
    member = scene.followers()[0]
    start = next(member.node.store.boundaries.saved())
    member.stop()
    save_start(member.disk, member.path, start)
    member.start()
    assert member.node.store.begin == start.point
    scene.append()
    assert [time_of(member) for member in scene.members] == [1, 1, 1]
    write(scene, scene.await_leader(), TimeMark(10))
    scene.append()
    assert [time_of(member) for member in scene.members] == [10, 10, 10]


def test_who_cannot_read_a_control_entry_does_not_lead() -> None:
    """It is alone, so nobody can repair it."""
    scene = Scenario(size=1)
    member = scene.await_leader()
    write(scene, member, MARK)
    scene.append(3)
    member.stop()
    path = member.segment_path()
    member.disk.flip(path, member.disk.content(path).index(encode_body(MARK)) + 2, 1)
    member.start()
    for _ in range(100):
        scene.run_for(100)
        assert member.node.raft.role is not Role.LEADER, member.node.log_state.problem
    assert member.node.log_state.problem


def test_async_mode_takes_back_what_it_had_called_committed() -> None:
    """Two forget a mark that was committed and go on without it: the third reads its log once more."""
    were_cut = 0
    for seed in range(1, 13):  # what is left after a power loss is luck
        scene = Scenario(flush="async", profile=FORGETFUL, seed=seed)
        scene.append(3)
        write(scene, scene.await_leader(), TimeMark(1))
        scene.append()
        for member in scene.members:
            restart_with_flush(member, "async")  # which syncs what it has so far
        scene.await_leader()
        scene.run_for(4 * ELECTION_MS)
        write(scene, scene.await_leader(), MARK)
        scene.append()
        own, *others = scene.members
        scene.run_for(4 * ELECTION_MS)
        scene.cut([own], others)
        for member in others:
            member.lose_power()
        for member in others:
            member.start()
        heir = scene.await_leader(*others)
        for _ in range(3):
            scene.ask_and_wait(heir)
        scene.heal()
        scene.run_for(20 * ELECTION_MS)
        scene.make_whole()
        assert len({time_of(member) for member in scene.members}) == 1
        were_cut += scene.cluster.trace.counts["async: committed entries are cut"] and time_of(own) == 1
    assert were_cut
