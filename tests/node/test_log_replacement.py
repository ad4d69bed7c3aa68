"""A member whose log ends before the leader's begins takes over the start, and entries from there."""

from __future__ import annotations

from pathlib import Path

from tests.node.cell import Cell
from tests.node.test_log_drops import SEGMENTS, border, fill


def test_a_follower_below_the_begin_gets_the_start_and_what_follows(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    fill(cell, 10)
    lagging = cell.followers()[0].replica.member_id
    cell.cut_off = {lagging}
    leader = fill(cell)
    assert leader.drop_before(border(leader))
    cell.until(lambda: not leader.is_dropping, "the drop")
    old = cell.nodes[lagging]
    cell.cut_off = set()
    cell.until(lambda: cell.nodes[lagging] is not old, "another node")
    node = cell.nodes[lagging]
    assert node.store.begin == leader.store.begin
    cell.until(lambda: node.durable_committed_index == leader.store.end.index, "the rest")
    assert node.store.end == leader.store.end
    fill(cell, 10)
    cell.close()
