"""What a member's log leads to: on every member the same, undone by cuts, read again at a start."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.consensus.ready import Role
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import DiskFull, LevelNotReported, NotLeader, StoreFailure
from quorumlog.log_state.control_entries import (
    Hold,
    Keep,
    LevelReached,
    ReaderPosition,
    ReaderPositions,
    TimeMark,
    encode_body,
)
from quorumlog.log_state.log_state import EMPTY, LogState
from quorumlog.node import LedgerNode
from quorumlog.store import member_directory
from quorumlog.store.segments import INDEX_UNIT_BYTES
from tests.node.cell import Cell

READER = ReaderPositions((ReaderPosition("r", 1, Hold.READER),))


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = Cell(tmp_path)
    cell.until(lambda: cell.leader().committed_index >= 0, "the first commit")
    yield cell
    cell.close()


def state_of(node: LedgerNode) -> LogState:
    assert node.log_state.states is not None
    assert isinstance(node.log_state.states.appended, LogState)
    return node.log_state.states.appended


def append(cell: Cell, *bodies: bytes) -> int:
    outcomes: list[Any] = []
    cell.leader().append(EntryBatch.from_bodies(list(bodies)), 0, outcomes.append)
    cell.until(lambda: outcomes)
    return int(outcomes[0].last_index)


def whole(cell: Cell) -> None:
    def is_whole() -> bool:
        end = cell.leader().raft.ledger_end
        nodes = cell.nodes.values()
        return all((n.raft.ledger_end, n.committed_index) == (end, end.index) for n in nodes)

    cell.step()
    cell.until(is_whole)


def flip(path: Path, what: bytes) -> None:
    for segment in sorted((path / "data").iterdir()):
        data = bytearray(segment.read_bytes())
        at = data.find(what)
        if at >= 0:
            data[at + len(what) - 1] ^= 1
            segment.write_bytes(data)
            return
    raise AssertionError(f"{what!r} is not in {path}")


def test_every_member_has_the_state_as_soon_as_it_has_the_entry(cell: Cell) -> None:
    leader = cell.leader()
    cell.hold_flush = set(cell.nodes)
    entry = leader.propose_control(TimeMark(1_000))
    cell.step()
    for node in cell.nodes.values():
        states = node.log_state.states
        assert states is not None
        assert state_of(node) == LogState(level=1, time_ms=1_000, time_index=entry.index)
        assert states.committed == EMPTY, "nothing is committed: no disk has it"
    cell.hold_flush = set()
    whole(cell)
    assert all(n.log_state.states.committed == state_of(leader) for n in cell.nodes.values())  # type: ignore[union-attr]


def test_data_goes_on_beside_control_entries_and_expected_last_does_not_see_them(cell: Cell) -> None:
    last = append(cell, b"a")
    cell.leader().propose_control(READER)
    cell.leader().propose_control(Keep(1))
    outcomes: list[Any] = []
    cell.leader().append(EntryBatch.from_bodies([b"b"]), 0, outcomes.append, expected_last=last)
    cell.until(lambda: outcomes)
    assert outcomes[0].first_index == last + 3


def test_only_a_leader_proposes_and_only_what_every_member_knows(cell: Cell) -> None:
    leader, follower = cell.leader(), cell.followers()[0]
    end = leader.store.end
    with pytest.raises(NotLeader):
        follower.propose_control(TimeMark(1))
    cell.hosts[leader.replica.member_id].level = 0
    with pytest.raises(
        LevelNotReported,
        match=r"TIME entries need level 1 .* n2 has not reported .* \(quorumlog member remove n2\)",
    ):
        leader.propose_control(TimeMark(1))
    cell.step()
    assert leader.store.end == end
    assert not leader.directory.may_hold_control_entries


def test_the_directory_says_so_before_the_first_control_entry_is_in_it(
    cell: Cell, tmp_path: Path
) -> None:
    append(cell, b"a")
    assert b'"version":1' in (tmp_path / "n0" / "member").read_bytes()
    cell.leader().propose_control(TimeMark(1))
    whole(cell)
    for name in cell.nodes:
        assert b'"version":2' in (tmp_path / name / "member").read_bytes()


def test_without_space_to_say_so_nothing_is_written(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: Any) -> None:
        raise StoreFailure("no") from OSError(errno.ENOSPC, "no space")

    leader, end = cell.leader(), cell.leader().store.end
    with monkeypatch.context() as patch:
        patch.setattr(member_directory, "save_member", save)
        with pytest.raises(DiskFull):
            leader.propose_control(TimeMark(1))
        cell.step()
        assert leader.store.end == end
    leader.propose_control(TimeMark(1))
    whole(cell)


def test_a_cut_undoes_what_was_not_committed(cell: Cell) -> None:
    cell.leader().propose_control(TimeMark(5))
    whole(cell)
    old = cell.leader()
    cell.cut_off = {old.replica.member_id}
    old.propose_control(TimeMark(50))
    old.propose_control(READER)
    cell.step()
    assert state_of(old).time_ms == 50
    new = cell.until(lambda: next((n for n in [cell.leader()] if n is not old), None))
    new.propose_control(TimeMark(20))
    cell.cut_off = set()
    whole(cell)
    assert {state_of(node) for node in cell.nodes.values()} == {state_of(new)}
    assert state_of(old).time_ms == 20
    assert state_of(old).readers == ()


def test_a_start_reads_the_state_from_the_log(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumlog.node.log_states.CHUNK_BYTES", 200)
    for number in range(10):
        append(cell, b"%d" % number)
        cell.leader().propose_control(TimeMark(number))
        cell.leader().propose_control(READER if number % 2 else Keep(number))
    whole(cell)
    expected = state_of(cell.leader())
    for name in list(cell.nodes):
        cell.kill(name)
    for name in ("n0", "n1", "n2"):
        assert cell.start(name).log_state.states is None
    whole(cell)
    for node in cell.nodes.values():
        assert state_of(node) == expected
        assert not [p for p in node.problems() if "state" in p]


def test_an_empty_log_is_not_read_at_a_start(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    assert all(state_of(node) == EMPTY for node in cell.nodes.values())
    assert all(not host.reads for host in cell.hosts.values())
    cell.close()


def test_an_older_file_member_hides_no_control_entry(cell: Cell, tmp_path: Path) -> None:
    append(cell, b"a")
    older = (tmp_path / "n0" / "member").read_bytes()
    assert b'"version":1' in older
    cell.leader().propose_control(READER)
    whole(cell)
    expected = state_of(cell.leader())
    cell.kill("n0")
    (tmp_path / "n0" / "member").write_bytes(older)
    node = cell.start("n0")
    whole(cell)
    assert state_of(node) == expected
    assert b'"version":2' in (tmp_path / "n0" / "member").read_bytes()
    cell.leader().propose_control(TimeMark(1))
    whole(cell)


def test_what_is_written_and_cut_while_the_log_is_read_counts(cell: Cell) -> None:
    cell.leader().propose_control(TimeMark(1))
    whole(cell)
    name = cell.followers()[0].replica.member_id
    cell.kill(name)
    node = cell.start(name)
    node.advance(cell.now_ms)
    node.turn()
    assert len(cell.hosts[name].reads) == 1, "the reading has begun"
    batch = EntryBatch.control(EntryKind.TIME, encode_body(TimeMark(7)))
    end = node.store.end
    batch.stamp(end.index + 1, end.term, node.store.plan(batch.sizes), end.chain)
    node.store.append(batch)
    node.log_state.append(batch)
    reads = cell.hosts[name].reads
    work, done = reads.pop()
    done(work())
    assert state_of(node).time_ms == 7
    node.log_state.truncate_from(end.index + 1)
    assert state_of(node).time_ms == 1


def test_who_lost_a_control_entry_does_not_lead_until_it_is_repaired(cell: Cell, tmp_path: Path) -> None:
    mark = TimeMark(123456789012)
    cell.leader().propose_control(mark)
    append(cell, b"behind")
    whole(cell)
    expected = state_of(cell.leader())
    names = list(cell.nodes)
    for name in names:
        cell.kill(name)
    flip(tmp_path / "n0", encode_body(mark))
    cell.start("n0")
    for _ in range(50):
        cell.step()
    cell.start("n1")
    cell.start("n2")
    seen = []
    cell.on_turned = lambda name: seen.append(
        cell.nodes["n0"].raft.role is Role.LEADER and cell.nodes["n0"].log_state.states is None
    )
    cell.until(lambda: not cell.nodes["n0"].store.damaged and cell.nodes["n0"].log_state.states)
    whole(cell)
    assert state_of(cell.nodes["n0"]) == expected
    assert not any(seen)
    assert not cell.nodes["n0"].log_state.problem


@pytest.mark.parametrize("says", [EntryKind.NORMAL, EntryKind.NOOP])
def test_what_the_index_says_of_a_damaged_control_entry_is_not_believed_alone(
    tmp_path: Path, says: EntryKind
) -> None:
    """Its header and its unit of the index are both wrong. The state without it would be another one."""
    cell = Cell(tmp_path)
    mark = TimeMark(123456789012)
    entry = cell.leader().propose_control(mark)
    append(cell, b"behind")
    whole(cell)
    expected = state_of(cell.leader())
    for name in list(cell.nodes):
        cell.kill(name)
    segment = tmp_path / "n0" / "data" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[data.index(encode_body(mark)) - 10] ^= 1  # in its header
    segment.write_bytes(data)
    index = tmp_path / "n0" / "index" / f"{0:020d}"
    units = bytearray(index.read_bytes())
    at = entry.index * INDEX_UNIT_BYTES
    assert units[at : at + 4] == int(EntryKind.TIME).to_bytes(4, "big")
    units[at : at + 4] = int(says).to_bytes(4, "big")
    index.write_bytes(units)
    node = cell.start("n0")
    for _ in range(50):
        cell.step()
    assert node.log_state.states is None, "nobody else is there to say what it was"
    cell.start("n1")
    cell.start("n2")
    cell.until(lambda: not cell.nodes["n0"].store.damaged and cell.nodes["n0"].log_state.states)
    whole(cell)
    assert state_of(cell.nodes["n0"]) == expected
    cell.close()


def test_alone_it_does_not_lead_either_and_says_why(tmp_path: Path) -> None:
    cell = Cell(tmp_path, 1)
    mark = TimeMark(123456789012)
    cell.leader().propose_control(mark)
    append(cell, b"behind")
    cell.kill("n0")
    flip(tmp_path / "n0", encode_body(mark))
    node = cell.start("n0")
    for _ in range(1000):
        cell.step()
        assert node.raft.role is not Role.LEADER
    assert any(p.startswith("the state of the log is not known") for p in node.problems()), (
        node.problems()
    )
    cell.close()


def test_damage_among_data_keeps_nobody_from_the_state(tmp_path: Path) -> None:
    cell = Cell(tmp_path, 1)
    cell.leader().propose_control(TimeMark(3))
    append(cell, b"x" * HEADER_BYTES + b"needle")
    append(cell, b"behind")
    cell.kill("n0")
    flip(tmp_path / "n0", b"needle")
    cell.start("n0")
    assert state_of(cell.leader()).time_ms == 3
    cell.close()


def test_a_damaged_no_op_keeps_nobody_from_the_state(tmp_path: Path) -> None:
    cell = Cell(tmp_path, 1)
    cell.leader().propose_control(TimeMark(3))
    append(cell, b"behind")
    store = cell.leader().store
    batches = [b for b in store.control_batches(0, 2) if b.first_header.magic == EntryKind.NOOP]
    assert [batch.first_index for batch in batches] == [0]
    cell.kill("n0")
    segment = tmp_path / "n0" / "data" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[HEADER_BYTES - 10] ^= 1
    segment.write_bytes(data)
    cell.start("n0")
    assert state_of(cell.leader()).time_ms == 3
    cell.close()


def test_where_each_lost_another_control_entry_they_repair_each_other_without_a_leader(
    cell: Cell, tmp_path: Path
) -> None:
    marks = [TimeMark(123456789012 + number) for number in range(3)]
    for mark in marks:
        cell.leader().propose_control(mark)
    append(cell, b"behind")
    whole(cell)
    expected = state_of(cell.leader())
    for name in list(cell.nodes):
        cell.kill(name)
    for name, mark in zip(("n0", "n1", "n2"), marks, strict=True):
        flip(tmp_path / name, encode_body(mark))
    for name in ("n0", "n1", "n2"):
        cell.start(name)
    whole(cell)
    assert {state_of(node) for node in cell.nodes.values()} == {expected}


def test_a_level_entry_of_the_release_before_leaves_the_way_back(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that was fed with it could not go back, though nobody had finished the upgrade."""
    node, allowed = cell.leader(), list[int]()

    def note(level: int, *, users: bool) -> None:
        assert not users
        allowed.append(level)

    monkeypatch.setattr(node.directory, "may_hold", lambda level, users=False: bool(allowed))
    monkeypatch.setattr(node.directory, "allow_control_entries", note)
    node.log_state.admit(EntryBatch.control(EntryKind.LEVEL, encode_body(LevelReached(6))))
    assert allowed == [6]
