"""What another member says on a connection that it dialled."""

from __future__ import annotations

import functools

import msgspec

from quorumlog.consensus.messages import Message
from quorumlog.entry import Replica
from quorumlog.errors import ProtocolViolation
from quorumlog.node.peer_connections import Way
from quorumlog.server.connection import Connection
from quorumlog.server.node_driver import NodeDriver
from quorumlog.wire.client_messages import Hello
from quorumlog.wire.framing import Frame


class PeerSession:
    """Speaks for one directory of one member, as its Hello said; every message is counted as that."""

    def __init__(self, driver: NodeDriver, hello: Hello) -> None:
        self._driver = driver
        self._voter = Replica(hello.member_id, hello.directory_id)
        self._peer = driver.peers[hello.member_id]
        self._way = Way(hello.role, is_ours=False)

    def frame(self, connection: Connection, frame: Frame) -> None:
        message = frame.message
        if not isinstance(message, Message) or frame.group != self._driver.config.group:
            raise ProtocolViolation(
                f"{type(message).__name__} for group {frame.group!r} on a connection of member"
                f" {self._voter.member_id}"
            )
        msgspec.structs.force_setattr(message, "sender", self._voter)
        if self._peer.connections.connected_to:
            self._driver.enter(connection, self._driver.node.receive, message)
        else:
            enter = functools.partial(self._driver.enter, connection, self._driver.node.receive, message)
            entries_bytes = frame.batch.total_bytes if frame.batch is not None else 0
            self._peer.connections.hold(self._way, entries_bytes, enter)

    def lost(self, connection: Connection, closed_by_peer: bool) -> None:
        self._peer.inbound_lost(self._way.role, connection)
