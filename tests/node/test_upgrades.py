"""Until an operator has said so, the log of an upgraded group is one that the release before reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.consensus.messages import HeartbeatResponse, PushEntryResponse
from quorumlog.entry import EntryKind
from quorumlog.errors import (
    DiskFull,
    LeaderNotReady,
    LedgerError,
    LevelNotReported,
    NotLeader,
    OutcomeUnknown,
    UpgradeNotFinished,
)
from quorumlog.log_state.control_entries import (
    AUTOMATIC_LEVEL,
    LEVEL,
    LevelReached,
    Unreadable,
    decode_body,
)
from quorumlog.log_state.log_state import Reset
from quorumlog.node.ledger_node import LedgerNode
from quorumlog.node.member_changes import MemberChange, MemberOperation, MemberOutcome
from quorumlog.node.operator_orders import FinishedUpgrade, ResetOutcome, UpgradeOutcome
from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import VERSION_WITH_KINDS_OF_LEVEL_6, load_member
from quorumlog.version import IS_COMPILED
from tests.node.cell import Cell
from tests.node.test_retention import fill

BEFORE = AUTOMATIC_LEVEL


def finished(cell: Cell, node: LedgerNode) -> UpgradeOutcome:
    outcomes: list[UpgradeOutcome] = []
    node.orders.finish_upgrade(outcomes.append)
    cell.until(lambda: outcomes)
    return outcomes[0]


def clock_reset(cell: Cell) -> ResetOutcome:
    outcomes: list[ResetOutcome] = []
    cell.leader().orders.reset_clock(outcomes.append)
    cell.until(lambda: outcomes)
    return outcomes[0]


def upgraded(tmp_path: Path) -> Cell:
    """Formed by members of the release before, each started with this one since."""
    cell = Cell(tmp_path, level=BEFORE)
    fill(cell, 5)
    cell.level = LEVEL
    for member in ("n0", "n1", "n2"):
        cell.kill(member)
        cell.start(member)
        cell.leader()
    return cell


def levels(cell: Cell) -> set[int]:
    return {node.log_state.level for node in cell.nodes.values()}


def is_readable_by_the_release_before(cell: Cell) -> bool:
    records = [load_member(OsDisk(), node.directory.path) for node in cell.nodes.values()]
    return all(r is not None and r.version < VERSION_WITH_KINDS_OF_LEVEL_6 for r in records)


def test_nothing_that_earlier_releases_do_not_know_is_written_before_the_upgrade_is_finished(
    tmp_path: Path,
) -> None:
    cell = upgraded(tmp_path)
    assert levels(cell) == {BEFORE}
    assert cell.leader().log_state.may_say(BEFORE)
    assert not cell.leader().log_state.may_say(LEVEL)
    outcome = clock_reset(cell)
    assert isinstance(outcome, UpgradeNotFinished)
    assert "quorumlog upgrade finish" in str(outcome)
    cell.step(500)
    assert is_readable_by_the_release_before(cell)

    assert isinstance(finished(cell, cell.leader()), FinishedUpgrade)
    cell.step(500)
    assert levels(cell) == {LEVEL}
    assert cell.leader().log_state.may_say(LEVEL)
    assert isinstance(clock_reset(cell), Reset)
    cell.step(500)
    assert not is_readable_by_the_release_before(cell)
    cell.close()


def test_it_is_kept_over_restarts_and_asking_again_writes_nothing(tmp_path: Path) -> None:
    cell = upgraded(tmp_path)
    first = finished(cell, cell.leader())
    assert isinstance(first, FinishedUpgrade)
    assert first.at_index >= 0
    for member in ("n0", "n1", "n2"):
        cell.kill(member)
        cell.start(member)
        cell.leader()
    fill(cell, 5)
    end = cell.leader().raft.ledger_end
    assert finished(cell, cell.leader()) == FinishedUpgrade(-1, LEVEL)
    assert cell.leader().raft.ledger_end == end
    cell.close()


def test_it_is_refused_while_a_member_is_of_the_release_before(tmp_path: Path) -> None:
    cell = upgraded(tmp_path)
    for host in cell.hosts.values():
        host.level = BEFORE
    outcome = finished(cell, cell.leader())
    assert isinstance(outcome, LevelNotReported)
    assert "n2" in str(outcome)
    assert levels(cell) == {BEFORE}
    cell.close()


def test_it_is_refused_while_a_member_knows_no_entry_of_the_last_level(tmp_path: Path) -> None:
    cell = upgraded(tmp_path)
    for host in cell.hosts.values():
        host.level = LEVEL - 1
    outcome = finished(cell, cell.leader())
    assert isinstance(outcome, LevelNotReported)
    assert levels(cell) == {BEFORE}
    cell.close()


def test_it_is_refused_while_a_member_does_not_answer(tmp_path: Path) -> None:
    """It may come back with the release before, whatever it has told."""
    cell = upgraded(tmp_path)
    away = cell.followers()[0].replica.member_id
    cell.cut_off = {away}
    cell.step(3 * cell.leader().config.consensus.election_timeout_ms)
    outcome = finished(cell, cell.leader())
    assert isinstance(outcome, LevelNotReported)
    assert away in str(outcome)
    cell.cut_off = set()
    cell.step(1000)
    assert isinstance(finished(cell, cell.leader()), FinishedUpgrade)
    cell.close()


def test_whoever_leads_newly_says_whom_to_wait_for(tmp_path: Path) -> None:
    cell = upgraded(tmp_path)
    cell.kill(cell.leader().replica.member_id)
    deaf = {"is": True}
    cell.drops = lambda sender, to, message: deaf["is"] and type(message) is HeartbeatResponse
    leader = cell.leader()
    cell.start(next(each for each in ("n0", "n1", "n2") if each not in cell.nodes))
    outcome = finished(cell, leader)
    assert isinstance(outcome, LevelNotReported)
    assert f"does not answer {leader.replica.member_id}, which leads" in str(outcome)
    assert "ask again once `quorumlog status` shows it in step" in str(outcome)
    deaf["is"] = False
    cell.step(1000)
    assert isinstance(finished(cell, cell.leader()), FinishedUpgrade)
    cell.close()


@pytest.mark.skipif(IS_COMPILED, reason="what is compiled takes no stub, and no other method")
def test_where_there_is_no_space_the_way_back_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = upgraded(tmp_path)
    leader = cell.leader()

    def full(*arguments: object, **options: object) -> None:
        raise DiskFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr(leader.store, "plan", full)
        assert isinstance(finished(cell, leader), DiskFull)
    assert is_readable_by_the_release_before(cell)
    assert levels(cell) == {BEFORE}
    assert isinstance(finished(cell, cell.leader()), FinishedUpgrade)
    cell.step(500)
    assert levels(cell) == {LEVEL}
    cell.close()


def test_it_waits_for_the_removal_of_a_member_to_be_committed(tmp_path: Path) -> None:
    """Else that one may vote again, with a log that its release cannot read."""
    cell = upgraded(tmp_path)
    leader, removed = cell.leader(), cell.followers()[0].replica.member_id
    cell.drops = lambda sender, to, message: isinstance(message, PushEntryResponse)
    removals: list[MemberOutcome] = []
    leader.members.request(MemberChange(MemberOperation.REMOVE, removed), removals.append)
    outcome = finished(cell, leader)
    assert isinstance(outcome, LeaderNotReady)
    assert "may be one again until that is committed" in str(outcome)
    cell.drops = lambda sender, to, message: False
    cell.until(lambda: removals)
    assert not isinstance(removals[0], LedgerError)
    assert isinstance(finished(cell, cell.leader()), FinishedUpgrade)
    cell.close()


def test_it_is_refused_while_a_member_is_being_started_anew(tmp_path: Path) -> None:
    """Perhaps with the release before, whatever it has answered a moment ago."""
    cell = upgraded(tmp_path)
    away = cell.followers()[0].replica.member_id
    cell.step(100)
    cell.kill(away)
    outcome = finished(cell, cell.leader())
    assert isinstance(outcome, LevelNotReported)
    assert away in str(outcome)
    cell.start(away)
    cell.step(1000)
    assert isinstance(finished(cell, cell.leader()), FinishedUpgrade)
    cell.close()


def test_a_group_that_this_release_has_formed_needs_no_end_of_an_upgrade(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    fill(cell, 5)
    assert levels(cell) == {LEVEL}
    assert isinstance(clock_reset(cell), Reset)
    cell.close()


def test_only_the_leader_finishes_it_and_whose_leadership_ends_does_not_know(tmp_path: Path) -> None:
    cell = upgraded(tmp_path)
    assert isinstance(finished(cell, cell.followers()[0]), NotLeader)
    leader = cell.leader()
    cell.cut_off = {leader.replica.member_id}
    assert isinstance(finished(cell, leader), OutcomeUnknown)
    cell.close()


@pytest.mark.parametrize("level", [LEVEL + 1, 1000])
def test_a_level_of_a_later_release_is_named(level: int) -> None:
    body = decode_body(EntryKind.LEVEL, bytes([0x91, 0xCD]) + level.to_bytes(2, "big"))
    assert isinstance(body, Unreadable)
    assert f"level {level}" in body.reason
    assert LevelReached(LEVEL) == decode_body(EntryKind.LEVEL, bytes([0x91, LEVEL]))
