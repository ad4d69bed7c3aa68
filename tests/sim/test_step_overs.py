"""A command that no member survives, and the way out of it; every checker looks on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from quorumlog.errors import LedgerError, StepOverRefused
from quorumlog.log_state.control_entries import StepOver
from quorumlog.node import MachineFactory
from quorumlog.node.member_changes import MemberOperation
from quorumlog.node.step_overs import StepOverOutcome
from quorumlog.testing.machines import DIGEST_NAME, DigestMachine
from quorumlog.testing.member import SimMember
from quorumlog.testing.profile import SimulationProfile
from tests.sim.scenario import ELECTION_MS, Scenario
from tests.sim.test_member_scenarios import ADDRESS, make
from tests.sim.test_state_machines import SAVING, MachineScenario

POISON = b"poison"


class Deadly(DigestMachine):
    """Ends its member at a poisonous command."""

    def __init__(self, scene: PoisonScenario, member_id: str) -> None:
        super().__init__()
        self._scene = scene
        self._member_id = member_id

    def command(self, body: bytes, index: int) -> bytes | None:
        if body.startswith(POISON):
            self._scene.ended.append((self._member_id, index))
            member = next(each for each in self._scene.members if each.member_id == self._member_id)
            member.disk.crash_countdown = 1  # nothing that it does from here on has an effect
            raise RuntimeError("the process ends")
        return super().command(body, index)


class PoisonScenario(MachineScenario):
    def __init__(
        self, *, size: int = 3, profile: SimulationProfile = SAVING, seed: int = 1, flush: str = "sync"
    ) -> None:
        self.ended: list[tuple[str, int]] = []
        """(member, entry)."""
        self.name = DIGEST_NAME
        Scenario.__init__(
            self, size=size, profile=profile, seed=seed, flush=flush, machines=self._machines_of
        )
        self.until(lambda: self.await_leader().node.machines.status()[0].channel > 0, "binding")

    def _machines_of(self, member_id: str) -> Mapping[str, MachineFactory]:
        return {DIGEST_NAME: lambda: Deadly(self, member_id)}

    def poison(self) -> int:
        """The index of a command that has ended whoever came to it, and so the group."""
        self.command(self.await_leader(), POISON)
        self.await_end()
        return self.ended[-1][1]

    def await_end(self) -> None:
        members = [each for each in self.members if each.member_id in self.voters]
        self.until(lambda: sum(each.is_up for each in members) <= len(members) // 2, "the group's end")

    @property
    def voters(self) -> list[str]:
        return [f"n{number}" for number in range(self.cluster.profile.size)]

    def restart_all(self, *, held: bool = False, but: SimMember | None = None) -> None:
        for member in self.members:
            member.kill()
        for member in self.members:
            member.held_machines = frozenset([DIGEST_NAME] if held else [])
            if member is not but:
                member.start()

    def step_over(self, index: int, *, unsafe: bool = False) -> None:
        outcome = self.asked_to_step_over(index, unsafe=unsafe)
        assert isinstance(outcome, int), outcome

    def asked_to_step_over(self, index: int, *, unsafe: bool = False) -> StepOverOutcome:
        """Asked again as long as that may help."""
        for _ in range(20):
            outcomes: list[StepOverOutcome] = []
            leader = self.await_leader()

            def ask(leader: SimMember = leader, done: list[StepOverOutcome] = outcomes) -> None:
                leader.node.machines.step_overs.request(DIGEST_NAME, index, unsafe, done.append)

            leader.enter(ask)
            self.until(lambda done=outcomes: bool(done), "an outcome")
            (outcome,) = outcomes
            if not isinstance(outcome, LedgerError) or not outcome.retriable:
                return outcome
            self.run_for(ELECTION_MS / 4)
        raise AssertionError("never answered")

    def taken(self) -> set[bytes]:
        """How many commands each machine that runs holds."""
        self.settle()
        return {self.held_by(member) for member in self.members if member.is_up}

    def held_by(self, member: SimMember) -> bytes:
        self.until(lambda: bool(member.node.machines.at_rest()), "rest")
        ((_, _, runner),) = member.node.machines.at_rest()
        return runner.machine.query(b"")


def goes_on_without(scene: PoisonScenario, commands: int) -> None:
    """Nobody ends, and all hold so many commands in the end."""
    ended = len(scene.ended)
    scene.await_leader()
    scene.commands(3)
    assert scene.taken() == {b"%d" % (commands + 3)}
    scene.make_whole()
    assert len(scene.ended) == ended, "it was applied once more"
    assert all(member.is_up for member in scene.members if member.member_id in scene.voters)


def test_a_group_goes_on_without_the_command_that_ends_its_members() -> None:
    scene = PoisonScenario()
    scene.commands(3)
    index = scene.poison()
    scene.restart_all()
    scene.await_end()
    assert {at for _, at in scene.ended} == {index}
    scene.restart_all(held=True)
    scene.await_leader()
    scene.append(2)
    scene.step_over(index)
    scene.restart_all()
    goes_on_without(scene, 3)


def test_a_member_learns_of_it_before_it_applies_what_has_ended_its_last_run() -> None:
    """It knows that the command is committed, and nothing of what came later, which the others have."""
    scene = PoisonScenario()
    scene.commands(3)
    index = scene.poison()
    scene.restart_all(held=True)
    scene.await_leader()
    scene.append(2)
    away = scene.followers()[0]
    away.stop()  # and so has noted how far the log was committed
    others = [member for member in scene.members if member is not away]
    scene.await_leader(*others)
    scene.step_over(index, unsafe=True)
    ended = len(scene.ended)
    scene.cut([away], others)
    away.held_machines = frozenset()
    away.start()
    scene.run_for(4 * ELECTION_MS)
    assert away.is_up and len(scene.ended) == ended
    (problem,) = [each for each in away.node.problems() if DIGEST_NAME in each]
    assert f"ended while it applied entry {index}, and it waits" in problem
    scene.heal()
    scene.await_leader()
    for member in others:
        member.kill()
        member.held_machines = frozenset()
        member.start()
        scene.run_for(2 * ELECTION_MS)
    goes_on_without(scene, 3)


def test_a_snapshot_that_holds_it_is_not_gone_on_from() -> None:
    """The command harmed nobody, and is stepped over all the same."""
    scene = PoisonScenario()
    scene.commands(12)
    scene.settle()
    scene.run_for(200)
    newest = scene.await_leader().node.machines.status()[0].snapshot_index
    assert newest > 0
    scene.step_over(newest, unsafe=True)
    scene.commands(1)
    assert scene.taken() == {b"12"}
    scene.restart_all()
    scene.await_leader()
    scene.until(lambda: all(m.node.machines.at_rest() for m in scene.members), "all machines run")
    assert scene.taken() == {b"12"}
    goes_on_without(scene, 12)


def test_an_order_that_is_never_committed_has_no_effect() -> None:
    scene = PoisonScenario()
    scene.commands(6)
    scene.settle()
    old = scene.await_leader()
    index = old.node.machines.status()[0].applied_index
    others = scene.followers()
    scene.cut([old], others)
    chain = old.node.store.point_on_disk(index).chain
    old.enter(lambda: old.node.propose_control(StepOver(DIGEST_NAME, index, chain)))
    scene.run_for(20)
    assert old.node.store.end.index > index
    assert scene.held_by(old) == b"6"
    new = scene.await_leader(*others)
    for _ in range(2):
        asked = scene.command(new)
        scene.until(lambda asked=asked: asked.returned_ms >= 0, "outcome")
    scene.heal()
    scene.run_for(2 * ELECTION_MS)
    goes_on_without(scene, 8)


def test_a_learner_leaves_it_out_as_well() -> None:
    scene = PoisonScenario(profile=replace(SAVING, spares=1))
    make(scene, MemberOperation.ADD, "n3", ADDRESS)
    scene.commands(3)
    learner = scene.members[3]
    scene.settle()
    scene.cut([learner], scene.members[:3])
    index = scene.poison()
    scene.heal()
    scene.restart_all(held=True)
    scene.await_leader()
    scene.step_over(index)
    scene.restart_all()
    goes_on_without(scene, 3)
    assert learner.is_up and "n3" not in {member for member, _ in scene.ended}
    assert learner.node.machines.status()[0].applied_index > index


def test_a_learner_that_has_applied_it_is_named() -> None:
    scene = PoisonScenario(profile=replace(SAVING, spares=1))
    make(scene, MemberOperation.ADD, "n3", ADDRESS)
    learner = scene.members[3]
    scene.commands(1)
    scene.settle()
    index = learner.node.machines.status()[0].applied_index
    for member in scene.members[:3]:
        member.kill()
        member.held_machines = frozenset([DIGEST_NAME])
        member.disk.unlink(f"{member.path}/applying/{DIGEST_NAME}")  # as after a loss of power
        member.start()
    outcome = scene.asked_to_step_over(index)
    assert isinstance(outcome, StepOverRefused), outcome
    assert str(outcome).startswith(f"entry {index} was applied to digest on n3, so")


@pytest.mark.parametrize("seed", range(8))
def test_members_come_and_go_while_it_is_stepped_over(seed: int) -> None:
    scene, random = PoisonScenario(seed=seed), Random(seed)
    scene.commands(random.randrange(1, 9))
    before = int(next(iter(scene.taken())))
    index = scene.poison()
    for member in scene.members:
        member.kill()
        member.held_machines = frozenset([DIGEST_NAME])
        scene.run_for(random.uniform(0, ELECTION_MS))
        member.start()
    scene.await_leader()
    scene.step_over(index)
    for _ in range(6):
        member = random.choice(scene.members)
        random.choice((member.kill, member.lose_power, member.stop))()
        scene.run_for(random.uniform(0, ELECTION_MS))
        member.held_machines = frozenset([DIGEST_NAME] if random.random() < 0.3 else [])
        member.start()
        scene.run_for(random.uniform(0, 2 * ELECTION_MS))
    for member in scene.members:
        member.kill()
        member.held_machines = frozenset()
        member.start()
        scene.run_for(2 * ELECTION_MS)
    scene.run_for(4 * ELECTION_MS)
    scene.commands(3)
    assert scene.taken() == {b"%d" % (before + 3)}
    scene.make_whole()
