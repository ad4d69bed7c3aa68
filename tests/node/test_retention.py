"""Segments go from the logs of members that work: what the leader writes, and what each deletes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.config import StoreConfig
from quorumlog.errors import IndexOutOfRange
from quorumlog.log_state.control_entries import CHAIN_LEVEL, Hold, Keep
from quorumlog.node import LedgerNode
from quorumlog.node.reader_moves import ReaderMove
from quorumlog.store.disk import DiskUsage, OsDisk
from quorumlog.store.segments import INDEX_UNIT_BYTES
from tests.node.cell import Cell
from tests.node.test_ledger_node import append
from tests.node.test_log_drops import SEGMENTS
from tests.node.test_reader_moves import ask, opened

HOUR_MS = 3_600_000
TWO = replace(SEGMENTS, retention_bytes=2 * SEGMENTS.segment_bytes)
BUDGET = {"retention_follower_budget_bytes": 4 * SEGMENTS.segment_bytes}
SECOND_MS = 1000


def fill(cell: Cell, count: int = 60) -> LedgerNode:
    leader = cell.leader()
    for _ in range(count // 10):
        receipts = [append(leader, b"x" * 100) for _ in range(10)]
        cell.until(lambda receipts=receipts: all(receipts), "an acknowledgement")
    return leader


def up(cell: Cell) -> list[LedgerNode]:
    return [node for member, node in cell.nodes.items() if member not in cell.cut_off]


def let_go(cell: Cell, seconds: int = 5) -> None:
    """As long as anything goes, and a while longer."""
    for _ in range(seconds):
        for _ in range(20):
            cell.step(SECOND_MS / 20)


def begins(cell: Cell) -> set[int]:
    """The first indices that the members who are up hold."""
    return {node.store.begin.index + 1 for node in up(cell)}


def held_bytes(node: LedgerNode) -> int:
    begin, end = node.store.begin, node.store.end
    return end.position - begin.position + (end.index - begin.index) * INDEX_UNIT_BYTES


def test_a_log_keeps_everything_until_it_is_told_otherwise(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    end = fill(cell).store.end.index
    let_go(cell)
    assert begins(cell) == {0}
    assert cell.leader().store.end.index == end
    cell.close()


def test_what_exceeds_the_size_goes_on_every_member_and_stays_gone(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=TWO)
    fill(cell, 100)
    let_go(cell)
    (begin,) = begins(cell)
    assert begin > 0
    leader = cell.leader()
    wanted = leader.config.storage.retention_bytes
    assert wanted <= held_bytes(leader) <= wanted + SEGMENTS.segment_bytes + SEGMENTS.index_segment_bytes
    with pytest.raises(IndexOutOfRange) as refused:
        leader.readable_range(begin - 1, -1, 1000)
    assert refused.value.ledger_begin_index == begin
    end = leader.store.end.index
    let_go(cell)
    assert leader.store.end.index == end, "nothing more is written where nothing more goes"
    member = leader.replica.member_id
    cell.kill(member)
    assert cell.start(member).store.begin.index + 1 == begin
    fill(cell, 50)
    let_go(cell)
    assert min(begins(cell)) > begin
    cell.close()


def clock(cell: Cell, hours: float) -> None:
    for host in cell.hosts.values():
        host.clock_ms = int((1000 + hours) * HOUR_MS)
    for _ in range(10):
        cell.step(200)  # until every clock is told


def test_a_segment_goes_when_its_last_entry_is_old_enough(tmp_path: Path) -> None:
    storage = replace(SEGMENTS, file_reserved_hours=2)
    cell = Cell(tmp_path, storage=storage, time_marks=True)

    clock(cell, 0)
    fill(cell, 40)
    clock(cell, 0.01)  # nobody appends, and the segments that are full get their time all the same
    clock(cell, 1)
    fill(cell, 40)
    let_go(cell)
    assert begins(cell) == {0}
    clock(cell, 2.01)
    let_go(cell)
    (begin,) = begins(cell)
    assert 0 < begin <= 45
    clock(cell, 22)
    end = cell.leader().store.end.index
    let_go(cell)
    assert cell.leader().store.end.index <= end + 3, "a mark for the last segment and what lets it go"
    (begin,) = begins(cell)
    assert begin > 60, "all but the segment that is not full"
    cell.close()


@pytest.mark.parametrize(
    ("leader_hours", "other_hours"),
    [(1000, 0), (0, -1000)],
    ids=["it is ahead", "the others are behind"],
)
def test_the_clock_of_the_leader_alone_makes_nothing_old(
    tmp_path: Path, leader_hours: int, other_hours: int
) -> None:
    cell = Cell(tmp_path, storage=replace(SEGMENTS, file_reserved_hours=2), time_marks=True)
    leader = cell.leader()
    for member, host in cell.hosts.items():
        hours = leader_hours if member == leader.replica.member_id else other_hours
        host.clock_ms = (5000 + hours) * HOUR_MS
    let_go(cell, 2)  # every clock is told
    fill(cell, 100)
    assert leader.log_time_ms() == (5000 + other_hours) * HOUR_MS
    let_go(cell)
    assert cell.leader() is leader
    assert begins(cell) == {0}
    cell.close()


YEARS = 10 * 365 * 24


def test_clocks_of_a_quorum_that_jump_by_years_delete_nothing_and_the_time_goes_on(
    tmp_path: Path,
) -> None:
    cell = Cell(tmp_path, storage=replace(SEGMENTS, file_reserved_hours=2), time_marks=True)
    clock(cell, 0)
    leader = fill(cell, 100)
    clock(cell, YEARS)
    fill(cell, 100)
    let_go(cell)
    assert begins(cell) == {0}
    (problem,) = leader.problems()
    assert "no time mark is written" in problem
    assert "quorumlog clock reset" in problem
    clock(cell, 1)
    assert leader.problems() == ()
    fill(cell, 10)
    assert leader.log_time_ms() == 1001 * HOUR_MS
    clock(cell, 2.9)
    let_go(cell)
    assert begins(cell) == {0}
    clock(cell, 3.1)
    let_go(cell)
    assert min(begins(cell)) > 60
    cell.close()


def test_a_group_that_was_off_for_a_month_takes_its_time_once_its_clocks_have_held_it(
    tmp_path: Path,
) -> None:
    cell = Cell(tmp_path, storage=replace(SEGMENTS, file_reserved_hours=2), time_marks=True)
    clock(cell, 0)
    fill(cell, 100)
    for member in tuple(cell.nodes):
        cell.kill(member)
    for member in ("n0", "n1", "n2"):
        cell.start(member)
    clock(cell, 700)
    leader = fill(cell, 10)
    let_go(cell)
    assert begins(cell) == {0}
    (problem,) = leader.problems()
    assert "nothing is deleted by age" in problem
    for tick in range(3050):
        for host in cell.hosts.values():
            host.clock_ms = 1700 * HOUR_MS + tick * 200
        cell.step(200)
    assert cell.leader() is leader
    assert leader.problems() == ()
    fill(cell, 10)
    assert leader.log_time_ms() == cell.hosts["n0"].clock_ms
    let_go(cell)
    assert begins(cell) == {0}, "as old as the first mark behind it"
    clock(cell, 703)
    let_go(cell)
    assert min(begins(cell)) > 60
    cell.close()


def test_a_member_knows_how_long_ago_a_mark_was_written_only_if_it_came_at_once(
    tmp_path: Path,
) -> None:
    """What it is fed later may be of last year."""
    cell = Cell(tmp_path, storage=SEGMENTS, time_marks=True)
    clock(cell, 0)
    fill(cell, 10)
    away, here = cell.followers()
    cell.cut_off = {away.replica.member_id}
    clock(cell, 1)
    fill(cell, 100)
    cell.cut_off = set()
    cell.until(lambda: away.store.end.index == cell.leader().store.end.index)
    cell.step(200)
    assert [node._time_marks._clock._seen[-1].is_live for node in (away, here, cell.leader())] == [
        False,
        True,
        True,
    ]
    cell.close()


def test_what_is_written_without_marks_has_no_age(tmp_path: Path) -> None:
    """The last mark that stands grows old, and not the entries that came since."""
    cell = Cell(tmp_path, storage=replace(SEGMENTS, file_reserved_hours=2), time_marks=True)
    leader = fill(cell, 10)
    assert leader.log_time_ms() is not None
    for node in cell.nodes.values():
        node.configure(replace(node.config, time_marks=False))
    for host in cell.hosts.values():
        host.clock_ms += 30 * HOUR_MS
    let_go(cell, 2)
    fill(cell, 100)
    let_go(cell)
    assert begins(cell) == {0}
    cell.close()


def test_what_was_written_while_there_were_no_marks_is_as_old_as_the_next_one(tmp_path: Path) -> None:
    """Not as the last one before: that was most of a day ago."""
    cell = Cell(tmp_path, storage=replace(SEGMENTS, file_reserved_hours=2), time_marks=True)

    def mark(time_marks: bool) -> None:
        for node in cell.nodes.values():
            node.configure(replace(node.config, time_marks=time_marks))

    clock(cell, 0)
    fill(cell, 10)
    mark(False)
    clock(cell, 20)
    fill(cell, 100)
    mark(True)
    clock(cell, 20.1)
    fill(cell, 10)
    let_go(cell)
    assert begins(cell) == {0}
    clock(cell, 21.9)
    let_go(cell)
    assert begins(cell) == {0}
    clock(cell, 22.2)
    let_go(cell)
    assert min(begins(cell)) > 60
    cell.close()


def test_a_hold_keeps_its_segment_until_the_reader_has_gone_on(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=TWO)
    fill(cell, 10)
    ask(cell, opened("billing", 5, Hold.READER))
    fill(cell, 100)
    let_go(cell)
    assert begins(cell) == {0}
    ask(cell, ReaderMove("billing", 60))
    let_go(cell)
    (begin,) = begins(cell)
    assert 0 < begin <= 60
    ask(cell, ReaderMove("billing", ends=True))
    let_go(cell)
    assert min(begins(cell)) > 60
    cell.close()


def test_a_member_deletes_nothing_before_the_decision_is_committed(tmp_path: Path) -> None:
    """A hold that commits in its place would lose its segments."""
    cell = Cell(tmp_path, storage=SEGMENTS)
    leader = fill(cell)
    let_go(cell)
    cell.drops = lambda sender, to, message: sender == leader.replica.member_id
    cell.hold_flush = set(cell.nodes)
    leader.propose_control(Keep(50))
    let_go(cell, 2)
    assert leader.log_state.committed_state().keep_from_index == 0
    assert begins(cell) == {0}
    cell.drops = lambda sender, to, message: False
    cell.hold_flush = set()
    cell.close()


def test_a_follower_that_is_away_is_waited_for_within_its_budget_and_not_for_ever(
    tmp_path: Path,
) -> None:
    cell = Cell(tmp_path, storage=TWO, **BUDGET)
    fill(cell, 20)
    away = cell.followers()[0].replica.member_id
    cell.cut_off = {away}
    held_from = cell.nodes[away].store.end.index + 1
    fill(cell, 30)
    let_go(cell)
    assert max(begins(cell)) <= held_from, "it lacks less than its budget"
    fill(cell, 100)
    let_go(cell)
    assert min(begins(cell)) > held_from
    cell.cut_off = set()
    cell.close()


def test_for_a_follower_that_cannot_be_reached_its_budget_is_kept(tmp_path: Path) -> None:
    """Where it stands is not known: it may lack all of that, and no more is kept for it."""
    cell = Cell(tmp_path, storage=TWO, **BUDGET)
    fill(cell, 20)
    cell.kill(cell.followers()[0].replica.member_id)
    fill(cell, 130)
    let_go(cell)
    for node in up(cell):
        lacking = node.store.end.position - node.store.begin.position
        budget = BUDGET["retention_follower_budget_bytes"]
        assert budget <= lacking < budget + 2 * SEGMENTS.segment_bytes
    cell.close()


class FillingDisk(OsDisk):
    used_ratio = 0.5

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(1000, round(1000 * (1 - self.used_ratio)))


def filling(tmp_path: Path, storage: StoreConfig, **options: Any) -> tuple[Cell, FillingDisk]:
    disk = FillingDisk()
    return Cell(
        tmp_path, storage=storage, disks=dict.fromkeys(("n0", "n1", "n2"), disk), **options
    ), disk


def test_a_disk_that_is_nearly_full_passes_readers_and_says_what_they_lost(tmp_path: Path) -> None:
    cell, disk = filling(tmp_path, replace(SEGMENTS, retention_bytes=1 << 30))
    fill(cell, 10)
    ask(cell, opened("billing", 5, Hold.READER), opened("late", 8))
    fill(cell, 60)
    let_go(cell)
    assert begins(cell) == {0}
    disk.used_ratio = 0.87
    let_go(cell, 3)
    disk.used_ratio = 0.5
    let_go(cell)
    (begin,) = begins(cell)
    assert 0 < begin < 60, "one segment after the other, and no more than is needed"
    for node in up(cell):
        state = node.log_state.committed_state()
        billing, late = state.readers
        assert (billing.position, late.position) == (begin, 8)
        ranges = [(lost.first_index, lost.stop_index) for lost in state.lost_ranges]
        assert (ranges[0][0], ranges[-1][1]) == (5, begin)
        told = [line for line in cell.hosts[node.replica.member_id].trace if "billing lost" in line]
        assert len(told) == len(ranges)
    cell.close()


def test_an_archive_is_not_passed_and_without_one_nothing_goes_where_it_is_asked_for(
    tmp_path: Path,
) -> None:
    cell, disk = filling(tmp_path, replace(TWO, retention="archived"))
    fill(cell, 100)
    disk.used_ratio = 0.87
    let_go(cell)
    assert begins(cell) == {0}
    chain = cell.leader().store.point_on_disk(29).chain
    ask(cell, opened("tape", 30, Hold.ARCHIVE)._replace(last_chain=chain))
    let_go(cell)
    (begin,) = begins(cell)
    assert 0 < begin <= 30
    cell.close()


def test_a_member_deletes_nothing_by_an_archive_that_is_not_of_its_own_log(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=replace(TWO, retention="archived"))
    fill(cell, 100)
    cell.hosts[cell.leader().replica.member_id].level = CHAIN_LEVEL - 1
    chain = cell.leader().store.point_on_disk(29).chain
    tape = opened("tape", 30, Hold.ARCHIVE)._replace(last_chain=chain)
    ask(cell, tape)
    let_go(cell)
    assert begins(cell) == {0}, "a member of an earlier release could not read the chain: it is not said"
    cell.hosts[cell.leader().replica.member_id].level = CHAIN_LEVEL
    ask(cell, tape._replace(last_chain=chain ^ 1))
    let_go(cell)
    assert begins(cell) == {0}
    for node in cell.nodes.values():
        (problem,) = [each for each in node.problems() if "archive tape is not of this log" in each]
        assert f"{chain:08x} here" in problem
    ask(cell, tape, ReaderMove("tape", 30))
    let_go(cell)
    (begin,) = begins(cell)
    assert 0 < begin <= 30
    assert not any("archive" in each for node in cell.nodes.values() for each in node.problems())
    cell.close()


def test_a_full_disk_that_refuses_appends_is_made_emptier(tmp_path: Path) -> None:
    cell, disk = filling(tmp_path, replace(SEGMENTS, retention_bytes=1 << 30))
    fill(cell, 60)
    disk.used_ratio = 0.95
    let_go(cell)
    assert min(begins(cell)) > 0
    cell.close()


def test_options_of_a_running_member_may_change(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=replace(TWO, retention="off"))
    fill(cell, 100)
    let_go(cell)
    assert begins(cell) == {0}
    for node in cell.nodes.values():
        node.configure(replace(node.config, storage=TWO))
    let_go(cell)
    assert min(begins(cell)) > 0
    cell.close()


def test_a_member_that_keeps_everything_does_so_whoever_leads(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=TWO)
    keeper = cell.followers()[0]
    keeper.configure(replace(keeper.config, storage=replace(TWO, retention="off")))
    fill(cell, 100)
    let_go(cell)
    assert keeper.store.begin.index == -1
    assert max(begins(cell)) > 0
    cell.close()
