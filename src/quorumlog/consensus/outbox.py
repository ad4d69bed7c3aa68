"""Outbox: who is connected, and what leaves with the next Ready.

Every part of the core speaks through it, so that one place decides that a message goes only to the
directory that is connected under a member's name at this moment.
"""

from __future__ import annotations

from quorumlog.consensus.messages import AnyMessage
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import Replica


class Outbox:
    """Messages of one turn, and the connected members in the order of their ids."""

    __slots__ = ("_connected", "after_durable", "connected", "messages")

    def __init__(self) -> None:
        self._connected: dict[str, Replica] = {}
        self.connected: tuple[Replica, ...] = ()
        """Sorted by member id: nothing may depend on the order in which connections opened."""
        self.messages: list[Envelope] = []
        self.after_durable: list[Envelope] = []

    def connect(self, voter: Replica) -> None:
        self._connected[voter.member_id] = voter
        self.connected = tuple(sorted(self._connected.values()))

    def disconnect(self, member_id: str) -> None:
        self._connected.pop(member_id, None)
        self.connected = tuple(sorted(self._connected.values()))

    def replica_of(self, member_id: str) -> Replica | None:
        """The directory connected under this name, if one is."""
        return self._connected.get(member_id)

    def is_connected(self, voter: Replica) -> bool:
        return self._connected.get(voter.member_id) == voter

    def send(self, to: Replica, message: AnyMessage) -> None:
        """May leave as soon as this turn's term and vote are synced."""
        if self.is_connected(to):
            self.messages.append(Envelope(to, message))

    def send_after_durable(self, to: Replica, message: AnyMessage) -> None:
        """Promises something that only the disk can keep: leaves when this turn is durable."""
        if self.is_connected(to):
            self.after_durable.append(Envelope(to, message))
