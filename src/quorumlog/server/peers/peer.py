"""Peer: the sockets of the four connections between this member and one other.

`node/peer_connections.py` combines their states for the core.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

import msgspec

from quorumlog.config import MemberAddress, parse_address
from quorumlog.consensus.messages import PeerMessage, carries_push, goes_with_data
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import Replica
from quorumlog.errors import ConfigError, ProtocolViolation
from quorumlog.net.connection import Connection, Traffic
from quorumlog.net.frame import Frame
from quorumlog.net.hello import Hello
from quorumlog.net.peer_hello import Identity, identity_of
from quorumlog.node.peer_connections import WAYS, PeerConnections, Way
from quorumlog.server.peers.dialler import Dialler
from quorumlog.server.peers.peer_link import PeerLink
from quorumlog.server.peers.stalled_peers import DroppedMessages


class RemoteMember:
    def __init__(
        self,
        dialler: Dialler,
        group: str,
        address: MemberAddress,
        hello: Callable[[str, str], Hello],
        on_connected: Callable[[Replica], None],
        on_lost: Callable[[Replica, bool], None],
        on_bug: Callable[[BaseException], None],
        on_refused: Callable[[PeerLink], None] = lambda link: None,
    ) -> None:
        self._dialler = dialler
        self._group = group
        self.member_id = address.member_id
        self.address = address
        callbacks = (self._link_up, self._link_down, self._link_gone)
        self.links = self.control, self.data = (
            PeerLink(dialler, group, address, "control", hello, *callbacks, on_bug, on_refused),
            PeerLink(dialler, group, address, "data", hello, *callbacks, on_bug, on_refused),
        )
        self.connections = PeerConnections(address.member_id, on_connected, on_lost)
        self._inbound: dict[str, tuple[Hello, Connection]] = {}
        """What the peer dialled last, by role; all by one process of it."""
        self.durability = ""
        """Last flush mode of the peer: its acknowledgements count after it is gone, too."""
        self.level = 0
        """Of the log's format, which the peer named last."""
        self.dropped = DroppedMessages(address.member_id)
        self._looking: asyncio.Task[None] | None = None
        self.on_answered: Callable[[RemoteMember, Identity], bool] = lambda peer, identity: True
        """Called with the process that answers at `address`. False: this peer is to be disconnected for
        good."""

    def start(self) -> None:
        for link in self.links:
            link.start()

    def send(self, envelope: Envelope) -> bool:
        """As `Host.send`, on the connection for its kind."""
        to, message = envelope
        link = self.data if goes_with_data(message) else self.control
        if link.up is None or link.up.directory_id != to.directory_id:
            return True  # lost with the connection, of which the core is about to hear
        if link.send(message):
            return True
        if not carries_push(message):
            self.dropped.note(time.monotonic())
        return False

    def welcomed(self, hello: Hello, connection: Connection) -> None:
        """The peer has dialled; an older connection of the same role is a leftover, and so is each that
        leads to another process."""
        self.level = hello.level
        identity = identity_of(hello)
        self._drop_others(identity, hello.role)
        self._inbound[hello.role] = hello, connection
        self.look()
        self._redial_others(identity)
        self.connections.opened(Way(hello.role, is_ours=False), *identity)

    def look(self) -> None:
        """A process claims to be this member: probe the one at its address."""
        for link in self.links:
            if link.up is None:
                link.kick()

    def look_again(self) -> None:
        """And another process is connected: the address may lead elsewhere by now, and its former
        machine may be gone silently."""
        self.look()
        if self.placed is not None and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._redial_if_elsewhere())

    async def _redial_if_elsewhere(self) -> None:
        answer = await self._dialler.who_answers(self.address, self._group)
        if answer is not None and answer.member_id == self.member_id:
            self._redial_others(identity_of(answer))

    def _redial_others(self, identity: Identity) -> None:
        for link in self.links:
            if link.up is not None and identity_of(link.up) != identity:
                link.redial()

    @property
    def speaker(self) -> Identity | None:
        """The process that is connected as this member, if one is."""
        for hello, _ in self._inbound.values():
            return identity_of(hello)
        return self.placed

    @property
    def placed(self) -> Identity | None:
        """The process that answers at `address`, as far as it has lately."""
        up = self.control.up or self.data.up
        return identity_of(up) if up is not None else None

    @property
    def speaks_from(self) -> str:
        """Where that process listens, as far as it is known."""
        for hello, connection in self._inbound.values():
            return place_of(hello, connection)
        return str(self.address)

    @property
    def member_list(self) -> str:
        """The member list of the connected process; empty if none is."""
        return next((hello.members for hello, _ in self._inbound.values()), "")

    @property
    def traffic(self) -> list[Traffic]:
        """Of each connection between the two."""
        inbound = [connection.traffic for _, connection in self._inbound.values()]
        return [*self.control.traffic, *self.data.traffic, *inbound]

    def inbound_lost(self, role: str, connection: Connection) -> None:
        current = self._inbound.get(role)
        if current is not None and current[1] is connection:
            del self._inbound[role]
            self.connections.broke(Way(role, is_ours=False))

    def _link_up(self, link: PeerLink) -> None:
        assert link.up is not None
        identity = identity_of(link.up)
        if not self.on_answered(self, identity):
            return
        self._drop_others(identity)
        self.durability, self.level = link.up.durability, link.up.level
        self._redial_others(identity)
        self.connections.opened(Way(link.role, is_ours=True), *identity)

    def _drop_others(self, identity: Identity, replaced_role: str = "") -> None:
        """Connections that another process of this name has dialled. One with another directory that
        votes comes again, beside this. `replaced_role`: also that of this role, whoever dialled it."""
        others = [
            role
            for role, (hello, _) in self._inbound.items()
            if role == replaced_role or identity_of(hello) != identity
        ]
        for role in others:
            _, connection = self._inbound.pop(role)
            self.connections.broke(Way(role, is_ours=False))
            connection.abort()

    def _link_down(self, link: PeerLink) -> None:
        self.connections.broke(Way(link.role, is_ours=True))

    def _link_gone(self, link: PeerLink) -> None:
        if link is self.control:
            self.connections.gone()

    def part(self) -> None:
        """It is no member any more, or has another address. The core sees it disconnected."""
        for way in WAYS:
            self.connections.broke(way)
        for _, connection in self._inbound.values():
            connection.abort()
        self._inbound.clear()
        self.close()

    def close(self) -> None:
        self.connections.close()
        for link in self.links:
            link.close()
        if self._looking is not None:
            self._looking.cancel()

    async def ended(self) -> None:
        if self._looking is not None:
            await asyncio.wait((self._looking,))
        for link in self.links:
            await link.ended()


def place_of(hello: Hello, connection: Connection) -> str:
    """Where the process that dialled listens, as far as it says and its connection shows."""
    if not says_place(hello):
        return connection.peer_host
    host, port = parse_address(hello.listens_on)
    return f"{connection.peer_host if host in ('0.0.0.0', '::') else host}:{port}"


def says_place(hello: Hello) -> bool:
    """An earlier release does not, and nonsense says nothing."""
    try:
        parse_address(hello.listens_on)
    except ConfigError:
        return False
    return True


class PeerSession:
    """What another member says on a connection that it dialled. Every message counts as one of the
    directory that its Hello named."""

    def __init__(
        self,
        connection: Connection,
        hello: Hello,
        group: str,
        peer: RemoteMember,
        enter: Callable[[Connection, PeerMessage], None],
        receive: Callable[[Any], None],
    ) -> None:
        """`enter(connection, message)` has it taken in the next turn, by `receive` of the node."""
        self._connection = connection
        self._replica = Replica(hello.member_id, hello.directory_id)
        self._group = group
        self._peer = peer
        self._enter = enter
        self._receive = receive
        self._way = Way(hello.role, is_ours=False)

    def frame(self, frame: Frame) -> None:
        message = frame.message
        if not isinstance(message, PeerMessage) or frame.group != self._group:
            raise ProtocolViolation(
                f"{type(message).__name__} for group {frame.group!r} on a connection of member"
                f" {self._replica.member_id}"
            )
        msgspec.structs.force_setattr(message, "sender", self._replica)
        if self._peer.connections.connected_to:
            self._enter(self._connection, message)
        else:
            enter = functools.partial(self._enter, self._connection, message)
            batch_bytes = frame.batch.total_bytes if frame.batch is not None else 0
            self._peer.connections.hold(self._way, batch_bytes, enter)

    def take(self, _driver: object, message: PeerMessage) -> None:
        self._receive(message)

    def lost(self) -> None:
        self._peer.inbound_lost(self._way.role, self._connection)

    def writable(self) -> None:
        """No one waits for it: this member sends on connections of its own."""
