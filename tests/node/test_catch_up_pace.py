"""A follower that comes back far behind is fed from files: at full speed while nobody appends, and at a
pace that leaves the machine to the others while somebody does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.config import KIB, ConsensusConfig
from quorumlog.consensus.messages import PushEntryRequest
from quorumlog.consensus.ready import Role
from quorumlog.entry import AppendReceipt
from quorumlog.node.sending import BUSY_MS, SAVED_PIECES
from tests.node.cell import STEP_MS, Cell

LEAST = 20 * KIB
"""Bytes a second."""
PIECE = 4 * KIB
BEHIND = 600
BODY = b"x" * 1000


def append(cell: Cell, count: int) -> list[Any]:
    outcomes: list[Any] = []
    cell.leader().append(EntryBatch.from_bodies([BODY] * count), 0, outcomes.append)
    return outcomes


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    """n2 lacks 600 entries, and the two others, who were restarted, hold none of them in memory."""
    before = Cell(tmp_path)
    before.leader()
    before.until(lambda: before.leader().committed_index >= 0)
    before.kill("n2")
    for _ in range(BEHIND // 20):
        outcomes = append(before, 20)
        before.until(lambda outcomes=outcomes: outcomes)
    before.close()
    cell = Cell(
        tmp_path,
        consensus=ConsensusConfig(push_limit_bytes=PIECE),
        catch_up_bytes_per_second=LEAST,
    )
    cell.cut_off = {"n2"}
    cell.until(lambda: cell.leader().committed_index >= BEHIND, "a leader without n2")
    yield cell
    cell.close()


def come_back(cell: Cell) -> list[tuple[float, int]]:
    """Connect n2; (time, bytes) of each piece from a file that it gets from now on."""
    pieces: list[tuple[float, int]] = []

    def watch(sender: str, to: str, message: Any) -> bool:
        if isinstance(message, PushEntryRequest) and message.cold and to == "n2":
            pieces.append((cell.now_ms, message.batch.total_bytes))
        return False

    cell.drops = watch
    cell.cut_off = set()
    return pieces


def fed_while_appending(cell: Cell) -> list[tuple[float, int]]:
    """As `come_back`; it has got its first pieces, and appends come in."""
    pieces = come_back(cell)
    while not pieces:
        append(cell, 1)
        cell.step()
    pieces.clear()
    return pieces


def is_level(cell: Cell) -> bool:
    return cell.nodes["n2"].raft.log.durable_index == cell.leader().store.end.index


def test_while_appends_come_in_it_gets_twice_as_much_and_the_least(cell: Cell) -> None:
    pieces = fed_while_appending(cell)
    began_ms, began_position = cell.now_ms, cell.leader().store.end.position

    def allowed_bytes() -> float:
        appended = cell.leader().store.end.position - began_position
        return 2 * appended + LEAST * (cell.now_ms - began_ms) / 1000

    acknowledged = 0
    while not is_level(cell):
        outcomes = append(cell, 1)
        cell.step()
        acknowledged += len(outcomes)
        assert all(isinstance(o, AppendReceipt) for o in outcomes)
        assert sum(size for _, size in pieces) <= allowed_bytes() + (SAVED_PIECES + 1) * PIECE
    assert acknowledged > 20, "it was level before anything could be seen"
    assert sum(size for _, size in pieces) > 0.7 * allowed_bytes(), "fed more slowly than it may be"


def test_a_leader_whose_turns_are_slow_keeps_the_pace_too(cell: Cell) -> None:
    pieces = fed_while_appending(cell)
    began_ms, began_position = cell.now_ms, cell.leader().store.end.position
    told = [cell.leader().feeding(cell.nodes["n2"].replica)]
    for _ in range(20):
        append(cell, 1)
        cell.step(BUSY_MS + 10)
        told.append(cell.leader().feeding(cell.nodes["n2"].replica))
    left = [each.behind_bytes for each in told if each is not None]
    assert len(left) == len(told) and left[-1] < left[0], "it is told how far it is"
    appended = cell.leader().store.end.position - began_position
    allowed_bytes = 2 * appended + LEAST * (cell.now_ms - began_ms) / 1000
    assert not is_level(cell)
    assert sum(size for _, size in pieces) <= allowed_bytes + (SAVED_PIECES + 1) * PIECE


def test_what_a_new_leader_has_followed_is_no_load_of_its_own(cell: Cell) -> None:
    outcomes = append(cell, BEHIND // 2)
    cell.until(lambda: outcomes)
    old = cell.leader()
    follower = next(m for m in cell.nodes if m not in ("n2", old.replica.member_id))
    old.transfer(follower, lambda outcome: None)
    cell.until(lambda: cell.nodes[follower].raft.role is Role.LEADER)
    began_ms, began_position = cell.now_ms, cell.leader().store.end.position
    pieces = come_back(cell)
    while not pieces:
        append(cell, 1)
        cell.step()
    for _ in range(10):
        append(cell, 1)
        cell.step()
    appended = cell.leader().store.end.position - began_position
    allowed_bytes = 2 * appended + LEAST * (cell.now_ms - began_ms) / 1000
    assert cell.leader() is cell.nodes[follower]
    assert sum(size for _, size in pieces) <= allowed_bytes + (SAVED_PIECES + 1) * PIECE


def test_it_gains_also_where_a_turn_appends_more_than_is_saved_up(cell: Cell) -> None:
    pieces = fed_while_appending(cell)
    began_position = cell.leader().store.end.position
    for _ in range(3):
        append(cell, 2 * SAVED_PIECES * PIECE // len(BODY))
        cell.step()
    appended = cell.leader().store.end.position - began_position
    assert sum(size for _, size in pieces) > 1.5 * appended


def test_while_nobody_appends_it_gets_all_that_it_can_take(cell: Cell) -> None:
    pieces = come_back(cell)
    cell.until(lambda: pieces)
    cell.until(lambda: is_level(cell))
    assert sum(size for _, size in pieces) > BEHIND * len(BODY)
    assert pieces[-1][0] - pieces[0][0] <= 2 * STEP_MS


def test_it_is_fed_at_full_speed_again_soon_after_the_last_append(cell: Cell) -> None:
    pieces = come_back(cell)
    while len(pieces) < 3:
        append(cell, 1)
        cell.step()
    assert not is_level(cell)
    stopped_ms = cell.now_ms
    cell.until(lambda: is_level(cell))
    assert cell.now_ms - stopped_ms < 200


def test_a_piece_that_waits_for_its_turn_is_not_sent_by_a_leader_of_the_past(cell: Cell) -> None:
    fed_while_appending(cell)
    old = cell.leader()
    name = old.replica.member_id
    sent_late: list[Any] = []

    def watch(envelope: Any) -> None:
        if isinstance(envelope.message, PushEntryRequest) and old.raft.role is not Role.LEADER:
            sent_late.append(envelope.message)

    cell.hosts[name].on_sent = watch
    cell.cut_off = {name}
    waits = False
    next_append_ms = cell.now_ms
    while old.raft.role is Role.LEADER:
        waits = bool(old._pushes.waiting)
        if cell.now_ms >= next_append_ms:  # while it is busy, a piece waits
            old.append(EntryBatch.from_bodies([BODY] * 5), 0, lambda outcome: None)
            next_append_ms = cell.now_ms + BUSY_MS - 2 * STEP_MS
        cell.step()
    assert waits, "nothing was waiting as it stepped down"
    new = cell.leader()
    assert new is not old
    cell.cut_off = set()
    outcomes = append(cell, 1)
    cell.until(lambda: outcomes and is_level(cell) and old.raft.leader == new.replica)
    assert isinstance(outcomes[0], AppendReceipt)
    assert sent_late == []
