"""What each of several full sockets gets of the turns of a loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from itertools import pairwise

import pytest
import uvloop

from quorumlog.server.connection import Connection, LoopTurn
from quorumlog.wire.client_messages import StatusRequest
from quorumlog.wire.framing import LARGE_FRAME_BYTES, encode_frame

TURNS = 60
SMALL = b"".join(encode_frame("default", StatusRequest(request_id=1)))
LONG = b"".join(encode_frame("x" * (LARGE_FRAME_BYTES - 1000), StatusRequest(request_id=1)))
"""The longest frames that are not received into a buffer of their own, nearly."""


def frames_taken(new_loop, frames: list[bytes]) -> list[int]:  # type: ignore[no-untyped-def]
    """Of each client while all sockets are kept full for `TURNS` turns; a client sends only such frames."""
    taken = [0] * len(frames)
    pairs = []
    for _ in frames:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            theirs = socket.create_connection(listening.getsockname())
            ours, _ = listening.accept()
        ours.setblocking(False)
        theirs.setblocking(False)
        pairs.append((ours, theirs))
    rests = [memoryview(b"")] * len(frames)

    def fill() -> None:
        for number, (_, theirs) in enumerate(pairs):
            with contextlib.suppress(BlockingIOError):
                while True:
                    if not rests[number]:
                        rests[number] = memoryview(frames[number] * (1 + (1 << 20) // len(frames[number])))
                    rests[number] = rests[number][theirs.send(rests[number]) :]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop_turn = LoopTurn(loop)
        connections = []
        for number, (ours, _) in enumerate(pairs):

            def took(*frame: object, number: int = number) -> None:
                taken[number] += 1

            connection = Connection(loop_turn, took, lambda *lost: None)
            await loop.create_connection(lambda made=connection: made, sock=ours)
            connections.append(connection)
        for _ in range(TURNS):
            fill()
            await asyncio.sleep(0)
        for connection in connections:
            connection.abort()

    with contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(asyncio.wait_for(run(), 60))
    for _, theirs in pairs:
        theirs.close()
    return taken


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_clients_that_ask_for_as_much_get_as_much(new_loop) -> None:  # type: ignore[no-untyped-def]
    taken = sorted(frames_taken(new_loop, [SMALL] * 4))
    assert all(4 * few > many for few, many in pairwise(taken)), taken


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_push_that_is_not_large_comes_through_beside_a_client_that_floods(new_loop) -> None:  # type: ignore[no-untyped-def]
    _, pushes = frames_taken(new_loop, [SMALL, LONG])
    assert pushes > TURNS // 6
