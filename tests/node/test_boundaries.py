"""The states in front of segments: saved once they are committed and on the own disk; a start goes on
from the newest of them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.consensus.ready import Role
from quorumlog.entry import EntryKind
from quorumlog.log_state.control_entries import LEVEL, TimeMark
from quorumlog.log_state.log_state import EMPTY, LogState, decode_state
from quorumlog.node import LedgerNode
from quorumlog.node.housekeeping import PAUSE_MS
from quorumlog.node.log_states import LogStateReading
from quorumlog.store.disk import OsDisk
from quorumlog.store.log_points import LogStart
from quorumlog.store.state_files import save_start, save_state
from tests.node.cell import Cell
from tests.node.test_log_state_keeper import append, state_of
from tests.node.test_log_state_keeper import whole as committed_everywhere
from tests.store.stopping_disk import StoppingDisk

BODY = bytes(4000)
"""Sixteen and a bit in a segment of 64 KiB."""


def whole(cell: Cell) -> None:
    """Committed everywhere, and saved where it is a boundary."""
    committed_everywhere(cell)
    cell.step(PAUSE_MS)


def fill(cell: Cell, segments: int, mark: int = 0) -> None:
    """Until so many segments more have begun; a time mark in front of each append, if one is given."""
    end = cell.leader().store.end.position // 65536 + segments
    while cell.leader().store.end.position // 65536 < end:
        if mark:
            mark += 1
            cell.leader().propose_control(TimeMark(mark))
        append(cell, BODY)
    whole(cell)


def saved(node: LedgerNode) -> list[LogStart]:
    return list(node.store.boundaries.saved())


def times(node: LedgerNode) -> list[int | None]:
    states = [decode_state(each.record) for each in saved(node)]
    return [state.time_ms for state in states if isinstance(state, LogState)]


def restarted(cell: Cell, name: str, *, clean: bool = False) -> LedgerNode:
    if clean:
        cell.nodes.pop(name).close(clean=True)
        del cell.hosts[name]
    else:
        cell.kill(name)
    node = cell.start(name)
    whole(cell)
    return node


@pytest.fixture
def cell(tmp_path: Path) -> Any:
    cell = Cell(tmp_path)
    cell.until(lambda: cell.leader().committed_index >= 0, "the first commit")
    yield cell
    cell.close()


def test_every_member_saves_the_state_at_each_boundary(cell: Cell) -> None:
    fill(cell, 3, mark=100)
    states = [saved(node) for node in cell.nodes.values()]
    assert len(states[0]) == 3 and states[0] == states[1] == states[2]
    assert [each.point for each in reversed(states[0])] == cell.leader().store.boundaries.above(-1)
    # The mark that stands in front of the boundary, not one behind it.
    node = cell.leader()
    for each, time_ms in zip(saved(node), times(node), strict=True):
        batches = node.store.control_batches(0, each.point.index + 1)
        marks = [np.count_nonzero(batch.headers()["magic"] == EntryKind.TIME) for batch in batches]
        assert time_ms == 100 + sum(marks)


def test_the_state_within_a_batch_that_runs_over_a_boundary(tmp_path: Path) -> None:
    cell = Cell(tmp_path, 1)
    cell.leader().propose_control(TimeMark(7))
    append(cell, *[BODY] * 40)  # one batch: three segments
    cell.leader().propose_control(TimeMark(8))
    whole(cell)
    assert times(cell.leader()) == [7, 7]
    assert [
        each.point for each in reversed(saved(cell.leader()))
    ] == cell.leader().store.boundaries.above(-1)
    cell.close()


def test_nothing_is_saved_of_what_is_not_committed(cell: Cell) -> None:
    old = cell.leader()
    cell.cut_off = {old.replica.member_id}
    for number in range(20):
        old.propose_control(TimeMark(number))
        old.append(EntryBatch.from_bodies([BODY]), 0, lambda outcome: None)
        cell.step(0)
    assert old.store.boundaries.newest(old.store.durable.index) is not None, "durable, and not committed"
    assert saved(old) == []
    new = cell.until(lambda: next((n for n in [cell.leader()] if n is not old), None))
    assert new is not old
    cell.cut_off = set()
    fill(cell, 1)
    assert saved(old) == saved(new) != []


def test_nothing_is_saved_where_the_entry_behind_is_not_committed(cell: Cell) -> None:
    """It decides where the segment begins: another leader's in its place may be short enough for the one
    before, and who began at that boundary would take none of that log's entries."""
    old = cell.leader()
    while old.store.end.position < 40_000:
        append(cell, BODY)
    whole(cell)
    index = old.committed_index
    cell.cut_off = {old.replica.member_id}
    old.append(EntryBatch.from_bodies([bytes(60_000)]), 0, lambda outcome: None)
    cell.step(PAUSE_MS)
    cell.step(PAUSE_MS)
    point = old.store.boundaries.newest(old.store.durable.index - 1)
    assert point is not None and point.index == index == old.committed_index
    assert saved(old) == []
    new = cell.until(lambda: next((n for n in [cell.leader()] if n is not old), None))
    cell.cut_off = set()
    append(cell, b"short")
    whole(cell)
    assert new.store.end.position < 65536, "in the first segment, on every member"
    assert all(node.store.end == new.store.end for node in cell.nodes.values())


def test_nothing_is_saved_before_the_own_disk_has_the_entry_behind_the_boundary(cell: Cell) -> None:
    follower = cell.followers()[0]
    cell.hold_flush = {follower.replica.member_id}
    while follower.store.end.position < 65536:
        append(cell, BODY)
        cell.step()
    cell.step(PAUSE_MS)
    assert follower.committed_index > 14 and saved(follower) == []
    assert saved(cell.leader())
    cell.hold_flush = set()
    whole(cell)
    assert saved(follower) == saved(cell.leader())


def test_only_what_follows_the_newest_saved_state_is_read(cell: Cell, tmp_path: Path) -> None:
    fill(cell, 3, mark=100)
    leader = cell.leader()
    begin = saved(leader)[0].point.position
    for base in range(0, begin, 65536):  # all before is gone, but for the last entry
        with (tmp_path / leader.replica.member_id / "data" / f"{base:020}").open("r+b") as segment:
            segment.write(bytes(min(65536, begin - 8192 - base)))
    reading = LogStateReading(leader.store)
    while not reading.is_done:
        reading.read_on(leader.committed_index)
    states, _ = reading.finished()
    assert states.appended == state_of(leader)


def test_a_start_of_the_process_begins_at_the_newest_saved_state(cell: Cell) -> None:
    fill(cell, 3, mark=100)
    expected = state_of(cell.leader())
    node = restarted(cell, cell.followers()[0].replica.member_id)
    assert state_of(node) == expected
    assert node.log_state.states is not None
    assert node.log_state.states.committed == expected


def test_a_saved_state_shows_that_what_lies_before_it_is_committed(cell: Cell) -> None:
    fill(cell, 2, mark=100)
    for name in list(cell.nodes):
        cell.kill(name)
    node = cell.start("n0")  # alone, and without a checkpoint
    assert node.committed_index == saved(node)[0].point.index > 0


def test_where_all_states_are_lost_the_log_is_read_and_they_are_saved_again(
    cell: Cell, tmp_path: Path
) -> None:
    fill(cell, 3, mark=100)
    before = saved(cell.nodes["n0"])
    expected = state_of(cell.leader())
    cell.kill("n0")
    shutil.rmtree(tmp_path / "n0" / "states")
    node = cell.start("n0")
    whole(cell)
    cell.until(lambda: len(saved(node)) == 3)
    assert saved(node) == before
    assert state_of(node) == expected


def test_a_log_without_control_entries_has_states_at_its_boundaries_too(
    cell: Cell, tmp_path: Path
) -> None:
    fill(cell, 3)
    assert {each.record for each in saved(cell.leader())} == {EMPTY.encode()}
    assert len(saved(cell.leader())) == 3
    cell.kill("n0")
    shutil.rmtree(tmp_path / "n0" / "states")  # as an earlier release has left it
    node = cell.start("n0")
    cell.until(lambda: len(saved(node)) == 3)
    assert state_of(node) == EMPTY
    assert not node.directory.may_hold_control_entries


def test_a_log_with_a_start_goes_on_from_its_record(cell: Cell, tmp_path: Path) -> None:
    fill(cell, 2, mark=100)
    mark = TimeMark(10**12)
    cell.leader().propose_control(mark)
    fill(cell, 1)
    expected = state_of(cell.leader())
    start = saved(cell.leader())[0]
    for name in list(cell.nodes):
        cell.nodes.pop(name).close(clean=True)
        del cell.hosts[name]
        save_start(OsDisk(), str(tmp_path / name), start)
    for name in ("n0", "n1", "n2"):
        cell.start(name)
    whole(cell)
    for node in cell.nodes.values():
        assert node.store.begin == start.point
        assert state_of(node) == expected
        assert state_of(node).time_ms == mark.time_ms


def test_a_start_whose_record_cannot_be_read_keeps_it_from_leading(tmp_path: Path) -> None:
    cell = Cell(tmp_path, 1)
    fill(cell, 1, mark=100)
    start = saved(cell.leader())[0]
    cell.nodes.pop("n0").close(clean=True)
    del cell.hosts["n0"]
    record = msgspec.structs.replace(EMPTY, level=LEVEL + 1).encode()
    save_start(OsDisk(), str(tmp_path / "n0"), msgspec.structs.replace(start, record=record))
    node = cell.start("n0")
    for _ in range(200):
        cell.step()
        assert node.raft.role is not Role.LEADER
    assert any(f"the log has entries of level {LEVEL + 1}" in each for each in node.problems())
    cell.close()


def test_a_saved_state_that_cannot_be_read_is_passed_over(cell: Cell, tmp_path: Path) -> None:
    fill(cell, 2, mark=100)
    newest, older = saved(cell.nodes["n0"])
    expected = state_of(cell.leader())
    cell.kill("n0")
    record = msgspec.structs.replace(EMPTY, level=LEVEL + 1).encode()
    save_state(OsDisk(), str(tmp_path / "n0"), msgspec.structs.replace(newest, record=record))
    node = cell.start("n0")
    whole(cell)
    assert state_of(node) == expected
    cell.until(lambda: saved(node) == [newest, older])


def test_a_full_disk_leaves_it_for_later(tmp_path: Path) -> None:
    full = [True]

    def refuse(what: str, path: str) -> OSError | None:
        is_state = what == "create" and "/states/" in path
        return OSError(errno.ENOSPC, "No space left on device", path) if is_state and full[0] else None

    disk = StoppingDisk(refuse=refuse)
    cell = Cell(tmp_path, disks={"n0": disk})
    fill(cell, 2, mark=100)
    tries = len([step for step in disk.steps if "states" in str(step)])
    fill(cell, 1)
    node = cell.nodes["n0"]
    assert saved(node) == [] and node.committed_index == cell.leader().committed_index
    assert len([step for step in disk.steps if "states" in str(step)]) - tries < 3, "not at each turn"
    full[0] = False
    cell.until(lambda: len(saved(node)) == 3)
    assert saved(node) == saved(cell.nodes["n1"])
    cell.close()


def test_segments_that_go_while_the_log_is_read_are_not_waited_for(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.node.log_states.CHUNK_BYTES", 12_000)
    fill(cell, 3, mark=100)
    expected = state_of(cell.leader())
    name = cell.followers()[0].replica.member_id
    cell.nodes.pop(name).close(clean=True)
    del cell.hosts[name]
    shutil.rmtree(cell._path / name / "states")
    node = cell.start(name)
    node.advance(cell.now_ms)
    node.turn()
    start = saved(cell.leader())[0]
    node.raft.drop_before(start.point.entry_id)
    node.directory.save_start(start)
    node.store.drop_before(start)()
    whole(cell)
    assert state_of(node) == expected
