"""The first frame at the port of a broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from quorumlog.broker import BrokerClient
from quorumlog.broker.broker_server import BrokerServer
from quorumlog.broker.wire import (
    AnyBrokerMessage,
    AnyBrokerRequest,
    BrokerStatusRequest,
    EarlierHello,
    EarlierHelloResponse,
    GroupCommandRequest,
    QueuesResponse,
    broker_decoder,
    broker_request_decoder,
    encode,
)
from quorumlog.config import MIB
from quorumlog.errors import ProtocolViolation
from quorumlog.net import listener
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import NOT_SERVED, ChallengeResponse, Hello, HelloResponse
from tests.broker.serving.served import dialled, served

RELEASE = Path(__file__).parent.parent.parent / "fixtures" / "wire" / "0.1.0-fd35d4aa"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    with served(tmp_path_factory.mktemp("store"), {"t": 1}) as server:
        yield server


def said_until_it_closes(sock: socket.socket) -> list[AnyBrokerMessage]:
    decoder, messages = broker_decoder(), []
    while data := sock.recv(1 << 16):
        messages += [frame.message for frame in decoder.receive_data(data)]
    return messages  # type: ignore[return-value]


def test_a_client_of_the_release_before_is_told_that_the_broker_speaks_another_protocol(
    server: BrokerServer,
) -> None:
    """Which it says in a sentence of its own, with what to do."""
    lines = map(str.split, RELEASE.read_text().splitlines())
    data = next(bytes.fromhex(said) for _, name, said in lines if name == "BrokerHello")
    with dialled(server.address) as sock:
        sock.sendall(data)
        (told,) = said_until_it_closes(sock)
    assert isinstance(told, EarlierHelloResponse)
    assert told.protocol != 1


def test_a_member_of_a_log_is_turned_away(server: BrokerServer) -> None:
    with dialled(server.address) as sock:
        sock.sendall(b"".join(encode_frame("orders", Hello(role="control", member_id="n1"))))
        (told,) = said_until_it_closes(sock)
    assert isinstance(told, HelloResponse)
    assert told.code == NOT_SERVED
    assert told.message == "this port serves a broker, not a log"


def test_what_only_a_broker_says_is_not_decoded_for_a_client() -> None:
    requests = set(get_args(AnyBrokerRequest))
    told = {kind for kind in get_args(AnyBrokerMessage) if kind.__name__.endswith("Request")}
    assert requests == told | {Hello, ChallengeResponse, EarlierHello}
    with pytest.raises(ProtocolViolation, match="no message"):
        broker_request_decoder().receive_data(b"".join(encode(QueuesResponse(request_id=1, queues=[]))))


def test_what_a_client_says_beside_its_records_has_a_most_size() -> None:
    decoder = broker_request_decoder()
    decoder.receive_data(b"".join(encode(BrokerStatusRequest(request_id=1))))
    assert decoder.receive_data(b"".join(encode(GroupCommandRequest(request_id=1, body=bytes(MIB)))))
    with pytest.raises(ProtocolViolation, match="control part of 2"):
        decoder.receive_data(b"".join(encode(GroupCommandRequest(request_id=1, body=bytes(2 * MIB)))))


def test_who_asks_before_it_greets_is_closed(server: BrokerServer) -> None:
    with dialled(server.address) as sock:
        sock.sendall(b"".join(encode(BrokerStatusRequest(request_id=1))))
        assert said_until_it_closes(sock) == []
    with BrokerClient(server.address) as client:
        assert client.status().problems == []


def test_who_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "GREETING_MS", 1)
    with served(tmp_path, {"t": 1}) as server, dialled(server.address) as sock:
        assert said_until_it_closes(sock) == []
