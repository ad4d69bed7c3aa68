"""A directory that holds less than it acknowledged to this leader: found, told, counted no more."""

from __future__ import annotations

import pytest

from quorumlog.consensus.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
    VoteRequest,
    VoteResponse,
)
from quorumlog.consensus.ready import Role
from quorumlog.entry import EntryId, Replica, SetBack

from .harness import LoneMember
from .test_entry_dispatcher import peer_status, pushes, stay_alive
from .test_paper import ack, matched


def acknowledged(index: int, *, syncs: bool = True, terms: tuple[int, ...] = ()) -> LoneMember:
    """n0 leads the term after `terms`, and n1 has acknowledged all of its log, up to `index`."""
    n0 = LoneMember(terms=terms)
    for i in (1, 2):
        n0.node.on_connected(n0.peer(i), syncs=syncs)
    n0.lead()
    matched(n0, 1, 2)
    more = index - len(n0.disk.entries) + 1
    if more:
        n0.act(lambda: n0.propose(*range(more)))
    n0.sync_now()
    n0.hear(1, ack(n0.node.term, index))
    assert n0.node.committed_index == index
    return n0


def come_back(n0: LoneMember, *, syncs: bool = True) -> None:
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(1), is_gone=True))
    n0.act(lambda: n0.node.on_connected(n0.peer(1), syncs=syncs))


def refuse(n0: LoneMember, end_index: int, **conflict: int) -> None:
    """n1 does not hold what it was asked for last."""
    asked = [push for push in n0.to(1, PushEntryRequest) if push.number][-1]
    n0.hear(
        1,
        PushEntryResponse(
            term=n0.node.term,
            push=asked.push,
            result=PushResult.INCONSISTENT_STATE,
            number=asked.number,
            ledger_end_index=end_index,
            **conflict,
        ),
    )


def confirm(n0: LoneMember, end_index: int) -> None:
    asked = n0.to(1, PushEntryRequest)[-1]
    assert asked.push is PushType.COMPARE, asked
    n0.hear(
        1,
        PushEntryResponse(
            term=n0.node.term,
            push=asked.push,
            result=PushResult.SUCCESS,
            number=asked.number,
            index=asked.previous.index,
            ledger_end_index=end_index,
        ),
    )


def told(n0: LoneMember) -> list[SetBack]:
    return [beat.set_back for beat in n0.to(1, HeartbeatRequest) if beat.set_back is not None]


def test_a_directory_that_holds_less_than_it_acknowledged_is_told_so_and_named() -> None:
    n0 = acknowledged(50)
    come_back(n0)
    refuse(n0, 30)  # the COMMIT that asks what has arrived
    assert told(n0) == [], "that answer may be older than the acknowledgement"
    assert n0.to(1, PushEntryRequest)[-1].previous.index == 50
    refuse(n0, 30)
    assert told(n0) == [SetBack("n1-d0", 50, 30)]
    (problem,) = n0.node.status().problems
    assert problem.startswith("directory n1-d0 of n1 was rolled back: ")
    assert "(now ends at 30, had acknowledged entry 50)" in problem
    said = n0.pass_ms(150)
    assert [m.set_back for m in said if isinstance(m, HeartbeatRequest)] == [
        None,
        SetBack("n1-d0", 50, 30),
    ]


def test_what_it_holds_instead_does_not_count() -> None:
    """The older copy is as long, with entries of a term that was never committed."""
    n0 = acknowledged(9, terms=(1, 1, 1, 2, 2, 2))
    come_back(n0)
    refuse(n0, 9, conflict_term=1, conflict_first_index=0)
    refuse(n0, 9, conflict_term=1, conflict_first_index=0)
    assert told(n0) == [SetBack("n1-d0", 9, 2)]


def test_an_older_copy_that_took_more_since_is_found_by_where_its_log_ends() -> None:
    n0 = acknowledged(5)
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(1), is_gone=True))
    n0.node._async_mode = True  # it is compared from the end on, as after a new connection of a learner
    n0.act(lambda: n0.node.on_connected(n0.peer(1), syncs=True))
    confirm(n0, 4)
    assert told(n0) == [SetBack("n1-d0", 5, 4)]


@pytest.mark.parametrize(("before", "after"), [(False, True), (False, False)])
def test_a_directory_that_did_not_sync_what_it_acknowledged_may_lose_it(
    before: bool, after: bool
) -> None:
    n0 = acknowledged(50, syncs=before)
    come_back(n0, syncs=after)
    refuse(n0, 30)
    confirm(n0, 30)
    assert told(n0) == []
    assert peer_status(n0).compare_index == 30
    assert not n0.node.status().problems


def test_another_directory_of_the_member_has_promised_nothing() -> None:
    n0 = acknowledged(50)
    n0.node.on_connection_lost(n0.peer(1), is_gone=True)
    wiped = Replica("n1", "n1-d1")
    n0.act(lambda: n0.node.on_connected(wiped, syncs=True))
    n0.voters = (n0.voters[0], wiped, n0.voters[2])
    refuse(n0, -1)
    assert told(n0) == []
    assert not n0.node.status().problems


def test_what_was_acknowledged_to_it_in_an_earlier_term_is_no_promise_to_a_leader() -> None:
    """Another leader may have had it cut meanwhile."""
    n0 = acknowledged(50)
    n0.hear(2, VoteResponse(term=7, vote_term=7, pre_vote=False, result=0))
    assert n0.node.role is not Role.LEADER
    n0.lead()
    refuse(n0, 30)
    confirm(n0, 30)
    assert told(n0) == []


def test_a_log_that_begins_above_what_is_asked_for_may_hold_the_rest() -> None:
    n0 = acknowledged(50)
    come_back(n0)
    asked = n0.to(1, PushEntryRequest)[-1]
    n0.hear(
        1,
        PushEntryResponse(
            term=1,
            push=asked.push,
            result=PushResult.INCONSISTENT_STATE,
            number=asked.number,
            ledger_end_index=50,
            begin=EntryId(50, 1),
        ),
    )
    confirm(n0, 50)
    assert told(n0) == []


def test_it_counts_in_nothing_also_when_it_has_caught_up() -> None:
    n0 = acknowledged(50)
    come_back(n0)
    refuse(n0, 30)
    refuse(n0, 30)
    n0.act(lambda: n0.propose("a"))
    n0.sync_now()
    n0.hear(1, ack(1, 51))
    assert n0.node.committed_index == 50
    come_back(n0)
    n0.hear(1, ack(1, 51))
    assert n0.node.committed_index == 50, "another connection makes it no younger"
    assert 51 not in [last for _, last in pushes(n0)], "and it is fed no more"
    confirmed = n0.node._elector.answers.confirmed_round(n0.node._elector.round)
    n0.pass_ms(150)
    beat = n0.node._elector.round
    n0.hear(1, HeartbeatResponse(term=1, round=beat, accepted=True))
    assert n0.node._elector.answers.confirmed_round(beat) <= confirmed
    n0.hear(1, VoteRequest(term=1, vote_term=2, pre_vote=True, ledger_end=EntryId(51, 1)))
    assert not n0.to(1, VoteResponse)
    n0.hear(2, ack(1, 51))
    assert n0.node.committed_index == 51
    assert len(told(n0)) >= 2


def test_what_it_answered_before_it_was_found_counts_no_more() -> None:
    n0 = acknowledged(50)
    n0.act(lambda: n0.propose("a"))
    stay_alive(n0, 150, 1)
    round_before = n0.node._elector.confirmed_round
    assert round_before == n0.node._elector.round
    come_back(n0)
    refuse(n0, 30)
    refuse(n0, 30)
    assert n0.node._elector.confirmed_round < round_before
    n0.sync_now()
    assert n0.node.committed_index == 50


def test_until_it_has_shown_what_it_holds_it_confirms_no_leader() -> None:
    """It may have been put back, and follow this one as it has forgotten the next."""
    n0 = acknowledged(50)
    come_back(n0)
    confirmed = n0.node._elector.confirmed_round
    stay_alive(n0, 1_200, 1)
    assert n0.node._elector.confirmed_round == confirmed
    assert n0.node.role is Role.LEADER, "it is heard all the same"
    asked = [push for push in n0.to(1, PushEntryRequest) if push.asks_what_arrived]
    assert len(asked) == 2, "the first question may have been lost"
    n0.hear(
        1,
        PushEntryResponse(
            term=1,
            push=PushType.COMMIT,
            result=PushResult.RECEIVED,
            number=asked[-1].number,
            index=50,
            first_index=51,
        ),
    )
    stay_alive(n0, 150, 1)
    assert n0.node._elector.confirmed_round == n0.node._elector.round


def test_without_it_a_leader_that_nobody_else_hears_steps_down() -> None:
    n0 = acknowledged(50)
    come_back(n0)
    refuse(n0, 30)
    refuse(n0, 30)
    stay_alive(n0, 3_000, 1)
    assert n0.node.role is not Role.LEADER
    n0.hear(1, VoteResponse(term=1, vote_term=2, pre_vote=True, result=1))
    assert n0.node.term == 1
