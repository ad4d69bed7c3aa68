"""The follower's answers: overlaps, cuts, pushes ahead of the log, and messages that are late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.consensus.messages import (
    HeartbeatRequest,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
)
from quorumlog.entry import NO_ENTRY, EntryId

from .harness import LoneMember
from .test_paper import append


def terms_of(n0: LoneMember) -> list[int]:
    return [term for term, _ in n0.disk.entries]


def truncate(term: int, previous: EntryId, cut_term: int) -> PushEntryRequest:
    return PushEntryRequest(
        term=term,
        push=PushType.TRUNCATE,
        committed_index=-1,
        number=1,
        previous=previous,
        first_index=previous.index + 1,
        term_runs=((previous.index + 1, cut_term),),
    )


def only_answer(n0: LoneMember) -> PushEntryResponse:
    (answer,) = n0.sync_now()
    assert isinstance(answer, PushEntryResponse)
    return answer


def test_an_overlap_that_agrees_cuts_nothing_and_writes_only_what_is_new() -> None:
    n0 = LoneMember(terms=(1, 1, 2))
    n0.hear(1, append(3, EntryId(0, 1), [1, 2, 2, 3]))
    ready = n0.readys[-1]
    assert ready.truncate_from is None
    (order,) = ready.append
    assert (order.first_index, order.count, order.push_first_index) == (3, 2, 1)
    assert terms_of(n0) == [1, 1, 2, 2, 3]


def test_an_overlap_is_cut_at_the_first_real_conflict() -> None:
    n0 = LoneMember(terms=(1, 1, 2, 2, 2))
    n0.hear(1, append(4, EntryId(0, 1), [1, 2, 3, 4]))
    ready = n0.readys[-1]
    assert ready.truncate_from == 3
    assert (ready.append[0].first_index, ready.append[0].count) == (3, 2)
    assert terms_of(n0) == [1, 1, 2, 3, 4]


def test_a_short_old_push_does_not_cut_what_came_after_it() -> None:
    """Raft paper, 5.3: only an entry that conflicts is deleted; a late push is a prefix, no conflict."""
    n0 = LoneMember()
    n0.hear(1, append(1, NO_ENTRY, [1, 1, 1, 1]))
    n0.hear(1, append(1, NO_ENTRY, [1]))
    assert terms_of(n0) == [1, 1, 1, 1]
    assert [answer.index for answer in n0.sync_now()] == [3, 0]


@pytest.mark.parametrize(
    ("cut_term", "left"),
    [(3, [1, 1]), (2, [1, 1, 2, 2])],
    ids=["another entry is cut", "the same entry stays"],
)
def test_truncate_cuts_only_another_entry(cut_term: int, left: list[int]) -> None:
    n0 = LoneMember(terms=(1, 1, 2, 2), term=3)
    n0.hear(1, truncate(3, EntryId(1, 1), cut_term))
    assert terms_of(n0) == left
    answer = only_answer(n0)
    assert (answer.result, answer.index, answer.number) == (PushResult.SUCCESS, 1, 1)


def test_a_truncate_above_an_entry_that_is_not_held_is_refused() -> None:
    n0 = LoneMember(terms=(1, 1), term=3)
    (answer,) = n0.hear(1, truncate(3, EntryId(4, 1), 3))
    assert answer.result is PushResult.INCONSISTENT_STATE
    assert terms_of(n0) == [1, 1]


@pytest.mark.parametrize("kind", ["truncate", "append"])
def test_a_cut_at_or_below_the_committed_index_is_refused(kind: str) -> None:
    n0 = LoneMember(terms=(1, 1, 2, 2), committed=2)
    request = truncate(3, EntryId(1, 1), 3) if kind == "truncate" else append(3, EntryId(1, 1), [3])
    (answer,) = n0.hear(1, request)
    assert answer.result is PushResult.DIVERGED_BELOW_COMMIT
    assert terms_of(n0) == [1, 1, 2, 2]
    (problem,) = n0.node.status().problems
    assert "DIVERGED_BELOW_COMMIT: n1, leader of term 3" in problem
    assert "index 2" in problem


def test_async_mode_obeys_the_cut_of_a_leader_of_a_higher_term_and_says_so() -> None:
    n0 = LoneMember(terms=(1, 1, 2, 2), committed=3, async_mode=True)
    n0.hear(1, append(3, EntryId(1, 1), [3]))
    ready = n0.readys[-1]
    assert (ready.truncate_from, ready.loses_committed, ready.committed_index) == (2, True, 1)
    assert terms_of(n0) == [1, 1, 3]
    n0.hear(1, HeartbeatRequest(term=3, round=1, committed_index=2))
    assert not n0.readys[-1].loses_committed
    assert n0.node.committed_index == 2


def test_async_mode_refuses_the_cut_of_the_term_that_committed_the_entry() -> None:
    n0 = LoneMember(terms=(1, 3, 3), committed=2, async_mode=True)
    (answer,) = n0.hear(1, append(3, EntryId(0, 1), [2, 3]))
    assert answer.result is PushResult.DIVERGED_BELOW_COMMIT
    assert terms_of(n0) == [1, 3, 3]


def test_pushes_ahead_of_the_log_wait_and_are_taken_in_order() -> None:
    n0 = LoneMember()
    assert n0.hear(1, append(1, EntryId(3, 1), [1])) == []
    assert n0.hear(1, append(1, EntryId(1, 1), [1, 1])) == []
    assert n0.disk.entries == []
    n0.hear(1, append(1, NO_ENTRY, [1, 1]))
    assert terms_of(n0) == [1] * 5
    assert [answer.index for answer in n0.sync_now()] == [1, 3, 4]


def test_the_push_farthest_ahead_is_refused_when_too_many_wait() -> None:
    n0 = LoneMember(max_waiting_pushes=2)
    n0.hear(1, append(1, EntryId(8, 1), [1]))
    n0.hear(1, append(1, EntryId(4, 1), [1]))
    (answer,) = n0.hear(1, append(1, EntryId(6, 1), [1]))
    assert answer.result is PushResult.PUSH_REQUEST_IS_FULL
    assert answer.first_index == 9, "the one at 7 is needed sooner"


def test_a_repeated_push_waits_once() -> None:
    n0 = LoneMember(max_waiting_pushes=2)
    for _ in range(5):
        assert n0.hear(1, append(1, EntryId(4, 1), [1])) == []


def test_what_waits_is_forgotten_with_the_term() -> None:
    """A push of an older leader must not be taken once a newer one has filled the gap before it."""
    n0 = LoneMember(terms=(1,))
    n0.hear(1, append(2, EntryId(2, 2), [2, 2]))
    n0.hear(2, append(3, EntryId(0, 1), [2, 2]))
    assert terms_of(n0) == [1, 2, 2]


def test_what_waits_is_forgotten_when_the_leader_compares_anew() -> None:
    n0 = LoneMember(terms=(1,), term=1)
    n0.hear(1, append(1, EntryId(2, 1), [1]))
    n0.hear(
        1, PushEntryRequest(term=1, push=PushType.COMPARE, committed_index=-1, previous=EntryId(0, 1))
    )
    n0.hear(1, append(1, EntryId(0, 1), [1, 1]))
    assert terms_of(n0) == [1, 1, 1]


def test_nothing_is_verified_in_a_new_term() -> None:
    """A tail that nobody else has is not committed by what another leader says."""
    n0 = LoneMember()
    n0.hear(1, append(1, NO_ENTRY, [1, 1, 1]))
    n0.hear(2, HeartbeatRequest(term=2, round=1, committed_index=2))
    assert n0.node.committed_index == -1
    n0.hear(2, append(2, EntryId(0, 1), [2], committed_index=2))
    assert n0.node.committed_index == 1
    assert terms_of(n0) == [1, 2]


def test_verification_survives_a_short_silence_of_the_same_leader() -> None:
    n0 = LoneMember()
    n0.hear(1, append(1, NO_ENTRY, [1, 1]))
    n0.pass_ms(2000)
    n0.hear(1, HeartbeatRequest(term=1, round=9, committed_index=1))
    assert n0.node.committed_index == 1


def test_a_commit_that_overtakes_the_push_takes_effect_with_it() -> None:
    """They travel on connections of their own."""
    n0 = LoneMember()
    n0.hear(1, PushEntryRequest(term=1, push=PushType.COMMIT, committed_index=1))
    assert n0.node.committed_index == -1
    n0.hear(1, append(1, NO_ENTRY, [1, 1, 1], committed_index=0))
    assert n0.node.committed_index == 1


def test_a_push_that_finds_no_room_is_refused_and_its_sender_heard() -> None:
    n0 = LoneMember()
    n0.pass_ms(100)
    (answer,) = n0.hear(1, append(1, NO_ENTRY, [1]), refuse=PushResult.DISK_FULL)
    assert answer.result is PushResult.DISK_FULL
    assert n0.node.leader == n0.peer(1)
    assert n0.disk.entries == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"term_runs": ()},
        {"term_runs": ((3, 2),)},
        {"term_runs": ((2, 3),)},
        {"term_runs": ((2, 0),)},
        {"term_runs": ((2, 2), (3, 1))},
        {"term_runs": ((2, 1), (9, 2))},
        {"first_index": 5},
    ],
    ids=str,
)
def test_a_push_that_contradicts_itself_is_dropped(wrong: dict[str, object]) -> None:
    n0 = LoneMember(terms=(1, 1), term=2)
    fields = {"first_index": 2, "count": 2, "term_runs": ((2, 2),), **wrong}
    said = n0.hear(
        1,
        PushEntryRequest(
            term=2, push=PushType.APPEND, committed_index=-1, previous=EntryId(1, 1), **fields
        ),
    )
    assert said == []
    assert terms_of(n0) == [1, 1]


terms_lists = st.lists(st.integers(1, 4), max_size=8).map(sorted)


@given(mine=terms_lists, theirs=terms_lists, data=st.data())
def test_any_push_leaves_the_log_as_the_paper_says(
    mine: list[int], theirs: list[int], data: st.DataObject
) -> None:
    """Figure 2, AppendEntries, 2-4, on plain lists."""
    if not theirs:
        return
    first = data.draw(st.integers(0, len(theirs) - 1))
    pushed = theirs[first:]
    previous = EntryId(first - 1, theirs[first - 1]) if first else NO_ENTRY
    n0 = LoneMember(terms=tuple(mine))
    n0.hear(1, append(5, previous, pushed))
    expected = list(mine)
    if first == 0 or (first <= len(mine) and mine[first - 1] == previous.term):
        for k, term in enumerate(pushed, first):
            if k < len(expected) and expected[k] != term:
                del expected[k:]
            if k == len(expected):
                expected.append(term)
    assert terms_of(n0) == expected


def test_a_commit_that_names_an_entry_which_is_not_held_says_where_the_log_ends() -> None:
    n0 = LoneMember(terms=(1, 1))
    commit = PushEntryRequest(
        term=2, push=PushType.COMMIT, committed_index=4, previous=EntryId(4, 2), first_index=-1
    )
    (answer,) = (a for a in n0.hear(1, commit) if isinstance(a, PushEntryResponse))
    assert (answer.result, answer.ledger_end_index) == (PushResult.INCONSISTENT_STATE, 1)
    assert n0.node.committed_index == -1
