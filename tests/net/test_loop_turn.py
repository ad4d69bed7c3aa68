"""How much one turn of the loop takes in of sockets that are full."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from statistics import mean

import pytest
import uvloop

from quorumlog.net.connection import TURN_FRAMES, Connection, LoopTurn
from quorumlog.net.frame import LARGE_FRAME_BYTES, Frame, encode_frame
from quorumlog.wire.client_messages import StatusRequest

NewLoop = Callable[[], asyncio.AbstractEventLoop]

CLIENTS = 400
FRAMES_EACH = 400
FRAME = b"".join(encode_frame("default", StatusRequest(request_id=1)))
WHOLE = FRAME * FRAMES_EACH
SEND_BUFFER_BYTES = 144_000

TURNS = 60
LONG = b"".join(encode_frame("x" * (LARGE_FRAME_BYTES - 1000), StatusRequest(request_id=1)))
"""The longest frames that are not received into a buffer of their own, nearly."""


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Of which the second can send as much without anybody reading."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.socket()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        theirs.connect(listening.getsockname())
        ours, _ = listening.accept()
    return ours, theirs


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_is_sent_in_a_turn_leaves_with_its_end(new_loop: NewLoop) -> None:
    """Of one that was begun, when it says so; of any other, when the loop comes round."""
    ours, theirs = connected_pair()
    ours.setblocking(False)
    theirs.setblocking(False)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop_turn = LoopTurn(loop)
        connection = Connection(loop_turn, lambda *frame: None, lambda *lost: None)
        await loop.create_connection(lambda: connection, sock=ours)
        loop_turn.is_begun = True
        connection.send("default", StatusRequest(request_id=1))
        await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        loop_turn.flush()
        assert theirs.recv(2 * len(FRAME)) == FRAME
        connection.send("default", StatusRequest(request_id=1))
        await asyncio.sleep(0)
        assert theirs.recv(2 * len(FRAME)) == FRAME
        connection.abort()

    with theirs, contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(run())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_clients_that_do_not_wait_for_answers_leave_the_loop_its_turns(
    new_loop: NewLoop,
) -> None:
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


def frames_taken(new_loop: NewLoop, frames: list[bytes]) -> list[int]:
    """Of each client, while its socket is kept full of such frames for `TURNS` turns."""
    taken = [0] * len(frames)
    pairs = [connected_pair() for _ in frames]
    for pair in pairs:
        for each in pair:
            each.setblocking(False)
    rests = [memoryview(b"")] * len(frames)

    def fill() -> None:
        for number, (_, theirs) in enumerate(pairs):
            with contextlib.suppress(BlockingIOError):
                while True:
                    if not rests[number]:
                        rests[number] = memoryview(
                            frames[number] * (1 + (1 << 20) // len(frames[number]))
                        )
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
@pytest.mark.parametrize("clients", [4, 200])
def test_clients_that_ask_for_as_much_get_as_much(clients: int, new_loop: NewLoop) -> None:
    taken = frames_taken(new_loop, [FRAME] * clients)
    assert 4 * min(taken) > mean(taken), sorted(taken)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_push_that_is_not_large_comes_through_beside_a_client_that_floods(
    new_loop: NewLoop,
) -> None:
    _, pushes = frames_taken(new_loop, [FRAME, LONG])
    assert pushes > TURNS // 6


class Worker:
    """Whatever it is asked takes it a millisecond, by a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turn = 0
        self.taken: list[tuple[int, int, int]] = []
        """Turn, client and number of the request, of each."""

    def clock(self) -> float:
        return self.now_s

    def take(self, client: int, request_id: int) -> None:
        self.now_s += 0.001
        self.taken.append((self.turn, client, request_id))

    def turns_of(self, client: int) -> list[int]:
        return [turn for turn, who, _ in self.taken if who == client]


def worked_out(new_loop: NewLoop, requests: list[int], *, is_client: bool) -> Worker:
    """`requests`: of each connection, all sent at once."""
    worker = Worker()
    pairs = [connected_pair() for _ in requests]
    for ours, _ in pairs:
        ours.setblocking(False)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop_turn = LoopTurn(loop, worker.clock)
        connections = []
        for number, (ours, theirs) in enumerate(pairs):

            def took(connection: Connection, frame: Frame, number: int = number) -> None:
                assert isinstance(frame.message, StatusRequest)
                worker.take(number, frame.message.request_id)
                connection.send(frame.group, frame.message)  # the end of a turn is no other turn

            connection = Connection(loop_turn, took, lambda *lost: None)
            connection.is_client = is_client
            await loop.create_connection(lambda made=connection: made, sock=ours)
            connections.append(connection)
            theirs.sendall(
                b"".join(
                    b"".join(encode_frame("default", StatusRequest(request_id=each)))
                    for each in range(requests[number])
                )
            )
        while len(worker.taken) < sum(requests):
            await asyncio.sleep(0)
            worker.turn += 1
        for connection in connections:
            connection.abort()

    with contextlib.closing(new_loop()) as loop:
        loop.run_until_complete(asyncio.wait_for(run(), 60))
    for _, theirs in pairs:
        theirs.close()
    return worker


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
def test_requests_that_take_long_are_taken_in_many_turns_and_in_their_order(new_loop: NewLoop) -> None:
    worker = worked_out(new_loop, [60], is_client=True)
    assert [each for _, _, each in worker.taken] == list(range(60))
    assert max(Counter(worker.turns_of(0)).values()) <= 6


@LOOPS
def test_clients_whose_requests_take_long_share_a_turn(new_loop: NewLoop) -> None:
    worker = worked_out(new_loop, [60] * 8, is_client=True)
    for client in range(8):
        assert [each for _, who, each in worker.taken if who == client] == list(range(60))
    per_turn = Counter(turn for turn, _, _ in worker.taken)
    # Each of the eight has got the frame with which it ends, once they stand in line.
    assert max(taken for turn, taken in per_turn.items() if turn > 20) <= 5 + 8


@LOOPS
def test_what_a_member_sends_is_taken_at_once(new_loop: NewLoop) -> None:
    worker = worked_out(new_loop, [60], is_client=False)
    assert len(set(worker.turns_of(0))) == 1
