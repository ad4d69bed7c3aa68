"""Machines whose process ended while they applied something: the next run knows where, and what the log
says of it by now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorumlog.errors import ResultUnknown
from tests.node.machines import Chain, Fragile
from tests.node.test_held_machines import held_problems, restarted
from tests.node.test_state_machines import Group
from tests.node.test_step_over import step_over


class Coarse(Chain):
    """Falls over a batch that holds a body "bug", and does not say at which entry."""

    def apply(self, batch: Any, first_index: int) -> Any:
        if b"bug" in [bytes(body) for body in batch.bodies()]:
            raise ZeroDivisionError("a bug")
        return super().apply(batch, first_index)


def ended(group: Group) -> None:
    """All members, some time after what they have applied; each knows what was committed."""
    for _ in range(150):
        group.cell.step(50)
    for member in list(group.cell.nodes):
        group.cell.kill(member)


def stopped_at(group: Group) -> set[str]:
    """What the members' machines say of where they stopped, once all have."""

    def problems() -> list[str]:
        return [each for node in group.cell.nodes.values() for each in held_problems(node)]

    group.cell.until(lambda: sum("has stopped" in each for each in problems()) == 3, "three stopped")
    return {each.partition(" at ")[2].partition(":")[0] for each in problems()}


def held_back(group: Group) -> list[str]:
    """What the members say whose machine is held back."""
    return [each for node in group.cell.nodes.values() for each in held_problems(node)]


def test_a_machine_waits_until_a_leader_has_told_how_far_the_log_is_committed(tmp_path: Path) -> None:
    group = Group(tmp_path, Fragile)
    group.append(b"a")
    assert isinstance(group.append(b"bug"), ResultUnknown)
    stopped_at(group)
    ended(group)
    made = len(group.recorder.made)
    alone = group.cell.start("n0")
    group.cell.until(lambda: held_problems(alone), "a problem")
    for _ in range(20):
        group.cell.step(50)
    (problem,) = held_problems(alone)
    assert "its last run here ended while it applied entry 3, and it waits" in problem
    assert len(group.recorder.made) == made
    group.cell.start("n1")
    group.cell.start("n2")
    assert stopped_at(group) == {"entry 3"}
    group.cell.close()


def test_a_machine_whose_runs_end_normally_waits_for_nobody(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.append(b"a")
    group.settle()
    ended(group)
    made = len(group.recorder.made)
    alone = group.cell.start("n0")
    group.cell.until(lambda: group.machine_of(alone) is not None, "a machine")
    assert len(group.recorder.made) > made
    group.cell.close()


def test_the_second_run_goes_entry_by_entry_and_so_names_the_one(tmp_path: Path) -> None:
    group = Group(tmp_path, Coarse)
    first = group.append(b"a", b"b").first_index
    group.append(b"c", b"d", b"bug", b"e")
    assert stopped_at(group) == {f"entries {first + 2} .. {first + 5}"}
    restarted(group, "n0", "n1", "n2")
    for problem in held_back(group):
        assert (
            f"applied entries {first + 2} .. {first + 5}, and the next one applies entry by" in problem
        )
        assert problem.endswith(": restart without --hold-machine chain")
    restarted(group)
    assert stopped_at(group) == {f"entry {first + 4}"}
    restarted(group, "n0", "n1", "n2")
    for problem in held_back(group):
        assert f"its last run here ended while it applied entry {first + 4}: mend" in problem
        assert f"(quorumlog machine step-over chain {first + 4}), then restart without" in problem
    step_over(group, first + 4)
    group.cell.until(
        lambda: all("leaves out from now on: restart" in each for each in held_back(group)), "known"
    )
    group.cell.close()


def test_a_machine_that_does_not_come_to_an_end_is_named(tmp_path: Path) -> None:
    group = Group(tmp_path)
    index = group.append(b"a").last_index
    group.settle()
    leader = group.cell.leader()
    group.cell.hold_apply = {leader.replica.member_id}
    group.ask_to_append(b"b")
    for _ in range(100):
        group.cell.step(50)
    assert held_problems(leader) == []
    for _ in range(120):
        group.cell.step(50)
    (problem,) = held_problems(leader)
    assert f"has been applying entry {index + 1}, or a later one, for a long time" in problem
    group.cell.hold_apply = set()
    group.settle()
    assert held_problems(leader) == []
    group.cell.close()
