"""State machines that are held back: the member does everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorumlog.entry import AppendReceipt
from quorumlog.errors import UnknownMachine
from tests.node.test_state_machines import Group


def restarted(group: Group, *held: str) -> None:
    """All members, `held` of them with the machine held back."""
    for member in list(group.cell.nodes):
        group.cell.kill(member)
    for member in ("n0", "n1", "n2"):
        group.cell.held_machines[member] = {"chain"} if member in held else set()
        group.cell.start(member)
    group.cell.until(lambda: group.cell.leader() is not None, "a leader")


def held_problems(node: Any) -> list[str]:
    return [problem for problem in node.problems() if "chain" in problem]


def test_a_group_whose_machine_is_held_back_takes_entries_and_refuses_commands(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.append(b"a")
    made = len(group.recorder.made)
    restarted(group, "n0", "n1", "n2")
    assert isinstance(group.append(b"plain", machine=""), AppendReceipt)
    refused = group.append(b"b")
    assert isinstance(refused, UnknownMachine)
    assert "chain is held back on" in str(refused) and "--hold-machine" in str(refused)
    assert isinstance(group.query(), UnknownMachine)
    for node in group.cell.nodes.values():
        (problem,) = held_problems(node)
        assert "chain is held back" in problem and "without --hold-machine chain" in problem
    assert len(group.recorder.made) == made, "nobody has made the machine"
    restarted(group)
    assert [[body for _, body in taken] for taken in group.settle()] == [[b"a"]] * 3
    group.cell.close()


def test_a_leader_whose_machine_is_held_back_hands_over_to_a_member_that_runs_it(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.append(b"a")
    restarted(group, "n0", "n1")
    group.cell.until(lambda: group.cell.leader().replica.member_id == "n2", "a hand-over")
    assert isinstance(group.append(b"b"), AppendReceipt)
    group.cell.close()
