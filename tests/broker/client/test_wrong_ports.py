"""Clients of a broker at ports of others: each is told at once who it is that listens there."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from quorumlog import connect as connect_log
from quorumlog.broker import connect, connect_async
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.wire import EarlierHelloResponse, encode
from quorumlog.errors import LedgerError, Unreachable, WrongPort
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import HelloResponse
from tests.cli.conftest import Cli, plain

FOR_EVER_MS = 3_600_000
"""A test that is told only then does not end."""

Answer = Callable[[bytes], bytes]
"""Of what has come so far; empty: the connection is closed."""


@contextmanager
def listening(answer: Answer) -> Iterator[str]:
    """Somebody else's port: address."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    said = connection.recv(1 << 16)
                    if said and (answered := answer(said)):
                        connection.sendall(answered)
                        connection.recv(1 << 16)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield "{}:{}".format(*server.getsockname())
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def http(said: bytes) -> bytes:
    assert b"\r\n\r\n" in said, "a server of lines waits for the end of one"
    return b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n"


def tls(said: bytes) -> bytes:
    return b"\x15\x03\x01\x00\x02\x02\x46"


def earlier_broker(said: bytes) -> bytes:
    """Of the release before: closes at what it does not know."""
    tag = said[said.index(b"broker") + 7]
    return b"".join(encode(EarlierHelloResponse(protocol=1, version="quorumlog 0.1.0"))) * (tag == 1)


def earlier_log(said: bytes) -> bytes:
    """It lets every client in, and its welcome says nothing of products."""
    (frame,) = FrameDecoder().receive_data(said)
    return b"".join(encode_frame(frame.group, HelloResponse()))


def refusals_of(servers: str, timeout_ms: int = FOR_EVER_MS) -> list[LedgerError]:
    """What each of the clients is told."""

    async def asynchronous() -> None:
        async with connect_async(servers, timeout_ms=timeout_ms) as broker:
            await broker.status()

    with pytest.raises(LedgerError) as blocking, connect(servers, timeout_ms=timeout_ms) as broker:
        broker.status()
    with pytest.raises(LedgerError) as told:
        asyncio.run(asynchronous())
    return [blocking.value, told.value]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (http, "ADDRESS answers with HTTP, not quorumlog"),
        (tls, "ADDRESS speaks TLS: name the CA to trust with --tls-ca"),
        (
            earlier_broker,
            "the broker at ADDRESS is quorumlog 0.1.0: use a client of its release",
        ),
        (earlier_log, "ADDRESS: this port serves a log, not a broker"),
    ],
)
def test_whoever_it_is_is_named(answer: Answer, named: str, times: int) -> None:
    """Also where every one of several addresses is such a port."""
    with listening(answer) as first, listening(answer) as second:
        for error in refusals_of(",".join([first, second][:times])):
            assert isinstance(error, WrongPort)
            assert re.sub(r"127.0.0.1:\d+", "ADDRESS", str(error)) == named


def wrong_ports_end_the_search() -> None:
    """Of several addresses none is a broker's."""
    with listening(http) as first, listening(http) as second:
        for error in refusals_of(f"{first},{second}", timeout_ms=200):
            assert isinstance(error, WrongPort)


def test_who_closes_without_a_word_may_be_a_broker_that_ends() -> None:
    with listening(lambda said: b"") as address:
        for error in refusals_of(address):
            assert type(error) is Unreachable
            assert re.search(rf"{address}: .*closed.* without a greeting", str(error))


def test_one_wrong_address_among_others_is_told_in_the_end() -> None:
    with listening(http) as address, socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = "{}:{}".format(*closed.getsockname())
        closed.close()
        with pytest.raises(Unreachable, match=rf"{address} \(answers with HTTP") as told:
            connect(f"{address},{nobody}", timeout_ms=500)
        assert not isinstance(told.value, WrongPort)


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalBrokers]:
    with LocalBrokers(1, topics={"orders": 1}) as brokers:
        yield brokers


def test_the_log_of_a_broker_names_its_port(brokers: LocalBrokers, cli: Cli) -> None:
    (log,) = brokers.cluster.members
    right = f"{log}: this port serves a log; its broker listens at {brokers.addresses['n0']}"
    assert [str(error) for error in refusals_of(str(log))] == [right, right]
    shown = cli("broker", "status", "--servers", log)
    assert shown.exit_code == 1
    assert right in plain(shown.stderr)


def test_the_port_of_a_broker_names_its_log(brokers: LocalBrokers) -> None:
    """Clients of earlier releases, too, ask no further where their group is not served."""
    address = brokers.addresses["n0"]
    with (
        pytest.raises(WrongPort, match=f"its log listens at {brokers.cluster.members[0]}"),
        connect_log(address, timeout_ms=FOR_EVER_MS) as client,
    ):
        client.append(b"x")
