"""A membership as the core counts by it, and as it lies in the log."""

from __future__ import annotations

from collections.abc import Collection

from quorumlog.consensus.membership import Membership
from quorumlog.entry import Replica
from quorumlog.log_state.control_entries import MOST_REPLACED
from quorumlog.log_state.control_entries import Membership as MembershipBody


def membership_of(body: MembershipBody) -> Membership:
    return Membership(body.old, body.new, body.learners, body.addresses)


def body_of(membership: Membership, replaced: tuple[Replica, ...] = ()) -> MembershipBody:
    return MembershipBody(*membership, replaced)


def replaced_by(
    wanted: Membership, present: Collection[Replica], before: tuple[Replica, ...]
) -> tuple[Replica, ...]:
    """The directories that are members no more once `wanted` is final, the newest last. `before`: what
    the log says so far. Whoever an operator puts back is none of them."""
    members = wanted.final().members()
    gone = dict.fromkeys((*before, *sorted(present)))
    return tuple(replica for replica in gone if replica not in members)[-MOST_REPLACED:]
