"""Who is voted for, who asks when, and what a lost connection changes."""

from __future__ import annotations

import pytest

from quorumlog.consensus import Role
from quorumlog.consensus.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    PushEntryResponse,
    PushResult,
    PushType,
    TakeLeadershipRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from quorumlog.entry import NO_ENTRY, EntryId, Replica

from .harness import LoneMember
from .test_paper import heartbeat, vote_request

ACCEPT = VoteResult.ACCEPT


def pre_vote(n0: LoneMember, i: int, result: VoteResult = ACCEPT, term: int = 0) -> list[object]:
    vote_term = n0.node.term + 1
    return n0.hear(i, VoteResponse(term=term, vote_term=vote_term, pre_vote=True, result=result))


def vote(n0: LoneMember, i: int, result: VoteResult = ACCEPT) -> list[object]:
    term = n0.node.term
    return n0.hear(i, VoteResponse(term=term, vote_term=term, pre_vote=False, result=result))


def asked(said: list[object]) -> list[tuple[bool, int]]:
    return [(r.pre_vote, r.vote_term) for r in said if isinstance(r, VoteRequest)]


# ---------------------------------------------------------------- the first steps


def test_a_starting_member_waits_one_vote_wait_for_a_leader_and_one_more() -> None:
    n0 = LoneMember()
    n0.pass_ms(99)
    assert n0.node.role is Role.FOLLOWER
    n0.pass_ms(1)
    assert n0.node.role is Role.CANDIDATE
    assert n0.pass_ms(99) == []
    assert asked(n0.pass_ms(1)) == [(True, 1), (True, 1)]


def test_a_stopped_process_reads_its_queue_before_it_asks() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    n0.pass_ms(5000)
    assert n0.node.role is Role.CANDIDATE
    n0.hear(1, heartbeat(1))
    assert n0.node.role is Role.FOLLOWER
    assert asked([e.message for e in n0.sent]) == []


def test_a_stopped_leader_notices_it_before_it_answers() -> None:
    n0 = LoneMember().lead()
    n0.pass_ms(5000)
    assert n0.node.role is Role.CANDIDATE
    assert n0.hear(1, vote_request(2, EntryId(0, 1)))[0].result is ACCEPT


def test_no_vote_is_asked_for_in_a_term_of_an_earlier_life() -> None:
    n0 = LoneMember(term=4, vote="n0")
    n0.pass_ms(100)
    assert asked(n0.pass_ms(100)) == [(True, 5), (True, 5)]


# ---------------------------------------------------------------- outcomes of a round


def candidate(size: int = 3, **more: object) -> LoneMember:
    """n0 has raised its term to 1 and asked for votes."""
    n0 = LoneMember(size, **more)
    n0.pass_ms(100)
    n0.pass_ms(100)
    for i in range(1, size // 2 + 1):
        pre_vote(n0, i)
    assert n0.node.term == n0.node._state.restart_term + 1
    return n0


def test_missing_answers_are_asked_for_again_in_the_same_term() -> None:
    n0 = candidate()
    assert asked(n0.pass_ms(100)) == [(False, 1), (False, 1)]


def test_votes_of_earlier_rounds_of_the_term_count() -> None:
    n0 = candidate(5)
    vote(n0, 1)
    n0.pass_ms(100)
    vote(n0, 2)
    assert n0.node.role is Role.LEADER


def test_a_refusal_does_not_take_a_vote_back() -> None:
    """Answers of two rounds may arrive in any order; a vote is a promise for its term."""
    n0 = candidate(5)
    vote(n0, 1)
    vote(n0, 1, VoteResult.REJECT_ALREADY_HAS_LEADER)
    vote(n0, 2)
    assert n0.node.role is Role.LEADER


def test_somebody_with_a_leader_means_to_ask_again_in_the_same_term() -> None:
    n0 = candidate()
    vote(n0, 1, VoteResult.REJECT_ALREADY_HAS_LEADER)
    vote(n0, 2, VoteResult.REJECT_ALREADY_VOTED)
    assert asked(n0.pass_ms(100)) == [(False, 1), (False, 1)]


def test_who_cannot_win_with_this_log_leaves_the_next_move_to_the_others() -> None:
    n0 = LoneMember()
    n0.pass_ms(100)
    n0.pass_ms(100)
    for i in (1, 2):
        pre_vote(n0, i, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)
    assert asked(n0.pass_ms(199)) == []
    assert asked(n0.pass_ms(1)) == [(True, 1), (True, 1)]


def test_a_refused_pre_vote_raises_no_term() -> None:
    n0 = LoneMember()
    n0.pass_ms(100)
    for _ in range(10):
        n0.pass_ms(100)
        for i in (1, 2):
            pre_vote(n0, i, VoteResult.REJECT_ALREADY_HAS_LEADER)
    assert n0.disk.hard_state == (0, None)


def test_an_observer_s_answer_counts_in_nothing() -> None:
    n0 = LoneMember()
    n0.voters = (n0.voters[0], n0.take_place_of(1, "wiped"), n0.voters[2])
    n0.pass_ms(100)
    n0.pass_ms(100)
    pre_vote(n0, 1)
    assert n0.node.term == 0
    pre_vote(n0, 2)
    assert n0.node.term == 1
    vote(n0, 1)
    assert n0.node.role is Role.CANDIDATE
    vote(n0, 2)
    assert n0.node.role is Role.LEADER


def test_a_late_answer_to_another_campaign_elects_nobody() -> None:
    """Asked for term 2 now: a vote of term 1 that arrives late must not make a leader of term 1."""
    n0 = candidate()
    for i in (1, 2):
        vote(n0, i, VoteResult.REJECT_ALREADY_VOTED)
    n0.pass_ms(100)
    n0.hear(1, VoteResponse(term=1, vote_term=1, pre_vote=False, result=ACCEPT))
    assert (n0.node.role, n0.node.term) == (Role.CANDIDATE, 1)


# ---------------------------------------------------------------- the voter


@pytest.mark.parametrize(
    ("request_of", "result", "term_after"),
    [
        (vote_request(6), VoteResult.REJECT_EXPIRED_LEDGER_TERM, 6),
        (vote_request(6, EntryId(0, 2)), VoteResult.REJECT_SMALL_LEDGER_END_INDEX, 6),
        (vote_request(5, EntryId(1, 2)), VoteResult.REJECT_ALREADY_VOTED, 5),
        (vote_request(4, EntryId(1, 2)), VoteResult.REJECT_EXPIRED_VOTE_TERM, 5),
        (vote_request(5, EntryId(1, 2), pre_vote=True), VoteResult.REJECT_EXPIRED_VOTE_TERM, 5),
        (vote_request(6, EntryId(0, 2), pre_vote=True), VoteResult.REJECT_SMALL_LEDGER_END_INDEX, 5),
        (vote_request(6, EntryId(1, 2), pre_vote=True), ACCEPT, 5),
        (vote_request(6, EntryId(1, 2)), ACCEPT, 6),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_a_voter_answers_and_adopts(
    request_of: VoteRequest, result: VoteResult, term_after: int
) -> None:
    """Log (0,1) (1,2), term 5, vote for n2; n1 asks. Any refusal of a vote but a sticky one adopts the
    higher term; the answer carries the voter's own term."""
    n0 = LoneMember(terms=(1, 2), term=5, vote="n2")
    (answer,) = n0.hear(1, request_of)
    assert answer.result is result
    assert n0.node.term == answer.term == term_after
    assert (answer.vote_term, answer.pre_vote) == (request_of.vote_term, request_of.pre_vote)


def test_a_candidate_that_the_own_list_does_not_name_is_voted_for() -> None:
    """It may be a voter by an entry that is missing here, and need this vote."""
    n0 = LoneMember()
    n0.voters = (n0.voters[0], n0.take_place_of(1, "another directory"), n0.voters[2])
    (answer,) = n0.hear(1, vote_request(5))
    assert answer.result is VoteResult.ACCEPT
    assert n0.node.term == 5


def test_a_vote_of_an_unknown_directory_is_a_vote_all_the_same() -> None:
    """Taken over from a Java `currterm` file: the name is known, the directory is not."""
    n0 = LoneMember(term=3)
    n0.node._state.voted_for = Replica("n1", "?")
    assert n0.hear(1, vote_request(3))[0].result is VoteResult.REJECT_ALREADY_VOTED


def test_a_granted_vote_gives_the_candidate_time() -> None:
    n0 = LoneMember()
    n0.pass_ms(100)
    n0.hear(1, vote_request(1))
    n0.pass_ms(749)
    assert n0.node.role is Role.FOLLOWER
    n0.pass_ms(1)
    assert n0.node.role is Role.CANDIDATE


def test_a_leader_that_wants_to_be_elected_leads_no_more() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    (answer,) = n0.hear(1, vote_request(2, pre_vote=True))
    assert answer.result is ACCEPT
    assert (n0.node.role, n0.node.leader) == (Role.CANDIDATE, None)


def test_an_old_request_of_the_leader_that_won_since_is_just_old() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    n0.hear(1, vote_request(1, pre_vote=True))
    assert n0.node.leader == n0.peer(1)


# ---------------------------------------------------------------- lost connections


def lost(n0: LoneMember, i: int = 1, *, is_gone: bool = True) -> None:
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(i), is_gone=is_gone))


def test_a_closed_connection_to_the_leader_starts_a_pre_vote_soon() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    lost(n0)
    assert n0.node.next_wakeup_ms() <= 50
    assert asked(n0.pass_ms(50)) == [(True, 2)]


@pytest.mark.parametrize("how", ["another member", "our own time-out"])
def test_other_losses_start_nothing(how: str) -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    if how == "another member":
        lost(n0, 2)
    else:
        lost(n0, 1, is_gone=False)
    n0.pass_ms(749)
    assert n0.node.role is Role.FOLLOWER


def test_who_lost_the_connection_has_not_heard_the_leader() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    assert n0.hear(2, vote_request(2, pre_vote=True))[0].result is not ACCEPT
    lost(n0)
    assert n0.hear(2, vote_request(2, pre_vote=True))[0].result is ACCEPT


def test_hearing_the_leader_on_a_new_connection_cancels_the_hint() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    lost(n0)
    n0.node.on_connected(n0.peer(1))
    n0.hear(1, heartbeat(1))
    n0.pass_ms(749)
    assert n0.node.role is Role.FOLLOWER
    n0.pass_ms(1)
    assert asked(n0.pass_ms(1)) == [], "and the next silence is an ordinary one"


def test_what_was_under_way_on_the_lost_connection_does_not_cancel_it() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    lost(n0)
    assert n0.hear(1, heartbeat(1)) == []
    assert asked(n0.pass_ms(50)) == [(True, 2)]


def test_a_leader_sends_a_heartbeat_at_once_on_a_connection_that_opens() -> None:
    n0 = LoneMember().lead()
    lost(n0)
    said = n0.act(lambda: n0.node.on_connected(n0.peer(1)))
    assert any(isinstance(message, HeartbeatRequest) for message in said)


# ---------------------------------------------------------------- terms of replies


@pytest.mark.parametrize(
    "reply",
    [
        HeartbeatResponse(term=8, round=1, accepted=False),
        PushEntryResponse(term=8, push=PushType.APPEND, result=PushResult.EXPIRED_TERM),
        VoteResponse(term=8, vote_term=2, pre_vote=True, result=VoteResult.REJECT_EXPIRED_VOTE_TERM),
    ],
    ids=lambda reply: type(reply).__name__,
)
def test_a_follower_does_not_adopt_the_term_of_a_late_reply(reply: object) -> None:
    """Only who leads or wants to lead has a use for it; a follower would lose its leader over it."""
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    n0.hear(2, reply)
    assert (n0.node.term, n0.node.leader) == (1, n0.peer(1))


def test_a_follower_that_asks_for_pre_votes_does() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    n0.hear(1, TakeLeadershipRequest(term=1, ledger_end=NO_ENTRY))
    assert n0.node.role is Role.FOLLOWER
    pre_vote(n0, 2, VoteResult.REJECT_ALREADY_HAS_LEADER, term=4)
    assert (n0.node.role, n0.node.term) == (Role.CANDIDATE, 4)


# ---------------------------------------------------------------- taking over


def test_who_is_asked_to_take_over_goes_on_while_it_hears_the_leader() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    said = n0.hear(1, TakeLeadershipRequest(term=1, ledger_end=NO_ENTRY))
    assert asked(said) == [(True, 2), (True, 2)]
    assert {request.transfer_mark for request in said} == {(n0.peer(1), 1)}
    n0.hear(1, heartbeat(1))
    pre_vote(n0, 2)
    assert n0.node.term == 2
    vote(n0, 2)
    assert n0.node.role is Role.LEADER


def test_who_is_behind_waits_to_be_asked_again() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    assert n0.hear(1, TakeLeadershipRequest(term=1, ledger_end=EntryId(3, 1))) == []


def test_who_takes_over_refuses_a_rival_with_the_same_log() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    n0.hear(1, TakeLeadershipRequest(term=1, ledger_end=NO_ENTRY))
    mark = (n0.peer(1), 1)
    (answer,) = n0.hear(2, vote_request(2, pre_vote=True, transfer_mark=mark))
    assert answer.result is VoteResult.REJECT_TAKING_LEADERSHIP


def test_a_take_over_that_comes_to_nothing_is_forgotten() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    n0.hear(1, TakeLeadershipRequest(term=1, ledger_end=NO_ENTRY))
    n0.pass_ms(100)
    n0.hear(1, heartbeat(1))
    pre_vote(n0, 2)
    assert (n0.node.role, n0.node.term) == (Role.FOLLOWER, 1)
