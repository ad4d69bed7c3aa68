"""The leader's side of replication: the automaton, the window, resending, and who counts."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.consensus.dispatcher import TRANSITIONS, DispatcherEvent, DispatcherState
from quorumlog.consensus.messages import (
    HeartbeatResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
)
from quorumlog.consensus.ready import PeerStatus, Role
from quorumlog.entry import EntryId, Replica

from .harness import ENTRY_BYTES, LoneMember
from .test_paper import ack, matched


def pushes(n0: LoneMember, i: int = 1) -> list[tuple[int, int]]:
    """(first, last) of every push so far."""
    sent = n0.to(i, PushEntryRequest)
    return [(p.first_index, p.last_index) for p in sent if p.push is PushType.APPEND]


def peer_status(n0: LoneMember, i: int = 1) -> PeerStatus:
    return next(peer for peer in n0.node.status().peers if peer.replica.member_id == f"n{i}")


def stay_alive(n0: LoneMember, milliseconds: int, *peers: int) -> None:
    """Time passes in heartbeats, which these peers answer."""
    for _ in range(milliseconds // 150):
        n0.pass_ms(150)
        for i in peers:
            beat = n0.node._elector.round
            n0.hear(i, HeartbeatResponse(term=n0.node.term, round=beat, accepted=True))


def test_every_state_can_be_entered_and_left() -> None:
    states = set(DispatcherState)
    assert set(TRANSITIONS.values()) == states
    assert {before for before, _ in TRANSITIONS} == states
    assert {event for _, event in TRANSITIONS} == set(DispatcherEvent)


def test_a_way_leads_from_every_state_to_append() -> None:
    for start in DispatcherState:
        seen, waiting = {start}, deque([start])
        while waiting:
            state = waiting.popleft()
            for (before, _), after in TRANSITIONS.items():
                if before is state and after not in seen:
                    seen.add(after)
                    waiting.append(after)
        assert DispatcherState.APPEND in seen


def test_a_dispatcher_starts_at_the_log_end_of_the_election() -> None:
    n0 = LoneMember(terms=(1, 1, 2)).lead()
    (compare,) = n0.to(1, PushEntryRequest)
    assert (compare.push, compare.previous) == (PushType.COMPARE, EntryId(2, 2))


def test_only_an_answer_to_append_moves_a_mark() -> None:
    n0 = LoneMember(terms=(1, 1)).lead()
    matched(n0, 1, 2)
    assert (peer_status(n0).compare_index, peer_status(n0).match_index) == (1, -1)
    n0.hear(1, ack(2, 2))
    assert peer_status(n0).match_index == 2


def test_pushes_are_pipelined_within_the_window() -> None:
    n0 = LoneMember(push_limit_bytes=2 * ENTRY_BYTES, push_window_bytes=6 * ENTRY_BYTES).lead()
    matched(n0, 1)
    n0.hear(1, ack(1, 0))
    n0.act(lambda: n0.propose(*range(20)))
    assert pushes(n0)[1:] == [(1, 2), (3, 4), (5, 6)]
    n0.hear(1, ack(1, 2))
    assert pushes(n0)[4:] == [(7, 8)]
    n0.hear(1, ack(1, 8))
    assert pushes(n0)[5:] == [(9, 10), (11, 12), (13, 14)]


def test_a_larger_entry_than_the_window_still_goes_alone() -> None:
    n0 = LoneMember(push_limit_bytes=10, push_window_bytes=10).lead()
    matched(n0, 1)
    n0.hear(1, ack(1, 0))
    n0.act(lambda: n0.propose("a", "b"))
    assert pushes(n0)[1:] == [(1, 1)]
    n0.hear(1, ack(1, 1))
    assert pushes(n0)[2:] == [(2, 2)]


def test_no_second_order_before_the_report_of_the_first() -> None:
    n0 = LoneMember().lead()
    node = n0.node
    matched(n0, 1)
    node.propose(5)
    first = node.ready()
    assert first is not None
    (order,) = [push for push in first.pushes if push.to == n0.peer(1)]
    node.propose(5)
    assert node.ready().pushes == ()
    node.replication.on_pushed(order.to, order.first_index + 1, 200)
    (order,) = node.ready().pushes
    assert (order.first_index, order.stop_index) == (3, 11)


def test_a_failed_order_comes_again_after_the_time_out() -> None:
    n0 = LoneMember().lead()
    matched(n0, 1, 2)
    n0.hear(1, ack(1, 0))
    n0.node.propose(1)
    (order, _) = n0.node.ready().pushes
    n0.node.replication.on_push_failed(n0.peer(1))
    n0.node.replication.on_pushed(n0.peer(2), 1, 100)
    assert n0.node.ready() is None
    n0._promised.clear()
    n0.disk.entries.append((1, "a"))
    stay_alive(n0, 1200, 1, 2)
    assert pushes(n0)[-1] == (order.first_index, 1)


def test_what_was_on_a_lost_connection_goes_again_at_once() -> None:
    n0 = LoneMember().lead()
    matched(n0, 1)
    n0.hear(1, ack(1, 0))
    n0.act(lambda: n0.propose("a", "b"))
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(1), is_gone=True))
    n0.act(lambda: n0.propose("c"))
    assert pushes(n0)[1:] == [(1, 2)]
    n0.act(lambda: n0.node.on_connected(n0.peer(1)))
    assert pushes(n0)[2:] == [(1, 3)]


def test_a_follower_that_no_longer_holds_what_it_acknowledged_is_compared_anew() -> None:
    """A disk may forget what it has synced. Pushes behind it would wait at the follower for ever."""
    n0 = LoneMember().lead()
    matched(n0, 1)
    n0.act(lambda: n0.propose("a", "b"))
    n0.hear(1, ack(1, 2))
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(1), is_gone=True))
    n0.act(lambda: n0.node.on_connected(n0.peer(1)))
    commit = n0.to(1, PushEntryRequest)[-1]
    assert (commit.push, commit.previous.index) == (PushType.COMMIT, 2)
    lost = PushEntryResponse(
        term=1, push=PushType.COMMIT, result=PushResult.INCONSISTENT_STATE, ledger_end_index=0
    )
    n0.hear(1, lost)
    assert peer_status(n0).state == "COMPARE"
    assert n0.to(1, PushEntryRequest)[-1].previous.index == 0


def test_in_async_mode_a_returning_follower_is_compared_anew() -> None:
    """A power loss may have taken what it had acknowledged."""
    n0 = LoneMember(async_mode=True).lead()
    matched(n0, 1)
    n0.hear(1, ack(1, 0))
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(1), is_gone=True))
    n0.act(lambda: n0.node.on_connected(n0.peer(1)))
    assert peer_status(n0).state == "COMPARE"


def test_a_slow_answer_to_a_question_asked_twice_counts() -> None:
    """Positive answers wait for the disk; if a repeated question had a new number, a disk slower than
    the time-out would never be heard."""
    n0 = LoneMember(terms=(1,)).lead()
    (first,) = n0.to(1, PushEntryRequest)
    stay_alive(n0, 1050, 1, 2)
    again = n0.to(1, PushEntryRequest)[-1]
    assert again.number == first.number
    matched(n0, 1)
    assert peer_status(n0).compare_index == 0


def test_another_directory_under_the_name_begins_at_compare_and_counts_in_nothing() -> None:
    n0 = LoneMember().lead()
    matched(n0, 1)
    n0.hear(1, ack(1, 0))
    committed_index = n0.node.committed_index
    n0.act(lambda: n0.take_place_of(1, "wiped"))
    status = peer_status(n0)
    assert (status.replica, status.is_voter, status.state) == (Replica("n1", "wiped"), False, "COMPARE")
    assert (status.compare_index, status.match_index) == (-1, -1)
    n0.voters = (n0.voters[0], status.replica, n0.voters[2])
    matched(n0, 1)
    n0.act(lambda: n0.propose("a"))
    n0.sync_now()
    n0.hear(1, ack(1, 1))
    assert peer_status(n0).match_index == 1
    assert n0.node.committed_index == committed_index


def test_a_stale_answer_after_a_resend_changes_nothing() -> None:
    n0 = LoneMember().lead()
    matched(n0, 1)
    n0.hear(1, ack(1, 0))
    n0.act(lambda: n0.propose("a"))
    n0.hear(1, ack(1, 1))
    refusal = PushEntryResponse(
        term=1, push=PushType.APPEND, result=PushResult.INCONSISTENT_STATE, first_index=1
    )
    n0.hear(1, refusal)
    assert peer_status(n0).state == "COMMIT"
    n0.hear(1, ack(1, 7))
    assert peer_status(n0).match_index == 1, "an index that was never sent"


def test_a_follower_that_does_not_hold_the_entry_before_a_push_is_compared_anew() -> None:
    n0 = LoneMember(terms=(1, 2, 2, 4)).lead()
    matched(n0, 1)
    refusal = PushEntryResponse(
        term=5,
        push=PushType.APPEND,
        result=PushResult.INCONSISTENT_STATE,
        first_index=5,
        conflict_term=3,
        conflict_first_index=3,
        ledger_end_index=6,
    )
    n0.hear(1, refusal)
    compare = n0.to(1, PushEntryRequest)[-1]
    assert (compare.push, compare.previous) == (PushType.COMPARE, EntryId(2, 2))


def test_commit_goes_out_as_soon_as_the_committed_index_rises_and_nothing_is_to_send() -> None:
    n0 = LoneMember().lead()
    matched(n0, 1, 2)
    n0.hear(1, ack(1, 0))
    for i in (1, 2):
        last = n0.to(i, PushEntryRequest)[-1]
        assert (last.push, last.committed_index) == (PushType.COMMIT, 0)


def commits(n0: LoneMember, i: int) -> list[int]:
    """What every COMMIT so far has told n<i>."""
    sent = n0.to(i, PushEntryRequest)
    return [p.committed_index for p in sent if p.push is PushType.COMMIT]


def level(commit_delay_ms: float) -> LoneMember:
    """A leader whose followers have acknowledged its no-op."""
    n0 = LoneMember(commit_delay_ms=commit_delay_ms).lead()
    matched(n0, 1, 2)
    n0.hear(1, ack(1, 0))
    n0.hear(2, ack(1, 0))
    return n0


def committing(n0: LoneMember, index: int) -> None:
    """An entry is appended, and committed by n1."""
    n0.act(lambda: n0.propose("x"))
    n0.sync_now()
    n0.hear(1, ack(1, index))
    assert n0.node.status().committed_index == index


def test_a_commit_waits_a_little_for_a_push_that_says_the_same() -> None:
    n0 = level(commit_delay_ms=5)
    committing(n0, 1)
    assert n0.node.next_wakeup_ms() == n0.now_ms + 5
    committing(n0, 2)
    assert [p.committed_index for p in n0.to(1, PushEntryRequest) if p.first_index == 2] == [1]
    n0.pass_ms(4)
    assert commits(n0, 1) == commits(n0, 2) == [0], "the pushes of 1 and 2 told of what came before"
    n0.pass_ms(1)
    assert commits(n0, 1) == commits(n0, 2) == [0, 2]


def test_a_follower_that_is_lost_before_it_is_told_of_a_commit_wakes_nobody_in_vain() -> None:
    n0 = level(commit_delay_ms=5)
    committing(n0, 1)
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(2), is_gone=False))
    n0.pass_ms(5)
    assert commits(n0, 2) == [0]
    assert n0.node.next_wakeup_ms() > n0.now_ms
    n0.act(lambda: n0.node.on_connected(n0.peer(2)))
    assert commits(n0, 2)[-1] == 1, "it is told when it is back"


def test_a_push_that_leaves_late_is_not_taken_for_lost_as_it_leaves() -> None:
    """What is read from a file waits for its turn, for longer than an answer is waited for at times."""
    n0 = LoneMember().lead()
    matched(n0, 1)
    n0.hear(1, ack(1, 0))
    n0.holds_pushes = True
    n0.act(lambda: n0.propose("late"))
    stay_alive(n0, 3000, 1, 2)
    n0.holds_pushes = False
    (order,) = n0.held_pushes
    n0.act(lambda: n0.push(order))
    assert pushes(n0)[-1] == (1, 1)
    asked = n0.to(1, PushEntryRequest)[-1].number
    stay_alive(n0, 900, 1, 2)
    assert n0.to(1, PushEntryRequest)[-1].number == asked
    stay_alive(n0, 300, 1, 2)
    assert n0.to(1, PushEntryRequest)[-1].number > asked, "now it is asked about"
    assert pushes(n0).count((1, 1)) == 1
    assert n0.node.role is Role.LEADER


def test_an_unformed_follower_is_asked_again_with_the_next_heartbeat() -> None:
    n0 = LoneMember().lead()
    question = n0.to(1, PushEntryRequest)[-1]
    refusal = PushEntryResponse(
        term=0, push=PushType.COMPARE, result=PushResult.NOT_FORMED, number=question.number
    )
    assert n0.hear(1, refusal) == []
    stay_alive(n0, 150, 1, 2)
    assert n0.to(1, PushEntryRequest)[-1].number > question.number


def test_a_diverged_follower_is_shown_and_asked_again_after_the_time_out() -> None:
    n0 = LoneMember(terms=(1, 3), term=3).lead()
    question = n0.to(1, PushEntryRequest)[-1]
    answer = PushEntryResponse(
        term=4,
        push=PushType.COMPARE,
        result=PushResult.INCONSISTENT_STATE,
        number=question.number,
        conflict_term=2,
        conflict_first_index=1,
        ledger_end_index=1,
    )
    n0.hear(1, answer)
    matched(n0, 1)
    cut = n0.to(1, PushEntryRequest)[-1]
    assert (cut.push, cut.previous, cut.term_runs) == (PushType.TRUNCATE, EntryId(0, 1), ((1, 3),))
    refusal = PushEntryResponse(
        term=4,
        push=PushType.TRUNCATE,
        result=PushResult.DIVERGED_BELOW_COMMIT,
        number=cut.number,
    )
    assert n0.hear(1, refusal) == []
    assert n0.node.status().problems == ("DIVERGED_BELOW_COMMIT: n1 committed another entry at index 1",)
    stay_alive(n0, 1050, 1, 2)
    assert n0.to(1, PushEntryRequest)[-1].push is PushType.TRUNCATE


@pytest.mark.parametrize("size", [2, 3, 7])
def test_dispatchers_are_walked_in_the_order_of_ids(size: int) -> None:
    n0 = LoneMember(size).lead()
    replicas = [peer.replica for peer in n0.node.status().peers]
    assert replicas == sorted(replicas)
    assert len(replicas) == size - 1


terms_lists = st.lists(st.integers(1, 6), max_size=25).map(sorted)


def history(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs that one history of leaders can leave: every term has its entries at one place."""
    common = draw(terms_lists)
    last = common[-1] if common else 0
    own = draw(st.lists(st.integers(1, 5), max_size=12).map(sorted))
    other = draw(st.lists(st.integers(1, 5), max_size=12).map(sorted))
    # Above the fork the terms must differ: even ones for one log, odd ones for the other.
    return common + [last + 2 * t for t in own], common + [last + 2 * t + 1 for t in other]


@given(logs=st.composite(history)())
def test_the_match_found_is_the_last_common_entry_in_as_many_rounds_as_terms(
    logs: tuple[list[int], list[int]],
) -> None:
    mine, theirs = logs
    n0 = LoneMember(2, terms=tuple(mine), term=99).lead()
    follower = LoneMember(2, terms=tuple(theirs), term=99)
    rounds = 0
    for _ in range(100):
        question = n0.to(1, PushEntryRequest)[-1]
        if question.push is not PushType.COMPARE:
            break
        rounds += 1
        follower.hear(1, question)
        follower.sync_now()
        n0.hear(1, follower.to(1, PushEntryResponse)[-1])
    common = 0
    while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
        common += 1
    assert n0.node.status().peers[0].compare_index == common - 1
    assert rounds <= 2 + len(set(mine) | set(theirs))
