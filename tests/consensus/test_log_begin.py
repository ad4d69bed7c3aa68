"""A log that loses its first entries while it runs, on either side of replication."""

from __future__ import annotations

import pytest

from quorumlog.consensus.messages import (
    InstallResult,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from quorumlog.entry import NO_ENTRY, EntryId

from .harness import LoneMember
from .test_entry_dispatcher import peer_status, stay_alive
from .test_entry_handler import only_answer
from .test_paper import ack, matched

DIVERGED = InstallResult.DIVERGED_BELOW_COMMIT


def following() -> LoneMember:
    """It holds entries 0 .. 5 of terms 1 and 2, all committed, and begins behind entry 2."""
    n0 = LoneMember(term=2, terms=(1, 1, 2, 2, 2, 2))
    commit = PushEntryRequest(term=2, push=PushType.COMMIT, committed_index=5, previous=EntryId(5, 2))
    n0.hear(1, commit)
    assert n0.node.committed_index == 5
    n0.node.drop_before(EntryId(2, 2))
    return n0


def answer_to(n0: LoneMember, request: PushEntryRequest) -> PushEntryResponse:
    n0.hear(1, request)
    answer: PushEntryResponse = n0.to(1, PushEntryResponse)[-1]
    return answer


@pytest.mark.parametrize("push", [PushType.COMPARE, PushType.TRUNCATE, PushType.COMMIT])
def test_a_follower_that_is_asked_for_an_entry_below_its_log_says_where_it_begins(
    push: PushType,
) -> None:
    """DLedger's raises, and is asked again for ever (W13)."""
    n0 = following()
    refusal = answer_to(
        n0,
        PushEntryRequest(term=2, push=push, committed_index=5, number=1, previous=EntryId(1, 1)),
    )
    assert refusal.result is PushResult.INCONSISTENT_STATE
    assert refusal.begin == EntryId(2, 2)
    assert n0.node.status().ledger_begin_index == 3
    n0.hear(
        1,
        PushEntryRequest(
            term=2, push=PushType.COMPARE, committed_index=5, number=2, previous=EntryId(2, 2)
        ),
    )
    held = only_answer(n0)
    assert (held.result, held.index, held.begin) == (PushResult.SUCCESS, 2, NO_ENTRY)


def compared(n0: LoneMember) -> tuple[EntryId, int]:
    request = n0.to(1, PushEntryRequest)[-1]
    assert request.push is PushType.COMPARE, request
    return request.previous, request.number


def refuse(n0: LoneMember, *, end: int = 9, begin: EntryId = NO_ENTRY) -> None:
    n0.hear(
        1,
        PushEntryResponse(
            term=n0.node.term,
            push=PushType.COMPARE,
            result=PushResult.INCONSISTENT_STATE,
            number=compared(n0)[1],
            ledger_end_index=end,
            begin=begin,
        ),
    )


def test_a_leader_goes_up_to_where_the_log_of_a_follower_begins() -> None:
    n0 = LoneMember(terms=(1, 1, 2, 2, 4)).lead()
    refuse(n0, end=0)
    assert compared(n0)[0] == EntryId(0, 1)
    refuse(n0, begin=EntryId(3, 2))
    assert compared(n0)[0] == EntryId(3, 2)
    matched_there = PushEntryResponse(
        term=n0.node.term,
        push=PushType.COMPARE,
        result=PushResult.SUCCESS,
        number=compared(n0)[1],
        index=3,
    )
    n0.hear(1, matched_there)
    assert peer_status(n0).compare_index == 3


@pytest.mark.parametrize("begin", [EntryId(3, 3), EntryId(77, 2)])
def test_a_leader_asks_no_lower_than_where_a_follower_begins(begin: EntryId) -> None:
    """Whose first entries are of another log, or whose log begins above the leader's end."""
    n0 = LoneMember(terms=(1, 1, 2, 2, 4)).lead()
    matched(n0, 2)
    n0.hear(2, ack(n0.node.term, 5))
    refuse(n0, end=0)
    while peer_status(n0).state == "COMPARE":
        before = compared(n0)
        refuse(n0, begin=begin if before[0].index < begin.index else NO_ENTRY, end=9)
    asked = compared(n0)
    assert n0.node.replication.installing == (peer_status(n0).replica,)
    stay_alive(n0, 5000, 1, 2)
    assert compared(n0) == asked, "nothing goes back and forth"
    # It holds another entry there that it has committed: it is asked again after each pause.
    n0.act(lambda: n0.node.on_install_answered(n0.node.replication.installing[0], DIVERGED))
    assert n0.node.replication.installing == ()
    assert any("DIVERGED_BELOW_COMMIT" in problem for problem in n0.node.status().problems)
    stay_alive(n0, 1500, 1, 2)
    assert n0.node.replication.installing == (peer_status(n0).replica,)


def test_a_follower_whose_log_begins_above_the_leaders_end_gets_the_start_at_once() -> None:
    """A power loss under `flush = async` has taken so much of the leader's log. No entry is in both, so
    there is nothing to look for, one by one."""
    n0 = LoneMember(terms=(1,) * 500).lead()
    asked = 0
    while peer_status(n0).state == "COMPARE":
        asked += 1
        refuse(n0, begin=EntryId(777, 1), end=999)
    assert asked <= 2
    assert n0.node.replication.installing == (peer_status(n0).replica,)


def leading(*, follower_at: int) -> LoneMember:
    """It leads with entries 0 .. 5 committed by itself and n2; n1 is known to hold up to one of them."""
    n0 = LoneMember(terms=(1, 1, 2, 2, 2)).lead()
    matched(n0, 2)
    n0.hear(2, ack(n0.node.term, 5))
    assert n0.node.committed_index == 5
    if follower_at == 4:
        matched(n0, 1)
    elif follower_at >= 0:
        compare = n0.to(1, PushEntryRequest)[-1]
        n0.hear(
            1,
            PushEntryResponse(
                term=n0.node.term,
                push=PushType.COMPARE,
                result=PushResult.INCONSISTENT_STATE,
                number=compare.number,
                ledger_end_index=follower_at,
            ),
        )
        matched(n0, 1)
    if follower_at >= 0:
        assert peer_status(n0).compare_index == follower_at
    return n0


@pytest.mark.parametrize("came_back", [False, True])
@pytest.mark.parametrize("follower_at", [-1, 1, 4])
def test_a_follower_below_the_begin_of_the_leader_gets_its_start(
    follower_at: int, came_back: bool
) -> None:
    n0 = leading(follower_at=follower_at)
    n0.act(lambda: n0.node.drop_before(EntryId(3, 2)))
    status = peer_status(n0)
    if follower_at >= 3:
        assert (status.state, status.compare_index) in (("APPEND", 4), ("COMMIT", 4))
        return
    if follower_at == -1:
        assert compared(n0)[0] == EntryId(4, 2)  # the question stands: nothing is known yet
        refuse(n0, end=follower_at)
    assert compared(n0)[0] == EntryId(3, 2)
    sent = len(n0.to(1, PushEntryRequest))
    refuse(n0, end=follower_at)
    assert n0.node.replication.installing == (peer_status(n0).replica,)
    stay_alive(n0, 3000, 1, 2)
    assert len(n0.to(1, PushEntryRequest)) == sent  # it gets no other message of the data connection
    behind = [each for each in n0.node.status().peers if not each.lacks_nothing]
    assert [each.is_installing for each in behind] == [True]
    if came_back:
        n0.act(lambda: n0.node.on_connection_lost(peer_status(n0).replica, is_gone=True))
        n0.act(lambda: n0.node.on_connected(n0.peer(1)))
    else:  # what was under way has reached it after all
        target = n0.node.replication.installing[0]
        n0.act(lambda: n0.node.on_install_answered(target, InstallResult.HELD))
    assert compared(n0)[0] == n0.node.ledger_end
    refuse(n0, end=3)
    assert compared(n0)[0] == EntryId(3, 2)
    matched(n0, 1)
    assert peer_status(n0).compare_index == 3
    n0.hear(1, ack(n0.node.term, 5))
    assert peer_status(n0).match_index == 5


def test_a_leader_may_drop_all_that_is_committed() -> None:
    n0 = leading(follower_at=4)
    n0.act(lambda: n0.node.drop_before(n0.node.ledger_end))
    assert n0.node.status().ledger_begin_index == -1
    n0.act(lambda: n0.propose("a"))
    n0.sync_now()
    n0.hear(2, ack(n0.node.term, 6))
    assert n0.node.committed_index == 6
    assert n0.node.status().ledger_begin_index == 6


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (EntryId(4, 2), VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
        (EntryId(9, 1), VoteResult.REJECT_EXPIRED_LEDGER_TERM),
        (EntryId(5, 2), VoteResult.ACCEPT),
    ],
)
def test_a_member_that_has_dropped_or_got_no_entries_yet_votes_by_where_its_log_begins(
    end: EntryId, result: VoteResult
) -> None:
    """DLedger's votes as if it were empty (W6)."""
    n0 = following()
    n0.node.drop_before(n0.node.ledger_end)
    assert n0.node.ledger_end == EntryId(5, 2)
    n0.pass_ms(20_000)
    term = n0.node.term + 1
    n0.hear(1, VoteRequest(term=term, vote_term=term, pre_vote=False, ledger_end=end))
    assert n0.to(1, VoteResponse)[-1].result is result
