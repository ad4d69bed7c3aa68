"""Snapshots go from member to member: with a log that is installed, or to who has lost its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import msgspec
import pytest

from quorumlog.consensus.messages import (
    AnyPeerMessage,
    InstallRequest,
    PushEntryRequest,
    SnapshotRequest,
    SnapshotResponse,
)
from quorumlog.state_machine import SnapshotReader, SnapshotWriter
from quorumlog.testing.machines import DigestMachine
from quorumlog.testing.member import SimMember
from tests.sim.scenario import ELECTION_MS
from tests.sim.test_installs import SMALL, Sent
from tests.sim.test_state_machines import SAVING, MachineScenario, cut_as_far_as_machines_let

PIECES = replace(
    SAVING,
    storage=replace(SMALL.storage, snapshot_entries=3),
    consensus=replace(SMALL.consensus, push_limit_bytes=600, push_window_bytes=600),
)


class OnceBroken(DigestMachine):
    """On the member whose it is."""

    broken: DigestMachine | None = None

    def command(self, body: bytes, index: int) -> bytes | None:
        if self is OnceBroken.broken and body == b"bug":
            raise ValueError("a bug of this member's")
        return super().command(body, index)


def break_the_leaders(scene: MachineScenario) -> None:
    """Its machine, by an entry; somebody else leads then."""
    scene.commands(2)
    scene.settle()
    leader = scene.await_leader()
    ((_, _, runner),) = leader.node.machines.at_rest()
    OnceBroken.broken = runner.machine  # type: ignore[assignment]
    scene.command(leader, b"bug")
    scene.until(lambda: scene.leader() not in (leader, None), "another leader")


class Bulky(DigestMachine):
    """What it saves goes in many pieces."""

    def save_slices(self, writer: SnapshotWriter) -> Iterator[None]:
        writer.write(msgspec.msgpack.encode((self._count, self._digest)).ljust(100))
        yield
        writer.write(bytes(12_000))

    def load(self, reader: SnapshotReader) -> None:
        data = reader.read()[:100].rstrip(b" ")
        self._count, self._digest = msgspec.msgpack.decode(data, type=tuple[int, bytes])


def fill(scene: MachineScenario, count: int = 12) -> None:
    for _ in range(count):
        body = b"%d." % (len(scene.cluster.operations.appends) + 1) + bytes(300)
        asked = scene.command(scene.await_leader(), body)
        scene.until(lambda asked=asked: asked.returned_ms >= 0, "outcome")


def behind(
    make: type[DigestMachine] = Bulky, *, wiped: bool, seed: int = 1
) -> tuple[MachineScenario, SimMember]:
    """(scene, a member that is down, and whose log ends where nobody has entries any more)."""
    scene = MachineScenario(make, profile=PIECES, seed=seed)
    fill(scene, 3)
    away = scene.followers()[0]
    away.kill()
    fill(scene)
    for member in scene.members:
        if member.is_up:
            scene.until(lambda m=member: has_two(m), "two snapshots")
            assert cut_as_far_as_machines_let(scene, member)
    if wiped:
        away.wipe()
    return scene, away


def has_two(member: SimMember) -> bool:
    node = member.node
    bound = node.machines.snapshot_bound()
    return bound is not None and bound > 4 and bool(list(node.store.boundaries.saved()))


@contextmanager
def losing(is_lost: Callable[[AnyPeerMessage], bool]) -> Iterator[None]:
    """Such messages arrive nowhere."""
    receive = SimMember.receive

    def receive_unless(member: SimMember, message: AnyPeerMessage) -> None:
        if not is_lost(message):
            receive(member, message)

    with patch.object(SimMember, "receive", receive_unless):
        yield


def machine_runs(member: SimMember) -> bool:
    if not member.is_up:
        return False
    (row,) = member.node.machines.status()
    return not row.problem and row.applied_index >= member.node.store.begin.index >= 0


@pytest.mark.parametrize("wiped", [False, True])
def test_a_member_far_behind_gets_the_snapshot_with_the_log(wiped: bool) -> None:
    """And the leader tells how far it is."""
    scene, away = behind(wiped=wiped)
    away.start()
    left: list[int] = []

    def is_done() -> bool:
        feeding = scene.await_leader().node.feeding(away.replica)
        if feeding is not None:
            left.append(feeding.behind_bytes)
        return machine_runs(away)

    scene.until(is_done, "a machine that goes on")
    told = [each for member in scene.members for each in member.node.problems()]
    assert not [each for each in told if "is given the snapshot" in each], "and that it is there"
    assert max(left) > 12_000
    assert len(set(left)) > 3, "no progress is told"
    scene.commands(3)
    scene.settle()
    scene.restart(away)
    scene.settle()
    scene.make_whole()
    assert scene.cluster.trace.counts["install: a log is replaced"] == 1


def test_the_old_log_votes_until_all_has_come() -> None:
    """The end of the snapshot does not come; then a member that it elects and follows is needed."""
    scene, away = behind(wiped=False)
    third = next(m for m in scene.followers() if m is not away)
    with losing(lambda message: isinstance(message, SnapshotResponse) and message.offset > 5_000):
        away.start()
        scene.run_for(2_000)
        assert away.node.store.begin.index == -1 < away.node.store.end.index, "the start was taken alone"
        scene.await_leader().kill()
        assert scene.await_leader(third, away) is third, "with its vote"
    scene.until(partial(machine_runs, away), "a machine that goes on")
    scene.make_whole()


def test_a_connection_that_breaks_costs_one_piece() -> None:
    scene, away = behind(wiped=True)
    sent = Sent(scene, SnapshotResponse)
    away.start()
    for _ in range(5):
        count = len(sent.messages)
        scene.until(lambda count=count: len(sent.messages) > count + 5 or machine_runs(away), "pieces")
        for other in scene.members:
            if other is not away:
                scene.cluster.network.reset(away.member_id, other.member_id, closed_by=away.member_id)
    scene.until(partial(machine_runs, away), "a machine that goes on")
    offsets = [message.offset for _, message in sent.messages if message.data]
    assert len(offsets) - len(set(offsets)) <= 6, "began again"
    scene.make_whole()


def test_a_snapshot_arrives_although_newer_ones_are_made_meanwhile() -> None:
    scene, away = behind(wiped=True)
    sent = Sent(scene, SnapshotResponse)
    named = Sent(scene, InstallRequest)
    leader = scene.await_leader()
    away.start()
    with patch("quorumlog.node.sending.MOST_BACK_OFF", 0.01):
        for number in range(200):
            scene.command(leader, b"%d" % number)
            scene.run_for(5)
            if machine_runs(away):
                break
    assert machine_runs(away)
    assert len({message.snapshots for _, message in named.messages if message.snapshots}) == 1
    assert len({message.found for _, message in sent.messages if message.data}) == 1, "began again"
    scene.make_whole()


def test_a_machine_whose_snapshot_is_ahead_of_the_log_says_so() -> None:
    """It may stay so: the one member of a recovered cluster has nobody who gives it what follows."""
    scene, away = behind(wiped=True)
    with losing(lambda message: isinstance(message, PushEntryRequest) and message.count > 0):
        away.start()
        scene.until(lambda: away.is_up and away.node.store.begin.index > 4, "the start")
        scene.run_for(500)
        (problem,) = away.node.machines.problems()
        assert "which the log here has not reached" in problem
    scene.until(partial(machine_runs, away), "a machine that goes on")
    scene.make_whole()


@pytest.mark.parametrize("how", ["kill", "power loss"])
def test_a_crash_at_any_step_leaves_the_old_log_or_the_new_one_with_its_snapshot(how: str) -> None:
    begins = []
    for effects in range(1 if how == "kill" else 4, 400, 61):
        scene, away = behind(DigestMachine, wiped=False)
        away.start()
        first_process = away.process
        scene.cluster.faults.processes.crash_at_effect(away, effects, how)
        scene.until(partial(has_begun_anew, away, first_process), "another process")
        begins.append(away.node.store.begin.index)
        is_over = away.disk.crash_countdown is not None
        scene.until(partial(machine_runs, away), "a machine that goes on")
        scene.make_whole()
        if is_over:
            break
    assert begins[0] == -1 and begins[-1] > 0, begins


def has_begun_anew(member: SimMember, first_process: int) -> bool:
    return member.process > first_process and member.is_up


def without_snapshots(seed: int = 1) -> tuple[MachineScenario, SimMember]:
    """(scene, a follower that is down, whose log begins above its machine's first entry and all of whose
    snapshots are damaged)."""
    scene = MachineScenario(Bulky, profile=PIECES, seed=seed)
    fill(scene)
    scene.settle()
    member = scene.followers()[0]
    scene.until(lambda: has_two(member), "two snapshots")
    assert cut_as_far_as_machines_let(scene, member)
    member.stop()
    for name in member.disk.list(f"{member.path}/snapshots"):
        path = f"{member.path}/snapshots/{name}"
        member.disk.flip(path, len(member.disk.content(path)) // 2, 1)
    return scene, member


def test_who_has_no_good_snapshot_left_gets_one_of_the_leader() -> None:
    """DLedger answers no append any more (W11)."""
    scene, member = without_snapshots()
    scene.commands(3)
    member.start()
    scene.until(partial(machine_runs, member), "a machine that goes on")
    scene.settle()
    scene.make_whole()
    assert not scene.cluster.trace.counts["install: a log is replaced"]


def test_a_leader_without_a_good_snapshot_gets_one_of_another_member() -> None:
    scene, member = without_snapshots()
    asked = Sent(scene, SnapshotRequest)
    with losing(lambda message: isinstance(message, SnapshotResponse)):
        member.start()
        scene.run_for(ELECTION_MS)
        scene.hand_over(scene.await_leader(), member)
        scene.until(lambda: scene.leader() is member, "leadership")
    scene.until(partial(machine_runs, member), "a machine that goes on")
    assert {sender for sender, _ in asked.messages} == {member.member_id}
    scene.commands(2)
    scene.settle()
    scene.make_whole()


def test_what_comes_damaged_is_asked_for_again() -> None:
    """A bit flips in what has come so far."""
    scene, away = behind(wiped=True)
    away.start()
    folder = f"{away.path}/snapshots"

    def part() -> str:
        names = [n for n in away.disk.list(folder) if n.endswith(".part")] if away.is_up else []
        return f"{folder}/{names[0]}" if names else ""

    scene.until(lambda: bool(part()) and len(away.disk.content(part())) > 5_000, "a part", step_ms=0.1)
    away.disk.flip(part(), 4_500, 1)
    scene.until(partial(machine_runs, away), "a machine that goes on")
    scene.settle()
    scene.make_whole()


def test_a_log_is_compacted_behind_snapshots() -> None:
    """By nothing but the option for it; who was away meanwhile gets the rest with the snapshot."""
    scene = MachineScenario(DigestMachine, profile=PIECES)
    away = scene.followers()[0]
    away.kill()
    for member in scene.members:
        compacts = replace(member.config.storage, retention="on", compact_behind_snapshots=True)
        member.config = replace(member.config, storage=compacts, retention_follower_budget_bytes=0)
        if member.is_up:
            member.enter_node("configure", member.config)
    fill(scene)
    up = [member for member in scene.members if member is not away]
    scene.until(lambda: all(member.node.store.begin.index > 4 for member in up), "a compacted log")
    away.start()
    scene.until(partial(machine_runs, away), "a machine that goes on")
    scene.make_whole()


def test_a_leader_whose_machine_has_stopped_hands_over_to_one_whose_machine_runs() -> None:
    scene = MachineScenario(OnceBroken)
    break_the_leaders(scene)
    scene.commands(3)
    scene.make_whole()


def test_a_preferred_leader_whose_machine_has_stopped_is_not_given_leadership_back() -> None:
    consensus = replace(
        SAVING.consensus,
        preferred_leader_ids=("n0",),
        preferred_check_interval_ms=20,
        preferred_cool_down_ms=1,
    )
    scene = MachineScenario(OnceBroken, profile=replace(SAVING, consensus=consensus))
    preferred = scene.cluster.member("n0")
    scene.until(lambda: scene.leader() is preferred, "the preferred leader")
    break_the_leaders(scene)
    term = scene.await_leader().node.raft.term
    for _ in range(20):
        scene.run_for(ELECTION_MS)
        assert scene.await_leader() is not preferred
    assert scene.await_leader().node.raft.term == term
    scene.restart(preferred)  # with the mistake corrected
    OnceBroken.broken = None
    scene.until(lambda: scene.leader() is preferred, "the preferred leader")
    scene.make_whole()


def test_leadership_stays_where_a_command_stops_every_member() -> None:
    class Broken(DigestMachine):
        def command(self, body: bytes, index: int) -> bytes | None:
            if body == b"bug":
                raise ValueError("a bug of all")
            return super().command(body, index)

    scene = MachineScenario(Broken)
    scene.commands(1)
    leader = scene.await_leader()
    scene.command(leader, b"bug")
    scene.run_for(5_000)
    assert all(member.node.machines.problems() for member in scene.members)
    assert scene.leader() is leader


def test_a_file_in_place_of_the_folder_stops_the_machine_and_not_the_member() -> None:
    scene = MachineScenario()
    scene.commands(2)
    member = scene.followers()[0]
    member.stop()
    with closing(member.disk.open(f"{member.path}/snapshots", create=True)) as file:
        file.pwritev([b"not a folder"], 0)
    member.start()
    scene.until(lambda: member.is_up and bool(member.node.machines.problems()), "a problem")
    assert "snapshots cannot be read" in member.node.machines.problems()[0]
    scene.ask_and_wait(scene.await_leader())
    member.disk.unlink(f"{member.path}/snapshots")
    scene.until(lambda: not member.node.machines.problems(), "a machine that runs")
    scene.make_whole()
