"""What a client believes about a group, from what it is told."""

from __future__ import annotations

import msgspec

from quorumlog.client.protocol.client_protocol import view_of
from quorumlog.net.rpc.view import GroupView
from quorumlog.wire.client_messages import MemberInfo, StatusResponse

NAMED = {"n0": "h0:1", "n1": "h1:1", "n2": "h2:1"}
ELSEWHERE = "h9:1"
"""Where the old directory of n1 is back; at h1:1 there is the new one."""


def status(member_id: str, *, role: str, term: int, leader: str, leads_at: str) -> StatusResponse:
    members = tuple(
        MemberInfo(id=i, address=a, directory_id="", reachable=True, is_voter=True, water_mark=0)
        for i, a in NAMED.items()
    )
    return StatusResponse(
        group="g",
        id=member_id,
        address=NAMED[member_id],
        directory_id="",
        cluster_id="c",
        role=role,
        term=term,
        leader_id=leader,
        leader_address=leads_at,
        ledger_begin_index=0,
        ledger_end_index=0,
        durable_index=0,
        committed_index=0,
        flush="sync",
        members=members,
    )


def learn(view: GroupView, address: str, told: StatusResponse, now_ms: float) -> None:
    view.learn(address, view_of(told), now_ms)


def test_a_leader_at_no_members_address_is_asked_again_after_its_connection_was_lost() -> None:
    """The others go on to name it in the term in which it was lost. That is believed of no one, and who
    is a member is asked itself; this one nobody would ask."""
    view = GroupView(list(NAMED.values()), distrust_lost_ms=1000)
    told = status("n0", role="follower", term=3, leader="n1", leads_at=ELSEWHERE)
    learn(view, "h0:1", told, 0)
    assert view.is_leader(ELSEWHERE)
    view.connection_lost(ELSEWHERE, 10)
    learn(view, "h0:1", told, 20)
    assert view.leader is None
    assert ELSEWHERE in view.known_addresses()
    learn(view, "h0:1", status("n0", role="leader", term=4, leader="n0", leads_at="h0:1"), 30)
    assert ELSEWHERE not in view.known_addresses()


def test_where_a_directory_is_back_is_not_where_its_member_is_to_be_found() -> None:
    view = GroupView(list(NAMED.values()), distrust_lost_ms=1000)
    learn(view, "h0:1", status("n0", role="follower", term=3, leader="n1", leads_at=ELSEWHERE), 0)
    view.greeted_by("n1", ELSEWHERE)
    assert view.member_address("n1") == "h1:1"
    view.greeted_by("n1", "h1:1")
    assert view.member_address("n1") == "h1:1"


def test_an_address_of_the_own_list_under_which_a_member_greets_is_preferred() -> None:
    view = GroupView(["forwarded:7"], distrust_lost_ms=1000)
    learn(view, "forwarded:7", status("n1", role="follower", term=3, leader="", leads_at=""), 0)
    view.greeted_by("n1", "forwarded:7")
    assert view.member_address("n1") == "forwarded:7"


def test_a_member_that_has_moved_is_looked_for_where_it_is_by_now() -> None:
    """Its old address is on the own list, and it has greeted there."""
    view = GroupView(list(NAMED.values()), distrust_lost_ms=1000)
    view.greeted_by("n1", "h1:1")
    told = status("n0", role="follower", term=4, leader="n1", leads_at=ELSEWHERE)
    moved = tuple(m if m.id != "n1" else MemberInfo(id="n1", address=ELSEWHERE) for m in told.members)
    learn(view, "h0:1", msgspec.structs.replace(told, members=moved, membership_index=7), 0)
    view.forget_greeting("h1:1")  # nobody answers there
    assert ELSEWHERE in view.known_addresses()
    assert view.member_address("n1") == ELSEWHERE
