"""Peer: the four connections between this member and one other, and what they add up to.

Two that we dialled (we speak on them) and two that the peer dialled (it does). The core hears of a
connection once all four lead to the same directory: only then does a question get its answer. It hears
of its loss when the first of them breaks, and whether it was the peer that closed a control connection,
which is what the death of a process looks like.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.config import MemberAddress
from quorumlog.consensus.messages import PushEntryRequest, PushEntryResponse, PushType
from quorumlog.consensus.ready import Envelope
from quorumlog.server.connection import Connection
from quorumlog.server.peer_link import PeerLink
from quorumlog.wire.client_messages import Hello


class Peer:
    """Tells `on_connected(member_id, directory_id)` and `on_lost(member_id, closed_by_peer)`."""

    def __init__(
        self,
        group: str,
        address: MemberAddress,
        hello: Callable[[str, str], Hello],
        on_connected: Callable[[str, str], None],
        on_lost: Callable[[str, bool], None],
    ) -> None:
        self.member_id = address.member_id
        self.control = PeerLink(group, address, "control", hello, self._link_up, self._link_down)
        self.data = PeerLink(group, address, "data", hello, self._link_up, self._link_down)
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._inbound: dict[str, tuple[str, Connection]] = {}
        """(directory id, connection) of what the peer dialled last, by role."""
        self._connected_to = ""
        """Directory id that the core was told of; empty while it knows of none."""

    def start(self) -> None:
        self.control.start()
        self.data.start()

    def send(self, envelope: Envelope) -> None:
        """On the connection for its kind; dropped unless it leads to the envelope's directory."""
        message = envelope.message
        is_bulk = (
            isinstance(message, PushEntryRequest | PushEntryResponse)
            and message.push is not PushType.COMMIT
        )
        link = self.data if is_bulk else self.control
        if link.up is not None and link.up.directory_id == envelope.to.directory_id:
            link.send(message)

    # ---------------------------------------------------------------- connections come and go

    def welcomed(self, role: str, directory_id: str, connection: Connection) -> None:
        """The peer has dialled; an older connection of the same role is a leftover."""
        older = self._inbound.get(role)
        self._inbound[role] = (directory_id, connection)
        if older is not None:
            self._lost(closed_by_peer=False)
            older[1].abort()
        for link in (self.control, self.data):
            if link.up is None:
                link.kick()
        self._check()

    def inbound_lost(self, role: str, connection: Connection, closed_by_peer: bool) -> None:
        current = self._inbound.get(role)
        if current is not None and current[1] is connection:
            del self._inbound[role]
            self._lost(closed_by_peer and role == "control")

    def _link_up(self, link: PeerLink) -> None:
        self._check()

    def _link_down(self, link: PeerLink, closed_by_peer: bool) -> None:
        self._lost(closed_by_peer and link is self.control)

    def _check(self) -> None:
        if self._connected_to or self.control.up is None or self.data.up is None:
            return
        directories = {self.control.up.directory_id, self.data.up.directory_id}
        directories.update(directory_id for directory_id, _ in self._inbound.values())
        if len(self._inbound) == 2 and len(directories) == 1:
            self._connected_to = directories.pop()
            self._on_connected(self.member_id, self._connected_to)

    def _lost(self, closed_by_peer: bool) -> None:
        """`closed_by_peer` is told even if another loss came first: a dying process closes all four
        connections, and it may be a data connection whose end arrives before the others'."""
        if self._connected_to or closed_by_peer:
            self._connected_to = ""
            self._on_lost(self.member_id, closed_by_peer)

    def close(self) -> None:
        self._connected_to = ""
        self.control.close()
        self.data.close()
