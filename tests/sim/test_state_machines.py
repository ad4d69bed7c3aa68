"""State machines where members fail: what they save is compared wherever two have applied the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from quorumlog.entry import AppendReceipt
from quorumlog.state_machine import StateMachine
from quorumlog.testing.machines import DIGEST_NAME, DigestMachine
from quorumlog.testing.member import SimMember
from quorumlog.testing.operations import ClientAppend
from quorumlog.testing.profile import SimulationProfile
from sim.log.profile import draw_profile
from sim.log.run import run_seed
from tests.node.machines import Disk, Lasting
from tests.sim.scenario import ELECTION_MS, QUIET, Scenario
from tests.sim.test_installs import SMALL
from tests.sim.test_scenarios import FORGETFUL, restart_with_flush

SAVING = replace(QUIET, storage=replace(QUIET.storage, snapshot_entries=5), runs_machines=True)
BUG = b"bug"


class MachineScenario(Scenario):
    def __init__(
        self,
        make: Callable[[], StateMachine] = DigestMachine,
        *,
        size: int = 3,
        name: str = DIGEST_NAME,
        profile: SimulationProfile = SAVING,
        seed: int = 1,
        flush: str = "sync",
    ) -> None:
        super().__init__(size=size, profile=profile, seed=seed, flush=flush, machines={name: make})
        self.name = name
        self.until(lambda: self.await_leader().node.machines.status()[0].channel > 0, "binding")

    def command(self, member: SimMember, body: bytes = b"") -> ClientAppend:
        self.client._target = member.member_id
        body = body or b"c%d." % (len(self.cluster.operations.appends) + 1)
        return self.client.append((body,), 5_000, machine=self.name)

    def commands(self, count: int) -> None:
        for _ in range(count):
            asked = self.command(self.await_leader())
            self.until(lambda asked=asked: asked.returned_ms >= 0, "outcome")
            assert isinstance(asked.outcome, AppendReceipt), asked.outcome

    def settle(self) -> None:
        self.until(
            lambda: all(
                member.node.machines.status()[0].applied_index == member.node.store.end.index
                for member in self.members
                if member.is_up
            ),
            "everything applied",
        )

    def make_whole_alone(self) -> None:
        """Nobody needed a snapshot of another member."""
        self.make_whole()
        assert not self.cluster.trace.counts["install: a piece of a snapshot"]

    def restart(self, member: SimMember) -> None:
        member.stop()
        member.start()
        self.await_leader()


def test_members_that_come_back_go_on_where_the_others_are() -> None:
    scene = MachineScenario()
    scene.commands(12)
    scene.settle()
    for member in scene.members:
        scene.restart(member)
        scene.run_for(4 * ELECTION_MS)
        scene.commands(2)
        scene.settle()
    scene.make_whole()


def test_a_snapshot_is_of_its_entry_whatever_is_applied_while_it_is_saved() -> None:
    """The members save at the same entries, and take commands between slices each in its own time."""
    scene = MachineScenario()
    leader = scene.await_leader()
    asked = []
    for _ in range(60):
        asked.append(scene.command(leader))
        scene.run_for(1)
    scene.until(lambda: all(each.returned_ms >= 0 for each in asked), "outcomes")
    scene.settle()
    assert scene.cluster.trace.counts["machines: a snapshot compared"] > 10
    scene.make_whole()


def test_a_damaged_snapshot_leads_to_the_one_before_and_what_follows_that() -> None:
    scene = MachineScenario()
    scene.commands(17)
    scene.settle()
    scene.run_for(100)
    member = scene.followers()[0]
    member.stop()
    names = [n for n in member.disk.list(f"{member.path}/snapshots") if not n.endswith(".tmp")]
    path = f"{member.path}/snapshots/{max(names)}"
    member.disk.flip(path, len(member.disk.content(path)) - 60, 1)
    member.start()
    scene.commands(2)
    scene.settle()
    scene.make_whole()


def test_a_leader_that_is_cut_off_gives_nobody_the_results_of_others() -> None:
    scene = MachineScenario()
    scene.commands(3)
    old = scene.await_leader()
    others = scene.followers()
    scene.cut([old], others)
    lost = [scene.command(old) for _ in range(3)]
    scene.run_for(5)
    new = scene.await_leader(*others)
    kept = [scene.command(new) for _ in range(3)]
    scene.until(lambda: all(each.returned_ms >= 0 for each in kept), "results")
    scene.heal()
    scene.make_whole()
    assert all(isinstance(each.outcome, AppendReceipt) for each in kept)
    assert not any(isinstance(each.outcome, AppendReceipt) for each in lost)


def test_results_are_those_of_the_commands_that_asked_for_them() -> None:
    """Many under way together, of which each has its own."""
    scene = MachineScenario()
    for _ in range(4):
        leader = scene.await_leader()
        asked = [scene.command(leader) for _ in range(6)]
        scene.until(lambda asked=asked: all(each.returned_ms >= 0 for each in asked), "results")
    scene.make_whole()


def test_nothing_is_applied_that_the_own_disk_may_still_lose() -> None:
    """A leader with a slow disk commits with the disks of the others, and does not apply yet."""
    scene = MachineScenario()
    scene.commands(3)
    leader = scene.await_leader()
    leader.sync_ms, leader.least_sync_share = 400.0, 0.9
    for _ in range(5):
        asked = scene.command(leader)
        scene.until(lambda asked=asked: asked.returned_ms >= 0, "outcome")
    scene.make_whole()


def test_a_machine_that_fails_goes_no_further_on_that_member() -> None:
    class OnceBroken(DigestMachine):
        """On the member that is made last."""

        made = 0

        def __init__(self) -> None:
            super().__init__()
            OnceBroken.made += 1
            self._is_broken = OnceBroken.made == 3

        def command(self, body: bytes, index: int) -> bytes | None:
            if self._is_broken and body == BUG:
                raise ValueError("a bug of this member's")
            return super().command(body, index)

    scene = MachineScenario(OnceBroken)
    scene.commands(2)
    scene.settle()
    scene.command(scene.await_leader(), BUG)
    scene.run_for(200)
    end_index = scene.await_leader().node.store.end.index
    for _ in range(3):
        scene.command(scene.await_leader())
    scene.run_for(500)
    stopped = [m for m in scene.members if m.node.problems()]
    assert len(stopped) == 1
    (row,) = stopped[0].node.machines.status()
    assert row.applied_index < end_index
    assert "ValueError: a bug of this member's" in row.problem
    scene.make_whole()


# ---------------------------------------------------------------- members that were started without one


def _restart_with(scene: MachineScenario, runs: Mapping[str, Sequence[str]]) -> None:
    """Members by id, with these machines; all others run what they ran before."""
    before = scene.cluster.machines_of
    scene.cluster.machines_of = lambda member_id: (
        dict.fromkeys(runs[member_id], DigestMachine) if member_id in runs else before(member_id)
    )
    for member in scene.members:
        if member.member_id in runs:
            member.stop()
            member.start()
    scene.await_leader()


def _without(member: SimMember) -> list[str]:
    return [problem for problem in member.node.problems() if "was started without" in problem]


def test_a_leader_that_was_started_without_a_machine_says_so_and_hands_over() -> None:
    scene = MachineScenario()
    scene.commands(3)
    scene.settle()
    without = scene.await_leader()
    _restart_with(scene, {without.member_id: ()})
    scene.until(lambda: scene.leader() not in (None, without), "another leader")
    assert _without(without) == [
        "this member was started without the state machine digest, which the log binds: it carries out"
        " no commands of it, and hands leadership to a member that does; restart it with digest"
    ]
    leader = scene.await_leader()
    scene.await_one_log(leader, without)
    scene.run_for(1_000)  # the answers that say what it holds
    scene.hand_over(leader, without)
    scene.until(lambda: scene.leader() not in (None, without), "another leader again")
    scene.commands(2)
    assert not any(_without(member) for member in scene.members if member is not without)
    _restart_with(scene, {without.member_id: (scene.name,)})
    scene.settle()
    assert not _without(without)
    scene.make_whole()


def test_where_no_member_runs_a_machine_the_leader_leads_on_and_says_so() -> None:
    scene = MachineScenario()
    scene.commands(3)
    scene.settle()
    _restart_with(scene, {member.member_id: () for member in scene.members})
    leader = scene.await_leader()
    scene.run_for(10_000)
    assert scene.leader() is leader
    assert all(_without(member) for member in scene.members)
    scene.client._target = leader.member_id
    plain = scene.client.append((b"plain",), 5_000)
    scene.until(lambda: plain.returned_ms >= 0, "outcome")
    assert isinstance(plain.outcome, AppendReceipt), plain.outcome


def test_members_that_lack_a_machine_each_do_not_hand_over_to_each_other() -> None:
    scene = MachineScenario()
    both = (scene.name, "second")
    _restart_with(scene, {member.member_id: both for member in scene.members})
    rows = scene.await_leader().node.machines.status
    scene.until(lambda: all(row.channel for row in rows()), "both are bound")
    first, *others = scene.members
    runs = {first.member_id: both[:1]} | {member.member_id: both[1:] for member in others}
    _restart_with(scene, runs)
    scene.run_for(3_000)
    if scene.await_leader() is not first:
        scene.hand_over(scene.await_leader(), first)
    scene.run_for(30_000)
    assert scene.leader() is first


def test_a_state_of_another_log_is_not_gone_on_with() -> None:
    """The disk of its machine was put back from a member of another group."""
    disks = [Disk(), Disk()]
    for disk, count in zip(disks, (5, 9), strict=True):
        scene = MachineScenario(lambda disk=disk: Lasting(disk), size=1, name="lasting")
        for number in range(count):
            scene.command(scene.await_leader(), b"%d of %d" % (number, count))
            scene.run_for(50)
    expected = [b"%d of 9" % number for number in range(9)]
    other, own = disks
    assert [body for _, body in own.taken] == expected
    own.taken, own.applied = other.taken, other.applied
    scene.restart(scene.members[0])
    scene.run_for(20 * ELECTION_MS)
    assert [body for _, body in own.taken] == expected


def test_the_log_keeps_what_a_machine_needs_whose_newest_snapshot_is_damaged() -> None:
    """The log is cut as far as machines let it; then a bit flips in the newest snapshot. Again and
    again: snapshots and segments end at different places each time."""
    scene = MachineScenario()
    member = scene.followers()[0]
    were_cut = 0
    for round_number in range(12):
        for _ in range(9 + round_number):
            body = b"%d." % (len(scene.cluster.operations.appends) + 1) + bytes(900)
            asked = scene.command(scene.await_leader(), body)
            scene.until(lambda asked=asked: asked.returned_ms >= 0, "outcome")
        scene.settle()
        scene.run_for(50)
        were_cut += cut_as_far_as_machines_let(scene, member)
        member.stop()
        names = [n for n in member.disk.list(f"{member.path}/snapshots") if not n.endswith(".tmp")]
        path = f"{member.path}/snapshots/{max(names)}"
        member.disk.flip(path, len(member.disk.content(path)) - 60, 1)
        member.start()
        scene.await_leader()
        scene.run_for(10 * ELECTION_MS)
        scene.settle()
        assert not member.node.machines.status()[0].problem.startswith("the state machine"), "stopped"
    assert were_cut > 3
    scene.make_whole_alone()


def test_a_member_keeps_what_its_own_machine_needs_whatever_the_others_let_go() -> None:
    """Its snapshots were lost, and it has saved none since."""
    storage = replace(SMALL.storage, snapshot_entries=5)
    scene = MachineScenario(profile=replace(SAVING, storage=storage))
    member = scene.followers()[0]
    scene.commands(60)
    scene.settle()
    member.stop()
    folder = f"{member.path}/snapshots"
    for name in member.disk.list(folder):
        member.disk.unlink(f"{folder}/{name}")
    member.config = replace(member.config, storage=replace(storage, snapshot_entries=1000))
    member.start()
    leader = scene.await_leader()
    scene.settle()
    for each in scene.members:
        lets_go = replace(each.config.storage, retention_bytes=1)
        each.enter_node("configure", replace(each.config, storage=lets_go))
    scene.ask_and_wait(leader)
    scene.run_for(5_000)
    assert leader.node.store.begin.index > 0
    scene.restart(member)
    scene.commands(2)
    scene.settle()
    assert not member.node.machines.status()[0].problem
    scene.make_whole_alone()


def test_what_a_machine_needs_outlives_a_power_loss() -> None:
    """The log was cut as far as machines let it, behind their first snapshots."""
    profile = replace(SAVING, storage=replace(SMALL.storage, snapshot_entries=5))
    were_cut = 0
    for seed in range(1, 9):  # what is left after a power loss is luck
        scene = MachineScenario(profile=profile, seed=seed)
        member = scene.followers()[0]
        for number in range(12):
            asked = scene.command(scene.await_leader(), b"%d." % number + bytes(300))
            scene.until(lambda asked=asked: asked.returned_ms >= 0, "outcome")
        scene.settle()
        scene.run_for(50)
        were_cut += cut_as_far_as_machines_let(scene, member)
        member.lose_power()
        member.start()
        scene.await_leader()
        scene.run_for(10 * ELECTION_MS)
        scene.settle()
        assert not member.node.machines.status()[0].problem
        scene.make_whole_alone()
    assert were_cut > 3, were_cut


def test_a_machine_forgets_what_async_mode_takes_back() -> None:
    """Two members forget commands that were committed, and go on without them; the third has applied
    them, and has snapshots of that."""
    profile = replace(SAVING, storage=replace(FORGETFUL.storage, snapshot_entries=2))
    were_cut = 0
    for seed in range(1, 4):  # what is left after a power loss is luck
        scene = MachineScenario(profile=profile, flush="async", seed=seed)
        scene.commands(3)
        for member in scene.members:
            restart_with_flush(member, "async")  # which syncs what it has so far
        scene.await_leader()
        scene.run_for(4 * ELECTION_MS)
        scene.commands(5)
        scene.settle()
        own, *others = scene.members
        scene.cut([own], others)
        for member in others:
            member.lose_power()
        for member in others:
            member.start()
        heir = scene.await_leader(*others)
        for _ in range(3):
            asked = scene.command(heir)
            scene.until(lambda asked=asked: asked.returned_ms >= 0, "outcome")
        scene.heal()
        scene.run_for(20 * ELECTION_MS)
        scene.make_whole()
        were_cut += scene.cluster.trace.counts["async: committed entries are cut"]
    assert were_cut


def cut_as_far_as_machines_let(scene: MachineScenario, member: SimMember) -> bool:
    node = member.node
    bound = node.machines.snapshot_bound()
    assert bound is not None
    last_index = min(node.durable_committed_index, node.store.durable.index - 1, bound)
    saved = [start for start in node.store.boundaries.saved() if start.point.index <= last_index]
    if not saved or saved[0].point.index <= node.store.begin.index:
        return False
    member.enter(lambda: node.drops.begin(saved[0]))
    scene.until(lambda: node.store.begin == saved[0].point and not node.drops.is_under_way, "cut")
    return True


def test_runs_with_machines_compare_them_and_their_results() -> None:
    seeds = [seed for seed in range(1, 60) if draw_profile(Random(seed)).runs_machines][:4]
    assert len(seeds) == 4
    counts = [run_seed(seed, faults_ms=4_000) for seed in seeds]
    assert not any(result.failure for result in counts), [r.failure for r in counts]
    assert sum(result.counts["machines: compared"] for result in counts) > 50
    assert sum(result.counts["machines: results"] for result in counts) > 5


@pytest.mark.parametrize("size", [1, 3])
def test_a_question_is_answered_after_all_that_was_acknowledged(size: int) -> None:
    scene = MachineScenario(size=size)
    scene.commands(4)
    answers: list[object] = []
    scene.client._target = scene.await_leader().member_id
    scene.client.ask(DIGEST_NAME, b"", answers.append)
    scene.until(lambda: bool(answers), "an answer")
    assert isinstance(answers[0], tuple)
    assert answers[0][0] == b"4"


def test_a_question_waits_until_what_was_acknowledged_is_applied() -> None:
    """A leader with a slow disk has acknowledged with the disks of the others."""
    scene = MachineScenario()
    scene.commands(3)
    leader = scene.await_leader()
    leader.sync_ms, leader.least_sync_share = 400.0, 0.9
    asked = scene.command(leader)
    scene.until(lambda: leader.node.committed_index > leader.node.durable_committed_index, "a commit")
    answers: list[object] = []
    scene.client.ask(DIGEST_NAME, b"", answers.append)
    scene.until(lambda: bool(answers) and asked.returned_ms >= 0, "an answer and an outcome")
    assert isinstance(answers[0], tuple)
    assert answers[0][0] == b"4"
