"""The loss matrix of docs/durability.md: each row done to a simulated cluster, in each mode.

Every checker looks on, and at the end of each scenario the log is compared with what was acknowledged.
tests/docs/test_loss_matrix.py holds the table against the modes in which a test here runs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest

from quorumlog.consensus.ready import Role
from quorumlog.entry import AppendReceipt
from quorumlog.errors import DiskFull, RangeDamaged
from quorumlog.store.durable_file import DURABLE_NAME
from quorumlog.store.recovery import SET_ASIDE_NAME
from quorumlog.store.slot_file import SLOT_BYTES
from quorumlog.store.state_files import HARD_STATE_NAME
from quorumlog.testing.faults import ROOMY_BYTES
from quorumlog.testing.member import SimMember
from quorumlog.testing.operations import ClientAppend
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario

ALL = ("sync", "async", "memory")
DISKS = ("sync", "async")
TIMEOUT_MS = 5_000
"""Of the appends of a scenario."""
FLUSHED_MS = 2 * QUIET.storage.flush_interval_ms
"""The background flush of an async member has come to its end."""
SEEDS = (1, 4)
"""Where chance has a part in a scenario."""


def in_modes(*modes: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return pytest.mark.parametrize("mode", modes)


def scene_in(mode: str, *, size: int = 3, seed: int = 1, checked: bool = True) -> Scenario:
    """With three entries that everybody has."""
    store, flush = ("memory", "sync") if mode == "memory" else ("file", mode)
    scene = Scenario(size=size, seed=seed, flush=flush, store=store, checked=checked)
    scene.append(3)
    return scene


def acknowledged(scene: Scenario) -> list[ClientAppend]:
    return [append for append in scene.cluster.operations.appends if append.is_committed]


def lost(scene: Scenario) -> list[ClientAppend]:
    """Acknowledged, and not where the receipt says in what the present leader has committed."""
    node = scene.await_leader().node
    missing = []
    for append in acknowledged(scene):
        assert isinstance(append.outcome, AppendReceipt)
        index = append.outcome.first_index
        if index > node.committed_index or body_at(scene.await_leader(), index) != append.bodies[0]:
            missing.append(append)
    return missing


def body_at(member: SimMember, index: int) -> bytes:
    store = member.node.store
    return bytes(store.read(store.range_of(index, index + 1, 1)).body(0))


def goes_on(scene: Scenario, *among: SimMember) -> None:
    """These members, or all, acknowledge another append."""
    asked = scene.ask(scene.await_leader(*among))

    def is_acknowledged() -> bool:
        nonlocal asked
        if asked.returned_ms >= 0 and not asked.is_committed:
            asked = scene.ask(scene.await_leader(*among))
        return asked.is_committed

    scene.until(is_acknowledged, "acknowledged append", within_ms=20_000)


def nothing_is_lost(scene: Scenario) -> None:
    """All faults end, the cluster heals, and every acknowledged entry is in everybody's log."""
    scene.make_whole()
    assert lost(scene) == []


# ---------------------------------------------------------------- processes


@in_modes(*ALL)
@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_one_of_three_is_killed(mode: str, victim: str) -> None:
    """One of the two that hold an entry; the third has to get it from the other one."""
    scene, leader, other, third = acknowledged_by_two(mode, seed=1)
    killed, alive = (leader, other) if victim == "leader" else (other, leader)
    killed.kill()
    scene.heal()
    goes_on(scene, alive, third)
    assert not scene.leader(third)
    killed.start()
    nothing_is_lost(scene)
    assert (killed.node.raft.role is Role.OBSERVER) == (mode == "memory")


@in_modes(*DISKS)
def test_all_are_killed_at_once(mode: str) -> None:
    scene = scene_in(mode)
    for _ in range(5):
        scene.ask_and_wait(scene.await_leader())
    if mode == "async":
        assert unsynced(scene.members), "all of it was synced already: this would prove nothing"
    for member in scene.members:
        member.kill()
    for member in scene.members:
        member.start()
    nothing_is_lost(scene)


@in_modes("memory")
@pytest.mark.parametrize("how", ["kill", "lose_power"])
def test_memory_forgets_all_when_all_end(mode: str, how: str) -> None:
    scene = scene_in(mode, checked=False)  # what was promised is broken, as the matrix says
    voters = {member.replica for member in scene.members}
    for member in scene.members:
        getattr(member, how)()
    for member in scene.members:
        member.start()
    goes_on(scene)
    assert voters.isdisjoint(scene.await_leader().node.status().voters), "the old group lives on"
    assert lost(scene) == acknowledged(scene)[:3]


@in_modes(*ALL)
def test_the_leader_is_killed_with_appends_in_flight(mode: str) -> None:
    outcomes: set[str] = set()
    for tenths_ms in range(0, 60, 20):
        scene = scene_in(mode, seed=1 + tenths_ms)
        leader = scene.await_leader()
        asked = [scene.ask(leader) for _ in range(20)]
        scene.run_for(tenths_ms / 10)
        leader.kill()
        goes_on(scene, *scene.followers())
        leader.start()
        scene.run_for(2 * TIMEOUT_MS)
        assert all(append.returned_ms >= 0 for append in asked), "an append never ends"
        nothing_is_lost(scene)  # nor are refused ones there, nor unknown ones twice: a checker looks
        outcomes |= {"acknowledged" if append.is_committed else "not" for append in asked}
    assert outcomes == {"acknowledged", "not"}, "all kills came too early, or too late"


@in_modes(*ALL)
def test_a_process_is_stopped_and_continued(mode: str) -> None:
    scene = scene_in(mode)
    stopped = scene.await_leader()
    others = scene.followers()
    scene.ask_and_wait(stopped)
    in_flight = [scene.ask(stopped) for _ in range(5)]
    stopped.pause(8 * ELECTION_MS)
    scene.until(lambda: scene.leader(*others) is not None, "another leader", within_ms=6 * ELECTION_MS)
    goes_on(scene, *others)
    assert stopped.is_paused
    asked = scene.ask(stopped)  # it arrives while the member still takes itself for the leader
    scene.run_for(8 * ELECTION_MS)
    assert stopped.node.raft.role is Role.FOLLOWER
    scene.run_for(2 * TIMEOUT_MS)
    assert not asked.is_committed
    assert not any(append.is_committed for append in in_flight)
    nothing_is_lost(scene)


# ---------------------------------------------------------------- power


def unsynced(members: tuple[SimMember, ...] | list[SimMember]) -> list[SimMember]:
    """Those with an entry in their log that a loss of power may take."""
    return [m for m in members if m.node.store.durable.index < m.node.store.end.index]


def acknowledged_by_two(mode: str, seed: int) -> tuple[Scenario, SimMember, SimMember, SimMember]:
    """The leader and one follower have just acknowledged what the third, which is cut off, lacks."""
    scene = scene_in(mode, seed=seed)
    scene.run_for(FLUSHED_MS)
    leader = scene.await_leader()
    other, third = scene.followers()
    scene.cut([leader, other], [third])
    for _ in range(3):
        scene.ask_and_wait(leader)
    return scene, leader, other, third


@in_modes(*ALL)
def test_one_loses_power_and_the_leader_stays(mode: str) -> None:
    for seed in SEEDS:
        scene, leader, other, third = acknowledged_by_two(mode, seed)
        other.lose_power()
        other.start()
        scene.heal()
        goes_on(scene, leader)
        scene.until(lambda o=other, n=leader: o.node.store.end == n.node.store.end, "caught up")
        if mode != "memory":  # in memory the other one votes no more
            leader.kill()
            goes_on(scene, other, third)
        nothing_is_lost(scene)


@in_modes("sync")
@pytest.mark.parametrize("whose", ["the leader's", "a follower's"])
def test_one_loses_power_and_the_leader_fails(mode: str, whose: str) -> None:
    for seed in SEEDS:
        scene, at_power_loss = power_lost_before_the_third_has_it(mode, seed, whose)
        assert at_power_loss >= 6
        nothing_is_lost(scene)


@in_modes("async")
@pytest.mark.parametrize("whose", ["the leader's", "a follower's"])
def test_async_loses_what_one_forgot_if_the_leader_fails(mode: str, whose: str) -> None:
    """It can happen, and it takes nothing that was flushed."""
    seeds_with_loss = 0
    for seed in SEEDS:
        scene, flushed_index = power_lost_before_the_third_has_it(mode, seed, whose)
        scene.make_whole()
        missing = lost(scene)
        seeds_with_loss += bool(missing)
        for append in missing:
            assert isinstance(append.outcome, AppendReceipt)
            assert append.outcome.first_index > flushed_index, f"{append} was flushed, and is lost"
        survived = [append for append in acknowledged(scene) if append not in missing]
        assert len(survived) >= 3
    assert seeds_with_loss, "nothing was ever lost: the matrix claims too little"


def power_lost_before_the_third_has_it(mode: str, seed: int, whose: str) -> tuple[Scenario, int]:
    """One of the two that have an entry forgets what it may and elects with the third, while the other
    is down. Returns also the last index that was synced where power was lost."""
    scene, leader, other, third = acknowledged_by_two(mode, seed)
    forgetful, down = (leader, other) if whose == "the leader's" else (other, leader)
    flushed_index = forgetful.node.store.durable.index
    forgetful.lose_power()
    down.kill()
    forgetful.start()
    scene.heal()
    goes_on(scene, forgetful, third)
    down.start()
    return scene, flushed_index


@in_modes("sync")
def test_all_lose_power_at_once(mode: str) -> None:
    for seed in SEEDS:
        scene, _ = power_lost_under_load(mode, seed)
        nothing_is_lost(scene)


@in_modes("async")
def test_async_loses_the_last_flush_interval_if_all_lose_power(mode: str) -> None:
    seeds_with_loss = 0
    for seed in SEEDS:
        scene, power_lost_ms = power_lost_under_load(mode, seed)
        scene.make_whole()
        missing = lost(scene)
        seeds_with_loss += bool(missing)
        # A flush that began just before the append was written, and the one that would have held it.
        oldest_ms = power_lost_ms - QUIET.storage.flush_interval_ms - 2 * QUIET.sync_ms
        assert all(append.returned_ms >= oldest_ms for append in missing), missing
        assert len(missing) < len(acknowledged(scene)) - 30
    assert seeds_with_loss, "nothing was ever lost: the matrix claims too little"


def power_lost_under_load(mode: str, seed: int) -> tuple[Scenario, float]:
    """All lose power in the middle of a stream of appends; returns also when."""
    scene = scene_in(mode, seed=seed)
    leader = scene.await_leader()
    for _ in range(3 * QUIET.storage.flush_interval_ms):
        scene.ask(leader)
        scene.run_for(1)
    power_lost_ms = scene.cluster.now_ms
    for member in scene.members:
        member.lose_power()
    scene.run_for(10)  # answers that were on their way arrive
    assert len(acknowledged(scene)) > 50
    for member in scene.members:
        member.start()
    scene.await_leader()
    return scene, power_lost_ms


# ---------------------------------------------------------------- network


@in_modes(*ALL)
def test_the_network_splits(mode: str) -> None:
    scene = scene_in(mode, size=5)
    leader = scene.await_leader()
    with_it, *majority = scene.followers()
    scene.cut([leader, with_it], majority)
    cut_off = [scene.ask(leader) for _ in range(3)]
    goes_on(scene, *majority)
    scene.run_for(4 * ELECTION_MS)
    late = scene.ask(leader)
    scene.run_for(2 * TIMEOUT_MS)
    assert late.is_refused, "the side without a majority takes appends"
    assert not any(append.is_committed for append in cut_off)
    goes_on(scene, *majority)
    nothing_is_lost(scene)


# ---------------------------------------------------------------- directories


@in_modes(*ALL)
def test_a_minority_is_wiped(mode: str) -> None:
    """One of the two that hold an entry. It must not help the third, which lacks it, to lead."""
    scene, leader, wiped, third = acknowledged_by_two(mode, seed=1)
    leader.kill() if mode != "memory" else leader.pause(20 * ELECTION_MS)
    wiped.wipe()
    wiped.start()
    scene.heal()
    scene.run_for(15 * ELECTION_MS)
    assert scene.leader(wiped, third) is None, "elected with the vote of a member that forgot"
    leader.start()
    goes_on(scene, leader, third)
    scene.run_for(FLUSHED_MS)
    assert wiped.node.raft.role is Role.OBSERVER
    nothing_is_lost(scene)


@in_modes(*ALL)
def test_a_majority_is_wiped(mode: str) -> None:
    scene = scene_in(mode)
    living = scene.await_leader()
    wiped = scene.followers()
    for member in wiped:
        member.wipe()
        member.start()
    scene.run_for(20 * ELECTION_MS)
    if mode != "memory":  # a restart would be the end of the last voter
        living.kill()
        living.start()
    scene.run_for(20 * ELECTION_MS)
    assert scene.leader() is None, "a group was formed over what is left"
    assert all(member.node.raft.role in (Role.OBSERVER, Role.UNFORMED) for member in wiped)
    held = [body_at(living, append.outcome.first_index) for append in acknowledged(scene)]
    assert held == [append.bodies[0] for append in acknowledged(scene)]


@in_modes(*DISKS)
@pytest.mark.parametrize("name", [HARD_STATE_NAME, DURABLE_NAME])
def test_a_file_of_promises_is_unreadable(mode: str, name: str) -> None:
    scene, leader, forgetful, third = acknowledged_by_two(mode, seed=1)
    leader.kill()
    forgetful.is_lost = True
    forgetful.kill()
    for slot in (0, 1):
        forgetful.disk.flip(f"{forgetful.path}/{name}", slot * SLOT_BYTES + 100, 1)
    forgetful.start()
    scene.heal()
    scene.run_for(15 * ELECTION_MS)
    assert scene.leader(forgetful, third) is None, "elected with the vote of a member that forgot"
    leader.start()
    goes_on(scene, leader, third)
    assert forgetful.node.raft.role is Role.OBSERVER
    nothing_is_lost(scene)


# ---------------------------------------------------------------- writes that end half way


@in_modes(*DISKS)
def test_a_write_is_torn_by_a_crash(mode: str) -> None:
    """Some of it is on the disk. What is whole may stay, what is not is cut and kept aside."""
    kept_aside = 0
    for effect, how in zip(range(1, 13), cycle(("kill", "power loss")), strict=False):
        scene = scene_in(mode, seed=effect)
        leader = scene.await_leader()
        torn = scene.followers()[effect % 2]
        for _ in range(3):
            scene.ask(leader, 1_000)
        scene.cluster.faults.processes.crash_at_effect(torn, effect, how)
        goes_on(scene, leader)
        nothing_is_lost(scene)
        folder = f"{torn.path}/{SET_ASIDE_NAME}/"
        aside = [path for path in torn.disk.paths() if path.startswith(folder)]
        reported = [
            what for what in scene.cluster.trace.counts if what.startswith("recovery: torn tail")
        ]
        assert len(aside) == len(reported)
        kept_aside += len(aside)
    assert kept_aside, "no crash has ever torn a write"


@in_modes(*DISKS)
def test_power_is_lost_inside_a_truncation(mode: str) -> None:
    for effect in range(1, 25, 4):
        scene = scene_in(mode, seed=effect)
        old = scene.await_leader()
        others = scene.followers()
        scene.cut([old], others)
        gone = [scene.ask(old, 700) for _ in range(5)]
        scene.run_for(50)
        goes_on(scene, *others)
        scene.heal()
        while old.node.raft.leader not in [member.replica for member in others]:
            scene.run_for(0.02)
        scene.cluster.faults.processes.crash_at_effect(old, effect, "power loss")
        scene.run_for(200)
        nothing_is_lost(scene)
        # Whole segments were compared with the others', too: a checker looks.
        data = b"".join(old.disk.content(path) for path in old.disk.paths() if "/data/" in path)
        assert not any(append.bodies[0] in data for append in gone), "old bytes are back"


# ---------------------------------------------------------------- damage


def flip_in_entry(member: SimMember, index: int, offset: int) -> None:
    """One bit of a synced entry, `offset` bytes behind its begin."""
    entry = member.node.store.range_of(index, index + 1, 1)
    path = member.segment_path(entry.segment_position)
    member.disk.flip(path, entry.position - entry.segment_position + offset, 1)
    member.is_damaged = True


@in_modes(*DISKS)
@pytest.mark.parametrize("offset", [32, 48], ids=["header", "body"])
def test_a_bit_flips_on_one_disk(mode: str, offset: int) -> None:
    scene = scene_in(mode, seed=2)
    scene.append(5)
    scene.run_for(FLUSHED_MS)
    bad, fed, _ = scene.members
    whole = body_at(bad, 5)
    flip_in_entry(bad, 5, offset)
    for member in scene.members:
        member.stop()  # afterwards nothing of it is in anybody's memory
    for member in scene.members:
        member.start()
    goes_on(scene)
    if not bad.node.store.damaged and scene.leader() is not bad:
        scene.hand_over(scene.await_leader(), bad)
    fed.wipe()
    fed.start()  # the leader feeds it from the disk that has the damage
    scene.until(lambda: fed.is_up and fed.node.durable_committed_index >= 5, "fed")
    assert body_at(fed, 5) == whole, "the damage was handed on"
    nothing_is_lost(scene)
    assert not any(member.node.store.damaged for member in scene.members)
    assert [body_at(member, 5) for member in scene.members] == [whole] * 3


@in_modes(*DISKS)
def test_files_of_one_member_are_damaged(mode: str) -> None:
    def cut(member: SimMember, path: str) -> None:
        member.disk.truncate_file(path, len(member.disk.content(path)) // 2)

    def swap(member: SimMember, path: str) -> None:
        other = next(p for p in member.disk.paths() if p != path and p[:-10] == path[:-10])
        content, others = member.disk.content(path), member.disk.content(other)
        member.disk.write_file(path, others)
        member.disk.write_file(other, content)

    def remove(member: SimMember, path: str) -> None:
        member.disk.delete(path)

    for way, folder in zip((cut, swap, remove), ("data", "index", "data"), strict=True):
        scene = scene_in(mode)
        for _ in range(10):
            scene.ask_and_wait(scene.await_leader(), 2_500)
        scene.run_for(FLUSHED_MS)
        member = scene.followers()[0]
        member.stop()
        path = next(path for path in member.disk.paths() if f"{member.path}/{folder}/" in path)
        way(member, path)
        member.is_damaged = True
        member.start()
        assert member.is_up or path in member.refusal, (way, member.refusal)
        goes_on(scene)
        nothing_is_lost(scene)
        assert not member.node.store.damaged


@in_modes(*DISKS)
def test_members_are_damaged_in_different_places(mode: str) -> None:
    scene = scene_in(mode)
    scene.append(8)
    scene.run_for(FLUSHED_MS)
    for number, member in enumerate(scene.members):
        flip_in_entry(member, 3 + number, 48)
    for member in scene.members:
        member.stop()
    for member in scene.members:
        member.start()
    nothing_is_lost(scene)
    assert not any(member.node.store.damaged for member in scene.members)


@in_modes(*DISKS)
def test_every_member_has_lost_the_same_entry(mode: str) -> None:
    scene = scene_in(mode)
    scene.append(8)
    scene.run_for(FLUSHED_MS)
    bodies = {index: body_at(scene.members[0], index) for index in range(1, 9)}
    for member in scene.members:
        flip_in_entry(member, 5, 32)
    for member in scene.members:
        member.stop()
    for member in scene.members:
        member.start()
    goes_on(scene)
    scene.run_for(40 * ELECTION_MS)
    for member in scene.members:
        assert [(each.first_index, each.stop_index) for each in member.node.store.damaged] == [(5, 6)]
        assert any("no other member can send" in problem for problem in member.node.problems())
        with pytest.raises(RangeDamaged):
            member.node.readable_range(5, -1, 1)
        assert all(body_at(member, index) == body for index, body in bodies.items() if index != 5)


# ---------------------------------------------------------------- disks that fail


@in_modes(*DISKS)
@pytest.mark.parametrize("path_part", ["/data/", f"/{DURABLE_NAME}"])
@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_sync_fails(mode: str, path_part: str, victim: str) -> None:
    """The cache then shows, as clean, what the disk does not have. So the next start writes it again,
    and a loss of power after that takes nothing, although no other disk with it can be asked."""
    scene, leader, other, third = acknowledged_by_two(mode, seed=1)
    failing, rest = (leader, other) if victim == "leader" else (other, leader)
    scene.cluster.faults.disks.fail_next_sync(failing, path_part)
    process = failing.process
    scene.ask(leader, 5_000)  # no later entry touches its first page, and so brings it to the disk
    scene.until(lambda: failing.process != process, "member that stops")
    failing.start()
    goes_on(scene, failing, rest)
    scene.run_for(FLUSHED_MS)
    failing.lose_power()
    rest.kill()
    failing.start()
    scene.heal()
    goes_on(scene, failing, third)
    assert not failing.node.store.damaged
    rest.start()
    nothing_is_lost(scene)


@in_modes(*DISKS)
def test_a_disk_forgets_what_it_called_synced(mode: str) -> None:
    """One of the two that hold an entry. It knows that it had more, and waits for who has it."""
    scene, leader, liar, _ = acknowledged_by_two(mode, seed=1)
    scene.run_for(1_000)  # the durable point is synced, too
    end = liar.node.store.end
    first = liar.node.store.range_of(end.index - 2, end.index - 1, 1)
    path = liar.segment_path(first.segment_position)
    content = liar.disk.content(path)
    kept = content[: first.position - first.segment_position]
    liar.lose_power()
    liar.disk.write_file(path, kept.ljust(len(content), b"\0"))
    liar.is_damaged = True
    leader.kill()
    liar.start()
    assert liar.node.store.end.index == end.index, "it forgets what it had acknowledged"
    assert [each.first_index for each in liar.node.store.damaged] == [end.index - 2]
    assert liar.node.problems()
    scene.heal()
    scene.run_for(40 * ELECTION_MS)
    leader.start()
    nothing_is_lost(scene)
    assert not liar.node.store.damaged


@in_modes(*DISKS)
def test_disks_are_full(mode: str) -> None:
    scene = scene_in(mode)
    for member in scene.members:
        usage = member.disk.usage("/")
        member.disk.capacity_bytes = int((usage.total_bytes - usage.free_bytes) / 0.9)
    refused = None
    while refused is None:
        asked = scene.ask(scene.await_leader(), 2_500)
        scene.until(lambda asked=asked: asked.returned_ms >= 0, "answer")
        refused = asked.outcome if isinstance(asked.outcome, DiskFull) else None
    full = scene.await_leader()
    full.kill()
    scene.await_leader(*scene.followers())
    full.start()
    scene.run_for(ELECTION_MS)
    for member in scene.members:
        member.disk.capacity_bytes = ROOMY_BYTES
    goes_on(scene)
    nothing_is_lost(scene)
