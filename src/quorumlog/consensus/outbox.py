"""Outbox: who is connected, and what leaves with the next Ready: nothing to who is not connected."""

from __future__ import annotations

from quorumlog.consensus.messages import AnyMessage
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import Replica


class Outbox:
    def __init__(self) -> None:
        self.connected: tuple[Replica, ...] = ()
        """Sorted: nothing may depend on the order in which connections opened."""
        self._syncs: set[Replica] = set()
        self.messages: list[Envelope] = []
        self.after_durable: list[Envelope] = []

    def connect(self, replica: Replica, *, syncs: bool = False) -> None:
        (self._syncs.add if syncs else self._syncs.discard)(replica)
        self.connected = tuple(sorted({*self.connected, replica}))

    def disconnect(self, replica: Replica) -> None:
        self._syncs.discard(replica)
        self.connected = tuple([other for other in self.connected if other != replica])

    def is_connected(self, replica: Replica) -> bool:
        return replica in self.connected

    def syncs(self, replica: Replica) -> bool:
        """It is connected, and acknowledges only what it has synced: so it holds that for good."""
        return replica in self._syncs

    def send(self, to: Replica, message: AnyMessage) -> None:
        """May leave as soon as this turn's term and vote are synced."""
        if self.is_connected(to):
            self.messages.append(Envelope(to, message))

    def send_unconnected(self, to: Replica, message: AnyMessage) -> None:
        """To one whose answers are not taken."""
        self.messages.append(Envelope(to, message))

    def send_after_durable(self, to: Replica, message: AnyMessage) -> None:
        """Promises something that only the disk can keep: leaves when this turn is durable."""
        if self.is_connected(to):
            self.after_durable.append(Envelope(to, message))
