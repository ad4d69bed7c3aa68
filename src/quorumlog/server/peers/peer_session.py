"""PeerSession: what another member says on a connection that it dialled.

Every message counts as one of the directory that its Hello named.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from quorumlog.consensus.messages import Message
from quorumlog.entry import Replica
from quorumlog.errors import ProtocolViolation
from quorumlog.net.connection import Connection
from quorumlog.net.frame import Frame
from quorumlog.net.hello import Hello
from quorumlog.node.peer_connections import Way
from quorumlog.server.peers.peer import Peer


class PeerSession:
    def __init__(
        self,
        connection: Connection,
        hello: Hello,
        group: str,
        peer: Peer,
        enter: Callable[[Connection, Message], None],
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
        if not isinstance(message, Message) or frame.group != self._group:
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

    def take(self, _driver: object, message: Message) -> None:
        self._receive(message)

    def lost(self) -> None:
        self._peer.inbound_lost(self._way.role, self._connection)

    def writable(self) -> None:
        """Nothing waits for it: what this member says leaves on connections of its own."""
