"""Peers that read nothing: dropped messages, and members that take no entries."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from quorumlog.consensus.ready import PeerStatus
from quorumlog.entry import Replica
from quorumlog.figures import now

SHOWN_S = 60.0
"""So long after the newest one it is a problem."""


class DroppedMessages:
    def __init__(self, member_id: str) -> None:
        self._member_id = member_id
        self.count = 0
        """Since this member has started."""
        self._newest_s = 0.0

    def note(self, now_s: float) -> None:
        self.count += 1
        self._newest_s = now_s

    def problem(self, now_s: float) -> str:
        """Empty if none was dropped lately."""
        if not self.count or now_s - self._newest_s >= SHOWN_S:
            return ""
        return (
            f"{self._member_id} takes in less than it is sent: acknowledgements, questions or answers to"
            f" repairs were dropped{now(f'{self.count} messages since this member has started')}; look"
            f" at the network to {self._member_id} and at the load of its host"
        )


class StalledPeers:
    """Who answers a leader's heartbeats and takes no entries, and since what time of day. A member says
    of itself what its leader would say of it."""

    def __init__(self) -> None:
        self._since: dict[Replica, tuple[float, str]] = {}
        """Since when by the core's clock, and by that on the wall."""

    def problems(
        self,
        peers: Iterable[PeerStatus],
        now_ms: float,
        wall_s: float,
        silent: Collection[Replica] = (),
    ) -> list[str]:
        """`now_ms` by the core's clock; `wall_s` since the epoch. `silent`: members that have not
        answered a heartbeat for an election time-out."""
        found = []
        for peer in peers:
            if peer.stalled_since_ms is not None:
                since = self._time_of(peer.replica, peer.stalled_since_ms, now_ms, wall_s)
                found.append(_sentence(peer, since, is_silent=peer.replica in silent))
        return found

    def own_problem(self, own: Replica, since_ms: float, now_ms: float, wall_s: float) -> str:
        """`since_ms`: when the sync began that has not returned."""
        return _hangs(own.member_id, self._time_of(own, since_ms, now_ms, wall_s))

    def _time_of(self, replica: Replica, since_ms: float, now_ms: float, wall_s: float) -> str:
        known_ms, words = self._since.get(replica, (-1.0, ""))
        if known_ms != since_ms:
            then_s = wall_s - (now_ms - since_ms) / 1000
            words = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(then_s))
            self._since[replica] = since_ms, words
        return words


def _sentence(peer: PeerStatus, since: str, *, is_silent: bool) -> str:
    member_id = peer.replica.member_id
    if peer.has_arrived:
        return _hangs(member_id, since)
    if is_silent:
        return (
            f"{member_id} is connected, answers no heartbeats and has taken no entries since"
            f" {since}: it is stopped, or its term and vote wait for its disk"
        )
    return (
        f"{member_id} answers heartbeats and has taken no entries since {since}: if only large frames"
        f" are lost on the way, the MTU is wrong somewhere (try: ping -M do -s 1472 and the host of"
        f" {member_id}); else look at its disk and at the one here"
    )


def _hangs(member_id: str, since: str) -> str:
    return f"{member_id} receives entries and has synced none since {since}: look at its disk"
