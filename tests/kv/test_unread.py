"""What clients ask for, and what they leave unread, is bounded; who has vanished is dropped."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from quorumlog.errors import ConnectionFull, LedgerError, RequestTimeout
from quorumlog.kv import StoreOptions, connect
from quorumlog.kv import endpoint as kv_endpoint
from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.etcd import gateway as gateway_module
from quorumlog.kv.etcd.gateway import EtcdGateway
from quorumlog.kv.requests import (
    GROUP,
    AnswerResponse,
    CancelRequest,
    EventsResponse,
    QuestionRequest,
    Range,
    WatchRequest,
    encode,
    response_decoder,
)
from quorumlog.kv.service import FULL_CLIENTS, WatchHub
from quorumlog.kv.testing import LocalStores
from quorumlog.net import connection as net_connection
from quorumlog.net.connection import SILENT_PEER_MS, Connection
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import STORE, HelloResponse, client_hello
from quorumlog.net.limits import UNSENT_BYTES, ProcessLimits
from quorumlog.server.free_ports import free_ports
from quorumlog.state_machine import MOST_RESULT_BYTES
from tests.waiting import eventually

MIB = 1 << 20


def test_status_is_told_where_connections_have_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with Stores() as stores:
        monkeypatch.setattr(ProcessLimits, "most_connections", 0)
        with connect(stores.servers) as kv:
            assert kv.status().role == "leader"
        with connect(stores.servers, timeout_ms=500) as kv, pytest.raises(LedgerError):
            kv.put("key", "value")


class Stores(LocalStores):
    """One member, with a gateway for clients of etcd."""

    def __init__(self, options: StoreOptions | None = None) -> None:
        super().__init__(1, options=options)
        self.gateway = f"127.0.0.1:{free_ports(1)[0]}"
        self.made: list[Any] = []

    def _endpoints(self, member_id: str) -> list[Any]:
        (store,) = super()._endpoints(member_id)
        self.made = [store, EtcdGateway(store, self.gateway, self.servers, member_id)]
        return self.made

    @property
    def connections(self) -> list[Connection]:
        (endpoint,) = (each for each in self.made if isinstance(each, KeyValueEndpoint))
        return list(endpoint._listener.connections.values())


class Raw:
    """A client of its own, in messages."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=60)
        self._decoder = response_decoder()
        self._came: list[Any] = []
        self.say(client_hello(STORE))
        assert isinstance(self.next(), HelloResponse)

    def say(self, *messages: Any) -> int:
        data = b"".join(b"".join(encode_frame(GROUP, each)) for each in messages)
        self.sock.sendall(data)
        return len(data)

    def next(self) -> Any:
        while not self._came:
            data = self.sock.recv(1 << 20)
            assert data, "it was closed"
            self._came += [frame.message for frame in self._decoder.receive_data(data)]
        return self._came.pop(0)


@contextmanager
def raw(address: str) -> Iterator[Raw]:
    client = Raw(address)
    try:
        yield client
    finally:
        client.sock.close()


def test_answers_that_nobody_reads_wait_where_they_cost_nothing() -> None:
    """40 requests in 2,120 bytes, for 5 MiB each: 200 MiB, of which one piece of work is held."""
    with Stores() as stores, connect(stores.servers) as kv:
        for number in range(5):
            kv.put(b"k%d" % number, bytes(MIB))
        with raw(stores.servers) as client:
            everything = encode(Range(b"k", b"l"))
            asked = [QuestionRequest(request_id=each, question=everything) for each in range(1, 41)]
            assert client.say(*asked) < 2200
            unsent: list[int] = []

            def is_full() -> bool:
                kv.put("beside", "served")
                unsent.append(max(each.unsent_bytes for each in stores.connections))
                return unsent[-1] > UNSENT_BYTES

            eventually(is_full, what="answers that wait to be sent")
            for _ in range(50):
                is_full()
            most = UNSENT_BYTES + MOST_RESULT_BYTES + 6 * MIB
            assert max(unsent) <= most, "what one piece of work gave, and nothing beside it"
            answers = [client.next() for _ in asked]
            assert {each.request_id for each in answers} == set(range(1, 41))
            for each in answers:
                if isinstance(each, ErrorResponse):
                    assert isinstance(error_of(each), RequestTimeout), "it waited for too long"
            assert sum(isinstance(each, AnswerResponse) for each in answers) >= 1
            client.say(QuestionRequest(request_id=41, question=encode(Range(b"beside"))))
            assert isinstance(client.next(), AnswerResponse)


def test_requests_that_wait_on_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_endpoint, "MOST_ASKED_BYTES", 10 * kv_endpoint.REQUEST_BYTES + 500)
    with Stores() as stores, raw(stores.servers) as client:
        asked = [
            QuestionRequest(request_id=each, question=encode(Range(b"k"))) for each in range(1, 101)
        ]
        client.say(*asked)
        told = sorted((client.next() for _ in asked), key=lambda each: each.request_id)
        assert [each.request_id for each in told] == list(range(1, 101))
        full = [error_of(each) for each in told if isinstance(each, ErrorResponse)]
        assert full and len(full) < len(told)
        for error in full:
            assert isinstance(error, ConnectionFull)
            assert "requests of this connection wait: ask less at once" in str(error)
        client.say(asked[0])
        assert isinstance(client.next(), AnswerResponse), "those before it were answered"


def test_watches_of_a_connection_are_bounded() -> None:
    """1.5 million watches on one connection took 703 MB."""
    with Stores(StoreOptions(max_watches=3)) as stores, raw(stores.servers) as client:
        watches = [WatchRequest(request_id=each, key=b"a", end=b"b") for each in range(1, 5)]
        client.say(*watches)
        for number in range(1, 4):
            begun = client.next()
            assert isinstance(begun, EventsResponse)
            assert begun.request_id == number
        refused = client.next()
        assert refused.request_id == 4
        error = error_of(refused)
        assert isinstance(error, ConnectionFull)
        assert "this connection has 3 watches, its maximum" in str(error)
        assert "--max-watches" in str(error)
        assert error.retry_after_ms
        client.say(CancelRequest(request_id=5, watch=2), watches[3])
        assert isinstance(client.next(), EventsResponse), "one that was cancelled counts no more"


def test_a_watch_too_many_is_raised_by_the_client() -> None:
    with Stores(StoreOptions(max_watches=1)) as stores, connect(stores.servers) as kv:
        with kv.watch("a"), pytest.raises(ConnectionFull, match="--max-watches"), kv.watch("b"):
            pass
        with kv.watch("b"):
            pass


class Session:
    """Of a client that reads all that it is sent."""

    unsent_bytes = 0

    def send(self, message: object) -> None:
        """It is read."""

    def abort(self) -> None:
        raise AssertionError


def test_watches_of_all_clients_are_bounded() -> None:
    hub = WatchHub(lambda question, done: None, most_watches=2)
    asked = [WatchRequest(request_id=each, key=b"a") for each in (1, 2)]
    sessions = [Session() for _ in range(FULL_CLIENTS)]
    for session in sessions:
        for each in asked:
            hub.add(session, each)
    with pytest.raises(ConnectionFull, match="this member has 20 watches"):
        hub.add(Session(), asked[0])
    hub.lost(sessions[0])
    assert len(hub) == 18
    hub.add(Session(), asked[0])


def test_a_client_of_the_gateway_that_says_no_more_is_answered() -> None:
    """It has closed its side and waits for what it asked: none was told anything."""
    with Stores() as stores, connect(stores.servers) as kv:
        kv.put("k", b"v")
        host, _, number = stores.gateway.rpartition(":")
        body = b'{"key": "aw=="}'
        head = b"POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)

        def answers_to(asked: bytes) -> bytes:
            with socket.create_connection((host, int(number)), timeout=30) as sock:
                sock.sendall(asked)
                sock.shutdown(socket.SHUT_WR)
                told = b""
                while data := sock.recv(1 << 16):
                    told += data
                return told

        assert answers_to(head + body).count(b'"value": "dg=="') == 1
        assert answers_to(2 * (head + body)).count(b'"value": "dg=="') == 2
        assert answers_to(head + body[:5]).startswith(b"HTTP/1.1 400")
        assert answers_to(b"") == b""
        watch = b'{"create_request": {"key": "aw=="}}'
        head = b"POST /v3/watch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(watch)
        answers_to(head + watch)  # it ends with its client's last word


def test_watches_of_the_gateway_that_nobody_reads_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB each were held for them, uncounted."""
    # More than what is written and unsent of three: what is held beside them must count.
    monkeypatch.setattr(net_connection, "ALL_UNSENT_BYTES", 15 * MIB)
    beside: list[int] = []
    hold_beside = net_connection.Connection.hold_beside

    def hold(self: net_connection.Connection, size_bytes: int) -> None:
        beside.append(size_bytes)
        hold_beside(self, size_bytes)

    monkeypatch.setattr(net_connection.Connection, "hold_beside", hold)
    with Stores() as stores, connect(stores.servers) as kv:
        gateway = next(each for each in stores.made if isinstance(each, EtcdGateway))
        host, _, number = stores.gateway.rpartition(":")
        body = b'{"create_request": {"key": "aw=="}}'
        request = b"POST /v3/watch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        socks = []
        for _ in range(3):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect((host, int(number)))
            sock.sendall(request)
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
            socks.append(sock)

        def one_is_closed() -> bool:
            kv.put("k", bytes(MIB))
            return len(gateway._listener.connections) < 3

        eventually(one_is_closed, what="the end of who leaves most unread")
        assert 0 < max(beside) <= 4 * MIB, "the member keeps the rest as history"
        for sock in socks:
            sock.close()


def test_requests_that_wait_at_the_gateway_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a leader each of a thousand clients had 4 MiB held for five seconds."""
    monkeypatch.setattr(gateway_module, "MOST_WAITING_BYTES", 1_000)
    holds, answer = [True], gateway_module._GatewayClient._answer

    async def held(self: Any, *asked: Any) -> None:
        await (asyncio.Event().wait() if holds else answer(self, *asked))

    monkeypatch.setattr(gateway_module._GatewayClient, "_answer", held)
    with Stores() as stores:
        gateway = next(each for each in stores.made if isinstance(each, EtcdGateway))

        def put() -> http.client.HTTPConnection:
            host, _, number = stores.gateway.rpartition(":")
            client = http.client.HTTPConnection(host, int(number), timeout=60)
            client.request("POST", "/v3/kv/put", json.dumps({"key": "aw==", "value": "dmFs" * 150}))
            return client

        waits = put()
        eventually(lambda: gateway.waiting_bytes > 600, what="a request that waits")
        refused = put()
        assert refused.getresponse().status == 429
        waits.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        waits.close()  # at once: who only says no more is answered
        eventually(lambda: gateway.waiting_bytes == 0, what="the end of who waits")
        holds.clear()
        served = put()
        assert served.getresponse().status == 200
        eventually(lambda: gateway.waiting_bytes == 0, what="no request that waits")
        for client in (refused, served):
            client.close()


@pytest.mark.parametrize("port", ["store", "gateway"])
def test_a_client_whose_machine_vanished_is_noticed(port: str) -> None:
    """By the kernel, as far as its sockets say so: ten of ten were there after three minutes."""
    with Stores() as stores, connect(stores.servers) as kv:
        kv.put("a", "b")
        if port == "gateway":
            host, _, number = stores.gateway.rpartition(":")
            client = http.client.HTTPConnection(host, int(number), timeout=60)
            client.request("GET", "/version")
            assert client.getresponse().status == 200
        (endpoint,) = (
            each for each in stores.made if isinstance(each, EtcdGateway) == (port == "gateway")
        )
        (connection, *_) = endpoint._listener.connections.values()
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) * 1000 == SILENT_PEER_MS
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == SILENT_PEER_MS
        if port == "gateway":
            client.close()


def test_two_requests_of_one_id_are_none() -> None:
    with Stores() as stores, raw(stores.servers) as client:
        asked = QuestionRequest(request_id=1, question=encode(Range(b"k")))
        client.say(asked, msgspec.structs.replace(asked))
        with pytest.raises((AssertionError, ConnectionError)):
            for _ in range(2):
                client.next()
