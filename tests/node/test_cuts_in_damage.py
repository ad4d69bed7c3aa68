"""A conflict where a member's disk is damaged: what is cut is what differs, not one entry more.

A member that left a shorter log than it has acknowledged could help to elect a leader without it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.ready import Role
from quorumlog.entry import AppendReceipt
from quorumlog.node import LedgerNode
from quorumlog.node.sending import read_sound
from quorumlog.node.writing import _Look
from tests.node.cell import SMALL, Cell
from tests.node.test_ledger_node import append


def are_equal(cell: Cell) -> bool:
    nodes = cell.nodes.values()
    return len({n.committed_index for n in nodes}) == 1 and len({n.store.end for n in nodes}) == 1


def is_repaired(cell: Cell) -> bool:
    return are_equal(cell) and not any(n.store.damaged or n.problems() for n in cell.nodes.values())


def overwrite(path: Path, member: str, position: int, data: bytes) -> None:
    segment = position // SMALL.segment_bytes * SMALL.segment_bytes
    with (path / member / "data" / f"{segment:020d}").open("r+b") as file:
        file.seek(position - segment)
        file.write(data)


def bodies_of(node: LedgerNode) -> list[bytes]:
    bodies: list[bytes] = []
    index = 0
    while index <= node.committed_index:
        log_range, batch = read_sound(node.store, index, node.committed_index + 1, 1 << 20)
        bodies += map(bytes, batch.bodies())
        index = log_range.stop_index
    return bodies


def old_leader_with_a_tail_of_its_own(path: Path) -> tuple[Cell, str, int]:
    """20 entries are committed everywhere, five more are on the disk of a leader that was cut off and
    killed; the others go on without it. Returns its id and the index where its log differs."""
    cell = Cell(path)
    leader = cell.leader()
    member = leader.replica.member_id
    outcomes = append(leader, *[b"base"] * 20)
    cell.until(lambda: outcomes and are_equal(cell))
    cell.cut_off = {member}
    append(leader, *[b"never acknowledged"] * 5)
    cell.step()
    cell.step()
    conflict = leader.committed_index + 1
    cell.kill(member)
    cell.cut_off = set()
    outcomes = append(cell.leader(), b"new")
    cell.until(lambda: outcomes)
    return cell, member, conflict


def test_one_damaged_member_and_one_crash_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """n1 leads and has ten entries acknowledged with n0's help, without n0 hearing that they are
    committed, and five more on its own disk only. All stop; its log from the third of the ten on turns
    to zeros. n0 is elected, and the conflict lies in the middle of what n1 lost. Then n0 dies."""
    cell = Cell(tmp_path)
    old = cell.leader()
    damaged = old.replica.member_id
    other, lagging = (m for m in cell.nodes if m != damaged)
    outcomes = append(old, *[b"base"] * 5)
    cell.until(lambda: outcomes and are_equal(cell))
    before = old.committed_index
    cell.drops = lambda sender, to, message: (
        lagging in (sender, to) or (old.committed_index > before and {sender, to} == {damaged, other})
    )
    bodies = [b"acknowledged %d" % i for i in range(10)]
    outcomes = append(old, *bodies)
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], AppendReceipt)
    append(old, *[b"never acknowledged"] * 5)
    cell.step()
    cell.step()
    first = old.store.range_of(before + 3, before + 4, 1).position
    stop = old.store.end.position
    cell.close()
    overwrite(tmp_path, damaged, first, bytes(stop - first))

    cell = Cell(tmp_path)
    node = cell.nodes[damaged]
    assert [(each.first_index, each.stop_index) for each in node.store.damaged] == [
        (before + 3, before + 16)
    ]
    has_cut = False

    def drops(sender: str, to: str, message: object) -> bool:
        """The link from the new leader to the third one is slow, and the leader dies at the cut."""
        nonlocal has_cut
        has_cut = has_cut or node.store.end.index < before + 15
        is_slow = (sender, to) == (other, lagging) and isinstance(message, PushEntryRequest)
        return is_slow or (has_cut and other in (sender, to))

    cell.drops = drops
    cell.until(lambda: has_cut)
    assert node.store.end.index >= before + 10, "every acknowledged entry is still counted"
    cell.kill(other)
    cell.drops = lambda sender, to, message: False
    cell.until(
        lambda: any(n.raft.role is Role.LEADER for n in cell.nodes.values()) or cell.now_ms > 10_000
    )
    cell.start(other)
    outcomes = append(cell.leader(), b"on")
    cell.until(lambda: outcomes and is_repaired(cell))
    for each in cell.nodes.values():
        assert [body for body in bodies_of(each) if body.startswith(b"acknowledged")] == bodies
    cell.close()


def test_a_conflict_behind_a_range_that_is_committed_in_part(tmp_path: Path) -> None:
    cell, member, conflict = old_leader_with_a_tail_of_its_own(tmp_path)
    twin = next(iter(cell.nodes.values())).store
    overwrite(tmp_path, member, twin.range_of(15, 16, 1).position, bytes(2000))
    node = cell.start(member)
    (damaged,) = node.store.damaged
    assert damaged.first_index == 15 < conflict < damaged.stop_index
    cell.until(lambda: is_repaired(cell))
    assert len({tuple(bodies_of(each)) for each in cell.nodes.values()}) == 1
    cell.close()


@pytest.mark.parametrize("offset", [0, 4, 8, 16, 24, 36, 40, 44, 50])
def test_a_byte_changed_in_the_entry_before_a_cut_is_noticed_and_repaired(
    tmp_path: Path, offset: int
) -> None:
    """The log's new end is taken from that entry; nothing has looked at it since the start."""
    cell, member, conflict = old_leader_with_a_tail_of_its_own(tmp_path)
    cell.cut_off = {member}
    cell.start(member)  # all of its index counts as synced from now on, so no start looks there again
    cell.kill(member)
    cell.cut_off = set()
    twin = next(iter(cell.nodes.values())).store
    overwrite(tmp_path, member, twin.range_of(conflict - 1, conflict, 1).position + offset, b"?")
    cell.start(member)
    cell.until(lambda: is_repaired(cell))
    assert len({tuple(bodies_of(each)) for each in cell.nodes.values()}) == 1
    cell.close()


@pytest.mark.parametrize("meanwhile", ["a look that is not close", "a cut"])
def test_only_a_close_look_at_the_log_as_it_is_allows_a_cut(tmp_path: Path, meanwhile: str) -> None:
    """A changed body, which only a close look notices, in the entry before the cut. The cut comes behind
    a push that waits for a look at the same entry, or the log was cut while that was looked at."""
    cell, member, conflict = old_leader_with_a_tail_of_its_own(tmp_path)
    cell.cut_off = {member}
    cell.start(member)  # all of its index counts as synced from now on, so no start looks there again
    cell.kill(member)
    cell.cut_off = set()
    twin = next(iter(cell.nodes.values())).store
    overwrite(tmp_path, member, twin.range_of(conflict - 1, conflict, 1).position + 50, b"?")
    node, happened = cell.start(member), []

    def arrives(sender: str, to: str, message: object) -> bool:
        is_push = to == member and isinstance(message, PushEntryRequest)
        if is_push and node.raft.pushes.conflict_of(message) is not None:
            assert node.raft.pushes.last_shared_index(message) == conflict - 1
            if meanwhile == "a look that is not close" and not happened:
                happened.append(node.store.point_in_memory(conflict - 1))
                node.receive(repeated_push(cell.nodes[sender], message.term, conflict - 2, conflict))
        return False

    def was_read(result: object) -> None:
        if meanwhile == "a cut" and isinstance(result, _Look) and result.is_close and not happened:
            happened.append(None)
            node.store._ends.truncations += 1  # type: ignore[attr-defined]

    cell.drops = arrives
    cell.hosts[member].on_read = was_read
    cell.until(lambda: is_repaired(cell))
    assert happened == [None]
    assert len({tuple(bodies_of(each)) for each in cell.nodes.values()}) == 1
    cell.close()


def repeated_push(leader: LedgerNode, term: int, first_index: int, stop_index: int) -> PushEntryRequest:
    """Of a leader of `term`."""
    _, batch = read_sound(leader.store, first_index, stop_index, 1 << 20)
    assert batch.count == stop_index - first_index
    before = leader.store.point_on_disk(first_index - 1)
    return PushEntryRequest(
        sender=leader.replica,
        term=term,
        push=PushType.APPEND,
        committed_index=-1,
        previous=before.entry_id,
        first_index=first_index,
        count=batch.count,
        term_runs=batch.term_runs(),
        previous_chain=before.chain,
        cold=True,
        batch=batch,
    )
