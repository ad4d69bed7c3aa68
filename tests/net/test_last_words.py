"""An answer that ends a connection arrives, also where the other side still sends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest
import uvloop

from quorumlog.errors import ProtocolViolation
from quorumlog.net import connection as net_connection
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.frame import Frame

MIB = 1 << 20
NewLoop = Callable[[], asyncio.AbstractEventLoop]
BOTH = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


class Nonsense:
    """A decoder to which everything is a violation."""

    missing_bytes = unfinished_bytes = 0

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return memoryview(bytearray(4096))

    def buffer_updated(self, count: int) -> list[Frame]:
        raise ProtocolViolation("nonsense")


async def sent(size_bytes: int) -> tuple[bytes, int, Connection]:
    """What the other side reads that first sends so much and then reads, how much it could send, and
    the connection once it is lost."""
    loop = asyncio.get_running_loop()
    lost = loop.create_future()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    with theirs:
        theirs.setblocking(False)
        connection = Connection(
            LoopTurn.of(loop),
            lambda *frame: None,
            lambda *ends: lost.set_result(None),
            decoder=Nonsense(),
        )
        connection.last_words = lambda error: b"it was %s" % str(error).encode()
        await loop.create_connection(lambda: connection, sock=ours)
        given = 0
        with contextlib.suppress(ConnectionError):
            while given < size_bytes:
                await loop.sock_sendall(theirs, bytes(MIB))
                given += MIB
        said = b""
        with contextlib.suppress(ConnectionError):
            while more := await loop.sock_recv(theirs, 4096):
                said += more
    await lost
    return said, given, connection


def run(new_loop: NewLoop, size_bytes: int) -> tuple[bytes, int, Connection]:
    async def bounded() -> tuple[bytes, int, Connection]:
        async with asyncio.timeout(60):
            return await sent(size_bytes)

    with contextlib.closing(new_loop()) as loop:
        return loop.run_until_complete(bounded())


@BOTH
def test_who_sends_on_reads_why_it_was_refused(new_loop: NewLoop) -> None:
    said, given, connection = run(new_loop, 32 * MIB)
    assert (said, given) == (b"it was nonsense", 32 * MIB) and connection.closed


@BOTH
def test_who_never_stops_is_cut_off(new_loop: NewLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_connection, "LINGER_BYTES", 8 * MIB)
    _, given, connection = run(new_loop, 1024 * MIB)
    assert given < 64 * MIB and connection.closed
    monkeypatch.setattr(net_connection, "LINGER_S", 0.0)
    assert run(new_loop, 1024 * MIB)[1] < 1024 * MIB
