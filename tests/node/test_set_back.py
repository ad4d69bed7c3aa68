"""A member whose directory an older copy has replaced, on real files: what it does when it is told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import HeartbeatRequest
from quorumlog.consensus.ready import Role
from quorumlog.entry import SetBack
from quorumlog.node import LedgerNode
from quorumlog.node.ports import DirectorySetBack
from tests.node.cell import Cell

REPLACE_AFTER_MS = 3_000


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = Cell(tmp_path, auto_replace_after_ms=REPLACE_AFTER_MS)
    append(cell, 3)
    yield cell
    cell.close()


def append(cell: Cell, count: int) -> int:
    """The committed index, which every member that is up and voted holds by then."""
    leader = cell.leader()
    for number in range(count):
        leader.append(EntryBatch.from_bodies([b"%d" % number]), 0, lambda outcome: None)
    stop = leader.store.end.index + 1
    cell.until(lambda: leader.committed_index >= stop, "committed")
    pass_ms(cell, 1_000)
    assert cell.leader() is leader
    return leader.committed_index


def pass_ms(cell: Cell, milliseconds: int) -> None:
    for _ in range(milliseconds // 50):
        cell.step(50)


def put_back(cell: Cell, path: Path) -> tuple[str, SetBack]:
    """A follower is copied, goes on and is put back to the copy. Its name, and what its leader finds."""
    replica = cell.followers()[0].replica
    member = replica.member_id
    held = append(cell, 2)
    cell.kill(member)
    shutil.copytree(path / member, path / "copy")
    cell.start(member)
    pass_ms(cell, 500)
    acknowledged = append(cell, 5)
    cell.kill(member)
    shutil.rmtree(path / member)
    shutil.copytree(path / "copy", path / member)
    assert held < acknowledged
    return member, SetBack(replica.directory_id, acknowledged, held)


def told(node: LedgerNode, words: str) -> str:
    return next((problem for problem in node.problems() if words in problem), "")


def test_it_becomes_another_directory_and_takes_its_own_place_by_an_entry(
    cell: Cell, tmp_path: Path
) -> None:
    member, found = put_back(cell, tmp_path)
    figures = f"(now ends at {found.held_index}, had acknowledged entry {found.acknowledged_index})"
    old = next(v for v in cell.leader().status().voters if v.member_id == member)
    assert cell.start(member).replica == old
    cell.until(lambda: cell.nodes[member].replica != old, "another directory")
    fresh = cell.nodes[member].replica
    cell.until(lambda: cell.nodes[member].raft.role is Role.OBSERVER, "an observer")
    assert figures in told(cell.nodes[member], "rolled back")
    assert f"directory {old.directory_id} of {member} was rolled back" in told(cell.leader(), "older")
    cell.kill(member)
    assert cell.start(member).replica == fresh, "a restart changes nothing"
    pass_ms(cell, 500)
    assert cell.nodes[member].raft.role is Role.OBSERVER
    assert figures in told(cell.nodes[member], "rolled back")
    cell.until(lambda: fresh in cell.leader().status().voters, "a voter again")
    cell.until(lambda: not cell.leader().status().membership.is_joint, "the end of the change")
    pass_ms(cell, 1_000)
    assert old not in cell.leader().status().voters
    assert not [problem for node in cell.nodes.values() for problem in node.problems()]
    index = append(cell, 2)
    assert cell.nodes[member].committed_index == index


def test_while_another_member_is_away_the_group_waits_and_says_why(cell: Cell, tmp_path: Path) -> None:
    member, _ = put_back(cell, tmp_path)
    third = next(node.replica.member_id for node in cell.followers() if node.replica.member_id != member)
    cell.kill(third)
    leader, committed_index = cell.leader(), cell.leader().committed_index
    cell.start(member)
    old = next(v for v in leader.status().voters if v.member_id == member)
    cell.until(lambda: cell.nodes[member].replica != old, "another directory")
    leader.append(EntryBatch.from_bodies([b"x"]), 0, lambda outcome: None)
    pass_ms(cell, 100)
    assert told(leader, "rolled back")
    for _ in range(200):
        cell.step(50)
        assert not [node for node in cell.nodes.values() if node.committed_index > committed_index]
    cell.start(third)
    cell.until(lambda: cell.leader().committed_index > committed_index, "the third makes the quorum")


def test_what_is_told_while_a_promise_is_on_its_way_to_the_disk_waits_for_it(
    cell: Cell, tmp_path: Path
) -> None:
    follower = cell.followers()[0]
    host = cell.hosts[follower.replica.member_id]
    told_of_it = HeartbeatRequest(
        sender=cell.leader().replica,
        term=follower.raft.term,
        round=1,
        committed_index=-1,
        set_back=SetBack(follower.replica.directory_id, 9, 3),
    )
    host.holds_promises = True
    newer = HeartbeatRequest(
        sender=cell.leader().replica, term=follower.raft.term + 1, round=1, committed_index=-1
    )
    follower.receive(newer)
    follower.turn()
    assert follower.is_held
    follower.receive(told_of_it)
    (work, done) = host.promises.pop(0)
    done(work())
    assert follower.is_held, "nothing is promised any more"
    (work, done) = host.promises.pop(0)
    with pytest.raises(DirectorySetBack):
        done(work())
