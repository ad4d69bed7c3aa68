"""The checkers that mutants made necessary: where a term comes from, one group, cuts, true marks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quorumlog.consensus.ready import Ready
from quorumlog.entry import Formation, HardState
from quorumlog.testing.promises import CommittedEntries, CommittedLog, DurableEntries
from sim.log.checkers import Violation
from sim.log.checkers.cuts import Cuts
from sim.log.checkers.one_group import OneGroup
from sim.log.checkers.quorum_on_disk import QuorumOnDisk
from sim.log.checkers.term_origin import TermOrigin
from sim.log.checkers.water_marks import WaterMarks
from tests.node.cell import SMALL
from tests.sim.checkers.watched_cell import WatchedCell


def ready(**changes: Any) -> Ready:
    return Ready(number=99, committed_index=-1, **changes)


# ---------------------------------------------------------------- terms


def elected() -> tuple[WatchedCell, TermOrigin]:
    cell = WatchedCell()
    checker = TermOrigin(cell)
    cell.watch(checker)
    cell.append(b"a")
    return cell, checker


def test_terms_that_candidates_open_and_votes_for_them_are_accepted() -> None:
    cell, checker = elected()
    leader, follower = cell.leader(), cell.followers()[0]
    term = leader.node.raft.term
    checker.ready(follower, ready(hard_state=HardState(term, leader.replica)))
    checker.ready(follower, ready(hard_state=HardState(term + 1, follower.replica)))
    checker.ready(leader, ready(hard_state=HardState(term + 1, None)))


def test_a_term_for_which_nobody_has_stood_is_found() -> None:
    cell, checker = elected()
    term = cell.leader().node.raft.term + 1
    with pytest.raises(Violation, match=rf"stores HardState\(term={term}.* nobody has stood"):
        checker.ready(cell.followers()[0], ready(hard_state=HardState(term, None)))


def test_a_vote_for_somebody_who_asked_only_for_pre_votes_is_found() -> None:
    cell, checker = elected()
    one, other = cell.followers()
    state = HardState(cell.leader().node.raft.term, other.replica)
    with pytest.raises(Violation, match="candidates in that term are"):
        checker.ready(one, ready(hard_state=state))


# ---------------------------------------------------------------- one group


def test_another_founding_list_is_found_and_the_same_one_again_is_not() -> None:
    cell = WatchedCell()
    checker = OneGroup(cell)
    cell.watch(checker)
    cell.append(b"a")
    follower = cell.followers()[0]
    directory: Any = follower.node.directory
    formation = directory.formation
    directory.formation = Formation(pending=formation.founding[:2], founding=())
    checker.turned(follower)
    for wrong in (
        formation._replace(founding=formation.founding[:2]),
        formation._replace(cluster_id="another"),
        formation._replace(cluster_id=""),
    ):
        directory.formation = wrong
        for look in (checker.turned, checker.started):
            with pytest.raises(Violation, match=r"stored the founding list .* the group was founded by"):
                look(follower)
    directory.formation = formation


# ---------------------------------------------------------------- cuts


class Cutting:
    """A follower that holds entries 0 .. 2, all committed, of which it may know less."""

    def __init__(self) -> None:
        self.cell = WatchedCell()
        self.cell.append(b"a")
        self.cell.append(b"b")
        self.cell.until_whole()
        self.log = CommittedLog(self.cell)
        CommittedEntries(self.cell, self.log).turned(self.cell.leader())
        self.checker = Cuts(self.cell, self.log)
        self.follower = self.cell.followers()[0]

    def leave_bytes(self) -> None:
        """Behind the end the cache shows something else than the platter has."""
        path, end = f"{self.follower.path}/data/{0:020d}", self.follower.node.store.end.position
        self.follower.disk.open(path).pwritev([b"x"], end)


def test_a_cut_of_a_committed_entry_is_found_though_its_member_does_not_know_that_it_is() -> None:
    cutting = Cutting()
    with pytest.raises(Violation, match=r"cuts its log from 1 on; it holds .* committed \(up to 2\)"):
        cutting.checker.ready(cutting.follower, ready(truncate_from=1))


def test_a_cut_above_what_is_committed_or_of_another_entry_is_none_of_its_business() -> None:
    cutting = Cutting()
    cutting.checker.ready(cutting.follower, ready(truncate_from=3))
    other = WatchedCell(1)
    for body in (b"x", b"y"):
        other.append(body)
    cutting.checker.ready(other.leader(), ready(truncate_from=1))
    cutting.checker.turned(cutting.follower)


def test_bytes_that_a_cut_has_left_on_the_platter_are_found_at_the_end_of_the_turn() -> None:
    cutting = Cutting()
    cutting.checker.ready(cutting.follower, ready(truncate_from=3))
    cutting.leave_bytes()
    with pytest.raises(Violation, match=r"behind entry 2, .* the platter holds something else"):
        cutting.checker.turned(cutting.follower)


def test_a_cut_that_a_crash_interrupts_may_leave_bytes() -> None:
    cutting = Cutting()
    cutting.checker.ready(cutting.follower, ready(truncate_from=3))
    cutting.leave_bytes()
    cutting.checker.stopped(cutting.follower)
    cutting.checker.turned(cutting.follower)


# ---------------------------------------------------------------- marks and majorities


class Marked:
    """Entry 1 is on the disks of the leader and of one follower; the other has only written it."""

    def __init__(self, flush: str = "sync") -> None:
        self.cell = WatchedCell(storage=replace(SMALL, flush=flush))
        self.log = CommittedLog(self.cell)
        self.durable = DurableEntries(self.cell, self.log)
        self.checker = WaterMarks(self.cell, self.durable)
        self.cell.watch(self.durable, self.checker)
        self.leader = self.cell.leader()
        self.slow, self.other = self.cell.followers()
        self.cell.until_whole()
        self.cell.cell.hold_flush.add(self.slow.member_id)
        self.cell.append(b"a")
        self.cell.cell.until(lambda: self.slow.node.store.end.index == 1, "the entry is written")

    def mark(self, member: Any) -> None:
        self.leader.node.raft.replication.acks.raise_to(member.replica, 1)
        self.checker.turned(self.leader)


def test_a_mark_for_a_disk_that_holds_the_entry_is_accepted() -> None:
    marked = Marked()
    marked.mark(marked.other)
    assert marked.slow.node.store.durable.index == 0


def test_a_mark_for_an_entry_that_the_voter_has_not_synced_is_found() -> None:
    marked = Marked()
    with pytest.raises(
        Violation, match=r"leader of term 1, has mark 1 for .* synced there is .*index=0"
    ):
        marked.mark(marked.slow)


def test_a_mark_for_another_entry_on_the_voters_disk_is_found() -> None:
    marked = Marked()
    another = WatchedCell(1)
    another.append(b"another")
    voter = marked.other.replica
    marked.other.node = another.leader().node
    marked.other.node.replica = voter
    marked.checker._looked.clear()
    with pytest.raises(Violation, match=r"has mark 1 for .* entry 1 is EntryMark.* there and EntryMark"):
        marked.checker.turned(marked.leader)


def test_a_voter_that_has_gone_on_to_a_higher_term_may_have_dropped_the_entry() -> None:
    marked = Marked()
    marked.checker._terms[marked.slow.replica] = 2
    marked.mark(marked.slow)


def test_nothing_is_asked_of_marks_under_async() -> None:
    marked = Marked("async")
    marked.mark(marked.slow)


def test_a_majority_that_holds_another_entry_at_that_index_is_none() -> None:
    marked = Marked()
    CommittedEntries(marked.cell, marked.log).turned(marked.leader)
    checker = QuorumOnDisk(marked.cell, marked.log, marked.durable)
    checker.turned(marked.leader)
    another = WatchedCell(1)
    another.append(b"another")
    voter = marked.other.replica
    marked.other.node = another.leader().node
    marked.other.node.replica = voter
    checker._checked_index = -1
    with pytest.raises(Violation, match=r"says that entry 1 is committed; .* another entry is there at"):
        checker.turned(marked.leader)
