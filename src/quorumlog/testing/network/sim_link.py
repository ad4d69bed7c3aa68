"""The four connections between two members, and what each end knows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorumlog.consensus.ready import Envelope
from quorumlog.node.peer_connections import PeerConnections, Way, role_of

if TYPE_CHECKING:
    from quorumlog.testing.member import SimMember

ROLES = ("control", "data")
Direction = tuple[str, str]
"""(from, to): the places of two members."""


class Standing(NamedTuple):
    """A connection that an end knows of."""

    epoch: int
    """Of the pair."""
    number: int
    """Of this one of the four, within the epoch."""
    directory_id: str
    """At the other end."""


class End:
    """Of one process, for one other member."""

    __slots__ = ("connections", "standing")

    def __init__(self, member: SimMember, peer_id: str) -> None:
        self.connections = PeerConnections(
            peer_id,
            lambda replica: member.enter_node("connected", replica),
            lambda replica, is_gone: member.enter_node("connection_lost", replica, is_gone),
        )
        self.standing: dict[Way, Standing] = {}

    def opened(self, way: Way, standing: Standing) -> None:
        self.standing[way] = standing
        self.connections.opened(way, standing.directory_id)

    def broke(self, way: Way) -> None:
        self.standing.pop(way, None)
        self.connections.broke(way)


class SimLink:
    """Between two members, `first` < `second` by place."""

    __slots__ = ("broken", "epoch", "first", "is_up", "numbers", "second")

    def __init__(self, first: str, second: str) -> None:
        self.first = first
        self.second = second
        self.is_up = False
        self.epoch = 0
        """Counts connections; what was sent on an older one is dropped on arrival."""
        self.broken = False
        """Bytes were lost inside the stream: it cannot go on once the cut ends."""
        self.numbers = {(who, role): 0 for who in (first, second) for role in ROLES}
        """Of each of the four connections, by who dialled it: how often it was reset by itself."""

    def standing(self, dialler: str, role: str, directory_id: str) -> Standing:
        return Standing(self.epoch, self.numbers[dialler, role], directory_id)


class Parcel(NamedTuple):
    """A message on its way, and the connection that it was given to."""

    sender: SimMember
    envelope: Envelope
    data: bytes
    link: SimLink
    standing: Standing
    to_place: str

    @property
    def way(self) -> Direction:
        return self.sender.place, self.to_place

    def stands(self) -> bool:
        """At the end of the sender, whoever else knows of it."""
        role = role_of(self.envelope.message)
        return self.link.standing(self.way[0], role, self.standing.directory_id) == self.standing
