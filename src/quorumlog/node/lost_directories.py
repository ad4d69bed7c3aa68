"""LostDirectories: which members are away for so long that a new directory may take their place.

A member whose disk was lost comes back with a new directory under its old name. Its old one may still
come back as well: it is given time, and when it is there again nothing is replaced. Who was replaced is
an observer, and is never put back by itself.
"""

from __future__ import annotations

from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Role
from quorumlog.entry import Replica
from quorumlog.node.log_states import LogStateKeeper

LOOK_MS = 500


class LostDirectories:
    def __init__(self, raft: RaftNode, log_state: LogStateKeeper) -> None:
        self._raft = raft
        self._log_state = log_state
        self._away_since_ms: dict[Replica, float] = {}
        """Of members that are not connected, as long as this one leads."""
        self._next_look_ms = 0.0

    def role_changed(self) -> None:
        self._away_since_ms.clear()

    def replaceable(self, now_ms: float, after_ms: int) -> Replica | None:
        """The new directory, which is connected, of a member whose old one was away for `after_ms`."""
        if now_ms < self._next_look_ms or self._raft.role is not Role.LEADER:
            return None
        self._next_look_ms = now_ms + LOOK_MS
        status, connected = self._raft.status(), self._raft.connected
        self._away_since_ms = {
            each: self._away_since_ms.get(each, now_ms)
            for each in (*status.membership.new, *status.membership.learners)
            if each != status.replica and each not in connected
        }
        state = self._log_state.appended
        if state is None:
            return None  # nobody can tell who was replaced before
        replaced = () if state.membership is None else state.membership.replaced
        known = {*self._raft.members.ever_known, *replaced}
        fresh = {replica.member_id: replica for replica in connected if replica not in known}
        return next(
            (
                fresh[each.member_id]
                for each, since_ms in self._away_since_ms.items()
                if now_ms - since_ms >= after_ms > 0 and each.member_id in fresh
            ),
            None,
        )
