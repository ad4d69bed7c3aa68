"""Handing over on request and to preferred members, and what keeps it from going back and forth."""

from __future__ import annotations

import pytest

from quorumlog.consensus import Role
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.messages import HeartbeatResponse, TakeLeadershipRequest, VoteRequest
from quorumlog.entry import EntryId, Replica
from quorumlog.errors import LeaderNotReady, LeaderTransferring, NotLeader, TransferFailed

from .harness import ENTRY_BYTES, LoneMember
from .scenario import Scenario
from .test_entry_dispatcher import stay_alive
from .test_paper import ack, heartbeat, matched


def leading(**settings: object) -> LoneMember:
    """n0 leads term 1, and n1 and n2 have its no-op."""
    n0 = matched(LoneMember(**settings).lead(), 1, 2)
    for i in (1, 2):
        n0.hear(i, ack(1, 0))
    return n0


def refused(n0: LoneMember, to: str) -> str:
    with pytest.raises(TransferFailed) as caught:
        n0.node.transfer_leadership(to)
    assert n0.node.status().transferring_to is None
    return str(caught.value)


def test_refusals_name_the_reason_and_change_nothing() -> None:
    n0 = leading(max_transfer_lag_bytes=2 * ENTRY_BYTES)
    assert refused(n0, "n0") == "n0 leads already"
    assert refused(n0, "n9") == "n9 is not a voter of this group"
    n0.act(lambda: n0.propose("a", "b", "c"))
    reason = refused(n0, "n1")
    assert "3 entries behind" in reason
    assert "max_transfer_lag_bytes (200)" in reason
    n0.node.on_connection_lost(n0.peer(2), is_gone=True)
    assert "n2 is not connected" in refused(n0, "n2")
    n0.take_place_of(2, "wiped")
    assert "n2 is not connected with the directory that is a voter" in refused(n0, "n2")


def test_what_is_on_its_way_keeps_nobody_from_handing_over() -> None:
    """Under load there is always something; appends are refused until it has arrived."""
    n0 = leading()
    n0.act(lambda: n0.propose(*range(50_000)))
    n0.act(lambda: n0.node.transfer_leadership("n1"))
    with pytest.raises(LeaderTransferring):
        n0.propose("a")
    assert n0.to(1, TakeLeadershipRequest) == []
    for last in range(10_000, 50_001, 10_000):
        n0.hear(1, ack(1, last))
    assert [r.ledger_end for r in n0.to(1, TakeLeadershipRequest)] == [EntryId(50_000, 1)]


def test_a_member_that_is_still_compared_with_is_no_target() -> None:
    """What it lacks may be all of the log."""
    n0 = LoneMember(terms=(1, 1, 1), term=1).lead()
    assert "4 entries behind, older than this term" in refused(n0, "n1")


def test_only_a_leader_hands_over() -> None:
    n0 = LoneMember()
    with pytest.raises(LeaderNotReady):
        n0.node.transfer_leadership("n1")
    n0.hear(1, heartbeat(1))
    with pytest.raises(NotLeader) as caught:
        n0.node.transfer_leadership("n2")
    assert caught.value.leader_id == "n1"


def test_one_transfer_at_a_time() -> None:
    n0 = leading()
    n0.node.transfer_leadership("n1")
    with pytest.raises(LeaderTransferring):
        n0.node.transfer_leadership("n2")
    assert n0.node.status().transferring_to == "n1"


def test_the_request_is_repeated_with_each_heartbeat() -> None:
    n0 = leading()
    n0.act(lambda: n0.node.transfer_leadership("n1"))
    stay_alive(n0, 300, 1, 2)
    assert [r.ledger_end for r in n0.to(1, TakeLeadershipRequest)] == [EntryId(0, 1)] * 3


def test_a_target_that_is_lost_ends_the_transfer() -> None:
    n0 = leading()
    n0.act(lambda: n0.node.transfer_leadership("n1"))
    n0.node.on_connection_lost(n0.peer(1), is_gone=True)
    stay_alive(n0, 150, 2)
    assert n0.propose("a") == EntryId(1, 1)


def test_a_preferred_member_that_has_caught_up_is_handed_to() -> None:
    n0 = leading(preferred_leader_ids=("n2",))
    stay_alive(n0, 900, 1, 2)
    assert n0.to(2, TakeLeadershipRequest) == []
    stay_alive(n0, 150, 1, 2)
    assert len(n0.to(2, TakeLeadershipRequest)) == 1


@pytest.mark.parametrize("reason", ["lag", "silent", "observer", "leads itself"])
def test_it_is_not_if(reason: str) -> None:
    preferred = ("n0", "n2") if reason == "leads itself" else ("n2",)
    n0 = leading(preferred_leader_ids=preferred, max_transfer_lag_bytes=2 * ENTRY_BYTES)
    if reason == "lag":
        n0.act(lambda: n0.propose("a", "b", "c"))
    if reason == "observer":
        n0.take_place_of(2, "wiped")
    stay_alive(n0, 3000, 1) if reason in ("silent", "observer") else stay_alive(n0, 3000, 1, 2)
    assert n0.to(2, TakeLeadershipRequest) == []
    assert n0.node.role is Role.LEADER


def test_whom_a_leader_has_handed_over_to_is_known_until_somebody_leads() -> None:
    n0 = leading()
    assert n0.node.transfer.successor is None
    n0.act(lambda: n0.node.transfer_leadership("n1"))
    assert n0.node.transfer.target is not None
    assert n0.node.transfer.successor is None
    n0.hear(
        1,
        VoteRequest(
            term=2, vote_term=2, pre_vote=False, ledger_end=EntryId(0, 1), transfer_mark=(n0.replica, 1)
        ),
    )
    assert n0.node.leader is None
    assert n0.node.transfer.successor == n0.peer(1)
    n0.hear(2, heartbeat(2))
    assert n0.node.transfer.successor is None


def test_a_hand_over_that_failed_is_not_tried_again_before_the_cool_down() -> None:
    n0 = leading(preferred_leader_ids=("n2",), preferred_cool_down_ms=10_000)
    stay_alive(n0, 9_900, 1, 2)
    # One attempt of an election time-out: asked at once, and with each heartbeat of it.
    assert len(n0.to(2, TakeLeadershipRequest)) == 5
    stay_alive(n0, 2_100, 1, 2)
    assert len(n0.to(2, TakeLeadershipRequest)) > 5


def test_a_preferred_leader_that_hands_over_does_not_get_it_back_at_once() -> None:
    """An operator moves leadership away, or the preferred member is stopped with SIGTERM."""
    scenario = Scenario()
    for line in ("members 3 preferred_leader_ids=n0", "elect n0", "settle", "live 60000"):
        scenario.run(line)
    scenario.run("transfer n0 n1")
    assert "n1 leader" in " ".join(scenario.run("live 20000"))
    assert "n0 leader" in " ".join(scenario.run("live 12000"))


def test_the_nearest_of_several_preferred_is_taken_and_ties_go_by_the_list() -> None:
    n0 = matched(LoneMember(preferred_leader_ids=("n2", "n1")).lead(), 1, 2)
    for i in (1, 2):
        n0.hear(i, ack(1, 0))
    stay_alive(n0, 1050, 1, 2)
    assert n0.node.status().transferring_to == "n2"
    n0 = matched(LoneMember(preferred_leader_ids=("n2", "n1")).lead(), 1, 2)
    n0.hear(1, ack(1, 0))
    stay_alive(n0, 1050, 1, 2)
    assert n0.node.status().transferring_to == "n1"


def test_a_wiped_member_is_no_target_even_under_a_voter_s_name() -> None:
    n0 = leading(preferred_leader_ids=("n1",))
    n0.take_place_of(1, "wiped")
    assert n0.node.status().peers[0].replica == Replica("n1", "wiped")
    assert "not connected with the directory that is a voter" in refused(n0, "n1")


@pytest.mark.parametrize(("have_none", "target"), [([], "n1"), ([1], "n2"), ([1, 2], None)])
def test_a_leader_without_space_hands_over_to_who_has_some_unless_most_have_none(
    have_none: list[int], target: str | None
) -> None:
    n0 = matched(LoneMember(5).lead(), 1, 2, 3, 4)
    n0.sync_now()
    for i in range(1, 5):
        n0.hear(i, ack(1, 0))
    beat = n0.node._elector.round
    for i in have_none:
        n0.hear(i, HeartbeatResponse(term=1, round=beat, accepted=True, takes_over=False))
    n0.act(lambda: n0.node.on_space(True))
    assert n0.node.status().transferring_to == target


def test_a_follower_without_space_lets_a_hand_over_pass() -> None:
    n0 = LoneMember(terms=(1,))
    n0.node.on_space(True)
    (answer,) = (a for a in n0.hear(1, heartbeat(2)) if isinstance(a, HeartbeatResponse))
    assert not answer.takes_over
    assert n0.hear(1, TakeLeadershipRequest(term=2, ledger_end=EntryId(0, 1))) == []


def test_while_a_directory_is_replaced_the_one_that_is_fit_gets_leadership() -> None:
    """Both answer under one name, and the old one, or its disk, is not fit."""
    n0 = leading()
    fresh = Replica("n1", "fresh")
    n0.voters = (*n0.voters, fresh)
    n0.act(lambda: n0.node.on_connected(fresh))
    matched(n0, 3).hear(3, ack(1, 0))
    stay_alive(n0, 600, 1, 2, 3)
    beat = n0.node._elector.round
    for i in (1, 2, 3):
        fit = n0.voters[i] == fresh
        n0.hear(i, HeartbeatResponse(term=1, round=beat, accepted=True, takes_over=fit))
    founders = n0.voters[:3]
    n0.act(lambda: n0.propose_membership(Membership(founders, (founders[0], fresh, founders[2]))))
    n0.sync_now()
    n0.hear(3, ack(1, 1))
    n0.act(lambda: n0.node.on_damaged(0, 1))
    assert n0.node.status().transferring_to == "n1"
    assert n0.to(3, TakeLeadershipRequest)
    assert not n0.to(1, TakeLeadershipRequest)
