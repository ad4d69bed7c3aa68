"""Members with damaged disks in a running group: they say so, serve none of it, repair each other."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import RangeRequest, RangeResponse
from quorumlog.consensus.ready import Role
from quorumlog.entry import AppendReceipt
from quorumlog.errors import DirectoryDamaged, RangeDamaged
from quorumlog.node import LedgerNode
from quorumlog.node.sending import read_sound
from quorumlog.store.disk import OsDisk, OsFile
from quorumlog.store.log_points import ColdRange, LogRange
from tests.node.cell import SMALL, Cell
from tests.node.test_ledger_node import append

ENTRY_BYTES = 548
PER_SEGMENT = 64 * 1024 // ENTRY_BYTES


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: Any) -> None:
    """So that pushes and reads of anything but the newest entries come from the files."""
    monkeypatch.setattr("quorumlog.node.ledger_node.RECENT_BYTES", 4096)


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = filled(tmp_path)
    yield cell
    cell.close()


def filled(path: Path, batches: int = 20) -> Cell:
    """Three members with 400 entries and a no-op each, all committed everywhere."""
    cell = Cell(path)
    for _ in range(batches):
        outcomes = append(cell.leader(), *[b"y" * 500] * 20)
        cell.until(lambda outcomes=outcomes: outcomes)
    cell.until(lambda: all(n.durable_committed_index == batches * 20 for n in cell.nodes.values()))
    return cell


def segment(path: Path, member: str, number: int) -> Path:
    return path / member / "data" / f"{number * 64 * 1024:020d}"


def scribble(node: LedgerNode, path: Path, index: int, *, offset: int = 100) -> None:
    """Change a byte of an entry on a member's disk; at 48 and above in its body."""
    found = node.store.range_of(index, index + 1, 1)
    with segment(path, node.replica.member_id, found.segment_position // (64 * 1024)).open(
        "r+b"
    ) as file:
        file.seek(found.position - found.segment_position + offset)
        file.write(b"?")


def data_of(path: Path, member: str) -> dict[str, bytes]:
    """Of the segments that hold something: those behind are made ahead, when there is time."""
    found = {file.name: file.read_bytes() for file in sorted((path / member / "data").iterdir())}
    return {name: content for name, content in found.items() if any(content)}


def same_everywhere(cell: Cell, path: Path) -> None:
    """Every member is whole, and what entries they hold is the same, byte for byte."""
    ends = {node.store.end for node in cell.nodes.values()}
    assert len(ends) == 1, ends
    assert len({tuple(data_of(path, member).items()) for member in cell.nodes}) == 1
    for node in cell.nodes.values():
        index = 0
        while index <= node.store.end.index:
            log_range, _ = read_sound(node.store, index, node.store.end.index + 1, 1 << 20)
            index = log_range.stop_index
        assert node.problems() == ()


def is_whole(node: LedgerNode) -> bool:
    return not node.store.damaged and not node.problems()


# ---------------------------------------------------------------- what a start finds


def test_a_member_that_lost_a_segment_starts_says_so_and_is_repaired(tmp_path: Path) -> None:
    filled(tmp_path).close()
    segment(tmp_path, "n1", 1).unlink()
    cell = Cell(tmp_path)
    n1 = cell.nodes["n1"]
    (damaged,) = n1.store.damaged
    assert n1.store.end.index == 400
    (problem,) = [p for p in n1.problems() if "damaged" in p]
    assert f"entries {damaged.first_index} .. {damaged.last.index} in data/" in problem
    cell.until(lambda: is_whole(n1), "repaired")
    outcomes = append(cell.leader(), b"on")
    cell.until(lambda: outcomes)
    end = cell.leader().store.end.index
    cell.until(lambda: all(n.durable_committed_index == end for n in cell.nodes.values()))
    same_everywhere(cell, tmp_path)
    cell.close()
    cell = Cell(tmp_path)
    assert is_whole(cell.nodes["n1"])
    cell.close()


def test_members_with_different_damage_repair_each_other(tmp_path: Path) -> None:
    filled(tmp_path).close()
    segment(tmp_path, "n0", 0).unlink()
    segment(tmp_path, "n1", 1).unlink()
    segment(tmp_path, "n2", 2).unlink()
    cell = Cell(tmp_path)
    assert all(node.store.damaged for node in cell.nodes.values())
    cell.until(lambda: all(is_whole(node) for node in cell.nodes.values()), "all are repaired")
    outcomes = append(cell.leader(), b"on")
    cell.until(lambda: outcomes)
    end = cell.leader().store.end.index
    cell.until(lambda: all(n.durable_committed_index == end for n in cell.nodes.values()))
    same_everywhere(cell, tmp_path)
    cell.close()


def test_while_nobody_else_holds_the_range_it_stays_damaged_and_says_so(tmp_path: Path) -> None:
    filled(tmp_path).close(clean=True)  # so that they know by themselves what is committed
    for member in ("n0", "n1"):
        segment(tmp_path, member, 1).unlink()
    cell = Cell(tmp_path)
    cell.cut_off = {"n2"}
    waiting = [cell.nodes["n0"], cell.nodes["n1"]]
    cell.until(lambda: all(any("no other member can send" in p for p in n.problems()) for n in waiting))
    leader = cell.leader()
    outcomes = append(leader, b"two of three go on, above the damage that both have")
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], AppendReceipt)
    with pytest.raises(RangeDamaged):
        leader.readable_range(leader.store.damaged[0].first_index, -1, 1000)
    cell.cut_off = set()
    cell.until(lambda: all(is_whole(node) for node in cell.nodes.values()), "the third one is back")
    cell.until(lambda: len({node.store.end for node in cell.nodes.values()}) == 1)
    same_everywhere(cell, tmp_path)
    cell.close()


def with_lost_entries(path: Path, lost: dict[str, list[tuple[int, int]]]) -> Cell:
    """Members whose disks have zeros in place of these entries, each started with its list of them."""
    cell = filled(path)
    store = cell.nodes["n0"].store
    positions = [store.range_of(index, index + 1, 1).position for index in range(PER_SEGMENT)]
    cell.close(clean=True)
    for member, ranges in lost.items():
        with segment(path, member, 0).open("r+b") as file:
            for first, stop in ranges:
                file.seek(positions[first])
                file.write(bytes(positions[stop] - positions[first]))
    cell = Cell(path)
    for member, ranges in lost.items():
        node = cell.nodes[member]
        for first, stop in ranges:
            node.repairer.settle(node.store.examine(first, stop))
        assert lost_by(node) == ranges
    return cell


def lost_by(node: LedgerNode) -> list[tuple[int, int]]:
    return [(each.first_index, each.stop_index) for each in node.store.damaged]


def test_of_damage_that_overlaps_each_member_gets_what_the_other_holds(tmp_path: Path) -> None:
    """The range of n0 begins where n1 holds nothing; in the middle of another one both lost an entry."""
    cell = with_lost_entries(
        tmp_path, {"n0": [(40, 80), (90, 110)], "n1": [(20, 60), (100, 101)], "n2": []}
    )
    cell.cut_off = {"n2"}
    both = [cell.nodes["n0"], cell.nodes["n1"]]
    left = [(40, 60), (100, 101)]
    cell.until(lambda: all(lost_by(node) == left for node in both), "what one of them holds")
    cell.until(lambda: all(any("no other member can" in p for p in n.problems()) for n in both))
    for node in both:
        assert isinstance(node.readable_range(60, -1, 1000), ColdRange)
        with pytest.raises(RangeDamaged):
            node.readable_range(59, -1, 1000)
    cell.cut_off = set()
    cell.until(lambda: all(is_whole(node) for node in cell.nodes.values()), "the third one is back")
    cell.until(lambda: len({node.store.end for node in cell.nodes.values()}) == 1)
    same_everywhere(cell, tmp_path)
    cell.close()


def test_pieces_of_every_member_make_each_of_them_whole(tmp_path: Path) -> None:
    """Nobody holds the whole of anybody's range."""
    cell = with_lost_entries(tmp_path, {"n0": [(20, 60)], "n1": [(40, 80)], "n2": [(22, 38), (60, 100)]})
    cell.until(lambda: all(is_whole(node) for node in cell.nodes.values()))
    cell.until(lambda: len({node.store.end for node in cell.nodes.values()}) == 1)
    same_everywhere(cell, tmp_path)
    cell.close()


def test_a_piece_that_no_chain_behind_it_proves_is_not_taken(tmp_path: Path) -> None:
    """As an earlier release sends it, which knows of no proofs."""
    cell = with_lost_entries(tmp_path, {"n0": [(40, 80)], "n1": [(60, 61)], "n2": []})

    def without_proofs(sender: str, to: str, message: object) -> bool:
        if isinstance(message, RangeResponse):
            msgspec.structs.force_setattr(message, "proofs", ())
        return "n2" in (sender, to)

    cell.drops = without_proofs
    node = cell.nodes["n0"]
    cell.until(lambda: any("no later entry is known" in problem for problem in node.problems()))
    assert lost_by(node) == [(40, 80)]
    cell.drops = lambda sender, to, message: False
    cell.until(lambda: all(is_whole(each) for each in cell.nodes.values()))
    cell.close()


@pytest.mark.parametrize("kind", ["in front of the range", "another chain behind it"])
def test_a_proof_that_proves_nothing_of_the_range_counts_for_nothing(tmp_path: Path, kind: str) -> None:
    cell = with_lost_entries(tmp_path, {"n0": [(40, 80)], "n1": [(60, 61)], "n2": []})
    node = cell.nodes["n0"]
    if kind == "in front of the range":
        proof = 10, node.store.point_on_disk(10).chain
    else:
        proof = node.store.durable.index, node.store.end.chain ^ 1

    def with_another_proof(sender: str, to: str, message: object) -> bool:
        if isinstance(message, RangeResponse):
            msgspec.structs.force_setattr(message, "proofs", (proof,))
        return "n2" in (sender, to)

    cell.drops = with_another_proof
    cell.until(lambda: any("no later entry is known" in problem for problem in node.problems()))
    assert lost_by(node) == [(40, 80)]
    cell.close()


def test_no_proof_in_front_of_the_range_is_offered(tmp_path: Path) -> None:
    """The member that asks has little on its disk, as it says."""
    cell = with_lost_entries(tmp_path, {"n0": [(40, 80)], "n1": [(60, 61)], "n2": []})
    offered: list[tuple[int, ...]] = []

    def looked_at(sender: str, to: str, message: object) -> bool:
        if isinstance(message, RangeRequest):
            msgspec.structs.force_setattr(message, "durable_index", 30)
        elif isinstance(message, RangeResponse) and message.count and to == "n0":
            offered.append(tuple(index for index, _ in message.proofs))
        return "n2" in (sender, to)

    cell.drops = looked_at
    cell.until(lambda: offered)
    assert offered[0]
    assert min(offered[0]) >= 79
    cell.close()


def test_the_whole_members_elect_one_of_themselves(tmp_path: Path) -> None:
    filled(tmp_path).close()
    segment(tmp_path, "n1", 1).unlink()
    cell = Cell(tmp_path)
    cell.drops = lambda sender, to, message: isinstance(message, RangeRequest)
    for _ in range(3):
        leader = cell.leader()
        assert leader.replica.member_id != "n1"
        cell.cut_off = {leader.replica.member_id}
        cell.until(lambda leader=leader: cell.leader() is not leader)
        cell.cut_off = set()
        cell.until(lambda leader=leader: leader.raft.role is Role.FOLLOWER)
    cell.close()


def test_a_damaged_member_leads_when_nobody_else_can(tmp_path: Path) -> None:
    """n0 is behind, so only n1 can lead; its damage is repaired from n2 once that is back."""
    cell = filled(tmp_path)
    cell.cut_off = {"n0"}
    outcomes = append(cell.leader(), b"more")
    cell.until(lambda: outcomes)
    cell.close()
    segment(tmp_path, "n1", 1).unlink()
    cell = Cell(tmp_path)
    cell.cut_off = {"n2"}
    cell.until(lambda: cell.nodes["n1"].raft.role is Role.LEADER, "after three time-outs")
    cell.until(lambda: is_whole(cell.nodes["n1"]), "n0 holds the segment, if not the end")
    cell.cut_off = set()
    cell.until(lambda: len({node.durable_committed_index for node in cell.nodes.values()}) == 1)
    same_everywhere(cell, tmp_path)
    cell.close()


def test_alone_in_its_group_a_damaged_member_serves_what_is_left(tmp_path: Path) -> None:
    cell = Cell(tmp_path, members=1)
    for _ in range(20):
        outcomes = append(cell.leader(), *[b"y" * 500] * 20)
        cell.until(lambda outcomes=outcomes: outcomes)
    cell.close()
    segment(tmp_path, "n0", 1).unlink()
    cell = Cell(tmp_path, members=1)
    outcomes = append(cell.leader(), b"on")
    cell.until(lambda: outcomes)
    node = cell.nodes["n0"]
    (damaged,) = node.store.damaged
    assert isinstance(node.readable_range(0, -1, 1000), ColdRange)
    with pytest.raises(RangeDamaged):
        node.readable_range(damaged.first_index, -1, 1000)
    assert isinstance(node.readable_range(damaged.stop_index, -1, 1000), ColdRange)
    assert any("no member is connected" in problem for problem in node.problems())
    cell.close()


# ---------------------------------------------------------------- what runs into it


def read(cell: Cell, node: LedgerNode, first_index: int) -> EntryBatch | None:
    """A client's read from this member; what a server makes of it."""
    found = node.readable_range(first_index, -1, 20_000)
    assert isinstance(found, ColdRange)
    batches: list[EntryBatch] = []

    def done(result: tuple[LogRange, EntryBatch] | DirectoryDamaged) -> None:
        if isinstance(result, DirectoryDamaged):
            node.repairer.found(result)
        else:
            batches.append(result[1])

    cell.hosts[node.replica.member_id].read_later(lambda: node.store.read_from(*found), done)
    cell.step()
    return batches[0] if batches else None


def test_damage_that_a_read_meets_is_repaired(cell: Cell, tmp_path: Path) -> None:
    follower = cell.followers()[0]
    scribble(follower, tmp_path, 150, offset=8)
    assert read(cell, follower, 140) is None
    cell.until(lambda: is_whole(follower))
    assert read(cell, follower, 140) is not None
    same_everywhere(cell, tmp_path)


def test_damage_that_a_push_meets_makes_the_leader_hand_over_and_is_repaired(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    old = cell.leader()
    behind, caught_up = cell.followers()
    cell.cut_off = {behind.replica.member_id}
    for _ in range(20):
        outcomes = append(old, *[b"y" * 500] * 20)
        cell.until(lambda outcomes=outcomes: outcomes)
    scribble(old, tmp_path, 150)
    cell.cut_off = set()
    cell.until(lambda: caught_up.raft.role is Role.LEADER, "the one that has everything takes over")
    cell.until(lambda: len({node.durable_committed_index for node in cell.nodes.values()}) == 1)
    cell.until(lambda: is_whole(old))
    same_everywhere(cell, tmp_path)
    (kept,) = (tmp_path / old.replica.member_id / "set-aside").iterdir()
    assert kept.stat().st_size == ENTRY_BYTES, "one bad entry, and no more, was sent again"
    cell.close()


def test_the_member_that_is_asked_finds_its_own_damage_and_both_are_repaired(tmp_path: Path) -> None:
    """n1 has lost a segment of which n0 holds one entry badly, and n2 another one."""
    cell = filled(tmp_path)
    first = cell.nodes["n0"].store.range_of(0, 400, 1 << 20).stop_index
    scribble(cell.nodes["n0"], tmp_path, first + 10)
    scribble(cell.nodes["n2"], tmp_path, first + 50)
    cell.close()
    segment(tmp_path, "n1", 1).unlink()
    cell = Cell(tmp_path)
    cell.until(lambda: all(is_whole(node) for node in cell.nodes.values()))
    cell.until(lambda: len({node.store.end for node in cell.nodes.values()}) == 1)
    same_everywhere(cell, tmp_path)
    cell.close()


class DiskWithoutRoom(OsDisk):
    """No new file can be made and no space given to one, while it is full."""

    is_full = False

    def check(self, path: str) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> OsFile:
        if create:
            self.check(path)
        return FileWithoutRoom(self, super().open(path, writable=writable, create=create))


class FileWithoutRoom(OsFile):
    def __init__(self, disk: DiskWithoutRoom, opened: OsFile) -> None:
        super().__init__(opened.path, opened._descriptor, opened._times)
        self._disk = disk

    def allocate(self, position: int, size_bytes: int) -> None:
        self._disk.check(self.path)
        super().allocate(position, size_bytes)


def test_damage_found_on_a_full_disk_stops_nobody_and_is_saved_when_there_is_space(
    tmp_path: Path,
) -> None:
    disk = DiskWithoutRoom()
    cell = Cell(tmp_path, disks={"n1": disk})
    outcomes = append(cell.leader(), *[b"y" * 500] * 100)
    cell.until(lambda: outcomes and all(n.durable_committed_index == 100 for n in cell.nodes.values()))
    node, path = cell.nodes["n1"], tmp_path / "n1" / "damaged"
    cell.drops = lambda sender, to, message: isinstance(message, RangeRequest)
    disk.is_full = True
    scribble(node, tmp_path, 50, offset=8)
    node.repairer.found(DirectoryDamaged("", path="", position=0, index=50))
    cell.until(lambda: node.store.damaged)
    cell.step()
    assert any("in memory only" in problem for problem in node.problems())
    outcomes = append(cell.leader(), b"on")
    cell.until(lambda: outcomes and node.durable_committed_index == 101)
    assert not path.exists()
    disk.is_full = False
    cell.until(path.exists)
    assert not any("in memory only" in problem for problem in node.problems())
    cell.drops = lambda sender, to, message: False
    cell.until(lambda: is_whole(node))
    assert not path.exists()
    same_everywhere(cell, tmp_path)
    cell.close()


def test_a_damaged_index_is_made_again_from_the_data(tmp_path: Path) -> None:
    filled(tmp_path).close()
    cell = Cell(tmp_path)
    follower = cell.followers()[0]
    cell.until(lambda: follower.committed_index >= 400)
    index = tmp_path / follower.replica.member_id / "index" / f"{0:020d}"
    whole = index.read_bytes()
    index.write_bytes(whole[: 150 * 32] + bytes(320) + whole[160 * 32 :])
    assert read(cell, follower, 150) is None
    cell.step()
    assert read(cell, follower, 150) is not None
    assert index.read_bytes() == whole
    assert is_whole(follower)
    cell.close()


@pytest.mark.parametrize("finder", ["read", "scrub"])
def test_a_damaged_index_without_space_is_made_again_once_there_is_some(
    tmp_path: Path, finder: str
) -> None:
    """Nobody has to meet it again for that; and `status` says so until then."""
    disk = DiskWithoutRoom()
    filled(tmp_path).close()
    cell = Cell(tmp_path, disks={"n1": disk})
    node = cell.nodes["n1"]
    cell.until(lambda: node.durable_committed_index >= 400)
    index = tmp_path / "n1" / "index" / f"{0:020d}"
    whole = index.read_bytes()
    index.write_bytes(whole[: 150 * 32] + bytes(320) + whole[160 * 32 :])
    disk.is_full = True
    if finder == "read":
        assert read(cell, node, 150) is None
    else:
        cell.now_ms += SMALL.scrub_start_delay_ms
    cell.until(lambda: any("no space to rewrite" in problem for problem in node.problems()))
    for _ in range(300):
        cell.step(10)
    assert index.read_bytes() != whole
    assert not node.scrub_status().passes
    if finder == "scrub":  # which went on to what lies behind
        scribble(node, tmp_path, 300, offset=8)
        cell.until(lambda: node.store.damaged)
    disk.is_full = False
    cell.until(lambda: index.read_bytes() == whole)
    cell.until(lambda: not any("write again" in problem for problem in node.problems()))
    cell.close()


def test_a_source_that_sends_other_entries_is_passed_over(tmp_path: Path) -> None:
    filled(tmp_path).close()
    segment(tmp_path, "n1", 1).unlink()
    cell = Cell(tmp_path)

    def changed(sender: str, to: str, message: object) -> bool:
        if sender == "n0" and isinstance(message, RangeResponse) and message.count:
            message.batch.buffer[-1] ^= 1
        return False

    cell.drops = changed
    cell.until(lambda: is_whole(cell.nodes["n1"]), "n2 sends the true ones")
    cell.until(lambda: len({node.store.end for node in cell.nodes.values()}) == 1)
    same_everywhere(cell, tmp_path)
    cell.close()
