"""Disks and cuts of the log: what random runs come by too rarely, step by step.

The mutants (tests/mutants/) run these as well: each fails where the rule that it is about is broken.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import ProtocolViolation
from quorumlog.store.durable_file import DURABLE_NAME
from quorumlog.store.slot_file import SLOT_BYTES
from quorumlog.store.state_files import CHECKPOINT_NAME, HARD_STATE_NAME, Checkpoint, encode_checkpoint
from quorumlog.testing.disk import PAGE_BYTES
from quorumlog.testing.member import SimMember
from quorumlog.testing.profile import SimulationProfile
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario

# ---------------------------------------------------------------- disks


def test_either_slot_of_a_file_of_promises_is_enough() -> None:
    for name, slot in product((HARD_STATE_NAME, DURABLE_NAME), (0, 1)):
        scene = Scenario()
        member = scene.members[0]
        for _ in range(3):
            scene.append()
            leader = scene.await_leader()
            scene.cut([leader], scene.followers())
            scene.await_leader(*scene.followers())
            scene.heal()
        scene.append()
        member.kill()
        member.disk.flip(f"{member.path}/{name}", slot * SLOT_BYTES + 100, 1)
        member.start()  # checkers raise if it starts with less than it had promised
        scene.make_whole()


def test_damage_below_the_durable_point_is_repaired_and_shortens_nothing() -> None:
    scene = Scenario()
    scene.append(10)
    member = scene.followers()[0]
    position = member.node.store.range_of(5, 6, 1).position
    member.kill()
    path = member.segment_path()
    member.disk.flip(path, position + 32, 1)
    member.start()  # DurableEntries raises if it starts with less than it had
    assert member.node.store.damaged
    scene.make_whole()
    assert not member.node.store.damaged


def _with_an_unsynced_tail(entries: int, body_bytes: int) -> tuple[Scenario, SimMember, int]:
    """A follower that has written the entries and synced none of them, and the index of the last."""
    scene = Scenario()
    scene.append(2)
    leader, member = scene.await_leader(), scene.followers()[0]
    member.sync_ms = 1e6
    for _ in range(entries):
        scene.ask_and_wait(leader, body_bytes)
    last = leader.node.store.end.index
    scene.until(lambda: member.node.store.end.index == last, "a tail")
    assert member.node.store.durable.index <= last - entries
    member.sync_ms = 1.0
    return scene, member, last


def test_a_torn_entry_is_cut_also_where_its_header_is_whole() -> None:
    scene, member, last = _with_an_unsynced_tail(3, 500)
    position = member.node.store.range_of(last, last + 1, 1).position
    member.kill()
    member.disk.flip(member.segment_path(), position + 400, 1)
    member.start()
    assert member.node.store.end.index == last - 1, "keeps an entry of which it has only a part"
    scene.make_whole()


def test_a_tail_that_goes_on_in_the_next_segment_is_kept() -> None:
    scene, member, last = _with_an_unsynced_tail(4, 3000)
    member.kill()
    member.start()
    assert member.node.store.end.index == last, "the log ends with a segment that is full"
    scene.make_whole()


def test_a_cut_inside_damage_takes_nothing_of_what_the_member_has_acknowledged() -> None:
    """Three entries are committed, and of those who have them only the leader knows; it has more by
    itself. Its disk loses all of that, the other one of the two leads then, and the third is slow."""
    scene = Scenario()
    scene.append()
    old = scene.await_leader()
    new, slow = scene.followers()
    scene.cut([slow], [old, new])
    for _ in range(3):
        asked = scene.ask(old)
    scene.until(lambda: asked.is_committed, "acknowledged append")
    scene.cut([old], [new])
    for _ in range(3):
        scene.ask(old)
    scene.run_for(20)
    store = old.node.store
    first, stop = 3, store.end.index + 1
    positions = [store.range_of(index, index + 1, 1).position for index in range(first, stop)]
    for member in scene.members:
        member.kill()
    path = old.segment_path()
    for position in positions:
        old.disk.flip(path, position, 1)
    scene.heal(new, slow)
    new.start()
    slow.start()
    scene.await_leader(new)
    scene.cut([new], [slow])
    scene.heal(old, new)
    old.start()
    assert [(each.first_index, each.stop_index) for each in old.node.store.damaged] == [(first, stop)]
    scene.until(lambda: old.node.store.end == new.node.store.end, "one log")
    scene.heal()
    scene.make_whole()  # checkers raise if a committed entry is cut
    assert not old.node.store.damaged


def test_a_member_acknowledges_nothing_from_damage_on_that_may_not_be_committed() -> None:
    """A new leader does not know what was committed before it, and would count a disk that lacks it."""
    for seed in range(1, 3):
        scene = Scenario(seed=seed)
        scene.append(6)
        leader, damaged = scene.await_leader(), scene.followers()[0]
        position = damaged.node.store.range_of(3, 4, 1).position
        for member in scene.members:
            member.kill()
        damaged.disk.flip(damaged.segment_path(), position + 32, 1)
        damaged.is_damaged = True  # so the end waits until it is repaired
        leader.start()
        node = leader.node
        scene.until(lambda node=node: node.log_state.states is not None, "state", step_ms=0.1)
        damaged.start()  # the third stays away
        leader.sync_ms = 20_000.0  # what is to repair the other is read from there
        scene.await_leader(leader)
        scene.await_one_log(damaged, leader)
        scene.run_for(50)  # PromisesOnDisk raises if the no-op is acknowledged
        assert damaged.node.store.damaged, "repaired too early to mean anything"
        leader.sync_ms = 1.0
        scene.make_whole()


def test_an_acknowledgement_that_waits_is_withheld_once_damage_is_found_in_front_of_it() -> None:
    """Of two entries the first is on the disk, and damaged, when the second still waits for its sync;
    the member knows of neither that it is committed."""
    scene = Scenario(profile=replace(QUIET, delay_ms=20.0), seed=3)
    scene.append(3)
    leader = scene.await_leader()
    damaged, third = scene.followers()
    scene.cut([third], [leader, damaged])
    store, index = damaged.node.store, leader.node.store.end.index + 1
    scene.ask(leader)
    scene.run_for(10)
    scene.ask(leader)
    scene.until(lambda: store.durable.index == index, "a sync of the first")
    damaged.sync_ms = 30.0
    scene.until(lambda: store.end.index == index + 1, "the second")
    assert store.durable.index == index
    position = store.range_of(index, index + 1, 1).position
    damaged.disk.flip(damaged.segment_path(), position + 32, 1)
    damaged.is_damaged = True
    damaged.node.repairer.settle(store.examine(index, index + 1))
    assert [(each.first_index, each.stop_index) for each in store.damaged] == [(index, index + 1)]
    scene.until(lambda: store.durable.index == index + 1, "a sync of the second")
    scene.run_for(1)  # PromisesOnDisk raises if the second is acknowledged now
    assert store.damaged, "repaired too early to mean anything"
    scene.heal()
    scene.make_whole()


def test_damage_in_front_of_known_damage_is_withheld_with_it() -> None:
    """The look at it ends behind the known range, so what it finds overlaps that."""
    scene = Scenario()
    scene.append(8)
    damaged = scene.followers()[0]
    store = damaged.node.store
    positions = [store.range_of(index, index + 1, 1).position for index in range(6)]
    path = damaged.segment_path()
    damaged.is_damaged = True
    scene.cut([damaged], [member for member in scene.members if member is not damaged])
    for index in (5, 4):
        damaged.disk.flip(path, positions[index] + 32, 1)
        damaged.node.repairer.settle(store.examine(index, index + 1))
    assert [(each.first_index, each.stop_index) for each in store.damaged] == [(4, 6)], (
        "forgets an entry"
    )
    assert damaged.node.raft.log.damaged.ranges == [(4, 6)], "the core does not know of an entry"
    scene.heal()
    scene.make_whole()


def test_other_entries_of_the_same_ids_are_not_taken() -> None:
    """As a leader pushes them that was put back from an older copy and leads its term once more."""
    scene = Scenario()
    scene.append(3)
    leader, follower = scene.await_leader(), scene.followers()[0]
    node, end = follower.node, follower.node.store.end
    batch = EntryBatch.from_bodies([b"1st", b"2nd", b"3rd", b"4th"])
    previous_chain = node.store.chain_at(0)
    begin = node.store.range_of(1, 2, 1).position
    batch.stamp(1, node.raft.term, begin + batch.starts, previous_chain)
    push = PushEntryRequest(
        sender=leader.replica,
        term=node.raft.term,
        push=PushType.APPEND,
        committed_index=3,
        previous=node.store.id_at(0),
        first_index=1,
        count=4,
        term_runs=batch.term_runs(),
        previous_chain=previous_chain,
        batch=batch,
    )
    refused = False
    for _ in range(2):  # the first is looked into beside the loop, its repetition refused
        try:
            node.receive(push)
            node.turn()
        except ProtocolViolation:
            refused = True
        scene.run_for(20)
    assert refused, "takes a push over other entries"
    assert node.store.end == end
    scene.make_whole()


def test_pieces_of_damage_are_fetched_from_whoever_holds_them() -> None:
    """The range of one member begins in front of the other's and ends in it; the third is away."""
    scene = Scenario()
    scene.append(20)
    store = scene.members[0].node.store
    positions = [store.range_of(index, index + 1, 1).position for index in range(20)]
    away = scene.await_leader()
    lost = dict(zip(scene.followers(), ((4, 10), (7, 13)), strict=True))
    away.kill()
    for member, (first, stop) in lost.items():
        for index in range(first, stop):
            member.disk.flip(member.segment_path(), positions[index] + 8, 1)
        member.is_damaged = True
        held = member.node.store
        member.enter(
            lambda held=held, m=member, at=first: m.node.repairer.settle(held.examine(at, at + 1))
        )
    scene.run_for(5_000)
    for member in lost:
        ranges = [(each.first_index, each.stop_index) for each in member.node.store.damaged]
        assert ranges == [(7, 10)], "what the other one holds was not fetched"
    away.start()
    scene.make_whole()


def test_damage_found_on_a_full_disk_is_found_again_by_a_restart() -> None:
    scene = Scenario()
    scene.append(8)
    damaged = scene.followers()[0]
    position = damaged.node.store.range_of(3, 4, 1).position
    damaged.stop()
    damaged.start()  # the index is synced by a start, so a later one trusts what it says
    scene.append()
    usage = damaged.disk.usage("/")
    damaged.disk.capacity_bytes = usage.total_bytes - usage.free_bytes
    scene.cut([damaged], [member for member in scene.members if member is not damaged])
    damaged.disk.flip(damaged.segment_path(), position + 32, 1)
    damaged.is_damaged = True
    damaged.node.repairer.settle(damaged.node.store.examine(3, 4))
    scene.run_for(100)
    assert any("make space" in problem for problem in damaged.node.problems())
    for end in (damaged.kill, damaged.stop):
        end()
        damaged.start()
        assert damaged.node.store.damaged, "takes a damaged entry for a good one"
    scene.heal()
    scene.make_whole()


def test_a_piece_without_space_waits_for_it_and_status_says_so() -> None:
    """A data file is gone, and somebody else has taken its space before it is made again."""
    scene = Scenario()
    scene.append(4)
    for _ in range(5):
        scene.ask_and_wait(scene.await_leader(), 3_000)  # over more than one segment
    scene.append()
    damaged = scene.followers()[0]
    damaged.kill()
    damaged.disk.delete(damaged.segment_path())
    damaged.is_damaged = True
    usage = damaged.disk.usage("/")
    damaged.disk.capacity_bytes = usage.total_bytes - usage.free_bytes
    damaged.start()
    scene.run_for(5_000)
    assert damaged.is_up, "stops for lack of space"
    (lost,) = damaged.node.store.damaged
    said = [problem for problem in damaged.node.problems() if "damaged, no other member" in problem]
    assert len(said) == 1, damaged.node.problems()
    assert f"no space to write entries again at {lost.before.position} in " in said[0]
    damaged.disk.capacity_bytes *= 2
    scene.until(lambda: not damaged.node.store.damaged, "repair")
    assert not damaged.node.problems()
    scene.make_whole()


def test_a_group_that_starts_on_full_disks_has_space_for_its_leaders_no_op() -> None:
    """A neighbour takes at once what a start gives back."""
    scene = Scenario()
    scene.append(5)
    left_bytes = -scene.await_leader().node.store.end.position % PAGE_BYTES
    scene.ask_and_wait(scene.await_leader(), left_bytes - HEADER_BYTES - 8)
    scene.run_for(100)
    for member in scene.members:
        usage = member.disk.usage("/")
        member.disk.capacity_bytes = usage.total_bytes - usage.free_bytes
        member.disk.has_greedy_neighbour = True
    for _ in range(3):
        for member in scene.members:
            member.kill()
        for member in scene.members:
            member.start()
        leader = scene.await_leader()
        end = leader.node.store.end.index
        scene.until(lambda: leader.node.committed_index >= end, "a commit in the new term")  # noqa: B023
    scene.make_whole()


def test_a_checkpoint_of_another_log_proves_nothing() -> None:
    scene = Scenario()
    scene.append(3)
    member = scene.followers()[0]
    end = member.node.store.end
    member.kill()
    another = Checkpoint(end.index, end.index, end.term, end.chain ^ 1)
    member.disk.write_file(f"{member.path}/{CHECKPOINT_NAME}", encode_checkpoint(another))
    member.start()
    assert member.node.committed_index == -1, "believes a checkpoint whose entry it does not hold"
    scene.make_whole()


# ---------------------------------------------------------------- truncation


def test_a_crash_at_any_step_of_a_cut_leaves_a_directory_that_starts() -> None:
    for effect in range(1, 40):
        scene, old, others = _leader_with_entries_that_must_go(seed=effect)
        old.disk.crash_random = scene.cluster.random
        scene.heal()
        while old.node.raft.leader not in [member.replica for member in others]:
            scene.run_for(0.02)
        old.disk.crash_countdown = effect
        scene.run_for(200)
        scene.make_whole()
        recovered = [
            what for what in scene.cluster.trace.counts if what.startswith("recovery: entries in")
        ]
        assert not recovered, f"interrupted at effect {effect}, the cut passes for damage: {recovered}"


def test_a_sync_under_way_does_not_vouch_for_what_a_cut_has_taken_back() -> None:
    for seed in range(1, 9):
        scene, old, others = _leader_with_entries_that_must_go(seed=seed, flush="async", sync_ms=9_000)
        scene.heal()
        scene.await_one_log(old, scene.await_leader(*others))
        assert old.node._flusher._task is not None, "the sync has ended too early to mean anything"
        scene.run_for(10_000)
        scene.make_whole()


def test_of_two_cuts_under_one_sync_the_deeper_one_counts() -> None:
    for seed in range(1, 4):
        scene, first, others = _leader_with_entries_that_must_go(
            size=5, seed=seed, flush="async", sync_ms=10_000
        )
        second = scene.await_leader(*others)
        for _ in range(5):
            scene.ask_and_wait(second, 2_500)  # over more than one segment
        rest = [member for member in others if member is not second]
        scene.cut([second], rest)
        scene.heal(first, second)
        for _ in range(3):
            scene.ask(second)
        scene.await_one_log(first, second)
        third = scene.await_leader(*rest)
        scene.cut([first], [second])
        scene.heal(first, *rest)
        scene.await_one_log(first, third)
        assert first.node._flusher._task is not None, "the sync has ended too early to mean anything"
        scene.run_for(10_000)
        scene.make_whole()


def test_pushes_that_overtake_each_other_make_the_same_log() -> None:
    for seed in range(1, 9):
        profile = replace(
            QUIET,
            consensus=replace(QUIET.consensus, push_limit_bytes=1),  # an entry each
            in_order=False,
            delay_ms=20.0,
        )
        scene, old, others = _leader_with_entries_that_must_go(seed=seed, profile=profile)
        new = scene.await_leader(*others)
        scene.heal()
        for _ in range(5):
            scene.ask(new)
            scene.run_for(1)
        scene.await_one_log(old, new)
        scene.make_whole()


def test_an_answer_of_an_earlier_term_says_nothing_about_the_log_of_this_one() -> None:
    """It was held up on its way; its sender has dropped since what it acknowledged."""
    for seed in range(1, 9):
        profile = replace(QUIET, in_order=False, delay_ms=5.0, holds_cut_messages=True)
        scene = Scenario(size=5, seed=seed, profile=profile)
        scene.append(3)
        leader = scene.await_leader()
        late, *others = scene.followers()
        scene.cut([leader, late], others)
        scene.cut([late], [leader], both_ways=False)
        for _ in range(4):
            scene.ask(leader)
            scene.run_for(10)
        assert late.node.store.end.index == leader.node.store.end.index
        scene.cut([leader], [late])
        other = scene.await_leader(*others)
        scene.heal(late, *others)
        scene.await_one_log(late, other)  # what it has acknowledged is gone
        scene.heal(leader, *others)
        scene.await_one_log(leader, other)
        scene.cut([late], others)
        scene.hand_over(other, leader)
        for _ in range(4):
            scene.ask(leader)
        scene.run_for(10)
        late.sync_ms = 500.0
        scene.cluster.network.heal({(leader.member_id, late.member_id)})
        scene.run_for(20)
        scene.heal(leader, late)
        scene.run_for(100)
        scene.make_whole()


def test_a_member_refuses_to_cut_what_it_knows_to_be_committed() -> None:
    """The others were put back to an old copy of their disks, and lead it now."""
    scene = Scenario(checked=False)  # what the others have promised is broken, by hand
    scene.append(3)
    copies = {member.member_id: member.disk.snapshot() for member in scene.members}
    scene.append(3)
    faithful = scene.await_leader()
    others = scene.followers()
    end = faithful.node.store.end
    for member in scene.members:
        member.stop()
    for member in others:
        member.disk.restore(copies[member.member_id])
        member.start()
    scene.ask(scene.await_leader(*others))
    scene.run_for(100)
    faithful.start()
    scene.run_for(10 * ELECTION_MS)
    assert any("DIVERGED_BELOW_COMMIT" in problem for problem in faithful.node.problems())
    assert faithful.node.store.end == end


def _leader_with_entries_that_must_go(
    *,
    size: int = 3,
    seed: int = 1,
    flush: str = "sync",
    sync_ms: float = 1.0,
    profile: SimulationProfile = QUIET,
) -> tuple[Scenario, SimMember, list[SimMember]]:
    """A leader was cut off with appends that only it has; the others, who come last, have a new one."""
    scene = Scenario(size=size, seed=seed, flush=flush, profile=profile)
    scene.append(3)
    old = scene.await_leader()
    others = scene.followers()
    scene.cut([old], others)
    old.sync_ms = sync_ms
    old.read_ms = 1.0
    for _ in range(5):
        scene.ask(old)
        scene.run_for(5)
    scene.await_leader(*others)
    return scene, old, others
