"""How much of what a link has sent has arrived, where encryption adds bytes of its own to it."""

from __future__ import annotations

import asyncio
from typing import cast

import uvloop

from quorumlog.config import MIB, MemberAddress
from quorumlog.net.connection import LoopTurn
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.tls import Tls
from quorumlog.server.peers.dialler import Dialler, NameLookup
from quorumlog.server.peers.peer_link import PeerLink
from tests.certificates import member, options_of
from tests.server.test_moving_data import ACK, PUSH, until

SMALL = 3000
"""Messages whose frames are smaller than what encryption adds to a push."""


class Other(asyncio.Protocol):
    """n1, which greets and reads as long as it is told to."""

    def __init__(self) -> None:
        self.received = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self.received:
            response = HelloResponse(code=200, member_id="n1", directory_id="d1")
            self.transport.write(b"".join(encode_frame("default", response)))
        self.received += len(data)


def test_what_encryption_adds_is_not_taken_for_what_was_sent() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        other, ups = Other(), list[PeerLink]()
        server = await loop.create_server(
            lambda: other, "127.0.0.1", 0, ssl=Tls(options_of(member("n1"))).server
        )
        link = PeerLink(
            Dialler(LoopTurn(loop), NameLookup(loop), Tls(options_of(member("n0")))),
            "default",
            MemberAddress("n1", *server.sockets[0].getsockname()),
            "data",
            lambda role, to: Hello(role=role, member_id="n0", to_member_id=to),
            ups.append,
            lambda link: None,
            lambda link: None,
            lambda error: None,
        )
        link.start()
        await until(lambda: ups == [link])
        connection = link._connection
        assert connection is not None
        assert connection.is_encrypted
        assert not link.has_moved(), "a handshake is no push, and neither is a greeting"
        for _ in range(SMALL):  # a write each, and a record with its own head
            link.send(ACK)
            await asyncio.sleep(0)
        await until(lambda: connection.acknowledged_bytes == connection.sent_bytes)
        link.send(PUSH)
        assert connection.acknowledged_bytes == connection.sent_bytes - connection.unsent_bytes
        assert link.has_moved(), "what was sent before it has arrived"
        assert not link.has_moved(), "what encryption has added is none of it"
        other.transport.pause_reading()
        for _ in range(20):
            link.send(PUSH)
        await until(lambda: link.has_moved())  # as far as buffers reach
        await until(lambda: not link.has_moved())
        assert connection.acknowledged_bytes < connection.sent_bytes - MIB
        other.transport.resume_reading()
        await until(link.has_moved)
        await until(lambda: connection.acknowledged_bytes == connection.sent_bytes)
        link.close()
        await link.ended()
        server.close()

    uvloop.run(asyncio.wait_for(scene(), 60))
