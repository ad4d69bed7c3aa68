"""Sessions on real nodes: what a leader lets in, what it answers, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import PushEntryRequest
from quorumlog.entry import AppendReceipt, EntryKind, EntryRange
from quorumlog.errors import (
    AlreadyCommitted,
    BadRequest,
    LeaderNotReady,
    NotLeader,
    OutcomeUnknown,
    ProducerExpired,
    ProducerFenced,
    SequenceGap,
    TooManyProducers,
)
from quorumlog.log_state import producers as producers_module
from quorumlog.log_state.control_entries import ANONYMOUS, ProducerEpoch
from quorumlog.log_state.producers import MOST_BATCHES
from quorumlog.node import LedgerNode, producer_sessions
from quorumlog.node.pending_appends import SessionPlace
from quorumlog.node.producer_sessions import ProducerConnected
from tests.node.cell import Cell

TOKENS = [bytes([number]) * 16 for number in range(1, 9)]


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = Cell(tmp_path)
    cell.until(lambda: cell.leader().committed_index >= 0, "the first commit")
    yield cell
    cell.close()


def ask_to_connect(
    node: LedgerNode,
    producer: str,
    token: bytes = TOKENS[0],
    ends: ProducerEpoch | None = None,
    seen_index: int | None = None,
) -> list[Any]:
    answers: list[Any] = []
    asked = (producer, token, ends, node.deadline_ms(0))
    node.sessions.connect(*asked, answers.append, None, seen_index)
    return answers


def connect(
    cell: Cell,
    producer: str = "p",
    token: bytes = TOKENS[0],
    ends: ProducerEpoch | None = None,
    seen_index: int | None = None,
) -> ProducerConnected:
    answers = ask_to_connect(cell.leader(), producer, token, ends, seen_index)
    (answer,) = cell.until(lambda: answers)
    assert isinstance(answer, ProducerConnected), answer
    return answer


def send(
    node: LedgerNode, epoch: ProducerEpoch, sequence: int, *bodies: bytes, producer: str = "p"
) -> list[Any]:
    outcomes: list[Any] = []
    place = SessionPlace(producer, epoch, sequence)
    node.append(EntryBatch.from_bodies(list(bodies)), 0, outcomes.append, place=place)
    return outcomes


def append(cell: Cell, epoch: ProducerEpoch, sequence: int, *bodies: bytes, producer: str = "p") -> Any:
    outcomes = send(cell.leader(), epoch, sequence, *bodies, producer=producer)
    (outcome,) = cell.until(lambda: outcomes)
    return outcome


def show(cell: Cell, producer: str = "p") -> Any:
    answers: list[Any] = []
    cell.leader().sessions.show(producer, answers.append, None)
    (answer,) = cell.until(lambda: answers)
    return answer


def bodies(node: LedgerNode) -> list[bytes]:
    """Of the data that the log holds."""
    entries = []
    for index in range(node.store.begin.index + 1, node.store.end.index + 1):
        entries += [entry.body for entry in node.store.read_from(index, index + 1, 1)[1].entries()]
    return entries


def whole(cell: Cell) -> None:
    def is_whole() -> bool:
        end = cell.leader().raft.ledger_end
        return all(
            (n.raft.ledger_end, n.committed_index) == (end, end.index) for n in cell.nodes.values()
        )

    cell.step()
    cell.until(is_whole)


def test_an_append_is_in_the_log_once_and_its_repetition_has_the_same_receipt(cell: Cell) -> None:
    epoch = connect(cell).epoch
    receipt = append(cell, epoch, 0, b"a", b"b")
    assert isinstance(receipt, AppendReceipt)
    assert append(cell, epoch, 0, b"a", b"b") == receipt
    assert append(cell, epoch, 1, b"b") == AppendReceipt(
        receipt.term, receipt.first_index + 1, 1, receipt.durability
    )
    following = append(cell, epoch, 2, b"c")
    assert following.first_index == receipt.last_index + 2, "its PRODUCER entry stands between"
    whole(cell)
    assert [bodies(node) for node in cell.nodes.values()] == [[b"a", b"b", b"c"]] * 3
    assert show(cell).session.last_sequence == 2


def test_appends_of_many_and_of_nobody_join_one_batch(cell: Cell) -> None:
    epochs = {name: connect(cell, name).epoch for name in ("p", "q")}
    leader = cell.leader()
    cell.hold_flush = {leader.replica.member_id}
    plain: list[Any] = []
    first = send(leader, epochs["p"], 0, b"p0")
    leader.append(EntryBatch.from_bodies([b"plain"]), 0, plain.append)
    second = send(leader, epochs["q"], 0, b"q0", b"q1", producer="q")
    third = send(leader, epochs["p"], 1, b"p1")
    cell.until(lambda: first and plain and second and third)
    assert [first[0].first_index, plain[0].first_index, second[0].first_index, third[0].first_index] == [
        first[0].first_index + after for after in (0, 1, 3, 6)
    ]
    assert bodies(leader) == [b"p0", b"plain", b"q0", b"q1", b"p1"]


def test_a_gap_is_refused_and_names_what_is_expected(cell: Cell) -> None:
    epoch = connect(cell).epoch
    append(cell, epoch, 0, b"a", b"b")
    refusal = append(cell, epoch, 3, b"d")
    assert isinstance(refusal, SequenceGap)
    assert refusal.expected_sequence == 2
    assert bodies(cell.leader()) == [b"a", b"b"]


def test_an_older_repetition_is_known_to_be_there_and_no_more(cell: Cell) -> None:
    epoch = connect(cell).epoch
    for number in range(MOST_BATCHES + 1):
        append(cell, epoch, number, b"%d" % number)
    old = append(cell, epoch, 0, b"0")
    assert isinstance(old, AlreadyCommitted)
    assert old.last_sequence == MOST_BATCHES
    longer = append(cell, epoch, 0, *[b"x"] * (MOST_BATCHES + 2))
    assert isinstance(longer, AlreadyCommitted)
    assert "append from sequence 6 on" in str(longer)
    assert len(bodies(cell.leader())) == MOST_BATCHES + 1
    assert isinstance(append(cell, epoch, 1, b"1"), AppendReceipt)


def test_who_connects_ends_the_epoch_before_and_numbers_go_on(cell: Cell) -> None:
    first = connect(cell)
    assert first == ProducerConnected(True, first.epoch, -1)
    append(cell, first.epoch, 0, b"a")
    told = connect(cell, token=TOKENS[1])
    assert told == ProducerConnected(False, first.epoch, 0), "it did not say what it ends"
    second = connect(cell, token=TOKENS[1], ends=told.epoch)
    assert (second.opened, second.last_sequence) == (True, 0)
    refusal = append(cell, first.epoch, 1, b"late")
    assert isinstance(refusal, ProducerFenced)
    assert isinstance(append(cell, second.epoch, 1, b"b"), AppendReceipt)
    assert bodies(cell.leader()) == [b"a", b"b"]


def test_a_late_copy_of_a_connect_fences_nobody(cell: Cell) -> None:
    first = connect(cell)
    assert connect(cell) == first, "its token stands"
    second = connect(cell, token=TOKENS[1], ends=first.epoch)
    assert connect(cell) == ProducerConnected(False, second.epoch, -1)
    assert isinstance(append(cell, second.epoch, 0, b"a"), AppendReceipt)


def forget(cell: Cell, epoch: ProducerEpoch) -> None:
    leader, forgotten = cell.leader(), list[Any]()
    leader.sessions.forget("p", epoch, leader.deadline_ms(0), forgotten.append, None)
    assert cell.until(lambda: forgotten) == [None]


def test_a_late_copy_of_the_first_connect_behind_a_forget_opens_nothing() -> None:
    with TemporaryDirectory() as directory:
        first_connects(Cell(Path(directory)))


def first_connects(cell: Cell) -> None:
    nobody = connect(cell, "q", seen_index=-1).seen_index  # nobody was forgotten yet, it opens
    assert nobody == -1
    seen = cell.leader().store.end.index
    first = connect(cell, seen_index=seen)
    forget(cell, first.epoch)
    for cell_has_started_again in (False, True):
        if cell_has_started_again:
            for member_id in list(cell.nodes):
                cell.kill(member_id)
                cell.start(member_id)
        for late_index in (-1, seen):
            late = connect(cell, seen_index=late_index)
            assert late == ProducerConnected(
                False, ProducerEpoch(-1, -1), -1, cell.leader().store.end.index
            )
        assert isinstance(show(cell, "p"), ProducerExpired)
    again = connect(cell, token=TOKENS[1], seen_index=late.seen_index)
    assert again.opened, "it was meant for the log behind the forget"
    cell.close()


def test_of_a_late_copy_of_an_older_clients_first_connect_no_entry_comes(cell: Cell) -> None:
    first = connect(cell)
    append(cell, first.epoch, 0, b"a")
    forget(cell, first.epoch)
    late = connect(cell)
    assert (late.opened, late.last_sequence) == (True, -1), "the same token, and nobody hears of it"
    assert isinstance(append(cell, first.epoch, 0, b"a"), ProducerFenced)
    assert isinstance(append(cell, first.epoch, 1, b"b"), ProducerFenced)
    assert connect(cell, token=TOKENS[1]) == ProducerConnected(False, late.epoch, -1)
    assert connect(cell, token=TOKENS[1], ends=late.epoch).last_sequence == -1
    assert bodies(cell.leader()) == [b"a"]


def test_two_that_connect_in_one_turn_have_one_epoch_between_them(cell: Cell) -> None:
    leader = cell.leader()
    answers = [ask_to_connect(leader, "p", token) for token in TOKENS[:2]]
    cell.until(lambda: all(answers))
    (one,), (other,) = answers
    assert (one.opened, other.opened) == (True, False)
    assert one.epoch == other.epoch


def test_an_unknown_epoch_opens_nothing(cell: Cell) -> None:
    assert isinstance(append(cell, ProducerEpoch(3, 1), 0, b"a"), ProducerExpired)
    epoch = connect(cell).epoch
    later = ProducerEpoch(epoch.index + 50, epoch.term)
    assert isinstance(append(cell, later, 0, b"a"), ProducerExpired)
    assert isinstance(show(cell, "q"), ProducerExpired)
    assert bodies(cell.leader()) == []


def test_a_session_that_is_forgotten_is_over(cell: Cell) -> None:
    epoch = connect(cell).epoch
    append(cell, epoch, 0, b"a")

    def forget(epoch: ProducerEpoch) -> Any:
        answers: list[Any] = []
        leader = cell.leader()
        leader.sessions.forget("p", epoch, leader.deadline_ms(0), answers.append, None)
        (answer,) = cell.until(lambda: answers)
        return answer

    assert isinstance(forget(ProducerEpoch(0, 1)), ProducerFenced)
    assert forget(epoch) is None
    assert isinstance(append(cell, epoch, 1, b"b"), ProducerExpired)
    assert isinstance(forget(epoch), ProducerExpired)
    answers = ask_to_connect(cell.leader(), "p", TOKENS[1], epoch)
    cell.until(lambda: answers)
    assert isinstance(answers[0], ProducerExpired)
    assert connect(cell, token=TOKENS[1]).last_sequence == -1


def test_the_least_recently_used_anonymous_one_makes_room(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (producers_module, producer_sessions):
        monkeypatch.setattr(module, "MOST_PRODUCERS", 3)
    monkeypatch.setattr(producers_module, "EVICTED_TOGETHER", 1)
    epochs = {name: connect(cell, name).epoch for name in ("p", f"{ANONYMOUS}a", f"{ANONYMOUS}b")}
    append(cell, epochs[f"{ANONYMOUS}a"], 0, b"x", producer=f"{ANONYMOUS}a")
    connect(cell, "q")
    expired = append(cell, epochs[f"{ANONYMOUS}b"], 0, b"x", producer=f"{ANONYMOUS}b")
    assert isinstance(expired, ProducerExpired)
    connect(cell, "r")
    answers = ask_to_connect(cell.leader(), "s")
    cell.until(lambda: answers)
    assert isinstance(answers[0], TooManyProducers)
    answers = []
    cell.leader().sessions.list("", 2, answers.append, None)
    cell.until(lambda: answers)
    assert [each.producer for each in answers[0]] == ["p", "q"]


@pytest.mark.parametrize(("producer", "token"), [("", TOKENS[0]), ("x" * 256, TOKENS[0]), ("p", b"")])
def test_a_name_or_token_out_of_bounds_is_refused(cell: Cell, producer: str, token: bytes) -> None:
    (answer,) = ask_to_connect(cell.leader(), producer, token)
    assert isinstance(answer, BadRequest)


# ---------------------------------------------------------------- crashes


def new_leader(cell: Cell, *, without: LedgerNode) -> LedgerNode:
    cell.cut_off = {without.replica.member_id}
    node: LedgerNode = cell.until(
        lambda: next((n for n in [cell.leader()] if n is not without), None), "another leader"
    )
    return node


def test_an_unknown_outcome_is_settled_by_repeating_it_at_the_next_leader(cell: Cell) -> None:
    epoch = connect(cell).epoch
    old = cell.leader()
    lost = send(old, epoch, 0, b"a", b"b")
    cell.step()
    assert lost == [] or isinstance(lost[0], AppendReceipt)
    new_leader(cell, without=old)
    first = append(cell, epoch, 0, b"a", b"b")
    assert isinstance(append(cell, epoch, 2, b"c"), AppendReceipt)
    cell.cut_off = set()
    whole(cell)
    assert [bodies(node) for node in cell.nodes.values()] == [[b"a", b"b", b"c"]] * 3
    if lost and isinstance(lost[0], AppendReceipt):
        assert lost[0] == first


def test_what_a_lone_leader_holds_is_judged_by_but_is_no_answer(cell: Cell) -> None:
    """It may never commit: then the repetition is no repetition, and the gap another one."""
    epoch = connect(cell).epoch
    old = cell.leader()
    cell.cut_off = {old.replica.member_id}
    first = send(old, epoch, 0, b"a")
    cell.step()
    again, gap = send(old, epoch, 0, b"a"), send(old, epoch, 5, b"f")
    shown: list[Any] = []
    old.sessions.show("p", shown.append, None)
    fenced = ask_to_connect(old, "p", TOKENS[1], ProducerEpoch(0, 0))
    for _ in range(5):
        cell.step()
    assert [first, again, gap, shown, fenced] == [[]] * 5
    new_leader(cell, without=old)
    cell.until(lambda: first and again and gap and shown and fenced)
    assert isinstance(first[0], OutcomeUnknown)
    assert all(isinstance(one[0], NotLeader | LeaderNotReady) for one in (again, gap, shown, fenced))
    assert append(cell, epoch, 1, b"x").expected_sequence == 0
    receipt = append(cell, epoch, 0, b"a")
    cell.cut_off = set()
    whole(cell)
    assert bodies(old) == [b"a"]
    assert append(cell, epoch, 0, b"a") == receipt, "the old leader has undone what it was cut"


def test_what_is_not_committed_yet_counts_for_what_comes_behind_it(cell: Cell) -> None:
    epoch = connect(cell).epoch
    leader = cell.leader()
    cell.hold_flush = set(cell.nodes)
    outcomes = [send(leader, epoch, 0, b"a", b"b")]
    cell.step()
    outcomes += [send(leader, epoch, 2, b"c"), send(leader, epoch, 0, b"a", b"b")]
    for _ in range(30):
        cell.step()
    assert outcomes == [[]] * 3
    cell.hold_flush = set()
    cell.until(lambda: all(outcomes))
    assert outcomes[0] == outcomes[2]
    assert bodies(leader) == [b"a", b"b", b"c"]


def cut_batch(cell: Cell, epoch: ProducerEpoch, kept: int) -> None:
    """A batch of four, of which one follower has the first `kept`; it leads then, without the rest."""
    old, (chosen, other) = cell.leader(), cell.followers()
    cell.cut_off = {other.replica.member_id}

    def shorten(sender: str, to: str, message: Any) -> bool:
        if not isinstance(message, PushEntryRequest) or message.count == 0 or to not in cell.nodes:
            return False
        at = message.first_index
        if at <= before or to != chosen.replica.member_id:
            return at > before
        stop = before + 2 + kept
        if at < stop < at + message.count:
            short = _shortened(message, stop - at)
            cell.nodes[to].receive(short)
        return True

    before = old.raft.ledger_end.index
    cell.drops = shorten
    lost = send(old, epoch, 0, b"a", b"b", b"c", b"d")
    cell.until(lambda: chosen.raft.ledger_end.index == before + 1 + kept)
    assert lost == []
    cell.step()
    cell.drops = lambda sender, to, message: False
    cell.cut_off = {old.replica.member_id}
    cell.until(lambda: cell.leader() is chosen)


def _shortened(message: PushEntryRequest, count: int) -> PushEntryRequest:
    assert message.batch is not None
    return msgspec.structs.replace(message, count=count, batch=message.batch.slice(0, count))


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_of_a_batch_that_a_crash_has_cut_only_the_rest_is_appended(cell: Cell, kept: int) -> None:
    epoch = connect(cell).epoch
    cut_batch(cell, epoch, kept)
    gap = append(cell, epoch, 4, b"e")
    assert isinstance(gap, SequenceGap)
    assert gap.expected_sequence == kept
    receipt = append(cell, epoch, 0, b"a", b"b", b"c", b"d")
    assert isinstance(receipt, AppendReceipt)
    assert receipt.count == 4
    assert [each.count for each in receipt.ranges] == ([kept, 4 - kept] if kept else [])
    assert append(cell, epoch, 0, b"a", b"b", b"c", b"d") == receipt
    append(cell, epoch, 4, b"e")
    cell.cut_off = set()
    whole(cell)
    found = {
        index: entry.body
        for part in receipt.parts
        for index in part.indices
        for entry in cell.leader().store.read_from(index, index + 1, 1)[1].entries()
    }
    assert list(found.values()) == [b"a", b"b", b"c", b"d"]
    assert [bodies(node) for node in cell.nodes.values()] == [[b"a", b"b", b"c", b"d", b"e"]] * 3


def test_what_a_session_holds_outlives_every_process(cell: Cell) -> None:
    epoch = connect(cell).epoch
    cut_batch(cell, epoch, 2)
    receipt = append(cell, epoch, 0, b"a", b"b", b"c", b"d")
    cell.cut_off = set()
    whole(cell)
    for name in list(cell.nodes):
        cell.kill(name)
    for name in ("n0", "n1", "n2"):
        cell.start(name)
    again = append(cell, epoch, 0, b"a", b"b", b"c", b"d")
    assert again == receipt
    assert isinstance(again.ranges[0], EntryRange)
    assert isinstance(append(cell, epoch, 4, b"e"), AppendReceipt)
    whole(cell)
    assert [bodies(node) for node in cell.nodes.values()] == [[b"a", b"b", b"c", b"d", b"e"]] * 3


def test_no_session_where_a_member_does_not_know_them(cell: Cell) -> None:
    leader = cell.leader()
    cell.hosts[leader.replica.member_id].level = 1
    (refusal,) = ask_to_connect(leader, "p")
    assert isinstance(refusal, LeaderNotReady), "the member may only be down"
    assert EntryKind.OPEN.name in str(refusal)


def test_what_is_in_the_log_is_not_called_unwritten_where_nobody_confirms_it(cell: Cell) -> None:
    epoch = connect(cell).epoch
    for sequence in range(MOST_BATCHES + 1):
        append(cell, epoch, sequence, b"%d" % sequence)
    leader = cell.leader()
    cell.cut_off = {leader.replica.member_id}
    outcomes: list[Any] = []
    place = SessionPlace("p", epoch, 0)
    leader.append(EntryBatch.from_bodies([b"0"]), 10, outcomes.append, place=place)
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], OutcomeUnknown), outcomes
