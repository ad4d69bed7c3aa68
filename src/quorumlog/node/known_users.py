"""KnownUsers: the users, roles and grants that this member may act on now.

A member's committed index may lag: a right may have been revoked, or the first user created. So if users
may exist, they count as known only while this member is fresh: from when it has reached the committed
index of the first heartbeat after its start, and for `[users] may_be_old_ms` after the last message of
its leader.
"""

from __future__ import annotations

import math

from quorumlog.config import UsersOptions
from quorumlog.consensus.ready import Role
from quorumlog.log_state.users import NO_USERS, Users
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.ports import Member, raise_failure

USERS_MAY_BE_OLD_MS = float(UsersOptions().may_be_old_ms)


class KnownUsers:
    def __init__(self, member: Member, log_state: LogStateKeeper) -> None:
        self._directory = directory = member.directory
        self._log_state = log_state
        self._raft, self._host = member.raft, member.host
        self._may_have_missed_them = directory.store.end.index < 0 or directory.joins
        """It is new in a group that may have users, or was wiped, and lacks what the others have."""
        self._was_fresh = False
        self._is_new = self._may_have_missed_them and not directory.formation.founding
        self._has_heard = self._has_joined = False

    def follows(self, before: KnownUsers) -> None:
        """The member continues with another log."""
        self._may_have_missed_them |= before._may_have_missed_them

    @property
    def may_be_some(self) -> bool:
        """But while nothing is known of the group, which may have to form first."""
        return self._directory.has_users or (
            self._may_have_missed_them and bool(self._directory.formation.cluster_id)
        )

    @property
    def has_heard(self) -> bool:
        """It has known a leader since its start, and may have received the entries written while it was
        away."""
        self._has_heard |= self._raft.leader is not None
        return self._has_heard

    def tick(self, now_ms: float) -> None:
        joins = self._directory.joins and not self._has_joined
        if joins and self._is_fresh(now_ms, USERS_MAY_BE_OLD_MS):
            self._has_joined = True
            self._host.promise_later(self._directory.has_joined, raise_failure)

    def look(
        self,
        now_ms: float,
        *,
        may_be_old_ms: float = USERS_MAY_BE_OLD_MS,
        for_others: bool = False,
    ) -> Users | str:
        """Why the users are not known, in a sentence. `now_ms`: by the clock of the member's turns.
        `may_be_old_ms`: since the leader was heard. `for_others`: for the decisions of other groups,
        which may know more: an end of this log without users is no proof that everything is open."""
        replica, state = self._raft.status().replica, self._log_state.committed
        if replica in self._directory.formation.founding:
            self._may_have_missed_them = False  # it was there when the group formed, without any
            self._was_fresh |= self._is_new
        may_be_some = self._may_have_missed_them or self._directory.has_users
        may_be_some |= for_others and not self._was_fresh
        if state is None:
            reason = self._log_state.problem or f"{replica.member_id} reads the state of its log"
            return reason if may_be_some else NO_USERS
        users: Users = state.users
        if self._is_fresh(now_ms, may_be_old_ms):
            self._may_have_missed_them, self._was_fresh = False, True
            return users
        if may_be_some or users.is_on:
            if self._raft.role is Role.UNFORMED:
                return f"{replica.member_id}: {self._raft.status().waits_for}"
            return (
                f"{replica.member_id} has not heard the leader since its start or for"
                f" {may_be_old_ms / 1000:.0f} s, or has not caught up yet: its users may be outdated"
            )
        return NO_USERS

    def _is_fresh(self, now_ms: float, may_be_old_ms: float) -> bool:
        return now_ms <= self.good_until_ms(may_be_old_ms)

    def good_until_ms(self, may_be_old_ms: float) -> float:
        """Until when the finding of `look` holds, unless it looks again before."""
        reads = self._raft.reads
        # Nobody answers the only voter, and nobody else could have committed anything.
        is_alone = self._raft.status().membership.quorum_size == 1
        if self._raft.role is Role.LEADER and not reads.knows_commit:
            return -math.inf  # the leader before may have acknowledged more than is committed here
        if is_alone and self._raft.role is Role.LEADER:
            return math.inf
        return reads.fresh_since_ms() + may_be_old_ms
