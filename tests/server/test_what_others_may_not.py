"""What one client may not do to another's connection, nor to what a member says of itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.client import connect
from quorumlog.config import DEFAULT_GROUP
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import LOG, HelloResponse, client_hello
from quorumlog.server.local_cluster import LocalCluster
from quorumlog.server.peers.peer_table import MOST_NOTED, NOTE_CHARACTERS
from quorumlog.wire.client_messages import AppendRequest, AppendResponse, StatusRequest


class Raw:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=30)
        self._decoder = FrameDecoder()
        self._came: list[Any] = []
        self.say(client_hello(LOG))
        self.hello = self.next()
        assert isinstance(self.hello, HelloResponse)

    def say(self, message: Any, batch: EntryBatch | None = None) -> None:
        self.sock.sendall(b"".join(map(bytes, encode_frame(DEFAULT_GROUP, message, batch))))

    def next(self) -> Any:
        while not self._came:
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            self._came += [frame.message for frame in self._decoder.receive_data(data)]
        return self._came.pop(0)

    def append(self, previous_connection: str) -> None:
        self.say(
            AppendRequest(request_id=1, previous_connection=previous_connection, timeout_ms=10_000),
            EntryBatch.from_bodies([b"entry"]),
        )
        assert isinstance(self.next(), AppendResponse)

    def is_answered(self) -> bool:
        try:
            self.say(StatusRequest(request_id=2))
            self.next()
        except ConnectionError:
            return False
        return True


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1, store="memory") as made:
        yield made


def test_only_who_was_told_the_name_of_a_connection_ends_it(cluster: LocalCluster) -> None:
    """They were counted: whoever counted, too, had that of anybody closed."""
    first, second = Raw(cluster.servers), Raw(cluster.servers)
    with closing(first.sock), closing(second.sock):
        name = str(first.hello.connection_id)
        run_id, number, secret = name.rsplit("/", 2)
        assert len(secret) == 16
        assert secret != str(second.hello.connection_id).rsplit("/", 1)[1]
        for guess in (f"{run_id}/{number}", f"{run_id}/{number}/{'0' * 16}", number, run_id, f"{name}0"):
            second.append(guess)
            assert first.is_answered()
        second.append(name)
        assert not first.is_answered(), "a stream that moves says where it was"


def test_what_is_said_of_who_was_refused_forges_no_line_and_is_bounded(cluster: LocalCluster) -> None:
    forged = "here\n2026-01-01 WARNING a line of its own\x1b[2J\u2028"
    said = [f"{number} {forged}" + "x" * 2 * NOTE_CHARACTERS for number in range(2 * MOST_NOTED)]
    for each in said:
        cluster.server("n0").drivers[0].admission.note(each)
    with connect(cluster.servers) as log:
        (row,) = log.status()
    noted = [problem for problem in row.problems if "a line of its own" in problem]
    assert len(noted) == MOST_NOTED
    for each in noted:
        assert each.isprintable()
        assert len(each) <= NOTE_CHARACTERS
