"""Named readers at a leader: what is written of what they say, when it is answered, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.errors import (
    BadRequest,
    IndexOutOfRange,
    LeaderNotReady,
    LedgerError,
    LevelNotReported,
    NotLeader,
    OutcomeUnknown,
    ReaderMoved,
    TooManyReaders,
    UnknownReader,
)
from quorumlog.log_state.control_entries import SKIPPED_LEVEL, Hold, Keep
from quorumlog.log_state.log_state import MOST_READERS
from quorumlog.node import LedgerNode
from quorumlog.node.reader_moves import JOIN_MS, MovedReader, MoveOutcome, ReaderMove
from tests.node.cell import Cell


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = Cell(tmp_path)
    leader = cell.leader()
    append(cell, leader, 20)
    yield cell
    cell.close()


def append(cell: Cell, leader: LedgerNode, count: int) -> None:
    done: list[object] = []
    leader.append(EntryBatch.from_bodies([b"x"] * count), 0, done.append)
    cell.until(lambda: done)


def ask(cell: Cell, *moves: ReaderMove) -> list[MoveOutcome]:
    """All at once; returns when all are answered, in their order."""
    leader = cell.leader()
    outcomes: dict[int, MoveOutcome] = {}
    for number, move in enumerate(moves):
        leader.readers.move(move, lambda outcome, at=number: outcomes.update({at: outcome}))  # type: ignore[misc]
    cell.until(lambda: len(outcomes) == len(moves), "an answer to each")
    return [outcomes[number] for number in range(len(moves))]


def ask_one(cell: Cell, move: ReaderMove) -> MoveOutcome:
    (outcome,) = ask(cell, move)
    return outcome


def _stands(node: LedgerNode, name: str) -> MovedReader | None:
    reader = node.log_state.committed_state().reader(name)
    return None if reader is None else MovedReader(reader.position, reader.hold)


def stood(outcome: MoveOutcome) -> MovedReader:
    """Without the entry that said it."""
    assert isinstance(outcome, MovedReader), outcome
    return outcome._replace(last_index=-1, seen_index=-1)


def opened(name: str, position: int | None = None, hold: Hold | None = None) -> ReaderMove:
    return ReaderMove(name, position, hold, opens=True)


def test_a_reader_goes_on_where_it_has_committed(cell: Cell) -> None:
    assert stood(ask_one(cell, opened("billing"))) == MovedReader(0, Hold.NONE)
    assert stood(ask_one(cell, ReaderMove("billing", 7))) == MovedReader(7, Hold.NONE)
    assert stood(ask_one(cell, ReaderMove("billing", 3))) == MovedReader(7, Hold.NONE)
    assert stood(ask_one(cell, opened("billing", 2, Hold.READER))) == MovedReader(7, Hold.READER)
    for node in cell.nodes.values():
        cell.until(lambda node=node: _stands(node, "billing") == MovedReader(7, Hold.READER))  # type: ignore[misc]


def test_all_that_readers_say_in_a_tenth_of_a_second_is_one_entry(cell: Cell) -> None:
    end = cell.leader().store.end.index
    ask(cell, *(opened(f"r{number % 5}", number) for number in range(15)))
    assert cell.leader().store.end.index == end + 1
    state = cell.leader().log_state.committed_state()
    assert [reader.position for reader in state.readers] == [10, 11, 12, 13, 14]
    before_ms = cell.now_ms
    ask(cell, ReaderMove("r0", 11))
    ask(cell, ReaderMove("r0", 12))
    assert cell.leader().store.end.index == end + 3
    assert cell.now_ms - before_ms >= JOIN_MS


def test_a_move_is_answered_once_it_is_committed(cell: Cell) -> None:
    leader = cell.leader()
    outcomes: list[MoveOutcome] = []
    cell.hold_flush = set(cell.nodes)
    leader.readers.move(opened("a", 5), outcomes.append)
    for _ in range(20):
        cell.step()
    assert outcomes == []
    cell.hold_flush = set()
    cell.until(lambda: outcomes)
    assert [stood(outcome) for outcome in outcomes] == [MovedReader(5, Hold.NONE)]


def test_what_was_not_committed_when_leadership_is_lost_is_unknown(cell: Cell) -> None:
    old = cell.leader()
    outcomes: list[MoveOutcome] = []
    cell.cut_off = {old.replica.member_id}
    old.readers.move(opened("a", 5), outcomes.append)
    cell.leader()
    old.turn()
    cell.cut_off = set()
    cell.until(lambda: outcomes)
    (outcome,) = outcomes
    assert isinstance(outcome, OutcomeUnknown), outcome
    old.readers.move(opened("a", 5), outcomes.append)
    assert isinstance(outcomes[-1], NotLeader | LeaderNotReady)


def test_a_seek_names_the_position_that_it_replaces(cell: Cell) -> None:
    ask(cell, opened("a", 9))
    refused = ask_one(cell, ReaderMove("a", 4, seeks_from=8))
    assert isinstance(refused, ReaderMoved)
    assert "is at 9" in str(refused)
    assert stood(ask_one(cell, ReaderMove("a", 4, seeks_from=9))) == MovedReader(4, Hold.NONE)
    again = stood(ask_one(cell, ReaderMove("a", 4, seeks_from=9)))
    assert again == MovedReader(4, Hold.NONE)  # the same seek, sent again


def test_a_seek_names_the_entry_that_said_where_it_stands(cell: Cell) -> None:
    first = ask_one(cell, opened("a", 9))
    assert isinstance(first, MovedReader)
    seek = ReaderMove("a", 4, seeks_from=9, last_index=first.last_index)
    back = ask_one(cell, seek)
    assert isinstance(back, MovedReader)
    assert ask_one(cell, seek) == back  # the same seek, sent again
    assert back.last_index == cell.leader().log_state.committed_state().readers[0].last_index
    ask(cell, ReaderMove("a", 9))
    late = ask_one(cell, seek)
    assert isinstance(late, ReaderMoved)
    assert "seek again" in str(late)
    assert stood(ask_one(cell, ReaderMove("a", 2, seeks_from=9))) == MovedReader(2, Hold.NONE)


def test_no_late_copy_undoes_what_has_been_said_since(cell: Cell) -> None:
    """Each arrives once more behind an end, a seek or another hold."""

    def said(move: ReaderMove) -> MovedReader:
        outcome = ask_one(cell, move)
        if isinstance(outcome, ReaderMoved):
            outcome = ask_one(cell, move._replace(seen_index=outcome.committed_index))
        assert isinstance(outcome, MovedReader), outcome
        return outcome

    opening = opened("a", hold=Hold.READER)._replace(seen_index=-1)
    first = said(opening)
    commit = ReaderMove("a", 9, seen_index=first.seen_index)
    second = said(commit)
    said(ReaderMove("a", 4, seeks_from=9, last_index=second.last_index))
    end = ReaderMove("a", ends=True, seen_index=second.seen_index)
    assert isinstance(ask_one(cell, commit), ReaderMoved), "forward, past what was sought"
    said(end)
    assert _stands(cell.leader(), "a") is None
    assert isinstance(ask_one(cell, opening), ReaderMoved), "it would hold the log for ever"
    third = said(opened("a", 3, Hold.NONE)._replace(seen_index=-1))
    assert isinstance(ask_one(cell, end), ReaderMoved), "of the reader before"
    fourth = said(ReaderMove("a", hold=Hold.READER, seen_index=third.seen_index))
    late = ReaderMove("a", hold=Hold.NONE, seen_index=third.seen_index)
    assert isinstance(ask_one(cell, late), ReaderMoved), "nobody would hold it"
    assert stood(ask_one(cell, ReaderMove("a", 3, seen_index=0))) == MovedReader(3, Hold.READER)
    assert _stands(cell.leader(), "a") == MovedReader(3, Hold.READER)
    both = (ReaderMove("a", ends=True, seen_index=fourth.seen_index), opening)
    gone, late_opening = ask(cell, *both)  # in one entry
    assert isinstance(gone, MovedReader)
    assert isinstance(late_opening, ReaderMoved)
    assert _stands(cell.leader(), "a") is None


def test_who_is_refused_for_what_the_same_entry_says_is_told_of_it(cell: Cell) -> None:
    """Told of nothing newer than it knew, a client could not say it once more."""
    ask(cell, opened("a", 9), opened("b", 3))
    end = cell.leader().store.end.index
    seek = ReaderMove("a", 4, seeks_from=9)
    commit = ReaderMove("b", 5, seen_index=end)
    sought, refused = ask(cell, seek, commit)
    assert stood(sought) == MovedReader(4, Hold.NONE)
    assert isinstance(refused, ReaderMoved)
    assert refused.committed_index == cell.leader().store.end.index == end + 1
    again = ask_one(cell, commit._replace(seen_index=refused.committed_index))
    assert stood(again) == MovedReader(5, Hold.NONE)


def test_what_changes_nothing_writes_nothing(cell: Cell) -> None:
    told = ask_one(cell, opened("a", 9, Hold.READER))
    end = cell.leader().store.end.index
    for idle in (
        ReaderMove("a", 9),
        ReaderMove("a", 4),
        opened("a"),
        opened("a", hold=Hold.READER),
        ReaderMove("a", 9, seeks_from=9),
    ):
        assert stood(ask_one(cell, idle)) == stood(told)
    assert cell.leader().store.end.index == end


def test_what_changes_nothing_is_answered_once_a_majority_has_what_it_says(cell: Cell) -> None:
    old = cell.leader()
    outcomes: list[MoveOutcome] = []
    ask(cell, opened("a", 3))
    cell.cut_off = {old.replica.member_id}
    old.readers.move(ReaderMove("a", 7), lambda outcome: None)
    cell.until(lambda: old.log_state.appended_state().readers[0].position == 7)
    old.readers.move(ReaderMove("a", 7), outcomes.append)
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], NotLeader | LeaderNotReady), outcomes


def test_nobody_can_hold_or_seek_what_may_be_deleted_by_now(cell: Cell) -> None:
    ask(cell, opened("a", 3))
    cell.leader().propose_control(Keep(10))
    for move in (
        ReaderMove("a", 5, Hold.READER),
        ReaderMove("a", 5, seeks_from=3),
        opened("b", 9, Hold.ARCHIVE),
    ):
        refused = ask_one(cell, move)
        assert isinstance(refused, IndexOutOfRange), refused
        assert refused.ledger_begin_index == 10
    assert stood(ask_one(cell, ReaderMove("a", 10, Hold.READER))) == MovedReader(10, Hold.READER)
    assert stood(ask_one(cell, opened("c", hold=Hold.READER))) == MovedReader(10, Hold.READER)


def test_a_position_behind_the_end_is_refused(cell: Cell) -> None:
    stop_index = cell.leader().store.end.index + 1
    assert isinstance(ask_one(cell, opened("a", stop_index + 1)), IndexOutOfRange)
    assert stood(ask_one(cell, opened("a", stop_index))) == MovedReader(stop_index, Hold.NONE)


def test_a_reader_that_has_ended_is_not_made_again_by_its_own_commit(cell: Cell) -> None:
    ask(cell, opened("a", 4))
    assert not isinstance(ask_one(cell, ReaderMove("a", ends=True)), LedgerError)
    assert isinstance(ask_one(cell, ReaderMove("a", 5)), UnknownReader)
    assert cell.leader().log_state.committed_state().readers == ()


def test_nobody_hears_a_refusal_of_a_leader_that_has_been_replaced(cell: Cell) -> None:
    """What it judges by will never commit."""
    ask(cell, opened("a", 4))
    old = cell.leader()
    outcomes: list[MoveOutcome] = []
    cell.cut_off = {old.replica.member_id}
    old.readers.move(ReaderMove("a", ends=True), lambda outcome: None)
    cell.until(lambda: old.log_state.appended_state().readers == ())
    old.readers.move(ReaderMove("a", 5), outcomes.append)
    cell.until(lambda: outcomes)
    (outcome,) = outcomes
    assert isinstance(outcome, NotLeader | LeaderNotReady), outcome
    assert stood(ask_one(cell, ReaderMove("a", 5))) == MovedReader(5, Hold.NONE)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "e\u0301", "a\n"])
def test_a_name_that_an_entry_cannot_say_is_refused(cell: Cell, name: str) -> None:
    assert isinstance(ask_one(cell, opened(name)), BadRequest)


def test_a_log_keeps_so_many_readers(cell: Cell) -> None:
    outcomes = ask(cell, *(opened(f"r{number}") for number in range(MOST_READERS + 1)))
    assert isinstance(outcomes[-1], TooManyReaders)
    assert not any(isinstance(outcome, LedgerError) for outcome in outcomes[:-1])
    ask(cell, ReaderMove("r0", ends=True))
    assert stood(ask_one(cell, opened("another"))) == MovedReader(0, Hold.NONE)


def test_once_a_log_holds_such_entries_nobody_has_to_say_that_he_knows_them(cell: Cell) -> None:
    """A member that is down since the leader began has not greeted it."""
    host = cell.hosts[cell.leader().replica.member_id]
    host.level = 0
    assert isinstance(ask_one(cell, opened("a")), LevelNotReported)
    host.level = 1
    ask(cell, opened("a"))
    host.level = 0
    assert stood(ask_one(cell, ReaderMove("a", 3))) == MovedReader(3, Hold.NONE)


def test_what_a_reader_says_and_appends_of_the_same_turn_are_both_written(cell: Cell) -> None:
    leader = cell.leader()
    outcomes: list[object] = []
    leader.readers.move(opened("a", 5), outcomes.append)
    leader.append(EntryBatch.from_bodies([b"x"] * 7), 0, outcomes.append)
    cell.until(lambda: len(outcomes) == 2)
    assert any(isinstance(outcome, MovedReader) for outcome in outcomes)
    assert not any(isinstance(outcome, LedgerError) for outcome in outcomes)


def _skipped(cell: Cell) -> list[int]:
    return [each.skipped_entries for each in cell.leader().log_state.committed_state().readers]


def test_what_a_reader_skips_is_counted_once_and_leaves_it_where_it_stands(cell: Cell) -> None:
    ask(cell, opened("a", 4, Hold.READER))
    skip = ReaderMove("a", skipped=(2, 5))
    assert stood(ask_one(cell, skip)) == MovedReader(4, Hold.READER)
    end = cell.leader().store.end.index
    assert stood(ask_one(cell, skip)) == MovedReader(4, Hold.READER), "a late copy"
    assert cell.leader().store.end.index == end, "nothing is written of it"
    assert _skipped(cell) == [3]
    both = ReaderMove("a", 9), ReaderMove("a", skipped=(7, 9)), ReaderMove("a", 12)
    assert [stood(each).position for each in ask(cell, *both)] == [9, 9, 12], "in one entry"
    assert _skipped(cell) == [5]
    assert isinstance(ask_one(cell, ReaderMove("b", skipped=(0, 1))), UnknownReader)
    behind = ask_one(cell, ReaderMove("a", skipped=(0, 10**6)))
    assert isinstance(behind, IndexOutOfRange)
    assert "after the end" in str(behind)
    assert _skipped(cell) == [5]


def test_what_a_reader_skips_is_not_said_to_a_member_that_could_not_read_it(cell: Cell) -> None:
    ask(cell, opened("a", 4))
    host = cell.hosts[cell.leader().replica.member_id]
    host.level = SKIPPED_LEVEL - 1
    assert stood(ask_one(cell, ReaderMove("a", skipped=(2, 5)))) == MovedReader(4, Hold.NONE)
    assert _skipped(cell) == [0]
    host.level = SKIPPED_LEVEL
    ask(cell, ReaderMove("a", skipped=(2, 5)))
    assert _skipped(cell) == [3]
