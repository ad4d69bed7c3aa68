"""What a leader's machine can tell of a slow or a dead way: bytes that are acknowledged, a full link."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvloop

from quorumlog.config import KIB, MIB, MemberAddress
from quorumlog.server.connection import LoopTurn
from quorumlog.server.peer_link import UNSENT_LIMIT_BYTES, PeerLink
from quorumlog.wire.client_messages import Hello, HelloResponse
from quorumlog.wire.framing import encode_frame

PATIENCE_S = 20


LARGE = HelloResponse(message="x" * MIB)
"""Any message of a mebibyte will do."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def linked(work: Callable[[PeerLink, socket.socket], object]) -> None:
    """`work(link, other)`: a link that is up, and the other end, which nobody reads."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
        server.setblocking(False)
        ups: list[PeerLink] = []
        link = PeerLink(
            LoopTurn(loop),
            "default",
            MemberAddress("n1", *server.getsockname()),
            "data",
            lambda role, to: Hello(role=role, member_id="n0", to_member_id=to),
            ups.append,
            lambda link: None,
            lambda link: None,
            lambda error: None,
        )
        link.start()
        other, _ = await loop.sock_accept(server)
        with other:
            response = HelloResponse(code=200, member_id="n1", directory_id="d1")
            await loop.sock_sendall(other, b"".join(encode_frame("default", response)))
            await until(lambda: ups == [link])
            await work(link, other)
        link.close()


def test_bytes_move_as_long_as_the_other_machine_takes_them_and_a_greeting_is_too_little() -> None:
    async def work(link: PeerLink, other: socket.socket) -> None:
        assert not link.has_moved(), "a greeting passes where large frames do not"
        link.send(LARGE)
        await until(link.has_moved)  # its buffers take what its process does not read
        for _ in range(20):
            link.send(LARGE)
        await until(lambda: not link.has_moved())  # nothing fits into them any more
        other.setblocking(False)
        received = 0
        while received < MIB:
            received += len(await asyncio.get_running_loop().sock_recv(other, MIB))
        await until(link.has_moved)

    uvloop.run(linked(work))


def test_a_link_that_is_full_says_so_and_one_that_is_down_does_not() -> None:
    async def work(link: PeerLink, other: socket.socket) -> None:
        accepted = 0
        while link.send(LARGE):
            accepted += 1
            await asyncio.sleep(0)
            assert accepted < 200
        assert accepted * MIB > UNSENT_LIMIT_BYTES
        other.close()
        await until(lambda: link.up is None)
        assert link.send(LARGE), "lost with its connection, of which the core hears"
        assert not link.has_moved()

    uvloop.run(linked(work))
