"""A log with as many sessions as it remembers: its state goes wherever a small one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.errors import TooManyProducers
from quorumlog.log_state.control_entries import MOST_PRODUCERS
from quorumlog.log_state.log_state import LogState, decode_state
from quorumlog.log_state.producers import Producers
from quorumlog.store.disk import OsDisk
from quorumlog.store.log_points import LogStart
from quorumlog.store.state_files import (
    BackupRecord,
    load_backup,
    load_start,
    load_state,
    save_backup,
    save_state,
)
from tests.log_state.many_sessions import many_sessions
from tests.node.cell import Cell
from tests.node.test_log_drops import SEGMENTS, boundary, fill
from tests.node.test_producer_sessions import TOKENS, ask_to_connect


@pytest.fixture(scope="module")
def state() -> LogState:
    return many_sessions()


@pytest.fixture(scope="module")
def record(state: LogState) -> bytes:
    return state.encode()


def test_their_record_is_compressed_and_says_the_same(state: LogState, record: bytes) -> None:
    assert len(record) < 10_000_000
    assert decode_state(record) == state


def test_a_state_at_a_boundary_and_a_backup_hold_them(tmp_path: Path, record: bytes) -> None:
    cell = Cell(tmp_path / "cell", storage=SEGMENTS)
    start = LogStart(boundary(fill(cell)).point, record)
    cell.close()
    save_state(OsDisk(), str(tmp_path), start)
    assert load_state(OsDisk(), str(tmp_path), start.point.position) == start
    backup = BackupRecord(group="g", cluster_id="c", cut=start.point, record=record)
    save_backup(OsDisk(), str(tmp_path), backup)
    assert load_backup(OsDisk(), str(tmp_path)) == backup


def test_where_all_have_names_one_more_is_refused_and_the_others_go_on(
    tmp_path: Path, state: LogState
) -> None:
    cell = Cell(tmp_path, 1)
    leader = cell.leader()
    _, items = state.producers.record()
    named = [(f"p{number}", item) for number, (_, item) in enumerate(items)]
    producers = Producers.of_record(None, named)
    assert producers.count == MOST_PRODUCERS
    states = leader.log_state.states
    assert states is not None
    states.committed = states.appended = LogState(level=3, producers=producers)
    answers = ask_to_connect(leader, "one more")
    (refused,) = cell.until(lambda: answers)
    assert isinstance(refused, TooManyProducers)
    assert "producers forget" in str(refused)
    session = producers.get("p7")
    assert session is not None
    fenced = ask_to_connect(leader, "p7", TOKENS[1], session.epoch)
    (again,) = cell.until(lambda: fenced)
    assert again.last_sequence == session.last_sequence
    gone: list[object] = []
    leader.sessions.forget("p7", again.epoch, leader.deadline_ms(0), gone.append, None)
    cell.until(lambda: gone)
    anew = ask_to_connect(leader, "one more")
    (connected,) = cell.until(lambda: anew)
    assert connected.last_sequence == -1
    assert leader.sessions.count == MOST_PRODUCERS
    cell.close()


def test_a_member_that_was_away_gets_them_with_the_start(tmp_path: Path, record: bytes) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    fill(cell, 10)
    lagging = cell.followers()[0].replica.member_id
    cell.cut_off = {lagging}
    leader = fill(cell)
    assert leader.drops.begin(LogStart(boundary(leader).point, record))
    cell.until(lambda: not leader.drops.is_under_way, "the drop")
    old = cell.nodes[lagging]
    cell.cut_off = set()
    cell.until(lambda: cell.nodes[lagging] is not old, "another node")
    node = cell.nodes[lagging]
    cell.until(lambda: node.durable_committed_index == leader.store.end.index, "the rest")
    assert node.sessions.count == MOST_PRODUCERS
    found = load_start(OsDisk(), node.directory.path)
    assert found is not None
    assert found.record == record
    cell.close()
