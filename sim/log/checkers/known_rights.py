"""Never open by not knowing, and every grant counts within a second.

A machine that has once applied, as committed, who the users are serves nobody by less than that: not
after a restart, nor with another log or an empty disk, nor while it has not heard anybody yet. And a
member that hears its leader lets people in by what was committed a second ago, or by something newer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from quorumlog.config import DEFAULT_GROUP
from quorumlog.consensus.ready import Role
from quorumlog.log_state.log_state import LogState
from quorumlog.log_state.users import NO_USERS, Kind, Users
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Violation
from sim.log.checkers.log_checker import LogChecker
from sim.log.operations import Served

COUNTS_WITHIN_MS = 1_000.0
MAY_BE_OLD_MS = 2_000
"""In simulated runs, which are short: what was taken so long ago, and a second, nobody gives."""


@dataclass(frozen=True)
class _Known:
    index: int
    """Committed up to there."""
    users: Users


@dataclass(frozen=True)
class _Change:
    index: int
    """At or above that of its entry."""
    users: Users
    heard_ms: dict[str, float]
    """By the clock of each machine."""


NOTHING = _Known(-1, NO_USERS)


class KnownRights(LogChecker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._seen: dict[str, _Known] = {}
        """By place: the newest that it has ever had."""
        self._counts: dict[str, _Known] = {}
        """What it serves by, at the least: since then its port has looked, or its process has begun."""
        self._changes = [_Change(-1, NO_USERS, {})]
        """Of all members."""

    def turned(self, member: CheckedMember) -> None:
        now = _committed(member)
        if now is None or now.index <= self._seen.get(member.place, NOTHING).index:
            return
        self._seen[member.place] = now
        if now.index > self._changes[-1].index and now.users != self._changes[-1].users:
            heard_ms = {each.place: each.local_ms for each in self.cluster.members}
            self._changes.append(_Change(now.index, now.users, heard_ms))

    def stopped(self, member: CheckedMember) -> None:
        self._counts[member.place] = self._seen.get(member.place, NOTHING)

    def users_looked_at(self, member: CheckedMember, users: Users | None) -> None:
        self._counts[member.place] = self._seen.get(member.place, NOTHING)
        now, newest = _committed(member), self._changes[-1]
        if now is None:
            return
        if users is not None and users != now.users:
            raise Violation(f"{member.replica} lets people in by {users}, and its log says {now.users}")
        since_ms = member.local_ms - COUNTS_WITHIN_MS
        raft = member.node.raft
        if raft.role is Role.LEADER and not raft.reads.knows_commit:
            # Nobody tells it; it knows them once an entry of its own term is committed.
            if users is None:
                return
            if _may_be_on(member):
                raise Violation(
                    f"{member.replica} leads, and lets people in by what may be older: {users}"
                )
        hears = raft.reads.fresh_since_ms() > since_ms
        if not hears or newest.heard_ms.get(member.place, -math.inf) > since_ms:
            return
        if users is None:
            raise Violation(f"{member.replica} hears its leader, and does not know its users")
        if now.index < newest.index and users != newest.users:
            raise Violation(
                f"{member.replica} hears its leader, and lets people in by {users} of {now.index};"
                f" since {newest.index}, for a second, it is {newest.users}"
            )

    def served(self, member: CheckedMember, served: Served) -> None:
        counts = self._counts.get(member.place, NOTHING)
        if not counts.users.is_on:
            return
        since_ms = member.local_ms - MAY_BE_OLD_MS - COUNTS_WITHIN_MS
        for change in reversed(self._changes):
            if _may(change.users, served):
                break
            if change.heard_ms.get(member.place, -math.inf) <= since_ms:
                raise Violation(
                    f"{member.replica} lets {served.user or 'nobody'} {served.what}, though since"
                    f" {change.index} that is granted no more: {change.users}"
                )
        if not _may(counts.users, served):
            raise Violation(
                f"{member.replica} lets {served.user or 'nobody'} {served.what}, and knew up to"
                f" {counts.index} that this is not granted: {counts.users}"
            )


def _may(users: Users, served: Served) -> bool:
    rights = users.rights_of(served.user)
    return not users.is_on or rights.may(served.right, Kind.LOG, DEFAULT_GROUP.encode())


def _may_be_on(member: CheckedMember) -> bool:
    """By the whole log, which has all that was ever acknowledged where it leads."""
    state = member.node.log_state.appended
    return state is not None and state.users.is_on


def _committed(member: CheckedMember) -> _Known | None:
    states = member.node.log_state.states
    if states is None or not isinstance(states.committed, LogState):
        return None
    return _Known(states.committed_index, states.committed.users)
