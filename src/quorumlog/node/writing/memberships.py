"""A membership as the core counts by it, and as it lies in the log."""

from __future__ import annotations

from quorumlog.consensus.membership import Membership
from quorumlog.log_state.control_entries import Membership as MembershipBody


def membership_of(body: MembershipBody) -> Membership:
    return Membership(body.old, body.new, body.learners, body.addresses)


def body_of(membership: Membership) -> MembershipBody:
    return MembershipBody(*membership)
