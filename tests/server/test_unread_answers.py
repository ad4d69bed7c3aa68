"""A client that asks much and reads nothing takes little memory of a member, which serves others."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import Hello
from quorumlog.net.limits import UNSENT_BYTES
from quorumlog.wire.client_messages import (
    AnyClientMessage,
    MachineReadRequest,
    MachineReadResponse,
    ReadRequest,
    ReadResponse,
)
from tests.node.machines import Chain

MIB = 1 << 20
ASKED = 120


class Talkative(Chain):
    """Its answers are long."""

    asked: int

    def query(self, question: bytes) -> bytes:
        if question != b"long":
            return super().query(question)
        type(self).asked += 1
        return bytes(MIB)


def ask_of_machine(number: int) -> AnyClientMessage:
    return MachineReadRequest(request_id=number, machine="m", question=b"long", timeout_ms=100_000)


def ask_for_entries(number: int) -> AnyClientMessage:
    return ReadRequest(request_id=number, first_index=1, stop_index=3, limit_bytes=8 * MIB)


def answers_are_made_as_they_are_read(
    ask: Callable[[int], AnyClientMessage] = ask_of_machine,
) -> None:
    class Machine(Talkative):
        asked = 0

    with (
        LocalCluster(1, store="memory", state_machines={"m": Machine}) as cluster,
        connect(cluster.servers) as log,
        socket.socket() as greedy,
    ):
        log.append(bytes(MIB))
        log.append(b"end")
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        host, _, port = cluster.servers.rpartition(":")
        greedy.connect((host, int(port)))
        for message in (Hello(role="client"), *map(ask, range(1, ASKED + 1))):
            greedy.sendall(b"".join(encode_frame("default", message)))
        decoder = FrameDecoder()
        frames = decoder.receive_data(greedy.recv(4096))
        # Whoever asks later is answered, so what comes to the greedy one first was made if it ever is.
        for _ in range(3):
            log.ask("m", b"short")
        log.append(b"goes on")
        (member,) = cluster._running.values()
        unsent = [each.unsent_bytes for each in member.server._listener.connections.values()]
        assert sum(unsent) < 3 * UNSENT_BYTES
        assert Machine.asked < ASKED // 2
        while len(frames) < 1 + ASKED:
            frames += decoder.receive_data(greedy.recv(MIB))
        numbers = [
            frame.message.request_id
            for frame in frames
            if isinstance(frame.message, MachineReadResponse | ReadResponse)
        ]
        assert numbers == list(range(1, ASKED + 1))


@pytest.mark.parametrize("ask", [ask_of_machine, ask_for_entries])
def test_answers_are_made_as_they_are_read(ask: Callable[[int], AnyClientMessage]) -> None:
    answers_are_made_as_they_are_read(ask)
