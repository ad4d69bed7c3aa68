"""An entry that a state machine leaves out, by an entry of the log: on every member, whatever it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.entry import AppendReceipt
from quorumlog.errors import ResultUnknown
from quorumlog.log_state.control_entries import StepOver
from quorumlog.store.files.snapshot_file import SnapshotFiles
from tests.node.cell import SMALL
from tests.node.machines import Disk, Fragile, Lasting
from tests.node.test_held_machines import restarted
from tests.node.test_session_commands import Sessions
from tests.node.test_state_machines import Group

SAVING = replace(SMALL, snapshot_entries=4)


def step_over(group: Group, index: int) -> None:
    """As the leader writes it."""
    leader = group.cell.leader()
    chain = leader.store.point_on_disk(index).chain
    entry = leader.propose_control(StepOver("chain", index, chain))
    nodes = group.cell.nodes.values
    group.cell.until(lambda: all(node.committed_index >= entry.index for node in nodes()), "a commit")


def bodies(group: Group) -> list[list[bytes]]:
    return [[body for _, body in taken] for taken in group.settle()]


def test_machines_that_have_stopped_at_an_entry_go_on_without_it(tmp_path: Path) -> None:
    group = Group(tmp_path, Fragile)
    index = group.append(b"a").last_index + 2
    assert isinstance(group.append(b"b", b"bug", b"c"), ResultUnknown)
    group.cell.until(lambda: all(node.problems() for node in group.cell.nodes.values()), "a stop")
    step_over(group, index)
    assert bodies(group) == [[b"a", b"b", b"c"]] * 3
    assert not any(node.problems() for node in group.cell.nodes.values())
    assert isinstance(group.append(b"d"), AppendReceipt)
    restarted(group)
    assert bodies(group) == [[b"a", b"b", b"c", b"d"]] * 3
    group.cell.close()


def test_who_has_appended_it_is_told_that_it_was_left_out(tmp_path: Path) -> None:
    """The members have not come to it as it is stepped over."""
    group = Group(tmp_path)
    group.append(b"a")
    group.settle()
    group.cell.hold_apply = {"n0", "n1", "n2"}
    group.ask_to_append(b"x")
    group.cell.step()
    outcomes = group.ask_to_append(b"b", b"bad", b"c")
    group.cell.step()
    step_over(group, group.cell.leader().store.end.index - 1)
    assert not outcomes
    group.cell.hold_apply = set()
    group.settle()
    (receipt,) = outcomes
    assert receipt.results[0].endswith(b":b") and receipt.results[2].endswith(b":c")
    ((place, why),) = receipt.failures
    assert (place, receipt.results[1]) == (1, None)
    assert "was stepped over" in why
    assert bodies(group) == [[b"a", b"x", b"b", b"c"]] * 3
    group.cell.close()


def test_a_machine_that_holds_it_is_built_anew(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.append(b"a")
    index = group.append(b"b").last_index
    group.append(b"c")
    assert bodies(group) == [[b"a", b"b", b"c"]] * 3
    step_over(group, index)
    assert bodies(group) == [[b"a", b"c"]] * 3
    group.append(b"d")
    assert bodies(group) == [[b"a", b"c", b"d"]] * 3
    group.cell.close()


def test_a_snapshot_that_holds_it_is_not_gone_on_from(tmp_path: Path) -> None:
    group = Group(tmp_path, storage=SAVING)
    indices = [group.append(b"%d" % number).last_index for number in range(11)]
    group.settle()
    files = SnapshotFiles(group.cell.nodes["n1"].directory.disk, str(tmp_path / "n1"))
    left_out = indices.index(files.indices_of("chain")[-1])
    step_over(group, indices[left_out])
    expected = [b"%d" % number for number in range(11) if number != left_out]
    assert bodies(group) == [expected] * 3
    restarted(group)
    assert bodies(group) == [expected] * 3
    for number in range(11, 20):
        group.append(b"%d" % number)
    expected += [b"%d" % number for number in range(11, 20)]
    assert bodies(group) == [expected] * 3
    for index in files.indices_of("chain"):
        reader = files.open("chain", index)
        assert [left[0] for left in reader.head.left_out] == [indices[left_out]]
        reader.close()
    restarted(group)
    assert bodies(group) == [expected] * 3
    group.cell.close()


@pytest.mark.parametrize("is_held", [True, False])
def test_a_machine_that_keeps_its_own_state_is_cleared_if_it_holds_it(
    tmp_path: Path, is_held: bool
) -> None:
    disks: list[Disk] = [Disk() for _ in range(3)]
    given: list[Disk] = []

    def make() -> Lasting:
        given.append(disks[len(given) % 3])
        return Lasting(given[-1])

    group = Group(tmp_path, make)
    del given[:]
    group.append(b"a")
    index = group.append(b"b").last_index
    group.append(b"c")
    group.settle()
    if is_held:
        restarted(group, "n0", "n1", "n2")
    step_over(group, index)
    del given[:]
    restarted(group)
    assert bodies(group) == [[b"a", b"c"]] * 3
    group.append(b"d")
    assert bodies(group) == [[b"a", b"c", b"d"]] * 3
    del given[:]
    restarted(group)
    assert bodies(group) == [[b"a", b"c", b"d"]] * 3
    assert all(len(disk.taken) == 3 for disk in disks)
    group.cell.close()


def test_a_session_that_asks_again_gets_the_same_refusal(tmp_path: Path) -> None:
    """Its results are kept with the machine, so the refusal is."""
    group = Sessions(tmp_path)
    first = group.command(0, b"a", b"b")
    step_over(group, first.first_index)
    group.settle()
    again = group.command(0, b"a", b"b")
    assert again.results == (None, b"%d:b" % first.last_index)
    ((_, why),) = again.failures
    assert f"entry {first.first_index} was stepped over" in why
    group.restart_all()
    assert group.command(0, b"a", b"b") == again
    group.cell.close()
