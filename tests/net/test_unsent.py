"""Answers that nobody reads: they are not made, and what was made is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import uvloop

from quorumlog.batch import EntryBatch
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.frame import Frame, encode_frame
from quorumlog.net.limits import ALL_UNSENT_BYTES, UNSENT_BYTES
from quorumlog.wire.client_messages import ReadResponse, StatusRequest

MIB = 1 << 20
MOST_BYTES = 2 * UNSENT_BYTES + 2 * MIB
"""As much may wait for the kernel, and for the end of the turn, and the answer that is too much."""
ANSWER = EntryBatch.from_bodies([bytes(MIB)])
NewLoop = Callable[[], asyncio.AbstractEventLoop]
BOTH = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


class Answering:
    """A session whose answers are long."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.answered: list[int] = []

    def frame(self, frame: Frame) -> None:
        request = frame.message
        assert isinstance(request, StatusRequest)
        self.answered.append(request.request_id)
        response = ReadResponse(
            request_id=request.request_id,
            first_index=0,
            count=1,
            ledger_begin_index=0,
            committed_index=0,
        )
        self.connection.send(frame.group, response, ANSWER)

    def lost(self) -> None: ...

    def writable(self) -> None: ...


async def connected() -> tuple[Answering, socket.socket]:
    """A connection between them in which the kernel keeps little."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.socket()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        theirs.connect(listening.getsockname())
        ours, _ = listening.accept()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
    ours.setblocking(False)
    theirs.setblocking(False)
    connection = Connection(LoopTurn.of(loop), lambda *frame: None, lambda *lost: None)
    connection.session = session = Answering(connection)
    await loop.create_connection(lambda: connection, sock=ours)
    return session, theirs


def run(new_loop: NewLoop, scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene()

    with contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(bounded())


async def asked(session: Answering, theirs: socket.socket, count: int) -> None:
    """It has got `count` requests when this returns, whatever it does with them."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(
        theirs,
        b"".join(
            b"".join(encode_frame("default", StatusRequest(request_id=number)))
            for number in range(count)
        ),
    )
    before = -1
    while before != session.connection.unsent_bytes or not session.answered:
        before = session.connection.unsent_bytes
        for _ in range(20):
            await asyncio.sleep(0)


def requests_wait_while_their_answers_are_not_read(
    new_loop: NewLoop = asyncio.new_event_loop,
) -> None:
    async def scene() -> None:
        session, theirs = await connected()
        await asked(session, theirs, 40)
        assert session.connection.is_full
        assert session.connection.unsent_bytes <= MOST_BYTES
        assert len(session.answered) < 12
        loop = asyncio.get_running_loop()
        while len(session.answered) < 40:
            assert await loop.sock_recv(theirs, MIB)
            assert session.connection.unsent_bytes <= MOST_BYTES
        assert session.answered == list(range(40))
        session.connection.abort()
        theirs.close()

    run(new_loop, scene)


@BOTH
def test_requests_wait_while_their_answers_are_not_read(new_loop: NewLoop) -> None:
    requests_wait_while_their_answers_are_not_read(new_loop)


@BOTH
def test_what_waits_for_room_goes_on_in_its_order_and_before_later_requests(new_loop: NewLoop) -> None:
    async def scene() -> None:
        session, theirs = await connected()
        connection = session.connection
        connection.when_room(partial(session.answered.append, -1))
        await asked(session, theirs, 40)
        for number in (-2, -3):
            connection.when_room(partial(session.answered.append, number))
        held_from = len(session.answered)
        loop = asyncio.get_running_loop()
        while len(session.answered) < 43:
            assert await loop.sock_recv(theirs, MIB)
        numbers = list(range(40))
        assert session.answered == [-1, *numbers[: held_from - 1], -2, -3, *numbers[held_from - 1 :]]
        connection.abort()
        theirs.close()

    run(new_loop, scene)


def who_leaves_most_unread_of_too_much_is_closed(
    new_loop: NewLoop = asyncio.new_event_loop, answers: int = 1
) -> None:
    """And no member. Also where none of them leaves much."""

    async def scene() -> None:
        peer, its_socket = await connected()
        await asked(peer, its_socket, 8)
        for _ in range(8):
            peer.frame(Frame("default", StatusRequest(request_id=0), None))
        clients: list[Answering] = []
        sockets = [its_socket]
        each_bytes = min(answers * MIB, UNSENT_BYTES)
        for _ in range(2 * ALL_UNSENT_BYTES // each_bytes):
            client, theirs = await connected()
            client.connection.is_client = True
            clients.append(client)
            sockets.append(theirs)
            await asked(client, theirs, answers)
            unsent = [each.connection.unsent_bytes for each in clients]
            assert sum(unsent) <= ALL_UNSENT_BYTES
        closed = [each.connection.closed for each in clients]
        assert any(closed) and not all(closed)
        assert not peer.connection.closed
        for each in (*clients, peer):
            each.connection.abort()
        for theirs in sockets:
            theirs.close()

    run(new_loop, scene)


@BOTH
@pytest.mark.parametrize("answers", [1, 8])
def test_where_all_leave_too_much_unread_who_leaves_most_is_closed(
    new_loop: NewLoop, answers: int
) -> None:
    who_leaves_most_unread_of_too_much_is_closed(new_loop, answers)
