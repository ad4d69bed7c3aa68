"""Each checker of the log finds the history that breaks its promise, and says where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorumlog.consensus.messages import HeartbeatRequest
from quorumlog.consensus.ready import Envelope, Ready, Role, RoleChange
from quorumlog.testing.promises import (
    CommittedEntries,
    CommittedLog,
    Convergence,
    DurableEntries,
    EntryMark,
    LogMatching,
    OneLeader,
)
from sim.log.checkers import Violation
from sim.log.checkers.commit_rule import CommitRule
from sim.log.checkers.contiguous_reads import ContiguousReads
from sim.log.checkers.leader_completeness import LeaderCompleteness
from sim.log.checkers.monotonic_indices import MonotonicIndices
from sim.log.checkers.quorum_on_disk import QuorumOnDisk
from tests.node.cell import SMALL
from tests.sim.checkers.watched_cell import WatchedCell

ASYNC = replace(SMALL, flush="async")


def a_group_of_one(*bodies: bytes) -> WatchedCell:
    """It leads term 1 and has committed its no-op and `bodies`."""
    cell = WatchedCell(1)
    for body in bodies:
        cell.append(body)
    return cell


# ---------------------------------------------------------------- one leader


def test_two_members_that_become_leader_in_one_term_are_found() -> None:
    cell = WatchedCell()
    checker = OneLeader(cell)
    cell.watch(checker)
    leader = cell.leader()
    change = RoleChange(Role.LEADER, leader.node.raft.term, "n9")
    with pytest.raises(Violation, match=r"becomes leader in term \d+, whose leader is"):
        checker.ready(cell.followers()[0], Ready(number=99, committed_index=-1, role_change=change))


def test_a_follower_that_sends_a_leaders_message_is_found() -> None:
    cell = WatchedCell()
    checker = OneLeader(cell)
    cell.watch(checker)
    leader, follower = cell.leader(), cell.followers()[0]
    heartbeat = HeartbeatRequest(
        sender=follower.replica, term=leader.node.raft.term, round=1, committed_index=-1
    )
    with pytest.raises(Violation, match="sends HeartbeatRequest"):
        checker.sent(follower, Envelope(leader.replica, heartbeat))


# ---------------------------------------------------------------- what is in the logs


def test_logs_with_another_entry_under_the_same_index_and_term_are_found() -> None:
    one, other = a_group_of_one(b"this"), a_group_of_one(b"that")
    checker = LogMatching(one)
    checker.turned(one.leader())
    with pytest.raises(Violation, match="both hold entry 1 of term 1, but not the same log"):
        checker.turned(other.leader())


def test_another_entry_committed_at_the_same_index_is_found_at_the_first_difference() -> None:
    one, other = a_group_of_one(b"same", b"this", b"more"), a_group_of_one(b"same", b"that", b"more")
    checker = CommittedEntries(one, CommittedLog(one))
    checker.turned(one.leader())
    with pytest.raises(
        Violation, match=r"entry 2 was committed in term 1 as .* says that 3 is committed"
    ):
        checker.turned(other.leader())


def test_a_difference_that_a_power_loss_explains_is_none_but_one_below_it_is() -> None:
    one, other = WatchedCell(1, storage=ASYNC), WatchedCell(1, storage=ASYNC)
    for cell, body in ((one, b"this"), (other, b"that")):
        cell.append(b"same")
        cell.append(body)
    # The other group goes on in a later term, as the leader does who lacks what was forgotten.
    other.stop(other.members[0])
    other.start(other.members[0])
    other.append(b"more")
    log = CommittedLog(one)
    checker = CommittedEntries(one, log)
    checker.turned(one.leader())
    log.forget_from(3)
    with pytest.raises(Violation, match=r"entry 2 was committed in term 1 .*async lost from: 3"):
        checker.turned(other.leader())
    log.forget_from(2)
    checker.turned(other.leader())
    assert log.end_index == other.leader().node.committed_index
    checker.turned(one.leader())
    assert log.at(2).chain == other.leader().node.store.chain_at(2)


def test_a_later_leader_without_a_committed_entry_is_found() -> None:
    one, other = a_group_of_one(b"this"), a_group_of_one(b"that")
    log = CommittedLog(one)
    CommittedEntries(one, log).turned(one.leader())
    checker = LeaderCompleteness(one, log)
    checker.turned(one.leader())
    other.stop(other.members[0])
    other.start(other.members[0])
    with pytest.raises(Violation, match="leads term 2 without entry 1, which was committed in term 1"):
        checker.turned(other.leader())


def test_a_leader_that_commits_an_entry_of_an_older_term_by_counting_is_found() -> None:
    """Raft paper, figure 8 (c)."""
    cell = a_group_of_one(b"a", b"b")
    member = cell.members[0]
    cell.stop(member)
    cell.start(member)
    checker = CommitRule(cell)
    cell.watch(checker)
    cell.append(b"c")
    node = member.node
    assert node.store.id_at(2).term < node.raft.term
    node.committed_index = 1
    checker.started(member)
    checker.turned(member)
    node.committed_index = 2
    with pytest.raises(Violation, match=r"leads term 2 .* from 1 to 2, an entry of term 1"):
        checker.turned(member)


# ---------------------------------------------------------------- what is on disk


def test_an_entry_committed_with_only_the_leaders_disk_is_found() -> None:
    cell = WatchedCell()
    cell.append(b"a")
    leader = cell.leader()
    log = CommittedLog(cell)
    durable = DurableEntries(cell, log)
    durable.turned(leader)
    CommittedEntries(cell, log).turned(leader)
    with pytest.raises(Violation, match="says that entry 1 is committed; synced on the voters' disks"):
        QuorumOnDisk(cell, log, durable).turned(leader)


def test_a_directory_that_lost_what_was_synced_is_found_at_its_next_start() -> None:
    cell = WatchedCell()
    cell.append(b"a")
    follower = cell.followers()[0]
    older = follower.disk.snapshot()
    cell.watch(DurableEntries(cell, CommittedLog(cell)))
    cell.append(b"b")
    cell.stop(follower)
    follower.disk.restore(older)
    with pytest.raises(Violation, match=r"had synced entry 2 .* starts with a log that ends at 1"):
        cell.start(follower)


def test_what_an_async_directory_had_only_written_counts_as_forgotten() -> None:
    cell = WatchedCell(storage=ASYNC)
    log = CommittedLog(cell)
    cell.watch(DurableEntries(cell, log))
    cell.append(b"a")
    cell.until_whole()
    follower = cell.followers()[0]
    cell.cell.until(lambda: follower.node.store.durable.index == 1, "the first of them synced")
    cell.cell.hold_flush.add(follower.member_id)
    cell.append(b"b")
    cell.until_whole()
    cell.stop(follower)
    follower.disk = follower.disk.platter()
    follower.lost_power = True
    cell.start(follower)
    assert follower.node.store.end.index == 1
    assert log.forgotten_from == 2


def test_a_committed_index_that_falls_is_found() -> None:
    cell = a_group_of_one(b"a", b"b")
    checker = MonotonicIndices(cell)
    cell.watch(checker)
    leader = cell.leader()
    leader.node.committed_index = leader.node.durable_committed_index = 1
    with pytest.raises(Violation, match="committed_index fell"):
        checker.turned(leader)


def test_a_cut_below_the_committed_index_is_found_before_it_is_carried_out() -> None:
    cell = a_group_of_one(b"a", b"b")
    checker = MonotonicIndices(cell)
    cell.watch(checker)
    ready = Ready(number=99, committed_index=2, truncate_from=2)
    with pytest.raises(
        Violation, match="cuts its log from 2 on, although entries up to 2 are committed"
    ):
        checker.ready(cell.leader(), ready)


def test_an_entry_applied_before_it_is_durable_is_found() -> None:
    cell = a_group_of_one(b"a")
    checker = MonotonicIndices(cell)
    cell.watch(checker)
    leader = cell.leader()
    leader.node.raft.log.durable_index = 0
    with pytest.raises(Violation, match="durable_committed_index is above durable_index"):
        checker.turned(leader)


# ---------------------------------------------------------------- reads


def reads_of(cell: WatchedCell) -> ContiguousReads:
    log = CommittedLog(cell)
    committed = CommittedEntries(cell, log)
    cell.watch(committed)
    return ContiguousReads(cell, log, committed)


def test_a_read_of_entries_that_were_never_committed_is_found() -> None:
    one, other = a_group_of_one(b"this"), a_group_of_one(b"that")
    checker = reads_of(one)
    checker.read(one.read(one.leader()))
    with pytest.raises(Violation, match=r"a read of 0 \.\. 1 from n0 .* at 1, where EntryMark"):
        checker.read(other.read(other.leader()))


def test_a_read_above_what_is_committed_is_found() -> None:
    cell = a_group_of_one(b"a", b"b")
    checker = reads_of(cell)
    read = cell.read(cell.leader())
    read.committed_index = 1
    with pytest.raises(Violation, match=r"a read of 0 \.\. 2 .* goes above its committed index 1"):
        checker.read(read)


def test_a_read_that_skips_an_entry_is_found() -> None:
    cell = a_group_of_one(b"a", b"b")
    checker = reads_of(cell)
    read = cell.read(cell.leader())
    read.batch = read.batch.concatenate([read.batch.slice(0, 1), read.batch.slice(2, 3)])
    with pytest.raises(Violation, match=r"has the indices \[0, 2\]"):
        checker.read(read)


def test_a_read_with_a_changed_body_is_found() -> None:
    cell = a_group_of_one(b"a")
    checker = reads_of(cell)
    read = cell.read(cell.leader())
    changed = bytearray(read.batch.buffer)
    changed[-1] ^= 1
    read.batch = type(read.batch)(changed, read.batch.sizes)
    with pytest.raises(Violation, match="body_crc does not match at index 1"):
        checker.read(read)


# ---------------------------------------------------------------- the end


def test_a_byte_that_differs_on_one_member_is_found_at_the_end() -> None:
    cell = WatchedCell()
    cell.append(b"a")
    cell.until_whole()
    checker = Convergence(cell)
    checker.made_whole()
    follower = cell.followers()[0]
    segment = f"{follower.path}/data/{0:020d}"
    follower.disk.flip(segment, follower.node.store.end.position - 1, 1)
    with pytest.raises(Violation, match=r"data/0+ differs between .* from byte 96 on"):
        checker.made_whole()


def test_a_member_that_lags_behind_is_found_at_the_end() -> None:
    cell = WatchedCell()
    cell.append(b"a")
    cell.until_whole()
    cell.cell.cut_off.add(cell.followers()[0].member_id)
    cell.append(b"b")
    with pytest.raises(Violation, match=r"the log of .* ends with"):
        Convergence(cell).made_whole()


def test_a_cluster_without_a_leader_is_found_at_the_end() -> None:
    cell = WatchedCell()
    with pytest.raises(Violation, match="after the faults there are 0 leaders"):
        Convergence(cell).made_whole()


def test_what_was_shown_as_committed_is_compared_when_the_log_can_be_read_so_far() -> None:
    log = CommittedLog(a_group_of_one())
    shown, other = EntryMark(3, 77), EntryMark(3, 78)
    log.claim(1, shown)
    with pytest.raises(Violation, match="entry 1 was shown as"):
        log.claim(1, other)
    log.append(EntryMark(2, 5), 3)
    with pytest.raises(Violation, match="entry 1 was shown as"):
        log.append(other, 3)
