"""How far readers are behind: data counts, and what leaders write themselves does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.log_state.control_entries import TimeMark
from quorumlog.node import reading
from tests.node.cell import Cell


def lags(cell: Cell, positions: list[int]) -> list[int]:
    leader = cell.leader()
    counted: list[list[int]] = []
    leader.lags.count(positions, leader.committed_index + 1, counted.append)
    cell.until(lambda: counted)
    return counted[0]


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    """A no-op, 3 data, 2 marks, 4 data, a mark."""
    cell = Cell(tmp_path)
    leader = cell.leader()
    for count, marks in ((3, (5, 6)), (4, (7,))):
        done: list[object] = []
        leader.append(EntryBatch.from_bodies([b"x"] * count), 0, done.append)
        cell.until(lambda done=done: done)  # type: ignore[misc]
        for time_ms in marks:
            leader.propose_control(TimeMark(time_ms))
            cell.step()
    cell.until(lambda: leader.committed_index == 10)
    return cell


def test_data_counts_and_nothing_else(cell: Cell) -> None:
    assert lags(cell, [0, 1, 2, 4, 6, 9, 10, 11, 40]) == [7, 7, 6, 4, 4, 1, 0, 0, 0]
    assert lags(cell, []) == []
    cell.close()


def test_of_what_lies_far_back_all_counts(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "COUNTED_ENTRIES", 3)
    assert lags(cell, [0, 8]) == [10, 2]
    cell.close()
