"""An operator resets the log's time: what comes of it on every member, and when it is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from quorumlog.errors import ClockNotReset, LeaderNotReady, LevelNotReported, NotLeader, OutcomeUnknown
from quorumlog.log_state.control_entries import MOST_RUNS
from quorumlog.log_state.log_state import Reset
from quorumlog.node.ledger_node import LedgerNode
from quorumlog.node.operator_orders import MOST_APART_MS, ResetOutcome
from quorumlog.node.retention import HOUR_MS
from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import (
    VERSION_WITH_CONTROL_ENTRIES,
    VERSION_WITH_KINDS_OF_LEVEL_6,
    load_member,
    save_member,
)
from tests.node.cell import Cell
from tests.node.test_retention import SEGMENTS, YEARS, begins, clock, fill, let_go


def asked(node: LedgerNode) -> list[ResetOutcome]:
    outcomes: list[ResetOutcome] = []
    node.orders.reset_clock(outcomes.append)
    return outcomes


def reset(cell: Cell) -> Reset:
    outcomes = asked(cell.leader())
    cell.until(lambda: outcomes)
    (outcome,) = outcomes
    assert isinstance(outcome, Reset), outcome
    return outcome


def refused(cell: Cell) -> str:
    outcomes = asked(cell.leader())
    (outcome,) = outcomes
    assert isinstance(outcome, ClockNotReset), outcome
    return str(outcome)


def ahead(tmp_path: Path) -> Cell:
    """Its clocks were ten years ahead when it began, and are right now."""
    cell = Cell(tmp_path, storage=replace(SEGMENTS, file_reserved_hours=2), time_marks=True)
    clock(cell, YEARS)
    fill(cell, 60)
    assert cell.leader().log_time_ms() == (1000 + YEARS) * HOUR_MS
    clock(cell, 0)
    fill(cell, 20)
    return cell


def test_a_log_that_was_years_ahead_lives_again(tmp_path: Path) -> None:
    cell = ahead(tmp_path)
    leader = cell.leader()
    (problem,) = leader.problems()
    assert "ahead of the clocks of a quorum" in problem
    assert "quorumlog clock reset" in problem
    found = reset(cell)
    assert abs(found.time_ms - 1000 * HOUR_MS) < 1000
    assert leader.problems() == ()
    clock(cell, 1)
    fill(cell, 20)
    cell.step(500)
    for node in cell.nodes.values():
        assert node.log_state.committed is not None
        assert node.log_state.committed.clock_resets == (found,)
        assert node.log_time_ms() == 1001 * HOUR_MS
    clock(cell, 1.9)
    let_go(cell)
    assert begins(cell) == {0}, "what was appended in front counts as appended at the reset"
    clock(cell, 2.1)
    let_go(cell)
    (begin,) = begins(cell)
    assert 40 < begin <= found.index
    cell.close()


def test_it_is_kept_over_restarts(tmp_path: Path) -> None:
    cell = ahead(tmp_path)
    found = reset(cell)
    for member in ("n0", "n1", "n2"):
        cell.kill(member)
        cell.start(member)
        cell.leader()
    fill(cell, 60)
    cell.step(500)
    for node in cell.nodes.values():
        assert node.log_state.committed is not None
        assert node.log_state.committed.clock_resets == (found,)
    cell.close()


def test_a_release_that_does_not_know_the_entry_refuses_the_directory_by_its_number(
    tmp_path: Path,
) -> None:
    """It would take the entry for damage."""
    cell = ahead(tmp_path)

    def versions() -> set[int]:
        records = [load_member(OsDisk(), node.directory.path) for node in cell.nodes.values()]
        return {record.version for record in records if record is not None}

    assert versions() == {VERSION_WITH_CONTROL_ENTRIES}
    reset(cell)
    cell.step(500)
    assert versions() == {VERSION_WITH_KINDS_OF_LEVEL_6}
    cell.kill("n0")
    path = tmp_path / "n0"
    record = load_member(OsDisk(), str(path))
    assert record is not None
    older = msgspec.structs.replace(record, version=VERSION_WITH_CONTROL_ENTRIES)
    save_member(OsDisk(), str(path), older)  # a copy of the file was put back
    cell.start("n0")
    cell.step(500)
    assert versions() == {VERSION_WITH_KINDS_OF_LEVEL_6}
    cell.close()


def test_clocks_that_differ_are_named(tmp_path: Path) -> None:
    cell = ahead(tmp_path)
    leader = cell.leader().replica.member_id
    others = [member for member in cell.hosts if member != leader]
    for number, member in enumerate(others, 1):
        cell.hosts[member].clock_ms += number * (MOST_APART_MS + 5000)
    for _ in range(5):
        cell.step(200)
    words = refused(cell)
    assert "differ by more than 60 s" in words
    assert f"{leader} +0.0 s" in words
    cell.hosts[others[0]].clock_ms -= 10_000
    for _ in range(5):
        cell.step(200)
    assert isinstance(reset(cell), Reset), "two of three agree"
    cell.close()


def test_a_clock_that_is_alone_with_its_time_does_not_matter(tmp_path: Path) -> None:
    for number, hours in enumerate((YEARS, -500)):
        cell = ahead(tmp_path / str(number))
        wrong = next(each for each in cell.hosts if each != cell.leader().replica.member_id)
        cell.hosts[wrong].clock_ms += hours * HOUR_MS
        for _ in range(5):
            cell.step(200)
        assert abs(reset(cell).time_ms - 1000 * HOUR_MS) <= MOST_APART_MS
        cell.close()


def test_too_few_clocks_are_no_quorum(tmp_path: Path) -> None:
    cell = ahead(tmp_path)
    leader = cell.leader()
    cell.cut_off = {node.replica.member_id for node in cell.followers()}
    for _ in range(40):
        cell.step(20)
    (outcome,) = asked(leader)
    assert isinstance(outcome, LeaderNotReady | NotLeader)
    cell.close()


def test_a_member_that_does_not_know_the_entry_is_named(tmp_path: Path) -> None:
    cell = ahead(tmp_path)
    for host in cell.hosts.values():
        host.level = 5
    (outcome,) = asked(cell.leader())
    assert isinstance(outcome, LevelNotReported)
    assert "CLOCK entries need level 6" in str(outcome)
    assert "n2" in str(outcome)
    cell.close()


def test_only_the_leader_resets_and_whose_leadership_ends_does_not_know(tmp_path: Path) -> None:
    cell = ahead(tmp_path)
    (outcome,) = asked(cell.followers()[0])
    assert isinstance(outcome, NotLeader)
    leader = cell.leader()
    cell.cut_off = {leader.replica.member_id}
    outcomes = asked(leader)
    assert outcomes == []
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], OutcomeUnknown)
    cell.close()


def test_the_newest_sixteen_are_remembered(tmp_path: Path) -> None:
    cell = ahead(tmp_path)
    found = []
    for number in range(MOST_RUNS + 4):
        clock(cell, number)
        found.append(reset(cell))
        fill(cell, 5)
    state = cell.leader().log_state.committed
    assert state is not None
    assert state.clock_resets == tuple(found[-MOST_RUNS:])
    cell.close()
