"""Linearizable reads of who follows, and since when a member may have missed something."""

from __future__ import annotations

import math

import pytest

from quorumlog.consensus.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    PushEntryResponse,
    PushResult,
    PushType,
    ReadIndexRequest,
    ReadIndexResponse,
)
from quorumlog.errors import LeaderNotReady, NotLeader

from .harness import LoneMember


def beat(
    number: int, *, answered: int = 0, confirmed: int = 0, committed: int = -1, term: int = 1
) -> HeartbeatRequest:
    return HeartbeatRequest(
        term=term,
        round=number,
        committed_index=committed,
        answered_round=answered,
        confirmed_round=confirmed,
    )


def follower(*, terms: tuple[int, ...] = (1, 1, 1), committed: int = 1) -> LoneMember:
    """n0 holds three entries, of which it knows two to be committed, and follows n1."""
    n0 = LoneMember(terms=terms, committed=committed)
    n0.hear(1, beat(1))
    return n0


def since_ms(n0: LoneMember) -> float:
    return n0.node.reads.fresh_since_ms()


def granted(n0: LoneMember) -> list[int]:
    return [grant.number for ready in n0.readys for grant in ready.read_grants]


def questions(n0: LoneMember) -> list[ReadIndexRequest]:
    return n0.to(1, ReadIndexRequest)


def answer(n0: LoneMember, number: int, index: int, term: int = 1) -> None:
    n0.hear(1, ReadIndexResponse(term=term, number=number, index=index))


def leader_of_three() -> LoneMember:
    """n0 leads term 1, and its no-op is committed."""
    n0 = LoneMember().lead()
    for push, index in ((PushType.COMPARE, -1), (PushType.APPEND, 0)):
        n0.hear(
            1,
            PushEntryResponse(
                term=1, push=push, result=PushResult.SUCCESS, number=1, index=index, first_index=0
            ),
        )
    return n0


# ---------------------------------------------------------------- questions


def test_a_follower_asks_once_for_all_that_wait_and_grants_what_it_has_committed() -> None:
    n0 = follower()
    numbers: list[int] = []
    n0.act(lambda: numbers.extend(n0.node.reads.request() for _ in range(5)))
    (question,) = questions(n0)
    answer(n0, question.number, 1)
    assert granted(n0) == numbers


def test_what_arrives_while_a_question_is_on_its_way_waits_for_the_next_one() -> None:
    n0 = follower()
    first: list[int] = []
    later: list[int] = []
    n0.act(lambda: first.append(n0.node.reads.request()))
    n0.act(lambda: later.extend(n0.node.reads.request() for _ in range(3)))
    assert len(questions(n0)) == 1
    answer(n0, questions(n0)[0].number, 1)
    assert granted(n0) == first, "the round that was asked for may have begun before the others came"
    answer(n0, questions(n0)[1].number, 1)
    assert granted(n0) == first + later


def test_a_follower_grants_nothing_before_it_has_committed_so_far() -> None:
    n0 = follower()
    n0.act(lambda: n0.node.reads.request())
    answer(n0, questions(n0)[0].number, 2)
    assert granted(n0) == []


def test_a_question_that_was_lost_is_asked_again_when_the_leader_is_heard() -> None:
    n0 = follower()
    n0.act(lambda: n0.node.reads.request())
    n0.pass_ms(150)
    n0.hear(1, beat(2))
    one, again = questions(n0)
    assert one == again, "it is the same question: either answer came after the reads"
    answer(n0, again.number, 1)
    answer(n0, again.number, 1)
    assert len(granted(n0)) == 1


def test_the_answer_of_another_term_or_member_is_worth_nothing() -> None:
    n0 = follower()
    n0.act(lambda: n0.node.reads.request())
    number = questions(n0)[0].number
    n0.hear(2, ReadIndexResponse(term=1, number=number, index=1))
    answer(n0, number, 1, term=0)
    assert granted(n0) == []
    n0.hear(2, beat(1, term=2))
    answer(n0, number, 1)
    assert granted(n0) == [], "who waits is told that the leader has changed"
    assert any(ready.role_change for ready in n0.readys)


def test_who_knows_no_leader_or_one_that_answers_nobody_says_so() -> None:
    n0 = LoneMember()
    with pytest.raises(LeaderNotReady, match="knows no leader"):
        n0.node.reads.request()
    n0.hear(1, HeartbeatRequest(term=1, round=1, committed_index=-1))
    with pytest.raises(NotLeader, match="earlier release") as refusal:
        n0.node.reads.request()
    assert refusal.value.leader_id == "n1"


def test_a_leader_answers_a_follower_after_a_round_that_began_later() -> None:
    n0 = leader_of_three()
    round_before = n0.node._elector.round
    said = n0.hear(2, ReadIndexRequest(term=1, number=7))
    assert {m.round for m in said if isinstance(m, HeartbeatRequest)} == {round_before + 1}
    n0.hear(1, HeartbeatResponse(term=1, round=round_before, accepted=True))
    assert n0.to(2, ReadIndexResponse) == []
    n0.hear(1, HeartbeatResponse(term=1, round=round_before + 1, accepted=True))
    (answered,) = n0.to(2, ReadIndexResponse)
    assert (answered.number, answered.index) == (7, 0)


def test_what_a_process_had_asked_is_not_answered_to_the_next_one() -> None:
    """Which numbers its questions anew, and asks after more was acknowledged."""
    n0 = leader_of_three()
    n0.hear(2, ReadIndexRequest(term=1, number=1))
    asked = n0.node._elector.round
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(2), is_gone=True))
    n0.act(lambda: n0.node.on_connected(n0.peer(2)))
    n0.hear(2, ReadIndexRequest(term=1, number=1))
    n0.hear(1, HeartbeatResponse(term=1, round=asked, accepted=True))
    assert n0.to(2, ReadIndexResponse) == []
    n0.hear(1, HeartbeatResponse(term=1, round=n0.node._elector.round, accepted=True))
    assert len(n0.to(2, ReadIndexResponse)) == 1


def test_a_leader_answers_nobody_before_it_has_committed_in_its_term() -> None:
    n0 = LoneMember(terms=(1, 1), committed=0).lead()
    n0.hear(2, ReadIndexRequest(term=n0.node.term, number=1))
    n0.hear(1, HeartbeatResponse(term=n0.node.term, round=n0.node._elector.round, accepted=True))
    assert n0.to(2, ReadIndexResponse) == []


# ---------------------------------------------------------------- freshness


def test_the_age_counts_from_before_the_round_was_sent_however_long_it_was_on_its_way() -> None:
    n0 = follower()  # round 1 is answered at 0 ms
    n0.pass_ms(500)
    n0.hear(1, beat(2, answered=1, committed=1))
    assert since_ms(n0) == -math.inf, "nobody has said that a quorum has answered"
    n0.pass_ms(100)
    n0.hear(1, beat(3, answered=1, confirmed=2, committed=1))
    assert since_ms(n0) == 0, "round 2 may have been sent when the answer to round 1 arrived"
    n0.hear(1, beat(4, answered=2, confirmed=3, committed=1))
    assert since_ms(n0) == 0, "and so may round 3"
    n0.hear(1, beat(5, answered=4, confirmed=4, committed=1))
    assert since_ms(n0) == 500, "round 4 was sent after the answer to round 2"


def test_only_what_is_committed_here_makes_fresh() -> None:
    n0 = follower()
    n0.hear(1, beat(2, answered=1, committed=1))
    n0.hear(1, beat(3, answered=1, confirmed=2, committed=9))
    assert since_ms(n0) == -math.inf
    n0 = follower()
    n0.pass_ms(100)
    n0.hear(1, beat(2, answered=1, committed=1))
    n0.hear(1, beat(3, answered=2, confirmed=2, committed=1))
    n0.hear(1, beat(4, answered=2, confirmed=3, committed=9))
    assert since_ms(n0) == 0, "not 100, of which only 9 would make it fresh"


def test_a_repeated_round_says_nothing_of_when_it_was_sent() -> None:
    n0 = follower()
    n0.pass_ms(100)
    n0.hear(1, beat(1, answered=-1))
    n0.hear(1, beat(2, answered=1, committed=1))
    n0.hear(1, beat(3, answered=2, confirmed=2, committed=1))
    assert since_ms(n0) == 0, "the first answer to round 1 counts"


def test_another_leader_begins_anew_and_what_is_known_stays_known() -> None:
    n0 = follower()
    n0.pass_ms(100)
    n0.hear(1, beat(2, answered=1, committed=1))
    n0.hear(1, beat(3, answered=1, confirmed=2, committed=1))
    n0.pass_ms(100)
    n0.hear(2, beat(9, term=2, answered=2, committed=1))
    n0.hear(2, beat(10, term=2, answered=2, confirmed=9, committed=1))
    assert since_ms(n0) == 0, "answers to n1 say nothing of rounds of n2"


def test_a_leader_tells_the_round_that_a_quorum_has_answered() -> None:
    n0 = leader_of_three()
    assert n0.to(2, HeartbeatRequest)[-1].confirmed_round == 0
    asked = n0.node._elector.round
    n0.hear(1, HeartbeatResponse(term=1, round=asked, accepted=True))
    n0.pass_ms(150)
    told = n0.to(2, HeartbeatRequest)[-1]
    assert (told.round, told.confirmed_round, told.answered_round) == (asked + 1, asked, 0)
    assert n0.to(1, HeartbeatRequest)[-1].answered_round == asked
    n0.pass_ms(150)
    assert n0.to(2, HeartbeatRequest)[-1].confirmed_round == asked, "nobody has answered the newer one"
    n0.node.on_connection_lost(n0.peer(1), is_gone=False)
    n0.act(lambda: n0.node.on_connected(n0.peer(1)))
    assert n0.to(1, HeartbeatRequest)[-1].answered_round == -1, "it was sent before, to others"


def test_a_leader_tells_nothing_before_it_has_committed_in_its_term() -> None:
    n0 = LoneMember(terms=(1, 1), committed=0).lead()
    term = n0.node.term
    n0.hear(1, HeartbeatResponse(term=term, round=n0.node._elector.round, accepted=True))
    n0.pass_ms(150)
    assert n0.to(2, HeartbeatRequest)[-1].confirmed_round == 0
    assert since_ms(n0) == -math.inf


def test_a_leader_is_as_fresh_as_the_round_that_was_confirmed_last() -> None:
    n0 = leader_of_three()
    sent_ms = n0.now_ms
    asked = n0.node._elector.round
    n0.pass_ms(120)
    n0.hear(1, HeartbeatResponse(term=1, round=asked, accepted=True))
    assert since_ms(n0) <= sent_ms


def test_what_is_remembered_of_rounds_is_bounded() -> None:
    n0 = follower()
    for number in range(2, 1000):
        n0.hear(1, beat(number, answered=1, confirmed=1, committed=50))
    freshness = n0.node.reads._freshness
    assert max(map(len, (freshness._answered_ms, freshness._rounds, freshness._reported))) <= 64
