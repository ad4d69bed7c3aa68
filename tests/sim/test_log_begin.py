"""Logs that no longer have their first entries: what DLedger gets wrong there (docs/divergence.md)."""

from __future__ import annotations

import msgspec

from quorumlog.errors import IndexOutOfRange
from quorumlog.store.log_points import LogStart
from quorumlog.store.state_files import save_start
from quorumlog.testing.member import SimMember
from tests.sim.scenario import ELECTION_MS, Scenario


def fill(scene: Scenario, entries: int = 6) -> None:
    """Segments are of 8192 bytes: an entry each."""
    for _ in range(entries):
        scene.ask_and_wait(scene.await_leader(), 5000)
    scene.append()
    scene.run_for(200)  # the states at the boundaries are saved


def boundaries(member: SimMember) -> list[LogStart]:
    """The oldest first."""
    return list(member.node.store.boundaries.saved())[::-1]


def drop(scene: Scenario, member: SimMember, start: LogStart) -> None:
    member.enter(lambda: member.node.drops.begin(start))
    scene.until(lambda: member.node.store.begin == start.point, "the first segments to go")
    scene.until(lambda: not member.node.drops.is_under_way, "their files to go")


def bodies(member: SimMember, first_index: int) -> list[bytes]:
    store = member.node.store
    found, index = [], first_index
    while index <= store.end.index:
        log_range, batch = store.read_from(index, store.end.index + 1, 1 << 20)
        batch.check_bodies()
        found += [bytes(body) for body in batch.bodies()]
        index = log_range.stop_index
    return found


def test_a_cut_takes_what_was_cut_although_every_log_begins_elsewhere() -> None:
    """Java cuts where a header says that its entry lies, which is somewhere else once the log has a
    begin: all of it goes (W5)."""
    scene = Scenario()
    fill(scene)
    old = scene.await_leader()
    others = scene.followers()
    for number, member in enumerate([old, *others]):
        drop(scene, member, boundaries(member)[number])
    begins = [member.node.store.begin for member in scene.members]
    scene.cut([old], others)
    for _ in range(3):
        scene.ask(old, 5000)
    scene.run_for(50)
    lost = old.node.store.end
    new = scene.await_leader(*others)
    scene.ask_and_wait(new, 100)
    scene.heal()
    scene.until(lambda: old.node.store.end == new.node.store.end, "one log")
    scene.append(2)
    assert old.node.store.end.term > lost.term
    assert [member.node.store.begin for member in scene.members] == begins
    first = max(begin.index for begin in begins) + 1
    logs = [bodies(member, first) for member in scene.members]
    assert logs[0] == logs[1] == logs[2]
    for member in scene.members:
        member.kill()
        member.start()
    scene.append(2)
    assert [member.node.store.begin for member in scene.members] == begins


def test_who_votes_goes_by_where_its_log_ends_after_a_cut_and_without_any_entry() -> None:
    """Java goes on voting with the end from before a cut, and with none at all once nothing is left
    behind its begin (W6)."""
    scene = Scenario(checked=False)  # it loses by hand what it had acknowledged
    fill(scene)
    leader, (one, other) = scene.await_leader(), scene.followers()
    start = boundaries(leader)[-1]
    # All that `other` has is where the log begins: as a member that was just given it.
    other.kill()
    save_start(other.disk, other.path, msgspec.structs.replace(start, replaces=True))
    scene.cut([leader], [one, other])
    other.start()
    node = other.node
    assert node.store.begin == node.store.end == start.point
    assert node.raft.ledger_end == start.point.entry_id
    # With `one` it is a majority, and only `one` may lead: the log of the other is shorter.
    scene.run_for(ELECTION_MS)
    new = scene.await_leader(one, other)
    assert new is one, "the longer log leads"
    scene.ask_and_wait(one, 100)
    scene.heal()
    scene.append(2)
    for member in scene.members:
        assert member.node.raft.ledger_end == member.node.store.end.entry_id
    assert bodies(other, start.point.index + 1) == bodies(leader, start.point.index + 1)


def test_a_start_that_found_no_space_is_saved_once_there_is_some() -> None:
    """The core began there already: who needed the start of this log was given nothing for ever."""
    scene = Scenario()
    fill(scene, 3)
    leader, (one, lagging) = scene.await_leader(), scene.followers()
    scene.cut([lagging], [leader, one])
    for _ in range(6):
        scene.ask_and_wait(leader, 5000)
    scene.run_for(200)
    start = boundaries(leader)[-1]
    roomy_bytes, leader.disk.capacity_bytes = leader.disk.capacity_bytes, 0
    leader.enter(lambda: leader.node.drops.begin(start))
    scene.until(lambda: "no space" in leader.node.drops.problem, "a full disk")
    assert leader.node.raft.begin == start.point.entry_id
    leader.disk.capacity_bytes = roomy_bytes
    scene.heal()
    scene.until(lambda: leader.node.store.begin == start.point, "the start on the disk")
    scene.make_whole()
    assert lagging.node.store.end.index == leader.node.store.end.index


def test_who_lags_behind_a_begin_is_never_fed_over_the_gap() -> None:
    """Java lets segments expire whoever needs them, and the follower goes on with the first that is
    left: the gap is gone without a word (W20)."""
    scene = Scenario()
    fill(scene, 3)
    leader, (one, lagging) = scene.await_leader(), scene.followers()
    held = lagging.node.store.end.index
    scene.cut([lagging], [leader, one])
    for _ in range(6):
        scene.ask_and_wait(leader, 5000)
    scene.run_for(200)
    start = boundaries(leader)[-1]
    assert start.point.index > held + 1
    for member in (leader, one):
        scene.until(lambda member=member: start in boundaries(member), "the same boundary")
        drop(scene, member, start)
    scene.heal()
    for _ in range(40):
        scene.run_for(ELECTION_MS / 4)
        if not lagging.is_up:
            continue  # its log is being replaced: it begins anew
        store = lagging.node.store
        if store.begin.index < 0:
            assert store.end.index <= start.point.index, "it has not what lies behind the gap"
            assert len(bodies(lagging, 0)) == store.end.index + 1
        else:
            assert store.begin.index >= start.point.index
        assert lagging.node.committed_index <= max(held, store.end.index)
    scene.ask_and_wait(scene.await_leader(leader, one), 100)  # the two go on
    for index in (0, start.point.index):
        try:
            leader.node.readable_range(index, -1, 1000)
        except IndexOutOfRange as refused:
            assert refused.ledger_begin_index == start.point.index + 1
        else:
            raise AssertionError(f"entry {index} was dropped")
