"""How much one turn of the loop takes in of sockets that are full."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from itertools import groupby

import pytest
import uvloop

from quorumlog.server.connection import TURN_FRAMES, Connection, LoopTurn
from quorumlog.wire.client_messages import StatusRequest
from quorumlog.wire.framing import encode_frame

CLIENTS = 40
FRAMES_EACH = 2000
FRAME = b"".join(encode_frame("default", StatusRequest(request_id=1)))
WHOLE = FRAME * FRAMES_EACH


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Of which the second can send `WHOLE` without anybody reading."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.socket()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(WHOLE))
        theirs.connect(listening.getsockname())
        ours, _ = listening.accept()
    return ours, theirs


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_clients_that_do_not_wait_for_answers_leave_the_loop_its_turns(new_loop) -> None:  # type: ignore[no-untyped-def]
    """A heartbeat that is due waits for one turn, and not for all that the clients have sent."""
    sockets = [connected_pair() for _ in range(CLIENTS)]
    for ours, _ in sockets:
        ours.setblocking(False)
    turns: list[int] = []
    """The turn in which each frame was taken."""
    clients: list[Connection] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop_turn = LoopTurn(loop)
        turn = 0
        done = loop.create_future()

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            if len(turns) == CLIENTS * FRAMES_EACH:
                done.set_result(None)
            else:
                loop.call_soon(next_turn)

        for ours, _ in sockets:
            connection = Connection(loop_turn, lambda *frame: turns.append(turn), lambda *lost: None)
            await loop.create_connection(lambda made=connection: made, sock=ours)
            clients.append(connection)
        for _, theirs in sockets:
            theirs.sendall(WHOLE)
        next_turn()
        await done
        for connection in clients:
            connection.close()

    with contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(asyncio.wait_for(run(), 60))
    for _, theirs in sockets:
        theirs.close()
    per_turn = [len(list(taken)) for _, taken in groupby(turns)]
    assert sum(per_turn) == CLIENTS * FRAMES_EACH
    assert max(per_turn) < 4 * TURN_FRAMES
    assert len(per_turn) > 8
