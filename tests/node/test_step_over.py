"""An entry that a state machine leaves out, by an entry of the log: on every member, whatever it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.consensus.messages import PushEntryRequest
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    BadRequest,
    LeaderNotReady,
    LevelNotReported,
    OutcomeUnknown,
    ResultUnknown,
    StepOverRefused,
    UnknownMachine,
)
from quorumlog.log_state import log_state
from quorumlog.log_state.control_entries import Keep, StepOver
from quorumlog.node import step_overs
from quorumlog.store.snapshots import ApplyingFile, SnapshotFiles
from tests.node.cell import SMALL, Job, run
from tests.node.machines import Disk, Fragile, Lasting, Recorder
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


# ---------------------------------------------------------------- what an operator asks for


def ask(group: Group, index: int, name: str = "chain", *, unsafe: bool = False) -> Any:
    outcomes: list[Any] = []
    group.cell.leader().machines.step_overs.request(name, index, unsafe, outcomes.append)
    group.cell.until(lambda: outcomes, "an outcome")
    return outcomes[0]


def stopped_group(path: Path) -> tuple[Group, int]:
    """All members have stopped at the entry, which is the second command."""
    group = Group(path, Fragile)
    index = group.append(b"a").last_index + 1
    assert isinstance(group.append(b"bug"), ResultUnknown)
    group.cell.until(lambda: all(node.problems() for node in group.cell.nodes.values()), "a stop")
    return group, index


@pytest.mark.parametrize("is_held", [True, False])
def test_an_entry_that_nobody_has_applied_is_stepped_over(tmp_path: Path, is_held: bool) -> None:
    group, index = stopped_group(tmp_path)
    if is_held:
        restarted(group, "n0", "n1", "n2")
    ordered_at = ask(group, index)
    assert ordered_at > index
    assert ask(group, index) == ordered_at, "asked again, it is done"
    if is_held:
        restarted(group)
    assert bodies(group) == [[b"a"]] * 3
    group.append(b"c")
    assert bodies(group) == [[b"a", b"c"]] * 3
    group.cell.close()


def test_an_entry_that_members_have_applied_is_stepped_over_only_where_that_is_wanted(
    tmp_path: Path,
) -> None:
    group, index = stopped_group(tmp_path)
    for _ in range(2):
        refusal = ask(group, index - 1)
        assert isinstance(refusal, StepOverRefused)
        assert f"entry {index - 1} was applied to chain on n0, n1, n2, so" in str(refusal)
        assert "--unsafe" in str(refusal)
        restarted(group, "n0", "n1", "n2")  # by what their files say
    assert isinstance(ask(group, index - 1, unsafe=True), int)
    assert isinstance(ask(group, index), int)
    restarted(group)
    assert bodies(group) == [[]] * 3
    group.cell.close()


def test_a_member_that_does_not_answer_may_have_applied_it(tmp_path: Path) -> None:
    group, index = stopped_group(tmp_path)
    away = group.cell.followers()[0].replica.member_id
    group.cell.cut_off = {away}
    refusal = ask(group, index)
    assert isinstance(refusal, StepOverRefused)
    assert f"no answer from {away}, where" in str(refusal) and "--unsafe" in str(refusal)
    assert isinstance(ask(group, index, unsafe=True), int)
    group.cell.cut_off = set()
    assert bodies(group) == [[b"a"]] * 3
    group.cell.close()


def test_only_commands_of_a_machine_are_stepped_over(tmp_path: Path) -> None:
    group, index = stopped_group(tmp_path)
    plain = group.append(b"plain", machine="").last_index
    for wrong in (0, 1, plain, plain + 1, 2**62):
        refusal = ask(group, wrong)
        assert isinstance(refusal, BadRequest), wrong
        assert f"entry {wrong} is not a command of chain" in str(refusal)
    refusal = ask(group, index, "other")
    assert isinstance(refusal, UnknownMachine) and "it binds: chain" in str(refusal)
    group.cell.close()


@pytest.mark.parametrize("is_held", [True, False])
def test_a_machine_that_counts_on_each_entry_leaves_none_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    monkeypatch.setattr(Recorder, "may_leave_out", False, raising=False)
    group, index = stopped_group(tmp_path)
    if is_held:
        restarted(group, "n0", "n1", "n2")
    refusal = ask(group, index, unsafe=True)
    assert isinstance(refusal, StepOverRefused) and "chain cannot leave an entry out" in str(refusal)
    group.cell.close()


def test_nothing_is_stepped_over_before_every_member_knows_how(tmp_path: Path) -> None:
    group, index = stopped_group(tmp_path)
    for host in group.cell.hosts.values():
        host.level = 5
    refusal = ask(group, index)
    assert isinstance(refusal, LevelNotReported) and "level 6" in str(refusal)
    group.cell.close()


def test_no_more_entries_are_left_out_than_a_log_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_overs, "MOST_STEPPED_OVER", 1)
    group, index = stopped_group(tmp_path)
    assert isinstance(ask(group, index), int)
    last_index = group.append(b"x").last_index
    refusal = ask(group, last_index, unsafe=True)
    assert isinstance(refusal, StepOverRefused) and "leave out 1 entries already" in str(refusal)
    group.cell.close()


@pytest.mark.parametrize("is_written", [False, True])
def test_who_loses_leadership_meanwhile_does_not_say_that_it_is_done(
    tmp_path: Path, is_written: bool
) -> None:
    group, index = stopped_group(tmp_path)
    outcomes: list[Any] = []
    leader = group.cell.leader()
    end_index = leader.store.end.index
    if is_written:
        group.cell.drops = lambda sender, to, message: isinstance(message, PushEntryRequest)
    else:
        group.cell.cut_off = {leader.replica.member_id}
    leader.machines.step_overs.request("chain", index, False, outcomes.append)
    if is_written:
        group.cell.until(lambda: leader.store.end.index > end_index, "the entry")
        group.cell.cut_off = {leader.replica.member_id}
    group.cell.until(lambda: outcomes, "an outcome")
    assert isinstance(outcomes[0], OutcomeUnknown if is_written else LeaderNotReady), outcomes
    group.cell.close()


# ---------------------------------------------------------------- where the log begins later


def grown(group: Group) -> list[int]:
    """Indices of commands, over several segments; all members have saved."""
    indices = [group.append(b"%d" % number + bytes(6_000)).last_index for number in range(60)]
    group.settle()
    for _ in range(40):
        group.cell.step(50)
    return indices


def drop(group: Group, member: str) -> int:
    """The log there begins behind the entry that is returned, as far on as its machine lets it."""
    node = group.cell.nodes[member]
    bound = node.machines.snapshot_bound()
    assert bound is not None
    saved = [start for start in node.store.boundaries.saved() if start.point.index <= bound]
    assert node.drops.begin(saved[-1])
    group.cell.until(lambda: node.store.begin.index == saved[-1].point.index, "a drop")
    return node.store.begin.index


def test_nothing_is_stepped_over_that_no_machine_could_be_built_without(tmp_path: Path) -> None:
    group = Group(tmp_path, storage=SAVING)
    indices = grown(group)
    begins = [drop(group, member) for member in ("n0", "n1", "n2")]
    files = group.cell.leader().directory.snapshots
    oldest = files.indices_of("chain")[0]
    assert max(begins) < oldest
    gone = ask(group, min(begins), unsafe=True)
    assert isinstance(gone, StepOverRefused) and "no longer in the log of the leader" in str(gone)
    refusal = ask(group, oldest, unsafe=True)
    assert isinstance(refusal, StepOverRefused) and "the state of chain before" in str(refusal)
    index = next(each for each in indices if each > oldest)
    assert isinstance(ask(group, index, unsafe=True), int)
    (taken, *others) = group.settle()
    assert others == [taken] * 2
    assert [at for at, _ in taken] == [each for each in indices if each != index]
    group.cell.close()


def on_their_way_out(group: Group, indices: list[int]) -> list[Job]:
    """The next deletion of the leader's snapshots, under way; `indices` grows by what is appended."""
    host = group.cell.hosts[group.cell.leader().replica.member_id]
    read_later, held = host.read_later, list[Job]()

    def or_hold(work: Any, done: Any) -> None:
        is_delete = getattr(getattr(work, "func", None), "__name__", "") == "_delete"
        held.append((work, done)) if is_delete else read_later(work, done)

    host.read_later = or_hold  # type: ignore[method-assign]
    while not held:
        indices.append(group.append(b"one more").last_index)
        group.settle()
    host.read_later = read_later  # type: ignore[method-assign]
    return held


def test_a_snapshot_on_its_way_out_is_none_that_a_machine_could_be_built_from(tmp_path: Path) -> None:
    """Nor where the machine has stopped since."""
    group = Group(tmp_path, Fragile, storage=SAVING)
    indices = grown(group)
    for member in ("n0", "n1", "n2"):
        drop(group, member)
    held = on_their_way_out(group, indices)
    going, oldest, *_ = group.cell.leader().directory.snapshots.indices_of("chain")
    index = next(each for each in indices if going < each <= oldest)
    assert isinstance(group.append(b"bug"), ResultUnknown)
    group.cell.until(lambda: all(node.problems() for node in group.cell.nodes.values()), "a stop")
    refusal = ask(group, index, unsafe=True)
    assert isinstance(refusal, StepOverRefused) and "the state of chain before" in str(refusal)
    run(held)
    group.cell.close()


def test_no_machine_is_opened_with_a_snapshot_on_its_way_out(tmp_path: Path) -> None:
    group = Group(tmp_path, storage=SAVING)
    indices = grown(group)
    held = on_their_way_out(group, indices)
    leader = group.cell.leader()
    files = leader.directory.snapshots
    index = next(each for each in indices if each > files.indices_of("chain")[-2])
    step_over(group, index)
    group.cell.step()
    run(held)
    assert set(leader.machines._drivers["chain"].snapshots.indices) <= set(files.indices_of("chain"))
    (taken, *others) = group.settle()
    assert others == [taken] * 2
    group.cell.close()


def test_a_member_whose_log_begins_behind_it_gets_a_machine_of_another(tmp_path: Path) -> None:
    group = Group(tmp_path, storage=SAVING)
    indices = grown(group)
    away = group.cell.followers()[0].replica.member_id
    begin_index = drop(group, away)
    index = next(each for each in indices if each < begin_index)
    assert isinstance(ask(group, index, unsafe=True), int)
    (taken, *others) = group.settle()
    assert others == [taken] * 2
    assert [at for at, _ in taken] == [each for each in indices if each != index]
    assert group.cell.nodes[away].store.begin.index == begin_index
    group.cell.close()


def test_the_log_stays_until_the_machine_is_built_anew(tmp_path: Path) -> None:
    """Its snapshots hold what is to be left out: the log may not begin behind them meanwhile."""
    group = Group(tmp_path, storage=SAVING)
    indices = grown(group)
    leader = group.cell.leader()
    bound = leader.machines.snapshot_bound()
    assert bound is not None and bound > indices[0]
    chain = leader.store.point_on_disk(indices[0]).chain
    leader.propose_control(StepOver("chain", indices[0], chain))
    assert leader.machines.snapshot_bound() == 0
    group.settle()
    grown(group)
    bound = leader.machines.snapshot_bound()
    assert bound is not None and bound > indices[-1]
    group.cell.close()


def test_a_member_that_has_just_started_answers_by_what_its_files_tell(tmp_path: Path) -> None:
    """What is committed it does not know yet, so not even that the log binds the machine."""
    group, index = stopped_group(tmp_path)
    member = group.cell.followers()[0].replica.member_id
    group.cell.kill(member)
    group.cell.hold_apply = {member}
    group.cell.cut_off = {member}
    node = group.cell.start(member)
    group.cell.step()
    assert node.log_state.committed is None or node.log_state.committed.machine("chain") is None
    assert node.machines._holdings().holds == {"chain": index - 1}
    group.cell.close()


def test_no_more_entries_are_noted_as_left_out_than_the_log_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others lie in front of where the log begins."""
    for module in (step_overs, log_state):
        monkeypatch.setattr(module, "MOST_STEPPED_OVER", 1)
    group = Group(tmp_path, storage=SAVING)
    ordered = []
    for _ in range(3):
        ordered.append(group.append(b"x").last_index)
        assert isinstance(ask(group, ordered[-1], unsafe=True), int)
        grown(group)
        for member in ("n0", "n1", "n2"):
            while (begin_index := drop(group, member)) <= ordered[-1]:
                pass
        group.cell.leader().propose_control(Keep(begin_index))
        group.settle()
    group.append(b"y")
    group.settle()
    disk = group.cell.leader().directory.disk
    for node in group.cell.nodes.values():
        (left_out,) = ApplyingFile(disk, node.directory.path, "chain", lambda file: None).left_out
        assert left_out[0] == ordered[-1]
    group.cell.close()
