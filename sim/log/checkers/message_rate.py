"""No message storms: a cluster in which nothing happens says little, and even a sick one not too much.

Counted by member and virtual second. Nothing happens in a second if at both of its ends the same
processes follow the same leader with the same log, wholly committed, and no client has asked anything.
"""

from __future__ import annotations

from collections import Counter

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.messages import PushEntryRequest, PushEntryResponse, PushType
from quorumlog.consensus.ready import Envelope
from quorumlog.node import LedgerNode
from quorumlog.testing.promises import (
    CheckedCluster,
    CheckedMember,
    Checker,
    Violation,
    leader_of_one_log,
)

CALM_FACTOR = 3
SICK_FACTOR = 20
"""How far above what the timers alone explain a member may go."""
MOST_TO_ONE_PEER = 10_000
"""Messages of any kind to one other member in a second, whatever happens."""

Picture = tuple[tuple[LedgerNode, ...], int, int, int, int]


class MessageRate(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._second = -1
        self._sent: Counter[str] = Counter()
        self._control: Counter[str] = Counter()
        """Without APPEND, its answers and COMMIT, of which there are as many as there is work."""
        self._before: Picture | None = None

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        second = int(self.cluster.now_ms // 1000)
        if second != self._second:
            self._begin(second)
        member_id = member.member_id
        self._sent[member_id] += 1
        peers = len(self.cluster.members) - 1
        if self._sent[member_id] > MOST_TO_ONE_PEER * peers:
            self._refuse(member_id, self._sent[member_id], MOST_TO_ONE_PEER * peers, "messages")
        message = envelope.message
        if isinstance(message, PushEntryRequest | PushEntryResponse) and message.push in (
            PushType.APPEND,
            PushType.COMMIT,
        ):
            return
        self._control[member_id] += 1
        limit = sick_limit(member.node.config.consensus, peers)
        if self._control[member_id] > limit:
            what = "messages besides APPEND and COMMIT"
            self._refuse(member_id, self._control[member_id], limit, what)

    def _begin(self, second: int) -> None:
        picture = self._picture()
        if picture is not None and picture == self._before:
            limit = calm_limit(picture[0][0].config.consensus, len(self.cluster.members) - 1)
            for member_id, count in self._sent.items():
                if count > limit:
                    self._refuse(member_id, count, limit, "messages although nothing happened")
        self._before = picture
        self._second = second
        self._sent.clear()
        self._control.clear()

    def _picture(self) -> Picture | None:
        """Equal pictures: nothing happened between them. None: something is happening."""
        nodes = tuple(member.node for member in self.cluster.members if member.is_up)
        leader = None if self.cluster.is_faulty else leader_of_one_log(nodes)
        if leader is None or any(node.raft.term != leader.raft.term for node in nodes):
            return None
        operations = self.cluster.operations
        append_count = len(operations.appends) + operations.of_producers
        return nodes, leader.raft.term, leader.store.end.index, append_count, operations.reads

    def _refuse(self, member_id: str, count: int, limit: int, what: str) -> None:
        member = next(m for m in self.cluster.members if m.member_id == member_id)
        role = (
            f"{member.node.raft.role.value} in term {member.node.raft.term}" if member.is_up else "down"
        )
        raise Violation(
            f"{member_id} ({role}) sent {count} {what} in second {self._second} (limit {limit})"
        )


def calm_limit(config: ConsensusConfig, peers: int) -> int:
    return int(CALM_FACTOR * peers * _by_timers(config))


def sick_limit(config: ConsensusConfig, peers: int) -> int:
    """Who can reach nobody asks for votes, too, again and again."""
    return int(SICK_FACTOR * peers * (_by_timers(config) + 1000 / config.min_vote_interval_ms))


def _by_timers(config: ConsensusConfig) -> float:
    """Messages a second to one peer: heartbeats and one COMMIT per `push_resend_ms`, or the answers."""
    return 1000 / config.heartbeat_interval_ms + 1000 / config.push_resend_ms + 2
