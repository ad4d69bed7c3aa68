"""State machines of members: each entry once and in order, on every member alike, beside the log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    CommandError,
    LeaderNotReady,
    OutcomeUnknown,
    RequestTimeout,
    ResultUnknown,
    UnknownMachine,
)
from quorumlog.log_state.control_entries import LEVEL, VERSION_LEVEL
from quorumlog.node import LedgerNode
from quorumlog.node.operator_orders import FinishedUpgrade, UpgradeOutcome
from quorumlog.state_machine import StateMachine
from quorumlog.version import IS_COMPILED
from tests.node.cell import SMALL, Cell
from tests.node.machines import Chain, Disk, Fragile, Lasting, Recorder


class Group:
    """Members of a cell and what their machines have become."""

    def __init__(self, path: Path, make: Any = Chain, members: int = 3, **options: Any) -> None:
        self.recorder = Recorder(make)
        self.cell = Cell(path, members, machines={"chain": self.recorder}, **options)
        self.cell.until(self.is_bound, "a binding")

    def is_bound(self) -> bool:
        return self.cell.leader().machines.status()[0].channel == 1

    def append(self, *bodies: bytes, machine: str = "chain", **options: Any) -> Any:
        outcomes = self.ask_to_append(*bodies, machine=machine, **options)
        self.cell.until(lambda: outcomes, f"an outcome of {bodies!r}")
        return outcomes[0]

    def ask_to_append(self, *bodies: bytes, machine: str = "chain", **options: Any) -> list[Any]:
        outcomes: list[Any] = []
        batch = EntryBatch.from_bodies(list(bodies))
        self.cell.leader().append(batch, 0, outcomes.append, machine=machine, **options)
        return outcomes

    def query(self, question: bytes = b"", node: LedgerNode | None = None) -> Any:
        answers: list[Any] = []
        (node or self.cell.leader()).machines.ask("chain", question, 5000, answers.append)
        self.cell.until(lambda: answers, "an answer")
        return answers[0]

    def machine_of(self, node: LedgerNode) -> Any:
        runner = node.machines._drivers["chain"]._runner
        return None if runner is None else runner.machine

    def settle(self) -> list[Any]:
        """Everybody has applied the whole log; what their machines hold."""

        def is_settled() -> bool:
            end = self.cell.leader().raft.ledger_end.index
            rows = [node.machines.status()[0] for node in self.cell.nodes.values()]
            return all(row.applied_index == end for row in rows)

        self.cell.step()
        self.cell.until(is_settled, "everything applied")
        return [self.machine_of(node).taken for node in self.cell.nodes.values()]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    yield group
    group.cell.close()


def test_every_member_applies_the_entries_of_the_channel_once_and_in_order(group: Group) -> None:
    group.append(b"nobody's", machine="")
    first = group.append(b"a").first_index
    group.append(b"plain", machine="")
    group.append(b"b", b"c")
    expected = [(first, b"a"), (first + 2, b"b"), (first + 3, b"c")]
    assert group.settle() == [expected] * 3


def test_a_plain_append_is_for_no_machine_whatever_channel_its_bytes_name(group: Group) -> None:
    outcomes: list[Any] = []
    forged = EntryBatch.from_bodies([b"forged"])
    forged.set_channel(1)
    group.cell.leader().append(forged, 0, outcomes.append)
    group.cell.until(lambda: outcomes)
    group.append(b"a")
    assert [[body for _, body in taken] for taken in group.settle()] == [[b"a"]] * 3


def test_a_damaged_body_is_not_applied(tmp_path: Path) -> None:
    """A bit flips in what a member is about to read from its disk: the others repair it first."""
    group = Group(tmp_path)
    for number in range(9):
        group.append(b"command %d" % number, bytes(3000))
    (expected, *_) = group.settle()
    group.cell.kill("n1")
    group.cell.hold_apply = {"n1"}
    group.cell.start("n1")
    group.cell.step()
    flipped = 0
    for segment in (tmp_path / "n1" / "data").iterdir():
        data = segment.read_bytes()
        segment.write_bytes(data.replace(b"command 3", b"comMand 3"))
        flipped += data.count(b"command 3")
    assert flipped == 1
    group.cell.hold_apply = set()
    assert group.settle() == [expected] * 3
    group.cell.close()


def test_the_result_reaches_who_appended_the_command(group: Group) -> None:
    asked = [group.ask_to_append(b"%d" % number) for number in range(20)]
    group.cell.until(lambda: all(asked))
    for number, outcomes in enumerate(asked):
        receipt = outcomes[0]
        assert receipt.result == b"%d:%d" % (receipt.first_index, number)
    assert group.append(b"plain", machine="").results == ()


def test_a_refused_command_is_answered_and_has_no_effect(group: Group) -> None:
    receipt = group.append(b"a", b"no way", b"b")
    assert receipt.results == (b"%d:a" % receipt.first_index, None, b"%d:b" % receipt.last_index)
    assert receipt.failures == ((1, "b'no way' is refused"),)
    assert [[body for _, body in taken] for taken in group.settle()] == [[b"a", b"b"]] * 3


def test_nothing_is_applied_before_it_is_on_the_own_disk(group: Group) -> None:
    leader = group.cell.leader()
    follower = group.cell.followers()[0]
    group.cell.hold_flush = {follower.replica.member_id}
    group.append(b"a")
    group.cell.step()
    assert group.machine_of(follower).taken == []
    assert len(group.machine_of(leader).taken) == 1
    group.cell.hold_flush = set()
    assert len({len(taken) for taken in group.settle()}) == 1


def test_the_leaders_own_disk_is_waited_for_too(group: Group) -> None:
    group.cell.hold_flush = {group.cell.leader().replica.member_id}
    asked = group.ask_to_append(b"a")
    for _ in range(5):
        group.cell.step()
    assert not asked
    group.cell.hold_flush = set()
    group.cell.until(lambda: asked)
    assert asked[0].result.endswith(b":a")


def test_reads_and_appends_do_not_wait_for_a_machine(group: Group) -> None:
    group.cell.hold_apply = set(group.cell.nodes)
    waiting = group.ask_to_append(b"a")
    assert isinstance(group.append(b"plain", machine=""), AppendReceipt)
    assert not waiting
    group.cell.hold_apply = set()
    group.cell.until(lambda: waiting)


def test_a_question_is_answered_from_all_that_was_acknowledged_before(group: Group) -> None:
    group.append(b"a")
    group.cell.hold_apply = set(group.cell.nodes)
    waiting = group.ask_to_append(b"b")
    group.cell.step()
    answers: list[Any] = []
    group.cell.leader().machines.ask("chain", b"count", 5000, answers.append)
    group.cell.step()
    assert not answers
    group.cell.hold_apply = set()
    group.cell.until(lambda: answers)
    group.cell.until(lambda: waiting)
    assert answers[0] == (b"2", group.cell.leader().machines.status()[0].applied_index)


def test_a_leader_that_was_replaced_answers_no_question(group: Group) -> None:
    old = group.cell.leader()
    group.cell.cut_off = {old.replica.member_id}
    answers: list[Any] = []
    old.machines.ask("chain", b"count", 60_000, answers.append)
    group.cell.step()
    assert not answers
    group.cell.leader()
    group.cell.cut_off = set()
    group.cell.until(lambda: answers)
    assert not isinstance(answers[0], tuple)


def test_a_question_that_fails_stops_nothing(group: Group) -> None:
    answer = group.query(b"bad")
    assert isinstance(answer, CommandError)
    assert "ValueError: not a question" in str(answer)
    assert group.append(b"a").result


def test_a_question_has_its_time(group: Group) -> None:
    group.cell.hold_apply = set(group.cell.nodes)
    answers: list[Any] = []
    group.cell.leader().machines.ask("chain", b"count", 300, answers.append)
    group.cell.until(lambda: answers)
    assert isinstance(answers[0], RequestTimeout)


def test_results_never_go_to_the_append_that_had_the_index_before(group: Group) -> None:
    """A command of a leader that is cut off, and another leader's at the same index."""
    old = group.cell.leader()
    group.cell.cut_off = {old.replica.member_id}
    lost: list[Any] = []
    old.append(EntryBatch.from_bodies([b"lost"]), 60_000, lost.append, machine="chain")
    group.cell.step()
    new = group.cell.leader()
    kept: list[Any] = []
    new.append(EntryBatch.from_bodies([b"kept"]), 0, kept.append, machine="chain")
    group.cell.until(lambda: kept)
    group.cell.cut_off = set()
    group.cell.until(lambda: lost)
    group.settle()
    assert isinstance(lost[0], OutcomeUnknown)
    assert kept[0].result == b"%d:kept" % kept[0].first_index


def test_who_has_committed_hears_the_result_although_it_leads_no_more(group: Group) -> None:
    old = group.cell.leader()
    group.cell.hold_apply = {old.replica.member_id}
    asked = group.ask_to_append(b"a")
    end = old.raft.ledger_end.index
    group.cell.until(lambda: old.committed_index > end, "the commit")
    group.cell.cut_off = {old.replica.member_id}
    new = group.cell.leader()
    assert new is not old
    group.cell.cut_off = set()
    group.cell.hold_apply = set()
    group.cell.until(lambda: asked)
    assert asked[0].result.endswith(b":a")


def test_a_result_that_does_not_come_in_time_is_not_known_and_the_entry_is_committed(
    group: Group,
) -> None:
    group.cell.hold_apply = set(group.cell.nodes)
    outcome = group.append(b"a")
    assert isinstance(outcome, ResultUnknown)
    assert "committed" in str(outcome)
    group.cell.hold_apply = set()
    assert [len(taken) for taken in group.settle()] == [1, 1, 1]


def test_whose_command_commits_after_the_machine_has_stopped_is_told_at_once(tmp_path: Path) -> None:
    group = Group(tmp_path, Fragile)
    group.cell.hold_apply = set(group.cell.nodes)
    failing = group.ask_to_append(b"bug")
    group.cell.step()
    group.cell.hold_flush = set(group.cell.nodes)
    late = group.ask_to_append(b"a")
    group.cell.step()
    group.cell.hold_apply = set()
    group.cell.until(lambda: failing)
    assert not late
    group.cell.hold_flush = set()
    group.cell.step()
    assert isinstance(late[0], ResultUnknown)
    assert "ZeroDivisionError: a bug" in str(late[0])
    group.cell.close()


def test_a_machine_that_fails_stops_alone_and_before_that_entry(tmp_path: Path) -> None:
    group = Group(tmp_path, Fragile)
    group.append(b"a")
    leader = group.cell.leader()
    outcome = group.append(b"b", b"bug", b"c")
    assert isinstance(outcome, ResultUnknown)
    assert "ZeroDivisionError: a bug" in str(outcome)
    assert isinstance(group.append(b"plain", machine=""), AppendReceipt), "the log goes on"
    assert isinstance(group.append(b"d"), UnknownMachine)
    assert isinstance(group.query(), UnknownMachine)
    group.cell.until(lambda: all(node.problems() for node in group.cell.nodes.values()))
    (problem,) = leader.problems()
    bug_index = leader.raft.ledger_end.index - 2
    assert f"entry {bug_index}: ZeroDivisionError: a bug" in problem
    group.cell.close()


def test_a_fixed_machine_goes_on_at_the_entry_that_stopped_it(tmp_path: Path) -> None:
    group = Group(tmp_path, Fragile)
    group.append(b"a", b"bug", b"c")
    group.cell.until(lambda: all(node.problems() for node in group.cell.nodes.values()))
    group.cell.machines = {"chain": Chain}
    for member in list(group.cell.nodes):
        group.cell.kill(member)
        group.cell.start(member)
    assert [[body for _, body in taken] for taken in group.settle()] == [[b"a", b"bug", b"c"]] * 3
    group.cell.close()


def test_a_machine_that_is_added_later_acts_from_its_binding_on(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.append(b"a")
    group.cell.machines = {"chain": Chain, "second": Chain}
    for member in list(group.cell.nodes):
        group.cell.kill(member)
        group.cell.start(member)
    group.cell.until(lambda: group.cell.leader().machines.status()[1].channel == 2)
    assert group.append(b"x", machine="second").result.endswith(b":x")
    group.cell.close()


def test_nobody_gives_commands_to_a_machine_that_does_not_run(group: Group) -> None:
    outcome = group.append(b"a", machine="other")
    assert isinstance(outcome, UnknownMachine)
    assert "it runs: chain" in str(outcome)


def test_no_machine_is_bound_before_every_member_knows_how(tmp_path: Path) -> None:
    cell = Cell(tmp_path, machines={"chain": Chain})
    for host in cell.hosts.values():
        host.level = 2
    leader = cell.until(lambda: cell.leader())
    outcomes: list[Any] = []
    cell.until(lambda: leader.problems())
    leader.append(EntryBatch.from_bodies([b"a"]), 0, outcomes.append, machine="chain")
    assert isinstance(outcomes[0], LeaderNotReady)
    assert "level 3" in str(outcomes[0])
    for host in cell.hosts.values():
        host.level = 3
    cell.until(lambda: leader.machines.status()[0].channel)
    assert leader.problems() == ()
    cell.close()


class Second(Chain):
    """Doubles what it is given, from the entry on that goes over to it."""

    version = 2

    def __init__(self) -> None:
        super().__init__()
        self.acts_as = 0

    def act_as(self, version: int) -> None:
        self.acts_as = version

    def command(self, body: bytes, index: int) -> bytes | None:
        return super().command(body * self.acts_as, index)


def test_all_members_go_over_to_a_version_at_the_same_entry(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.append(b"a")
    group.cell.machines = {"chain": Second}
    for member in list(group.cell.nodes):
        group.cell.kill(member)
        group.cell.start(member)
    group.cell.until(lambda: group.cell.leader().machines.status()[0].version == 2)
    group.append(b"b")
    taken = group.settle()
    assert [[body for _, body in each] for each in taken] == [[b"a", b"bb"]] * 3
    group.cell.close()


def test_no_version_is_raised_before_the_upgrade_of_a_group_is_finished(tmp_path: Path) -> None:
    """Until then each member may go back to a release that would stop there."""
    cell = Cell(tmp_path, machines={"chain": Second}, level=VERSION_LEVEL - 1)
    cell.until(lambda: cell.leader().machines.status()[0].version == 1, "a binding")
    for host in cell.hosts.values():
        host.level = LEVEL
    cell.step(5000)
    assert cell.leader().machines.status()[0].version == 1
    outcomes: list[UpgradeOutcome] = []
    cell.leader().orders.finish_upgrade(outcomes.append)
    cell.until(lambda: cell.leader().machines.status()[0].version == 2, "the version")
    assert isinstance(outcomes[0], FinishedUpgrade)
    cell.close()


@pytest.mark.parametrize("first", [Chain, Second])
def test_no_version_is_raised_before_every_member_is_of_a_release_that_may_have_it(
    tmp_path: Path, first: type[Chain]
) -> None:
    no_version_is_raised_before_every_member_may_have_it(tmp_path, first)


def no_version_is_raised_before_every_member_may_have_it(tmp_path: Path, first: type[Chain]) -> None:
    """Members of a release before would stop at that entry."""
    cell = Cell(tmp_path, machines={"chain": first})
    for host in cell.hosts.values():
        host.level = 5
    cell.until(lambda: cell.leader().machines.status()[0].version == 1, "a binding")
    cell.machines = {"chain": Second}
    for member in list(cell.nodes):
        cell.kill(member)
        cell.start(member)
        cell.hosts[member].level = 5

    def versions() -> set[int]:
        return {node.machines.status()[0].version for node in cell.nodes.values()}

    cell.until(lambda: versions() == {1}, "a leader")
    cell.step(5000)
    assert versions() == {1}
    assert cell.leader().problems() == ()
    for host in cell.hosts.values():
        host.level = 6
    cell.until(lambda: cell.leader().machines.status()[0].version == 2, "the version")
    cell.close()


def test_a_member_with_an_older_version_stops_there_and_the_others_go_on(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.append(b"a")
    group.cell.machines = {"chain": Second}
    for member in ("n0", "n1"):
        group.cell.kill(member)
        group.cell.start(member)
    group.cell.leader().transfer("n0", lambda outcome: None)
    group.cell.until(lambda: group.cell.leader().machines.status()[0].version == 2)
    older = group.cell.nodes["n2"]
    group.cell.until(lambda: older.problems())
    assert "version 2 of chain, and this member has version 1" in older.problems()[0]
    group.cell.close()


# ---------------------------------------------------------------- what a start goes on from


SAVING = replace(SMALL, snapshot_entries=4)


def restarted(group: Group, member: str) -> LedgerNode:
    group.cell.kill(member)
    group.cell.start(member)
    group.settle()
    return group.cell.nodes[member]


def test_a_start_goes_on_behind_the_newest_snapshot(tmp_path: Path) -> None:
    group = Group(tmp_path, storage=SAVING)
    for number in range(11):
        group.append(b"%d" % number)
    (expected, *_) = group.settle()
    row = group.cell.nodes["n1"].machines.status()[0]
    assert row.snapshot_index > 0
    assert sum(group.cell.nodes["n1"].machines.save_us()["chain"].counts) > 0
    node = restarted(group, "n1")
    assert group.machine_of(node).taken == expected
    driver = node.machines._drivers["chain"]
    assert driver.snapshots._verified, "what was loaded is good"
    assert len(list((tmp_path / "n1" / "snapshots").iterdir())) == 2
    group.cell.close()


def test_a_machine_that_was_loaded_acts_as_the_one_that_was_saved(tmp_path: Path) -> None:
    """It would treat what follows unlike the others."""
    group = Group(tmp_path, Second, storage=SAVING)
    for number in range(11):
        group.append(b"%d" % number)
    group.settle()
    assert restarted(group, "n1").machines.status()[0].snapshot_index > 0
    group.append(b"b")
    assert [taken[-1][1] for taken in group.settle()] == [b"bb"] * 3
    group.cell.close()


def test_what_a_newer_version_has_saved_is_not_loaded(tmp_path: Path) -> None:
    group = Group(tmp_path, Second, members=1, storage=SAVING)
    group.append(*[b"a"] * 9)
    group.settle()
    group.cell.machines = {"chain": Chain}
    group.cell.kill("n0")
    group.cell.start("n0")
    group.cell.until(lambda: group.cell.leader().problems())
    (problem,) = group.cell.leader().problems()
    assert "version 2 of chain, and this member has version 1" in problem
    assert group.machine_of(group.cell.leader()) is None
    group.cell.close()


def test_a_damaged_snapshot_falls_back_to_the_one_before(tmp_path: Path) -> None:
    group = Group(tmp_path, storage=SAVING)
    for number in range(11):
        group.append(b"%d" % number)
    (expected, *_) = group.settle()
    group.cell.kill("n1")
    newest = sorted((tmp_path / "n1" / "snapshots").iterdir())[-1]
    data = bytearray(newest.read_bytes())
    data[-60] ^= 1
    newest.write_bytes(data)
    told: set[str] = set()
    group.cell.on_turned = lambda member: told.update(group.cell.nodes[member].problems())
    group.cell.start("n1")
    group.settle()
    node = group.cell.nodes["n1"]
    assert group.machine_of(node).taken == expected
    assert any(f"passed over: {newest}" in problem for problem in told)
    group.append(*[b"more"] * 5)
    group.settle()
    group.cell.step()
    assert node.problems() == (), "another has taken its place"
    group.cell.close()


def test_a_snapshot_of_another_log_is_not_adopted(tmp_path: Path) -> None:
    other = Group(tmp_path / "other", storage=SAVING)
    other.append(*[b"other"] * 11)
    other.settle()
    other.cell.close()
    group = Group(tmp_path / "own", storage=SAVING)
    group.append(*[b"own"] * 20)
    (expected, *_) = group.settle()
    group.cell.kill("n1")
    own = tmp_path / "own" / "n1" / "snapshots"
    for path in own.iterdir():
        path.unlink()
    for path in (tmp_path / "other" / "n1" / "snapshots").iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    group.cell.start("n1")
    group.settle()
    assert group.machine_of(group.cell.nodes["n1"]).taken == expected
    group.cell.close()


def test_what_a_machine_has_kept_itself_is_gone_on_from(tmp_path: Path) -> None:
    disk = Disk()
    group = Group(tmp_path, lambda: Lasting(disk), members=1)
    group.append(b"a", b"b")
    group.settle()
    before = len(group.recorder.made[0].taken)
    restarted(group, "n0")
    assert len(group.recorder.made) == 2
    assert len(group.recorder.made[1].taken) == before == 2
    group.append(b"c")
    assert [body for _, body in disk.taken] == [b"a", b"b", b"c"]
    group.cell.close()


def test_a_machine_with_more_than_is_known_to_be_committed_loses_what_is_cut(tmp_path: Path) -> None:
    """In async mode: a majority has lost committed entries with the power, and the third does not know
    that they were committed, but its machine has them."""
    a_machine_with_more_than_is_known_to_be_committed_loses_what_is_cut(tmp_path)


def a_machine_with_more_than_is_known_to_be_committed_loses_what_is_cut(path: Path) -> None:
    group = Group(path, lambda: Lasting(Disk()), storage=replace(SMALL, flush="async"))
    group.append(b"a")
    group.settle()
    for member in ("n0", "n1"):
        shutil.copytree(path / member, path / f"{member}-before")
    group.append(b"b", b"c")
    group.settle()
    kept = group.machine_of(group.cell.nodes["n2"])._disk
    for member in list(group.cell.nodes):
        group.cell.kill(member)
    for member in ("n0", "n1"):
        shutil.rmtree(path / member)
        (path / f"{member}-before").rename(path / member)
        group.cell.start(member)
    group.append(b"d", b"e", b"f")
    group.recorder._make = lambda: Lasting(kept)
    group.cell.start("n2")
    taken = group.settle()
    assert [body for _, body in taken[0]] == [b"a", b"d", b"e", b"f"]
    assert taken == [taken[0]] * 3
    group.cell.close()


def test_what_a_newer_version_has_kept_is_not_gone_on_from(tmp_path: Path) -> None:
    """By an older release, which would treat what follows unlike the other members."""
    disk = Disk()

    class Newer(Lasting):
        version = 2

    def newer() -> Newer:
        return Newer(disk)

    newer.version = 2  # type: ignore[attr-defined]
    group = Group(tmp_path, newer, members=1)
    group.append(b"a")
    group.settle()
    group.cell.machines = {"chain": lambda: Lasting(disk)}
    group.cell.kill("n0")
    group.cell.start("n0")
    group.cell.until(lambda: group.cell.leader().problems())
    (problem,) = group.cell.leader().problems()
    assert "version 2 of chain, and this member has version 1" in problem
    group.cell.close()


class LastingSecond(Lasting):
    """Keeps the version as well."""

    version = 2

    def act_as(self, version: int) -> None:
        self._disk.version = version

    def kept_version(self) -> int | None:
        return self._disk.version


class Forgetful(LastingSecond):
    """Does not."""

    def kept_version(self) -> int | None:
        return None


def test_a_machine_that_keeps_its_state_keeps_its_version_too(tmp_path: Path) -> None:
    """A snapshot says it to who loads that."""
    disk = Disk()

    def make() -> LastingSecond:
        return LastingSecond(disk)

    make.version = 2  # type: ignore[attr-defined]
    group = Group(tmp_path, make, members=1, storage=SAVING)
    group.append(b"a")
    group.settle()
    restarted(group, "n0")
    group.append(*[b"b"] * 12)
    group.settle()
    group.cell.until(lambda: list((tmp_path / "n0" / "snapshots").iterdir()))
    group.cell.kill("n0")
    disk.taken, disk.applied, disk.version = [], None, None
    group.cell.start("n0")
    group.settle()
    assert disk.version == 2, "the snapshot names it"
    group.cell.close()


def test_what_was_kept_without_a_version_is_built_anew_behind_a_higher_one(tmp_path: Path) -> None:
    disk = Disk()
    cleared: list[int] = []

    class Counting(Forgetful):
        def clear(self) -> None:
            cleared.append(len(self.taken))
            super().clear()

    def make() -> Counting:
        return Counting(disk)

    make.version = 2  # type: ignore[attr-defined]
    group = Group(tmp_path, make, members=1)
    group.append(b"a", b"b")
    group.settle()
    restarted(group, "n0")
    assert cleared == [2]
    assert [[body for _, body in taken] for taken in group.settle()] == [[b"a", b"b"]]
    group.cell.close()


def test_what_it_has_kept_of_another_log_is_not_adopted(tmp_path: Path) -> None:
    disk = Disk()
    other = Group(tmp_path / "other", lambda: Lasting(disk), members=1)
    other.append(b"x", b"y")
    other.settle()
    other.cell.close()
    group = Group(tmp_path / "own", lambda: Lasting(disk), members=1)
    group.append(b"a", b"b", b"c")
    group.settle()
    assert [body for _, body in disk.taken] == [b"a", b"b", b"c"]
    group.cell.close()


def test_the_log_is_bound_by_the_second_newest_snapshot_that_is_good(tmp_path: Path) -> None:
    group = Group(tmp_path, storage=SAVING)
    node = group.cell.nodes["n1"]
    binding = node.log_state.states.committed.machines[0]  # type: ignore[union-attr]
    assert node.machines.snapshot_bound() == binding.index - 1
    for number in range(13):
        group.append(b"%d" % number)
    group.settle()
    group.cell.step()
    names = sorted(path.name for path in (tmp_path / "n1" / "snapshots").iterdir())
    assert node.machines.snapshot_bound() == int(names[-2].rpartition("-")[2])
    group.cell.close()


@pytest.mark.parametrize("is_lasting", [False, True])
def test_a_machine_that_few_entries_are_for_keeps_nothing_of_the_log_for_long(
    tmp_path: Path, is_lasting: bool
) -> None:
    """Also over starts, of which none comes as far as a snapshot."""
    disk = Disk()
    make = (lambda: Lasting(disk)) if is_lasting else Chain
    storage = replace(SMALL, snapshot_log_bytes=40_000)
    group = Group(tmp_path, make, members=1, storage=storage)
    node = group.cell.nodes["n0"]
    group.append(b"rare")
    for _ in range(30):
        for _ in range(4):
            group.append(bytes(1_000), machine="")
        if is_lasting:
            group.append(b"and its state is where the log is")
        node = restarted(group, "n0")
    group.cell.step()
    bound = node.machines.snapshot_bound()
    assert bound is not None
    behind_bytes = node.store.end.position - node.store.point_on_disk(bound).position
    assert bound > 40 and 40_000 <= behind_bytes < 100_000
    names = [path.name for path in (tmp_path / "n0" / "snapshots").iterdir()]
    assert len(names) == 2
    group.cell.close()


def test_a_group_without_machines_has_no_bound(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    cell.leader()
    assert cell.nodes["n0"].machines.snapshot_bound() is None
    cell.close()


def test_a_save_that_fails_is_told_and_stops_nothing(tmp_path: Path) -> None:
    class Unsaved(Chain):
        def save(self, writer: Any) -> None:
            writer.write(b"x")
            raise RuntimeError("cannot")

    group = Group(tmp_path, Unsaved, storage=SAVING)
    group.append(*[b"a"] * 9)
    group.settle()
    node = group.cell.nodes["n1"]
    group.cell.until(lambda: node.problems())
    assert "RuntimeError: cannot" in node.problems()[0]
    assert list((tmp_path / "n1" / "snapshots").iterdir()) == []
    assert group.append(b"b").result
    group.cell.close()


def test_a_machine_that_cannot_be_made_stops_on_this_member_alone(tmp_path: Path) -> None:
    def make() -> StateMachine:
        raise ValueError("no such file")

    cell = Cell(tmp_path, machines={"chain": make})
    node = cell.nodes["n0"]
    cell.until(lambda: node.problems())
    assert "it cannot be made: ValueError: no such file" in node.problems()[0]
    cell.close()


class Quick(Chain):
    def is_quick(self, batch: EntryBatch) -> bool:
        return all(not body.tobytes().startswith(b"slow") for body in batch.bodies())


class Careless(Chain):
    """It looks at what a client may leave out."""

    def is_quick(self, batch: EntryBatch) -> bool:
        return all(bytes(body)[3] for body in batch.bodies())


def test_a_machine_that_cannot_tell_what_is_quick_applies_it_on_its_thread(tmp_path: Path) -> None:
    """One entry of a client ended every member."""
    group = Group(tmp_path, Careless)
    assert group.append(b"a").count == 1
    assert group.append(b"long enough").count == 1


@pytest.mark.skipif(IS_COMPILED, reason="what is compiled takes no stub, and no other method")
def test_what_is_quick_is_applied_in_the_turn_that_commits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, Quick)
    leader = group.cell.leader()
    group.append(b"a")
    group.cell.until(lambda: leader.machines.status()[0].applied_index == leader.committed_index, "all")
    handed_over: list[object] = []
    for host in group.cell.hosts.values():
        monkeypatch.setattr(host, "apply_later", lambda *work: handed_over.append(work))

    def answer(outcome: object) -> None:
        outcomes.append((outcome, leader.committed_index, leader._now_ms))

    outcomes: list[Any] = []
    leader.append(EntryBatch.from_bodies([b"b", b"no"]), 0, answer, machine="chain")
    committed_ms: list[float] = []
    complete = leader._pending.complete
    monkeypatch.setattr(
        leader._pending,
        "complete",
        lambda *to: (complete(*to), committed_ms.append(leader._now_ms)),
    )
    group.cell.until(lambda: outcomes, "an outcome")
    receipt, committed_index, answered_ms = outcomes[0]
    assert receipt.results == (b"%d:b" % receipt.first_index, None)
    assert (committed_index, [answered_ms]) == (receipt.last_index, committed_ms)
    assert not handed_over
    leader.append(EntryBatch.from_bodies([b"slow"]), 0, outcomes.append, machine="chain")
    group.cell.until(lambda: handed_over, "what the thread is to apply")
    assert len(outcomes) == 1
    group.cell.close()


@pytest.mark.skipif(IS_COMPILED, reason="what is compiled takes no stub")
def test_a_follower_that_begins_a_sync_applies_in_the_turn_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, Quick)
    group.append(b"a")
    cell, leader = group.cell, group.cell.leader()
    follower = next(each for each in cell.nodes.values() if each is not leader)
    turns: list[tuple[bool, bool]] = []
    write, tick = follower.write, follower.machines.tick

    def wrote() -> bool:
        turns.append((False, False))
        did_more = write()
        turns[-1] = follower._flusher.waits_since_ms == follower._now_ms, False
        return did_more

    def ticked(now_ms: float, committed_index: int) -> None:
        turns[-1] = turns[-1][0], True
        tick(now_ms, committed_index)

    monkeypatch.setattr(follower, "write", wrote)
    monkeypatch.setattr(follower.machines, "tick", ticked)
    for _ in range(3):
        group.append(b"b")
    begun = [place for place, (begins, _) in enumerate(turns) if begins and not turns[place - 1][0]]
    assert begun and not any(turns[place][1] for place in begun)
    assert all(turns[place + 1][1] for place in begun)  # whether the sync has ended or not
    cell.close()
