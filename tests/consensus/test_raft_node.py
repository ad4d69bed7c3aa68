"""The seam: what is dropped, what one Ready holds, and when the next turn is due."""

from __future__ import annotations

import math

import pytest

from quorumlog.consensus import Role
from quorumlog.consensus.messages import HeartbeatResponse, PushEntryResponse, PushResult
from quorumlog.consensus.ready import RoleChange
from quorumlog.entry import NO_ENTRY, EntryId, EntryKind, Replica
from quorumlog.errors import LeaderNotReady, NotLeader

from .harness import LoneMember
from .test_paper import ack, append, heartbeat, matched, vote_request


def test_nothing_to_do_means_no_ready() -> None:
    n0 = LoneMember()
    assert n0.node.ready() is None
    n0.node.advance(1)
    assert n0.node.ready() is None


def test_numbers_count_the_readys() -> None:
    n0 = LoneMember().lead()
    n0.act(lambda: n0.propose("a"))
    assert [ready.number for ready in n0.readys] == list(range(1, len(n0.readys) + 1))


@pytest.mark.parametrize("how", ["never connected", "lost", "another directory"])
def test_messages_of_who_is_not_connected_are_dropped(how: str) -> None:
    n0 = LoneMember(term=1)
    if how == "never connected":
        n0.voters = (n0.voters[0], Replica("n7", "x"), n0.voters[2])
    elif how == "lost":
        n0.node.on_connection_lost(n0.peer(1), is_gone=True)
    else:
        n0.take_place_of(1, "wiped")
        n0.carry_out()
    assert n0.hear(1, heartbeat(5)) == []
    assert n0.node.term == 1


def test_a_message_is_addressed_to_the_directory_that_is_connected() -> None:
    n0 = LoneMember().lead()
    n0.act(lambda: n0.take_place_of(1, "wiped"))
    n0.pass_ms(150)
    assert {e.to for e in n0.sent[-2:]} == {Replica("n1", "wiped"), n0.peer(2)}


def test_two_directories_of_one_member_are_two_replicas() -> None:
    """As while one takes the place of the other: each is fed and counted for itself."""
    old, new = Replica("n1", "n1-d0"), Replica("n1", "new")
    n0 = LoneMember().lead()
    n0.act(lambda: n0.node.on_connected(new))
    assert [peer.replica for peer in n0.node.status().peers] == [old, new, n0.peer(2)]
    n0.pass_ms(150)
    assert {e.to for e in n0.sent[-3:]} == {old, new, n0.peer(2)}
    n0.act(lambda: n0.node.on_connection_lost(old, is_gone=True))
    assert n0.node.connected == (new, n0.peer(2))
    assert [peer.replica for peer in n0.node.status().peers] == [new, n0.peer(2)]


def test_two_leaders_of_one_term_are_not_followed() -> None:
    n0 = LoneMember()
    n0.hear(1, heartbeat(1))
    (beat,) = n0.hear(2, heartbeat(1))
    assert not beat.accepted
    (push,) = n0.hear(2, append(1, NO_ENTRY, [1]))
    assert push.result is PushResult.INCONSISTENT_LEADER
    assert n0.node.leader == n0.peer(1)


def test_a_leader_that_the_own_list_does_not_name_is_followed() -> None:
    """It may lead by an entry that is missing here, and bring it."""
    n0 = LoneMember()
    n0.voters = (n0.voters[0], n0.take_place_of(1, "another directory"), n0.voters[2])
    (beat,) = n0.hear(1, heartbeat(9))
    assert beat.accepted
    assert (n0.node.role, n0.node.term) == (Role.FOLLOWER, 9)


def test_refusals_name_the_leader_or_say_that_none_is_known() -> None:
    n0 = LoneMember()
    with pytest.raises(LeaderNotReady):
        n0.node.propose(1)
    n0.hear(2, heartbeat(1))
    for request in (lambda: n0.node.propose(1), n0.node.request_read):
        with pytest.raises(NotLeader) as caught:
            request()
        assert caught.value.leader_id == "n2"


def test_propose_gives_consecutive_indices_of_the_term() -> None:
    n0 = LoneMember(terms=(1, 1)).lead()
    assert n0.propose("a", "b") == EntryId(3, 2)
    assert n0.propose("c") == EntryId(5, 2)
    n0.carry_out()
    orders = n0.readys[-1].append
    assert [(o.first_index, o.count, o.term, o.kind, o.batch) for o in orders] == [
        (3, 2, 2, EntryKind.NORMAL, None),
        (5, 1, 2, EntryKind.NORMAL, None),
    ]


def test_one_ready_orders_a_cut_and_what_comes_after_it() -> None:
    """Two leaders' pushes within one turn: what the second overtakes is never given out."""
    n0 = LoneMember(terms=(1, 1))
    node = n0.node
    for i, request in [
        (1, append(2, EntryId(1, 1), [2, 2, 2])),
        (2, append(3, EntryId(2, 2), [3])),
        (1, append(4, EntryId(0, 1), [4])),
    ]:
        node.step(type(request)(**{**_fields(request), "sender": n0.peer(i)}))
    ready = node.ready()
    assert ready is not None
    assert ready.truncate_from == 1
    assert [(o.first_index, o.count, o.term) for o in ready.append] == [(1, 1, 4)]
    assert node.ready() is None


def _fields(message: object) -> dict[str, object]:
    return {name: getattr(message, name) for name in type(message).__struct_fields__}


def test_role_changes_are_told_once_each() -> None:
    n0 = LoneMember().lead()
    n0.hear(1, heartbeat(5))
    n0.hear(1, heartbeat(5))
    changes = [ready.role_change for ready in n0.readys if ready.role_change]
    assert changes == [
        RoleChange(Role.CANDIDATE, 0, None),
        RoleChange(Role.CANDIDATE, 1, None),
        RoleChange(Role.LEADER, 1, "n0"),
        RoleChange(Role.FOLLOWER, 5, "n1"),
    ]


def test_losing_leadership_drops_the_reads() -> None:
    n0 = matched(LoneMember().lead(), 1)
    n0.hear(1, ack(1, 0))
    n0.act(lambda: n0.node.request_read())
    n0.hear(2, heartbeat(2))
    n0.hear(1, HeartbeatResponse(term=2, round=9, accepted=True))
    assert not any(ready.read_grants for ready in n0.readys)


def test_reads_share_a_round() -> None:
    n0 = matched(LoneMember().lead(), 1)
    n0.hear(1, ack(1, 0))

    def three_reads() -> None:
        for _ in range(3):
            n0.node.request_read()

    beats = [m for m in n0.act(three_reads) if hasattr(m, "round")]
    assert len(beats) == 2, "one for each follower"
    assert n0.act(three_reads) == [], "the next ones wait for the round that is on its way"
    said = n0.hear(1, HeartbeatResponse(term=1, round=beats[0].round, accepted=True))
    assert [m.round for m in said] == [beats[0].round + 1] * 2


def test_a_single_member_reads_and_commits_alone() -> None:
    n0 = LoneMember(1).lead()
    assert n0.node.committed_index == 0
    n0.act(lambda: n0.node.request_read())
    assert n0.readys[-1].read_grants[0].index == 0


def test_durable_means_up_to_the_cut_that_came_later() -> None:
    """A sync that began before a cut vouches only for what the cut has left."""
    n0 = LoneMember()
    n0.hear(1, append(1, NO_ENTRY, [1, 1, 1, 1]))
    n0.begin_sync()
    n0.hear(2, append(2, EntryId(1, 1), [2, 2]))
    n0.act(n0.finish_sync)
    assert n0.node.log.durable_index == 1
    n0.sync_now()
    assert n0.node.log.durable_index == 3


def test_the_next_wakeup_of_each_role() -> None:
    n0 = LoneMember()
    assert n0.node.next_wakeup_ms() == 100
    n0.pass_ms(100)
    assert (n0.node.role, n0.node.next_wakeup_ms()) == (Role.CANDIDATE, 200)
    n0.hear(1, heartbeat(1))
    assert n0.node.next_wakeup_ms() == 850
    n0 = LoneMember().lead()
    assert n0.node.next_wakeup_ms() == 350


def test_time_never_runs_backwards() -> None:
    n0 = LoneMember()
    n0.pass_ms(100)
    with pytest.raises(AssertionError):
        n0.node.advance(99)


def test_status_is_a_picture() -> None:
    n0 = LoneMember(terms=(1, 1, 2), committed=1)
    status = n0.node.status()
    assert (status.ledger_begin_index, status.ledger_end) == (0, EntryId(2, 2))
    assert (status.durable_index, status.committed_index) == (2, 1)
    assert (status.role, status.term, status.voters) == (Role.FOLLOWER, 2, n0.voters)
    assert (status.waits_for, status.problems, status.peers) == ("", (), ())


def test_an_empty_log_begins_nowhere() -> None:
    assert LoneMember().node.status().ledger_begin_index == -1


def test_a_vote_request_of_a_follower_wakes_nobody_in_vain() -> None:
    """An observer has no timer at all."""
    n0 = LoneMember()
    n0.hear(1, vote_request(1))
    assert n0.node.next_wakeup_ms() < math.inf


def test_an_answer_to_a_push_of_an_earlier_term_moves_no_mark() -> None:
    n0 = LoneMember().lead()
    n0.hear(2, heartbeat(2))
    n0.pass_ms(1000)
    n0.lead()
    matched(n0, 1)
    term = n0.node.term
    late = PushEntryResponse(
        term=term - 1, push=append(1, NO_ENTRY, [1]).push, result=PushResult.SUCCESS, index=1
    )
    n0.hear(1, late)
    assert n0.node.status().peers[0].match_index == -1
